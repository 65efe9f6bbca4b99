"""Parser of command lines of MLPerf's MXNet ResNet-50 (NVIDIA's, as Backend.AI packaged it).

It reads variables of the start scripts, config_*.sh files and the flags of train_imagenet.py.
"""

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import (
    Geometry,
    Line,
    Request,
    Verb,
    check_counts,
    complete_geometry,
    read_flags,
    read_line,
    read_variables,
    set_data,
    set_out,
)
from trainstone.originals.mlperf_ssd.command_line import BACKBONE, SSD_SCRIPTS, WARM_UPS

RESNET50 = "mlperf-resnet50"
PROGRAM = r"train_imagenet\.py|run_and_time\.sh|run_with_docker\.sh|run\.sub"
REPEATING = ("run_with_docker.sh", "run.sub")
# Learning rate and batch of the recipe; the other published rates scale about with the square root of the batch.
RATE, BATCH, GLOBAL_BATCH = 10.5, 408, 3264
MAX_RATE_FACTOR = 3.0
PACKAGED_SYSTEM = "trainstone train resnet50-mlperf --system backendai-1x2"
# Variables of the Backend.AI package's config_DGXA100.sh, which both scripts source.
PACKAGED = (
    "export OPTIMIZER=sgdwfastlars BATCHSIZE=4 LR=10.5 WARMUP_EPOCHS=2 WD=5.0e-05 LABELSMOOTHING=0.1 LRSCHED=pow2 "
    "NUMEPOCHS=37"
)
SCRIPTS = {
    "run_singlenode.sh": f"{PACKAGED} GPUPERNODE=2; ./run_and_time.sh",
    "run_multinode.sh": f"{PACKAGED}; ./run_and_time.sh",
}


def parse_resnet50(words: Sequence[str]) -> Request:
    """Parse variables, a config_*.sh, a start script with variables before it, or a line of train_imagenet.py."""
    line = read_line(words, PROGRAM, SCRIPTS)
    if line.program == "train_imagenet.py" or line.after:
        return read_program(line)
    return read_script_variables(line)


def read_program(line: Line) -> Request:
    """Parse the flags of train_imagenet.py."""
    given = read_flags(RESNET50, line.after)
    values = given.values
    geometry = line.geometry
    if geometry.devices() is None and values.get("gpus"):
        geometry = Geometry(1, len(values["gpus"].split(",")))
    method, notes = read_method(values["optimizer"], values.get("lr-step-epochs", "0"), values["e2e-cuda-graphs"])
    size = re.fullmatch(r"[34],(\d{2,4}),\1", values["image-shape"])
    if size is None:
        raise ConfigError(
            f"invalid --image-shape={values['image-shape']}: expected 3 or 4 channels and a square, such as 3,224,224"
        )
    keys = given.keys | method
    keys |= {
        "data.image_size": int(size[1]),
        "augment.area": [values["min-random-area"], values["max-random-area"]],
        "augment.aspect": [values["min-random-aspect-ratio"], values["max-random-aspect-ratio"]],
        "train.precision": "fp16" if values["dtype"] == "float16" else "fp32",
    }
    if "num-examples" in given.written:
        keys["schedule.images"] = values["num-examples"]
    notes += set_rate(keys, geometry)
    source = values.get("data-train")
    notes += set_data(keys, str(PurePosixPath(source).parent) if source else None, "--data-train")
    return Request("train", keys, (), geometry, [*line.notes, *given.notes, *notes])


