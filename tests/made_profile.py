"""A made-up profile: five steps of ResNet-50 on a CPU, or ten on a GPU with kernels, streams and pipes."""

import gzip
import json
from pathlib import Path
from typing import Any

from command import ROOT
from made_results import make_result, write_run
from trainstone.results.profiled import Timeline
from trainstone.results.schema import Result

TRACE = "trace/rank0000.json.gz"


def make_timeline(kind: str = "cpu", **changes: Any) -> Timeline:
    """What the profile of a CPU (`cpu`) or of a GPU (`cuda`) says; a kernel's name has 1,843 characters."""
    values = json.loads((ROOT / f"tests/golden/profiles/{kind}.json").read_text())
    return Timeline(**(values | changes))


def make_profile(run_id: str = "profile0", timeline: Timeline | None = None, **changes: Any) -> Result:
    timeline = timeline or make_timeline()
    running, device = ("operators", "Intel Xeon") if timeline.device == "cpu" else ("kernels", "NVIDIA A100")
    given = {
        "kind": "profile",
        "timeline": timeline,
        "command": "trainstone profile",
        "device": device,
        "verdict": f"ResNet-50: {running} run for {100 * timeline.compute_utilisation:.1f} % of the step",
    }
    return make_result(run_id, 8 / 1.7, **(given | changes))


def write_profile(folder: Path, result: Result | None = None) -> Path:
    path = write_run(folder, result or make_profile())
    (path / "trace").mkdir()
    (path / TRACE).write_bytes(gzip.compress(b'{"traceEvents": []}', mtime=0))
    return path
