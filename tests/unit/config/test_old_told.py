"""What is printed is the configuration: as a file, and as a command."""

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import EVIL, hidden
from old_lines import SC22, WMLCE, WMLCE_JOB, mlperf_words, ssd_program
from parsed_command import parse_told
from trainstone.config.load import load_config
from trainstone.config.old import sc22, tbd, wmlce
from trainstone.config.old.flag import Flag
from trainstone.config.old.mlperf_flags import FLAGS as MLPERF_FLAGS
from trainstone.config.old.mlperf_variables import VARIABLES
from trainstone.config.old.ssd_flags import FLAGS as SSD_FLAGS
from trainstone.config.old.ssd_flags import VARIABLES as SSD_VARIABLES
from trainstone.config.old.told import ORIGINALS, tell_old, write_file
from trainstone.config.schema import Config
from trainstone.errors import ConfigError

LINES = [
    ("wmlce", WMLCE),
    ("wmlce", [WMLCE_JOB]),
    ("wmlce", ["--use_dali", "--data_dir=/with space/'quote", "--iter_unit=batch", "--num_iter=5"]),
    ("sc22", SC22),
    ("sc22", ["run-resnet-single.sh", "1"]),
    ("tbd", ["measure_throughput.sh"]),
    ("tbd", ["--num_gpus=0", "--dtype=bf16", "--use_synthetic_data"]),
    ("mlperf-resnet50", mlperf_words("dgxa100-527x8")),
    ("mlperf-resnet50", ["LRSCHED=10,20", "SYNTH_DATA=1", "NUMEXAMPLES=5000"]),
    ("mlperf-ssd", ssd_program("4xc4140")),
    ("mlperf-ssd", ["train_mlperf_dgx1_gbn4_nhwc_amp.sh"]),
    ("mlperf-ssd", ["SYSTEM=DSS8440", "NEXP=2", "LOGDIR=/l", "CLEAR_CACHES=0"]),
    ("mlperf-ssd", ["ssd_main.py", "--synthetic", "--val-epochs", "5", "9"]),
]


def run_command(command: str) -> Config:
    """Load what a command would: recipe, --system, the short flags, each --set."""
    words = shlex.split(command)
    keys = {"--data": "data.root", "--seed": "seed", "--device": "device"}
    keys["--iterations"] = "measure.iterations" if words[1] == "bench" else "stop.steps"
    flags: dict[str, Any] = {}
    system, changes = None, []
    for word, value in zip(words[3:], [*words[4:], ""], strict=True):
        if word in keys:
            flags[keys[word]] = int(value) if word in ("--seed", "--iterations") else value
        elif word == "--set":
            changes.append(value)
        elif word == "--system":
            system = value
    if "data.root" in flags:
        flags["data.source"] = "files"
    return load_config(words[2], system=system, flags=flags, settings=changes)


@pytest.mark.parametrize(("original", "words"), LINES)
def test_file_and_command_are_the_configuration(tmp_path: Path, original: str, words: list[str]):
    told = tell_old(original, words)
    path = tmp_path / "mine.toml"
    path.write_text(write_file(told))
    assert load_config(str(path)) == told.config
    assert run_command(told.command) == told.config
    parse_told(told)


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("--batch_size"), st.integers(1, 512).map(str)),
            st.tuples(st.just("--lr_init"), st.floats(0.001, 10).map(str)),
            st.tuples(st.just("--num_iter"), st.integers(1, 99).map(str)),
            st.tuples(st.sampled_from(["--use_dali", "--use_xla", "--use_cosine_lr", "--nouse_xla"])),
            st.tuples(
                st.just("--data_dir"),
                st.text(st.characters(codec="utf-8", exclude_characters="$`"), max_size=20).map("/a".__add__),
            ),
            st.tuples(st.just("--seed"), st.integers(0, 10**6).map(str)),
            st.tuples(st.just("--mode"), st.sampled_from(["train", "training_benchmark"])),
        )
    )
)
def test_any_line_gives_a_command_that_is_its_configuration(parts: list[tuple[str, ...]]):
    told = tell_old("wmlce", ["main.py", *(word for part in parts for word in part)])
    assert run_command(told.command) == told.config
    assert tomllib.loads(write_file(told))["name"] == "resnet50-wmlce"


def test_the_file_brings_the_defects_back_where_they_are_asked_for(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(write_file(tell_old("wmlce", WMLCE)))
    assert load_config(str(path)).schedule.warm_up_offset
    wrong = load_config(str(path), settings=["original_defects=true"])
    assert not wrong.schedule.warm_up_offset
    assert wrong.eval.drop_rest


def test_the_head_of_the_file_says_what_was_and_what_is():
    text = write_file(tell_old("sc22", SC22))
    head = text[: text.index("\n\nname = ")]
    assert all(line.startswith("#") for line in head.splitlines())
    assert f"# Was       {shlex.join(SC22)}" in head
    assert "# Command   trainstone bench resnet50-sc22 --system any-4gpu\n" in head
    assert "#           trainstone bench FILE.toml, where FILE.toml is this file\n" in head
    assert "# - --damping=0.003: K-FAC is off (--kfac-update-freq 0)\n" in head


def test_nothing_of_the_line_gets_out_of_the_comment():
    for words in (
        [f"--export_dir={EVIL}", "--batch_size", "4"],
        ["--batch_size 4 # \x1b[31m\n# name = 'x'\r\u2028b = 1"],
    ):
        text = write_file(tell_old("wmlce", words))
        assert not hidden(text)
        values = tomllib.loads(text)
        assert (values["name"], values["train"]["batch_size"]) == ("resnet50-wmlce", 4)
        assert "b" not in values


def test_no_word_of_the_line_is_left_to_a_shell():
    told = tell_old("wmlce", ["main.py", "--data_dir=/x; rm -rf /", "--results_dir=&& rm"])
    assert "/x; rm -rf " in shlex.split(told.command)
    assert "&& rm" in shlex.split(told.command)


def test_an_unknown_original_is_named():
    with pytest.raises(ConfigError, match="--from wmlc: unknown original, did you mean wmlce"):
        tell_old("wmlc", [])


TABLES = [wmlce.FLAGS, sc22.FLAGS, tbd.FLAGS, VARIABLES, MLPERF_FLAGS, SSD_FLAGS, SSD_VARIABLES]


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_whole(table: tuple[Flag, ...]):
    names = [flag.name for flag in table]
    assert len(names) == len(set(names))
    assert not [flag.name for flag in table if not flag.ours and not flag.remark], "no meaning, and no reason"


def test_keys_named_in_the_tables_exist():
    from trainstone.config.load import list_keys

    known = {row[0] for row in list_keys()}
    for flag in (flag for table in TABLES for flag in table):
        for name in flag.ours.split("`")[1::2]:
            assert name in known or name.startswith("--") or " " in name or name in ("bench", "profile"), flag


def test_every_original_has_a_recipe():
    assert set(ORIGINALS) == {"mlperf-resnet50", "mlperf-ssd", "tbd", "sc22", "wmlce"}
    for name, original in ORIGINALS.items():
        own = {"mlperf-resnet50": "mlperf", "mlperf-ssd": "mlperf_ssd"}.get(name, name)
        assert load_config(original.recipe).original.name == own
