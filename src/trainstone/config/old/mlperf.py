"""MLPerf's MXNet ResNet-50 (NVIDIA's, as Backend.AI packaged it): variables of its scripts, flags of its program."""

import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from trainstone.config.old.flag import Flag, Grammar, Request, Verb, check_counts, idle, set_data, set_out
from trainstone.config.old.launcher import Geometry, describe_launcher, read_launcher, settle
from trainstone.config.old.line import Line, read_line
from trainstone.errors import ConfigError

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
DALI = "the loader has its own way: `loader.threads`, `loader.prefetch`, `loader.cache`"
FUSED = "the same mathematics; torch chooses the kernels"
LAYOUT = "`engine.channels_last` is true"
FIXED = "the recipe's, as MLPerf's rules fix it"
OPTIMIZERS = ("sgd", "sgdwlars", "sgdwfastlars", "sgdwfastlarsv2")
NETWORKS = ("resnet-v1b", "resnet-v1b-fl", "resnet-v1b-stats-fl", "resnet-v1b-normconv-fl", "resnet-v1b-dbar-fl")

VARIABLES = (
    Flag("OPTIMIZER", "text", "sgd", "`optimizer.name`", "all of LARS are `lars`", OPTIMIZERS),
    Flag("BATCHSIZE", "integer", "1664", "`train.batch_size`", "per device"),
    Flag("LR", "number", "0.6", "`optimizer.learning_rate`", "`rate_for`: the global batch, where it is known"),
    Flag("MOM", "number", "0.9", "`optimizer.momentum`"),
    Flag("LRSCHED", "text", "30,60,80", "`schedule.name`", "pow2: `polynomial`; a list: `steps`"),
    Flag("WARMUP_EPOCHS", "integer", "5", "`schedule.warm_up_epochs`"),
    Flag("LARSETA", "number", "0.001", "`optimizer.lars_eta`"),
    Flag("WD", "number", "0.0001", "`optimizer.weight_decay`"),
    Flag("LABELSMOOTHING", "number", "0.0", "`train.label_smoothing`"),
    Flag("SEED", "integer", "1", "`seed`", "`$RANDOM` is not drawn: `--seed`, `--runs`"),
    Flag("EVAL_OFFSET", "integer", "2", "`eval.offset`"),
    Flag("EVAL_PERIOD", "integer", "4", "`eval.every_epochs`"),
    Flag("NUMEPOCHS", "integer", "90", "`stop.epochs`"),
    Flag("NETWORK", "text", "resnet-v1b-fl", "the same network", "beside NODENUM docker's network", NETWORKS),
    Flag("BN_GROUP", "integer", "1", "`parallel.bn_ranks`", "", ("1", "2", "4", "8")),
    Flag("NUMEXAMPLES", "integer", "", "`schedule.pictures`", "of the rate alone; an epoch is what is there"),
    Flag("NUMVALEXAMPLES", "integer", "", "", "pictures are counted"),
    Flag("E2E_CUDA_GRAPHS", "integer", "0", "`engine.cuda_graphs`", "with sgd; LARS is not captured"),
    Flag("SYNTH_DATA", "integer", "0", "`bench`", "on synthetic batches"),
    Flag("PROFILE", "integer", "0", "`profile`"),
    Flag("TIME_TAGS", "integer", "0", "`engine.split_phases`", "4 epochs, warm-up of 2, as there"),
    Flag("NVTX_FLAG", "integer", "0", "`engine.nvtx`", "4 epochs, warm-up of 2, as there"),
    Flag("DGXNGPU", "integer", "", "`devices_per_node`"),
    Flag("DGXNNODES", "integer", "", "`nodes`"),
    Flag("GPUPERNODE", "integer", "", "`devices_per_node`", "run_multinode.sh"),
    Flag("NODENUM", "integer", "", "`nodes`", "run_multinode.sh"),
    Flag("DATADIR", "path", "", "`--data`"),
    Flag("LOGDIR", "path", "", "`--out`"),
    Flag("NEXP", "integer", "5", "`--runs`", "where it is given; on several devices a loop over seeds is printed"),
    Flag("CLEAR_CACHES", "integer", "1", "`mlperf.clear_caches`", "where it is given; needs root"),
    Flag("KVSTORE", "text", "device", "", "ranks average gradients by torch.distributed"),
    *idle(DALI, "text", "INPUT_BATCH_MULTIPLIER=1 DALI_*"),
    *idle("`trainstone profile` shows it", "text", "EPOCH_PROF=0 PROFILE_*"),
    *idle("threads follow the cores that a process may use", "text", "DGXNSOCKET DGXSOCKETCORES DGXHT"),
    Flag("DGXSYSTEM", "text", "", "", "`--system` names one; `trainstone recipes` and docs/from tell which"),
    Flag("CONT", "text", "", "", "no container is needed"),
    Flag("KEYREPO", "path", "", "", "no keys are exchanged; srun or mpirun reach the hosts"),
    Flag("COPY_DATASET", "path", "", "", "copy it yourself, then `--data`"),
    Flag("DATESTAMP", "text", "", "", "a run folder carries its time"),
    Flag("WALLTIME", "text", "", "", "`train --seconds N` ends a run"),
    Flag("HOROVOD_*", "text", "", "", "`parallel.bucket_bytes` is what a parcel of gradients holds"),
    Flag("MXNET_*", "text", "", "", "of MXNet's engine"),
    Flag("OMP_NUM_THREADS", "text", "", "", "`engine.threads`: auto, the physical cores"),
    *idle("read from the environment, here too", "text", "NCCL_* CUDA_* OMPI_* SBATCH_*"),
    *idle("not part of a run", "text", "DEBUG MLPERF_HOST_OS"),
)
FLAGS = (
    Flag("network", "text", "resnet-v1b", "the same network", "NETWORK", NETWORKS),
    Flag("num-layers", "integer", "50", "`model.depth`", "", ("18", "34", "50", "101", "152")),
    Flag("num-classes", "integer", "1000", "`model.num_classes`"),
    Flag("num-examples", "integer", "1281167", "`schedule.pictures`", "NUMEXAMPLES; not given: what is there"),
    Flag("num-val-examples", "integer", "-1", "", "pictures are counted"),
    Flag("image-shape", "text", "3,224,224", "`data.image_size`", "the last number; a fourth channel is not needed"),
    Flag("resize", "integer", "256", "`augment.val_shorter`"),
    Flag("batch-size", "integer", "128", "`train.batch_size`", "BATCHSIZE"),
    Flag("num-epochs", "integer", "100", "`stop.epochs`", "NUMEPOCHS"),
    Flag("lr", "number", "0.1", "`optimizer.learning_rate`", "LR"),
    Flag("lr-factor", "number", "0.1", "`schedule.decay_factor`"),
    Flag("lr-step-epochs", "text", "", "`schedule.name`", "LRSCHED; none: `constant`"),
    Flag("optimizer", "text", "sgd", "`optimizer.name`", "OPTIMIZER", OPTIMIZERS),
    Flag("lars-eps", "number", "0", "`optimizer.lars_epsilon`"),
    Flag("lars-eta", "number", "0.001", "`optimizer.lars_eta`", "LARSETA"),
    Flag("mom", "number", "0.9", "`optimizer.momentum`", "MOM"),
    Flag("wd", "number", "0.0001", "`optimizer.weight_decay`", "WD"),
    Flag("label-smoothing", "number", "0.0", "`train.label_smoothing`", "LABELSMOOTHING"),
    Flag("warmup-epochs", "integer", "5", "`schedule.warm_up_epochs`", "WARMUP_EPOCHS"),
    Flag("eval-period", "integer", "1", "`eval.every_epochs`", "EVAL_PERIOD"),
    Flag("eval-offset", "integer", "0", "`eval.offset`", "EVAL_OFFSET"),
    Flag("accuracy-threshold", "number", "1.0", "`eval.target`", "at least, where there it was more than"),
    Flag("seed", "integer", "1", "`seed`", "SEED"),
    Flag("dtype", "text", "float32", "`train.precision`", "", ("float32", "float16")),
    Flag("bn-group", "integer", "1", "`parallel.bn_ranks`", "BN_GROUP", ("1", "2", "4", "8")),
    Flag("bn-gamma-init0", "switch", "false", "`model.zero_gamma`"),
    Flag("min-random-area", "number", "1", "`augment.area`", "0.05 in run_and_time.sh"),
    Flag("max-random-area", "number", "1", "`augment.area`"),
    Flag("min-random-aspect-ratio", "number", "0.75", "`augment.aspect`"),
    Flag("max-random-aspect-ratio", "number", "1.3333333333333333", "`augment.aspect`"),
    Flag("gpus", "text", "", "`devices_per_node`", "as many as are listed"),
    Flag("data-train", "path", "", "`--data`", "the folder it lies in"),
    *idle("is beside the data, or is made", "path", "data-train-idx data-val data-val-idx"),
    Flag("e2e-cuda-graphs", "integer", "0", "`engine.cuda_graphs`", "E2E_CUDA_GRAPHS"),
    Flag("kv-store", "text", "device", "", "ranks average gradients by torch.distributed"),
    Flag("warmup-strategy", "text", "linear", "", "linear, here too", ("linear",)),
    Flag("top-k", "integer", "0", "", "evaluation says top-1 and top-5"),
    Flag("disp-batches", "integer", "20", "", "every step is recorded"),
    Flag("separ-val", "switch", "false", "", "validation is shared among the ranks"),
    Flag("batchnorm-mom", "number", "0.9", "", FIXED),
    Flag("batchnorm-eps", "number", "2e-5", "", "1e-5, as run_and_time.sh passes"),
    Flag("initializer", "text", "default", "", "`model.conv_init`, `model.fc_init`"),
    Flag("save-period", "integer", "1", "", "`checkpoint.every_epochs`"),
    Flag("profile", "integer", "0", "", "`trainstone profile`"),
    Flag("dali-roi-decode", "text", "false", "", "`loader.shrink` decodes less of a JPEG"),
    Flag("lazy_init_sanity", "switch", "false", "", "data is not touched before run_start anyway"),
    Flag("use-dali", "switch", "false", "", DALI),
    *idle("every run has a folder of its own", "path", "logging-dir=logs log model-prefix"),
    *idle(FUSED, "integer", "fuse-bn-relu=0 fuse-bn-add-relu=0 conv-algo=-1 force-tensor-core=0"),
    *idle(LAYOUT, "text", "input-layout=NCHW conv-layout=NCHW batchnorm-layout=NCHW pooling-layout=NCHW"),
    *idle(DALI, "integer", "input-batch-multiplier=1 dali-threads=3 dali-prefetch-queue=3 dali-cache-size=0"),
    *idle(DALI, "integer", "dali-nvjpeg-memory-padding=16 dali-dont-use-mmap=1 dali-tmp-buffer-hint=25273239"),
    *idle(DALI, "integer", "dali-preallocate-width=0 dali-preallocate-height=0 dali-decoder-buffer-hint=1315942"),
    *idle(DALI, "integer", "dali-crop-buffer-hint=165581 dali-normalize-buffer-hint=441549"),
    Flag("dali-hw-decoder-load", "number", "0", "", DALI),
)
GRAMMAR = Grammar("mlperf-resnet50", FLAGS, VARIABLES)
SPECIAL_VARIABLES = ("OPTIMIZER", "LRSCHED", "E2E_CUDA_GRAPHS", "TIME_TAGS", "NVTX_FLAG", "CLEAR_CACHES")
SPECIAL_FLAGS = (
    *("optimizer", "lr-step-epochs", "num-examples", "image-shape", "dtype", "e2e-cuda-graphs"),
    *("min-random-area", "max-random-area", "min-random-aspect-ratio", "max-random-aspect-ratio"),
)
"""Those whose value is not the key's."""


