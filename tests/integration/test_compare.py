"""`trainstone compare` on the command line, with fake run folders."""

import json

import pytest

from support.builders.results import make_result, write_repeated, write_run, write_runs

FAST, SLOW = [110.0, 111.0, 109.0, 110.5, 109.5], [100.0, 101.0, 99.0, 100.5, 99.5]


def test_compare_prints_verdict_and_next_command(quick, tmp_path):
    write_repeated(tmp_path, "fast", FAST, device="New Chip")
    write_runs(tmp_path / "old", "slow", SLOW, device="Old Chip")
    done = quick("compare", "fast", "--to", *[f"old/slow{i}" for i in range(5)])
    assert (done.code, done.err) == (0, "")
    assert "A (New Chip) is 1.100 times as fast as B (Old Chip)" in done.out.replace("\n", "")
    assert "\x1b" not in done.out
    assert done.out.splitlines()[-1].startswith("next  trainstone report")


@pytest.mark.parametrize(
    ("rates", "half_width", "limit", "code", "message"),
    [
        (SLOW, 0.01, "0.95", 9, "gate: "),
        (SLOW, 0.01, "0.8", 0, ""),
        ([100.0], 0.2, "0.95", 0, "no difference shown, so it passes; measure both sides with --runs 5"),
        ([100.0], None, "0.95", 9, "gate: "),
        ([100.0], None, "0.8", 0, ""),
    ],
)
def test_compare_fail_below_sets_exit_code(quick, tmp_path, rates, half_width, limit, code, message):
    write_runs(tmp_path / "a", "a", rates, half_width=half_width)
    write_runs(tmp_path / "b", "b", [110.0, *([109.0, 111.0] if len(rates) > 1 else [])], half_width=half_width)
    done = quick("compare", "a", "--to", "b", "--fail-below", limit, "--json")
    assert done.code == code, done.err
    assert message in done.err
    assert bool(done.err) == bool(message)
    assert done.json()["rows"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a", "--to", "nothing"], 7, "no such run or published figure: 'nothing'"),
        (["nothing", "--to", "a"], 7, "no such run: nothing"),
        (["a", "--to", "empty"], 7, "no folder in it has a result.json"),
        (["a", "--to", "a"], 7, "same run"),
        (["a", "--to", "nan"], 7, "nan/result.json"),
        (["a", "--to", "torn"], 7, "cannot read torn/result.json"),
        (["a", "--to", "other"], 7, "is not a trainstone result"),
        (["a", "--to", "a100-80-mxnet-ampp"], 7, "did you mean a100-80-mxnet-amp"),
        (["a", "--to", "b", "--fail-below", "nan"], 2, "expected a ratio above 0"),
        (["a", "--to", "b", "--fail-below", "95"], 2, "did you mean --fail-below 0.95?"),
        (["a", "--to", "b", "--page", "no/such/folder/page.html"], 7, "cannot write no/such/folder/page.html"),
        (["a"], 2, "--to"),
        (["--to", "b"], 2, "RUN"),
    ],
)
def test_compare_wrong_input_gives_one_message(quick, tmp_path, arguments, code, message):
    for name in ("a", "b", "nan", "torn", "other"):
        write_run(tmp_path, make_result(name))
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn/result.json").write_text('{"format": 1, "ki')
    (tmp_path / "other/result.json").write_text("[]")
    damaged = json.loads((tmp_path / "nan/result.json").read_text())
    damaged["throughput"]["images_per_second"] = float("nan")
    (tmp_path / "nan/result.json").write_text(json.dumps(damaged))
    done = quick("compare", *arguments, env={"COLUMNS": "200"})
    assert done.code == code, done.err
    assert message in done.err
    assert "Traceback" not in done.err


def test_compare_escapes_hostile_labels(quick, tmp_path):
    evil = "\x1b[2J\x9b31m\u202e[red]x[/red]\r\nerror: none"
    write_run(tmp_path, make_result("a", device=evil, host=evil))
    write_run(tmp_path, make_result("b", settings=("train.precision=bf16",), software={"torch": evil}))
    for arguments in ([], ["--force"], ["--force", "--json"]):
        done = quick("compare", "a", "--to", "b", *arguments)
        assert not any(char in done.out + done.err for char in "\x1b\x9b\u202e\r")
        assert "\nerror: none" not in done.err
    shown = quick("compare", "a", "--to", "b", "--force").out
    assert r"\x1b[2J" in shown
    assert "[red]" in shown.replace("\n", "")


def test_compare_page_is_written_and_escaped(quick, tmp_path):
    write_repeated(tmp_path, "fast", FAST, device="New <b>Chip</b>")
    write_repeated(tmp_path, "slow", SLOW)
    done = quick("compare", "fast", "--to", "slow", "published", "--page", "page.html")
    assert done.code == 0, done.err
    assert "page  page.html" in done.out
    page = (tmp_path / "page.html").read_text()
    assert "times as fast" in page
    assert "New <b>Chip</b>" not in page
