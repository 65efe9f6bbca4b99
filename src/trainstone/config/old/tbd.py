"""resnet_ctl_imagenet_main.py of the TBD suite (TensorFlow 2), and the suite's scripts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainstone.config.old.flag import Flag, Given, Grammar, Request, Verb, idle, set_data, set_out
from trainstone.config.old.launcher import Geometry, describe_launcher
from trainstone.config.old.line import PROGRAM, Line, read_line
from trainstone.errors import ConfigError

EXECUTION = "how TensorFlow executes; torch has one way, and `engine.compile`"
THREADS = "`loader.threads` and `engine.threads` follow the cores"
FLAGS = (
    Flag("data_dir", "path", "/tmp", "`--data`", "TFRecord, or any other data set; not given: none"),
    Flag("model_dir", "path", "/tmp", "", "checkpoints lie in the run folder"),
    Flag("clean", "switch", "false", "", "every run has a folder of its own"),
    Flag("train_epochs", "integer", "1", "`stop.epochs`"),
    Flag("epochs_between_evals", "integer", "1", "`eval.every_epochs`"),
    Flag("batch_size", "integer", "32", "`train.batch_size`", "of all devices there, of one here: divided by num_gpus"),
    Flag("num_gpus", "integer", "1", "`devices_per_node`", "0: `--device cpu`"),
    *idle(EXECUTION, "switch", "run_eagerly=false use_tf_while_loop=true use_tf_function=true"),
    Flag("distribution_strategy", "text", "mirrored", "", "ranks are started by trainstone launch"),
    Flag("use_synthetic_data", "switch", "false", "`data.source`", "then it is `bench`"),
    Flag("dtype", "text", "fp32", "`train.precision`", "", ("fp32", "fp16", "bf16")),
    Flag("loss_scale", "text", "", "`train.loss_scale`", "a number or dynamic; fp16 without: 128"),
    Flag("fp16_implementation", "text", "keras", "", "torch's autocast"),
    Flag("all_reduce_alg", "text", "", "", "`parallel.backend` is found"),
    Flag("num_packs", "integer", "1", "", "`parallel.bucket_bytes` is the size of a parcel of gradients"),
    Flag("tf_gpu_thread_mode", "text", "", "", THREADS),
    *idle(THREADS, "integer", "per_gpu_thread_count=0 datasets_num_private_threads"),
    Flag("training_dataset_cache", "switch", "false", "`loader.cache`", "files"),
    Flag("tf_data_experimental_slack", "switch", "false", "", "the loader works ahead (`loader.prefetch`)"),
    Flag("enable_xla", "switch", "false", "`engine.compile`"),
    Flag(
        *("data_format", "text", "", "`engine.channels_last`", "not given: the recipe's, true"),
        choices=("channels_first", "channels_last"),
    ),
    Flag("log_steps", "integer", "100", "`original.every_steps`"),
    Flag("skip_eval", "switch", "false", "the verb", "then it is `bench`"),
    Flag("train_steps", "integer", "", "`--iterations`", "and one epoch at most, as there"),
    Flag("steps_per_loop", "integer", "500", "`profile --iterations`", "with profile_step; else nothing"),
    Flag("single_l2_loss_op", "switch", "false", "", "the same sum"),
    Flag("enable_checkpoint_and_export", "switch", "false", "", "every training run has checkpoints"),
    Flag("enable_tensorboard", "switch", "false", "`tracking.tensorboard`"),
    Flag("profile_step", "integer", "", "`profile --start`"),
    Flag("batchnorm_spatial_persistent", "switch", "true", "", "cuDNN chooses (`engine.cudnn_benchmark`)"),
    Flag("report_accuracy_metrics", "switch", "true", "", "accuracy is what evaluation reports"),
    Flag("worker_hosts", "text", "", "`nodes`", "the number of hosts; srun or mpirun start them"),
    Flag("task_index", "integer", "-1", "", "a launcher numbers the ranks"),
    Flag("benchmark_log_dir", "path", "", "`--out`"),
)
GRAMMAR = Grammar("tbd", FLAGS, negated=True, absl=True)
SPECIAL = (
    *("batch_size", "use_synthetic_data", "loss_scale", "training_dataset_cache", "data_format"),
    *("log_steps", "train_epochs"),
)
"""Flags whose value is not the key's."""
BATCH_SIZES = "1,2,4,8,16,32,64,96,128"
MOST_PROFILED = 200
SUITE_BATCH, SUITE_DEVICES = 384, 4
"""What run_train.sh passes, and on how many GPUs the suite ran it."""
SCRIPTS = {
    "run_train.sh": "python3 resnet_ctl_imagenet_main.py --batch_size=384 --dtype=fp32 --train_epochs=90 "
    "--distribution_strategy multi_worker_mirrored",
}
NO_DATA = "its images were in the container: give --data TFRECORDS, or the batches are synthetic"


