"""Texts are split as a shell would, and nothing more."""

import pytest

from trainstone.config.old.commands import fill, fill_commands, match_assignment, split_commands
from trainstone.errors import ConfigError


def texts(text: str) -> list[str]:
    return [command.text for command in split_commands(text)]


def test_ends_of_commands():
    commands = split_commands("a 1; b && c || d\ne")
    assert [(command.joint, command.text) for command in commands] == [
        *(("\n", "a 1"), (";", "b"), ("&&", "c"), ("||", "d"), ("\n", "e"))
    ]


@pytest.mark.parametrize(
    "text",
    ["a 'x; y'", 'a "x && y"', "a x\\;y", "A=$(b; c)", "a 2>&1", 'a "it\'s; b"', "A=$((1 + 2))", "a x#y"],
)
def test_quotes_brackets_and_redirections_keep_together(text: str):
    assert texts(text) == [text]


def test_lines_are_joined_and_comments_go():
    assert texts("a \\\n b  # why; not\n# don't\n#SBATCH -N4\nc") == ["a   b", "#SBATCH -N4", "c"]
    assert texts("A=$(\n b\n c )") == ["A=$(  b  c )"]


def test_words_that_lead_to_a_command_go():
    assert texts("for x in 1 2; do a $x; done") == ["for x in 1 2", "a $x", "done"]
    assert texts("time a|tee b") == ["a | tee b"]


def test_open_quotes_and_long_texts_are_refused():
    with pytest.raises(ConfigError, match=r"cannot read \"'x\": no closing quotation"):
        split_commands("a\nb 'x\nc")
    with pytest.raises(ConfigError, match="1,000,001 characters"):
        split_commands("a" * 1_000_001)


def test_plain_values_are_filled_in():
    script = 'N=4\nK=""\nK+="--a $N "\nK+="--b 2"\nrun -n ${N} $K ${M:-5} $1 \'$N\' $O'
    assert fill_commands(split_commands(script), {"1": "x"})[-1] == "run -n 4 --a 4 --b 2 5 x '$N' $O"


@pytest.mark.parametrize("setting", ["N=$(rm x)", "N=`rm x`", "if a; then N=4; fi", "N=$M", "N=(1 2)"])
def test_what_a_shell_would_have_to_tell_stays(setting: str):
    assert fill_commands(split_commands(f"N=3\n{setting}\nrun $N"), {})[-1] == "run $N"


def test_values_do_not_grow_without_end():
    doubled = "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 60 + "run $A"
    assert fill_commands(split_commands(doubled), {})[-1] == "run $A"
    assert fill("$A" * 1000, {"A": "a" * 10_000}) == "$A" * 1000


def test_a_command_may_begin_with_an_assignment():
    assert match_assignment("A=1 python x") is None
    assert match_assignment("export A='1 2'")
