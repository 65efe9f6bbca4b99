"""MLPerf's MXNet ResNet-50 (NVIDIA's, as Backend.AI packaged it) and MXNet SSD (Dell EMC's).

Of both: variables of their start scripts, config_*.sh, flags of their programs, and the SSD's other scripts.
"""

import itertools
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import (
    Geometry,
    Line,
    Parser,
    Request,
    Verb,
    check_counts,
    read_flags,
    read_line,
    read_script,
    read_variables,
    set_data,
    set_out,
    settle,
    split_text,
)

RESNET50 = "mlperf-resnet50"
PROGRAM = r"train_imagenet\.py|run_and_time\.sh|run_with_docker\.sh|run\.sub"
REPEATING = ("run_with_docker.sh", "run.sub")
# The rate and batch that the recipe is written for; the published others lie near the square root of the batch.
RATE, BATCH, GLOBAL_BATCH = 10.5, 408, 3264
ODD = 3.0
PACKAGED_SYSTEM = "trainstone train resnet50-mlperf --system backendai-1x2"
# What config_DGXA100.sh of the Backend.AI package sets, which both scripts source.
PACKAGED = (
    "export OPTIMIZER=sgdwfastlars BATCHSIZE=4 LR=10.5 WARMUP_EPOCHS=2 WD=5.0e-05 LABELSMOOTHING=0.1 LRSCHED=pow2 "
    "NUMEPOCHS=37"
)
SCRIPTS = {
    "run_singlenode.sh": f"{PACKAGED} GPUPERNODE=2; ./run_and_time.sh",
    "run_multinode.sh": f"{PACKAGED}; ./run_and_time.sh",
}


def understand_resnet50(words: Sequence[str]) -> Request:
    """Read variables, a config_*.sh, a start script with variables before it, or a line of train_imagenet.py."""
    line = read_line(words, PROGRAM, SCRIPTS)
    if line.program == "train_imagenet.py" or line.after:
        return read_program(line)
    return read_script_variables(line)


def read_program(line: Line) -> Request:
    """Read the flags of train_imagenet.py."""
    given = read_flags(RESNET50, line.after)
    values = given.values
    geometry = line.geometry
    if geometry.devices() is None and values.get("gpus"):
        geometry = Geometry(1, len(values["gpus"].split(",")))
    method, notes = read_method(values["optimizer"], values.get("lr-step-epochs", "0"), values["e2e-cuda-graphs"])
    size = re.fullmatch(r"[34],(\d{2,4}),\1", values["image-shape"])
    if size is None:
        raise ConfigError(f"invalid --image-shape={values['image-shape']}: expected channels and a square: 3,224,224")
    keys = given.keys | method
    keys |= {
        "data.image_size": int(size[1]),
        "augment.area": [values["min-random-area"], values["max-random-area"]],
        "augment.aspect": [values["min-random-aspect-ratio"], values["max-random-aspect-ratio"]],
        "train.precision": "fp16" if values["dtype"] == "float16" else "fp32",
    }
    if "num-examples" in given.written:
        keys["schedule.pictures"] = values["num-examples"]
    notes += set_rate(keys, geometry)
    source = values.get("data-train")
    notes += set_data(keys, str(PurePosixPath(source).parent) if source else None, "--data-train")
    return Request("train", keys, (), geometry, [*line.notes, *given.notes, *notes])


