"""One run folder for all ranks: seen and writable, or it is said where not."""

import os
from pathlib import Path

import pytest

from trainstone.errors import ResultError
from trainstone.train.preflight import folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SEEING_SECONDS", 0.05)
    monkeypatch.setattr(folder, "name_host", lambda: "n2")


def test_a_token_is_seen_and_nothing_is_left(tmp_path: Path):
    with folder.leave_token(tmp_path) as token:
        assert token is not None
        folder.check_folder(tmp_path, token, 1, 60)
        assert [path.name for path in tmp_path.iterdir()] == [f".meeting-{token}.partial"]
    assert not list(tmp_path.iterdir())


def test_without_a_folder_there_is_no_token():
    with folder.leave_token(None) as token:
        assert token is None


def test_another_folder_and_none_are_told_apart(tmp_path: Path):
    with pytest.raises(ResultError, match="n2 sees another folder of that name instead of the run folder"):
        folder.check_folder(tmp_path, "0123", 1, 60)
    with pytest.raises(ResultError, match="n2 does not see the run folder"):
        folder.check_folder(tmp_path / "none", "0123", 1, 60)


def test_a_folder_that_cannot_be_written_or_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_path: Path) -> None:
        raise OSError(30, os.strerror(30))

    with folder.leave_token(tmp_path) as token:
        assert token is not None
        with monkeypatch.context() as patched:
            patched.setattr(Path, "touch", refuse)
            with pytest.raises(ResultError, match="unwritable on n2: Read-only file system"):
                folder.check_folder(tmp_path, token, 1, 60)

    def hang(_seconds: float, _look: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(folder, "call_within", hang)
    with pytest.raises(ResultError, match="unwritable on n2: the file system does not answer"):
        folder.check_folder(tmp_path, "0123", 1, 60)


def test_the_first_rank_says_that_it_cannot_write(tmp_path: Path):
    with pytest.raises(ResultError, match="cannot write into"), folder.leave_token(tmp_path / "none"):
        pass
