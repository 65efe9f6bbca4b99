"""From the runs of a sweep's points to its rows, findings and verdict; nothing is read or written here."""

from collections.abc import Sequence
from typing import Any

from trainstone.results.checks import finding
from trainstone.results.repeated import gather_findings, worst_noise
from trainstone.results.schema import Device, Finding, Point, Result
from trainstone.results.sweep import Sweep, label_row
from trainstone.results.verdicts import join_labels, judge_sweep, write_sweep_verdict

# What is told of the sweep itself, or of every run by itself.
NOT_GATHERED = frozenset({"interrupted", "killed", "out-of-memory", "run-failed"})
# What a profile alone can say: its speed, and all doubts about that, are the bench's.
OF_A_PROFILE = frozenset({"not-measured", "profiled"})
# A point's own hint may not hold for a sweep: a smaller batch is another point.
HINTS = {"few-steps": "give each point more time: --seconds N"}


def describe_measured(child: Result) -> dict[str, Any]:
    """Return a row's numbers from the run of its point."""
    measured, used, memory = child.throughput, child.utilisation, child.memory
    if measured is None:
        return {}
    train = child.config.get("train", {})
    batch, accumulate = train.get("batch_size"), train.get("accumulate", 1)
    whole = isinstance(batch, int) and isinstance(accumulate, int)
    return {
        "images_per_step": batch * accumulate * child.world.ranks if whole else None,
        "images_per_second": measured.images_per_second,
        "ci95": measured.ci95,
        "ci_covers": measured.ci_covers,
        # Too few to judge is told by the missing interval
        "steady": measured.steady or measured.trend_percent is None,
        "num_steps": measured.num_steps,
        "mfu": used.mfu if used else None,
        "limit": used.limit if used else None,
        "memory_bytes": (memory.peak_device_bytes or memory.peak_host_bytes) if memory else None,
        "noise": child.noise.grade if child.noise else "",
    }


def describe_profiled(child: Result, *, cores: bool = False) -> dict[str, Any]:
    """Return what a profile adds to its row; `cores`: core counters were requested, so that their absence is noted."""
    timeline = child.timeline
    told: dict[str, Any] = {} if timeline is None else {"compute_utilisation": timeline.compute_utilisation}
    if timeline is not None and timeline.cores is not None:
        return told | {"cores_percent": timeline.cores.pipes_percent}
    return told | ({"note": "no core counters"} if cores else {})


def list_points(sweep: Sweep) -> list[Point]:
    """Return the folders of all runs, in the order of the rows."""
    points = []
    for row in sweep.rows:
        label = label_row(sweep, row)
        points += [Point(label=label, run=row.run)] if row.run else []
        points += [Point(label=f"{label}, profile", run=row.profile_run)] if row.profile_run else []
    return points


def conclude_sweep(sweep: Sweep, children: Sequence[Result], profiles: Sequence[Result] = ()) -> dict[str, Any]:
    """Return the keys of the sweep's result, from its rows, their runs that have a number, and their profiles."""
    sweep = judge_sweep(sweep)
    titles = [child.verdict.partition(":")[0] for child in children if child.verdict]
    return {
        "sweep": sweep,
        "verdict": write_sweep_verdict(sweep, titles[0] if titles else "sweep"),
        "points": list_points(sweep),
        "noise": worst_noise(children),
        "findings": [*find_faults(sweep), *_gather(children, profiles)],
    }


def find_faults(sweep: Sweep) -> list[Finding]:
    """Findings on points without a number, and on profiles that failed."""
    findings = []
    failed = [row for row in sweep.rows if row.status == "failed"]
    if failed:
        told = "; ".join(f"{label_row(sweep, row)}: {row.note}" for row in failed)
        findings.append(finding("child-failed", f"{len(failed)} of {sweep.num_points} points failed: {told}"))
    full = [row for row in sweep.rows if row.status == "out_of_memory"]
    if full:
        untried = [row for row in sweep.rows if row.status == "not_tried"]
        beyond = f"; not tried, because larger: {join_labels(sweep, untried)}" if untried else ""
        why = full[0].note.removeprefix("out of memory: ")
        told = f"out of memory at {join_labels(sweep, full)} ({why}){beyond}"
        findings.append(finding("out-of-memory", told, severity="info", hint="a result, too: memory ends the sweep"))
    unprofiled = [row for row in sweep.rows if row.profile == "failed"]
    if unprofiled:
        told = f"no profile of {join_labels(sweep, unprofiled)}: {unprofiled[0].note}"
        findings.append(finding("profile-failed", told))
    return findings


def _gather(children: Sequence[Result], profiles: Sequence[Result]) -> list[Finding]:
    """Findings of the points, and warnings of profiles about what they alone can say."""
    of_points = [[f for f in child.findings if f.code not in NOT_GATHERED] for child in children]
    of_profiles = [[f for f in one.findings if f.code in OF_A_PROFILE and f.severity != "info"] for one in profiles]
    gathered = [*gather_findings(of_points, "points"), *gather_findings(of_profiles, "profiles")]
    return [found.model_copy(update={"hint": HINTS.get(found.code, found.hint)}) for found in gathered]


def strip_devices(devices: Sequence[Device]) -> list[Device]:
    """Return who took part, without the numbers of one point."""
    return [Device(host=device.host, name=device.name, label=device.label, rank=device.rank) for device in devices]
