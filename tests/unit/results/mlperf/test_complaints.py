"""The checker's complaints in words: its own sentences, as they stand in its rules, each explained."""

from pathlib import Path
from typing import Any

import pytest

from hostile import EVIL, hidden
from trainstone.results.mlperf.complaints import SEPARATOR, explain, read_complaints, tell
from trainstone.results.mlperf.logged import LoggedRun

CONTEXT = "\ncurrent context[s]={}\ncurrent line[v]={}"


def make_run(**changes: Any) -> LoggedRun:
    absent = dict.fromkeys(("org", "platform", "status", "global_batch", "train_samples", "optimizer", "epochs"))
    given = {"path": Path("log"), "form": "0.7", "benchmark": "resnet", "division": "closed", "seeds": ()}
    rest = {"ended": None, "start_ms": 0, "stop_ms": None, "accuracies": (0.5, 0.61, 0.6)}
    return LoggedRun(**(absent | given | rest | changes))


def value_line(key: str, value: str) -> str:
    return f':::MLLOG {{"time_ms": 1, "event_type": "x", "key": "{key}", "value": {value}, "metadata": {{}}}}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Failed checks for eval_accuracy : v['value'] >= 0.7590 and v['value'] < 1.0",
            "eval_accuracy 0.61 never reached 0.759: the closed division demands it "
            "(train for longer; mlperf.division=open does not)",
        ),
        (
            "Required EXACTLY_ONE occurrence of 'run_stop' but found 0",
            "run_stop is missing (the run did not end: it was killed, or it still runs; "
            "trainstone train --resume RUN goes on with it)",
        ),
        (
            "Required AT_LEAST_ONE occurrence of 'cache_clear' but found 0",
            "cache_clear is missing (the log must say that the system's file cache was cleared: "
            "mlperf.clear_caches=true)",
        ),
        (
            "Required EXACTLY_ONE occurrence of 'seed_' but found 2 with different values: [1, 2]",
            "seed_ stands there 2 times instead of once, with different values (one log is one run of one rank)",
        ),
        (
            f"CHECK for 'lars_opt_end_learning_rate' failed in line 9:\n{value_line('x', '0.0002')}"
            f"\nfailed test:  v['value'] == 0.0001 {CONTEXT}",
            "lars_opt_end_learning_rate is 0.0002; the rules ask for lars_opt_end_learning_rate == 0.0001 "
            "(set it so, or mlperf.division=open, which leaves the optimiser free)",
        ),
        (
            f"CHECK for 'sgd_opt_weight_decay' failed in line 9:\n{value_line('x', '3e-05')}"
            f"\nfailed test:  is_integer(math.log2(v['value'] / 0.0001)) {CONTEXT}",
            "sgd_opt_weight_decay is 3e-05: it must be 0.0001 times a power of two: 0.00005, 0.0001, 0.0002 "
            "(set it so, or mlperf.division=open, which leaves the optimiser free)",
        ),
        (
            f"CHECK for 'init_start' failed in line 2:\n{value_line('x', 'null')}"
            f"\nfailed test: not s['run_started']{CONTEXT}",
            "init_start: it stands after run_start",
        ),
        (
            "Required AT_LEAST_ONE occurrence of 'epoch_stop' or 'block_stop'",
            "the log says neither of 'epoch_stop', 'block_stop' "
            "(trainstone train writes it; was this log cut, or written by another program?)",
        ),
        (
            "Could not find config file: /x/training_4.0.0/closed_vgg.yaml",
            "ruleset 4.0.0 has no closed_vgg (another --ruleset)",
        ),
        ("^^  Expecting value: line 1", "a line cannot be parsed: Expecting value: line 1 (" + "{}"),
        ("Something new\nof two lines", "Something new"),
    ],
)  # fmt: skip
def test_each_is_explained(text, told):
    ours = "trainstone train writes it; was this log cut, or written by another program?)"
    assert tell(explain(text, make_run(), "4.0.0")) == told.replace("{}", ours)


def test_an_open_log_below_the_target_is_told_which_rulesets_mind():
    text = "Failed checks for eval_accuracy : v['value'] >= 0.7590 and v['value'] < 1.0"
    told = tell(explain(text, make_run(division="open", accuracies=()), "0.7.0"))
    assert told == (
        "eval_accuracy (none) never reached 0.759: ruleset 0.7.0 demands it of open logs, too "
        "(rulesets from 1.0.0 on do not)"
    )


def test_the_same_value_twice_is_only_a_warning():
    found = explain("Required EXACTLY_ONE occurrence of 'submission_org' but found 2", make_run(), "4.0.0")
    assert not found.fatal
    assert "always the same" in found.meaning


def test_a_whole_log_of_the_checker_is_taken_apart():
    messages = [
        "Required EXACTLY_ONE occurrence of 'a' but found 0",
        "Required EXACTLY_ONE occurrence of 'b' but found 0",
    ]
    output = (
        "INFO - Running compliance on file: x\nWARNING -  Found parsing errors:\nWARNING -   :::MLLOG {\n"
        "WARNING -    ^^  Expecting property name\nINFO -  Compliance checks: training_4.0.0/common.yaml\n"
        f"WARNING -  {SEPARATOR.join(messages)}\nERROR - FAILED\n"
    )  # fmt: skip
    found = read_complaints(output, make_run(), "4.0.0")
    assert [complaint.key for complaint in found] == ["", "a", "b"]
    assert found[0].meaning == "a line cannot be parsed: Expecting property name"
    assert read_complaints("INFO - SUCCESS\n", make_run(), "4.0.0") == []
    assert read_complaints("", make_run(), "4.0.0") == []


def test_what_a_log_brings_in_is_harmless():
    text = f"Required EXACTLY_ONE occurrence of 'submission_org' but found 2 with different values: [{EVIL}]"
    found = explain(text, make_run(), "4.0.0")
    assert not hidden(tell(found))
    assert "\n" not in tell(explain(f"CHECK for '{EVIL}' failed", make_run(), "4.0.0"))
