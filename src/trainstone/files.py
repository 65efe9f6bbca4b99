"""Atomic file writes, JSON output, and the cache folder."""

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainstone.errors import ResultError


def write_atomically(path: Path, text: str | Iterable[str | bytes]) -> None:
    """Write a file atomically: a reader, or a crash, sees the old or the new content, never a part.

    The text may come in pieces. Only regular files are replaced, not devices or folders. The temporary name is random,
    so that no other user can place a link there.
    """
    if path.exists() and not path.is_file():
        raise ResultError(f"cannot replace {path}: it is not a regular file")
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        # A command line may have bytes that are not UTF-8; \\udcff is the same character in JSON.
        with os.fdopen(descriptor, "wb") as file:
            for piece in [text] if isinstance(text, str) else text:
                file.write(piece.encode("utf-8", "backslashreplace") if isinstance(piece, str) else piece)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:  # the iterable may raise as well
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def cache_folder() -> Path:
    """Return the folder for generated and downloaded files: $TRAINSTONE_CACHE, else the user's cache folder."""
    chosen = os.environ.get("TRAINSTONE_CACHE")
    if chosen:
        return Path(chosen)
    # A container may run as a user without a home.
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  Path.home() would raise
    base = home / ".cache" if home.is_absolute() else Path(tempfile.gettempdir())
    return Path(os.environ.get("XDG_CACHE_HOME") or base) / "trainstone"


def dump_json(document: Any) -> str:
    """Return JSON as written to files and stdout: indented, Unicode not escaped, no NaN."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def sync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
