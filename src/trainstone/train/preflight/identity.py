"""What a rank posts about itself and its host, and the checks that it makes there: against rank 0, data, run folder."""

import platform
import secrets
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from trainstone import __version__
from trainstone.config.load import flatten
from trainstone.config.schema import Config
from trainstone.errors import ConfigError, DataError, MachineError, ResultError
from trainstone.machine.interfaces import list_interfaces, name_network
from trainstone.machine.launched import name_host
from trainstone.machine.ranks import Rank
from trainstone.measure.devices import list_devices
from trainstone.train.preflight.store import Document, call_within

EQUAL_VERSIONS = ("trainstone", "torch", "nccl")
# Keys that may differ between hosts.
HOST_KEYS = ("device", "data.root", "parallel.interface")
SHOWN_KEYS = 3
# A network file system may show a new file late.
VISIBLE_SECONDS = 3.0
FOLDER_HINT = "all hosts must share the run folder: choose an --out DIR that they share"


def describe_rank(rank: Rank) -> Document:
    """Return what the other ranks need to know about this one."""
    return {
        "rank": rank.number,
        "host": name_host(),
        "network": name_network(),
        "devices": sum(not name.startswith("cpu") for name in list_devices()),
        "versions": read_versions(),
        "interfaces": [one for one in list_interfaces() if not one.loopback],
    }


def read_versions() -> dict[str, str]:
    """Return the versions of the programs that this rank uses."""
    found = {"trainstone": __version__, "torch": str(torch.__version__)}
    found |= {"python": platform.python_version(), "numpy": np.__version__}
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        version = torch.cuda.nccl.version()
        found["nccl"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    return found


def list_shared_keys(config: Config) -> Document:
    """Return the keys of a configuration that must be equal on all ranks."""
    return {key: value for key, value in flatten(config.model_dump(mode="json")) if key not in HOST_KEYS}


def compare_with_rank_0(mine: Document, keys: Document, first: Document) -> None:
    """Refuse another version of a program or another configuration than rank 0 has; `first`: what it posted."""
    for name in EQUAL_VERSIONS:
        here, there = (one["versions"].get(name, "none") for one in (mine, first))
        if here != there:
            raise MachineError(
                f"its version of {name} is {here}; rank 0 on {first['host']} has {there}",
                hint=f"install the same version of {name} on all hosts",
            )
    differing = [key for key in sorted(keys | first["config"]) if keys.get(key) != first["config"].get(key)]
    if differing:
        shown = ", ".join(f"{key} = {keys.get(key)} ({first['config'].get(key)})" for key in differing[:SHOWN_KEYS])
        more = f" and {len(differing) - SHOWN_KEYS} more" if len(differing) > SHOWN_KEYS else ""
        raise ConfigError(
            f"its configuration differs from that of rank 0 on {first['host']}: {shown}{more}",
            hint="start all ranks with the same command",
        )


def check_data(config: Config, seconds: float) -> None:
    """Refuse where this host cannot read the data set. Generated data are written when they are missing."""
    if config.data.source != "files" or config.data.root is None:
        return
    root = Path(config.data.root)
    try:
        call_within(seconds, lambda: next(root.iterdir(), None) if root.is_dir() else root.open("rb").close())
    except OSError as err:
        reason = err.strerror or f"the file system does not answer within {seconds:g} s"
        raise DataError(
            f"cannot read the data set {root}: {reason}", hint="every host needs the data at the same path: --data DIR"
        ) from err


def name_token(folder: Path) -> Path:
    """Return a file name in the run folder that no other folder of that name has; it is not a file of the run."""
    return folder.absolute() / f".meeting-{secrets.token_hex(8)}.partial"


def check_folder(token: Path, number: int, seconds: float) -> None:
    """Write the token as rank 0; on others refuse where it is not visible or the run folder cannot be written."""
    folder = token.parent

    def find_and_write() -> bool:
        if number == 0:
            token.touch()
            return True
        end = time.monotonic() + VISIBLE_SECONDS
        while not token.exists():
            if time.monotonic() > end:
                return False
            with suppress(OSError):
                list(folder.iterdir())  # makes NFS look again
            time.sleep(0.05)
        mine = token.with_suffix(f".{number}.partial")
        mine.touch()
        mine.unlink()
        return True

    try:
        visible = call_within(seconds, find_and_write)
    except OSError as err:
        reason = err.strerror or "the file system does not answer"
        message = f"the run folder {folder} is unwritable on {name_host()}: {reason}"
        raise ResultError(message, hint=FOLDER_HINT) from err
    if not visible:
        what = "sees another folder of that name instead of" if folder.is_dir() else "does not see"
        raise ResultError(f"{name_host()} {what} the run folder {folder}", hint=FOLDER_HINT)
