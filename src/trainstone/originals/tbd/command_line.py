"""Parser of command lines of TBD's resnet_ctl_imagenet_main.py (TensorFlow 2) and the suite's scripts."""

import re
from collections.abc import Sequence
from typing import Any

from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import (
    PROGRAM,
    Geometry,
    Line,
    ParsedFlags,
    Request,
    Verb,
    read_flags,
    read_line,
    set_data,
    set_out,
)

BATCH_SIZES = "1,2,4,8,16,32,64,96,128"
MAX_PROFILED_STEPS = 200
SUITE_BATCH, SUITE_DEVICES = 384, 4
"""Global batch size of run_train.sh, and the number of GPUs that the suite ran it on."""
TBD_SCRIPTS = {
    "run_train.sh": "python3 resnet_ctl_imagenet_main.py --batch_size=384 --dtype=fp32 --train_epochs=90 "
    "--distribution_strategy multi_worker_mirrored",
}
NO_DATA = "the images were in the suite's container: add --data TFRECORDS; without it batches are synthetic"


def parse_tbd(words: Sequence[str]) -> Request:
    """Parse a line of the program, or of one of the suite's scripts with its arguments."""
    line = read_line(words, rf"{PROGRAM}|measure_throughput\.sh|measure_compute_util\.sh", TBD_SCRIPTS)
    keys: dict[str, Any] = {}
    options: tuple[str, ...] = ("--batch-sizes", BATCH_SIZES)
    if line.program == "measure_throughput.sh":
        (keys["measure.iterations"],) = read_numbers(line, line.after, (1000,), "[STOP]")
        note = "every batch size runs a fixed number of steps; --seconds N instead stops at a narrow interval"
    elif line.program == "measure_compute_util.sh":  # the timeline, or the cores
        usage = "nvprof|ncu [START] [ITERATIONS]"
        tool = line.after[0] if line.after else "nvprof"
        if tool not in ("nvprof", "ncu"):
            raise ConfigError(f"invalid argument of {line.program}: {tool}; expected {usage}")
        start, count = read_numbers(line, line.after[1:], (1000, 200), usage)
        one = f"trainstone profile resnet50-tbd --start {start} --iterations {min(count, MAX_PROFILED_STEPS)}"
        options += ("--profile",) if tool == "nvprof" else ("--cores",)
        note = f"each batch size is profiled once it is steady; for a single batch size: {one}"
    else:
        return read_tbd_program(line)
    return Request("sweep", {**keys, "train.precision": "fp32"}, options, notes=(*line.notes, note, NO_DATA))


def read_numbers(line: Line, words: Sequence[str], defaults: tuple[int, ...], usage: str) -> tuple[int, ...]:
    """Return a script's arguments as numbers; missing ones get the script's defaults."""
    if len(words) > len(defaults) or not all(re.fullmatch(r"[1-9]\d{0,8}", word) for word in words):
        raise ConfigError(
            f"invalid arguments of {line.program}: {' '.join(line.after)}; expected {usage}",
            hint="START, STOP and ITERATIONS are positive whole numbers",
        )
    return (*map(int, words), *defaults[len(words) :])


def read_tbd_program(line: Line) -> Request:
    """Parse the program's flags."""
    given = read_flags("tbd", line.after, negated=True, absl=True)
    values = given.values
    if values["num_gpus"] < 0:
        raise ConfigError(f"invalid --num_gpus={values['num_gpus']}: must be at least 0", hint="0 selects the CPU")
    hosts = values.get("worker_hosts", "").split(",")
    geometry, notes = Geometry(), [*line.notes, *given.notes]
    if hosts[0] or "num_gpus" in given.written:
        geometry = Geometry(len(hosts), max(1, values["num_gpus"]))
    elif values["distribution_strategy"] == "multi_worker_mirrored":  # the program used all GPUs of the host
        suite = values["batch_size"] == SUITE_BATCH
        geometry = Geometry(1, SUITE_DEVICES) if suite else geometry
        assumed = f"the suite's {SUITE_DEVICES} GPUs" if suite else "one device"
        notes.append(f"--batch_size is the sum over all GPUs; without --num_gpus, {assumed} is assumed")
    verb: Verb = "bench" if values["skip_eval"] or values["use_synthetic_data"] else "train"
    verb = "profile" if "profile_step" in values else verb
    keys = list_tbd_keys(given, geometry, verb)
    if values["use_synthetic_data"]:
        keys["data.source"] = "synthetic"
    elif verb == "train" or "data_dir" in given.written:
        notes += set_data(keys, values["data_dir"] if "data_dir" in given.written else None, "--data_dir")
    options = set_out(values.get("benchmark_log_dir"))
    if verb == "profile":
        count = min(values["steps_per_loop"], MAX_PROFILED_STEPS)
        options = ("--start", str(values["profile_step"]), "--iterations", str(count), *options)
    return Request(verb, keys, options, geometry, notes)


def list_tbd_keys(given: ParsedFlags, geometry: Geometry, verb: Verb) -> dict[str, Any]:
    """Return the keys that the flags set."""
    values, devices = given.values, geometry.devices() or 1
    if values["batch_size"] % devices:
        raise ConfigError(f"invalid --batch_size={values['batch_size']}: must be a multiple of the {devices} devices")
    keys = given.keys
    keys["train.batch_size"] = values["batch_size"] // devices
    keys["loader.cache"] = "files" if values["training_dataset_cache"] else "off"
    if values["dtype"] == "fp16":
        scale = values.get("loss_scale", "128")
        keys["train.loss_scale"] = float(scale) if re.fullmatch(r"\d+(\.\d*)?(e-?\d+)?", scale) else scale
    if "data_format" in given.written:
        keys["engine.channels_last"] = values["data_format"] == "channels_last"
    if values["log_steps"] != 100:
        keys["original.every_steps"] = values["log_steps"]
    if values["num_gpus"] == 0:
        keys["device"] = "cpu"
    keys["stop.epochs"] = 1.0 if "train_steps" in values else float(values["train_epochs"])  # one epoch at most
    ending = {"bench": "measure.iterations", "train": "stop.steps"}.get(verb)
    return keys | ({ending: values["train_steps"]} if ending and "train_steps" in values else {})
