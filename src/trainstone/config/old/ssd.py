"""MLPerf's MXNet SSD (Dell EMC's): lines of its program, variables of its start scripts, config_*.sh, other scripts."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trainstone.config.old.flag import Asked, Flag, Given, Grammar, Parser, Verb, idle, refuse, set_data, set_out
from trainstone.config.old.launcher import Geometry, describe_launcher, read_launcher, settle
from trainstone.config.old.line import Line, open_file, read_line, split_words
from trainstone.errors import ConfigError

ORIGINAL = "mlperf-ssd"
PROGRAM = r"ssd_main(?:_async)?\.py"
STARTING = r"run_with_docker\.sh|run\.slurm|run_and_time(?:_multi)?\.sh"
REPEATING = ("run_with_docker.sh", "run.slurm")
DGX1 = r"train_mlperf_dgx1_(?:gbn([24])_)?(nhwc|nchw)_(fp16|amp)\.sh"
DOCKER = r"build_container\.sh|build\.sh|launch\.sh|launch_local\.sh|config\.sh"
PREPARING = rf"mll-status|prepare-json\.py|create_tfrecord\.(?:py|sh)|get_resnet34_backbone\.sh|{DOCKER}"
ABSENT = re.compile(r"""(?:(?:source|\.)\s+)?["']?((?:[^\s"'$`;]*/)?config_([\w.-]+)\.sh)["']?""")
"""A system's file, by itself or sourced."""
BASE_RATE = 2.5e-3
COUNTS = ("NNODES", "NGPU", "DGXNNODES", "DGXNGPU", "NUMEPOCHS", "NEXP")
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
FUSED = "the same mathematics; torch chooses the kernels"
DECODED = "pictures are decoded on the CPU: `loader.threads`, `loader.cache`"
HOROVOD = "gradients go in parcels of `parallel.bucket_bytes`"
PROFILER = "`trainstone profile` records steps"

