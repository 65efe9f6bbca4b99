"""Parser of command lines of MLPerf's MXNet SSD (Dell EMC's): program, start scripts and data preparation."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import (
    Geometry,
    Line,
    Parser,
    Request,
    check_counts,
    complete_geometry,
    read_flags,
    read_line,
    read_script,
    read_variables,
    set_data,
    set_out,
    split_text,
)

SSD = "mlperf-ssd"
SSD_PROGRAM = r"ssd_main(?:_async)?\.py"
STARTING = r"run_with_docker\.sh|run\.slurm|run_and_time(?:_multi)?\.sh"
SSD_REPEATING = ("run_with_docker.sh", "run.slurm")
DOCKER = r"build_container\.sh|build\.sh|launch\.sh|launch_local\.sh|config\.sh"
PREPARING = rf"mll-status|prepare-json\.py|create_tfrecord\.(?:py|sh)|get_resnet34_backbone\.sh|{DOCKER}"
BASE_RATE = 2.5e-3
BACKBONE = "resnet34-333f7ec4.pickle"
# config_*.sh: names of the system, its nodes, GPUs per node, EXTRA_PARAMS.
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
# scripts/train/dgx1: batch size and 300 warm-up steps in epochs, by the number of GPUs that share batch norm.
WARM_UPS = {1: (128, 2.619685), 2: (64, 1.3098425), 4: (32, 0.65492125)}
SSD_SCRIPTS = {
    f"config_{name}.sh": f"export NNODES={nodes} NGPU={per_node} EXTRA_PARAMS='{extra}'"
    for names, nodes, per_node, extra in SYSTEMS
    for name in names.split()
}


def parse_ssd(words: Sequence[str]) -> Request:
    """Parse variables, a config_*.sh, a start script with variables before it, or a line of ssd_main.py."""
    line = read_line(words, rf"{SSD_PROGRAM}|{PREPARING}|{STARTING}", SSD_SCRIPTS)
    if re.fullmatch(PREPARING, line.program):
        return read_preparing(line)
    if re.fullmatch(SSD_PROGRAM, line.program) or line.after:
        return read_ssd_program(line, line.after, line.geometry)
    return read_ssd_variables(line)


def read_ssd_program(line: Line, words: Sequence[str], geometry: Geometry) -> Request:
    """Parse the flags of ssd_main.py."""
    given = read_flags(SSD, words, short={"-j": "dali-workers", "-t": "target-map"})
    values, written = given.values, given.written
    if "resume-from" in written and "pretrained-backbone" in written:
        raise ConfigError("--resume-from and --pretrained-backbone cannot be combined", hint="remove one of them")
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
        "detect.max_detections": values["nms-topk"] if values["post-nms"] == -1 else values["post-nms"],
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
            notes.append("--pretrained-backbone is not given: training starts from random weights, as in the original")
    return Request("bench" if values["synthetic"] else "train", keys, set_out(values.get("results")), geometry, notes)


def read_ssd_variables(line: Line) -> Request:
    """Parse variables, given as words or in files, with or without a start script."""
    if "SYSTEM" in line.values:
        read_script(line, [f"config_{line.values['SYSTEM']}.sh"], 0)
    given = read_variables(SSD, line)
    values, started = given.values, line.geometry
    check_counts(values, ("NNODES", "NGPU", "DGXNNODES", "DGXNGPU", "NUMEPOCHS", "NEXP"))
    nodes, per_node = values.get("NNODES", values.get("DGXNNODES")), values.get("NGPU", values.get("DGXNGPU"))
    if nodes == 1 and any("2xC4140" in file for file in line.files):
        nodes = 2
        line.notes.append("NNODES=1: wrong in the file of 2xC4140; it ran on 2 nodes, so 2 is used")
    if line.program == "run.slurm":
        per_node = per_node or 4
    line.notes += given.notes
    # Flags that run_and_time.sh passes to ssd_main_async.py.
    words = ["--log-interval=100", "--data-layout=NHWC", f"--epochs={values['NUMEPOCHS']}", "--async-val"]
    if values.get("DATADIR"):
        words.append(f"--coco-root={values['DATADIR'].rstrip('/')}/coco2017")
    if values.get("PRETRAINED_DIR"):
        words.append(f"--pretrained-backbone={values['PRETRAINED_DIR'].rstrip('/')}/{BACKBONE}")
    if values.get("LOGDIR"):
        words.append(f"--results={values['LOGDIR']}")
    words += split_text(values.get("EXTRA_PARAMS", ""))
    request = read_ssd_program(
        line, words, complete_geometry(started.nodes or nodes, started.per_node or per_node, started.ranks)
    )
    keys = dict(request.keys)
    if "CLEAR_CACHES" in given.written:
        keys["mlperf.clear_caches"] = values["CLEAR_CACHES"] > 0
    repeated = "NEXP" in given.written or line.program in SSD_REPEATING
    return request._replace(keys=keys, runs=values["NEXP"] if repeated else 1)


def read_preparing(line: Line) -> Request:
    """Return the trainstone command that replaces a script which trains nothing."""
    command, notes = ["doctor"], [f"{line.program}: no container is needed; use --data DIR instead of mounts"]
    if line.program == "mll-status":
        command, notes = ["mlperf", "summary", *(line.after or ["LOG"])], []
    elif line.program == "prepare-json.py":
        root = name_root(
            PurePosixPath(next((word for word in line.after if not word.startswith("-")), "")).parent.parent
        )
        command = ["data", "coco", "--from", root, "--to", f"{root}-checked"]
        notes = ["writes bbox_only_instances_*.json with areas for both splits, and checks the images"]
    elif line.program.startswith("create_tfrecord"):
        command, notes = create_records(line)
    elif line.program == "get_resnet34_backbone.sh":
        command = ["weights", "convert", "resnet34-333f7ec4.pth", "resnet34.safetensors"]
        notes = ["`weights convert` also reads a URL; model.pretrained takes a file only, a .pth is fine"]
    quoted = [
        word if re.fullmatch(r"[\w./*?-]+", word) else shlex.quote(word) for word in command
    ]  # *.log is not quoted
    return Request("train", {}, notes=(*line.notes, *notes), command=" ".join(["trainstone", *quoted]))


def name_root(folder: PurePosixPath) -> str:
    """Return the folder of a data set: COCO if the command line does not name it."""
    return "COCO" if folder.name in ("", "..") else str(folder)


def create_records(line: Line) -> tuple[list[str], list[str]]:
    """Return the `data convert` command, which converts both splits, for create_tfrecord.py (one) or .sh (both)."""
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
    in_root = "o" not in given or target.is_relative_to(root) or target.name == ""
    command = ["data", "convert", root, f"{root}-tfrecord" if in_root else str(target), "--format", "tfrecord"]
    command += ["--skip-empty"] * (both or "skip_empty" in given) + ["--shuffle"] * (both or "seed" in given)
    command += ["--shards", given["n"]] if given.get("n", "1") != "1" else []
    notes = [
        "converts both splits; validation images without boxes are kept, "
        "boxes are stored as left, top, right, bottom relative to the image size"
    ]
    return command, notes
