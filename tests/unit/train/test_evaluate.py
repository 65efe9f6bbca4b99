from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import Tensor

from small_training import make_config
from trainstone.config.schema import Config
from trainstone.machine.ranks import ALONE
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import choose_timer
from trainstone.train.distributed import World
from trainstone.train.evaluate import judge, judge_network
from trainstone.train.loop import train_steps
from trainstone.train.network import build_network
from trainstone.train.start import open_both
from trainstone.train.task import Task, build_task, provide_data
from trainstone.workloads.classify import CLASSIFY
from trainstone.workloads.workload import Scored

CPU = torch.device("cpu")
WORLD = World(ALONE, CPU)


def finish(going: Generator[Any, None, Tensor | None], config: Config) -> Scored:
    while True:
        try:
            next(going)
        except StopIteration as end:
            rows: Tensor = end.value
            return CLASSIFY.finish_eval(config, open_both(config).validation, rows)


def provide(**changes: Any) -> Config:
    config = make_config(**changes)
    for _ in provide_data(config):
        pass
    return config


def trained(config: Config, steps: int) -> Task:
    task = build_task(config, CPU, open_both(config).training)
    for _ in train_steps(task, choose_timer(CPU), num_steps=steps):
        pass
    return task


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_it_leaves_the_network_as_it_was(ema: float):
    config = provide(train__ema=ema)
    task = trained(config, 3)
    try:
        before = {name: tensor.clone() for name, tensor in task.plain.state_dict().items()}
        judged = finish(judge(task, config, open_both(config).validation, WORLD, StopSignals()), config)
        assert judged.images == 43
        assert all(tensor.equal(before[name]) for name, tensor in task.plain.state_dict().items())
        assert all(module.training for module in task.plain.modules())
        assert all(not parameter.is_inference() for parameter in task.plain.parameters())
    finally:
        task.close()


def test_the_average_is_judged_where_there_is_one():
    config = provide(train__ema=0.9)
    task = trained(config, 3)
    validation = open_both(config).validation
    try:
        assert task.average is not None
        averaged = finish(judge(task, config, validation, WORLD, StopSignals()), config)
        plain = finish(judge_network(task.plain, config, CPU, validation, WORLD, StopSignals()), config)
        task.plain.load_state_dict(task.average.state())
        again = finish(judge_network(task.plain, config, CPU, validation, WORLD, StopSignals()), config)
    finally:
        task.close()
    assert averaged == again
    assert averaged.metrics["loss"] != plain.metrics["loss"]


def test_the_size_of_a_batch_changes_no_count():
    config = provide()
    model, validation = build_network(config, CPU), open_both(config).validation
    found = []
    for size in (1, 7, 43, 64):
        sized = config.model_copy(update={"eval": config.eval.model_copy(update={"batch_size": size})})
        found.append(finish(judge_network(model, sized, CPU, validation, WORLD, StopSignals()), config))
    assert {one.images for one in found} == {43}
    assert len({(one.metrics["top1"], one.metrics["top5"]) for one in found}) == 1
    losses = [one.metrics["loss"] for one in found]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)


def test_a_network_that_gives_no_numbers_is_never_right():
    config = provide()
    model = build_network(config, CPU)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    judged = finish(judge_network(model, config, CPU, open_both(config).validation, WORLD, StopSignals()), config)
    assert (judged.metrics["top1"], judged.metrics["top5"], judged.images) == (0.0, 0.0, 43)


def test_of_three_classes_the_right_one_is_always_among_the_first_five():
    config = provide(model__num_classes=3)
    model = build_network(config, CPU)
    judged = finish(judge_network(model, config, CPU, open_both(config).validation, WORLD, StopSignals()), config)
    assert judged.metrics["top5"] == 1.0
    assert 0 <= judged.metrics["top1"] < 1


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_who_asks_for_the_end_is_heard_before_the_next_batch(ema: float):
    config = provide(train__ema=ema, eval__batch_size=1)
    task, signals, seen = trained(config, 1), StopSignals(), []
    try:
        before = {name: tensor.clone() for name, tensor in task.plain.state_dict().items()}
        going = judge(task, config, open_both(config).validation, WORLD, signals)
        for progress in going:
            seen.append(progress.images)
            signals.received = "SIGTERM" if len(seen) == 3 else None
        assert seen == [1, 2, 3]
        assert all(tensor.equal(before[name]) for name, tensor in task.plain.state_dict().items())
        assert task.plain.training
    finally:
        task.close()


def test_who_asks_after_the_last_batch_is_too_late():
    config = provide(eval__batch_size=43)
    model, signals = build_network(config, CPU), StopSignals()
    going = judge_network(model, config, CPU, open_both(config).validation, WORLD, signals)
    next(going)
    signals.received = "SIGTERM"
    assert finish(going, config).images == 43
