"""Another user for tests of files that one may not read or write: root may everything, so it steps down."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def be_stranger() -> Iterator[None]:
    """Be nobody for a while; who is no root stays, and is kept out by the modes of files alone."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def make_shared_folder() -> Iterator[Path]:
    """A folder that everybody can look into; pytest's own cannot be reached by others."""
    folder = Path(tempfile.mkdtemp(prefix="trainstone-shared-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(folder)
