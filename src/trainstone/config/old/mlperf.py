"""MLPerf's MXNet ResNet-50 (NVIDIA's, as Backend.AI packaged it): variables of its scripts, flags of its program."""

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from trainstone.config.old.asked import Asked, Verb, set_data, set_out, tell_launcher, trace_flags
from trainstone.config.old.flag import check_alone, list_or
from trainstone.config.old.launcher import Geometry, read_launcher, settle
from trainstone.config.old.line import Line, Reading, read_line
from trainstone.config.old.mlperf_flags import FLAGS
from trainstone.config.old.mlperf_variables import NETWORKS, VARIABLES
from trainstone.config.old.reading import Given, Grammar, read_flags, read_variables
from trainstone.config.old.shell import ASSIGNMENT, PASTED, READ, Assigned, merge, read_assignments, read_commands
from trainstone.errors import ConfigError

ORIGINAL = "mlperf-resnet50"
GRAMMAR = Grammar(ORIGINAL, FLAGS)
SCRIPTS = r"run_and_time\.sh|run_singlenode\.sh|run_multinode\.sh|run_with_docker\.sh|run\.sub"
# The rate and batch that the recipe is written for; the published others lie near the square root of the batch.
RATE, BATCH, GLOBAL_BATCH = 10.5, 408, 3264
ODD = 3.0
COUNTS = ("DGXNGPU", "DGXNNODES", "GPUPERNODE", "NODENUM")
PACKAGED_SYSTEM = "trainstone train resnet50-mlperf --system backendai-1x2"
# What config_DGXA100.sh of the Backend.AI package sets, which run_singlenode.sh and run_multinode.sh source.
PACKAGED = {
    "OPTIMIZER": "sgdwfastlars",
    "BATCHSIZE": "4",
    "LR": "10.5",
    "WARMUP_EPOCHS": "2",
    "WD": "5.0e-05",
    "LABELSMOOTHING": "0.1",
    "LRSCHED": "pow2",
    "NUMEPOCHS": "37",
}
# Keys by the variable that sets them, and the flag that run_and_time.sh makes of it.
KEYS = {
    "train.batch_size": ("BATCHSIZE", "batch-size"),
    "train.label_smoothing": ("LABELSMOOTHING", "label-smoothing"),
    "optimizer.learning_rate": ("LR", "lr"),
    "optimizer.momentum": ("MOM", "mom"),
    "optimizer.weight_decay": ("WD", "wd"),
    "optimizer.lars_eta": ("LARSETA", "lars-eta"),
    "schedule.warm_up_epochs": ("WARMUP_EPOCHS", "warmup-epochs"),
    "eval.offset": ("EVAL_OFFSET", "eval-offset"),
    "eval.every_epochs": ("EVAL_PERIOD", "eval-period"),
    "stop.epochs": ("NUMEPOCHS", "num-epochs"),
    "parallel.bn_ranks": ("BN_GROUP", "bn-group"),
    "seed": ("SEED", "seed"),
}


def understand(words: Sequence[str]) -> Asked:
    """Read variables, a config_*.sh, a start script with variables before it, or a line of train_imagenet.py."""
    line = read_line(words, Reading((r"train_imagenet\.py", SCRIPTS), kept=READ))
    if line.program == "train_imagenet.py" or any(word.startswith("--") for word in line.after):
        return read_program(line)
    return read_script_line(line)


def read_program(line: Line) -> Asked:
    """Read the flags of train_imagenet.py."""
    given = read_flags(GRAMMAR, line.after)
    values = given.values
    geometry = read_launcher(line.before)
    if geometry.devices() is None and values.get("gpus"):
        geometry = Geometry(1, len([gpu for gpu in values["gpus"].split(",") if gpu]))
    keys = {key: values[flag] for key, (_, flag) in KEYS.items()}
    keys |= read_method(values["optimizer"], values.get("lr-step-epochs", "0"), "--lr-step-epochs")
    keys |= read_program_keys(given)
    notes = [
        *line.notes,
        *tell_launcher(line),
        *given.notes,
        *tell_optimizer(values["optimizer"], values["e2e-cuda-graphs"]),
    ]
    keys, odd = set_rate(keys, geometry, values["optimizer"])
    source = values.get("data-train")
    notes += [*odd, *set_data(keys, str(PurePosixPath(source).parent) if source else None, "--data-train")]
    return Asked("train", keys, (), geometry, tuple(notes), trace_flags(FLAGS, given.asked))


