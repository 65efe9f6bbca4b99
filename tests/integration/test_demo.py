"""The demo really learns: a smaller variant of `trainstone train demo-classify`, from its pictures to its target."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_drawn_shapes_are_learned_to_the_target(quick, tmp_path: Path):
    smaller = ("data.generated_train=3000", "data.generated_val=300", "eval.target=0.4", "engine.threads=1")
    settings = [part for setting in smaller for part in ("--set", setting)]
    done = quick("train", "demo-classify", *settings, "--require-target", "--json", "-q")
    assert done.code == 0, done.err
    result = done.json()
    assert result["status"] == "target_reached"
    accuracies = [one["metrics"]["top1"] for one in result["quality"]["history"]]
    assert accuracies[-1] >= 0.4 > max(accuracies[:-1])  # ten classes: chance is 0.1
    assert {one["images"] for one in result["quality"]["history"]} == {300}
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "best.safetensors").exists()
