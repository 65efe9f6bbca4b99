"""torch_imagenet_resnet.py of the SC22 study of GPU variability, and the scripts that start it. K-FAC only when off."""

from collections.abc import Sequence
from typing import Any

from trainstone.config.old.flag import Flag, Given, Grammar, Request, idle, set_data, set_out
from trainstone.config.old.launcher import describe_launcher, read_launcher
from trainstone.config.old.line import PROGRAM, read_line
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
LINE = (
    "torch_imagenet_resnet.py --base-lr 0.05 --kfac-update-freq 0 --kfac-cov-update-freq 50 --damping 0.003 "
    "--model resnet50 --checkpoint-freq 90 --kfac-comm-method comm-opt --kfac-grad-worker-fraction 0.0 --epochs 1 "
    "--lr-decay 30 60 80"
)
LAUNCH = "python -m torch.distributed.launch"
SCRIPTS = {
    "run-resnet.sh": f"{LAUNCH} --nproc_per_node=4 {LINE} --batch-size 64",
    "resnet-singularity.sh": f"{LAUNCH} --nproc_per_node=4 {LINE} --batch-size 64",
    "run-resnet-single.sh": f"{LAUNCH} --nproc_per_node=1 {LINE} --batch-size 16 --local_rank ${{1:-0}}",
    "run-resnet-multi.sh": f"{LAUNCH} --nproc_per_node=3 --nnodes=${{2:-1}} {LINE} --batch-size ${{3:-64}}",
}
"""Their arguments: DEVICE RUN of -single, RUN NODES BATCH of -multi."""


def understand(words: Sequence[str]) -> Request:
    """Read a line of torch_imagenet_resnet.py, or the name of one of the study's scripts."""
    line = read_line(words, PROGRAM, SCRIPTS)
    given = GRAMMAR.read_flags(line.after)
    if given.values["kfac-update-freq"] != 0:
        raise ConfigError(
            f"K-FAC is on, and there is none here: --kfac-update-freq is {given.values['kfac-update-freq']}",
            hint="the study itself ran with --kfac-update-freq 0: give that",
        )
    keys = list_keys(given)
    notes = [*line.notes, *describe_launcher(line.launcher), *given.notes]
    if "train-dir" in given.written:
        notes += set_data(keys, given.values["train-dir"], "--train-dir")
    else:
        notes.append("it read ImageNetV2: give --data IMAGENETV2; batches are synthetic without")
    options = set_out(given.values["log-dir"] if "log-dir" in given.written else None)
    return Request("bench", keys, options, read_launcher(line.launcher), notes)


def list_keys(given: Given) -> dict[str, Any]:
    """Return the keys that the flags set."""
    values = given.values
    keys = given.list_keys(("backend", "model", "fp16"))
    keys["model.depth"] = int(values["model"].removeprefix("resnet"))
    keys["train.precision"] = "fp16" if values["fp16"] else "fp32"
    if values["batches-per-allreduce"] > 1:
        keys["engine.split_phases"] = False  # phases alternate within a step
    if "backend" in given.written:
        keys["parallel.backend"] = values["backend"]
    if values["no-cuda"]:
        keys["device"] = "cpu"
    elif values["local_rank"] > 0:
        keys["device"] = f"cuda:{values['local_rank']}"
    return keys
