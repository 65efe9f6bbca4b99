"""The originals' command lines and systems, and parsing of printed trainstone commands with the real command line."""

import re
import shlex
from functools import cache
from typing import Any

import typer

from trainstone.cli.main import app
from trainstone.originals.command_line.translate import Translation

WMLCE = shlex.split(
    "--mode=train_and_evaluate --iter_unit epoch --num_iter=50 --batch_size=256 --warmup_steps=100 --use_cosine_lr "
    "--label_smoothing 0.1 --lr_init=0.256 --lr_warmup_epochs=8 --momentum=0.875 "
    "--weight_decay=3.0517578125e-05 --data_dir=/data/TFRecords --results_dir=run_results --use_xla "
    "--precision=fp16 --loss_scale=1024 --use_static_loss_scaling"
)
# A job script of Bede: Slurm options, shell, a command over several lines.
WMLCE_JOB = """#!/bin/bash -l
#SBATCH -p gpu
#SBATCH --gres=gpu:4
#SBATCH -N4
module load slurm/dflt
export OMP_NUM_THREADS=1   # one thread
bede-ddlrun python $PYTHON_HOME/tensorflow-benchmarks/resnet50/main.py \\
--mode=train_and_evaluate --iter_unit=epoch --num_iter=50 --batch_size=256 \\
--warmup_steps=100 --use_cosine_lr --label_smoothing 0.1 --lr_init=0.256 --lr_warmup_epochs=8 \\
--momentum=0.875 --weight_decay=3.0517578125e-05 --data_dir="/data/my images" \\
--results_dir=run_results --nouse_xla --precision=fp16 --loss_scale=1024 --use_static_loss_scaling
echo Total run time : $hours Hours
"""
SC22 = shlex.split(
    "nvprof --print-gpu-trace --csv --log-file resnet_%p.csv -f python -m torch.distributed.launch "
    "--nproc_per_node=4 torch_imagenet_resnet.py --base-lr 0.05 --batch-size 64 --kfac-update-freq 0 "
    "--kfac-cov-update-freq 50 --damping 0.003 --model resnet50 --checkpoint-freq 90 "
    "--kfac-comm-method comm-opt --kfac-grad-worker-fraction 0.0 --epochs 1 --lr-decay 30 60 80"
)
SC22_SCRIPT = """#!/bin/bash
NGPUS=3
if [ "$MVAPICH" == true ]; then
  LOCAL_RANK=$MV2_COMM_WORLD_RANK
fi
KWARGS=""
KWARGS+="--base-lr 0.05 "
KWARGS+="--batch-size 48 "
#KWARGS+="--kfac-update-freq 500 "
KWARGS+="--kfac-update-freq 0 "
ts=`date '+%s'`
__PREFETCH=off python -m torch.distributed.launch \\
 --nproc_per_node=$NGPUS \\
torch_imagenet_resnet.py $KWARGS > resnet_iterdur_${ts}.txt
echo Completed
"""
TBD_LINE = (
    "python3 main.py --batch_size=384 --dtype=fp32 --use_synthetic_data=false --data_dir=/d --train_epochs=90 "
    "--distribution_strategy multi_worker_mirrored |& tee training.log"
)
MLPERF = (
    "OPTIMIZER=sgdwfastlars KVSTORE=horovod WARMUP_EPOCHS=2 EVAL_OFFSET=2 EVAL_PERIOD=4 WD=5.0e-05 MOM=0.9 "
    "LARSETA=0.001 LABELSMOOTHING=0.1 LRSCHED=pow2 NUMEPOCHS=37 NETWORK=resnet-v1b-stats-fl DALI_THREADS=6 "
    "MXNET_HOROVOD_NUM_GROUPS=1"
)
# Values of the published configurations that differ from MLPERF, by shipped system.
MLPERF_SYSTEMS = {
    "dgxa100": "BATCHSIZE=408 LR=10.5 DGXNNODES=1 DGXNGPU=8",
    "dgxa100-4gpu": "BATCHSIZE=816 LR=10.5 DGXNNODES=1 DGXNGPU=4",
    "a30-1x2": "BATCHSIZE=204 LR=3.0 DGXNNODES=1 DGXNGPU=2",
    "dgxa100-8x8": "BATCHSIZE=51 LR=10.5 DGXNNODES=8 DGXNGPU=8",
    "dgxa100-128x8": "BATCHSIZE=35 LR=21.9 DGXNNODES=128 DGXNGPU=8 WARMUP_EPOCHS=17 WD=2.5e-5 MOM=0.94 NUMEPOCHS=60 "
    "EVAL_OFFSET=3 INPUT_BATCH_MULTIPLIER=8",
    "dgxa100-527x8": "OPTIMIZER=sgdwfastlarsv2 BATCHSIZE=16 LR=24.699 DGXNNODES=527 DGXNGPU=8 WARMUP_EPOCHS=31 WD=1e-4 "
    "MOM=0.951807 NUMEPOCHS=90 EVAL_OFFSET=1 BN_GROUP=2 E2E_CUDA_GRAPHS=1",
}
# The command that run_and_time.sh builds from config_DGXA100.sh.
MLPERF_PROGRAM = shlex.split(
    "python train_imagenet.py --gpus 0,1,2,3,4,5,6,7 --batch-size 408 --kv-store horovod --lr 10.5 --mom 0.9 "
    "--lr-step-epochs pow2 --lars-eta 0.001 --label-smoothing 0.1 --wd 5.0e-05 --warmup-epochs 2 --eval-period 4 "
    "--eval-offset 2 --optimizer sgdwfastlars --network resnet-v1b-stats-fl --num-layers 50 --num-epochs 37 "
    "--accuracy-threshold 0.759 --seed 1 --dtype float16 --disp-batches 20 --image-shape 4,224,224 "
    "--fuse-bn-relu 1 --bn-group 1 --min-random-area 0.05 --max-random-area 1.0 --input-layout NHWC "
    "--batchnorm-mom 0.9 --batchnorm-eps 1e-5 --dali-threads 6 --use-dali"
)


