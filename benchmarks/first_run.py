"""Time of a first run: a fresh clone, a new environment, `make bench`.

    python benchmarks/first_run.py

Prints the times of set-up and measuring, and checks that the result is there within 120 s after set-up, with at least
20 steady steps, an interval and a verdict. Packages are downloaded, so set-up depends on the network.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAX_SECONDS = 120
MIN_STEPS = 20  # the fewest with an interval; the batch is the machine's best, not the one with many steps
ROOT = Path(__file__).parent.parent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "trainstone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        begin = time.perf_counter()
        # make bench with --dry-run: only creates the environment.
        subprocess.run(["make", "bench", "ARGS=--dry-run"], cwd=clone, check=True, stdout=subprocess.DEVNULL)
        ready = time.perf_counter()
        done = subprocess.run(
            ["make", "--silent", "bench", "ARGS=--json"], cwd=clone, stdout=subprocess.PIPE, check=True
        )
        end = time.perf_counter()
    result = json.loads(done.stdout)
    steps = result["throughput"]["num_steps"]
    print(f"set-up     {ready - begin:.0f} s")
    print(f"result     {end - ready:.0f} s (at most {MAX_SECONDS})")
    print(f"steps      {steps} steady (at least {MIN_STEPS})")
    print(f"verdict    {result['verdict']}")
    sys.exit(end - ready > MAX_SECONDS or steps < MIN_STEPS or "ci95" not in result["throughput"])


if __name__ == "__main__":
    main()