FLAGS = (
    Flag("mode", "text", "train_val", "", "it had no effect", ("train", "val", "train_val")),
    Flag("backbone", "text", "resnet34_mlperf", "the same network", "", ("resnet34_mlperf",)),
    Flag("bn-group", "integer", "1", "`parallel.bn_ranks`", "", ("1", "2", "4", "8", "16")),
    Flag("bn-fp16", "switch", "false", "", "batch norm stays in fp32"),
    Flag("precision", "text", "fp16", "`train.precision`", "amp: fp16, scale dynamic", ("fp32", "fp16", "amp")),
    Flag("fp16-loss-scale", "number", "128.0", "`train.loss_scale`", "with --precision fp16"),
    Flag("dataset", "text", "coco2017", "`--data`", "any set with boxes", ("coco2017",)),
    Flag("synthetic", "switch", "false", "`bench`", "on synthetic batches"),
    Flag("use-tfrecord", "switch", "false", "`--data`", "then --tfrecord-root is it"),
    Flag("coco-root", "path", "/datasets/coco2017", "`--data`", "not given: to be told"),
    Flag("tfrecord-root", "path", "/datasets/coco2017/tfrecord/", "`--data`", "with --use-tfrecord"),
    Flag("input-jpg-decode", "text", "gpu", "", DECODED, ("gpu", "cpu", "cache", "hw")),
    Flag("batch-size", "integer", "32", "`train.batch_size`", "per device"),
    Flag("eval-batch-size", "integer", "", "`eval.batch_size`", "not given: that of training, at least 32"),
    Flag("data-shape", "integer", "300", "`data.image_size`", "", ("300",)),
    Flag("data-layout", "text", "NHWC", "`engine.channels_last`", "NHWC: true", ("NCHW", "NHWC")),
    Flag("input-batch-multiplier", "integer", "1", "", "`loader.prefetch` batches are made ahead"),
    Flag("dali-workers", "integer", "6", "`loader.threads`", "or -j; not given: auto"),
    Flag("seed", "integer", "", "`seed`", "not given: the recipe's, where there it was drawn"),
    Flag("pretrained-backbone", "path", "", "`model.pretrained`", "its pickle, a .pth or a .safetensors"),
    Flag("epochs", "integer", "80", "`stop.epochs`"),
    Flag("resume-from", "path", "", "", "`train --resume RUN` goes on with a run of trainstone; .params are not read"),
    Flag("start-epoch", "integer", "1", "", "`train --resume RUN` knows where it was"),
    Flag("lr", "number", "", "`optimizer.learning_rate`", "for 32 images, rounded as there; not given: 0.0025"),
    Flag("lr-decay-factor", "number", "0.1", "`schedule.decay_factor`"),
    Flag("lr-decay-epochs", "epochs", "44 55", "`schedule.decay_epochs`"),
    Flag("lr-warmup-epochs", "number", "", "`schedule.warm_up_epochs`", "not given: none; --lr-warmup-epoch will do"),
    Flag("lr-warmup-factor", "number", "0", "`schedule.warm_up_from`", "f: 1 - 2^-f of the rate"),
    Flag("momentum", "number", "0.9", "`optimizer.momentum`"),
    Flag("weight-decay", "number", "0.0005", "`optimizer.weight_decay`"),
    Flag("save-interval", "integer", "", "`checkpoint.every_epochs`", "not given: the recipe's"),
    Flag("async-val", "switch", "false", "`eval.async`"),
    Flag("val-interval", "integer", "", "`eval.at_epochs`", "beside --val-epochs"),
    Flag("val-epochs", "epochs", "40 50 55 60 65 70 75 80", "`eval.at_epochs`", "without epochs: none", (), True),
    Flag("target-map", "number", "23", "`eval.target`", "or -t; in percent there, 0.23 here"),
    Flag("cocoapi-threads", "integer", "1", "", "boxes are scored in one pass, of numpy"),
    Flag("nms-valid-thresh", "number", "0.0", "`detect.min_score`"),
    Flag("nms-overlap-thresh", "number", "0.5", "`detect.nms_overlap`"),
    Flag("nms-topk", "integer", "200", "`detect.before_nms`"),
    Flag("post-nms", "integer", "200", "`detect.max_found`", "-1: as many as enter"),
    Flag("results", "path", "", "`--out`"),
    Flag("log-interval", "integer", "100", "`original.every_steps`"),
    Flag("log-level", "text", "INFO", "", "log.txt has everything"),
    Flag("log-local-ranks", "words", "0", "", "each rank has a log of its own"),
    Flag("test-initialization", "switch", "false", "", "tests hold the initial weights"),
    Flag("test-anchors", "switch", "false", "", "tests hold the default boxes"),
    *idle(FUSED, "switch", "no-fuse-bn-add-relu=false no-fuse-bn-relu=false bulk-last-wgrad=false"),
    *idle("images are counted; opening a set reads its index alone", "integer", "dataset-size eval-dataset-size"),
    *idle(HOROVOD, "number", "gradient-predivide-factor=1 horovod-num-groups=1"),
    *idle(PROFILER, "integer", "profile-start profile-stop"),
    Flag("profile-no-horovod", "switch", "false", "", PROFILER),
    Flag("hw-decoder-load", "number", "0.0", "", DECODED),
)
VARIABLES = (
    Flag("SYSTEM", "text", "", "`--system`", "config_<SYSTEM>.sh is read if it is here, else what Dell's said"),
    Flag("EXTRA_PARAMS", "text", "", "flags of ssd_main.py", "below"),
    Flag("DATADIR", "path", "", "`--data`", "its folder coco2017"),
    Flag("PRETRAINED_DIR", "path", "", "`model.pretrained`", "its file resnet34-333f7ec4.pickle"),
    Flag("LOGDIR", "path", "", "`--out`"),
    Flag("NUMEPOCHS", "integer", "80", "`stop.epochs`"),
    Flag("NEXP", "integer", "5", "`--runs`", "on several devices a loop over seeds is printed"),
    Flag("CLEAR_CACHES", "integer", "1", "`mlperf.clear_caches`", "where it is given; needs root"),
    Flag("NNODES", "integer", "", "`nodes`", "2xC4140's file says 1, which is mended"),
    Flag("NGPU", "integer", "", "`devices_per_node`"),
    Flag("DGXNNODES", "integer", "", "`nodes`"),
    Flag("DGXNGPU", "integer", "", "`devices_per_node`"),
    Flag("DGXSYSTEM", "text", "", "", "`--system` names one"),
    Flag("CONT", "text", "", "", "no container is needed; `launch slurm --container` takes one"),
    Flag("DATESTAMP", "text", "", "", "a run folder carries its time"),
    Flag("WALLTIME", "text", "", "", "`launch slurm --time`; the original's 30 minutes are too short for five runs"),
    Flag("SEED", "integer", "", "", "run.slurm did not pass it on: `--seed N`"),
    *idle("threads follow the cores that a process may use", "text", "SOCKETCORES NSOCKET HT TOBIND"),
    *idle("threads follow the cores that a process may use", "text", "DGXSOCKETCORES DGXNSOCKET DGXHT"),
    Flag("CREATE_TMP_FILE_FROM", "path", "", "", "data is read where it lies: `--data`"),
    Flag("DATASET_DIR", "path", "", "", "run_and_time.sh sets it: DATADIR"),
    Flag("HOROVOD_*", "text", "", "", HOROVOD),
    Flag("MXNET_*", "text", "", "", "of MXNet's engine"),
    Flag("OMP_NUM_THREADS", "text", "", "", "`engine.threads`: auto, the physical cores"),
    *idle("read from the environment, here too", "text", "NCCL_* CUDA_* OMPI_* SLURM_* SBATCH_*"),
)
GRAMMAR = Grammar(ORIGINAL, FLAGS, VARIABLES, short={"dali-workers": "-j", "target-map": "-t"})
SPECIAL = (
    *("precision", "fp16-loss-scale", "data-layout", "dali-workers", "lr", "lr-warmup-epochs", "lr-warmup-factor"),
    *("val-interval", "val-epochs", "target-map", "post-nms", "log-interval"),
)
"""Flags whose value is not the key's."""