def read_script_variables(line: Line) -> Request:
    """Parse variables, given as words or in files, with or without a start script."""
    if "NODENUM" in line.values and "NETWORK" in line.values:
        line.notes.append(f"NETWORK={line.values.pop('NETWORK')}: ignored, docker's network; no container is needed")
    if "$" in line.values.get("SEED", ""):
        line.notes.append(f"SEED={line.values.pop('SEED')}: ignored, no shell is started; add --seed N or --runs N")
    given = read_variables(RESNET50, line)
    values = given.values
    check_counts(values, ("DGXNGPU", "DGXNNODES", "GPUPERNODE", "NODENUM"))
    per_node, nodes = values.get("GPUPERNODE", values.get("DGXNGPU")), values.get("NODENUM", values.get("DGXNNODES"))
    started = line.geometry
    geometry = complete_geometry(nodes or started.nodes, per_node or started.per_node, started.ranks)
    method, notes = read_method(values["OPTIMIZER"], values["LRSCHED"], values["E2E_CUDA_GRAPHS"])
    keys = given.keys | method
    if values["TIME_TAGS"] or values["NVTX_FLAG"]:
        keys |= {"stop.epochs": 4, "schedule.warm_up_epochs": 2}
        keys |= {"engine.split_phases": True} if values["TIME_TAGS"] else {}
        keys |= {"engine.nvtx": True} if values["NVTX_FLAG"] else {}
    if "CLEAR_CACHES" in given.written:
        keys["mlperf.clear_caches"] = values["CLEAR_CACHES"] > 0
    notes += set_rate(keys, geometry)
    verb: Verb = "profile" if values["PROFILE"] else "bench" if values["SYNTH_DATA"] else "train"
    if values["SYNTH_DATA"]:
        keys["data.source"] = "synthetic"
    elif verb == "train" or "DATADIR" in values:
        notes += set_data(keys, values.get("DATADIR"), "DATADIR")
    repeated = verb == "train" and ("NEXP" in given.written or line.program in REPEATING)
    notes = [*line.notes, *given.notes, *notes]
    return Request(verb, keys, set_out(values.get("LOGDIR")), geometry, notes, values["NEXP"] if repeated else 1)


def read_method(optimizer: str, plan: str, graphs: int) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of optimiser and schedule, and notes on LARS; a list of epochs is a step schedule."""
    plain = optimizer == "sgd"
    keys: dict[str, Any] = {"optimizer.name": "sgd" if plain else "lars", "engine.cuda_graphs": plain and graphs > 0}
    if plain:
        keys["optimizer.momentum_correction"] = False  # MXNet's SGD multiplies by the rate inside the momentum
    if re.fullmatch(r"pow2?", plan):
        keys |= {"schedule.name": "polynomial", "schedule.power": 2.0, "schedule.end_rate": 1e-4}
    elif plan == "0":
        keys |= {"schedule.name": "constant"}
    elif re.fullmatch(r"\d{1,5}(,\d{1,5})*", plan):
        epochs = [float(epoch) for epoch in plan.split(",")]
        keys |= {"schedule.name": "steps", "schedule.decay_epochs": epochs, "schedule.decay_late": True}
    else:
        raise ConfigError(f"invalid schedule {plan}: expected pow2 or a list of epochs such as 30,60,80")
    notes = ["sgdwfastlarsv2: its formula is not published; LARS is used"] * (optimizer == "sgdwfastlarsv2")
    notes += ["CUDA graphs: off with LARS, which computes its rates on the host"] * (graphs > 0 and not plain)
    return keys, notes


def set_rate(keys: dict[str, Any], geometry: Geometry) -> list[str]:
    """Set the batch that the learning rate is for; return a note if it is far from the recipe's rule."""
    rate, batch, sgd = keys["optimizer.learning_rate"], keys["train.batch_size"], keys["optimizer.name"] == "sgd"
    count = geometry.devices()
    if count is None:
        if (rate, batch) == (RATE, BATCH) and not sgd:
            return []
        keys["optimizer.rate_for"] = "run"
        return ["the number of devices is not given: the learning rate is used unchanged on any number"]
    images = batch * count
    keys |= {"optimizer.rate_for": images, "optimizer.rate_scaling": "linear" if sgd else "sqrt"}
    usual = RATE * math.sqrt(max(images, 1) / GLOBAL_BATCH)
    if sgd or usual / MAX_RATE_FACTOR <= rate <= usual * MAX_RATE_FACTOR:
        return []
    instead = PACKAGED_SYSTEM if (count, batch) == (2, 4) else f"--set optimizer.learning_rate={usual:.2g}"
    return [
        f"learning rate {rate:g} for {images:,} images per step: the recipe's rule gives {usual:.2g}; use {instead}"
    ]


SSD_SCRIPTS |= {
    f"train_mlperf_dgx1_{f'gbn{shared}_' if shared > 1 else ''}{layout}_{precision}.sh": (
        f"mpirun -np 8 -N 8 python ssd_main_async.py --log-interval=20 --batch-size={WARM_UPS[shared][0]} "
        f"--lr-warmup-epochs={WARM_UPS[shared][1]} --pretrained-backbone=/datasets/backbones/{BACKBONE} "
        f"--data-layout={layout} --bn-group={shared} --precision={precision}"
    )
    for shared, layout, precision in itertools.product(WARM_UPS, ("nhwc", "nchw"), ("fp16", "amp"))
}
