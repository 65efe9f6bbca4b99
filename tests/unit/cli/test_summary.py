"""The terminal summary of golden runs: what it says at every width, its colours, its paths."""

import re
from pathlib import Path
from typing import Any

import pytest

from hostile import EVIL, EVIL_NAME, hidden
from trainstone.cli.summary import print_result
from trainstone.results.checks import finding
from trainstone.results.store import read_result


@pytest.fixture
def show(golden, capsys, monkeypatch: pytest.MonkeyPatch):
    """Print a golden run, changed or not, as wide as asked; return what stands on stdout."""

    def printed(case: str, width: int = 80, *, colour: bool = False, **changes: Any) -> str:
        path = golden(case)
        monkeypatch.setenv("COLUMNS", str(width))
        if colour:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("TERM", "xterm-256color")
        print_result(read_result(path).model_copy(update=changes), path)
        return capsys.readouterr().out

    return printed


def as_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_everything_is_said_at_every_width(show, golden, tmp_path: Path, width: int):
    text = as_one_line(show("throttled", width))
    result = read_result(tmp_path / "throttled")
    assert as_one_line(result.verdict) in text
    for found in result.findings:
        assert f"{found.severity}: {found.message} [{found.code}] {found.hint}" in text
    for name in ("throughput", "step", "first step", "window", "steps", "utilisation", "memory", "energy", "noise"):
        assert f" {name} " in text


def test_the_steps_are_drawn_with_their_extremes(show):
    drawn = re.search(r"^  steps +(\S+)  min 65.4 ms, max 165 ms *$", show("good"), re.MULTILINE)
    assert re.fullmatch(r"[▁-█]\|[▁-█]{34}", drawn[1])


def test_the_steps_of_a_killed_run_are_drawn(show):
    text = show("killed")
    assert "no number: killed" in text
    assert re.search(r"^  steps +[▁-█]{36}  min ", text, re.MULTILINE)


@pytest.mark.parametrize("content", ["", "step,epo", "not a step file\n", None])
def test_a_result_without_readable_steps_is_printed_all_the_same(golden, capsys, content: str | None):
    path = golden("good")
    file = path / "steps-rank0000.csv"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    print_result(read_result(path), path)
    assert "steps  " not in capsys.readouterr().out.replace("steps from", "")


def test_colour_follows_severity_on_a_terminal(show):
    findings = [finding("not-measured", "one"), finding("run-failed", "two"), finding("outliers", "three")]
    text = show("throttled", colour=True, findings=[*findings, finding("throttled", "four")])
    told = re.findall(r"(\x1b\[[\d;]*m)(error|warning|info): \x1b\[0m(\w+)", text)
    assert told == [
        ("\x1b[1;31m", "error", "two"),
        ("\x1b[33m", "warning", "four"),
        ("\x1b[36m", "info", "one"),
        ("\x1b[36m", "info", "three"),
    ]
    assert re.search(r"\x1b\[2m[▁-█]+\|\x1b\[0m[▁-█]+", text), "warm-up is dim"


def test_no_color_is_honoured(show, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = show("throttled", colour=True)
    assert not re.search(r"\x1b\[[\d;]*3\dm", text)


def test_paths_are_whole_quoted_and_last(golden, capsys, tmp_path: Path):
    path = golden("good").rename(tmp_path / "my runs (1)")
    print_result(read_result(path), path)
    *_, result, repeat = capsys.readouterr().out.splitlines()
    assert result == f"result  {path}/result.json"
    assert repeat == f"repeat  trainstone bench '{path}/config.toml'"
    (path / "report.html").write_text("")
    print_result(read_result(path), path)
    assert capsys.readouterr().out.splitlines()[-2] == f"report  {path}/report.html"


def test_hostile_folder_name_is_written_out_and_only_our_own_colours_are_sent(
    golden, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    path = golden("throttled").rename(tmp_path / EVIL_NAME)
    print_result(read_result(path).model_copy(update={"verdict": EVIL}), path)
    text = capsys.readouterr().out
    assert not hidden(re.sub(r"\x1b\[\d[\d;]*m", "", text))
    assert "\x1b[31m<" not in text
    assert repr(EVIL_NAME)[1:-1].split("\\x1b")[1] in text.splitlines()[-1]
