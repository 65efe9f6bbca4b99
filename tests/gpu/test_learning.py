"""Training on CUDA devices: not run here by its authors, who had no GPU; `pytest -m gpu` runs it where there is one."""

from functools import partial
from pathlib import Path

import pytest

from flows import follow
from ranks import run_ranks
from small_training import assert_same, make_config, read_learned, train_here

pytestmark = pytest.mark.gpu
CASES = {
    "sgd": {},
    "lars": {"optimizer__name": "lars", "optimizer__learning_rate": 1.0},
    "fp16, dynamic scale": {"train__precision": "fp16"},
    "bf16, average, mixup": {"train__precision": "bf16", "train__ema": 0.9, "train__mixup": 0.2},
    "accumulated": {"train__accumulate": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_learns_and_ends(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = train_here(make_config(device="cuda", eval__target=1.0, **CASES[case]), tmp_path, monkeypatch)
    assert run.result.status in ("target_missed", "target_reached")
    assert run.result.quality is not None
    assert run.result.quality.history[-1].images == 43
    assert all(tensor.isfinite().all() for tensor in read_learned(run.path).tensors.values())


def test_a_resumed_run_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = {"device": "cuda", "engine__deterministic": True, "eval__target": 1.0}
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    whole = train_here(make_config(**settings), tmp_path / "whole", monkeypatch)
    parts = train_here(make_config(**settings, stop__steps=17), tmp_path / "parts", monkeypatch)
    train_here(make_config(**settings), parts.path, monkeypatch, resume=True)
    assert_same(read_learned(whole.path), read_learned(parts.path))


def train_rank(folder: str) -> str:
    from trainstone.machine.ranks import read_rank
    from trainstone.results.store import create_run
    from trainstone.train.to_target import run_train

    config = make_config(device="cuda", eval__target=1.0, parallel__compression="bf16", parallel__bn_ranks=2)
    first = read_rank().number == 0
    run = create_run(Path(folder), "train", config, "test") if first else None
    for _ in follow(partial(run_train, strict=False, resume=False), config, run):
        pass
    return run.result.status if run else ""


@pytest.mark.multigpu
def test_two_devices_train_together(tmp_path: Path):
    assert run_ranks(2, train_rank, tmp_path / "ranks", str(tmp_path / "runs"))[0] == "target_missed"
