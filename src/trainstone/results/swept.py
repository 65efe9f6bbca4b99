"""From the runs of a sweep's points to its rows, findings and verdict; nothing is read or written here."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainstone.machine.health import Noise
from trainstone.results.checks import finding
from trainstone.results.repeated import gather_findings
from trainstone.results.schema import Device, Finding, Point, Result
from trainstone.results.sweep import Sweep, SweepRow, label_row
from trainstone.results.verdicts import join_labels, judge_sweep, write_sweep_verdict

# What is told of the sweep itself, or of every run by itself.
NOT_GATHERED = frozenset({"interrupted", "killed", "out-of-memory", "run-failed"})
# What a profile alone can say: its speed, and all doubts about that, are the bench's.
OF_A_PROFILE = frozenset({"not-measured", "profiled"})
# A point's own hint may not hold for a sweep: a smaller batch is another point.
HINTS = {"few-steps": "give each point more time: --seconds N"}
NO_CORES = "no core counters"


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
    """Return what a profile adds to its row; `cores`: core counters were asked for, so that their absence is noted."""
    timeline = child.timeline
    if timeline is None:
        return {"note": NO_CORES} if cores else {}
    told: dict[str, Any] = {"compute_utilisation": timeline.compute_utilisation}
    if timeline.cores is not None:
        return told | {"cores_percent": timeline.cores.pipes_percent}
    lacking = [f.message.removeprefix("core utilisation: ") for f in child.findings if _is_on_cores(f)]
    return told | {"note": ": ".join([NO_CORES, *lacking[:1]])} if cores else told


def _is_on_cores(found: Finding) -> bool:
    return found.code == "not-measured" and found.message.startswith("core utilisation")


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
    noises = [child.noise for child in children if child.noise is not None]
    noise: Noise | None = max(noises, key=lambda noise: noise.grade, default=None)
    title = titles[0] if titles else "sweep"
    return {
        "sweep": sweep,
        "verdict": write_sweep_verdict(sweep, title),
        "points": list_points(sweep),
        "noise": noise,
        "findings": [*find_faults(sweep), *_gather(children), *_gather_profiled(profiles)],
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


def _gather(children: Sequence[Result]) -> list[Finding]:
    kept = [
        child.model_copy(update={"findings": [f for f in child.findings if f.code not in NOT_GATHERED]})
        for child in children
    ]
    gathered = gather_findings(kept, "points")
    return [found.model_copy(update={"hint": HINTS.get(found.code, found.hint)}) for found in gathered]


def _gather_profiled(profiles: Sequence[Result]) -> list[Finding]:
    """Warnings of what profiles alone can say."""
    kept = [
        profile.model_copy(
            update={"findings": [f for f in profile.findings if f.code in OF_A_PROFILE and f.severity != "info"]}
        )
        for profile in profiles
    ]
    return gather_findings(kept, "profiles")


def strip_devices(devices: Sequence[Device]) -> list[Device]:
    """Return who took part, without the numbers of one point."""
    return [Device(host=device.host, name=device.name, label=device.label, rank=device.rank) for device in devices]


def sort_rows(sweep: Sweep, rows: Mapping[str, SweepRow], labels: Sequence[str]) -> Sweep:
    """Return the sweep with these rows, in the order of the labels of all points."""
    return sweep.model_copy(update={"rows": [rows[label] for label in labels if label in rows]})