def understand(words: Sequence[str]) -> Asked:
    """Read variables, a config_*.sh, a start script with variables before it, or a line of ssd_main.py."""
    words = [word if "\n" in word else ABSENT.sub(name_absent, word) for word in words]
    line = read_line(words, rf"{PROGRAM}|{PREPARING}|{STARTING}", DGX1)
    if re.fullmatch(PREPARING, line.program):
        return read_preparing(line)
    if re.fullmatch(DGX1, line.program):
        line.notes.append(f"{line.program}: what the benchmark's own script ran; a file of that name would be read")
        return read_program(line, list_dgx1_words(line.program), Geometry(1, 8))
    if re.fullmatch(PROGRAM, line.program) or any(word.startswith("-") for word in line.after):
        line.notes += describe_launcher(line)
        return read_program(line, line.after, read_launcher(line.launcher))
    return read_script_line(line)


def name_absent(named: re.Match[str]) -> str:
    """Return SYSTEM=<name> for a config_<name>.sh that is not here."""
    return named[0] if Path(named[1]).is_file() else f"SYSTEM={named[2]}"


def list_dgx1_words(program: str) -> list[str]:
    """Return the flags that a script for a DGX-1 passes, by its name."""
    named = re.fullmatch(DGX1, program)
    assert named is not None
    shared = int(named[1] or 1)
    batch, warm_up = WARM_UPS[shared]
    words = ["--log-interval=20", f"--batch-size={batch}", f"--lr-warmup-epochs={warm_up}"]
    words += [f"--pretrained-backbone=/datasets/backbones/{BACKBONE}", f"--data-layout={named[2].upper()}"]
    return [*words, f"--bn-group={shared}", f"--precision={named[3]}"]


