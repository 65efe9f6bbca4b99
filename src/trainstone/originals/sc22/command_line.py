"""Parser of command lines of the SC22 study's torch_imagenet_resnet.py and its start scripts; K-FAC must be off."""

from collections.abc import Sequence

from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import PROGRAM, Request, read_flags, read_line, set_data, set_out

SC22_LINE = (
    "torch_imagenet_resnet.py --base-lr 0.05 --kfac-update-freq 0 --kfac-cov-update-freq 50 --damping 0.003 "
    "--model resnet50 --checkpoint-freq 90 --kfac-comm-method comm-opt --kfac-grad-worker-fraction 0.0 --epochs 1 "
    "--lr-decay 30 60 80"
)
LAUNCH = "python -m torch.distributed.launch"
SC22_SCRIPTS = {
    "run-resnet.sh": f"{LAUNCH} --nproc_per_node=4 {SC22_LINE} --batch-size 64",
    "resnet-singularity.sh": f"{LAUNCH} --nproc_per_node=4 {SC22_LINE} --batch-size 64",
    "run-resnet-single.sh": f"{LAUNCH} --nproc_per_node=1 {SC22_LINE} --batch-size 16 --local_rank ${{1:-0}}",
    "run-resnet-multi.sh": f"{LAUNCH} --nproc_per_node=3 --nnodes=${{2:-1}} {SC22_LINE} --batch-size ${{3:-64}}",
}
"""Arguments: DEVICE RUN for run-resnet-single.sh, RUN NODES BATCH for run-resnet-multi.sh."""


def parse_sc22(words: Sequence[str]) -> Request:
    """Parse a line of torch_imagenet_resnet.py, or the name of one of the study's scripts."""
    line = read_line(words, PROGRAM, SC22_SCRIPTS)
    given = read_flags("sc22", line.after)
    values, written, keys = given.values, given.written, given.keys
    if values["kfac-update-freq"] != 0:
        raise ConfigError(
            f"K-FAC is not supported: --kfac-update-freq={values['kfac-update-freq']}; only 0 (off) is allowed",
            hint="add --kfac-update-freq 0, as the study did",
        )
    keys["model.depth"] = int(values["model"].removeprefix("resnet"))
    keys["train.precision"] = "fp16" if values["fp16"] else "fp32"
    if values["batches-per-allreduce"] > 1:
        keys["engine.split_phases"] = False  # phases alternate within a step
    if "backend" in written:
        keys["parallel.backend"] = values["backend"]
    if values["no-cuda"]:
        keys["device"] = "cpu"
    elif values["local_rank"] > 0:
        keys["device"] = f"cuda:{values['local_rank']}"
    notes = [*line.notes, *given.notes]
    if "train-dir" in written:
        notes += set_data(keys, values["train-dir"], "--train-dir")
    else:
        notes.append("the study read ImageNetV2: add --data IMAGENETV2; without it batches are synthetic")
    options = set_out(values["log-dir"] if "log-dir" in written else None)
    return Request("bench", keys, options, line.geometry, notes)
