"""Scripts of MLPerf's MXNet SSD: what those for a DGX-1 passed, and what prepares data and weights here."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from trainstone.config.old.asked import Asked
from trainstone.config.old.flag import check_alone
from trainstone.config.old.line import Line

STARTING = r"run_with_docker\.sh|run\.slurm|run_and_time(?:_multi)?\.sh"
REPEATING = ("run_with_docker.sh", "run.slurm")
DGX1 = r"train_mlperf_dgx1_(?:gbn([24])_)?(nhwc|nchw)_(fp16|amp)\.sh"
DOCKER = r"build_container\.sh|build\.sh|launch\.sh|launch_local\.sh|config\.sh"
PREPARING = rf"mll-status|prepare-json\.py|create_tfrecord\.(?:py|sh)|get_resnet34_backbone\.sh|{DOCKER}"
BACKBONE = "resnet34-333f7ec4.pickle"
# config_*.sh: nodes, GPUs of a node, EXTRA_PARAMS.
SYSTEMS = {
    "C4140": (1, 4, "--batch-size=128 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4"),
    "2xC4140": (1, 4, "--batch-size=128 --lr-warmup-epoch=5.25 --lr=5.84e-3 --weight-decay=1.6e-4"),
    "4xC4140": (4, 4, "--batch-size=56 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4 --dali-workers=3"),
    "DSS8440": (1, 8, "--batch-size=128 --lr-warmup-epoch=5 --lr=5.84e-3 --weight-decay=1.6e-4"),
    "DGX1_01x08x56": (1, 8, "--batch-size=56 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4"),
    "DGXA100_1x8x114": (1, 8, "--batch-size=114 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4"),
}
SYSTEMS |= {"4xC4140_01x08x56": SYSTEMS["4xC4140"], "DGX1": SYSTEMS["DGX1_01x08x56"]}
SYSTEMS |= {"DGXA100": SYSTEMS["DGXA100_1x8x114"]}
NODES_OF = {"2xC4140": 2}
"""Systems whose file has a wrong number of nodes."""
# scripts/train/dgx1: batch, and 300 steps of warm-up in epochs, by how many GPUs share batch norm.
WARM_UPS = {1: (128, 2.619685), 2: (64, 1.3098425), 4: (32, 0.65492125)}


def list_dgx1_words(program: str) -> list[str]:
    """Return the flags that a script for a DGX-1 passes, by its name."""
    named = re.fullmatch(DGX1, program)
    assert named is not None
    shared = int(named[1] or 1)
    batch, warm_up = WARM_UPS[shared]
    words = ["--log-interval=20", f"--batch-size={batch}", f"--lr-warmup-epochs={warm_up}"]
    words += [f"--pretrained-backbone=/datasets/backbones/{BACKBONE}", f"--data-layout={named[2].upper()}"]
    return [*words, f"--bn-group={shared}", f"--precision={named[3]}"]


def read_preparing(line: Line) -> Asked:
    """Say what a script that trains nothing is here."""
    if line.program == "mll-status":
        return sum_up(line)
    if line.program == "prepare-json.py":
        return prepare_json(line)
    if line.program.startswith("create_tfrecord"):
        return create_records(line)
    if line.program == "get_resnet34_backbone.sh":
        command = "trainstone weights convert resnet34-333f7ec4.pth resnet34.safetensors"
        told = "`weights convert` can fetch the .pth from a URL; model.pretrained takes a file only, the .pth too"
        return Asked("train", {}, notes=(*line.notes, told), command=command)
    told = f"{line.program}: no container is needed; `pip install trainstone`, and --data DIR in place of mounts"
    return Asked("train", {}, notes=(*line.notes, told), command="trainstone doctor")


def sum_up(line: Line) -> Asked:
    """mll-status LOG...: patterns of file names stay for the shell."""
    odd = [f"mll-status takes LOG..., not {word}" for word in line.after if word.startswith("-")]
    check_alone(odd, original="mlperf-ssd")
    logs = ["".join(map(quote_part, re.split(r"([*?])", word))) for word in line.after] or ["LOG"]
    return Asked("train", {}, notes=line.notes, command=" ".join(["trainstone mlperf summary", *logs]))


def quote_part(part: str) -> str:
    """Quote a part of a word for a shell, unless it stands for any letters."""
    return part if part in ("", "*", "?") else shlex.quote(part)


def name_folder(path: PurePosixPath) -> tuple[PurePosixPath, list[str]]:
    """Return a folder that another may be named after: COCO where the words do not name it."""
    if path.name not in ("", ".."):
        return path, []
    return PurePosixPath("COCO"), ["COCO: the folder that has train2017, val2017 and annotations"]


def guard(path: PurePosixPath) -> str:
    """Return a path that cannot be taken for a flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def prepare_json(line: Line) -> Asked:
    """prepare-json.py IN OUT [-k] [-p]: one of the files that `data coco` writes."""
    paths = [word for word in line.after if not word.startswith("-")]
    odd = [word for word in line.after if word.startswith("-") and word not in JSON_FLAGS]
    if odd or len(paths) != 2:
        check_alone([f"prepare-json.py takes IN OUT [-k] [-p], not {shlex.join(line.after)}"], original="mlperf-ssd")
    root, told = name_folder(PurePosixPath(paths[0]).parent.parent)
    notes = [*line.notes, *told, "writes bbox_only_instances_*.json of both splits, and checks the pictures"]
    if {"-k", "--keep-keys"} & set(line.after):
        notes.append("-k: areas are kept, where there all became 1.0 and no box was medium or large")
    if {"-p", "--pretty-print"} & set(line.after):
        notes.append("-p: one line, without spaces; `python -m json.tool` spreads it")
    command = shlex.join(["trainstone", "data", "coco", "--from", str(root), "--to", f"{root}-checked"])
    return Asked("train", {}, notes=tuple(notes), command=command)