def understand(words: Sequence[str]) -> Request:
    """Read variables, a config_*.sh, a start script with variables before it, or a line of train_imagenet.py."""
    line = read_line(words, PROGRAM, SCRIPTS)
    line.notes += describe_launcher(line.launcher)
    if line.program == "train_imagenet.py" or line.after:
        return read_program(line)
    return read_variables(line)


def read_program(line: Line) -> Request:
    """Read the flags of train_imagenet.py."""
    given = GRAMMAR.read_flags(line.after)
    values = given.values
    geometry = read_launcher(line.launcher)
    if geometry.devices() is None and values.get("gpus"):
        geometry = Geometry(1, len(values["gpus"].split(",")))
    method, notes = read_method(values["optimizer"], values.get("lr-step-epochs", "0"), values["e2e-cuda-graphs"])
    size = re.fullmatch(r"[34],(\d{2,4}),\1", values["image-shape"])
    if size is None:
        raise ConfigError(f"invalid --image-shape={values['image-shape']}: expected channels and a square: 3,224,224")
    keys = given.list_keys(SPECIAL_FLAGS) | method
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


def read_variables(line: Line) -> Request:
    """Read variables, given as words or in files, before a start script or alone."""
    if "NODENUM" in line.values and "NETWORK" in line.values:
        line.notes.append(f"NETWORK={line.values.pop('NETWORK')}: docker's network; no container is needed")
    if "$" in line.values.get("SEED", ""):
        line.notes.append(f"SEED={line.values.pop('SEED')}: not drawn; give --seed or --runs")
    given = GRAMMAR.read_variables(line)
    values = given.values
    check_counts(values, ("DGXNGPU", "DGXNNODES", "GPUPERNODE", "NODENUM"))
    each, nodes = values.get("GPUPERNODE", values.get("DGXNGPU")), values.get("NODENUM", values.get("DGXNNODES"))
    started = read_launcher(line.launcher)
    geometry = settle(nodes or started.nodes, each or started.each, started.ranks)
    method, notes = read_method(values["OPTIMIZER"], values["LRSCHED"], values["E2E_CUDA_GRAPHS"])
    keys = given.list_keys(SPECIAL_VARIABLES) | method
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