def read_script_variables(line: Line) -> Request:
    """Read variables, given as words or in files, before a start script or alone."""
    if "NODENUM" in line.values and "NETWORK" in line.values:
        line.notes.append(f"NETWORK={line.values.pop('NETWORK')}: docker's network; no container is needed")
    if "$" in line.values.get("SEED", ""):
        line.notes.append(f"SEED={line.values.pop('SEED')}: not drawn; give --seed or --runs")
    given = read_variables(RESNET50, line)
    values = given.values
    check_counts(values, ("DGXNGPU", "DGXNNODES", "GPUPERNODE", "NODENUM"))
    each, nodes = values.get("GPUPERNODE", values.get("DGXNGPU")), values.get("NODENUM", values.get("DGXNNODES"))
    started = line.geometry
    geometry = settle(nodes or started.nodes, each or started.each, started.ranks)
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
    """Return optimiser and schedule, and what LARS lacks here; a list of epochs is a schedule in steps."""
    plain = optimizer == "sgd"
    keys: dict[str, Any] = {"optimizer.name": "sgd" if plain else "lars", "engine.cuda_graphs": plain and graphs > 0}
    if plain:
        keys["optimizer.momentum_correction"] = False  # MXNet's SGD has the rate within its momentum
    if re.fullmatch(r"pow2?", plan):
        keys |= {"schedule.name": "polynomial", "schedule.power": 2.0, "schedule.end_rate": 1e-4}
    elif plan == "0":
        keys |= {"schedule.name": "constant"}
    elif re.fullmatch(r"\d{1,5}(,\d{1,5})*", plan):
        epochs = [float(epoch) for epoch in plan.split(",")]
        keys |= {"schedule.name": "steps", "schedule.decay_epochs": epochs, "schedule.decay_late": True}
    else:
        raise ConfigError(f"invalid schedule {plan}: expected pow2 or a list of epochs such as 30,60,80")
    notes = ["sgdwfastlarsv2: no formula of it is published; LARS is used"] * (optimizer == "sgdwfastlarsv2")
    notes += ["CUDA graphs: not captured with LARS, whose rates are the host's"] * (graphs > 0 and not plain)
    return keys, notes


def set_rate(keys: dict[str, Any], geometry: Geometry) -> list[str]:
    """Set which batch the rate is meant for; return a note where it is far from the recipe's rule."""
    rate, batch, sgd = keys["optimizer.learning_rate"], keys["train.batch_size"], keys["optimizer.name"] == "sgd"
    count = geometry.devices()
    if count is None:
        if (rate, batch) == (RATE, BATCH) and not sgd:
            return []
        keys["optimizer.rate_for"] = "run"
        return ["the number of devices is not given: the rate is taken as it is, on one or on many"]
    images = batch * count
    keys |= {"optimizer.rate_for": images, "optimizer.rate_growth": "linear" if sgd else "sqrt"}
    usual = RATE * math.sqrt(max(images, 1) / GLOBAL_BATCH)
    if sgd or usual / ODD <= rate <= usual * ODD:
        return []
    instead = PACKAGED_SYSTEM if (count, batch) == (2, 4) else f"--set optimizer.learning_rate={usual:.2g}"
    return [f"rate {rate:g} for {images:,} images per step: the recipe's rule gives {usual:.2g}: {instead}"]


SSD = "mlperf-ssd"
SSD_PROGRAM = r"ssd_main(?:_async)?\.py"
STARTING = r"run_with_docker\.sh|run\.slurm|run_and_time(?:_multi)?\.sh"
SSD_REPEATING = ("run_with_docker.sh", "run.slurm")
DOCKER = r"build_container\.sh|build\.sh|launch\.sh|launch_local\.sh|config\.sh"
PREPARING = rf"mll-status|prepare-json\.py|create_tfrecord\.(?:py|sh)|get_resnet34_backbone\.sh|{DOCKER}"
BASE_RATE = 2.5e-3
BACKBONE = "resnet34-333f7ec4.pickle"
# config_*.sh: names of the same system, its nodes, GPUs of a node, EXTRA_PARAMS.
SYSTEMS = (
    ("C4140", 1, 4, "--batch-size=128 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4"),
    ("2xC4140 2xC4140_01x08x56", 2, 4, "--batch-size=128 --lr-warmup-epoch=5.25 --lr=5.84e-3 --weight-decay=1.6e-4"),
    (
        *("4xC4140 4xC4140_01x08x56", 4, 4),
        "--batch-size=56 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4 --dali-workers=3",
    ),
    ("DSS8440", 1, 8, "--batch-size=128 --lr-warmup-epoch=5 --lr=5.84e-3 --weight-decay=1.6e-4"),
    ("DGX1 DGX1_01x08x56", 1, 8, "--batch-size=56 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4"),
    ("DGXA100 DGXA100_1x8x114", 1, 8, "--batch-size=114 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4"),
)
# scripts/train/dgx1: batch, and 300 steps of warm-up in epochs, by how many GPUs share batch norm.
WARM_UPS = {1: (128, 2.619685), 2: (64, 1.3098425), 4: (32, 0.65492125)}
SSD_SCRIPTS = {
    f"config_{name}.sh": f"export NNODES={nodes} NGPU={each} EXTRA_PARAMS='{extra}'"
    for names, nodes, each, extra in SYSTEMS
    for name in names.split()
}
SSD_SCRIPTS |= {
    f"train_mlperf_dgx1_{f'gbn{shared}_' if shared > 1 else ''}{layout}_{precision}.sh": (
        f"mpirun -np 8 -N 8 python ssd_main_async.py --log-interval=20 --batch-size={WARM_UPS[shared][0]} "
        f"--lr-warmup-epochs={WARM_UPS[shared][1]} --pretrained-backbone=/datasets/backbones/{BACKBONE} "
        f"--data-layout={layout} --bn-group={shared} --precision={precision}"
    )
    for shared, layout, precision in itertools.product(WARM_UPS, ("nhwc", "nchw"), ("fp16", "amp"))
}