JSON_FLAGS = ("-k", "--keep-keys", "-p", "--pretty-print")
RECORD_FLAGS = {"-i": 1, "-a": 1, "-n": 1, "-o": 1, "-s": 1, "--seed": 1, "--size-threshold": 1}
RECORD_FLAGS |= {"--ltrb": 0, "--ratio": 0, "--skip-empty": 0, "-d": 1, "--dataset-dir": 1, "-c": 1, "--container": 1}


def create_records(line: Line) -> Asked:
    """create_tfrecord.py for one split, or create_tfrecord.sh for both: `data convert` does both at once."""
    given = read_words(line.after)
    whole = line.program.endswith(".sh")
    folder = given.get("-d", given.get("--dataset-dir", "/datasets/ssd"))
    pictures = PurePosixPath(given.get("-i", f"{folder}/coco2017/train2017" if whole else "COCO/train2017"))
    target = PurePosixPath(given.get("-o", f"{folder}/coco2017/tfrecord/train" if whole else "RECORDS/train"))
    (root, told), to = name_folder(pictures.parent), target.parent
    notes = [*line.notes, *told, "both splits at once; validation pictures without boxes stay"]
    if to.name in ("", "..") or to == root or to.is_relative_to(pictures.parent):
        notes.append(f"{to}: beside {root} instead, or both would be taken for one set")
        to = root.with_name(f"{root.name}-tfrecord")
    words = [guard(root), guard(to), "--format", "tfrecord"]
    seeded = whole or "-s" in given or "--seed" in given
    words += ["--skip-empty"] * (whole or "--skip-empty" in given) + ["--shuffle"] * seeded
    words += ["--shards", given["-n"]] if given.get("-n", "1") != "1" else []
    if given.get("-n", "1") != "1":
        notes.append(f"-n {given['-n']}: records are spread, where there all went into the last file")
    if "--size-threshold" in given:
        notes.append("--size-threshold: every box is kept")
    if not whole and not {"--ltrb", "--ratio"} <= set(given):
        notes.append("boxes are edges as shares of width and height, as with --ltrb --ratio")
    return Asked("train", {}, notes=tuple(notes), command=shlex.join(["trainstone", "data", "convert", *words]))


def read_words(words: Sequence[str]) -> dict[str, str]:
    """Return the flags of create_tfrecord with their values."""
    found: dict[str, str] = {}
    complaints = []
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in RECORD_FLAGS:
            complaints.append(f"{name!r} is no flag of create_tfrecord that is known")
        elif RECORD_FLAGS[name] and not equals and not rest:
            complaints.append(f"{name}: it takes a value")
        else:
            found[name] = rest.pop(0) if RECORD_FLAGS[name] and not equals else value
    if not re.fullmatch(r"0*[1-9]\d{0,8}", found.get("-n", "1")):
        complaints.append(f"-n {found['-n']}: must be a whole number of at least 1")
    check_alone(complaints, original="mlperf-ssd")
    return found
