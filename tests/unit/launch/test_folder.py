from pathlib import Path

import pytest

from small_training import make_config
from trainstone.errors import ResultError
from trainstone.launch.folder import prepare_folder, rank_environment
from trainstone.launch.verb import Verb
from trainstone.results.store import create_run


def make_verb(out: Path, resume: Path | None = None) -> Verb:
    return Verb("train", (), make_config(), out, resume, None, as_json=False, quiet=False, dry_run=False)


def test_a_new_folder_has_launch_in_it(tmp_path: Path):
    run = prepare_folder(make_verb(tmp_path / "runs"))
    assert run.is_absolute()
    assert run.parent == tmp_path / "runs"
    assert [path.name for path in run.iterdir()] == ["launch"]


def test_a_resumed_run_keeps_its_folder_and_forgets_the_attempt_before(tmp_path: Path):
    begun = create_run(tmp_path, "train", make_config(), "x")
    run = begun.path
    with pytest.raises(ResultError, match="is still running"):
        prepare_folder(make_verb(tmp_path, run))
    begun.update(status="interrupted")
    (run / "launch").mkdir()
    (run / "launch/code").write_text("75\n")
    assert prepare_folder(make_verb(tmp_path, run)) == run
    assert not (run / "launch/code").exists()


def test_what_cannot_be_made_or_resumed_is_said(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="cannot write run folder"):
        prepare_folder(make_verb(tmp_path / "file"))
    with pytest.raises(ResultError, match="no result in"):
        prepare_folder(make_verb(tmp_path, tmp_path / "none"))


def test_environment_of_ranks():
    told = rank_environment(Path("/runs/x"), "local-1", ranks=2, bind=True)
    assert told == {
        "TRAINSTONE_RUN": "/runs/x",
        "TRAINSTONE_LAUNCH": "local-1",
        "TRAINSTONE_RANKS": "2",
        "TRAINSTONE_BIND": "cores",
    }
    assert "TRAINSTONE_BIND" not in rank_environment(Path("/runs/x"), "local-1", ranks=2, bind=False)
