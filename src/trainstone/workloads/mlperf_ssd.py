"""MLPerf Training's rules 0.7.0 to 1.1.0 for SSD300 (`ssd`): what its log says, what the closed division demands.

In later rounds `ssd` is RetinaNet.
"""

import math
import re
from typing import Any

from torch import nn

from trainstone.config.schema import Config
from trainstone.models.mxnet_names import PREFIX, name_in_gluon
from trainstone.workloads.mlperf_rules import ClosedRules, as_integer, is_whole
from trainstone.workloads.workload import Mllog, RunSizes

RATE_UNIT = 2.5e-3
BOUNDARIES, TENTH = (40.0, 50.0), 10
CROPS = (1, 50)
RULES = ClosedRules(
    recipe="ssd300-mlperf",
    train_pictures=117_266,
    val_pictures=(5_000, 4_952),  # COCO's, or those of them with boxes: published logs have either
    data="COCO's 117,266 with boxes and 5,000",
    target=0.23,
    free=(
        *("optimizer.momentum_correction", "schedule.warm_up_by", "schedule.warm_up_from", "schedule.first_step"),
        *("schedule.decay_late", "eval.async_"),
        # Of crops, optimisers and rhythms that are not used.
        *("augment.area", "augment.aspect_law", "augment.min_object_covered", "augment.val_shorter"),
        *("optimizer.lars_eta", "optimizer.lars_epsilon", "schedule.end_rate", "schedule.power"),
        *("schedule.warm_up_offset", "eval.every_epochs"),
        # Rules of their own: find_departures.
        *("model.pretrained", "augment.attempts", "optimizer.rate_unit", "schedule.decay_epochs"),
    ),
    also_allowed={
        "loader.last": ("carry", "fill"),  # the last batch may be mixed or padded, but not left out
        "detect.inclusive_edges": (True,),  # the published submissions had it
    },
)
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
    begin = 1 / sizes.ranks if schedule.warm_up_from == "rank" else schedule.warm_up_from
    values: dict[str, Any] = {}
    if config.original_defects and original:
        values["sgd"] = config.seed  # a wrong key: it wrote the seed under the optimiser's name
    if config.augment.crop == "overlap":
        values["max_samples"] = config.augment.attempts
    values |= {
        "opt_learning_rate_warmup_steps": sizes.warm_up_steps,
        # f where the warm-up begins at 1 - 2^-f of the rate; 0 is from nothing, and stands for no warm-up, too.
        "opt_learning_rate_warmup_factor": as_integer(-math.log2(1 - begin)) if begin < 1 else 0,
        "opt_base_learning_rate": sizes.peak_rate,
    }
    if schedule.name == "steps":
        values["opt_learning_rate_decay_boundary_epochs"] = [as_integer(epoch) for epoch in schedule.decay_epochs]
    return values | {
        "opt_weight_decay": config.optimizer.weight_decay,
        "global_batch_size": sizes.global_batch,
        "gradient_accumulation_steps": config.train.accumulate,
    }


def find_departures(config: Config, sizes: RunSizes) -> list[str]:
    """Say what the closed division does not allow."""
    epochs, rate, attempts = config.schedule.decay_epochs, sizes.peak_rate, config.augment.attempts
    in_tenths = len(epochs) == len(BOUNDARIES) and all(
        is_whole(TENTH * (epoch / border - 1)) for epoch, border in zip(epochs, BOUNDARIES, strict=False)
    )
    shown = ", ".join(f"{epoch:g}" for epoch in epochs)
    rules = [
        (config.model.pretrained is not None, "model.pretrained is not given: it begins with a trained ResNet-34"),
        (rate > 0 and is_whole(rate / RATE_UNIT), f"the peak rate {rate:g} is no multiple of {RATE_UNIT}"),
        (sizes.warm_up_steps > 0, "there is no warm-up: at least a step is asked for"),
        (in_tenths, f"schedule.decay_epochs = [{shown}], not 40 and 50, each changed by tenths of itself"),
        (attempts in CROPS, f"augment.attempts = {attempts}, not {CROPS[0]} or {CROPS[1]}"),
    ]
    return RULES.find_departures(config, sizes, (), rules)


SSD = Mllog("ssd", tensor_names, list_values, find_departures)
