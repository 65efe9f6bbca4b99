"""What NVLOG says of a run before its first step. Pure."""

import math
from typing import Any

from trainstone.config.schema import Config
from trainstone.formats.nvlog import COSINE, STARTING_TRAINING, SYNTHETIC, XLA
from trainstone.machine.ranks import Rank
from trainstone.train.original.facts import Facts
from trainstone.train.task import order_pictures

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
"""Others compute on float32."""


def list_unnamed(facts: Facts) -> list[tuple[str, Any]]:
    """Keys and values before the model has its name: the network, then the training; what is not known is left out."""
    config = facts.config
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
        "Steps per Epoch": count_steps_per_epoch(facts),
        "Decay Steps": count_decay_steps(facts),
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
    return float(max(1, count_epoch_pictures(facts, facts.train_pictures) // facts.global_batch))


def count_decay_steps(facts: Facts) -> int:
    """Return the steps of the whole schedule, as train/schedule.py counts them."""
    pictures = count_epoch_pictures(facts, facts.config.schedule.pictures or facts.train_pictures)
    return round(pictures / facts.global_batch * facts.config.stop.epochs)


def count_epoch_pictures(facts: Facts, pictures: int) -> int:
    """Return how many pictures an epoch of so many takes: its last batch may be left out or filled up."""
    return order_pictures(facts.config, pictures, Rank(0, facts.ranks)).epoch_pictures


def count_epochs(facts: Facts) -> float:
    """Return the epochs that are run, begun ones included; of a training at most those of its schedule."""
    epochs = facts.config.stop.epochs
    if facts.steps is not None:
        made = math.ceil(facts.steps / count_steps_per_epoch(facts))
        epochs = made if facts.kind == "bench" else min(made, epochs)
    return int(epochs) if epochs == int(epochs) else epochs