def understand_ssd(words: Sequence[str]) -> Request:
    """Read variables, a config_*.sh, a start script with variables before it, or a line of ssd_main.py."""
    line = read_line(words, rf"{SSD_PROGRAM}|{PREPARING}|{STARTING}", SSD_SCRIPTS)
    if re.fullmatch(PREPARING, line.program):
        return read_preparing(line)
    if re.fullmatch(SSD_PROGRAM, line.program) or line.after:
        return read_ssd_program(line, line.after, line.geometry)
    return read_ssd_variables(line)


def read_ssd_program(line: Line, words: Sequence[str], geometry: Geometry) -> Request:
    """Read the flags of ssd_main.py."""
    given = read_flags(SSD, words, short={"-j": "dali-workers", "-t": "target-map"})
    values, written = given.values, given.written
    if "resume-from" in written and "pretrained-backbone" in written:
        raise ConfigError("--resume-from and --pretrained-backbone exclude each other")
    precision, interval = values["precision"], values.get("val-interval", 0)
    loss_scale = {"fp16": {"train.loss_scale": values["fp16-loss-scale"]}, "amp": {"train.loss_scale": "dynamic"}}
    regular = range(interval, min(values["epochs"], 100_000) + 1, interval) if interval > 0 else ()
    evaluated = sorted({*values["val-epochs"], *map(float, regular)})
    keys, notes = given.keys, [*line.notes, *given.notes]
    keys |= {
        "train.precision": "fp32" if precision == "fp32" else "fp16",
        **loss_scale.get(precision, {}),
        "engine.channels_last": values["data-layout"] == "NHWC",
        "optimizer.learning_rate": values.get("lr") or BASE_RATE,
        "schedule.warm_up_epochs": values.get("lr-warmup-epochs") or 0.0,
        "schedule.warm_up_from": 1 - 2 ** -max(0.0, values["lr-warmup-factor"]),
        "eval.at_epochs": evaluated,
        "eval.target": values["target-map"] / 100,
        "detect.max_found": values["nms-topk"] if values["post-nms"] == -1 else values["post-nms"],
        **({} if evaluated else {"eval.every_epochs": 0}),
    }
    if "dali-workers" in written:
        keys["loader.threads"] = values["dali-workers"]
    if values["log-interval"] != 100:
        keys["original.every_steps"] = values["log-interval"]
    if values["synthetic"]:
        keys["data.source"] = "synthetic"
    else:
        name = "tfrecord-root" if values["use-tfrecord"] else "coco-root"
        notes += set_data(keys, values[name] if name in written else None, f"--{name}")
        if not {"pretrained-backbone", "resume-from"} & set(written):
            notes.append("--pretrained-backbone is not given: training starts from random weights, as there")
    return Request("bench" if values["synthetic"] else "train", keys, set_out(values.get("results")), geometry, notes)


