"""All that a page needs of a run, read once: the result, sampled steps and telemetry, child runs."""

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
    """A point of a run; no result where its folder is gone or damaged."""

    label: str
    run: str
    result: Result | None
    link: str | None  # the address of its page, or of its result where it has none


@dataclass(frozen=True)
class RunView:
    path: Path
    result: Result
    page_folder: Path  # where the page will lie; its links start there
    warnings: list[str] = field(default_factory=list)  # files that could not be read, in words

    def address(self, name: str) -> str:
        """Return the address of one of the run's files, relative to the page."""
        return relative_address(self.path / name, self.page_folder)

    def read(self, name: str, reader: Callable[[Path], Read]) -> Read | None:
        """Return what one of the run's files holds; None when it is absent or damaged, which is a doubt."""
        try:
            return reader(self.path / name) if (self.path / name).is_file() else None
        except ResultError as err:
            self.warnings.append(err.message)
            return None

    @cached_property
    def steps(self) -> StepSeries | None:
        """The steps of rank 0; None when absent, empty or damaged."""
        steady_from = self.result.throughput.steady_from_step if self.result.throughput else 0
        kept = self.result.step_seconds.outlier_steps if self.result.step_seconds else ()
        return self.read(STEPS, partial(sample_steps, steady_from=steady_from, keep_steps=kept))

    @cached_property
    def telemetry(self) -> dict[str, list[TelemetryPoint]]:
        """Telemetry by <host>-<device>, sampled down."""
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
                    raise ResultError(f"point {point.run} is not in the run folder and is not read")
                result = read_result(folder)
                files = (f"{point.run}/{name}" for name in ("report.html", "result.json"))
                link = next((self.address(file) for file in files if (self.path / file).is_file()), None)
            except ResultError as err:
                self.warnings.append(err.message)
            found.append(Child(point.label, point.run, result, link))
        return found

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
