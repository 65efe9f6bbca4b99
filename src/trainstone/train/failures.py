"""What a failure leaves behind: a finding in the result, the trace in log.txt, an error with a hint for the user."""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trainstone.errors import MachineError, OutOfMemoryError, ResultError, TrainstoneError
from trainstone.machine.launched import name_host
from trainstone.machine.ranks import read_rank
from trainstone.measure.devices import is_out_of_memory
from trainstone.results.checks import finding
from trainstone.results.schema import Finding
from trainstone.results.store import RunFolder
from trainstone.train.distributed import explain_peer_error

log = logging.getLogger(__name__)


@contextmanager
def keep_record(run: RunFolder) -> Iterator[None]:
    """Write a failure into the result before it ends the program; a run that was taken up in vain stays as it was."""
    try:
        yield
    except TrainstoneError as err:
        _write_failure(run, err.message, err.hint, memory=isinstance(err, OutOfMemoryError))
        raise
    except RuntimeError as err:
        known = explain_torch_error(err)
        told = (known.message, known.hint) if known else (str(err), None)
        _write_failure(run, *told, memory=isinstance(known, OutOfMemoryError))
        if known is None:
            raise
        raise known from err
    except KeyboardInterrupt:
        with suppress(OSError):
            run.update(status="interrupted", findings=[*run.result.findings, tell_early_end(run)])
        raise
    except OSError as err:
        _write_failure(run, str(err), None)
        raise ResultError(f"cannot write into {run.path}: {err}", hint="is the disk full?") from err
    except BaseException as err:
        _write_failure(run, f"{type(err).__name__}: {err}", None, memory=isinstance(err, MemoryError))
        raise


@contextmanager
def explaining() -> Iterator[None]:
    """Turn what torch or the disk says into an error with a hint where no record is kept: on ranks beside the first."""
    try:
        yield
    except OSError as err:
        place = f"{err.filename}: {err.strerror}" if err.filename else str(err)
        raise ResultError(
            f"rank {read_rank().number} on {name_host()}: {place}",
            hint="all ranks must see the same run folder and the same data: choose an --out DIR that all nodes share",
        ) from err
    except RuntimeError as err:
        known = explain_torch_error(err)
        if known is None:
            raise
        raise known from err


def tell_early_end(run: RunFolder) -> Finding:
    """A finding where somebody stopped a run before there was anything to judge."""
    hint = f"go on with: trainstone train --resume {shlex.quote(str(run.path))}" if run.result.kind == "train" else None
    return finding("interrupted", "stopped before the measurement was complete", hint=hint)


def explain_torch_error(err: RuntimeError) -> TrainstoneError | None:
    """Recognise what torch says when memory is out, a rank is gone or a model cannot be compiled; None: not known."""
    text = str(err)
    if is_out_of_memory(err):
        first = text.splitlines()[0]
        return OutOfMemoryError(
            f"out of memory: {first}", hint="take a smaller train.batch_size (eval.batch_size to evaluate), or auto"
        )
    if type(err).__module__.startswith(("torch._dynamo", "torch._inductor")):
        told = next((line.strip() for line in text.splitlines() if line.strip() and not line.endswith("raised:")), text)
        return MachineError(f"torch.compile does not work here: {told}", hint="--set engine.compile=false")
    return explain_peer_error(err)


def _write_failure(run: RunFolder, message: str, hint: str | None, *, memory: bool = False) -> None:
    log.debug("the run failed", exc_info=True)  # the trace goes to log.txt; the terminal gets the message
    failed = finding("out-of-memory", message, hint=hint) if memory else finding("run-failed", message, hint=hint)
    with suppress(OSError):  # a full disk must not hide what happened
        if not run.undo():
            run.update(status="failed", findings=[*run.result.findings, failed])
