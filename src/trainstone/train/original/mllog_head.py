"""What mlperf.log says before the first step: who, what, with which values.

The sequence is the original's but for init_start, which comes first: it is of the program's start, and so times rise.
"""

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
    built_ms: int
    """When the network was on its device."""


def judge_division(config: Config, mllog: Mllog, sizes: RunSizes) -> tuple[Division, list[str]]:
    """Return the division, and what speaks against the closed one."""
    departures = mllog.find_departures(config, sizes)
    asked = config.mlperf.division
    if asked != "auto":
        return asked, departures
    return "open" if departures else "closed", departures


def list_head(told: Submission, now_ms: int) -> list[Event]:
    """Return the lines up to the start of the run, which is now, and its numbers of pictures."""
    config, sizes = told.config, told.sizes
    bn_span = (config.train.batch_size, config.parallel.bn_ranks)
    assert isinstance(bn_span[0], int)  # train/fit.py resolved it
    cleared, built_ms = told.cleared, told.built_ms
    # Caches are cleared before the network is built; another host's clock may differ.
    cleared_ms = built_ms if cleared.at_seconds is None else min(int(cleared.at_seconds * 1000), built_ms)
    values = told.mllog.list_values(config, sizes)
    return [
        make_event("init_start", None, told.init_ms),
        *list_submission(told, cleared_ms),
        make_event("cache_clear", cleared.done, cleared_ms, told=cleared.told),
        make_event("seed", config.seed, built_ms),
        make_event("model_bn_span", bn_span[0] * bn_span[1], built_ms),
        *(make_event("weights_initialization", None, built_ms, tensor=name) for name in told.tensors),
        make_event("init_stop", None, now_ms),
        *(make_event(key, value, now_ms) for key, value in values.items()),
        make_event("run_start", None, now_ms),
        make_event("train_samples", sizes.train_pictures, now_ms),
        make_event("eval_samples", sizes.val_pictures, now_ms),
    ]


def list_submission(told: Submission, time_ms: int) -> list[Event]:
    """Who runs what on what."""
    mlperf = told.config.mlperf
    platform = mlperf.platform or f"{told.sizes.ranks}x{told.device_name}"
    return [
        make_event("submission_benchmark", told.mllog.benchmark, time_ms),
        make_event("submission_org", mlperf.org, time_ms),
        make_event("submission_division", told.division, time_ms),
        make_event("submission_status", mlperf.status, time_ms),
        make_event("submission_platform", platform, time_ms),
    ]


def make_event(key: str, value: Any, time_ms: int, *, up: int = 1, **metadata: Any) -> Event:
    """Make an event that says where it comes from, as MLPerf's logger does: the caller, or one `up` calls above."""
    frame = sys._getframe(up)
    file = f"{frame.f_globals['__name__'].replace('.', '/')}.py"
    return Event(key, value, kind_of(key), time_ms, {"file": file, "lineno": frame.f_lineno, **metadata})
