import itertools

import pytest

from trainstone.config.load import hash_config, load_config
from trainstone.errors import ConfigError
from trainstone.measure.profiler_range import ProfilerRange
from trainstone.train.fit import fit_to_machine

TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "train.batch_size=2", "device=cpu"]


def run_steps(steps: tuple[int, int] | None, total: int) -> list[int | str]:
    """What happens in order: steps as the host gives them to the device, and the switch."""
    seen: list[int | str] = []
    with ProfilerRange(steps, lambda: seen.append("start"), lambda: seen.append("stop")) as profiled:
        for step in range(total):
            if step > 0:
                assert profiled.pass_to_next_step()
            seen.append(step)
    return seen


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((2, 1), [0, 1, "start", 2, "stop", 3]),
        ((1, 2), [0, "start", 1, 2, "stop", 3]),
        ((0, 1), ["start", 0, "stop", 1, 2, 3]),
        ((3, 1), [0, 1, 2, "start", 3, "stop"]),
        ((0, 9), ["start", 0, 1, 2, 3, "stop"]),
        ((7, 1), [0, 1, 2, 3]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_only_the_steps_of_the_range_are_between_start_and_stop(
    steps: tuple[int, int] | None, expected: list[int | str]
):
    assert run_steps(steps, 4) == expected


def test_it_is_stopped_once_when_the_loop_ends_within():
    calls: list[str] = []
    with (
        pytest.raises(ZeroDivisionError),
        ProfilerRange((0, 5), lambda: calls.append("start"), lambda: calls.append("stop")),
    ):
        _ = 1 / 0
    assert calls == ["start", "stop"]


def test_a_device_in_error_does_not_hide_the_first_error():
    def fail() -> None:
        raise RuntimeError("CUDA error")

    with pytest.raises(ZeroDivisionError), ProfilerRange((0, 5), lambda: None, fail):
        _ = 1 / 0
    with pytest.raises(RuntimeError, match="CUDA error"), ProfilerRange((0, 5), lambda: None, fail):
        pass


def test_the_key_takes_two_integers_and_is_no_part_of_what_is_executed():
    plain = load_config("resnet50")
    ranged = load_config("resnet50", settings=["measure.profiler_range=[3, 2]"])
    assert plain.measure.profiler_range is None
    assert ranged.measure.profiler_range == (3, 2)
    assert hash_config(plain) == hash_config(ranged)


@pytest.mark.parametrize("value", ["[3, 0]", "[-1, 2]", "[1.5, 2]", "3", "[3]", "[1, 2, 3]", "true"])
def test_other_values_are_refused(value: str):
    with pytest.raises(ConfigError, match=r"measure\.profiler_range"):
        load_config("resnet50", settings=[f"measure.profiler_range={value}"])


def test_a_range_beyond_the_last_step_is_refused():
    settings = ["measure.profiler_range=[3, 2]", "measure.iterations=5"]
    assert load_config("resnet50", settings=settings).measure.iterations == 5
    with pytest.raises(ConfigError, match=r"measure.profiler_range needs 5 steps, but measure.iterations is 4"):
        load_config("resnet50", settings=[settings[0], "measure.iterations=4"])


def test_a_device_without_cuda_switches_it_off_or_refuses():
    config = load_config("resnet50", settings=[*TINY, "measure.profiler_range=[1, 1]"])
    fitted = fit_to_machine(config, strict=False)
    assert [(found.code, found.message) for found in fitted.findings] == [
        ("engine-adapted", "measure.profiler_range needs CUDA; this run is on cpu: switched off")
    ]
    assert fitted.config.measure.profiler_range is None
    with pytest.raises(ConfigError, match=r"--strict: measure\.profiler_range"):
        fit_to_machine(config, strict=True)


def test_the_loop_asks_before_every_step_but_the_first():
    """What ProfilerRange relies on: train_steps counts with it."""
    from trainstone.measure.clock import HostTimer
    from trainstone.train.loop import train_steps
    from trainstone.train.task import build_task

    fitted = fit_to_machine(load_config("resnet50", settings=TINY), strict=False)
    seen: list[str] = []
    task = build_task(fitted.config, fitted.device)
    with ProfilerRange((1, 2), lambda: seen.append("start"), lambda: seen.append("stop")) as profiled:
        steps = train_steps(task, HostTimer(), num_steps=4, go_on=profiled.pass_to_next_step)
        for record in itertools.islice(steps, 4):
            seen.append(str(record.step))
    assert seen == ["0", "start", "1", "2", "stop", "3"]