def read_program(line: Line, words: Sequence[str], geometry: Geometry) -> Asked:
    """Read the flags of ssd_main.py."""
    given = GRAMMAR.read_flags(words)
    keys, notes = list_keys(given), [*line.notes, *given.notes, *tell_odd(given)]
    synthetic = given.values["synthetic"]
    if synthetic:
        keys["data.source"] = "synthetic"
    else:
        name = "tfrecord-root" if given.values["use-tfrecord"] else "coco-root"
        notes += set_data(keys, given.values[name] if name in given.asked else None, f"--{name}")
    if not {"pretrained-backbone", "resume-from"} & set(given.asked) and not synthetic:
        notes.append("--pretrained-backbone is not given: it begins with random weights, as there")
    verb: Verb = "bench" if synthetic else "train"
    return Asked(verb, keys, set_out(given.values.get("results")), geometry, notes, said=given.trace())


def list_keys(given: Given) -> dict[str, Any]:
    """Return the keys that flags set."""
    values = given.values
    keys = given.list_keys(SPECIAL)
    precision = values["precision"].lower()
    loss_scale = {"fp16": {"train.loss_scale": values["fp16-loss-scale"]}, "amp": {"train.loss_scale": "dynamic"}}
    epochs = list_evaluated(values)
    keys |= {
        "train.precision": "fp32" if precision == "fp32" else "fp16",
        **loss_scale.get(precision, {}),
        "engine.channels_last": values["data-layout"].upper() == "NHWC",
        "optimizer.learning_rate": values.get("lr") or BASE_RATE,
        "schedule.warm_up_epochs": values.get("lr-warmup-epochs") or 0.0,
        "schedule.warm_up_from": 1 - 2 ** -max(0.0, values["lr-warmup-factor"]),
        "eval.at_epochs": epochs,
        "eval.target": values["target-map"] / 100,
        "detect.max_found": values["nms-topk"] if values["post-nms"] == -1 else values["post-nms"],
    }
    if not epochs:
        keys["eval.every_epochs"] = 0
    if "dali-workers" in given.asked:
        keys["loader.threads"] = values["dali-workers"]
    if values["log-interval"] != 100:
        keys["original.every_steps"] = values["log-interval"]
    return keys


def list_evaluated(values: Mapping[str, Any]) -> list[float]:
    """Return the epochs that are evaluated: those listed, and every so many where that is asked for."""
    interval = values.get("val-interval", 0)
    regular = range(interval, min(values["epochs"], 100_000) + 1, interval) if interval > 0 else ()
    return sorted({*values["val-epochs"], *map(float, regular)})


def tell_odd(given: Given) -> list[str]:
    """Say what the original refused, or what cannot go together."""
    values, asked = given.values, given.asked
    if "resume-from" in asked and "pretrained-backbone" in asked:
        refuse(["--resume-from and --pretrained-backbone exclude each other"], ORIGINAL)
    notes = []
    if values["bn-group"] > 1 and (values["data-layout"].upper() == "NCHW" or values["precision"] == "fp32"):
        notes.append(f"{asked['bn-group']} with NCHW or fp32: refused there; here it is done")
    if not list_evaluated(values):
        notes.append(f"{asked['val-epochs']}: no epoch to evaluate after; here the end of the run is")
    return notes


