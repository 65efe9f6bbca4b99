"""`doctor --aa`: compare a model with itself to find the smallest speed difference that this machine can detect."""

import math
from collections.abc import Generator
from dataclasses import asdict
from functools import partial
from typing import Any

from trainstone.engine.fit import fit_to_machine
from trainstone.engine.loop import train_steps
from trainstone.engine.network import apply_process_settings
from trainstone.engine.task import build_task
from trainstone.engine.training_data import resolve_num_classes
from trainstone.errors import RunError
from trainstone.flows.compare.interleave import Arm, Interleaving
from trainstone.flows.lifecycle import Lifecycle
from trainstone.measure.clock import choose_timer
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Status
from trainstone.stats import throughput

MIN_PAIRS = 6


def run_aa_test(life: Lifecycle, outcome: dict[str, Any]) -> Generator[Progress, None, Status]:
    """Train two equal models in alternating blocks for the recipe's seconds; fills `outcome`, which --json prints."""
    config = life.config
    yield Progress("fitting the recipe to this machine")
    fitted = yield from fit_to_machine(resolve_num_classes(config, None), strict=False)
    timer = choose_timer(fitted.device)
    arms = {}
    for name in "AB":
        steps = train_steps(build_task(fitted.config, fitted.device), timer, num_steps=config.measure.iterations)
        enter = partial(apply_process_settings, fitted.config)
        arms[name] = Arm(name, fitted.config, steps, timer, enter)
    both = Interleaving(arms, fitted.measure_rest(), lambda: life.signals.received)
    yield from both.run()
    block_seconds: dict[str, list[float]] = {"A": [], "B": []}
    for block, seconds in zip(both.blocks, both.sum_blocks(both.blocks)[1], strict=True):
        block_seconds[block.arm].append(seconds)
    pairs = list(zip(block_seconds["A"], block_seconds["B"], strict=False))
    if len(pairs) < MIN_PAIRS:
        if life.signals.received:
            raise KeyboardInterrupt(life.signals.received)
        raise RunError(
            f"too few pairs of blocks: {len(pairs)}; a noise floor needs at least {MIN_PAIRS}",
            hint="trainstone doctor --aa --seconds 120",
        )
    outcome |= asdict(throughput.estimate_noise_floor([math.log(b / a) for a, b in pairs]))
    outcome |= {"steps_per_block": both.steps_per_block["A"], "block_seconds": block_seconds}
    return "interrupted" if life.signals.received else "ok"
