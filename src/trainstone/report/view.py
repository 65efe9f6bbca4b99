"""What a page needs of a run folder, read once: result, sampled steps and telemetry, child runs."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from trainstone.errors import ResultError
from trainstone.results.run_folder import read_result, recover
from trainstone.results.schema.run import Result
from trainstone.results.series import StepSeries, TelemetryPoint, sample_steps, sample_telemetry

STEPS = "steps-rank0000.csv"
Read = TypeVar("Read")


@dataclass(frozen=True)
class Child:
    """A child run of a sweep or of repeated runs; `result` is None if its folder is missing or damaged."""

    label: str
    run: str
    result: Result | None
    link: str | None  # relative URL of its page, else of its result.json


@dataclass(frozen=True)
class RunView:
    path: Path
    result: Result
    page_folder: Path  # folder of the page, to which links are relative
    warnings: list[str] = field(default_factory=list)  # messages about files that could not be read

    def url(self, name: str) -> str:
        """Return the URL of one of the run's files, relative to the page."""
        return relative_url(self.path / name, self.page_folder)

    def read(self, name: str, reader: Callable[[Path], Read]) -> Read | None:
        """Return the content of one of the run's files; None if it is missing, or damaged (which adds a warning)."""
        try:
            return reader(self.path / name) if (self.path / name).is_file() else None
        except ResultError as err:
            self.warnings.append(err.message)
            return None

    @cached_property
    def steps(self) -> StepSeries | None:
        """The steps of rank 0; None if missing, empty or damaged."""
        steady_from = self.result.throughput.steady_from_step if self.result.throughput else 0
        kept = self.result.step_seconds.outlier_steps if self.result.step_seconds else ()
        return self.read(STEPS, partial(sample_steps, steady_from=steady_from, keep_steps=kept))

    @cached_property
    def telemetry(self) -> dict[str, list[TelemetryPoint]]:
        """Downsampled telemetry by <host>-<device>."""
        names = sorted(path.name for path in self.path.glob("telemetry-*.csv"))
        sampled = {name[len("telemetry-") : -len(".csv")]: self.read(name, sample_telemetry) for name in names}
        return {name: points for name, points in sampled.items() if points}

    @cached_property
    def children(self) -> list[Child]:
        found = []
        for point in self.result.points:
            folder, result, link = self.find_inside(point.run), None, None
            try:
                if folder is None:
                    raise ResultError(f"point {point.run} is not in the run folder")
                result = read_result(folder)
                files = (f"{point.run}/{name}" for name in ("report.html", "result.json"))
                link = next((self.url(file) for file in files if (self.path / file).is_file()), None)
            except ResultError as err:
                self.warnings.append(err.message)
            found.append(Child(point.label, point.run, result, link))
        return found

    def find_inside(self, name: str) -> Path | None:
        """Return the resolved path of a file or folder; None if it is missing or outside of the run folder."""
        try:
            path = (self.path / name).resolve()
            return path if path.is_relative_to(self.path.resolve()) and path.exists() else None
        except (OSError, RuntimeError, ValueError):  # a NUL in the name, a name that is too long, a symlink loop
            return None


def relative_url(file: Path, base: Path) -> str:
    """Return the quoted URL of a file relative to a folder."""
    return quote(os.fsencode(os.path.relpath(file, base)))


def read_view(path: Path, page_folder: Path | None = None) -> RunView:
    """Read a run folder; for a run that was killed, results are computed from its recorded steps."""
    return RunView(path, recover(path), page_folder or path)
