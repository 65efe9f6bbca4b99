"""MLPerf Training's rules for ResNet-50 (benchmark `resnet`): what its log tells, what the closed division asks for.

Rules: https://github.com/mlcommons/training_policies, and the rule files of mlperf-logging 4.1.68 (0.7.0 to 4.0.0).
"""

import math
from typing import Any

from torch import nn

from trainstone.config.schema import Config
from trainstone.models.mxnet_names import name_in_mxnet
from trainstone.units import format_count
from trainstone.workloads.workload import Mllog, RunSizes

TRAIN_PICTURES, VAL_PICTURES = 1_281_167, 50_000
CLASSES = (1000, 1001)  # with TensorFlow's background class
TARGET = 0.759
IMAGE_SIZE = 224
END_RATE, POWER = 1e-4, 2.0
MOMENTUM, FREE_MOMENTUM_BATCH = 0.9, 32768
EVAL_EPOCHS = 4
DECAY_UNIT, RATE_UNIT = 1e-4, 1e-3
ROUNDING = 1e-5  # the checker's


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
    asked = [*check_model(config), *check_data(config, sizes), *check_goal(config), *check_optimizer(config, sizes)]
    return [told for allowed, told in asked if not allowed]


def check_model(config: Config) -> list[tuple[bool, str]]:
    """The network and what it is trained with."""
    model, train = config.model, config.train
    plain = (model.stem, model.width, model.norm) == ("imagenet", 64, "batch")
    return [
        (model.depth == 50, f"the network is ResNet-{model.depth}, not ResNet-50"),
        (plain, "the network is not the ResNet-50 v1.5 of the reference (model.stem, model.width, model.norm)"),
        (model.num_classes in CLASSES, f"{model.num_classes} classes, not 1000 or 1001"),
        (not train.mixup, f"train.mixup = {train.mixup:g}"),
        (not train.ema, f"train.ema = {train.ema:g}"),
    ]


def check_data(config: Config, sizes: RunSizes) -> list[tuple[bool, str]]:
    """The pictures."""
    seen = sizes.train_pictures, sizes.val_pictures
    imagenet = f"ImageNet's {TRAIN_PICTURES:,} and {VAL_PICTURES:,}"
    return [
        (config.data.image_size == IMAGE_SIZE, f"{config.data.image_size} pixels, not {IMAGE_SIZE}"),
        (seen == (TRAIN_PICTURES, VAL_PICTURES), f"{seen[0]:,} and {seen[1]:,} pictures, not {imagenet}"),
    ]


def check_goal(config: Config) -> list[tuple[bool, str]]:
    """What it is trained to, and when it is judged."""
    judged = config.eval
    target = "there is no target" if judged.target is None else f"the target is {judged.target:g}"
    return [
        ((judged.target or 0) >= TARGET, f"{target}: at least {TARGET} is asked for"),
        (judged.metric == "top1", f"the metric is {judged.metric}, not top1"),
        (not judged.drop_rest, "validation pictures are left out (eval.drop_rest)"),
        (
            judged.every_epochs == EVAL_EPOCHS,
            f"it is judged every {format_count(judged.every_epochs, 'epoch')}, not every {EVAL_EPOCHS}",
        ),
    ]


def check_optimizer(config: Config, sizes: RunSizes) -> list[tuple[bool, str]]:
    """How weights move."""
    optimizer, schedule = config.optimizer, config.schedule
    decay = optimizer.weight_decay
    polynomial = schedule.name == "polynomial"
    found = [
        (polynomial, f"the rate is {schedule.name}, not polynomial"),
        (not polynomial or schedule.power == POWER, f"schedule.power = {schedule.power:g}, not {POWER:g}"),
        (not polynomial or schedule.end_rate == END_RATE, f"schedule.end_rate = {schedule.end_rate:g}, not {END_RATE}"),
        (
            decay > 0 and is_whole(math.log2(decay / DECAY_UNIT)),
            f"weight decay {decay:g} is not {DECAY_UNIT} times a power of two",
        ),
    ]
    if optimizer.name == "lars":
        free = sizes.global_batch >= FREE_MOMENTUM_BATCH
        return [
            *found,
            (optimizer.lars_epsilon == 0, f"optimizer.lars_epsilon = {optimizer.lars_epsilon:g}, not 0"),
            (
                free or optimizer.momentum == MOMENTUM,
                f"momentum {optimizer.momentum:g}, not {MOMENTUM} (LARS, fewer than {FREE_MOMENTUM_BATCH} images)",
            ),
        ]
    rate = sizes.peak_rate
    return [*found, (is_whole(rate / RATE_UNIT), f"the peak rate {rate:g} is no multiple of {RATE_UNIT} (SGD)")]


def is_whole(value: float) -> bool:
    """Say whether the checker takes a value for a whole number."""
    return abs(round(value) - value) < ROUNDING


def as_integer(value: float) -> float:
    """Return 2 for 2.0: MLPerf's logs have it so."""
    return int(value) if value == int(value) else value


RESNET = Mllog("resnet", tensor_names, list_values, find_departures)
