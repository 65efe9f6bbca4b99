"""resnet_ctl_imagenet_main.py of the TBD suite (TensorFlow 2), and the suite's scripts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainstone.config.old.flag import Asked, Flag, Given, Grammar, Verb, idle, set_data, set_out
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
OWN = "{}: what the suite's own script ran"
NO_DATA = "its pictures lay in the container: give --data TFRECORDS"


def understand(words: Sequence[str]) -> Asked:
    """Read a line of the program, or one of the suite's scripts with its arguments."""
    line = read_line(words, rf"{PROGRAM}|measure_throughput\.sh|measure_compute_util\.sh", r"run_train\.sh")
    if line.program == "measure_throughput.sh":
        return read_throughput(line)
    if line.program == "measure_compute_util.sh":
        return read_utilisation(line)
    if line.program == "run_train.sh" and not line.after:
        keys = {"train.batch_size": 96, "train.precision": "fp32", "stop.epochs": 90.0}
        notes = (*line.notes, *describe_launcher(line), OWN.format(line.program), NO_DATA)
        return Asked("train", keys, (), Geometry(1, 4), notes)
    return read_program(line)


def read_throughput(line: Line) -> Asked:
    """measure_throughput.sh [stop]: so many steps of each batch size."""
    (steps,) = read_numbers(line, line.after, (1000,), "[STOP]")
    told = "every batch size runs its steps; --seconds N instead of measure.iterations ends when the interval is narrow"
    return make_sweep(line, {"measure.iterations": steps}, (), told)


def read_utilisation(line: Line) -> Asked:
    """measure_compute_util.sh nvprof|ncu [start] [iterations]: the timeline, or the cores."""
    tool = line.after[0] if line.after else "nvprof"
    if tool not in ("nvprof", "ncu"):
        raise ConfigError(f"{line.program} {tool}: it takes nvprof or ncu first", hint="then [START] [ITERATIONS]")
    start, count = read_numbers(line, line.after[1:], (1000, 200), "nvprof|ncu [START] [ITERATIONS]")
    told = (
        f"start {start}, {count} iterations: each point is profiled when it is steady, for some steps; "
        f"of one batch size: trainstone profile resnet50-tbd --start {start} --iterations {min(count, MOST_PROFILED)}"
    )
    return make_sweep(line, {}, ("--profile",) if tool == "nvprof" else ("--cores",), told)


def make_sweep(line: Line, keys: Mapping[str, Any], options: tuple[str, ...], note: str) -> Asked:
    """Return a sweep over the suite's batch sizes."""
    notes = (*line.notes, OWN.format(line.program), note, f"{NO_DATA}, or the batches are synthetic")
    return Asked("sweep", {**keys, "train.precision": "fp32"}, ("--batch-sizes", BATCH_SIZES, *options), notes=notes)


def read_numbers(line: Line, words: Sequence[str], defaults: tuple[int, ...], taken: str) -> tuple[int, ...]:
    """Return the arguments of a script, its defaults where they are not given."""
    if len(words) > len(defaults) or not all(word.isdecimal() and 0 < int(word[:12]) < 10**9 for word in words):
        raise ConfigError(f"{line.program} {' '.join(line.after)}: it takes {taken}", hint="whole numbers")
    return (*map(int, words), *defaults[len(words) :])


def read_program(line: Line) -> Asked:
    """Read the program's flags."""
    given = GRAMMAR.read_flags(line.after)
    values = given.values
    verb = choose_verb(values)
    hosts = [host for host in values.get("worker_hosts", "").split(",") if host]
    on_cpu = values["num_gpus"] == 0
    if values["num_gpus"] < 0:
        raise ConfigError(f"--num_gpus={values['num_gpus']}: must be at least 0", hint="0 is the CPU")
    known = hosts or "num_gpus" in given.asked
    geometry = Geometry(max(1, len(hosts)), 1 if on_cpu else values["num_gpus"]) if known else Geometry()
    every_gpu = () if known else tell_every_gpu(values)
    if every_gpu and values["batch_size"] == SUITE_BATCH:
        geometry = Geometry(1, SUITE_DEVICES)
    keys = list_keys(given, geometry) | read_length(values, verb) | ({"device": "cpu"} if on_cpu else {})
    notes = [*line.notes, *describe_launcher(line), *given.notes, *every_gpu]
    if values["use_synthetic_data"]:
        keys["data.source"] = "synthetic"
    elif verb == "train" or "data_dir" in given.asked:
        notes += set_data(keys, values["data_dir"] if "data_dir" in given.asked else None, "--data_dir")
    options = set_out(values.get("benchmark_log_dir"))
    if verb == "profile":
        count = min(values["steps_per_loop"], MOST_PROFILED)
        options = ("--start", str(values["profile_step"]), "--iterations", str(count), *options)
    elif verb == "bench":
        notes.append("speed alone is asked for: trainstone bench")
    return Asked(verb, keys, options, geometry, notes, said=given.trace())


def tell_every_gpu(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Say where a line took every GPU that was there, and does not tell how many."""
    if values["distribution_strategy"] != "multi_worker_mirrored":
        return ()
    if values["batch_size"] == SUITE_BATCH:
        told = f"taken as the suite's {SUITE_DEVICES} GPUs with {SUITE_BATCH // SUITE_DEVICES} each"
        return (f"--batch_size={SUITE_BATCH} is of all GPUs: {told}; give --num_gpus for others",)
    return ("--batch_size is of all GPUs; give --num_gpus, one is taken without",)


def choose_verb(values: Mapping[str, Any]) -> Verb:
    """A line that judges nothing measures."""
    if "profile_step" in values:
        return "profile"
    return "bench" if values["skip_eval"] or values["use_synthetic_data"] else "train"


def read_length(values: Mapping[str, Any], verb: Verb) -> dict[str, Any]:
    """Return how long a run is; train_steps made it one epoch at most."""
    if "train_steps" not in values:
        return {"stop.epochs": float(values["train_epochs"])}
    ending = {"bench": "measure.iterations", "train": "stop.steps"}.get(verb)
    return {"stop.epochs": 1.0} | ({ending: values["train_steps"]} if ending else {})


def list_keys(given: Given, geometry: Geometry) -> dict[str, Any]:
    """Return the keys that the flags set."""
    values = given.values
    keys = given.list_keys(SPECIAL)
    keys["train.batch_size"] = divide_batch(values["batch_size"], geometry.devices() or 1)
    keys["loader.cache"] = "files" if values["training_dataset_cache"] else "off"
    if values["dtype"] == "fp16":
        scale = values.get("loss_scale", "128")
        keys["train.loss_scale"] = float(scale) if re.fullmatch(r"\d+(\.\d*)?(e-?\d+)?", scale) else scale
    if "data_format" in given.asked:
        keys["engine.channels_last"] = values["data_format"] == "channels_last"
    if values["log_steps"] != 100:
        keys["original.every_steps"] = values["log_steps"]
    return keys


def divide_batch(images: int, devices: int) -> int:
    """Return the images of one device."""
    if images % devices:
        raise ConfigError(f"--batch_size={images} does not divide among {devices} devices", hint="nor did it there")
    return images // devices