def read_script_line(line: Line) -> Asked:
    """Read variables, given as words or in files, before a start script or alone."""
    notes = [*line.notes, *describe_launcher(line)]
    named = [path.name.removeprefix("config_").removesuffix(".sh") for path in line.files if "config_" in path.name]
    system = line.values.get("SYSTEM", named[-1] if named else "")
    if named and system != named[-1]:
        refuse([f"SYSTEM={system} and config_{named[-1]}.sh: one system at a time"], ORIGINAL)
    if "SYSTEM" in line.values:
        notes += add_system(line, system)
    given = GRAMMAR.read_variables(line)
    few = [f"{name}={given.values[name]}: must be at least 1" for name in COUNTS if given.values.get(name, 1) < 1]
    refuse(few, ORIGINAL)
    geometry, corrected = find_geometry(given, line, system)
    line.notes = [*notes, *given.notes, *corrected]
    asked = read_program(line, list_words(given), geometry)
    keys = dict(asked.keys)
    if "CLEAR_CACHES" in given.asked:
        keys["mlperf.clear_caches"] = given.values["CLEAR_CACHES"] > 0
    repeated = "NEXP" in given.asked or line.program in REPEATING
    return asked._replace(keys=keys, runs=given.values["NEXP"] if repeated else 1, said={**asked.said, **given.trace()})


def list_words(given: Given) -> list[str]:
    """Return the words that run_and_time.sh passes on to ssd_main_async.py."""
    values = given.values
    words = ["--log-interval=100", "--data-layout=NHWC", f"--epochs={values['NUMEPOCHS']}", "--async-val"]
    if values.get("DATADIR"):
        words.append(f"--coco-root={values['DATADIR'].rstrip('/')}/coco2017")
    if values.get("PRETRAINED_DIR"):
        words.append(f"--pretrained-backbone={values['PRETRAINED_DIR'].rstrip('/')}/{BACKBONE}")
    if values.get("LOGDIR"):
        words.append(f"--results={values['LOGDIR']}")
    return words + split_words(values.get("EXTRA_PARAMS", ""))


def add_system(line: Line, system: str) -> list[str]:
    """Take what config_<SYSTEM>.sh sets: of the file where it is here, else as Dell EMC's did."""
    file = f"config_{system}.sh"
    given = dict(line.values)
    if Path(file).is_file():
        open_file(line, Path(file))
        line.values |= given
        return [f"{file}: read as text, not executed"]
    if system not in SYSTEMS:
        raise ConfigError(
            f"SYSTEM={system}: there is no {file} here", hint=f"known without their file: {', '.join(SYSTEMS)}"
        )
    nodes, each, extra = SYSTEMS[system]
    line.values = {"NNODES": str(nodes), "NGPU": str(each), "EXTRA_PARAMS": extra, **given}
    return [f"{file}: as Dell EMC's; a file of that name would be read"]


def find_geometry(given: Given, line: Line, system: str) -> tuple[Geometry, list[str]]:
    """Return nodes and devices: of the launcher, of the variables; the number that one file has wrong is corrected."""
    values = given.values
    started = read_launcher(line.launcher)
    nodes, each = values.get("NNODES", values.get("DGXNNODES")), values.get("NGPU", values.get("DGXNGPU"))
    notes = []
    right = NODES_OF.get(system)
    if right and nodes == 1 and started.nodes is None:
        nodes = right
        notes.append(f"NNODES=1: config_{system}.sh says so by mistake; it ran on {right} nodes")
    if line.program == "run.slurm" and each is None:
        each = 4
    if started.ranks is not None and started.nodes is None and each is None:
        return settle(started), notes
    return settle(Geometry(started.nodes or nodes, started.each or each, started.ranks)), notes


def read_preparing(line: Line) -> Asked:
    """Say what a script that trains nothing is here."""
    command = "trainstone doctor"
    notes: list[str] = []
    if line.program == "mll-status":
        command = summarise(line)
    elif line.program == "prepare-json.py":
        command, notes = prepare_json(line)
    elif line.program.startswith("create_tfrecord"):
        command, notes = create_records(line)
    elif line.program == "get_resnet34_backbone.sh":
        command = "trainstone weights convert resnet34-333f7ec4.pth resnet34.safetensors"
        notes = ["`weights convert` can fetch the .pth from a URL; model.pretrained takes a file only, the .pth too"]
    else:
        notes = [f"{line.program}: no container is needed; `pip install trainstone`, and --data DIR in place of mounts"]
    return Asked("train", {}, notes=(*line.notes, *notes), command=command)


