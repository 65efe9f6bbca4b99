from collections.abc import Sequence
from pathlib import Path

import pytest

from launching import make_verb
from small_training import make_config
from trainstone.config.schema import Config
from trainstone.errors import ConfigError, ResultError
from trainstone.launch import verb
from trainstone.launch.verb import prepare_folder, read_verb
from trainstone.results.store import create_run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    lines: list[list[str]] = []

    def ask_plan(name: str, arguments: Sequence[str]) -> Config:
        lines.append([name, *arguments])
        return make_config()

    monkeypatch.setattr(verb, "ask_plan", ask_plan)
    return lines


def test_what_concerns_the_launcher_is_taken_out(asked: list[list[str]]):
    words = ["train", "x; y", "--json", "-q", "--out", "there", "--system=bede-1x4", "--dry-run"]
    read = read_verb(words, system=None)
    assert read.arguments == ("x; y", "--out", "there", "--system=bede-1x4")
    assert asked == [["train", *read.arguments]]
    assert (read.as_json, read.quiet, read.dry_run) == (True, True, True)
    assert (read.out, read.resume) == (Path("there"), None)
    assert read.system is not None
    assert read.system.devices_per_node == 4
    assert read.command("python3")[-5:] == ["train", *read.arguments]


def test_the_launchers_system_is_the_verbs_too_but_eval_takes_only_its_geometry(asked: list[list[str]]):
    assert read_verb(["bench", "x"], system="bede-1x4").arguments == ("x", "--system", "bede-1x4")
    with pytest.raises(ConfigError, match="--system bede-1x1 and --system bede-1x4"):
        read_verb(["bench", "--system", "bede-1x4"], system="bede-1x1")
    read = read_verb(["eval", "RUN"], system="bede-4x4")
    assert read.arguments == ("RUN",)
    assert read.system is not None
    assert read.system.nodes == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing cannot be launched"),
        (["doctor"], "'doctor' cannot be launched"),
        (["sweep", "x"], "'sweep' cannot be launched"),
        (["train", "x", "--runs", "5"], "--runs starts worlds of its own"),
        (["eval", "RUN", "--predict", "a.jpg"], "--predict is the work of one process"),
        (["eval", "RUN", "--export=x"], "--export is the work of one process"),
    ],
)
def test_what_ranks_cannot_do_together(asked: list[list[str]], words: list[str], told: str):
    with pytest.raises(ConfigError, match=told):
        read_verb(words, system=None)
    assert not asked
    if words[:1] == ["sweep"]:
        assert read_verb(words, system=None, ranks=1).name == "sweep"


def test_a_verbs_own_mistake_keeps_its_message_and_code():
    with pytest.raises(ConfigError, match="no-such-recipe"):
        read_verb(["bench", "no-such-recipe"], system=None)


def test_a_resumed_run_keeps_its_folder_and_forgets_the_attempt_before(tmp_path: Path):
    begun = create_run(tmp_path, "train", make_config(), "x")
    run = begun.path
    with pytest.raises(ResultError, match="is still running"):
        prepare_folder(make_verb(resume=run))
    begun.update(status="interrupted")
    (run / "launch").mkdir()
    (run / "launch/code").write_text("75\n")
    assert prepare_folder(make_verb(resume=run)) == run
    assert not (run / "launch/code").exists()


def test_what_cannot_be_made_or_resumed_is_said(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="cannot write run folder"):
        prepare_folder(make_verb(out=tmp_path / "file"))
    with pytest.raises(ResultError, match="no result in"):
        prepare_folder(make_verb(resume=tmp_path / "none"))
