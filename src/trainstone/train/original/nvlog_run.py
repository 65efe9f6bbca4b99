"""What NVLOG says of a run before its first step. Pure."""

import math
from typing import Any

from trainstone.config.schema import Config
from trainstone.formats.nvlog import COSINE, STARTING_TRAINING, SYNTHETIC, XLA
from trainstone.train.original.facts import Facts

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
"""Others compute on float32."""


def list_unnamed(facts: Facts) -> list[tuple[str, Any]]:
    """Keys and values before the model has its name: the network, then the training; what is not known is left out."""
    config = facts.config
    a_epoch = count_steps_per_epoch(facts)
    told: dict[str, Any] = {
        "Model HParams:": None,
        "Name": f"{config.model.name}{config.model.depth}_v1.5",
        "Number of classes": config.model.num_classes,
        "Compute_format": "NHWC" if config.engine.channels_last else "NCHW",
        "Input_format": "NHWC",
        "dtype": f"<dtype: '{DTYPES.get(config.train.precision, 'float32')}'>",
        f"Deterministic Run - Seed: {config.seed}": None,
        STARTING_TRAINING: None,
    }
    if facts.steps is not None or facts.kind == "train":
        told["Training Epochs"] = count_epochs(facts)
    if facts.steps is not None:
        told["Total Steps"] = facts.steps
    told |= {
        "Steps per Epoch": a_epoch,
        "Decay Steps": round(
            (config.schedule.pictures or facts.train_pictures) / facts.global_batch * config.stop.epochs
        ),
        "Weight Decay Factor": config.optimizer.weight_decay,
        "Init Learning Rate": config.optimizer.learning_rate,
        "Momentum": config.optimizer.momentum,
        "Num GPUs": facts.ranks,
        "Per-GPU Batch Size": config.train.batch_size,
    }
    return list(told.items())


def list_named(config: Config) -> list[str]:
    """What is said after that, each without a value."""
    said = {
        XLA: config.engine.compile,
        SYNTHETIC: config.data.source == "synthetic",
        COSINE: config.schedule.name == "cosine",
    }
    return [message for message, true in said.items() if true]


def count_steps_per_epoch(facts: Facts) -> float:
    """Return an epoch's whole steps; a fraction as Python writes it, as in the original."""
    return float(max(1, facts.train_pictures // facts.global_batch))


def count_epochs(facts: Facts) -> float:
    """Return the epochs to be trained; of a bench those that its steps make, begun ones included."""
    if facts.kind == "bench" and facts.steps is not None:
        return math.ceil(facts.steps / count_steps_per_epoch(facts))
    epochs = facts.config.stop.epochs
    return int(epochs) if epochs == int(epochs) else epochs
