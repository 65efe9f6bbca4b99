"""Preparing a run on all ranks: which values they agree on."""

from types import SimpleNamespace

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.config.schema import change_section
from trainstone.engine.fit import Fitted, count_step_work, finish
from trainstone.flows import prepare

TINY = ["model.depth=18", "data.image_size=32", "device=cpu", "engine.threads=1", "engine.compile=false"]


def test_fit_on_all_ranks_takes_smallest_batch_and_precision_of_rank_0(monkeypatch: pytest.MonkeyPatch):
    """Rank 1 (this one) fitted batch 16 and bf16; rank 0 fitted batch 64 and fp32; rank 2 only 8."""
    config = load_config("resnet50", settings=[*TINY, "train.batch_size=16", "train.precision=bf16"])
    sent = []

    def fit(*_args, **_options):
        yield from ()
        return Fitted(config, torch.device("cpu"), count_step_work(config, 16), ())

    def broadcast(_world, document):
        sent.append(document)
        return {"batch_size": 8, "precision": "fp32", "compile": True}

    monkeypatch.setattr(prepare, "fit_to_machine", fit)
    monkeypatch.setattr(prepare, "gather", lambda *_: [{"batch_size": 64}, {"batch_size": 16}, {"batch_size": 8}])
    monkeypatch.setattr(prepare, "broadcast_dict", broadcast)
    life = SimpleNamespace(world=SimpleNamespace(is_single_rank=False), rank=None, check_stop=lambda: None)
    fitted = finish(prepare.fit_on_all_ranks(life, config, strict=False))
    assert sent == [{"batch_size": 8, "precision": "bf16", "compile": False}]
    train = fitted.config.train
    assert (train.batch_size, train.precision, fitted.config.engine.compile) == (8, "fp32", True)
    # FLOPs are those of the agreed batch: utilisation divides them by it.
    assert fitted.work == count_step_work(change_section(config, "train", batch_size=8, precision="fp32"), 8)
