"""What mlperf.log is opened with: the division that was asked for against its rules, and the program's start."""

import os
import time

import psutil
import pytest

from made_mlperf import IMAGENET, load_mlperf
from trainstone.machine.ranks import Rank
from trainstone.train.original import mllog_open
from trainstone.train.original.mllog_open import check_division, find_program_start

EIGHT = Rank(0, 8)


def test_a_forced_division_that_breaks_the_rules_is_a_finding():
    config = load_mlperf(mlperf__division="closed", eval__target=0.5, train__label_smoothing=0.2)
    (found,) = check_division(config, IMAGENET, EIGHT)
    assert (found.code, found.severity) == ("not-closed", "warning")
    assert found.message == (
        "mlperf.division is closed, but its rules are not kept: train.label_smoothing = 0.2, not 0.1; "
        "the target is 0.5: at least 0.759 is asked for"
    )


@pytest.mark.parametrize("changes", [{"mlperf__division": "closed"}, {"eval__target": 0.5}, {}])
def test_else_there_is_none(changes: dict[str, object]):
    assert check_division(load_mlperf(**changes), IMAGENET, EIGHT) == []
    if "eval__target" in changes:
        assert check_division(load_mlperf(**changes, mlperf__division="open"), IMAGENET, EIGHT) == []


def test_the_program_started_when_its_process_did(monkeypatch: pytest.MonkeyPatch):
    assert find_program_start() == psutil.Process(os.getpid()).create_time() < time.time()

    def refuse() -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(mllog_open.psutil, "Process", refuse)
    assert find_program_start() == pytest.approx(time.time(), abs=60)
