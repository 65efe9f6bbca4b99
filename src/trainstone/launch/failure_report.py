"""Find the first rank that failed and its cause; write it into the run folder and raise it as one error.

For batch scripts: python -m trainstone.launch.failure_report RUN ENGINE CODE ENGINE_LOG
"""

import logging
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import EXIT_RESUMABLE, LaunchError, TrainstoneError, build_child_error
from trainstone.files import write_atomically
from trainstone.machine.launch_protocol import (
    CAUSE,
    FOLDER,
    get_host_name,
    get_launch_name,
    read_exit_code,
    read_failures,
)
from trainstone.machine.supervisor import LOG, describe_exit, format_memory_hint, read_since
from trainstone.results.findings import finding
from trainstone.results.run_folder import RunFolder, read_result
from trainstone.results.schema.run import FINISHED
from trainstone.text import format_error, printable_lines

log = logging.getLogger(__name__)

ENGINES = {"local": "torchrun", "mpi": "mpirun", "slurm": "srun"}
STOPPING = (-signal.SIGTERM, -signal.SIGUSR1)  # exit of a rank that gets a stop signal before it has a handler
# torchrun prints a block per failed rank; the first failure is last, under this line.
ROOT = "Root Cause (first observed failure)"
TORCHRUN = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: \d+\)\n\s*exitcode\s*: (-?\d+)", re.MULTILINE)
# Open MPI 4 (mpirun) and 5 (prterun).
MPIRUN = re.compile(r"process rank (\d+) with PID \d+ on node (\S+)\s+exited\s+on\s+signal\s+(\d+)")
MPIRUN_CODE = re.compile(r"^\s*Process name:\s*\[\[?[^\n]*?,\s*(\d+)\]\s+Exit code:\s*(\d+)", re.MULTILINE)
SRUN = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
LAST_LINES, LAST_CHARACTERS = 5, 600
RULE = re.compile("^-{20,}$", re.MULTILINE)
SLOTS_HINT = "--host a:4,b:4 names hosts with enough slots; --mpirun --oversubscribe shares cores"


class RankExit(NamedTuple):
    rank: int
    host: str
    code: int  # exit code, or minus the signal that ended it


def resolve_exit_code(
    run: Path, engine_text: str, engine: str, code: int, *, stopped: bool = False, launch: str | None = None
) -> int:
    """Return the exit code of a run that ended normally; otherwise write the cause into the run folder and raise it.

    The cause is the error of the first rank that failed, with its class and hint; else the engine's message.
    `stopped`: ranks got a stop signal; a rank that it ended before its handler was set has not failed.
    `launch`: name of the launch, if it is not this process's.
    """
    run_code = read_exit_code(run)
    if code == 0 and run_code is not None:
        return run_code
    failures = read_failures(run)
    causes = [failure for failure in failures if not failure.secondary]
    # A rank with a secondary failure did not die first, even if the engine saw it first.
    secondary = {failure.rank for failure in failures if failure.secondary}
    rank_exits = [end for end in find_rank_exits(engine_text, engine) if end.rank not in secondary]
    if stopped and not causes and all(end_code in STOPPING for end_code in [end.code for end in rank_exits] or [code]):
        return EXIT_RESUMABLE
    if candidates := causes or ([] if rank_exits else failures):
        failure = candidates[0]
        message = f"rank {failure.rank} on {failure.host}: {failure.message}"
        err = build_child_error(failure.exit_code, message, failure.hint)
        if failure.exit_code == TrainstoneError.exit_code:
            where = "the job's log" if engine == "slurm" else run / FOLDER / LOG
            err = TrainstoneError(message, hint=f"this is a bug; its traceback is in {where}")
    else:
        err = _build_engine_error(engine_text, engine, code, rank_exits[0] if rank_exits else None)
    record_cause(run, err, launch)
    raise err


