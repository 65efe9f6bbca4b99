"""Run programs with TensorFlow, MXNet, DALI or webdataset in their own environments (scripts/make-interop).

A peer is a small program in tests/interop for one of these environments: jobs as JSON in, answers as JSON out.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.processes.command import LIMIT, ROOT

PEERS = ROOT / "tests/interop"


def find_peer(name: str) -> Path:
    """Return the folder of an environment: tensorflow, mxnet, dali or webdataset; skip the test if it is missing."""
    folder = Path(os.environ.get("TRAINSTONE_INTEROP", ROOT / ".interop")) / name
    if not (folder / "bin/python").exists():
        pytest.skip("needs make interop")
    return folder


def query_peer(name: str, **jobs: Any) -> Any:
    """Run tests/interop/peer_<name>.py with these jobs and return its answers."""
    done = run_peer(name, PEERS / f"peer_{name}.py", text=json.dumps(jobs))
    return json.loads(done.splitlines()[-1])


def run_peer(name: str, *arguments: Path | str, text: str = "") -> str:
    python = find_peer(name) / "bin/python"
    quiet = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
        "LC_ALL": "C.UTF-8",
    }
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT, env=quiet)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def digest(data: bytes | memoryview) -> str:
    """Return the hash that peers send instead of byte strings."""
    return hashlib.sha256(data).hexdigest()
