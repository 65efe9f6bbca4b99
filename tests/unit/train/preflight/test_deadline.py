"""Waiting has an end, whatever hangs."""

import threading

import pytest

from trainstone.train.preflight.deadline import Deadline, call_within, rest_after
from trainstone.train.preflight.room import ANSWER_SECONDS, LINGER_SECONDS


def fail() -> None:
    raise KeyError("x")


def test_what_is_called_answers_fails_or_is_left():
    assert call_within(60, lambda: 7) == 7
    with pytest.raises(KeyError):
        call_within(60, fail)
    held = threading.Event()
    with pytest.raises(TimeoutError):
        call_within(0.01, held.wait)
    held.set()


def test_what_is_over_has_nothing_left():
    assert Deadline.after(-1).left == 0
    assert 50 < Deadline.after(60).left <= 60


def test_by_default_all_is_told_within_a_minute():
    assert 45 + rest_after(45) + LINGER_SECONDS + ANSWER_SECONDS < 60
    assert rest_after(600) == 150
