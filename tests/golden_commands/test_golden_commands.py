"""Every verb, run small, shows and writes what the golden files record. README.md says how to record again.

The normaliser hides what varies, and nothing else.
"""

import difflib
import os
from pathlib import Path

import pytest

from golden_commands.harness import CASES, Case, Harness, same
from golden_commands.normalise import count_names, list_keys, list_phases, normalise, normalise_output
from support.processes.forked import Nursery

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def harness(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(nursery, tmp_path_factory.mktemp("golden-commands"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_command_shows_and_writes_what_is_recorded(case: Case, harness: Harness):
    path = HERE / f"{case.name}.txt"
    now = harness.describe(case)
    if os.environ.get("GOLDEN_RECORD"):
        if not path.exists() or not same(path.read_text(), now, case.losses):
            path.write_text(now)
        return
    recorded = path.read_text()
    if not same(recorded, now, case.losses):
        lines = difflib.unified_diff(recorded.splitlines(), now.splitlines(), path.name, "now", lineterm="", n=1)
        pytest.fail("\n".join(lines), pytrace=False)


def test_every_golden_file_belongs_to_a_command():
    assert {path.stem for path in HERE.glob("*.txt")} == set(CASES)


LOSSES = "## losses\nsteps-rank0000.csv losses: 7.14634 6.93478\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("result  runs/20261118-002601-resnet50-9adf/x", "result  runs/<run of resnet50>/x"),
        ("step  median 21.4 ms, p5 1.2 s", "step  median <number>, p5 <number>"),
        ("· AMD EPYC, 1 thread · fp32 · batch 2", "· <device>, 1 thread · fp32 · batch 2"),
        ("throughput  89 images/s ± 1.3 % (95 %, within this run)", "throughput  <number> images/s <interval>"),
        ("throughput  9 images/s (interval not established: 7)", "throughput  <number> images/s <interval>"),
        ("limited by memory bandwidth; noise grade C", "limited by <limit>; noise grade <grade>"),
        ("16.2 MFLOP per image; peak 1 TFLOP/s not measured", "16.2 MFLOP per image; peak 1 TFLOP/s not measured"),
        ("error: unknown key 'model.deth' at step 4", "error: unknown key 'model.deth' at step 4"),
        ("warning: busy [noisy-machine]\n    stop other work\nend", "end"),
        ("warning: too high [learning-rate]\n    lower it", "warning: too high [learning-rate]\n    lower it"),
    ],
)
def test_normalise_output_replaces_only_what_varies(text: str, expected: str):
    assert normalise_output(text, Path("/nowhere")) == expected


def test_normalise_replaces_folder_and_times_of_originals():
    assert normalise("in /a/b/set", folder=Path("/a/b")) == "in <folder>/set"
    line = ':::MLLOG {"time_ms": 17, "key": "seed", "value": 3, "metadata": {"file": "a.py", "lineno": 5}}'
    assert normalise(line, "original") == (
        ':::MLLOG {"time_ms": <time>, "key": "seed", "value": 3, "metadata": {"file": <file>, "lineno": <line>}}'
    )
    assert normalise("Init Learning Rate: 0.256", "original") == "Init Learning Rate: 0.256"


def test_lists_merge_repetitions_and_skip_what_only_some_machines_have():
    assert list_phases("a · 1\na · 2\nb\na · 3\nerror: x · y") == "a\nb\na\nerror: x · y"
    assert count_names(["b", "a", "b"]) == ["a", "b × 2"]
    document = {"b": [{"x": 1}, {"y": {"z": 2}}], "a": 1, "noise": {"grade": "A"}, "findings": []}
    assert list_keys(document) == ["(top): a, b, noise", "b[]: x, y", "b[].y: z"]


@pytest.mark.parametrize(
    ("old", "new", "count", "expected"),
    [
        ("6.93478", "6.93480", None, True),
        ("6.93478", "6.93678", None, False),
        (" 6.93478", "", None, False),
        ("rank0000", "rank0001", None, False),
        ("\n", "\nexit code 0\n", None, False),
        ("6.93478", "6.9", 1, True),
        ("7.14634", "7.1", 1, False),
    ],
)
def test_same_allows_small_differences_of_so_many_losses_only(old: str, new: str, count: int | None, expected: bool):
    assert same(LOSSES, LOSSES.replace(old, new), count) is expected
