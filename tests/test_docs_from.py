"""docs/from keeps its word: every flag and variable stands there as it is read, none beside, and its lines work."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from command import ROOT
from old_lines import find_verb, mlperf_words, parse_told, parse_words
from trainstone.config.load import list_shipped
from trainstone.config.old.line import Flag, read_table
from trainstone.config.old.translate import ORIGINALS, read_key, translate

FRAGMENTS = ("trainstone data imagenet --boxes", "trainstone data imagenet --format tfrecord")
"""Named for one flag alone."""
HEAD = "| old | default there | here | remark |"


def page_row(flag: Flag) -> str:
    """A row of the table that explains a flag or variable."""
    default = f"`{flag.default}`" if flag.default else "–"
    remark = "; ".join(filter(None, (flag.remark, f"allowed: {', '.join(flag.choices)}" if flag.choices else "")))
    return f"| `{flag.old}` | {default} | {flag.here or '–'} | {remark} |"


def read_page(original: str) -> str:
    return (ROOT / "docs/from" / f"{original}.md").read_text()


@pytest.mark.parametrize("original", ORIGINALS)
def test_tables_of_flags_are_the_records(original: str):
    tables = re.findall(
        rf"^{re.escape(HEAD)}\n\|---\|---\|---\|---\|\n((?:\|.*\n)+)", read_page(original), re.MULTILINE
    )
    assert [row for table in tables for row in table.splitlines()] == [page_row(flag) for flag in read_table(original)]


@pytest.mark.parametrize("original", ORIGINALS)
def test_lines_that_the_pages_show_work(original: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("config_DGXA100.sh").write_text("\n".join(f"export {word}" for word in mlperf_words("dgxa100")))
    lines = re.findall(rf"^trainstone recipes --from {original} -- (.*?)(?: > .*)?$", read_page(original), re.MULTILINE)
    assert lines
    for line in lines:
        told = translate(original, shlex.split(line))
        assert told.command
        parse_told(told)


@pytest.mark.parametrize("original", ORIGINALS)
def test_commands_that_the_pages_name_are_the_command_line_s(original: str):
    page = read_page(original)
    texts = [*re.findall(r"`([^`\n]+)`", page), *re.findall(r"^trainstone .*", page, re.MULTILINE)]
    commands = [command.strip() for text in texts for command in re.findall(r"\btrainstone [^;>#|]*", text)]
    assert len(commands) > 5
    for command in commands:
        words = shlex.split(re.sub(r"(?<![\w.-])(N|NODES|BATCH|\$seed)$|(?<= )(N|NODES|\$seed)(?= )", "1", command))[1:]
        if find_verb(words)[1] and command not in FRAGMENTS:
            parse_words(words)


def test_a_page_has_what_the_names_of_scripts_for_a_dgx1_mean():
    rows = dict(
        re.findall(r"^\| (?:no )?`(gbn\d?|nhwc|nchw|fp16|amp)` \| (`.*`) \|$", read_page("mlperf-ssd"), re.MULTILINE)
    )
    assert set(rows) == {"gbn", "gbn2", "gbn4", "nhwc", "nchw", "fp16", "amp"}
    for shared, layout, precision in itertools.product(("gbn", "gbn2", "gbn4"), ("nhwc", "nchw"), ("fp16", "amp")):
        name = "_".join(["train_mlperf_dgx1", *([shared] if shared != "gbn" else []), layout, precision])
        config = translate("mlperf-ssd", [f"{name}.sh"]).config
        assert config is not None
        for key, value in re.findall(r"`([\w.]+) = (.*?)`", rows[shared] + rows[layout] + rows[precision]):
            assert read_key(config, key) == json.loads(value), (name, key)


def test_systems_that_the_pages_name_are_shipped():
    shipped = set(list_shipped("systems"))
    for original in ORIGINALS:
        assert set(re.findall(r"--system ([a-z0-9-]+)", read_page(original))) <= shipped
