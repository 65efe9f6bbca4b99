"""Time, memory and size of a report page: `trainstone report` of a normal run and of one with 10 million steps.

    python benchmarks/report.py [STEPS]

Runs the real command. Checks: a normal run below 3 s, also if the chart scripts are not cached yet; the long one below
20 s, 500 MB of memory and 5 MB of page. The long run is generated (0.6 GB in the temporary folder).
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent.parent / "tests/golden/good"
REPEATS = 5
STEP_SECONDS = 0.02
CHUNK = 100_000


def main() -> None:
    num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINSTONE_CACHE"] = str(Path(folder) / "cache")
        run = Path(shutil.copytree(GOLDEN, Path(folder) / "run"))
        first, *others = [write_page(run) for _ in range(REPEATS + 1)]
        print(f"one run, first time   {first:.2f} s (at most 3)")
        print(f"one run, cached       {min(others):.2f} to {max(others):.2f} s (at most 3)")
        long = Path(shutil.copytree(GOLDEN, Path(folder) / "long"))
        make_long(long, num_steps)
        seconds = write_page(long)
        size_mb = (long / "report.html").stat().st_size / 1e6
    memory_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(f"{num_steps:,} steps      {seconds:.1f} s (at most 20)")
    print(f"  highest memory      {memory_mb:.0f} MB (at most 500)")
    print(f"  page                {size_mb:.1f} MB (at most 5)")
    sys.exit(max(first, *others) > 3 or seconds > 20 or memory_mb > 500 or size_mb > 5)


def write_page(run: Path) -> float:
    """Return the seconds that the command takes."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "trainstone", "report", str(run)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def make_long(run: Path, num_steps: int) -> None:
    """Replace steps and telemetry by long files with 1000 flagged outliers."""
    rng = np.random.default_rng(0)
    start = 0.0
    header = (run / "steps-rank0000.csv").read_text().splitlines()[0].split(",")[:8]
    with (run / "steps-rank0000.csv").open("w") as file:
        file.write(",".join(header) + "\n")
        for first in range(0, num_steps, CHUNK):
            seconds = STEP_SECONDS * np.exp(0.05 * rng.standard_normal(min(CHUNK, num_steps - first)))
            starts = start + np.concatenate(([0.0], np.cumsum(seconds)))
            start = float(starts[-1])
            pairs = zip(starts.tolist(), seconds.tolist(), strict=False)
            file.writelines(f"{first + n},0,{a:.9g},1e-05,{s:.9g},64,6.9,0.1\n" for n, (a, s) in enumerate(pairs))
    telemetry = next(run.glob("telemetry-*.csv"))
    header_line = telemetry.read_text().splitlines()[0]
    with telemetry.open("w") as file:
        file.write(header_line + "\n")
        lines = int(num_steps * STEP_SECONDS * 2)
        file.writelines(f"{n / 2},{n * 25},1500,,,,60,{90 + n % 10},1234567890,none\n" for n in range(lines))
    result = json.loads((run / "result.json").read_text())
    flagged = [int(step) for step in np.linspace(1000, num_steps - 1, 1000)]
    result["throughput"] |= {"num_steps": num_steps, "steady_from_step": 100}
    result["step_seconds"] |= {"median": 0.02, "p5": 0.0184, "p95": 0.0217, "p99": 0.0225, "outlier_steps": flagged}
    (run / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
