"""All that a page needs of a run, read once: the result, sampled steps and telemetry, child runs."""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from trainstone.errors import ResultError
from trainstone.results.schema import Result
from trainstone.results.series import StepSeries, TelemetryPoint, sample_steps, sample_telemetry
from trainstone.results.store import read_result, recover


@dataclass(frozen=True)
class Child:
    """A point of a run; no result where its folder is gone or damaged."""

    label: str
    run: str
    result: Result | None


@dataclass(frozen=True)
class RunView:
    path: Path
    result: Result
    page_folder: Path
    """Where the page will lie; its links start there."""
    doubts: list[str] = field(default_factory=list)
    """Files that could not be read, in words."""

    def address(self, name: str) -> str:
        """Return the address of one of the run's files, relative to the page."""
        return relative_address(self.path / name, self.page_folder)

    @cached_property
    def steps(self) -> StepSeries | None:
        return self.steps_of("steps-rank0000.csv")

    def steps_of(self, name: str) -> StepSeries | None:
        """Return the steps of a rank's file; None when absent, empty or damaged."""
        file, found = self.path / name, self.result.step_seconds
        if not file.is_file():
            return None
        steady_from = self.result.throughput.steady_from_step if self.result.throughput else 0
        try:
            return sample_steps(file, steady_from=steady_from, keep_steps=found.outlier_steps if found else ())
        except ResultError as err:
            self.doubts.append(err.message)
            return None

    @cached_property
    def telemetry(self) -> dict[str, list[TelemetryPoint]]:
        """Telemetry by <host>-<device>, sampled down."""
        series = {}
        for file in sorted(path for path in self.path.glob("telemetry-*.csv") if path.is_file()):
            try:
                sampled = sample_telemetry(file)
            except ResultError as err:
                self.doubts.append(err.message)
                continue
            if sampled:
                series[file.stem.removeprefix("telemetry-")] = sampled
        return series

    @cached_property
    def children(self) -> list[Child]:
        return [Child(point.label, point.run, self._read(point.run)) for point in self.result.points]

    def _read(self, run: str) -> Result | None:
        folder = self.find_inside(run)
        try:
            if folder is None:
                raise ResultError(f"point {run} is not in the run folder and is not read")
            return read_result(folder)
        except ResultError as err:
            self.doubts.append(err.message)
            return None

    def find_inside(self, name: str) -> Path | None:
        """Return a file or folder of the run, links followed; None where it is not there, or outside of the run."""
        try:
            path = (self.path / name).resolve()
            return path if path.is_relative_to(self.path.resolve()) and path.exists() else None
        except (OSError, RuntimeError, ValueError):  # a name with a NUL, too long a one, links in a ring
            return None


def relative_address(file: Path, base: Path) -> str:
    """Return a file's address as seen from a folder, in characters that an address may have."""
    return quote(os.fsencode(os.path.relpath(file, base)))


def read_view(path: Path, page_folder: Path | None = None) -> RunView:
    """Read a run folder; a run that was killed is judged from the steps it left."""
    return RunView(path, recover(path), page_folder or path)
