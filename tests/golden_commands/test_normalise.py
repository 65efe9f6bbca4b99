"""The normaliser hides what varies, and nothing else."""

from pathlib import Path

import pytest

from golden_commands.harness import same
from golden_commands.normalise import count_names, list_keys, list_phases, normalise, normalise_output

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
        ("16.2 MFLOP an image; peak 1 TFLOP/s not measured", "16.2 MFLOP an image; peak 1 TFLOP/s not measured"),
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


def test_list_phases_merges_repetitions_and_keeps_errors():
    assert list_phases("a · 1\na · 2\nb\na · 3\nerror: x · y") == "a\nb\na\nerror: x · y"


def test_list_keys_merges_list_items_and_skips_what_only_some_machines_have():
    document = {"b": [{"x": 1}, {"y": {"z": 2}}], "a": 1, "noise": {"grade": "A"}, "findings": []}
    assert list_keys(document) == ["(top): a, b, noise", "b[]: x, y", "b[].y: z"]


def test_count_names_counts():
    assert count_names(["b", "a", "b"]) == ["a", "b × 2"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (LOSSES, True),
        (LOSSES.replace("6.93478", "6.93480"), True),
        (LOSSES.replace("6.93478", "6.93678"), False),
        (LOSSES.replace(" 6.93478", ""), False),
        (LOSSES.replace("rank0000", "rank0001"), False),
        (LOSSES + "exit code 0\n", False),
    ],
)
def test_same_allows_small_differences_of_losses_only(changed: str, expected: bool):
    assert same(LOSSES, changed) is expected


def test_same_compares_only_so_many_losses():
    assert same(LOSSES, LOSSES.replace("6.93478", "6.9"), 1)
    assert not same(LOSSES, LOSSES.replace("7.14634", "7.1"), 1)