def mlperf_words(system: str) -> list[str]:
    values = dict(word.split("=") for word in f"{MLPERF} {MLPERF_SYSTEMS[system]}".split())
    return [f"{name}={text}" for name, text in values.items()]


# MLPerf's SSD: name of config_*.sh, nodes, GPUs per node, EXTRA_PARAMS.
SSD_SYSTEMS = {
    "c4140": ("C4140", 1, 4, "--batch-size=128 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4"),
    "2xc4140": ("2xC4140", 2, 4, "--batch-size=128 --lr-warmup-epoch=5.25 --lr=5.84e-3 --weight-decay=1.6e-4"),
    "4xc4140": (
        *("4xC4140_01x08x56", 4, 4),
        "--batch-size=56 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4 --dali-workers=3",
    ),
    "dss8440": ("DSS8440", 1, 8, "--batch-size=128 --lr-warmup-epoch=5 --lr=5.84e-3 --weight-decay=1.6e-4"),
    "dgx1": ("DGX1_01x08x56", 1, 8, "--batch-size=56 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4"),
    "dgxa100": ("DGXA100_1x8x114", 1, 8, "--batch-size=114 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4"),
}


def ssd_program(system: str) -> list[str]:
    """Return the command of a system's job, with the flags of run_and_time.sh."""
    _, nodes, per_node, extra = SSD_SYSTEMS[system]
    return shlex.split(
        f"mpirun --allow-run-as-root --bind-to none -np {nodes * per_node} -N {per_node} python -u ssd_main_async.py "
        "--log-interval=100 --coco-root=/data/coco2017 --data-layout=NHWC --epochs 80 --async-val "
        "--dataset-size 117266 --pretrained-backbone=/pretrained/mxnet/resnet34-333f7ec4.pickle "
        f"--eval-dataset-size 5000 {extra}"
    )


def ssd_config(system: str) -> str:
    """Return the published config_*.sh of a system."""
    _, nodes, per_node, extra = SSD_SYSTEMS[system]
    return f"""## DL params
export EXTRA_PARAMS='{extra}'
export NNODES={1 if system == "2xc4140" else nodes}
#export SYSTEM=$(basename $(readlink -f ${{BASH_SOURCE[0]}}))
export WALLTIME=00:30:00
export NGPU={per_node}
export SOCKETCORES=20
export NSOCKET=2
export HT=1         # HT is on is 2, HT off is 1
export TOBIND=0
export NCCL_SOCKET_IFNAME="""


STARTED = re.compile(r"trainstone launch [^;]*")


def parse_printed_commands(translation: Translation) -> None:
    started = [
        line.replace("$seed", "1") for note in translation.notes for line in STARTED.findall(note) if " -- " in line
    ]
    for command in (translation.command, translation.file_command, *started):
        if command:
            parse_command(command)


def parse_command(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[0] == "trainstone", command
    return parse_words(words[1:])


def parse_words(words: list[str]) -> dict[str, Any]:
    """Parse a command with the real command line; for `launch ... -- VERB ...` also the started command."""
    launches = words[:1] == ["launch"]
    verb, rest = find_verb(words)
    if launches:
        parse_words(rest[rest.index("--") + 1 :])
    return dict(verb.make_context(" ".join(words), list(rest)).params)


def find_verb(words: list[str]) -> tuple[Any, list[str]]:
    found, rest = read_surface(), list(words)
    while (below := getattr(found, "commands", None)) is not None and (rest or found is read_surface()):
        assert "".join(rest[:1]) in below, f"unknown command: {shlex.join(words)}"
        found = below[rest.pop(0)]
    return found, rest


@cache
def read_surface() -> Any:
    return typer.main.get_command(app)
