"""The folder of a run: a new one under --out, or the one that `trainstone launch` has chosen for all ranks."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainstone.machine.launched import launch_name, launched_run

if TYPE_CHECKING:
    from trainstone.config.schema import Config
    from trainstone.results.schema import Kind
    from trainstone.results.store import RunFolder


def tell_command() -> str:
    """Return the command line as the user gave it."""
    return shlex.join(["trainstone", *sys.argv[1:]])


def open_folder(out: Path, kind: "Kind", config: "Config") -> "RunFolder":
    """Make a run folder; in that of an earlier attempt of the same launch the work begins anew."""
    from trainstone.results.store import create_run

    run = launched_run()
    if run is None:
        return create_run(out, kind, config, tell_command())
    if find_begun():
        clear_attempt(run)
    return create_run(run.parent, kind, config, tell_command(), run_id=run.name, there=True)


def clear_attempt(run: Path) -> None:
    """Take away what an earlier attempt of this launch has measured; what another one has is refused."""
    from trainstone.errors import ResultError
    from trainstone.results.store import read_result, refuse_running

    result = read_result(run)
    if result.process.launch != launch_name():
        refuse_running(run, result)
        raise ResultError(
            f"{run} holds a run of {result.kind} that has ended", hint="launch it anew: a training run alone goes on"
        )
    for pattern in ("telemetry-*.csv", "steps-rank*.csv", "trace/*"):
        for path in run.glob(pattern):
            path.unlink(missing_ok=True)


def find_begun() -> Path | None:
    """Return the run that an earlier attempt of this launch has begun; None: there is none."""
    run = launched_run()
    return run if run is not None and (run / "result.json").is_file() else None
