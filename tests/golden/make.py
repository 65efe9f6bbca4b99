"""Makes the golden runs that could not be recorded here, from seeded series: python tests/golden/make.py [FOLDER]

The series are invented; everything said about them (windows, intervals, findings, verdicts) comes from the program's
own functions. The order is that of train/conclude.py. Which cases are recorded and which made: README.md.
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from series import Case, Rank, list_cases

from trainstone.files import dump_json
from trainstone.machine.health import grade_noise
from trainstone.measure.flops import Op, Work
from trainstone.measure.peaks import Peaks
from trainstone.results import schema
from trainstone.results.checks import check_limits, check_machine, check_throughput, finding
from trainstone.results.samples import HEADER, format_sample, read_samples, summarise
from trainstone.results.steps import PHASE_COLUMNS, StepRecord, StepWriter, read_columns
from trainstone.results.store import RunFolder
from trainstone.results.summary import StepSummary, summarise_steps
from trainstone.results.verdicts import write_verdict
from trainstone.train.conclude import DEVICE_WORDS, judge_utilisation, tell_throttling
from trainstone.train.fit import Fitted

Columns = dict[str, NDArray[np.float64]]
DIGITS = 7  # sums differ in the last bits between processors; the committed files must not


def make(case: Case, out: Path) -> None:
    """Write one run folder as the program would have left it."""
    path = out / case.name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    run = RunFolder(path, start_result(case))
    run.write_config(case.config)
    run.write_machine(case.machine, case.software)
    (path / "log.txt").write_text("")
    for number, rank in enumerate(case.ranks):
        write_steps(path / f"steps-rank{number:04d}.csv", rank)
        lines = [HEADER + "\n", *map(format_sample, rank.samples)]
        telemetry_file(path, rank).write_text("".join(lines))
    run.update(**judge(case, path))
    document = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(dump_json(round_floats(document)))


def start_result(case: Case) -> schema.Result:
    """The first result.json of a run, with a fixed time and process."""
    stem = f"20260301-120000-{case.name}"
    return schema.Result(
        kind="bench",
        run_id=stem,
        command=f"trainstone bench runs/{stem}/config.toml",
        status="running",
        recipe=schema.Recipe(name="", version=1, sha256=""),
        process=schema.Process(host=case.ranks[0].host, pid=4242, started_utc="2026-03-01T12:00:00+00:00"),
        world=schema.World(ranks=len(case.ranks), nodes=len({rank.host for rank in case.ranks})),
    )


def write_steps(path: Path, rank: Rank) -> None:
    """Write a step file with the program's own writer."""
    split = PHASE_COLUMNS[0] in rank.columns
    with StepWriter(path, split_phases=split, now=lambda: 0.0) as writer:
        for row in zip(*rank.columns.values(), strict=True):
            writer.add(StepRecord(**dict(zip(rank.columns, row, strict=True))))


def telemetry_file(path: Path, rank: Rank) -> Path:
    """Where measure/telemetry.py would write."""
    return path / f"telemetry-{rank.host}-{rank.label.replace(':', '')}.csv"


