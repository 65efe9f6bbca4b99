"""What `trainstone train --resume` says of a run that is over."""

import pytest

from made_learning import make_evaluations, make_quality, make_training
from trainstone.cli.train import tell_end
from trainstone.config.learning import StopConfig

HISTORY = make_evaluations((0.2, 0.4))  # 2 epochs, 100 steps, 36.4 s


UNJUDGED = {"history": [], "value": None, "target": None, "seconds_to_target": None, "epochs": 12.5, "steps": 500}


@pytest.mark.parametrize(
    ("stop", "status", "told"),
    [
        ({"epochs": 55.0, "steps": 500}, None, "stop.steps = 500; --set stop.steps=0 takes the limit away"),
        ({"epochs": 55.0, "seconds": 9.0}, None, "stop.seconds = 9; --set stop.seconds=0 takes the limit away"),
        ({"epochs": 12.5, "seconds": 9.0}, None, "stop.epochs = 12.5; --set stop.epochs=N gives it more"),
        ({"epochs": 2.0}, "target_missed", "stop.epochs = 2; --set stop.epochs=N gives it more"),
        ({"epochs": 2.0, "seconds": 30.0}, "target_missed", "stop.epochs = 2; --set stop.epochs=N gives it more"),
        ({"steps": 100}, "target_missed", "stop.steps = 100; --set stop.steps=0 takes the limit away"),
        ({"steps": 200, "seconds": 30.0}, "ok", "stop.seconds = 30; --set stop.seconds=0 takes the limit away"),
        ({"steps": 100}, "target_reached", "the target is reached; --set eval.target=X asks for more"),
    ],
)
def test_the_rule_that_ended_it_is_named(stop: dict[str, float], status: str | None, told: str):
    quality = make_quality(history=HISTORY) if status else make_quality(**UNJUDGED)
    result = make_training(quality=quality, status=status or "ok")
    assert tell_end(result, StopConfig(**stop)) == told
