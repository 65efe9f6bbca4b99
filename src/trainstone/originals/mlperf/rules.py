"""MLPerf's rules for ResNet-50 (0.7.0 to 4.0.0) and SSD300 (to 1.1.0; later `ssd` is RetinaNet).

They give the log's keys and values, and the requirements of the closed division: a recipe is compared with the
reference recipe. Rules: https://github.com/mlcommons/training_policies, and the rule files of mlperf-logging 4.1.68.
"""

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainstone.config.load import format_value, load_config
from trainstone.config.schema import Config
from trainstone.models.mxnet_names import PREFIX, name_in_gluon, name_in_mxnet

ROUNDING = 1e-5  # the checker's
SECTIONS = ("model", "augment", "detect", "train", "optimizer", "schedule", "eval")
"""Sections that are compared with the reference's. Others only change the speed, except for KEYS."""
KEYS = (("data", "image_size"), ("loader", "last"), ("loader", "on_bad"))
FREE = frozenset(
    {
        *("train.batch_size", "train.accumulate", "train.precision", "train.loss_scale", "train.adapt"),
        *("optimizer.learning_rate", "optimizer.rate_for", "optimizer.rate_scaling", "optimizer.weight_decay"),
        *("schedule.warm_up_epochs", "schedule.images", "eval.offset", "eval.batch_size", "eval.target"),
    }
)
"""Keys that are free in every benchmark, or covered by a rule of their own."""
MOMENTUM, FREE_MOMENTUM_BATCH = 0.9, 32768
DECAY_UNIT = 1e-4
RATE_UNIT, SSD_RATE_UNIT = 1e-3, 2.5e-3
BOUNDARIES, TENTH = (40.0, 50.0), 10
CROPS = (1, 50)
EXTRA = re.compile(r"extras\.([0-9]+)\.([0-9]+)")

load_reference = functools.cache(load_config)
Rule = tuple[bool, str]
"""Whether the rule is kept, and the message if it is not."""


class RunSizes(NamedTuple):
    """Numbers of a training run that MLPerf's log contains and its rules limit."""

    ranks: int
    global_batch: int
    """Images per step, all ranks together."""
    train_images: int
    """In the data set."""
    val_images: int
    peak_rate: float
    """Highest learning rate of the schedule."""
    decay_steps: int
    """Steps after the warm-up."""
    warm_up_steps: int = 0


@dataclass(frozen=True)
class Benchmark:
    name: str
    """MLPerf's name of the benchmark."""
    name_tensor: Callable[[str], str]
    """Returns the reference implementation's name of a parameter."""
    list_values: Callable[[Config, RunSizes], dict[str, Any]]
    """Returns the log's hyperparameter keys; those that the recipe does not have are skipped."""
    find_violations: Callable[[Config, RunSizes], list[str]]
    """Returns a message per violated rule of the closed division."""


@dataclass(frozen=True)
class ClosedRules:
    """Requirements of a benchmark's closed division, apart from its special rules."""

    recipe: str
    """The reference recipe."""
    train_images: int
    val_images: tuple[int, ...]
    target: float
    free: Collection[str]
    """Free keys in addition to FREE."""
    also_allowed: Mapping[str, tuple[Any, ...]]

    def find_violations(self, config: Config, sizes: RunSizes, free: Collection[str], rules: list[Rule]) -> list[str]:
        """Return a message per key that differs from the reference and is not free, and per broken one of `rules`."""
        train, val, target = sizes.train_images, sizes.val_images, config.eval.target
        complete = train == self.train_images and val in self.val_images
        counted = config.schedule.images
        general = [
            (complete, f"{train:,} and {val:,} images, must be {self.train_images:,} and {self.val_images[0]:,}"),
            (counted in (None, train), f"schedule.images = {counted}, must be {train} as in the data set"),
            ((target or 0) >= self.target, f"eval.target = {target}, must be at least {self.target}"),
        ]
        reference = load_reference(self.recipe)
        keys = [(section, key) for section in SECTIONS for key in type(getattr(config, section)).model_fields]
        changed, free = [], {*FREE, *self.free, *free}
        for section, key in (*keys, *KEYS):
            name = f"{section}.{key}"
            value, wanted = (getattr(getattr(one, section), key) for one in (config, reference))
            if name not in free and value not in (wanted, *self.also_allowed.get(name, ())):
                changed.append(f"{name} = {format_value(value)}, must be {format_value(wanted)}")
        return [*changed, *(text for kept, text in (*general, *rules) if not kept)]