def summarise(line: Line) -> str:
    """mll-status LOG...: patterns of file names stay for the shell."""
    refuse([f"mll-status takes LOG..., not {word}" for word in line.after if word.startswith("-")], ORIGINAL)
    logs = ["".join(map(quote_part, re.split(r"([*?])", word))) for word in line.after] or ["LOG"]
    return " ".join(["trainstone mlperf summary", *logs])


def quote_part(part: str) -> str:
    """Quote a part of a word for a shell, unless it stands for any letters."""
    return part if part in ("", "*", "?") else shlex.quote(part)


def name_folder(path: PurePosixPath) -> tuple[PurePosixPath, list[str]]:
    """Return a folder that another may be named after: COCO where the words do not name it."""
    if path.name not in ("", ".."):
        return path, []
    return PurePosixPath("COCO"), ["COCO: the folder that has train2017, val2017 and annotations"]


def prepare_json(line: Line) -> tuple[str, list[str]]:
    """prepare-json.py IN OUT [-k] [-p]: one of the files that `data coco` writes."""
    parser = Parser(ORIGINAL)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("-k", "--keep-keys", action="store_true", default=False)
    parser.add_argument("-p", "--pretty-print", action="store_true", default=False)
    given = parser.parse_args(line.after)
    root, notes = name_folder(PurePosixPath(given.source).parent.parent)
    notes.append("writes bbox_only_instances_*.json of both splits, and checks the pictures")
    if given.keep_keys:
        notes.append("-k: areas are kept, where there all became 1.0 and no box was medium or large")
    if given.pretty_print:
        notes.append("-p: one line, without spaces; `python -m json.tool` spreads it")
    return shlex.join(["trainstone", "data", "coco", "--from", str(root), "--to", f"{root}-checked"]), notes


def create_records(line: Line) -> tuple[str, list[str]]:
    """create_tfrecord.py for one split, or create_tfrecord.sh for both: `data convert` does both at once."""
    parser = Parser(ORIGINAL)
    for names in ("-i", "-a", "-o", "-s --seed", "--size-threshold", "-d --dataset-dir", "-c --container"):
        parser.add_argument(*names.split())
    parser.add_argument("-n", type=int)
    for name in ("--ltrb", "--ratio", "--skip-empty"):
        parser.add_argument(name, action="store_true")
    given = vars(parser.parse_args(line.after))
    whole, shards = line.program.endswith(".sh"), given.get("n", 1)
    if shards < 1:
        refuse([f"-n {shards}: must be a whole number of at least 1"], ORIGINAL)
    folder = given.get("dataset_dir", "/datasets/ssd")
    images = PurePosixPath(given.get("i", f"{folder}/coco2017/train2017" if whole else "COCO/train2017"))
    to = PurePosixPath(given.get("o", f"{folder}/coco2017/tfrecord/train" if whole else "RECORDS/train")).parent
    root, notes = name_folder(images.parent)
    notes.append("both splits at once; validation pictures without boxes stay")
    if to.name in ("", "..") or to == root or to.is_relative_to(images.parent):
        notes.append(f"{to}: beside {root} instead, or both would be taken for one set")
        to = root.with_name(f"{root.name}-tfrecord")
    paths = [f"./{path}" if str(path).startswith("-") else str(path) for path in (root, to)]  # not flags
    words = [*paths, "--format", "tfrecord"]
    words += ["--skip-empty"] * (whole or "skip_empty" in given) + ["--shuffle"] * (whole or "seed" in given)
    if shards > 1:
        words += ["--shards", str(shards)]
        notes.append(f"-n {shards}: records are spread, where there all went into the last file")
    if "size_threshold" in given:
        notes.append("--size-threshold: every box is kept")
    if not whole and not {"ltrb", "ratio"} <= set(given):
        notes.append("boxes are edges as shares of width and height, as with --ltrb --ratio")
    return shlex.join(["trainstone", "data", "convert", *words]), notes
