"""resnet_ctl_imagenet_main.py of the TBD suite (TensorFlow 2), and the suite's scripts."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainstone.config.old.asked import Asked, Verb, set_data, set_out, tell_launcher, trace_flags
from trainstone.config.old.flag import Flag
from trainstone.config.old.launcher import Geometry
from trainstone.config.old.line import Line, Reading, read_line
from trainstone.config.old.reading import Given, Grammar, read_flags
from trainstone.config.old.script import ANY_SCRIPT, PROGRAM, read_started, read_text, tell_own
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
    Flag("run_eagerly", "switch", "false", "", EXECUTION),
    Flag("distribution_strategy", "text", "mirrored", "", "ranks are started by trainstone launch"),
    Flag("use_synthetic_data", "switch", "false", "`data.source`", "then it is `bench`"),
    Flag("dtype", "text", "fp32", "`train.precision`", "", ("fp32", "fp16", "bf16")),
    Flag("loss_scale", "text", "", "`train.loss_scale`", "a number or dynamic; fp16 without: 128"),
    Flag("fp16_implementation", "text", "keras", "", "torch's autocast"),
    Flag("all_reduce_alg", "text", "", "", "`parallel.backend` is found"),
    Flag("num_packs", "integer", "1", "", "`parallel.bucket_bytes` is the size of a parcel of gradients"),
    Flag("tf_gpu_thread_mode", "text", "", "", THREADS),
    Flag("per_gpu_thread_count", "integer", "0", "", THREADS),
    Flag("datasets_num_private_threads", "integer", "", "", THREADS),
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
    Flag("use_tf_while_loop", "switch", "true", "", EXECUTION),
    Flag("use_tf_function", "switch", "true", "", EXECUTION),
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
GRAMMAR = Grammar("tbd", FLAGS, negated=True, single_dash=True, shortened=False)
BATCH_SIZES = "1,2,4,8,16,32,64,96,128"
MOST_PROFILED = 200
SCRIPTS = r"run_train\.sh|measure_throughput\.sh|measure_compute_util\.sh"
SUITE_BATCH, SUITE_DEVICES = 384, 4
"""What run_train.sh passes, and on how many GPUs the suite ran it."""
NO_DATA = ("its pictures lay in the container: give --data TFRECORDS, or the batches are synthetic",)


def understand(words: Sequence[str]) -> Asked:
    """Read a line of the program, or one of the suite's scripts with its arguments."""
    line = read_line(words, Reading((PROGRAM, SCRIPTS, ANY_SCRIPT)))
    if line.program == "measure_throughput.sh":
        return read_throughput(line)
    if line.program == "measure_compute_util.sh":
        return read_utilisation(line)
    if line.program == "run_train.sh" and line.after:
        return read_program(line)  # it passes its own words where there are none alone
    line = read_started(words, SCRIPTS)
    if line.program == "run_train.sh":
        keys = {"train.batch_size": 96, "train.precision": "fp32", "stop.epochs": 90.0}
        needed = "its pictures lay in the container: give --data TFRECORDS"
        notes = (*line.notes, *tell_launcher(line), tell_own(line, "suite"), needed)
        return Asked("train", keys, (), Geometry(1, 4), notes)
    return read_program(line)


def read_throughput(line: Line) -> Asked:
    """measure_throughput.sh [stop]: so many steps of each batch size."""
    (steps,) = read_numbers(line, line.after, (1000,), "[STOP]")
    told = "every batch size runs its steps; --seconds N instead of measure.iterations ends when the interval is narrow"
    keys = {"measure.iterations": steps, "train.precision": "fp32"}
    sizes, source = find_sizes(line)
    return Asked("sweep", keys, ("--batch-sizes", sizes), notes=(*line.notes, source, told, *NO_DATA))


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
    option = "--profile" if tool == "nvprof" else "--cores"
    keys = {"train.precision": "fp32"}
    sizes, source = find_sizes(line)
    return Asked("sweep", keys, ("--batch-sizes", sizes, option), notes=(*line.notes, source, told, *NO_DATA))


def find_sizes(line: Line) -> tuple[str, str]:
    """Return the batch sizes of a script's loop where it is there, else the suite's, and what to say of it."""
    if not Path(line.path).is_file():
        return BATCH_SIZES, tell_own(line, "suite")
    found = re.search(r"^\s*for\s+\w+\s+in\s+([\d \t]{1,500}?)\s*(?:;.*)?$", read_text(Path(line.path)), re.MULTILINE)
    if found is None or not found[1].split() or "0" in found[1].split():
        return BATCH_SIZES, f"{line.path}: no loop over batch sizes in it; the suite's are taken"
    return ",".join(found[1].split()), f"{line.path}: the batch sizes of its loop are taken, nothing else of it"


def read_numbers(line: Line, words: Sequence[str], defaults: tuple[int, ...], taken: str) -> tuple[int, ...]:
    """Return the arguments of a script, its defaults where they are not given."""
    if len(words) > len(defaults) or not all(word.isdecimal() and 0 < int(word[:12]) < 10**9 for word in words):
        raise ConfigError(f"{line.program} {' '.join(line.after)}: it takes {taken}", hint="whole numbers")
    return (*map(int, words), *defaults[len(words) :])


def read_program(line: Line) -> Asked:
    """Read the program's flags."""
    given = read_flags(GRAMMAR, line.after)
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
    keys = read_keys(given, geometry) | read_length(values, verb) | ({"device": "cpu"} if on_cpu else {})
    notes = [*line.notes, *tell_launcher(line), *given.notes, *every_gpu]
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
    return Asked(verb, keys, options, geometry, tuple(notes), trace_flags(FLAGS, given.asked))


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


def read_keys(given: Given, geometry: Geometry) -> dict[str, Any]:
    """Return the keys that the flags set."""
    values = given.values
    keys: dict[str, Any] = {
        "train.batch_size": divide_batch(values["batch_size"], geometry.devices() or 1),
        "train.precision": values["dtype"],
        "eval.every_epochs": values["epochs_between_evals"],
        "engine.compile": values["enable_xla"],
        "loader.cache": "files" if values["training_dataset_cache"] else "off",
        "tracking.tensorboard": values["enable_tensorboard"],
    }
    if values["dtype"] == "fp16":
        keys["train.loss_scale"] = read_scale(values.get("loss_scale", "128"))
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


def read_scale(text: str) -> float | str:
    """Return a loss scale."""
    try:
        scale = 1.0 if text == "dynamic" else float(text)
    except ValueError as err:
        raise ConfigError(f"--loss_scale={text}: must be a number or dynamic") from err
    if not math.isfinite(scale):
        raise ConfigError(f"--loss_scale={text}: must be a finite number or dynamic")
    return "dynamic" if text == "dynamic" else scale
