import json
from typing import Any

import pytest
import torch
from torch import Tensor

from small_training import make_config
from trainstone.errors import ResultError
from trainstone.measure.clock import choose_timer
from trainstone.train.loop import train_steps
from trainstone.train.snapshot import is_finite, restore, take_tensors, take_values
from trainstone.train.task import Task, build_task

CPU = torch.device("cpu")
LARS = {
    "optimizer.name": "lars",
    "optimizer.learning_rate": 1.0,
    "optimizer.momentum_correction": True,
    "schedule.warm_up_epochs": 0.0001,
}
KINDS: list[dict[str, Any]] = [{}, LARS, {"optimizer.momentum_correction": False}, {"optimizer.momentum": 0.0}]


def make_task(first_step: int = 0, **changes: Any) -> Task:
    settings = {"data.source": "synthetic", "data.num_synthetic_batches": 1, "schedule.name": "polynomial"}
    config = make_config(**{**settings, "stop.steps": 40, "stop.epochs": 0.0002, **changes})
    return build_task(config, CPU, first_step=first_step)


def run(task: Task, first_step: int, num_steps: int) -> list[float]:
    return [one.loss for one in train_steps(task, choose_timer(CPU), first_step=first_step, num_steps=num_steps)]


def take(task: Task) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """As a checkpoint keeps it."""
    return {name: t.clone() for name, t in take_tensors(task).items()}, json.loads(json.dumps(take_values(task)))


@pytest.mark.parametrize("changes", KINDS)
def test_a_restored_task_goes_on_bit_for_bit(changes: dict[str, Any]):
    whole = make_task(**changes)
    rates = {whole.rate(step) for step in range(8)}
    assert len(rates) == 8  # past momentum is corrected at each step
    run(whole, 0, 4)
    tensors, values = take(whole)
    losses = run(whole, 4, 4)
    resumed = make_task(4, **changes)
    restore(resumed, tensors, values, "there")
    assert run(resumed, 4, 4) == losses
    expected, found = take(whole), take(resumed)
    assert expected[1] == found[1]
    assert [name for name, tensor in expected[0].items() if not tensor.equal(found[0][name])] == []


def test_the_rate_of_the_last_step_is_remembered_for_the_momentum():
    task = make_task(**LARS)
    run(task, 0, 3)
    assert {group["previous_lr"] for group in take_values(task)["optimizer_groups"]} == {task.rate(2)}


def test_an_adapted_loss_scale_is_remembered():
    task = make_task(**{"train.precision": "fp16", "train.ema": 0.0})
    run(task, 0, 1)
    state = task.scale.state() | {"scale": 512.0, "_growth_tracker": 5}
    other = make_task(**{"train.precision": "fp16", "train.ema": 0.0})
    tensors, values = take(task)
    restore(other, tensors, values | {"loss_scale": json.loads(json.dumps(state))}, "there")
    assert other.scale.value == 512.0
    assert other.scale.state() == state


@pytest.mark.parametrize("changes", [{"model.width": 24}, {"model.num_classes": 7}, {"model.depth": 34}])
def test_another_network_is_refused_with_the_first_tensor(changes: dict[str, Any]):
    tensors, values = take(make_task())
    with pytest.raises(ResultError, match=r"^there is of another network or optimiser: \d+ tensors missing, .*first: "):
        restore(make_task(**changes), tensors, values, "there")


def test_random_numbers_go_on():
    task = make_task()
    tensors, values = take(task)
    drawn = torch.rand(3)
    restore(make_task(), tensors, values, "there")
    assert torch.rand(3).equal(drawn)


def test_one_weight_or_statistic_that_is_no_number_is_seen():
    model = make_task().plain
    assert is_finite(model)
    for tensor in (list(model.parameters())[-1], next(b for b in model.buffers() if b.is_floating_point())):
        kept = tensor.detach().clone()
        with torch.no_grad():
            tensor.flatten()[0] = float("inf")
            assert not is_finite(model)
            tensor.copy_(kept)
        assert is_finite(model)
