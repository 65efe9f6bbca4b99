"""Checkpoints of an untrained tiny network, with a training run's metadata."""

from pathlib import Path
from typing import Any

import torch

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.engine.network import build_network
from trainstone.flows.train.checkpoint import write_checkpoint
from trainstone.results.schema.quality import Evaluation

STEP, RUN_ID = 12, "20261116-000000-demo-classify-abcd"


def make_config(*settings: str) -> Config:
    small = ["model.width=24", "data.image_size=32", "data.generated_train=20", "data.generated_val=31"]
    small += ["train.batch_size=4", "eval.batch_size=4", "engine.threads=1", "loader.threads=1", "device=cpu"]
    return load_config("demo-classify", settings=[*small, *settings])


def make_network(config: Config, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return build_network(config, torch.device("cpu"))


def make_document(config: Config) -> dict[str, Any]:
    """Return the document after 12 steps of 4 images, evaluated after 10."""
    evaluated = Evaluation(epoch=2.0, step=10, seconds=5.0, eval_seconds=1.0, metrics={"top1": 0.1}, images=31)
    return {
        "run_id": RUN_ID,
        "global_batch": 4,
        "epoch": 2.4,
        "history": [evaluated.model_dump(mode="json")],
        "config": config.model_dump(mode="json", exclude_none=True),
    }


def make_checkpoint(folder: Path, **changes: Any) -> Path:
    """Write step-00000012; its EMA weights differ from its model weights."""
    config = make_config()
    networks = {"model": make_network(config, 0), "ema": make_network(config, 1)}
    parts = {f"{kind}.{name}": part for kind, one in networks.items() for name, part in one.state_dict().items()}
    parts["optimizer.fc.weight.momentum_buffer"] = torch.zeros(3)
    return write_checkpoint(folder, STEP, make_document(config) | changes, parts)
