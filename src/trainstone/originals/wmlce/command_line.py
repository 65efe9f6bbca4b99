"""Parser of command lines of WMLCE's ResNet-50 (main.py, NVIDIA's TensorFlow 1 program), as in Bede's job scripts."""

from collections.abc import Sequence
from typing import Any

from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import (
    PROGRAM,
    ParsedFlags,
    Request,
    Verb,
    read_flags,
    read_line,
    set_data,
    set_out,
)

VERBS: dict[str, Verb] = {"training_benchmark": "bench", "train": "train", "train_and_evaluate": "train"}
NEED_DATA = ("train", "train_and_evaluate", "evaluate")
DECAY_EPOCHS = [30.0, 60.0, 80.0, 90.0]
BATCH_UNIT_EPOCHS = 90.0
"""Length of the schedule with --iter_unit=batch."""
DALI = {
    "augment.crop": "area",
    "augment.area": [0.1, 1.0],
    "augment.aspect": [0.8, 1.25],
    "augment.normalise": "wmlce_dali",
}


def parse_wmlce(words: Sequence[str]) -> Request:
    """Parse main.py's flags, with or without the launcher before it."""
    line = read_line(words, PROGRAM)
    given = read_flags("wmlce", line.after, negated=True)
    values, mode = given.values, given.values["mode"]
    if values["use_tf_amp"] and values["precision"] == "fp16":
        raise ConfigError(
            "--use_tf_amp and --precision=fp16 cannot be combined", hint="remove one; both mean train.precision=fp16"
        )
    verb: Verb = VERBS.get(mode, "eval")
    keys = list_wmlce_keys(given)
    notes = [*line.notes, *given.notes]
    if mode in NEED_DATA or ("data_dir" in values and mode != "predict"):
        notes += set_data(keys, values.get("data_dir"), "--data_dir")
    if verb == "eval":
        if "batch_size" in values and mode != "predict":
            keys["eval.batch_size"] = values["batch_size"]
        notes.append("precision and network come from the checkpoint; TensorFlow's checkpoints are not supported")
    else:
        benches, count = verb == "bench", values["num_iter"]
        keys["stop.epochs"] = float(count)
        if values["iter_unit"] == "batch":
            keys |= {"stop.epochs": BATCH_UNIT_EPOCHS, "measure.iterations" if benches else "stop.steps": count}
        elif benches:
            keys["measure.max_epochs"] = count
        notes += ["--mode=train: trainstone also evaluates at the end"] * (mode == "train")
        notes += ["--batch_size is not given: auto, the largest that fits this device"] * ("batch_size" not in values)
    options = set_out(values.get("results_dir"))
    if mode == "inference_benchmark":
        options = ("--bench", *options)
    elif mode == "predict":
        options = ("--predict", values.get("to_predict", "IMAGE"))
    return Request(verb, keys, options, line.geometry, notes)


def list_wmlce_keys(given: ParsedFlags) -> dict[str, Any]:
    """Return the recipe keys of the flags that all modes share."""
    values = given.values
    keys = {"train.batch_size": "auto", **given.keys, "train.precision": "fp32"}
    if values["precision"] == "fp16" or values["use_tf_amp"]:  # fp32 has no loss scale: the recipe's is kept
        scale = values["loss_scale"] if values["use_static_loss_scaling"] else "dynamic"
        keys |= {"train.precision": "fp16", "train.loss_scale": scale}
    if not values["use_cosine_lr"]:
        keys |= {"schedule.name": "steps", "schedule.decay_epochs": DECAY_EPOCHS, "schedule.decay_late": True}
    if values["use_dali"]:
        keys |= DALI
    if "data_format" in given.written:
        keys["engine.channels_last"] = values["data_format"] == "NHWC"
    if values["display_every"] != 10:
        keys["original.every_steps"] = values["display_every"]
    if values["gpu_id"]:
        keys["device"] = f"cuda:{values['gpu_id']}"
    return keys
