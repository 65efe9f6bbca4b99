"""MLPerf Training's rules for SSD300 (benchmark `ssd`): what its log tells, what the closed division asks for.

Rules: https://github.com/mlcommons/training_policies, and the rule files of mlperf-logging 4.1.68 (0.7.0 to 1.1.0; in
later rounds `ssd` is RetinaNet).
"""

import functools
import math
import re
from typing import Any

from torch import nn

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.models.gluon_names import PREFIX, name_in_gluon
from trainstone.workloads.mlperf_rules import as_integer, compare_sections, is_whole
from trainstone.workloads.workload import Mllog, RunSizes

TRAIN_PICTURES = 117_266
VAL_PICTURES = (5_000, 4_952)
"""COCO's, or those of them with boxes: published logs have either."""
TARGET = 0.23
RATE_UNIT = 2.5e-3
BOUNDARIES, TENTH = (40.0, 50.0), 10
CROPS = (1, 50)

COMPARED: dict[str, tuple[str, ...]] = {
    "model": (),
    "data": ("image_size",),
    "augment": (),
    "detect": (),
    "loader": ("last", "on_bad"),
    "train": (),
    "optimizer": (),
    "schedule": (),
    "eval": (),
}
"""Sections that the reference's are compared with, and which keys: none named means all. Others change the speed."""
FREE = frozenset(
    {
        *("train.batch_size", "train.accumulate", "train.precision", "train.loss_scale", "train.adapt"),
        *("optimizer.rate_for", "optimizer.rate_growth", "optimizer.weight_decay", "optimizer.momentum_correction"),
        *("schedule.warm_up_epochs", "schedule.warm_up_by", "schedule.warm_up_from", "schedule.first_step"),
        *("schedule.decay_late", "eval.batch_size", "eval.async_"),
        # Of crops, optimisers and rhythms that are not used.
        *("augment.area", "augment.aspect_law", "augment.min_object_covered", "augment.val_shorter"),
        *("optimizer.lars_eta", "optimizer.lars_epsilon", "schedule.end_rate", "schedule.power"),
        *("schedule.warm_up_offset", "eval.every_epochs", "eval.offset"),
        # Rules of their own: find_broken.
        *("model.pretrained", "augment.attempts", "optimizer.learning_rate", "optimizer.rate_unit"),
        *("schedule.decay_epochs", "schedule.pictures", "eval.target"),
    }
)
ALSO_ALLOWED: dict[str, tuple[Any, ...]] = {
    "loader.last": ("carry", "fill"),  # the last batch may be mixed or padded, but not left out
    "detect.inclusive_edges": (True,),  # the published submissions had it
}
EXTRA = re.compile(r"extras\.([0-9]+)\.([0-9]+)")


def tensor_names(model: nn.Module) -> list[str]:
    """Return MXNet's names of the parameters."""
    return [name_in_mxnet(name) for name, _ in model.named_parameters()]


def name_in_mxnet(name: str) -> str:
    """Return ssd0_expand_conv0_bias for extras.0.2.bias; a name of another network is kept."""
    module, _, kind = name.rpartition(".")
    if extra := EXTRA.fullmatch(module):
        layer = "trans_conv" if extra[2] == "0" else "conv"
        return f"ssd0_expand_{layer}{extra[1]}_{kind}"
    if module.startswith("heads."):
        return f"ssd0_convpredictor{module.removeprefix('heads.')}_conv0_{kind}"
    backbone = name_in_gluon(name.removeprefix("backbone.")) if name.startswith("backbone.") else None
    return name if backbone is None else f"{PREFIX}{backbone}"


def list_values(config: Config, sizes: RunSizes) -> dict[str, Any]:
    """Return the keys that tell how it is trained; a crop or a rate of another kind has nothing to tell."""
    schedule, original = config.schedule, config.original.name == "mlperf_ssd"
    values: dict[str, Any] = {}
    if config.original_defects and original:
        values["sgd"] = config.seed  # a wrong key: it wrote the seed under the optimiser's name
    if config.augment.crop == "overlap":
        values["max_samples"] = config.augment.attempts
    values |= {
        "opt_learning_rate_warmup_steps": sizes.warm_up_steps,
        "opt_learning_rate_warmup_factor": tell_factor(config, sizes),
        "opt_base_learning_rate": sizes.peak_rate,
    }
    if schedule.name == "steps":
        values["opt_learning_rate_decay_boundary_epochs"] = [as_integer(epoch) for epoch in schedule.decay_epochs]
    return values | {
        "opt_weight_decay": config.optimizer.weight_decay,
        "global_batch_size": sizes.global_batch,
        "gradient_accumulation_steps": config.train.accumulate,
    }


def tell_factor(config: Config, sizes: RunSizes) -> float:
    """Return f where the warm-up begins at 1 - 2^-f of the rate; 0 is from nothing, and stands for no warm-up, too."""
    asked = config.schedule.warm_up_from
    begin = 1 / sizes.ranks if asked == "rank" else asked
    return as_integer(-math.log2(1 - begin)) if begin < 1 else 0


def find_departures(config: Config, sizes: RunSizes) -> list[str]:
    """Say what the closed division does not allow: whatever is not as in the reference and not free."""
    changed = compare_sections(config, load_reference(), COMPARED, FREE, ALSO_ALLOWED)
    rules = [*check_goal(config, sizes), *check_learning(config, sizes)]
    return [*changed, *(told for kept, told in rules if not kept)]


@functools.cache
def load_reference() -> Config:
    """Return the recipe that follows the rules."""
    return load_config("ssd300-mlperf")


def check_goal(config: Config, sizes: RunSizes) -> list[tuple[bool, str]]:
    """The pictures, what the network begins with, and what it is trained to."""
    train, val, asked = sizes.train_pictures, sizes.val_pictures, config.eval.target
    coco = f"COCO's {TRAIN_PICTURES:,} with boxes and {VAL_PICTURES[0]:,}"
    counted = config.schedule.pictures
    target = "there is no target" if asked is None else f"the target is {asked:g}"
    return [
        (train == TRAIN_PICTURES and val in VAL_PICTURES, f"{train:,} and {val:,} pictures, not {coco}"),
        (counted in (None, train), f"schedule.pictures = {counted}, the data set has {train}"),
        (config.model.pretrained is not None, "model.pretrained is not given: it begins with a trained ResNet-34"),
        ((asked or 0) >= TARGET, f"{target}: at least {TARGET} is asked for"),
    ]


def check_learning(config: Config, sizes: RunSizes) -> list[tuple[bool, str]]:
    """The rate, when it falls, and the crops."""
    epochs, rate, attempts = config.schedule.decay_epochs, sizes.peak_rate, config.augment.attempts
    in_tenths = len(epochs) == len(BOUNDARIES) and all(
        is_whole(TENTH * (epoch / border - 1)) for epoch, border in zip(epochs, BOUNDARIES, strict=False)
    )
    shown = ", ".join(f"{epoch:g}" for epoch in epochs)
    return [
        (rate > 0 and is_whole(rate / RATE_UNIT), f"the peak rate {rate:g} is no multiple of {RATE_UNIT}"),
        (sizes.warm_up_steps > 0, "there is no warm-up: at least a step is asked for"),
        (in_tenths, f"schedule.decay_epochs = [{shown}], not 40 and 50, each changed by tenths of itself"),
        (attempts in CROPS, f"augment.attempts = {attempts}, not {CROPS[0]} or {CROPS[1]}"),
    ]


SSD = Mllog("ssd", tensor_names, list_values, find_departures)
