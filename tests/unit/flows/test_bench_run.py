"""What a bench does with the stored trials that chose its configuration."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.engine.fit import Fitted, count_step_work
from trainstone.engine.trials import find_cache_file, read_trials, store_trials
from trainstone.flows.bench.run import check_trials
from trainstone.results.schema.trials import BatchTrial, Trials

CPU = torch.device("cpu")
SETTINGS = ["model.depth=18", "data.image_size=32", "device=cpu", "engine.threads=1", "train.batch_size=4"]
SETTINGS += ["train.precision=fp32", "engine.compile=false"]


@pytest.mark.parametrize(
    ("p5", "num_steps", "reused", "removed"),
    [
        (0.105, 50, True, False),
        (0.12, 50, True, True),  # 20 % slower
        (0.08, 50, True, True),  # faster: the trial was disturbed
        (0.12, 10, True, False),  # too few steps
        (0.12, 50, False, False),  # this run's own trial
    ],
)
def test_check_trials_removes_trials_that_disagree_with_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, p5: float, num_steps: int, reused: bool, removed: bool
):
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    config = load_config("resnet50", settings=SETTINGS)
    rows = [BatchTrial(precision="fp32", batch_size=size, step_seconds=0.025 * size) for size in (2, 4, 8)]
    trials = Trials(taken_utc="2026-11-19T00:00:00+00:00", reused=reused, batches=rows, chosen_batch_size=4)
    file = find_cache_file(config, CPU)
    store_trials(file, trials)
    updates: dict[str, list] = {}
    result = SimpleNamespace(
        step_seconds=SimpleNamespace(p5=p5), throughput=SimpleNamespace(num_steps=num_steps), findings=[]
    )
    life = SimpleNamespace(
        run=SimpleNamespace(result=result, update=updates.update), world=SimpleNamespace(is_single_rank=True)
    )
    check_trials(life, Fitted(config, CPU, count_step_work(config, 4), (), trials))
    assert (read_trials(file) is None) == removed
    assert [found.code for found in updates.get("findings", [])] == (["trials-outdated"] if removed else [])
