"""torch_imagenet_resnet.py of the SC22 study of GPU variability, and the scripts that start it. K-FAC only when off."""

import re
from collections.abc import Sequence
from typing import Any

from trainstone.config.old.flag import Asked, Flag, Given, Grammar, idle, set_data, set_out
from trainstone.config.old.launcher import Geometry, describe_launcher, read_launcher
from trainstone.config.old.line import PROGRAM, Line, read_line
from trainstone.errors import ConfigError

OFF = "K-FAC is off (--kfac-update-freq 0)"
MODELS = ("resnet50", "resnet101", "resnet152")
FLAGS = (
    Flag("train-dir", "path", "/tmp/imagenet/ILSVRC2012_img_train/", "`--data`", "read there from a fixed place"),
    Flag("val-dir", "path", "/tmp/imagenet/ILSVRC2012_img_val/", "", "nothing is validated; `--data` names both"),
    Flag("log-dir", "path", "./logs/torch_imagenet", "`--out`"),
    Flag("checkpoint-format", "text", "checkpoint_{epoch}.pth.tar", "", "bench keeps no checkpoints"),
    Flag("no-cuda", "switch", "false", "`--device`", "cpu"),
    Flag("seed", "integer", "42", "`seed`"),
    Flag("fp16", "switch", "false", "`train.precision`", "fp16 with a dynamic loss scale"),
    Flag("model", "text", "resnet50", "`model.depth`", "", MODELS),
    Flag("batch-size", "integer", "32", "`train.batch_size`", "per device"),
    Flag("val-batch-size", "integer", "32", "", "nothing is validated"),
    Flag("batches-per-allreduce", "integer", "1", "`train.accumulate`", "above 1: `engine.split_phases` is false"),
    Flag("epochs", "integer", "55", "", "500 iterations end the run: pictures come again until then"),
    Flag("base-lr", "number", "0.0125", "`optimizer.learning_rate`", "of one rank, here too"),
    Flag("lr-decay", "epochs", "25 35 40 45 50", "`schedule.decay_epochs`"),
    Flag("warmup-epochs", "number", "5", "`schedule.warm_up_epochs`"),
    Flag("momentum", "number", "0.9", "`optimizer.momentum`"),
    Flag("weight-decay", "number", "5e-5", "`optimizer.weight_decay`"),
    Flag("label-smoothing", "number", "0.1", "`train.label_smoothing`"),
    Flag("checkpoint-freq", "integer", "5", "", "bench keeps no checkpoints; train: `checkpoint.every_epochs`"),
    Flag("kfac-update-freq", "integer", "100", "0 alone", "0 is off; K-FAC is not here"),
    *idle(OFF, "integer", "kfac-cov-update-freq=10"),
    *idle(OFF, "number", "kfac-update-freq-alpha=10 stat-decay=0.95 damping=0.001 damping-alpha=0.5 kl-clip=0.001"),
    *idle(OFF, "number", "kfac-grad-worker-fraction=0.25"),
    *idle(OFF, "epochs", "kfac-update-freq-decay damping-decay"),
    *idle(OFF, "switch", "use-inv-kfac=false coallocate-layer-factors=true"),
    Flag("skip-layers", "words", "", "", OFF),
    Flag("kfac-comm-method", "text", "comm-opt", "", OFF, ("comm-opt", "mem-opt", "hybrid-opt")),
    Flag("backend", "text", "nccl", "`parallel.backend`", "not given: the recipe's, auto", ("nccl", "gloo")),
    Flag("local_rank", "integer", "0", "`--device`", "a launcher sets it; by hand it names the GPU"),
)
GRAMMAR = Grammar("sc22", FLAGS)
KFAC = tuple(flag.name for flag in FLAGS if flag.remark == OFF)
# What run-resnet.sh passes; the other scripts change the batch and the devices.
SCRIPT = (
    *("--base-lr", "0.05", "--batch-size", "64", "--kfac-update-freq", "0", "--kfac-cov-update-freq", "50"),
    *("--damping", "0.003", "--model", "resnet50", "--checkpoint-freq", "90", "--kfac-comm-method", "comm-opt"),
    *("--kfac-grad-worker-fraction", "0.0", "--epochs", "1", "--lr-decay", "30", "60", "80"),
)
SCRIPT_ARGUMENTS = {
    "run-resnet.sh": (),
    "resnet-singularity.sh": (),
    "run-resnet-single.sh": ("DEVICE", "RUN"),
    "run-resnet-multi.sh": ("RUN", "NODES", "BATCH"),
}
SCRIPTS = "|".join(map(re.escape, SCRIPT_ARGUMENTS))


