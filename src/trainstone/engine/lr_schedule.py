"""Learning rate schedules: a pure function of the step number, so a resumed run needs no scheduler state.

Also computes the peak learning rate for a global batch and checks whether it is unusual. optim.py sets the rate.
"""

import math
from collections.abc import Callable

from trainstone.config.schema import OptimizerConfig, ScheduleConfig
from trainstone.units import format_count

Rate = Callable[[int], float]

GROWTHS = {"linear": "in proportion to the images", "sqrt": "by the square root of the images"}

ROUNDING = 1e-9  # 0.57 x 100 is 56.99999999999999
SGD_RATE, SGD_BATCH = 0.1, 256  # Goyal et al., "Accurate, Large Minibatch SGD" (arXiv 1706.02677): linear scaling
LARS_RATE, LARS_BATCH = 10.5, 3264  # MLPerf's ResNet-50; 3.0 at 408 and 21.9 at 35840 are near square root scaling
# Small batches tolerate a higher rate, and users' data sets are smaller than ImageNet: report only large deviations.
SGD_HIGH, LARS_HIGH, LOW = 16, 8, 1 / 100


def build_rate(
    schedule: ScheduleConfig,
    peak: float,
    *,
    steps_per_epoch: float,
    epochs: float,
    ranks: int = 1,
    unfilled_steps: float | None = None,
) -> Rate:
    """Return the function from step number (from 0) to learning rate.

    The warm-up lasts the complete steps of its epochs; the schedule lasts steps_per_epoch x epochs, rounded to a step.
    The first step after the warm-up has the peak rate. After the schedule the rate stays constant.
    `unfilled_steps`: steps per epoch without padding or dropping images to complete the last batch.
    """
    by_epoch = schedule.by == "epoch"
    # Positions are counted in steps, or in started epochs.
    epoch_length = 1.0 if by_epoch else steps_per_epoch
    warm_up = schedule.warm_up_epochs if by_epoch else count_warm_up(schedule, steps_per_epoch, unfilled_steps)
    total = epochs if by_epoch else round(steps_per_epoch * epochs)
    begin = 1 / ranks if schedule.warm_up_from == "rank" else schedule.warm_up_from

    def rate(step: int) -> float:
        counted: float = step + schedule.first_step
        position = min(math.floor(counted / steps_per_epoch + ROUNDING) if by_epoch else counted, total)
        if position < warm_up:
            return peak * (begin + (1 - begin) * position / warm_up)
        if schedule.name == "steps":
            reached = position + (-ROUNDING if schedule.decay_late else ROUNDING)
            num_decays = sum(epoch * epoch_length <= reached for epoch in schedule.decay_epochs)
            return peak * schedule.decay_factor**num_decays
        start = warm_up if schedule.warm_up_offset else 0
        # A schedule that is only warm-up ends at the peak.
        progress = (position - start) / (total - start) if total > start else 0.0
        left = 1.0  # fraction of the way from the end rate to the peak
        if schedule.name == "polynomial":
            left = (1 - progress) ** schedule.power
        elif schedule.name == "cosine":
            left = (1 + math.cos(math.pi * progress)) / 2
        return peak * left + schedule.end_rate * (1 - left)

    return rate


def count_warm_up(schedule: ScheduleConfig, steps_per_epoch: float, unfilled_steps: float | None = None) -> int:
    if schedule.warm_up_by == "images" and unfilled_steps is not None:
        steps_per_epoch = unfilled_steps
    return math.floor(steps_per_epoch * schedule.warm_up_epochs + ROUNDING)


def peak_rate(optimizer: OptimizerConfig, *, global_batch: int, ranks: int) -> float:
    """Return the schedule's highest learning rate for this number of images per step and ranks."""
    if optimizer.rate_for == "run":
        return optimizer.learning_rate
    growth = ranks if optimizer.rate_for == "rank" else global_batch / optimizer.rate_for
    if optimizer.rate_for != "rank" and optimizer.rate_scaling == "sqrt":
        growth = math.sqrt(growth)
    rate, unit = optimizer.learning_rate * growth, optimizer.rate_unit
    # MLPerf's SSD allows multiples of a unit only, at least one.
    return rate if unit is None else unit * max(1, round(rate / unit))


def describe_rate_change(
    optimizer: OptimizerConfig, *, intended: tuple[int, int], now: tuple[int, int], where: str
) -> str | None:
    """Describe how the peak learning rate changes if `now` differs from what `where` intended; else None.

    Both pairs are images per step and ranks (times accumulated batches).
    """
    if intended == now:
        return None
    images = f"a step has {format_count(now[0], 'image')}; {where} has {intended[0]:,}"
    before, after = (peak_rate(optimizer, global_batch=batch, ranks=ranks) for batch, ranks in (intended, now))
    if optimizer.rate_for == "run":
        return f"{images}: the peak learning rate stays {before:g} (optimizer.rate_for = run)"
    rule = "in proportion to the ranks" if optimizer.rate_for == "rank" else GROWTHS[optimizer.rate_scaling]
    rule += "" if optimizer.rate_unit is None else f" and a multiple of {optimizer.rate_unit:g}"
    return f"{images}: the peak learning rate is {after:.4g} instead of {before:.4g}, {rule}"


def check_rate(optimizer: OptimizerConfig, *, peak: float, global_batch: int) -> str | None:
    """Return a message if the peak is far from the usual learning rate for this number of images per step."""
    if optimizer.name == "lars":
        usual, high = LARS_RATE * math.sqrt(global_batch / LARS_BATCH), LARS_HIGH
        source = f"MLPerf's ResNet-50 uses {LARS_RATE} for {LARS_BATCH}"
    else:
        usual, high = SGD_RATE * global_batch / SGD_BATCH, SGD_HIGH
        source = f"ResNets use {SGD_RATE} for {SGD_BATCH}"
    share = peak / usual
    if LOW * (1 - ROUNDING) <= share <= high * (1 + ROUNDING):
        return None
    name = optimizer.name.upper()
    return f"the peak learning rate {peak:g} is {share:.2g} times the {usual:.2g} usual for {name} ({source} images)"
