"""Do all ranks see one run folder, and may they write there?"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainstone.errors import ResultError
from trainstone.machine.launched import name_host
from trainstone.train.preflight.deadline import call_within

# A network file system may show a new file late.
SEEING_SECONDS = 3.0
HINT = "all hosts must share the run folder: choose an --out DIR that they do"


@contextmanager
def leave_token(folder: Path | None) -> Iterator[str | None]:
    """Leave a file of a name that nobody else can know; it is gone at the end. None: there is no folder."""
    if folder is None:
        yield None
        return
    token = secrets.token_hex(8)
    file = folder / f".meeting-{token}.partial"  # no file of the run
    try:
        file.write_text(token, encoding="ascii")
        yield token
    except OSError as err:
        if err.filename != str(file):
            raise
        raise ResultError(f"cannot write into {folder}: {err.strerror}", hint="who may write there?") from err
    finally:
        with suppress(OSError):
            file.unlink()


def check_folder(folder: Path, token: str, number: int, seconds: float) -> None:
    """Refuse where this rank does not see the token, or cannot write beside it."""
    try:
        seen = call_within(max(1.0, seconds), lambda: find_and_write(folder, token, number))
    except OSError as err:
        reason = err.strerror or "the file system does not answer"
        raise ResultError(f"the run folder {folder} is unwritable on {name_host()}: {reason}", hint=HINT) from err
    if not seen:
        what = "sees another folder of that name instead of" if folder.is_dir() else "does not see"
        raise ResultError(f"{name_host()} {what} the run folder {folder}", hint=HINT)


def find_and_write(folder: Path, token: str, number: int) -> bool:
    """Say whether the token is seen; where it is, leave a file beside it and take it away."""
    end = time.monotonic() + SEEING_SECONDS
    while not (folder / f".meeting-{token}.partial").exists():
        if time.monotonic() > end:
            return False
        with suppress(OSError):
            list(folder.iterdir())  # makes NFS look again
        time.sleep(0.05)
    mine = folder / f".meeting-{token}-{number}.partial"
    mine.touch()
    mine.unlink()
    return True
