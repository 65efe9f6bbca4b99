"""main.py of WMLCE's ResNet-50 (NVIDIA's TensorFlow 1 program), as Bede's job scripts start it."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainstone.config.old.flag import Flag, Given, Grammar, Request, Verb, set_data, set_out
from trainstone.config.old.launcher import describe_launcher, read_launcher
from trainstone.config.old.line import PROGRAM, read_line
from trainstone.errors import ConfigError

MODES = ("train", "train_and_evaluate", "evaluate", "predict", "training_benchmark", "inference_benchmark")
VERBS: dict[str, Verb] = {"training_benchmark": "bench", "train": "train", "train_and_evaluate": "train"}
NEED_DATA = ("train", "train_and_evaluate", "evaluate")
DECAY_EPOCHS = [30.0, 60.0, 80.0, 90.0]
BATCH_UNIT_EPOCHS = 90.0
"""Length of the schedule where --iter_unit=batch."""
DALI = {
    "augment.crop": "area",
    "augment.area": [0.1, 1.0],
    "augment.aspect": [0.8, 1.25],
    "augment.normalise": "wmlce_dali",
}

SPECIAL = (
    *("precision", "loss_scale", "use_static_loss_scaling", "use_tf_amp", "use_cosine_lr"),
    *("data_format", "display_every"),
)
"""Flags whose value is not the key's."""

FLAGS = (
    Flag("mode", "text", "train_and_evaluate", "the verb", "see the table of modes", MODES),
    Flag("data_dir", "path", "", "`--data`", "none: bench is synthetic, train asks for it"),
    Flag("data_idx_dir", "path", "", "", "an index of TFRecord files is made where it is needed"),
    Flag("export_dir", "path", "", "", "`trainstone eval CHECKPOINT --export FILE` writes weights for other tools"),
    Flag("to_predict", "path", "", "`eval CHECKPOINT --predict`", "mode predict"),
    Flag("batch_size", "integer", "", "`train.batch_size`", "per device; none: `auto`. Evaluation: `eval.batch_size`"),
    Flag("num_iter", "integer", "1", "`stop.epochs`, `--iterations`", "bench: `measure.max_epochs`, `--iterations`"),
    Flag("iter_unit", "text", "epoch", "`stop.epochs` or `--iterations`", "", ("epoch", "batch")),
    Flag("warmup_steps", "integer", "50", "`original.warm_up_steps`", "left out of the log's average alone"),
    Flag("data_format", "text", "NCHW", "`engine.channels_last`", "not given: the recipe's, true", ("NCHW", "NHWC")),
    Flag("model_dir", "path", "", "", "checkpoints lie in the run folder"),
    Flag("results_dir", "path", "", "`--out`", "every run makes its own folder in it"),
    Flag("display_every", "integer", "10", "`original.every_steps`"),
    Flag("lr_init", "number", "0.1", "`optimizer.learning_rate`", "for 256 images a step, here too"),
    Flag("lr_warmup_epochs", "number", "5", "`schedule.warm_up_epochs`"),
    Flag("weight_decay", "number", "1e-4", "`optimizer.weight_decay`"),
    Flag("momentum", "number", "0.9", "`optimizer.momentum`"),
    Flag("precision", "text", "fp32", "`train.precision`", "", ("fp32", "fp16")),
    Flag("loss_scale", "number", "256", "`train.loss_scale`", "with use_static_loss_scaling"),
    Flag("label_smoothing", "number", "0.0", "`train.label_smoothing`"),
    Flag("mixup", "number", "0.0", "`train.mixup`"),
    Flag("use_static_loss_scaling", "switch", "false", "`train.loss_scale`", "false: `dynamic`"),
    Flag("use_xla", "switch", "false", "`engine.compile`"),
    Flag("use_dali", "switch", "false", "`augment.crop`, `augment.normalise`", "DALI's own; our loader decodes"),
    Flag("use_tf_amp", "switch", "false", "`train.precision`", "fp16; refused beside `--precision=fp16`, as there"),
    Flag("use_cosine_lr", "switch", "false", "`schedule.name`", "false: a tenth at epochs 30, 60, 80, 90"),
    Flag("seed", "integer", "1", "`seed`"),
    Flag("gpu_memory_fraction", "number", "0.7", "", "torch takes what it needs"),
    Flag("gpu_id", "integer", "0", "`--device`"),
)
GRAMMAR = Grammar("wmlce", FLAGS, negated=True)


def understand(words: Sequence[str]) -> Request:
    """Read main.py's flags, with or without what starts it."""
    line = read_line(words, PROGRAM)
    given = GRAMMAR.read_flags(line.after)
    values, mode = given.values, given.values["mode"]
    if values["use_tf_amp"] and values["precision"] == "fp16":
        raise ConfigError(
            "--use_tf_amp and --precision=fp16 exclude each other", hint="both are train.precision=fp16 here: give one"
        )
    verb: Verb = VERBS.get(mode, "eval")
    keys = list_keys(given)
    notes = [*line.notes, *describe_launcher(line.launcher), *given.notes]
    if mode in NEED_DATA or ("data_dir" in values and mode != "predict"):
        notes += set_data(keys, values.get("data_dir"), "--data_dir")
    if verb == "eval":
        if "batch_size" in values and mode != "predict":
            keys["eval.batch_size"] = values["batch_size"]
        notes.append("saved weights bring their own precision and network; TensorFlow's checkpoints are not read")
    else:
        keys |= list_lengths(values, verb)
        notes += ["--mode=train: here training ends with an evaluation, too"] * (mode == "train")
        notes += ["--batch_size is not given: auto, what fits this device"] * ("batch_size" not in values)
    geometry = read_launcher(line.launcher)
    return Request(verb, keys, list_options(values), geometry, notes)


def list_keys(given: Given) -> dict[str, Any]:
    """Return the keys that flags of every mode set."""
    values = given.values
    keys = {"train.batch_size": "auto", **given.list_keys(SPECIAL), "train.precision": "fp32"}
    if values["precision"] == "fp16" or values["use_tf_amp"]:  # fp32 has no loss scale, so the recipe's stays
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


def list_lengths(values: Mapping[str, Any], verb: Verb) -> dict[str, Any]:
    """Return how long a run is: epochs, or batches of a schedule of 90 epochs."""
    if values["iter_unit"] == "batch":
        ending = {"measure.iterations" if verb == "bench" else "stop.steps": values["num_iter"]}
        return {"stop.epochs": BATCH_UNIT_EPOCHS, **ending}
    epochs = {"stop.epochs": float(values["num_iter"])}
    return epochs | ({"measure.max_epochs": values["num_iter"]} if verb == "bench" else {})


def list_options(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return flags of the command."""
    if values["mode"] == "predict":
        return ("--predict", values.get("to_predict", "IMAGE"))
    options = ("--bench",) if values["mode"] == "inference_benchmark" else ()
    return options + set_out(values.get("results_dir"))
