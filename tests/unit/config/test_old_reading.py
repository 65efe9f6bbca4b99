import shlex
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import EVIL
from trainstone.config.old.flag import Flag
from trainstone.config.old.reading import Grammar, read_flags, read_variables
from trainstone.errors import ConfigError

FLAGS = (
    Flag("mode", "text", "a", "the verb", "", ("a", "b")),
    Flag("count", "integer", "3", "`k.count`"),
    Flag("rate", "number", "", "`k.rate`"),
    Flag("decay", "epochs", "10 20", "`k.decay`"),
    Flag("use_x", "switch", "false", "`k.x`"),
    Flag("use_y", "switch", "true", "", "y is always so"),
)
GRAMMAR = Grammar("wmlce", FLAGS, negated=True)


def test_defaults_where_nothing_is_given():
    read = read_flags(GRAMMAR, [])
    assert read.values == {"mode": "a", "count": 3, "decay": (10.0, 20.0), "use_x": False, "use_y": True}
    assert not read.asked


def test_both_forms_and_switches():
    read = read_flags(GRAMMAR, shlex.split("--mode=b --count 7 --rate -0.5 --decay 1 2 3 --use_x --nouse_y"))
    assert read.values == {
        **{"mode": "b", "count": 7, "rate": -0.5, "decay": (1.0, 2.0, 3.0)},
        **{"use_x": True, "use_y": False},
    }
    assert read.notes == ("--nouse_y: y is always so",)


def test_the_last_of_several_counts():
    assert read_flags(GRAMMAR, shlex.split("--count 7 --count=8 --use_x --nouse_x")).values["count"] == 8


def test_a_beginning_is_enough_where_it_is_one_flag():
    assert read_flags(GRAMMAR, ["--cou", "7"]).values["count"] == 7
    with pytest.raises(ConfigError, match="--use may be --use_x or --use_y"):
        read_flags(GRAMMAR, ["--use"])
    with pytest.raises(ConfigError, match="unknown flag --cou"):
        read_flags(GRAMMAR._replace(shortened=False), ["--cou", "7"])


def test_single_dashes_are_of_absl_alone():
    assert read_flags(GRAMMAR._replace(single_dash=True), ["-count=7"]).values["count"] == 7
    with pytest.raises(ConfigError, match="unknown flag -count, did you mean --count"):
        read_flags(GRAMMAR, ["-count=7"])


def test_every_mistake_is_told_at_once():
    with pytest.raises(ConfigError) as told:
        read_flags(GRAMMAR, shlex.split("--mod c --cuont 7 --count x word --rate nan --bogus=1 --decay 1 z --rate"))
    assert told.value.message == (
        "--mode=c: it is a or b; unknown flag --cuont, did you mean --count?; --count=x: must be a whole number; "
        "'word' is no flag of wmlce; --rate=nan: must be a finite number; unknown flag --bogus; "
        "--decay=1 z: must be a number; "
        "--rate: it takes a value"
    )
    assert told.value.hint == "every flag and variable that is known stands in docs/from/wmlce.md"


def test_numbers_nobody_can_mean_are_refused():
    for text in ("9" * 30, "1" * 5000):
        with pytest.raises(ConfigError, match=r"must be at most|must be a whole number|characters"):
            read_flags(GRAMMAR, ["--count", text])


@settings(max_examples=200)
@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(["--mode", "--count=", "--decay", "--", "-", EVIL]))))
def test_any_words_are_read_or_refused(words: list[str]):
    with suppress(ConfigError):
        assert read_flags(GRAMMAR, words).values["mode"] in ("a", "b")


def test_variables_by_name_and_by_pattern():
    table = (Flag("LR", "number", "0.6", "`k`"), Flag("MXNET_*", "text", "", "", "of MXNet"))
    read = read_variables("mlperf-resnet50", table, {"LR": "3", "MXNET_A": "1"})
    assert read.values == {"LR": 3.0}
    assert read.notes == ("MXNET_A=1: of MXNet",)
    with pytest.raises(ConfigError, match="LR=x: must be a number; unknown variable LRR, did you mean LR"):
        read_variables("mlperf-resnet50", table, {"LR": "x", "LRR": "1"})