def judge(case: Case, path: Path) -> dict[str, Any]:
    """What conclude() writes, from the files; several ranks step together, as fast as the slowest."""
    columns = [read_columns(path / f"steps-rank{number:04d}.csv") for number in range(len(case.ranks))]
    summary = summarise_steps(join_ranks(columns), compiled=False)
    telemetry = [read_telemetry(path, rank, own, summary) for rank, own in zip(case.ranks, columns, strict=True)]
    reasons = [told for told in map(tell_throttling, telemetry) if told]
    throttled = reasons[0] if reasons else None
    utilisation = judge_one_device(case, summary, telemetry[0], throttled)
    noise = grade_noise(
        *case.pressure,
        step_variation_percent=summary.variation_percent,
        drifting=summary.drifting,
        throttled=bool(throttled),
    )
    cores = case.machine["cpu"]["physical_cores"]
    verdict = write_verdict(
        f"ResNet-{case.config.model.depth}",
        summary.throughput,
        utilisation,
        noise,
        device_kind=DEVICE_WORDS[torch.device(case.ranks[0].label).type],
        precision=case.config.train.precision,
    )
    return {
        "status": "ok",
        "throughput": summary.throughput,
        "step_seconds": summary.step_seconds,
        "phases": summary.phases.model_copy(update={"program_seconds": summary.phases.train_seconds + 9.5}),
        "utilisation": utilisation,
        "memory": case.memory,
        "energy": add_energy(telemetry, summary.throughput.images_per_second),
        "noise": noise,
        "devices": [describe(*each) for each in zip(case.ranks, columns, telemetry, strict=True)],
        "findings": [
            *check_throughput(summary.throughput, summary.step_seconds),
            *check_limits(utilisation, summary.data_share, throttled),
            *check_machine(noise, case.memory, keep_memory=True, threads=case.config.engine.threads, cores=cores),
            *(
                [finding("not-measured", f"telemetry: {'; '.join(case.ranks[0].unsupported)}")]
                if case.ranks[0].unsupported
                else ()
            ),
        ],
        "verdict": verdict,
    }


def join_ranks(columns: list[Columns]) -> Columns:
    """All ranks as one: the slowest decides the time of a step, all images count."""
    joined = dict(columns[0])
    for name in ("step_seconds", "data_seconds"):
        joined[name] = np.max([own[name] for own in columns], axis=0)
    joined["images"] = np.sum([own["images"] for own in columns], axis=0)
    return joined


def read_telemetry(path: Path, rank: Rank, columns: Columns, summary: StepSummary) -> dict[str, Any]:
    """Sum up one device's file over the steady window."""
    starts = columns["start_seconds"][summary.window]
    window = float(starts[0]), float(starts[-1] + columns["step_seconds"][-1])
    return summarise(read_samples(telemetry_file(path, rank)), *window, meter=rank.meter)


def judge_one_device(
    case: Case, summary: StepSummary, telemetry: dict[str, Any], throttled: str | None
) -> schema.Utilisation:
    """Compare a device's share of the speed with its peak, which is invented, too."""
    share = summary.throughput.images_per_second / len(case.ranks)
    own = dataclasses.replace(summary, throughput=summary.throughput.model_copy(update={"images_per_second": share}))
    batch = case.config.train.batch_size
    flops, moved = case.flops_per_image * batch, case.bytes_per_image * batch
    ops = (Op("convolution", (), 1, flops, moved // 3), Op("batch_norm", (), 1, flops // 1000, moved - moved // 3))
    fitted = Fitted(case.config, torch.device(case.ranks[0].label), Work(flops, moved, (), 0, ops), ())
    peaks = Peaks(case.peak_flops, case.peak_source, case.peak_bytes_per_second)
    return judge_utilisation(fitted, own, peaks, telemetry, throttled)


def add_energy(telemetry: list[dict[str, Any]], images_per_second: float) -> schema.Energy | None:
    """Energy of all devices together."""
    watts = [own["average_watts"] for own in telemetry]
    if None in watts:
        return None
    total = sum(watts)
    return schema.Energy(joules_per_image=total / images_per_second, average_watts=total, meter=telemetry[0]["meter"])


def describe(rank: Rank, columns: Columns, telemetry: dict[str, Any]) -> schema.Device:
    """One of devices[], from its own steps."""
    own = summarise_steps(columns, compiled=False)
    return schema.Device(
        host=rank.host,
        name=rank.device,
        label=rank.label,
        images_per_second=own.throughput.images_per_second,
        step_seconds_median=own.step_seconds.median,
        data_wait_seconds=own.phases.data_wait_seconds,
        telemetry={name: value for name, value in telemetry.items() if value is not None},
        unsupported=rank.unsupported,
    )


def round_floats(value: Any) -> Any:
    """Every number to DIGITS significant digits."""
    if isinstance(value, dict):
        return {key: round_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [round_floats(inner) for inner in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for made in list_cases():
        make(made, target)
        print(target / made.name)
