"""Judges a run that did not come to its end from the steps it left: killed, failed, interrupted or still running."""

from pathlib import Path

from trainstone.errors import ResultError
from trainstone.results.checks import check_throughput, finding
from trainstone.results.schema import Finding, Result
from trainstone.results.steps import PHASE_COLUMNS, read_columns
from trainstone.results.store import read_result
from trainstone.results.summary import summarise_steps, write_verdict

NEEDED = ("step_seconds", "images", "data_seconds", *PHASE_COLUMNS)


def recover(path: Path) -> Result:
    """Read a run; where its result has no throughput but its step file has steps, fill in what they say."""
    result = read_result(path)
    if result.status == "killed":
        told = "the run ended without a word: killed, out of memory, or the machine went down"
        result = result.model_copy(update={"findings": [*result.findings, finding("killed", told)]})
    if result.throughput is not None or result.points:
        return result
    file = (path if path.is_dir() else path.parent) / "steps-rank0000.csv"
    try:
        columns = read_columns(file, NEEDED) if file.is_file() else {}
        if not columns:
            return result
        summary = summarise_steps(columns, compiled=bool(result.config.get("engine", {}).get("compile")))
    except ResultError as err:
        return result.model_copy(update={"findings": [*result.findings, finding("damaged-file", err.message)]})
    findings: list[Finding] = [*result.findings, *check_throughput(summary.throughput, summary.step_seconds)]
    title = f"{result.recipe.name}, {result.status} after {len(columns['step_seconds'])} steps, until then"
    verdict = write_verdict(
        title,
        summary.throughput,
        None,
        None,
        device_kind="device",
        precision=str(result.config.get("train", {}).get("precision")),
    )
    return result.model_copy(
        update={
            "throughput": summary.throughput,
            "step_seconds": summary.step_seconds,
            "phases": summary.phases,
            "findings": findings,
            "verdict": verdict,
        }
    )