def _build_engine_error(engine_text: str, engine: str, code: int, exited: RankExit | None) -> TrainstoneError:
    """Return the error of a run without a failure record: the rank that the engine names, else the engine's message."""
    if exited and exited.code < 0:
        ended = f"rank {exited.rank} on {exited.host} {describe_exit(exited.code)}"
        return LaunchError(ended, hint=format_memory_hint(exited.code))
    printed: dict[str, str] = {}
    for name in ("error", "hint"):  # continuation lines are indented
        # mpirun and srun may prefix a line with the rank: [1,0]<stderr> or 0:
        match = re.search(rf"^(?:\[[\d,]+\]<\w+>:?\s?|\d+: )?{name}: +(.+(?:\n {{7}}.+)*)", engine_text, re.MULTILINE)
        printed |= {name: re.sub(r"\n {7}", "\n", match[1])} if match else {}
    message, hint = printed.get("error"), printed.get("hint")
    if exited:
        text = f"rank {exited.rank} on {exited.host}: {message or describe_exit(exited.code)}"
        return build_child_error(exited.code, text, hint)
    if message:
        return build_child_error(code, message, hint)
    ended = f"{ENGINES[engine]} {describe_exit(code) if code else 'ended, but no rank wrote an exit code'}"
    if "not enough slots" in engine_text:
        return LaunchError(f"{ended}: there are not enough slots for all ranks", hint=SLOTS_HINT)
    before, box, *_ = [*RULE.split(engine_text), ""]
    if engine == "mpi" and box.strip():  # mpirun's guesses follow the box; the error of ssh is before it
        engine_text = before + box.strip().split("\n\n")[0]
    lines = [line for line in engine_text.splitlines() if line.strip() and not RULE.match(line)]
    words = printable_lines("\n".join(lines[-LAST_LINES:])[-LAST_CHARACTERS:])
    return LaunchError(
        ended + (f": {words}" if words else ""), hint="the complete output is in launch/ of the run folder"
    )


def record_cause(run: Path, err: TrainstoneError, launch: str | None = None) -> None:
    """Write the cause of a failure into the run folder, also when rank 0 was killed; a write error is only logged.

    The result of another launch that is still running in this folder is not changed.
    """
    try:
        write_atomically(run / FOLDER / CAUSE, f"{format_error(err.message, err.hint)}\n")
        if not (run / "result.json").is_file():
            return
        result = read_result(run)
        if result.status == "running" and result.process.launch not in (None, launch or get_launch_name()):
            return
        # A secondary failure in rank 0's result would look like a second cause.
        secondary = {failure.message for failure in read_failures(run) if failure.secondary}
        kept = [one for one in result.findings if one.code != "rank-failed" and one.message not in secondary]
        failed = finding("rank-failed", err.message, hint=err.hint)
        status = result.status if result.status in FINISHED else "failed"
        RunFolder(run, result).update(status=status, findings=[failed, *kept])
    except (OSError, TrainstoneError) as problem:
        log.warning("cannot record the failure in %s: %s", run, problem)


def main(words: list[str]) -> int:
    """Report how the ranks of a batch script ended, and return the exit code of the run."""
    run, engine, code, file = Path(words[0]), words[1], int(words[2]), Path(words[3])
    try:
        return resolve_exit_code(run, read_since(file, 0).decode("utf-8", "replace"), engine, code)
    except TrainstoneError as err:
        sys.stderr.write(f"{format_error(err.message, err.hint)}\n")
        return err.exit_code


def find_rank_exits(text: str, engine: str) -> list[RankExit]:
    """Return how ranks ended in the last attempt: the likely cause first, SIGTERM, which engines send, last."""
    found, here = [], get_host_name()
    if engine == "local":
        before, _, root = text.rpartition(ROOT)
        others = before[before.rfind(" FAILED\n") :] if " FAILED\n" in before else ""
        found = [
            RankExit(int(rank), here, int(code)) for part in (root, others) for rank, code in TORCHRUN.findall(part)
        ]
    elif engine == "mpi":
        found = [RankExit(int(rank), host, -int(number)) for rank, host, number in MPIRUN.findall(text)]
        found = found or [RankExit(int(rank), here, int(code)) for rank, code in MPIRUN_CODE.findall(text)]
    elif engine == "slurm":
        names = {signal.strsignal(number): number for number in signal.valid_signals()}
        for host, rank, words in SRUN.findall(text):  # such as Exited with exit code 3; Killed
            match = re.search(r"exit code (\d+)", words)
            ended = next((number for name, number in names.items() if name and words.startswith(name)), signal.SIGKILL)
            found.append(RankExit(int(rank), host, int(match[1]) if match else -ended))
    return sorted(found, key=lambda exited: exited.code == -signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
