"""MLPerf's rules 0.7.0 to 4.0.0 for ResNet-50 (`resnet`): what its log says, what the closed division demands."""

import math
from typing import Any

from torch import nn

from trainstone.config.schema import Config
from trainstone.models.mxnet_names import name_in_mxnet
from trainstone.workloads.mlperf_rules import ClosedRules, as_integer, is_whole
from trainstone.workloads.workload import Mllog, RunSizes

MOMENTUM, FREE_MOMENTUM_BATCH = 0.9, 32768
DECAY_UNIT, RATE_UNIT = 1e-4, 1e-3
FREE_FOR_SGD = frozenset({"optimizer.lars_eta", "optimizer.lars_epsilon", "optimizer.momentum_correction"})
RULES = ClosedRules(
    recipe="resnet50-mlperf",
    train_pictures=1_281_167,
    val_pictures=(50_000,),
    data="ImageNet's 1,281,167 and 50,000",
    target=0.759,
    free=("optimizer.name", "optimizer.momentum"),
    also_allowed={
        "model.num_classes": (1001,),  # TensorFlow's background class
        "augment.val_shorter": ("auto",),  # 256 for 224 pixels
        "train.label_smoothing": (0.0,),  # training_rules.adoc: 0 or 0.1
        "model.conv_init": ("truncated_fan_in",),  # and a truncated normal
        "loader.last": ("carry", "fill"),  # the last batch may be mixed or padded, but not left out
    },
)


def tensor_names(model: nn.Module) -> list[str]:
    """Return MXNet's names of the parameters."""
    return [name_in_mxnet(name) for name, _ in model.named_parameters()]


def list_values(config: Config, sizes: RunSizes) -> dict[str, Any]:
    """Return the optimiser's keys in the order of the original; a rate that is no polynomial has no power to tell."""
    optimizer, schedule = config.optimizer, config.schedule
    own = f"{optimizer.name}_opt"
    values: dict[str, Any] = {}
    if schedule.name == "polynomial":
        values[f"{own}_learning_rate_decay_poly_power"] = as_integer(schedule.power)
    if schedule.name in ("polynomial", "cosine"):
        values[f"{own}_end_learning_rate"] = schedule.end_rate
    values |= {
        "d_batch_size": config.train.batch_size,
        "global_batch_size": sizes.global_batch,
        "gradient_accumulation_steps": config.train.accumulate,
        "opt_name": optimizer.name,
    }
    if optimizer.name == "lars":
        values["lars_epsilon"] = optimizer.lars_epsilon
    values |= {
        f"{own}_weight_decay": optimizer.weight_decay,
        f"{own}_momentum": optimizer.momentum,
        f"{own}_base_learning_rate": sizes.peak_rate,
    }
    warm_up = "lars_opt" if optimizer.name == "lars" else "opt"
    values[f"{warm_up}_learning_rate_warmup_epochs"] = as_integer(schedule.warm_up_epochs)
    if schedule.name in ("polynomial", "cosine"):
        # The original wrote the epochs of the whole schedule.
        wrong = config.original_defects and config.original.name == "mlperf"
        steps = as_integer(config.stop.epochs) if wrong else sizes.decay_steps
        values[f"{own}_learning_rate_decay_steps"] = steps
    return values


def find_departures(config: Config, sizes: RunSizes) -> list[str]:
    """Say what the closed division does not allow."""
    optimizer, sgd = config.optimizer, config.optimizer.name == "sgd"
    decay, rate, warm_up = optimizer.weight_decay, sizes.peak_rate, config.schedule.warm_up_epochs
    free_momentum = not sgd and sizes.global_batch >= FREE_MOMENTUM_BATCH
    where = "SGD" if sgd else f"LARS, fewer than {FREE_MOMENTUM_BATCH} images"
    rules = [
        (
            decay > 0 and is_whole(math.log2(decay / DECAY_UNIT)),
            f"weight decay {decay:g} is not {DECAY_UNIT} times a power of two",
        ),
        (
            free_momentum or optimizer.momentum == MOMENTUM,
            f"momentum {optimizer.momentum:g}, not {MOMENTUM} ({where})",
        ),
        (not sgd or is_whole(rate / RATE_UNIT), f"the peak rate {rate:g} is no multiple of {RATE_UNIT} (SGD)"),
        (not sgd or warm_up == int(warm_up), f"{warm_up:g} epochs of warm-up are no whole number (SGD)"),
    ]
    return RULES.find_departures(config, sizes, FREE_FOR_SGD if sgd else (), rules)


RESNET = Mllog("resnet", tensor_names, list_values, find_departures)
