"""Detection on CUDA devices: not run here, its authors had no GPU; `pytest -m gpu` tries it where there is one."""

from pathlib import Path

import pytest
import torch

from small_training import list_settings, train_here
from trainstone.config.load import load_config
from trainstone.workloads.detect import DETECT

pytestmark = pytest.mark.gpu
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SCENES = {"model__width": 16, "data__image_size": 64, "train__batch_size": 8, "stop__epochs": 2.0}


def test_loss_and_boxes_are_those_of_the_cpu():
    config = load_config("demo-detect", settings=["data.image_size=64"])
    batch = DETECT.synthetic_batches(config, 4)[0]
    torch.manual_seed(0)
    model = DETECT.build_model(config).eval()
    on_cpu = DETECT.build_loss(config, CPU)(model, batch)
    seen = DETECT.build_look(config, CPU)(model, batch[0])
    model.to(CUDA)
    moved = tuple(part.to(CUDA) for part in batch)
    on_cuda = DETECT.build_loss(config, CUDA)(model, moved)
    assert float(on_cuda.detach()) == pytest.approx(float(on_cpu.detach()), rel=1e-3)
    found = DETECT.build_look(config, CUDA)(model, moved[0])
    assert [len(one) for one in found] == pytest.approx([len(one) for one in seen], abs=2)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_run_learns_and_is_scored(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = list_settings(device="cuda", train__precision=precision, eval__async=True, **SCENES)
    run = train_here(load_config("demo-detect", settings=settings), tmp_path, monkeypatch)
    assert run.result.quality is not None
    assert run.result.quality.history[-1].images == 43
    assert run.result.quality.tables
