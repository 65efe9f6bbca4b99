"""What surrounds the work of every run: stop signals, log file, failure record, rendezvous, machine facts.

Importing it does not import torch: the parent of child runs (sweep, --runs) and the launchers use it as well.
"""

import logging
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainstone.config.schema import Config
from trainstone.errors import OutOfMemoryError, ResultError, TrainstoneError
from trainstone.log import log_into
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.launch_protocol import RESUMABLE_VERBS, name_host
from trainstone.machine.ranks import read_rank, read_rendezvous
from trainstone.machine.signals import OTHER_RANK, StopSignals
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.run_folder import RunFolder
from trainstone.results.step_summary import describe_preflight
from trainstone.units import format_count

if TYPE_CHECKING:
    from trainstone.engine.distributed.collectives import World

log = logging.getLogger(__name__)


class Lifecycle:
    """A run in progress, on one rank of however many there are."""

    run: RunFolder
    """Written by rank 0; the other ranks know it from join() on."""
    world: "World"
    """Known from join() on."""

    def __init__(self, config: Config, run: RunFolder | None, signals: StopSignals, stack: ExitStack) -> None:
        self.config = config
        self.signals = signals
        self.rank = read_rank()
        self.started = time.perf_counter()
        self.completed: str | None = None
        """What is done so far, in words, for a run that is stopped."""
        if run:
            self.run = run
        self._logs = stack.enter_context(ExitStack())  # outermost: the traceback of a failure must land in the log
        if run:
            self._logs.enter_context(log_into(run.path / "log.txt"))
        stack.enter_context(record_failure(run, self))
        self._stack = stack

    def join(self) -> Iterator[Progress]:
        """Connect with the other ranks, if any, share the run folder, write the machine's facts."""
        from trainstone.engine.distributed.rendezvous import connect_ranks, share_run
        from trainstone.engine.distributed.store import format_address

        run = self.run if self.rank.number == 0 else None
        if self.rank.world > 1:
            others = format_count(self.rank.world - 1, "other rank")
            yield Progress(f"connecting with {others} at {format_address(read_rendezvous())}")
        self.world = self._stack.enter_context(connect_ranks(self.config, run))
        preflight = self.world.preflight
        yield Progress(describe_preflight(preflight) if preflight else "reading machine facts")
        self.run = share_run(run, self.world)
        if run is None:
            self._logs.enter_context(log_into(self.run.path / f"log-rank{self.rank.number:04d}.txt"))
        self.run.write_machine(read_facts(), read_software())

    def find_stop(self) -> str | None:
        """Return the signal that ends the run, wherever it arrived. All ranks must call this at the same point."""
        if self.rank.world == 1:
            return self.signals.received
        from trainstone.engine.distributed.stop_agreement import StopAgreement

        agreement = StopAgreement(self.world, self.signals)
        agreement.look()
        agreement.finish()
        return (self.signals.received or OTHER_RANK) if agreement.agreed.stop else None

    def check_stop(self) -> None:
        """Raise KeyboardInterrupt on every rank if any received a stop signal. Call between phases, on all ranks."""
        stop = self.find_stop()
        if stop:
            raise KeyboardInterrupt(stop)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


@contextmanager
def lifecycle(config: Config, run: RunFolder | None, signals: StopSignals) -> Iterator[Lifecycle]:
    """Surround the work of a run; None: this rank does not write the result, or there is no run folder at all."""
    with ExitStack() as stack:
        yield Lifecycle(config, run, signals, stack)


@contextmanager
def record_failure(run: RunFolder | None, life: Lifecycle) -> Iterator[None]:
    """Write a failure into the result and its traceback into the log, and raise it as an error with a hint.

    A resumed run that has done nothing yet is left as it was.
    """
    try:
        yield
    except KeyboardInterrupt as err:
        if run and run.result.status == "running":
            kind, hint, text = run.result.kind, None, "stopped before the measurement was complete"
            if kind in RESUMABLE_VERBS:
                hint = f"go on with: trainstone {kind} --resume {shlex.quote(str(run.path))}"
            if life.completed:
                text = f"stopped by {str(err) or 'Ctrl-C'} after {life.completed}"
            with suppress(OSError):
                stop = finding("interrupted", text, hint=hint)
                run.update(status="interrupted", findings=[*run.result.findings, stop])
        raise
    except BaseException as err:
        log.debug("the run failed", exc_info=True)  # for the log file; the terminal gets the message
        known = explain_failure(err, run)
        if run:
            failed = known or err
            # A RuntimeError of torch needs no name.
            named = isinstance(failed, TrainstoneError | RuntimeError)
            message = str(failed) if named else f"{type(failed).__name__}: {failed}"
            code = "out-of-memory" if isinstance(failed, OutOfMemoryError | MemoryError) else "run-failed"
            found = finding(code, message, hint=getattr(failed, "hint", None))
            with suppress(OSError):  # a full disk must not hide what happened
                if not run.undo():
                    run.update(status="failed", findings=[*run.result.findings, found])
        if known is None or known is err:
            raise
        raise known from err


def explain_failure(err: BaseException, run: RunFolder | None) -> TrainstoneError | None:
    """Return an error that says what to do, where the cause is known; None: it is a bug, or not an error."""
    if isinstance(err, TrainstoneError):
        return err
    rank = read_rank()
    if isinstance(err, OSError) and (run or rank.world > 1):
        place = f"{err.filename}: {err.strerror}" if err.filename else str(err)
        if run and err.filename and not Path(str(err.filename)).is_relative_to(run.path):
            return ResultError(place)
        if run:
            return ResultError(f"cannot write into {run.path}: {err}", hint="is the disk full?")
        hint = "all ranks must see the same run folder and the same data: choose an --out DIR that all nodes share"
        return ResultError(f"rank {rank.number} on {name_host()}: {place}", hint=hint)
    if isinstance(err, RuntimeError):
        from trainstone.engine.torch_errors import explain_torch_error

        return explain_torch_error(err)
    return None
