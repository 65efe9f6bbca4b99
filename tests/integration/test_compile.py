"""engine.compile through the real command line, with a cache of its own so that nothing is already compiled."""

import shutil
from pathlib import Path

import pytest

from command import narrow_arguments

pytestmark = pytest.mark.slow

COMPILED = ["bench", *narrow_arguments(), "--iterations", "8", "--json", "-q", "--set", "engine.compile=true"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compile_time_is_told_apart(quick, tmp_path: Path):
    # Without vectors the compiler is done sooner.
    anew = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "ATEN_CPU_CAPABILITY": "default"}
    done = quick(*COMPILED, env=anew)
    assert done.code == 0, done.err
    result = done.json()
    steps, phases = result["step_seconds"], result["phases"]
    assert phases["compile_seconds"] == pytest.approx(steps["first"] - steps["median"])
    assert phases["compile_seconds"] > 20 * steps["median"]
    assert result["throughput"]["steady_from_step"] >= 1


def test_without_a_compiler_the_message_says_so(quick, tmp_path: Path):
    nothing = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path)}
    done = quick(*COMPILED, env=nothing)
    assert done.code == 4
    assert done.err.startswith("error: torch.compile does not work here: ")
    assert "hint:  --set engine.compile=false" in done.err
    assert len(done.err.splitlines()) == 2
