"""A fake point of a sweep without torch and other slow imports: behaves as configured and writes a run folder.

FAKE_POINTS is a JSON table of actions by train.batch_size or train.precision; other points succeed.
FAKE_RESULT is a result.json that this point's result is based on.
"""

import json
import os
import signal
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STEPS = 40
FIXED_SECONDS, IMAGE_SECONDS = 0.02, 0.01
SIGNALS = {"kill": signal.SIGKILL, "real-time": 40}
FAILURES = {
    "memory": (6, "out-of-memory", "out of memory: it is large"),
    "loss": (6, "run-failed", "the loss of step 3 is nan"),
    "config": (2, "run-failed", "the recipe is nonsense"),
    "own": (2, "run-failed", "train.batch_size = 1 is too small"),
    "data": (3, "run-failed", "no data set in /nowhere/seed of any seed"),
    "machine": (4, "run-failed", "ncu was not found"),
}


def main() -> None:
    verb, config_file = sys.argv[1:3]
    text = Path(config_file).read_text()
    batch, precision = (tomllib.loads(text)["train"][key] for key in ("batch_size", "precision"))
    table = json.loads(os.environ.get("FAKE_POINTS", "{}"))
    names = [str(batch), precision] if verb == "bench" else [f"{verb} {batch}"]
    action = next((table[name] for name in names if name in table), "fine")
    folder = Path(os.environ["TRAINSTONE_RUN"])
    run_id = folder.name
    assert folder.parent.samefile(sys.argv[sys.argv.index("--out") + 1])
    # A real point resolves every auto.
    (folder / "config.toml").write_text(text.replace('precision = "auto"', 'precision = "fp32"'))
    result = json.loads(Path(os.environ["FAKE_RESULT"]).read_text())
    config = tomllib.loads((folder / "config.toml").read_text())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    process = {"host": os.uname().nodename, "pid": os.getpid(), "started_utc": now}
    result |= {"kind": verb, "run_id": run_id, "status": "running", "config": config, "process": process}
    write(folder, result)
    act(action, folder, result)
    finish(folder, result, batch if batch != "auto" else 8, cores="--cores" in sys.argv and action != "no counters")


def write(folder: Path, result: dict[str, Any]) -> None:
    partial = folder / "result.json.partial"
    partial.write_text(json.dumps(result))
    partial.rename(folder / "result.json")


def act(action: str, folder: Path, result: dict[str, Any]) -> None:
    if action in FAILURES:
        code, name, message = FAILURES[action]
        finding = {"code": name, "severity": "error", "message": message, "hint": "none"}
        write(folder, result | {"status": "failed", "findings": [finding]})
        failure = {"rank": 0, "host": "here", "exit_code": code, "message": message, "hint": "none"}
        failure |= {"time_seconds": time.time(), "secondary": False}
        (folder / "launch/failed-rank0000.json").write_text(json.dumps(failure))
        sys.exit(code)
    if action in SIGNALS:
        os.kill(os.getpid(), SIGNALS[action])
    if action == "no counters":
        finding = {
            "code": "not-measured",
            "severity": "warning",
            "message": "core utilisation: forbidden",
            "hint": "ask",
        }
        result["findings"] = [finding]
    if action == "slow":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            write(folder, result | {"status": "interrupted"})
            sys.exit(130)


def finish(folder: Path, result: dict[str, Any], batch: int, *, cores: bool) -> None:
    seconds = FIXED_SECONDS + IMAGE_SECONDS * batch
    rate = batch / seconds
    lines = [f"{step},0,{step * seconds},0,{seconds},{batch},1,0.1\n" for step in range(STEPS)]
    head = "step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n"
    (folder / "steps-rank0000.csv").write_text(head + "".join(lines))
    measured = {"images_per_second": rate, "ci95": [0.99 * rate, 1.01 * rate]}
    result |= {
        "status": "ok",
        "verdict": f"ResNet-18: {rate:.3g} images/s",
        "throughput": result["throughput"] | measured,
        "utilisation": {"mfu": 0.5, "limit": "compute"},
        "memory": {"peak_host_bytes": 2**30},
    }
    if result["kind"] == "profile":
        result["timeline"] = {"device": "cpu", "steps": [], "compute_utilisation": 0.9, "accounted_share": 1.0}
    if cores:
        (folder / "ncu.csv").write_text("of ncu")
        used = {"pipes_percent": {"fma": 17.5}, "kernels": 1, "processes": 1, "cycles": 1.0, "file": "ncu.csv"}
        result["timeline"]["cores"] = used
    write(folder, result)


if __name__ == "__main__":
    main()
