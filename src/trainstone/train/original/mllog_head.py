"""What mlperf.log says before the first step, in the sequence of the original: who, what, with which values."""

import sys
from dataclasses import dataclass
from typing import Any, Literal

from trainstone.config.schema import Config
from trainstone.formats.mllog import Event, kind_of
from trainstone.machine.pagecache import CacheCleared
from trainstone.workloads.workload import Mllog, RunSizes

Division = Literal["closed", "open"]


@dataclass(frozen=True)
class Submission:
    """What is known of a run before it starts."""

    config: Config
    """Fitted: no auto is left in it."""
    mllog: Mllog
    sizes: RunSizes
    division: Division
    device_name: str
    tensors: list[str]
    cleared: CacheCleared
    init_ms: int
    """When the program started."""


def judge_division(config: Config, mllog: Mllog, sizes: RunSizes) -> tuple[Division, list[str]]:
    """Return the division, and what speaks against the closed one."""
    departures = mllog.find_departures(config, sizes)
    asked = config.mlperf.division
    if asked != "auto":
        return asked, departures
    return "open" if departures else "closed", departures


def list_head(told: Submission, now_ms: int) -> list[Event]:
    """Return the lines up to the start of the run and its numbers of pictures."""
    config, sizes = told.config, told.sizes
    bn_span = (config.train.batch_size, config.parallel.bn_ranks)
    assert isinstance(bn_span[0], int)  # train/fit.py resolved it
    cleared, cleared_at = told.cleared, told.cleared.at_seconds
    cleared_ms = now_ms if cleared_at is None else int(cleared_at * 1000)
    values = told.mllog.list_values(config, sizes)
    return [
        *list_submission(told, now_ms),
        make_event("cache_clear", cleared.done, cleared_ms, told=cleared.told),
        make_event("init_start", None, told.init_ms),
        make_event("seed", config.seed, now_ms),
        make_event("model_bn_span", bn_span[0] * bn_span[1], now_ms),
        *(make_event("weights_initialization", None, now_ms, tensor=name) for name in told.tensors),
        make_event("init_stop", None, now_ms),
        *(make_event(key, value, now_ms) for key, value in values.items()),
        make_event("run_start", None, now_ms),
        make_event("train_samples", sizes.train_pictures, now_ms),
        make_event("eval_samples", sizes.val_pictures, now_ms),
    ]


def list_submission(told: Submission, now_ms: int) -> list[Event]:
    """Who runs what on what."""
    mlperf = told.config.mlperf
    platform = mlperf.platform or f"{told.sizes.ranks}x{told.device_name}"
    return [
        make_event("submission_benchmark", told.mllog.benchmark, now_ms),
        make_event("submission_org", mlperf.org, now_ms),
        make_event("submission_division", told.division, now_ms),
        make_event("submission_status", mlperf.status, now_ms),
        make_event("submission_platform", platform, now_ms),
    ]


def make_event(key: str, value: Any, time_ms: int, *, up: int = 1, **metadata: Any) -> Event:
    """Make an event that says where it comes from, as MLPerf's logger does: the caller, or one `up` calls above."""
    frame = sys._getframe(up)
    file = f"{frame.f_globals['__name__'].replace('.', '/')}.py"
    return Event(key, value, kind_of(key), time_ms, {"file": file, "lineno": frame.f_lineno, **metadata})