def is_integer(value: float) -> bool:
    return abs(round(value) - value) < ROUNDING


def as_integer(value: float) -> float:
    """Return 2 for 2.0: MLPerf's logs write whole numbers as integers."""
    return int(value) if value == int(value) else value


def drop_absent(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


FREE_FOR_SGD = frozenset({"optimizer.lars_eta", "optimizer.lars_epsilon", "optimizer.momentum_correction"})
RESNET_RULES = ClosedRules(
    recipe="resnet50-mlperf",
    train_images=1_281_167,
    val_images=(50_000,),
    target=0.759,
    free=("optimizer.name", "optimizer.momentum"),
    also_allowed={
        "model.num_classes": (1001,),  # TensorFlow's background class
        "augment.val_shorter": ("auto",),  # 256 for 224 pixels
        "train.label_smoothing": (0.0,),  # training_rules.adoc: 0 or 0.1
        "model.conv_init": ("truncated_fan_in",),  # and a truncated normal
        "loader.last": ("carry", "fill"),  # the last batch may be mixed or padded, but not dropped
    },
)


def list_resnet_values(config: Config, sizes: RunSizes) -> dict[str, Any]:
    """Return the optimiser's keys in the original's order; keys that the schedule does not have are skipped."""
    optimizer, schedule = config.optimizer, config.schedule
    own, lars = f"{optimizer.name}_opt", optimizer.name == "lars"
    falls = schedule.name in ("polynomial", "cosine")
    # The original wrote the schedule's epochs instead of steps.
    wrong = config.original_defects and config.original.name == "mlperf"
    values = {
        f"{own}_learning_rate_decay_poly_power": as_integer(schedule.power) if schedule.name == "polynomial" else None,
        f"{own}_end_learning_rate": schedule.end_rate if falls else None,
        "d_batch_size": config.train.batch_size,
        "global_batch_size": sizes.global_batch,
        "gradient_accumulation_steps": config.train.accumulate,
        "opt_name": optimizer.name,
        "lars_epsilon": optimizer.lars_epsilon if lars else None,
        f"{own}_weight_decay": optimizer.weight_decay,
        f"{own}_momentum": optimizer.momentum,
        f"{own}_base_learning_rate": sizes.peak_rate,
        f"{'lars_opt' if lars else 'opt'}_learning_rate_warmup_epochs": as_integer(schedule.warm_up_epochs),
    }
    steps = as_integer(config.stop.epochs) if wrong else sizes.decay_steps
    return drop_absent(values | {f"{own}_learning_rate_decay_steps": steps if falls else None})


def find_resnet_violations(config: Config, sizes: RunSizes) -> list[str]:
    optimizer, sgd = config.optimizer, config.optimizer.name == "sgd"
    decay, rate, warm_up = optimizer.weight_decay, sizes.peak_rate, config.schedule.warm_up_epochs
    free_momentum = not sgd and sizes.global_batch >= FREE_MOMENTUM_BATCH
    in_powers = decay > 0 and is_integer(math.log2(decay / DECAY_UNIT))
    rules = [
        (in_powers, f"weight decay {decay:g}, must be {DECAY_UNIT} times a power of two"),
        (free_momentum or optimizer.momentum == MOMENTUM, f"momentum {optimizer.momentum:g}, must be {MOMENTUM}"),
        (not sgd or is_integer(rate / RATE_UNIT), f"peak rate {rate:g}, must be a multiple of {RATE_UNIT} (SGD)"),
        (not sgd or warm_up == int(warm_up), f"{warm_up:g} epochs of warm-up, must be a whole number (SGD)"),
    ]
    return RESNET_RULES.find_violations(config, sizes, FREE_FOR_SGD if sgd else (), rules)


SSD_RULES = ClosedRules(
    recipe="ssd300-mlperf",
    train_images=117_266,
    val_images=(5_000, 4_952),  # COCO's, or those of them with boxes: published logs have either
    target=0.23,
    free=(
        *("optimizer.momentum_correction", "schedule.warm_up_by", "schedule.warm_up_from", "schedule.first_step"),
        *("schedule.decay_late", "eval.async_"),
        # Of crops, optimisers and schedules that are not used.
        *("augment.area", "augment.aspect_distribution", "augment.min_object_covered", "augment.val_shorter"),
        *("optimizer.lars_eta", "optimizer.lars_epsilon", "schedule.end_rate", "schedule.power"),
        *("schedule.warm_up_offset", "eval.every_epochs"),
        # These have rules of their own: find_ssd_violations.
        *("model.pretrained", "augment.attempts", "optimizer.rate_unit", "schedule.decay_epochs"),
    ),
    also_allowed={
        "loader.last": ("carry", "fill"),  # the last batch may be mixed or padded, but not dropped
        "detect.inclusive_edges": (True,),  # the published submissions had it
    },
)


def name_ssd_tensor(name: str) -> str:
    """Return ssd0_expand_conv0_bias for extras.0.2.bias; names of other networks are returned unchanged."""
    module, _, kind = name.rpartition(".")
    if extra := EXTRA.fullmatch(module):
        layer = "trans_conv" if extra[2] == "0" else "conv"
        return f"ssd0_expand_{layer}{extra[1]}_{kind}"
    if module.startswith("heads."):
        return f"ssd0_convpredictor{module.removeprefix('heads.')}_conv0_{kind}"
    backbone = name_in_gluon(name.removeprefix("backbone.")) if name.startswith("backbone.") else None
    return name if backbone is None else f"{PREFIX}{backbone}"


def list_ssd_values(config: Config, sizes: RunSizes) -> dict[str, Any]:
    """Return the hyperparameter keys; those that the crop or the schedule does not have are skipped."""
    schedule, wrong = config.schedule, config.original_defects and config.original.name == "mlperf_ssd"
    begin = 1 / sizes.ranks if schedule.warm_up_from == "rank" else schedule.warm_up_from
    boundaries = [as_integer(epoch) for epoch in schedule.decay_epochs]
    values = {
        "sgd": config.seed if wrong else None,  # a wrong key: it wrote the seed under the optimiser's name
        "max_samples": config.augment.attempts if config.augment.crop == "overlap" else None,
        "opt_learning_rate_warmup_steps": sizes.warm_up_steps,
        # f if the warm-up begins at 1 - 2^-f of the rate; 0 if it begins at 0, or without a warm-up.
        "opt_learning_rate_warmup_factor": as_integer(-math.log2(1 - begin)) if begin < 1 else 0,
        "opt_base_learning_rate": sizes.peak_rate,
        "opt_learning_rate_decay_boundary_epochs": boundaries if schedule.name == "steps" else None,
        "opt_weight_decay": config.optimizer.weight_decay,
        "global_batch_size": sizes.global_batch,
        "gradient_accumulation_steps": config.train.accumulate,
    }
    return drop_absent(values)


def find_ssd_violations(config: Config, sizes: RunSizes) -> list[str]:
    epochs, rate, attempts = config.schedule.decay_epochs, sizes.peak_rate, config.augment.attempts
    in_tenths = len(epochs) == len(BOUNDARIES) and all(
        is_integer(TENTH * (epoch / border - 1)) for epoch, border in zip(epochs, BOUNDARIES, strict=False)
    )
    shown = format_value(epochs)
    rules = [
        (config.model.pretrained is not None, "model.pretrained is not set, must be a trained ResNet-34"),
        (rate > 0 and is_integer(rate / SSD_RATE_UNIT), f"peak rate {rate:g}, must be a multiple of {SSD_RATE_UNIT}"),
        (sizes.warm_up_steps > 0, "no warm-up, must be at least one step"),
        (in_tenths, f"schedule.decay_epochs = {shown}, must be 40 and 50, each changed by a multiple of 10 %"),
        (attempts in CROPS, f"augment.attempts = {attempts}, must be {CROPS[0]} or {CROPS[1]}"),
    ]
    return SSD_RULES.find_violations(config, sizes, (), rules)


BENCHMARKS = {
    "classify": Benchmark("resnet", name_in_mxnet, list_resnet_values, find_resnet_violations),
    "detect": Benchmark("ssd", name_ssd_tensor, list_ssd_values, find_ssd_violations),
}
"""By workload."""
