"""docs/from keeps its word: every flag and variable stands there as it is read, none beside, and its lines work."""

import re
import shlex
from pathlib import Path

import pytest

from command import ROOT
from old_lines import mlperf_words, page_row, ssd_config
from trainstone.config.load import list_shipped
from trainstone.config.old import sc22, tbd, wmlce
from trainstone.config.old.mlperf_flags import FLAGS as MLPERF_FLAGS
from trainstone.config.old.mlperf_variables import VARIABLES
from trainstone.config.old.ssd_flags import FLAGS as SSD_FLAGS
from trainstone.config.old.ssd_flags import VARIABLES as SSD_VARIABLES
from trainstone.config.old.told import ORIGINALS, tell_old

HEAD = "| old | default there | here | remark |"
TABLES = {
    "wmlce": [("--", wmlce.FLAGS)],
    "sc22": [("--", sc22.FLAGS)],
    "tbd": [("--", tbd.FLAGS)],
    "mlperf-resnet50": [("", VARIABLES), ("--", MLPERF_FLAGS)],
    "mlperf-ssd": [("", SSD_VARIABLES), ("--", SSD_FLAGS)],
}


def read_page(original: str) -> str:
    return (ROOT / "docs/from" / f"{original}.md").read_text()


@pytest.mark.parametrize("original", ORIGINALS)
def test_tables_of_flags_are_the_records(original: str):
    tables = re.findall(
        rf"^{re.escape(HEAD)}\n\|---\|---\|---\|---\|\n((?:\|.*\n)+)", read_page(original), re.MULTILINE
    )
    written = [table.splitlines() for table in tables]
    assert written == [[page_row(flag, dashes) for flag in flags] for dashes, flags in TABLES[original]]


@pytest.mark.parametrize("original", ORIGINALS)
def test_lines_that_the_pages_show_work(original: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("config_DGXA100.sh").write_text("\n".join(f"export {word}" for word in mlperf_words("dgxa100")))
    Path("config_C4140.sh").write_text(ssd_config("c4140"))
    lines = re.findall(rf"^trainstone recipes --from {original} -- (.*?)(?: > .*)?$", read_page(original), re.MULTILINE)
    assert lines
    for line in lines:
        assert tell_old(original, shlex.split(line)).command


def test_systems_that_the_pages_name_are_shipped():
    shipped = set(list_shipped("systems"))
    for original in ORIGINALS:
        assert set(re.findall(r"--system ([a-z0-9-]+)", read_page(original))) <= shipped
