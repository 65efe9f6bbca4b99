"""Saved weights for evaluation: a run's checkpoint or a file of weights, and the configuration that fits them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainstone.config.load import change_config, load_config
from trainstone.config.schema import Config, change_section
from trainstone.engine.network import build_network
from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.flows.train.checkpoint import (
    AVERAGE,
    BEST,
    CHECKPOINTS,
    MODEL,
    Checkpoint,
    find_latest,
    read_checkpoint,
)
from trainstone.models.weights import load_weights, read_weights, refuse_not_finite
from trainstone.workloads.registry import WORKLOADS


@dataclass(frozen=True)
class SavedWeights:
    path: Path
    weights: dict[str, Tensor]
    config: dict[str, Any] | None = None
    """Of a checkpoint, not checked yet; None: weights alone."""
    run_id: str | None = None
    step: int = 0
    epoch: float | None = None
    """None: not known."""
    averaged: bool = False
    recipe: str | None = None
    """Its name, where the file says it beside weights alone."""
    warnings: tuple[str, ...] = ()
    """Damaged checkpoints that were passed over."""

    @property
    def origin(self) -> str:
        """Where a sentence says they are from: step 1,250 of a run, or a file."""
        return self.path.name if self.run_id is None else f"step {self.step:,} of {self.run_id}"


def open_saved(path: Path) -> SavedWeights:
    """Read a checkpoint, the best (else the latest) of a run folder, or weights of other tools."""
    if path.is_dir():
        return describe_checkpoint(*find_checkpoint(path))
    metadata: dict[str, str] = {}
    # Only a safetensors file says something beside its tensors, whatever is wrong with other files.
    with contextlib.suppress(SafetensorError, OSError, RuntimeError, TypeError, OverflowError, MemoryError):
        if path.is_file():  # opening a pipe would wait for ever
            with safe_open(path, framework="np") as file:
                metadata = dict(file.metadata() or {})
    if "trainstone" in metadata:
        return describe_checkpoint(read_checkpoint(path))
    return SavedWeights(path, read_weights(path), recipe=metadata.get("recipe"))


def find_checkpoint(path: Path) -> tuple[Checkpoint, tuple[str, ...]]:
    """Return the best or else the latest of a folder, and a sentence for each damaged one that was passed over."""
    folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    damaged = []
    if (folder / BEST).is_file():
        try:
            return read_checkpoint(folder / BEST), ()
        except ResultError as err:
            damaged.append(f"{err.message}; passed over")
    latest, warnings = find_latest(folder)
    if latest is None:
        raise DataError(
            f"{path} holds no whole checkpoint{''.join(f'; {warning}' for warning in (*damaged, *warnings))}",
            hint="give a checkpoint, a file of weights, or the folder of a run of trainstone train",
        )
    return latest, (*damaged, *warnings)


class Origin(BaseModel):
    """What a checkpoint says of its training, beside its tensors."""

    step: Annotated[int, Field(ge=0)]
    run_id: str
    config: dict[str, Any]
    epoch: float | None = None


def describe_checkpoint(checkpoint: Checkpoint, warnings: tuple[str, ...] = ()) -> SavedWeights:
    try:
        origin = Origin.model_validate(checkpoint.document)
    except (ValidationError, RecursionError) as err:
        raise ResultError(
            f"{checkpoint.path} does not say where it comes from: invalid step, run_id or config"
        ) from err
    own, average = (
        {name.removeprefix(part): tensor for name, tensor in checkpoint.tensors.items() if name.startswith(part)}
        for part in (MODEL, AVERAGE)
    )
    return SavedWeights(checkpoint.path, own | average, **dict(origin), averaged=bool(average), warnings=warnings)


def resolve_config(
    saved: SavedWeights, recipe: str | None, settings: Sequence[str], flags: Mapping[str, Any]
) -> Config:
    """Return the configuration of a checkpoint, or the recipe that says which network weights are of; changed."""
    if saved.config is None:
        if recipe is None:
            known = f"--recipe {saved.recipe}" if saved.recipe else "--recipe NAME"
            raise ConfigError(
                f"{saved.path} holds weights alone: it does not say which network they are of",
                hint=f"{known} says it, --set model.depth=N and others change it; `trainstone recipes` lists them",
            )
        config = load_config(recipe, settings=settings, flags=flags)
        if config.model.num_classes != "auto":
            return config
        workload = WORKLOADS[config.workload]
        # As many as the last layer has; where the weights do not say it, putting them in will say what does not fit.
        number = max(workload.count_classes(saved.weights) or 0, workload.min_classes)
        return change_section(config, "model", num_classes=number)
    if recipe is not None:
        raise ConfigError(
            f"{saved.path} is a checkpoint of trainstone and has its recipe: --recipe {recipe} is one too many",
            hint="change keys of it with --set",
        )
    # What was chosen for the machine that trained is left out.
    values = {**saved.config, "device": "auto", "nodes": 1, "devices_per_node": 1}
    values.pop("system", None)
    for name in ("engine", "loader"):
        if isinstance(values.get(name), dict):
            values[name] = {**values[name], "threads": "auto"}
    try:
        return change_config(values, str(saved.path), settings=settings, flags=flags)
    except RecursionError as err:
        raise ConfigError(f"{saved.path}: its configuration is nested too deep") from err


def check_weights(config: Config, saved: SavedWeights) -> None:
    """Refuse weights that are not of the configured network, or no numbers; nothing is built for it.

    So a file whose configuration asks for a far larger network than it holds does not get the memory.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        load_weights(WORKLOADS[config.workload].build_model(config), saved.weights, str(saved.path))
    refuse_not_finite(saved.weights, str(saved.path))


def load_network(config: Config, device: torch.device, saved: SavedWeights) -> nn.Module:
    """Build the network, give it the weights and make it ready to judge."""
    model = build_network(config, device)
    load_weights(model, saved.weights, str(saved.path))
    return model.eval()