def read_program_keys(given: Given) -> dict[str, Any]:
    """Return the keys that flags of train_imagenet.py alone set."""
    values = given.values
    size = re.fullmatch(r"[34],(\d{2,4}),\1", values["image-shape"])
    if size is None:
        raise ConfigError(f"--image-shape={values['image-shape']}: it is 3 or 4 channels and a square: 3,224,224")
    keys = {
        "model.depth": values["num-layers"],
        "model.num_classes": values["num-classes"],
        "model.zero_gamma": values["bn-gamma-init0"],
        "data.image_size": int(size[1]),
        "augment.val_shorter": values["resize"],
        "augment.area": [values["min-random-area"], values["max-random-area"]],
        "augment.aspect": [values["min-random-aspect-ratio"], values["max-random-aspect-ratio"]],
        "train.precision": "fp16" if values["dtype"] == "float16" else "fp32",
        "optimizer.lars_epsilon": values["lars-eps"],
        "schedule.decay_factor": values["lr-factor"],
        "eval.target": values["accuracy-threshold"],
        "engine.cuda_graphs": values["e2e-cuda-graphs"] > 0 and values["optimizer"] == "sgd",
    }
    return keys | ({"schedule.pictures": values["num-examples"]} if "num-examples" in given.asked else {})


def read_script_line(line: Line) -> Asked:
    """Read variables, given as words or in files, before a start script or alone."""
    set_before = [word for word in line.before if ASSIGNMENT.fullmatch(word) or word.endswith(".sh")]
    launched = line._replace(before=tuple(word for word in line.before if word not in (*set_before, "source", ".")))
    words = read_assignments([*set_before, *line.after], program="train_imagenet.py")
    found = merge(read_commands(line.earlier, PASTED, {}), words)
    if line.program in ("run_singlenode.sh", "run_multinode.sh"):
        found.values.update({name: text for name, text in PACKAGED.items() if name not in found.values})
    notes = [*line.notes, *tell_launcher(launched), *found.notes, *tell_computed(found)]
    docker = find_docker_network(found)
    given = read_variables(ORIGINAL, VARIABLES, found.values)
    values = dict(given.values)
    if not docker and values["NETWORK"] not in NETWORKS:
        check_alone([f"NETWORK={values['NETWORK']}: it is {list_or(NETWORKS)}"], original=ORIGINAL)
    if values["TIME_TAGS"] or values["NVTX_FLAG"]:
        values |= {"NUMEPOCHS": 4, "WARMUP_EPOCHS": 2}
    geometry = find_geometry(values, launched)
    keys: dict[str, Any] = {key: values[variable] for key, (variable, _) in KEYS.items()}
    keys |= read_method(values["OPTIMIZER"], values["LRSCHED"], "LRSCHED") | read_script_keys(given)
    keys, odd = set_rate(keys, geometry, values["OPTIMIZER"])
    notes += [*docker, *given.notes, *tell_optimizer(values["OPTIMIZER"], values["E2E_CUDA_GRAPHS"]), *odd]
    verb: Verb = "profile" if values["PROFILE"] else "bench" if values["SYNTH_DATA"] else "train"
    if values["SYNTH_DATA"]:
        keys["data.source"] = "synthetic"
    elif verb == "train" or "DATADIR" in values:
        notes += set_data(keys, values.get("DATADIR"), "DATADIR")
    said = trace_flags(VARIABLES, given.asked)
    return Asked(verb, keys, read_options(line, given, verb), geometry, tuple(notes), said)


def read_script_keys(given: Given) -> dict[str, Any]:
    """Return the keys that variables alone set."""
    values = given.values
    keys: dict[str, Any] = {"engine.cuda_graphs": values["E2E_CUDA_GRAPHS"] > 0 and values["OPTIMIZER"] == "sgd"}
    if "NUMEXAMPLES" in values:
        keys["schedule.pictures"] = values["NUMEXAMPLES"]
    if values["TIME_TAGS"]:
        keys["engine.split_phases"] = True
    if values["NVTX_FLAG"]:
        keys["engine.nvtx"] = True
    if "CLEAR_CACHES" in given.asked:
        keys["mlperf.clear_caches"] = values["CLEAR_CACHES"] > 0
    return keys


def read_options(line: Line, given: Given, verb: Verb) -> tuple[str, ...]:
    """Return flags of the command."""
    repeated = "NEXP" in given.asked or line.program in ("run_with_docker.sh", "run.sub")
    runs = given.values["NEXP"] if repeated and verb == "train" else 1
    return (("--runs", str(runs)) if runs > 1 else ()) + set_out(given.values.get("LOGDIR"))