def understand(words: Sequence[str]) -> Request:
    """Read a line of the program, or one of the suite's scripts with its arguments."""
    line = read_line(words, rf"{PROGRAM}|measure_throughput\.sh|measure_compute_util\.sh", SCRIPTS)
    if line.program == "measure_throughput.sh":
        (steps,) = read_numbers(line, line.after, (1000,), "[STOP]")
        note = "every batch size runs its steps; --seconds N instead of measure.iterations ends at a narrow interval"
        return make_sweep(line, {"measure.iterations": steps}, (), note)
    if line.program == "measure_compute_util.sh":
        return read_utilisation(line)
    return read_program(line)


def read_utilisation(line: Line) -> Request:
    """measure_compute_util.sh nvprof|ncu [start] [iterations]: the timeline, or the cores."""
    usage = "nvprof|ncu [START] [ITERATIONS]"
    tool = line.after[0] if line.after else "nvprof"
    if tool not in ("nvprof", "ncu"):
        raise ConfigError(f"{line.program} {tool}: expected {usage}")
    start, count = read_numbers(line, line.after[1:], (1000, 200), usage)
    one = f"trainstone profile resnet50-tbd --start {start} --iterations {min(count, MOST_PROFILED)}"
    options = ("--profile",) if tool == "nvprof" else ("--cores",)
    return make_sweep(line, {}, options, f"each point is profiled when it is steady; of one batch size: {one}")


def make_sweep(line: Line, keys: Mapping[str, Any], options: tuple[str, ...], note: str) -> Request:
    """Return a sweep over the suite's batch sizes."""
    options = ("--batch-sizes", BATCH_SIZES, *options)
    return Request("sweep", {**keys, "train.precision": "fp32"}, options, notes=(*line.notes, note, NO_DATA))


def read_numbers(line: Line, words: Sequence[str], defaults: tuple[int, ...], usage: str) -> tuple[int, ...]:
    """Return the arguments of a script, its defaults where they are not given."""
    if len(words) > len(defaults) or not all(re.fullmatch(r"[1-9]\d{0,8}", word) for word in words):
        raise ConfigError(f"{line.program} {' '.join(line.after)}: expected {usage}", hint="whole numbers")
    return (*map(int, words), *defaults[len(words) :])


def read_program(line: Line) -> Request:
    """Read the program's flags."""
    given = GRAMMAR.read_flags(line.after)
    values = given.values
    if values["num_gpus"] < 0:
        raise ConfigError(f"--num_gpus={values['num_gpus']}: must be at least 0", hint="0 is the CPU")
    geometry, notes = find_geometry(given)
    verb: Verb = "bench" if values["skip_eval"] or values["use_synthetic_data"] else "train"
    verb = "profile" if "profile_step" in values else verb
    keys = list_keys(given, geometry) | read_length(values, verb)
    notes = [*line.notes, *describe_launcher(line.launcher), *given.notes, *notes]
    if values["use_synthetic_data"]:
        keys["data.source"] = "synthetic"
    elif verb == "train" or "data_dir" in given.written:
        notes += set_data(keys, values["data_dir"] if "data_dir" in given.written else None, "--data_dir")
    options = set_out(values.get("benchmark_log_dir"))
    if verb == "profile":
        count = min(values["steps_per_loop"], MOST_PROFILED)
        options = ("--start", str(values["profile_step"]), "--iterations", str(count), *options)
    return Request(verb, keys, options, geometry, notes)


def find_geometry(given: Given) -> tuple[Geometry, list[str]]:
    """Return the devices; a line that took every GPU there was does not say how many, unless it is the suite's."""
    values = given.values
    hosts = values.get("worker_hosts", "").split(",")
    if hosts[0] or "num_gpus" in given.written:
        return Geometry(len(hosts), max(1, values["num_gpus"])), []
    if values["distribution_strategy"] != "multi_worker_mirrored":
        return Geometry(), []
    note = "--batch_size is of all GPUs; give --num_gpus, or it is taken as"
    if values["batch_size"] == SUITE_BATCH:
        return Geometry(1, SUITE_DEVICES), [f"{note} the suite's {SUITE_DEVICES}"]
    return Geometry(), [f"{note} one device's"]


def read_length(values: Mapping[str, Any], verb: Verb) -> dict[str, Any]:
    """Return how long a run is; train_steps made it one epoch at most."""
    if "train_steps" not in values:
        return {"stop.epochs": float(values["train_epochs"])}
    ending = {"bench": "measure.iterations", "train": "stop.steps"}.get(verb)
    return {"stop.epochs": 1.0} | ({ending: values["train_steps"]} if ending else {})


def list_keys(given: Given, geometry: Geometry) -> dict[str, Any]:
    """Return the keys that the flags set."""
    values, devices = given.values, geometry.devices() or 1
    if values["batch_size"] % devices:
        raise ConfigError(f"--batch_size={values['batch_size']} does not divide among {devices} devices")
    keys = given.list_keys(SPECIAL)
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
    return keys
