"""Judges a run that did not come to its end from the steps it left: killed, failed, interrupted or still running."""

from pathlib import Path
from typing import Any

from trainstone.errors import ResultError
from trainstone.results.checks import check_throughput, finding
from trainstone.results.learning import check_speed, scale_throughput
from trainstone.results.schema import FINISHED, Phases, Result
from trainstone.results.steps import PHASE_COLUMNS, read_columns
from trainstone.results.store import read_result
from trainstone.results.summary import summarise_steps
from trainstone.results.verdicts import write_learning_verdict, write_verdict

NEEDED = ("step_seconds", "images", "data_seconds", *PHASE_COLUMNS)


def recover(path: Path) -> Result:
    """Read a run; where its result has no throughput but its step file has steps, fill in what they say."""
    result = read_result(path)
    if result.status == "killed":
        result = tell_killed(result)
    if result.throughput is not None or result.points or result.kind == "sweep":
        return result
    if result.kind == "train" and result.verdict is None:
        verdict = write_learning_verdict(result.quality, result.status, result.phases, result.recipe.name)
        result = result.model_copy(update={"verdict": verdict})
    file = (path if path.is_dir() else path.parent) / "steps-rank0000.csv"
    try:
        columns = read_columns(file, NEEDED) if file.is_file() else {}
        if not columns:
            return result
        summary = summarise_steps(columns, compiled=bool(result.config.get("engine", {}).get("compile")))
    except ResultError as err:
        return result.model_copy(update={"findings": [*result.findings, finding("damaged-file", err.message)]})
    throughput = scale_throughput(summary.throughput, result.world.ranks)
    found: dict[str, Any] = {"throughput": throughput, "step_seconds": summary.step_seconds}
    if result.kind == "train":
        findings = check_speed(throughput, summary.step_seconds)
        found["phases"] = add_phases(result, summary.phases)
    else:
        findings = check_throughput(throughput, summary.step_seconds)
        found["phases"] = summary.phases
        found["verdict"] = write_verdict(
            f"{result.recipe.name}, {result.status} after {len(columns['step_seconds'])} steps, until then",
            throughput,
            None,
            None,
            device_kind="device",
            precision=str(result.config.get("train", {}).get("precision")),
            ranks=result.world.ranks,
        )
    return result.model_copy(update=found | {"findings": [*result.findings, *findings]})


def tell_killed(result: Result) -> Result:
    """Add the finding that nobody was left to write."""
    told = "the run ended without a word: killed, out of memory, or the machine went down"
    resume = f"resume it: trainstone {result.kind} --resume RUN; dmesg shows whether memory ran out"
    hint = resume if result.kind in ("train", "sweep") else None
    return result.model_copy(update={"findings": [*result.findings, finding("killed", told, hint=hint)]})


def add_phases(result: Result, stepped: Phases) -> Phases:
    """Let steps after the last evaluation count; where a run has come to its end, its phases are what they are."""
    known = result.phases
    if known is None or result.status in (*FINISHED, "interrupted"):
        return known or stepped
    # The step file may lack the steps of an earlier start.
    names = ("train_seconds", "data_wait_seconds")
    longer = {name: max(getattr(known, name) or 0.0, getattr(stepped, name) or 0.0) for name in names}
    return stepped.model_copy(update=known.model_dump(exclude_none=True) | longer)