def read_ssd_variables(line: Line) -> Request:
    """Read variables, given as words or in files, before a start script or alone."""
    if "SYSTEM" in line.values:
        read_script(line, [f"config_{line.values['SYSTEM']}.sh"], 0)
    given = read_variables(SSD, line)
    values, started = given.values, line.geometry
    check_counts(values, ("NNODES", "NGPU", "DGXNNODES", "DGXNGPU", "NUMEPOCHS", "NEXP"))
    nodes, each = values.get("NNODES", values.get("DGXNNODES")), values.get("NGPU", values.get("DGXNGPU"))
    if nodes == 1 and any("2xC4140" in file for file in line.files):
        nodes = 2
        line.notes.append("NNODES=1: the file of 2xC4140 says so by mistake; it ran on 2 nodes")
    if line.program == "run.slurm":
        each = each or 4
    line.notes += given.notes
    # What run_and_time.sh passes on to ssd_main_async.py.
    words = ["--log-interval=100", "--data-layout=NHWC", f"--epochs={values['NUMEPOCHS']}", "--async-val"]
    if values.get("DATADIR"):
        words.append(f"--coco-root={values['DATADIR'].rstrip('/')}/coco2017")
    if values.get("PRETRAINED_DIR"):
        words.append(f"--pretrained-backbone={values['PRETRAINED_DIR'].rstrip('/')}/{BACKBONE}")
    if values.get("LOGDIR"):
        words.append(f"--results={values['LOGDIR']}")
    words += split_text(values.get("EXTRA_PARAMS", ""))
    request = read_ssd_program(line, words, settle(started.nodes or nodes, started.each or each, started.ranks))
    keys = dict(request.keys)
    if "CLEAR_CACHES" in given.written:
        keys["mlperf.clear_caches"] = values["CLEAR_CACHES"] > 0
    repeated = "NEXP" in given.written or line.program in SSD_REPEATING
    return request._replace(keys=keys, runs=values["NEXP"] if repeated else 1)


def read_preparing(line: Line) -> Request:
    """Return the command that equals a script which trains nothing."""
    command, notes = ["doctor"], [f"{line.program}: no container is needed; --data DIR in place of mounts"]
    if line.program == "mll-status":
        command, notes = ["mlperf", "summary", *(line.after or ["LOG"])], []
    elif line.program == "prepare-json.py":
        root = name_root(
            PurePosixPath(next((word for word in line.after if not word.startswith("-")), "")).parent.parent
        )
        command = ["data", "coco", "--from", root, "--to", f"{root}-checked"]
        notes = ["writes bbox_only_instances_*.json of both splits with their areas, and checks the images"]
    elif line.program.startswith("create_tfrecord"):
        command, notes = create_records(line)
    elif line.program == "get_resnet34_backbone.sh":
        command = ["weights", "convert", "resnet34-333f7ec4.pth", "resnet34.safetensors"]
        notes = ["`weights convert` can fetch the .pth from a URL; model.pretrained takes a file only, the .pth too"]
    quoted = [word if re.fullmatch(r"[\w./*?-]+", word) else shlex.quote(word) for word in command]  # *.log stays
    return Request("train", {}, notes=(*line.notes, *notes), command=" ".join(["trainstone", *quoted]))


def name_root(folder: PurePosixPath) -> str:
    """Return the folder of a data set: COCO where the words do not name it."""
    return "COCO" if folder.name in ("", "..") else str(folder)


def create_records(line: Line) -> tuple[list[str], list[str]]:
    """create_tfrecord.py for one split, or create_tfrecord.sh for both: `data convert` does both at once."""
    parser = Parser(SSD)
    for names in ("-i", "-a", "-o", "-n", "-s --seed", "--size-threshold", "-d --dataset-dir", "-c --container"):
        parser.add_argument(*names.split())
    for name in ("--ltrb", "--ratio", "--skip-empty"):
        parser.add_argument(name, action="store_true")
    given = vars(parser.parse_args(line.after))
    both = line.program.endswith(".sh")
    folder = f"{given.get('dataset_dir', '/datasets/ssd')}/coco2017/train2017" if both else ""
    root = name_root(PurePosixPath(given.get("i", folder)).parent)
    target = PurePosixPath(given.get("o", root)).parent
    beside = "o" not in given or target.is_relative_to(root) or target.name == ""
    command = ["data", "convert", root, f"{root}-tfrecord" if beside else str(target), "--format", "tfrecord"]
    command += ["--skip-empty"] * (both or "skip_empty" in given) + ["--shuffle"] * (both or "seed" in given)
    command += ["--shards", given["n"]] if given.get("n", "1") != "1" else []
    notes = ["both splits at once; validation images without boxes stay, boxes are edges as shares of the sides"]
    return command, notes
