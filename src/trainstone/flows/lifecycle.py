"""Set-up and tear-down of every run: stop signals, log file, failure record, rendezvous, machine facts.

Does not import torch: the parent process of child runs (sweep, --runs) and the launchers use it as well.
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
from trainstone.log import log_to_file
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.launch_protocol import RESUMABLE_VERBS, get_host_name
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
    """A run in progress, on one rank."""

    run: RunFolder
    """Written by rank 0; set by join() on the other ranks."""
    world: "World"
    """Set by join()."""

    def __init__(self, config: Config, run: RunFolder | None, signals: StopSignals, stack: ExitStack) -> None:
        self.config = config
        self.signals = signals
        self.rank = read_rank()
        self.started = time.perf_counter()
        self.completed: str | None = None
        """Progress in words, for the message of a stopped run."""
        if run:
            self.run = run
        self._logs = stack.enter_context(ExitStack())  # outermost: the log file gets the traceback of a failure
        if run:
            self._logs.enter_context(log_to_file(run.path / "log.txt"))
        stack.enter_context(record_failure(run, self))
        self._stack = stack

    def join(self) -> Iterator[Progress]:
        """Connect with the other ranks, if any; share the run folder; write the machine facts."""
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
            self._logs.enter_context(log_to_file(self.run.path / f"log-rank{self.rank.number:04d}.txt"))
        self.run.write_machine(read_facts(), read_software())

    def find_stop(self) -> str | None:
        """Return the stop signal that any rank received. All ranks must call this at the same point."""
        if self.rank.world == 1:
            return self.signals.received
        from trainstone.engine.distributed.stop_agreement import StopAgreement

        agreement = StopAgreement(self.world, self.signals)
        agreement.update()
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
    """Set up a run and tear it down; `run` is None on ranks that do not write the result, or without a run folder."""
    with ExitStack() as stack:
        yield Lifecycle(config, run, signals, stack)


@contextmanager
def record_failure(run: RunFolder | None, life: Lifecycle) -> Iterator[None]:
    """Write a failure into the result and its traceback into the log, and raise it as an error with a hint.

    The result of a resumed run that has not trained a step yet is left unchanged.
    """
    try:
        yield
    except KeyboardInterrupt as err:
        if run and run.result.status == "running":
            kind, hint, text = run.result.kind, None, "stopped before the measurement was complete"
            if kind in RESUMABLE_VERBS:
                hint = f"resume with: trainstone {kind} --resume {shlex.quote(str(run.path))}"
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
            # torch's RuntimeErrors are readable without the class name.
            named = isinstance(failed, TrainstoneError | RuntimeError)
            message = str(failed) if named else f"{type(failed).__name__}: {failed}"
            code = "out-of-memory" if isinstance(failed, OutOfMemoryError | MemoryError) else "run-failed"
            failure = finding(code, message, hint=getattr(failed, "hint", None))
            with suppress(OSError):  # a full disk must not hide the error
                if not run.rollback():
                    run.update(status="failed", findings=[*run.result.findings, failure])
        if known is None or known is err:
            raise
        raise known from err


def explain_failure(err: BaseException, run: RunFolder | None) -> TrainstoneError | None:
    """Return an error with a message for users if the cause is known; None: a bug, or not an error."""
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
        return ResultError(f"rank {rank.number} on {get_host_name()}: {place}", hint=hint)
    if isinstance(err, RuntimeError):
        from trainstone.engine.torch_errors import explain_torch_error

        return explain_torch_error(err)
    return None
