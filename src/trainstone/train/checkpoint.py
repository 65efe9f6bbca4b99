"""Checkpoints of a run: one safetensors file each, whole or absent whatever happens; written, found, read, thinned out.

What stands in one is its writer's to know. Layout: docs/training.md.
"""

import contextlib
import re
import secrets
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from trainstone.errors import ResultError
from trainstone.files import sync_path
from trainstone.models.tensorfile import (
    FORMAT,
    explain_write,
    gather_tensors,
    open_document,
    read_tensors,
    seal,
    write_tensors,
)

BEST = "best.safetensors"
NAME = re.compile(r"step-([0-9]{8,18})\.safetensors")


class Checkpoint(NamedTuple):
    """One that was found whole; its document is the writer's, with `format` and `step` added."""

    path: Path
    document: dict[str, Any]
    tensors: dict[str, Tensor]


def write_checkpoint(folder: Path, step: int, document: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write step-<steps done>.safetensors and bring it to disk; nobody may change the tensors meanwhile."""
    path = folder / f"step-{step:08d}.safetensors"
    gathered = gather_tensors(tensors)
    write_tensors(path, gathered, seal({**document, "step": step}, gathered))
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint whose every byte of meaning was checked; anything else is refused, and nothing of it runs."""
    checkpoint = _read_whole(path)
    _refuse_newer(checkpoint)
    return checkpoint


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder by their names, those with more steps first; the best has no number."""
    try:
        paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_file()]
    except FileNotFoundError:
        return []
    except OSError as err:
        raise ResultError(f"cannot read {folder}: {err.strerror or err}") from err
    return sorted(paths, key=lambda path: (_step_of(path), path.name), reverse=True)


def find_latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the whole checkpoint with most steps, and a sentence for each damaged one that was passed over.

    One of a newer format is not damaged: passing it over would throw away its steps.
    """
    tried: set[Path] = set()
    passed_over: list[str] = []
    # A run that still goes on may have thinned out what was listed: look again after each that fails.
    while paths := [path for path in list_checkpoints(folder) if path not in tried]:
        tried.add(paths[0])
        try:
            checkpoint = _read_whole(paths[0])
        except ResultError as err:
            if paths[0].exists():
                passed_over.append(f"{err.message}; passed over")
            continue
        _refuse_newer(checkpoint)
        return checkpoint, passed_over
    return None, passed_over


def set_aside(folder: Path, latest: Path | None) -> None:
    """Rename damaged checkpoints that have more steps than the latest whole one: they would pass for later ones."""
    for path in list_checkpoints(folder):
        if path == latest:
            return
        with contextlib.suppress(OSError):
            path.rename(path.with_name(path.name + ".damaged"))


def prune(folder: Path, keep: int) -> None:
    """Remove all but the latest `keep`, and what a killed writer left; never the best. Only the writer may call it."""
    assert keep >= 0
    try:
        for path in [*list_checkpoints(folder)[keep:], *folder.glob("*.safetensors.*.partial")]:
            path.unlink(missing_ok=True)
    except OSError as err:
        raise ResultError(f"cannot remove {err.filename}: {err.strerror or err}") from err


def keep_best_of(folder: Path, step: int) -> None:
    """Make the checkpoint of an earlier step the best one, if it is still there."""
    path = folder / f"step-{step:08d}.safetensors"
    if path.is_file():
        keep_best(folder, path)


def keep_best(folder: Path, path: Path) -> None:
    """Make best.safetensors the same file as a checkpoint, or a copy where the file system knows no links."""
    best = folder / BEST
    partial = folder / f"{BEST}.{secrets.token_hex(4)}.partial"
    try:
        try:
            partial.hardlink_to(path)
        except OSError:
            shutil.copyfile(path, partial)
            sync_path(partial)
        partial.replace(best)
        sync_path(folder)
    except OSError as err:
        raise explain_write(best, err) from err
    finally:
        # Renaming does nothing where both names are one file already: the best named twice.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _read_whole(path: Path) -> Checkpoint:
    try:
        file = read_tensors(path)
        document = open_document(file)
    except ValueError as err:
        raise ResultError(f"checkpoint {path} {err}") from err
    if document is None:
        raise ResultError(
            f"{path} is no checkpoint of trainstone: a safetensors file without trainstone's document",
            hint=f"if it holds weights alone: trainstone eval {path}",
        )
    return Checkpoint(path, document, file.tensors)


def _refuse_newer(checkpoint: Checkpoint) -> None:
    if checkpoint.document["format"] > FORMAT:
        raise ResultError(
            f"checkpoint {checkpoint.path} has format {checkpoint.document['format']}; "
            f"this trainstone reads up to {FORMAT}",
            hint="update trainstone",
        )


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))