def find_docker_network(found: Assigned) -> tuple[str, ...]:
    """Take out the NETWORK of run_multinode.sh, which is docker's and not the neural one."""
    if not {"NODENUM", "KEYREPO"} & set(found.values) or "NETWORK" not in found.values:
        return ()
    return (f"NETWORK={found.values.pop('NETWORK')}: docker's network; no container is needed",)


def find_geometry(values: Mapping[str, Any], line: Line) -> Geometry:
    """Return nodes and devices from the variables, or from mpirun and horovodrun."""
    few = [f"{name}={values[name]}: must be at least 1" for name in COUNTS if values.get(name, 1) < 1]
    check_alone(few, original=ORIGINAL)
    each = values.get("GPUPERNODE", values.get("DGXNGPU"))
    nodes = values.get("NODENUM", values.get("DGXNNODES"))
    started = read_launcher(line.before)
    if line.program == "run_singlenode.sh" and each is None:
        each = 2
    return settle(Geometry(nodes or started.nodes, each or started.each, started.ranks))


def read_method(optimizer: str, plan: str, shown: str) -> dict[str, Any]:
    """Return optimiser and schedule; a list of epochs is a schedule in steps."""
    keys: dict[str, Any] = {"optimizer.name": "sgd" if optimizer == "sgd" else "lars"}
    if optimizer == "sgd":
        keys["optimizer.momentum_correction"] = False  # MXNet's SGD has the rate within its momentum
    if re.fullmatch(r"pow2?", plan):
        return keys | {"schedule.name": "polynomial", "schedule.power": 2.0, "schedule.end_rate": 1e-4}
    if plan == "0":
        return keys | {"schedule.name": "constant"}
    if not re.fullmatch(r"\d{1,5}(,\d{1,5})*", plan):
        raise ConfigError(f"{shown}={plan}: it is pow2 or a list of epochs such as 30,60,80")
    epochs = [float(epoch) for epoch in plan.split(",")]
    return keys | {"schedule.name": "steps", "schedule.decay_epochs": epochs, "schedule.decay_late": True}


def set_rate(keys: Mapping[str, Any], geometry: Geometry, optimizer: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Say for which batch the rate is meant, and where it is far from the recipe's rule."""
    rate, batch = keys["optimizer.learning_rate"], keys["train.batch_size"]
    count = geometry.devices()
    if count is None:
        ours = (rate, batch) == (RATE, BATCH) and optimizer != "sgd"
        if ours:
            return dict(keys), ()
        told = "the number of devices is not given: the rate is taken as it is, on one or on many"
        return {**keys, "optimizer.rate_for": "run"}, (told,)
    images = batch * count
    growth = "linear" if optimizer == "sgd" else "sqrt"
    done = {**keys, "optimizer.rate_for": images, "optimizer.rate_growth": growth}
    usual = RATE * math.sqrt(max(images, 1) / GLOBAL_BATCH)
    if optimizer == "sgd" or usual / ODD <= rate <= usual * ODD:
        return done, ()
    told = f"rate {rate:g} for {images:,} images a step: the recipe's rule, {RATE} for {GLOBAL_BATCH:,} and the square"
    instead = PACKAGED_SYSTEM if (count, batch) == (2, 4) else f"--set optimizer.learning_rate={usual:.2g}"
    return done, (f"{told} root for others, gives {usual:.2g}: {instead}",)


def tell_optimizer(optimizer: str, graphs: int) -> list[str]:
    """Say what LARS does not have here."""
    notes = []
    if optimizer == "sgdwfastlarsv2":
        notes.append("sgdwfastlarsv2: no formula of it is published; LARS is used, as on the other systems")
    if graphs and optimizer != "sgd":
        notes.append("CUDA graphs: not captured with LARS, whose rates are the host's")
    return notes


def tell_computed(found: Assigned) -> list[str]:
    """Say what only a shell could tell; refuse it where the recipe needs it."""
    notes, needed = [], []
    for name, text in found.computed.items():
        row = next((row for row in VARIABLES if fnmatch.fnmatchcase(name, row.name)), None)
        if row is None or (row.ours and name != "SEED"):
            needed.append(f"{name}={text}")
        else:
            told = "the recipe's seed is kept; --seed N, or --runs N for several" if name == "SEED" else row.remark
            notes.append(f"{name}={text}: {told}")
    if needed:
        raise ConfigError(
            f"only a shell could tell these, and none is started: {'; '.join(needed)}", hint="give their values"
        )
    return notes
