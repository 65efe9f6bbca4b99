"""A shard that is whole: its facts in the work folder, its name in the target, and how the one follows the other."""

import contextlib
import shutil
from pathlib import Path

from trainstone.data.manifest import ShardFacts, parse_record
from trainstone.data.storage.encoding import Shard
from trainstone.files import sync_path


def find_done(work: Path, target: Path, shard: Shard) -> ShardFacts | None:
    """Return the facts of a shard that is whole; one that was killed just before it got its name gets it now."""
    done = work / f"{shard.file.replace('/', '%')}.done"
    try:
        facts = parse_record(ShardFacts, done.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if put_in_place(work, target, facts):
        return facts
    done.unlink()  # somebody removed the shard: it is made anew
    return None


def put_in_place(work: Path, target: Path, facts: ShardFacts) -> bool:
    """Give a whole shard and its sidecars their names; say whether all are there."""
    for file in (*facts.sidecars, facts):
        partial, final = work / f"{file.file.replace('/', '%')}.partial", target / file.file
        with contextlib.suppress(FileNotFoundError):  # another rank may look at the same moment, and do it
            final.parent.mkdir(parents=True, exist_ok=True)
            partial.replace(final)
            sync_path(final.parent)
        if not final.exists():
            return False
    return True


def clear_work(work: Path) -> None:
    """Remove what only unfinished work needs."""
    shutil.rmtree(work, ignore_errors=True)
