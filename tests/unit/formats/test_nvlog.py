"""NVLOG lines: as NVIDIA's logger wrote them, and read out of any log, broken by a terminal or not."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import real_data
from trainstone.formats.nvlog import COLUMNS, Entry, format_line, parse_lines, read_nvlog

GRAMMAR = re.compile(r":::NVLOGv([\d.]+) (\S+) (\d+\.\d{9}) \(([^:]+):(\d+)\) (.*)")
LINE = ":::NVLOGv0.2.3 resnet 1605627653.402500391 (training_hooks.py:102) cross_entropy: 9.02121639251709"
NAMES = st.text(st.characters(categories=["L", "N"], include_characters=" _-"), min_size=1).map(str.strip).filter(bool)
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ENTRIES = st.builds(
    Entry,
    version=st.just("0.2.3"),
    model=st.sampled_from(["resnet", None]),
    time_seconds=st.floats(0, 4e9).map(lambda seconds: float(f"{seconds:.9f}")),
    file=st.sampled_from(["runner.py", "training_hooks.py"]),
    line=st.integers(0, 99999),
    key=NAMES,
    value=VALUES | st.none(),
)


def test_a_line_is_as_the_original_wrote_it():
    entry = Entry("0.2.3", "resnet", 1605627653.402500391, "training_hooks.py", 102, "cross_entropy", 9.02121639251709)
    written = format_line(entry)
    assert written[:36] + written[44:] == LINE[:36] + LINE[44:]  # a double has no nanoseconds so long after 1970
    bare = format_line(Entry("0.2.3", None, 1.5, "runner.py", 374, "Starting Model Training..."))
    assert bare == ":::NVLOGv0.2.3 None 1.500000000 (runner.py:374) Starting Model Training..."


@given(ENTRIES)
def test_what_is_written_is_read_and_fits_the_grammar(entry: Entry):
    line = format_line(entry)
    assert GRAMMAR.fullmatch(line)
    assert list(parse_lines([line])) == [entry]


@given(ENTRIES, st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_lines_broken_at_80_columns_are_joined(entry: Entry, value: float):
    entry = entry._replace(key="total_loss", value=value)
    line = format_line(entry)
    rows = [f"   {line[begin : begin + COLUMNS]}".rstrip() for begin in range(0, len(line), COLUMNS)]
    read = list(parse_lines([*rows, "   something else"]))
    assert read == [entry]


def test_a_full_line_is_not_joined_with_what_other_programs_print():
    head = ":::NVLOGv0.2.3 resnet 1605627671.803228855 (training_hooks.py:100) iteration: 10"
    assert len(head) == COLUMNS
    read = list(parse_lines([head, "2020-11-17 15:39:49.410620: I tensorflow/stream_executor", "3"]))
    assert [(entry.key, entry.value) for entry in read] == [("iteration", 10)]


def test_the_guide_s_own_lines_are_read():
    entries = read_nvlog(real_data("profilers/nvlog/nvlog-tf-resnet50-bede-wmlce.rst.txt"))
    assert [(entry.line, entry.key, entry.value) for entry in entries] == [
        (100, "iteration", 0),
        (101, "imgs_per_sec", 37.5667719118656),
        (102, "cross_entropy", 9.02121639251709),
        (103, "l2_loss", 0.7498071789741516),
        (104, "total_loss", 9.771023750305176),
        (105, "learning_rate", 0.0),
        (100, "iteration", 10),
        (101, "imgs_per_sec", 4526.812526349517),
        (102, "cross_entropy", 8.204719543457031),
        (610, "Top-1 Accuracy", 75.863),
        (611, "Top-5 Accuracy", 92.823),
        (630, "Ending Model Evaluation ...", None),
    ]
    assert entries[-1].time_seconds - entries[0].time_seconds == pytest.approx(14328.38, abs=0.01)
    assert {entry.model for entry in entries} == {"resnet"}


@pytest.mark.parametrize(
    "value", ["", " ", "9" * 5000, "[" * 9000, "nul", '{"a":', "\x1b[31mred", "\udcff", "1 2", "tf.float16"]
)
def test_a_value_that_is_no_json_is_taken_as_text(value: str):
    (entry,) = parse_lines([f":::NVLOGv0.2.3 None 1.000000000 (a.py:1) key: {value}"])
    assert entry.value is None
    assert entry.key == f"key: {value}".strip()


@given(st.lists(st.text() | st.text().map(lambda text: LINE[: len(text) * 7] + text), max_size=20))
def test_anything_is_read_without_an_error(lines: list[str]):
    for entry in parse_lines(lines):
        json.dumps(entry.value)
