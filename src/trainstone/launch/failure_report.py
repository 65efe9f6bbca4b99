"""After ranks have failed: which was the first, and why. Written into the run folder, and raised as one error.

For batch scripts: python -m trainstone.launch.failure_report RUN ENGINE CODE ENGINE_LOG
"""

import logging
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import EXIT_RESUMABLE, LaunchError, TrainstoneError, error_of_child
from trainstone.files import write_atomically
from trainstone.machine.launch_protocol import CAUSE, FOLDER, launch_name, name_host, read_code, read_failures
from trainstone.machine.supervisor import LOG, describe_exit, hint_at_memory, read_since
from trainstone.results.findings import finding
from trainstone.results.run_folder import RunFolder, read_result
from trainstone.results.schema.run import FINISHED
from trainstone.text import format_error, printable_lines

log = logging.getLogger(__name__)

ENGINES = {"local": "torchrun", "mpi": "mpirun", "slurm": "srun"}
STOPPING = (-signal.SIGTERM, -signal.SIGUSR1)  # how a rank ends that gets a stop signal before it handles them
# torchrun: a block for each rank that failed; the one that it saw first stands last, under this line.
ROOT = "Root Cause (first observed failure)"
TORCHRUN = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: \d+\)\n\s*exitcode\s*: (-?\d+)", re.MULTILINE)
# Open MPI 4 (mpirun) and 5 (prterun).
MPIRUN = re.compile(r"process rank (\d+) with PID \d+ on node (\S+)\s+exited\s+on\s+signal\s+(\d+)")
MPIRUN_CODE = re.compile(r"^\s*Process name:\s*\[\[?[^\n]*?,\s*(\d+)\]\s+Exit code:\s*(\d+)", re.MULTILINE)
SRUN = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
LAST_LINES, LAST_CHARACTERS = 5, 600
RULE = re.compile("^-{20,}$", re.MULTILINE)
SLOTS_HINT = "name hosts with enough slots (--host a:4,b:4), or share cores: --mpirun --oversubscribe"


class RankExit(NamedTuple):
    rank: int
    host: str
    code: int  # exit code, or minus the signal that ended it


def settle(
    run: Path, engine_text: str, engine: str, code: int, *, stopped: bool = False, launch: str | None = None
) -> int:
    """Return the exit code of a run that came to an orderly end; else write down the cause and raise it.

    The cause is the first rank that failed, with its class and hint; else what the engine says.
    `stopped`: ranks got a stop signal. Those that it ended before they handled it have not failed.
    `launch`: its name, if not that of this process.
    """
    run_code = read_code(run)
    if code == 0 and run_code is not None:
        return run_code
    failures = read_failures(run)
    causes = [failure for failure in failures if not failure.echo]
    # A rank that left an echo did not die first, even where the engine saw it first.
    echoed = {failure.rank for failure in failures if failure.echo}
    rank_exits = [death for death in find_rank_exits(engine_text, engine) if death.rank not in echoed]
    if stopped and not causes and all(end in STOPPING for end in [death.code for death in rank_exits] or [code]):
        return EXIT_RESUMABLE
    if text := causes or ([] if rank_exits else failures):
        failure = text[0]
        message = f"rank {failure.rank} on {failure.host}: {failure.message}"
        err = error_of_child(failure.exit_code, message, failure.hint)
        if failure.exit_code == TrainstoneError.exit_code:
            where = "the job's log" if engine == "slurm" else run / FOLDER / LOG
            err = TrainstoneError(message, hint=f"this is a bug; its traceback is in {where}")
    else:
        err = _explain_engine(engine_text, engine, code, rank_exits[0] if rank_exits else None)
    record_cause(run, err, launch)
    raise err


def _explain_engine(engine_text: str, engine: str, code: int, death: RankExit | None) -> TrainstoneError:
    """No rank has left a failure record: what the engine says of one, with what that printed; else its own message."""
    if death and death.code < 0:
        ended = f"rank {death.rank} on {death.host} {describe_exit(death.code)}"
        return LaunchError(ended, hint=hint_at_memory(death.code))
    printed: dict[str, str] = {}
    for name in ("error", "hint"):  # further lines of them are indented
        # Of many ranks a line may begin with [1,0]<stderr> or 0:
        match = re.search(rf"^(?:\[[\d,]+\]<\w+>:?\s?|\d+: )?{name}: +(.+(?:\n {{7}}.+)*)", engine_text, re.MULTILINE)
        printed |= {name: re.sub(r"\n {7}", "\n", match[1])} if match else {}
    message, hint = printed.get("error"), printed.get("hint")
    if death:
        said = f"rank {death.rank} on {death.host}: {message or describe_exit(death.code)}"
        return error_of_child(death.code, said, hint)
    if message:
        return error_of_child(code, message, hint)
    ended = f"{ENGINES[engine]} {describe_exit(code) if code else 'ended, but no rank said how its work went'}"
    if "not enough slots" in engine_text:
        return LaunchError(f"{ended}: there are not enough slots for all ranks", hint=SLOTS_HINT)
    before, box, *_ = [*RULE.split(engine_text), ""]
    if engine == "mpi" and box.strip():  # the causes that mpirun guesses at follow; ssh's own error is before it
        engine_text = before + box.strip().split("\n\n")[0]
    lines = [line for line in engine_text.splitlines() if line.strip() and not RULE.match(line)]
    words = printable_lines("\n".join(lines[-LAST_LINES:])[-LAST_CHARACTERS:])
    return LaunchError(ended + (f": {words}" if words else ""), hint="its whole output is in launch/ of the run folder")


def record_cause(run: Path, err: TrainstoneError, launch: str | None = None) -> None:
    """Let the run folder say what happened, even where its first rank was killed; what cannot be written is not.

    The result of another launch that is still under way there is its own.
    """
    try:
        write_atomically(run / FOLDER / CAUSE, f"{format_error(err.message, err.hint)}\n")
        if not (run / "result.json").is_file():
            return
        result = read_result(run)
        if result.status == "running" and result.process.launch not in (None, launch or launch_name()):
            return
        # An echo in the first rank's own words would be a second cause.
        echoes = {failure.message for failure in read_failures(run) if failure.echo}
        kept = [one for one in result.findings if one.code != "rank-failed" and one.message not in echoes]
        failed = finding("rank-failed", err.message, hint=err.hint)
        status = result.status if result.status in FINISHED else "failed"
        RunFolder(run, result).update(status=status, findings=[failed, *kept])
    except (OSError, TrainstoneError) as problem:
        log.warning("cannot record the failure in %s: %s", run, problem)


def main(words: list[str]) -> int:
    """Find out how the ranks of a batch script ended, and return its exit code."""
    run, engine, code, file = Path(words[0]), words[1], int(words[2]), Path(words[3])
    try:
        return settle(run, read_since(file, 0).decode("utf-8", "replace"), engine, code)
    except TrainstoneError as err:
        sys.stderr.write(f"{format_error(err.message, err.hint)}\n")
        return err.exit_code


def find_rank_exits(text: str, engine: str) -> list[RankExit]:
    """Return the deaths of the last attempt, the likely cause first; those by SIGTERM, which engines send, last."""
    found, here = [], name_host()
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
            exited = re.search(r"exit code (\d+)", words)
            ended = next((number for name, number in names.items() if name and words.startswith(name)), signal.SIGKILL)
            found.append(RankExit(int(rank), host, int(exited[1]) if exited else -ended))
    return sorted(found, key=lambda death: death.code == -signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