def understand(words: Sequence[str]) -> Asked:
    """Read a line of torch_imagenet_resnet.py, or the name of one of the study's scripts."""
    line = read_line(words, PROGRAM, SCRIPTS)
    geometry = expand_script(line) if line.program in SCRIPT_ARGUMENTS else read_launcher(line.launcher)
    given = GRAMMAR.read_flags(line.after)
    refuse_kfac(given)
    keys = list_keys(given)
    notes = [*line.notes, *describe_launcher(line), *given.notes]
    if "train-dir" in given.asked:
        notes += set_data(keys, given.values["train-dir"], "--train-dir")
    else:
        notes.append("it read ImageNetV2: give --data IMAGENETV2; batches are synthetic without")
    options = set_out(given.values["log-dir"] if "log-dir" in given.asked else None)
    return Asked("bench", keys, options, geometry, notes, said=given.trace())


def expand_script(line: Line) -> Geometry:
    """Write out what a script of the study passes on; return on how many devices."""
    names = SCRIPT_ARGUMENTS[line.program]
    if len(line.after) > len(names) or not all(word.isdecimal() for word in line.after):
        taken = " ".join(names) or "no arguments"
        raise ConfigError(f"{line.program} {' '.join(line.after)}: it takes {taken}", hint="numbers, in this order")
    given = {name: int(word[:9]) for name, word in zip(names, line.after, strict=False)}
    if given.get("NODES", 1) < 1:
        raise ConfigError(f"{line.program}: NODES={given['NODES']}: must be at least 1")
    line.notes.append(f"{line.program}: what the study's own script ran; a file of that name would be read")
    line.after = list(SCRIPT)
    if line.program == "run-resnet-single.sh":
        line.after += ["--batch-size", "16", "--local_rank", str(given.get("DEVICE", 0))]
        return Geometry(1, 1)
    if line.program == "run-resnet-multi.sh":
        line.after += ["--batch-size", str(given.get("BATCH", 64))]
        return Geometry(given.get("NODES", 1), 3)
    return Geometry(1, 4)


def refuse_kfac(given: Given) -> None:
    """K-FAC is not here; a line that leaves it on cannot be equalled."""
    if given.values["kfac-update-freq"] == 0:
        return
    named = [given.asked[name] for name in ("kfac-update-freq", *KFAC) if name in given.asked]
    told = ", ".join(named) if named else "--kfac-update-freq is 100 unless it is given"
    raise ConfigError(
        f"K-FAC is on, and there is none here: {told}", hint="the study itself ran with --kfac-update-freq 0: give that"
    )


def list_keys(given: Given) -> dict[str, Any]:
    """Return the keys that the flags set."""
    values = given.values
    keys = given.list_keys(("backend", "model", "fp16"))
    keys["model.depth"] = int(values["model"].lower().removeprefix("resnet"))
    keys["train.precision"] = "fp16" if values["fp16"] else "fp32"
    if values["batches-per-allreduce"] > 1:
        keys["engine.split_phases"] = False  # phases alternate within a step
    if "backend" in given.asked:
        keys["parallel.backend"] = values["backend"]
    if values["no-cuda"]:
        keys["device"] = "cpu"
    elif "local_rank" in given.asked and values["local_rank"] > 0:
        keys["device"] = f"cuda:{values['local_rank']}"
    return keys
