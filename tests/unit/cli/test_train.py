"""What `trainstone train --resume` says of a run that is over."""

import pytest

from made_learning import make_evaluations, make_quality, make_training
from trainstone.cli.train import tell_end
from trainstone.config.learning import StopConfig

HISTORY = make_evaluations((0.2, 0.4))  # 2 epochs, 100 steps, 36.4 s


@pytest.mark.parametrize(
    ("stop", "status", "told"),
    [
        ({"epochs": 2.0}, "target_missed", "stop.epochs = 2; --set stop.epochs=N gives it more"),
        ({"epochs": 2.0, "seconds": 30.0}, "target_missed", "stop.epochs = 2; --set stop.epochs=N gives it more"),
        ({"steps": 100}, "target_missed", "stop.steps = 100; --set stop.steps=0 takes the limit away"),
        ({"steps": 200, "seconds": 30.0}, "ok", "stop.seconds = 30; --set stop.seconds=0 takes the limit away"),
        ({"steps": 100}, "target_reached", "the target is reached; --set eval.target=X asks for more"),
    ],
)
def test_the_rule_that_ended_it_is_named(stop: dict[str, float], status: str, told: str):
    result = make_training(quality=make_quality(history=HISTORY), status=status)
    assert tell_end(result, StopConfig(**stop)) == told
