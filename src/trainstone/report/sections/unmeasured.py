"""What was not measured, and why: absence is told, never filled in."""

from collections.abc import Iterator

from trainstone.report.blocks import Facts, Section
from trainstone.report.view import RunView
from trainstone.results.schema import FINISHED, Result


def build(view: RunView) -> Section | None:
    """A row for each thing a reader may miss."""
    rows = list(dict.fromkeys(_missing(view.result)))
    rows += [("unreadable", doubt) for doubt in dict.fromkeys(view.doubts)]
    return Section("unmeasured", "Not measured, and why", [Facts(rows)]) if rows else None


def _missing(result: Result) -> Iterator[tuple[str, str]]:
    if result.comparison is not None:
        yield "steps", "each of the two under points/ has its own"
        yield "utilisation, energy", "two models in turn share the device; a run alone measures them"
        return
    if result.points:
        yield "steps, utilisation, memory, energy", "each run under points/ has its own"
        return
    ended = "" if result.status in FINISHED else f"the run is {result.status}"
    if result.throughput is None:
        yield "throughput", ended or "no steps were recorded"
    elif result.throughput.ci95 is None:
        yield "interval", result.throughput.ci_covers
    if result.utilisation is None:
        yield "utilisation", ended or "two models in turn share the device; a run alone measures it"
    for device in result.devices:
        for told in device.unsupported:
            what, _, why = told.partition(": ")
            yield what if why else "telemetry", why or told
    if result.energy is None:
        yield "energy", ended or "no counter (RAPL, NVML) was read over the window; a guess is not given"
    if result.phases and result.phases.forward_seconds is None:
        yield "forward, backward, optimiser", "not split: --set engine.split_phases=true (costs a little speed)"
    again = "--runs 5" if result.kind in ("bench", "train") else "the same with --seed 1, 2, ..."
    yield "spread between runs", f"one run does not show what memory layout and seeds do; {again} does"
