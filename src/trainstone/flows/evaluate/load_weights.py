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
from trainstone.models.weights import check_finite, load_weights, read_weights
from trainstone.workloads.registry import WORKLOADS


@dataclass(frozen=True)
class SavedWeights:
    path: Path
    weights: dict[str, Tensor]
    config: dict[str, Any] | None = None
    """Configuration of a checkpoint, not checked yet; None: the file has only weights."""
    run_id: str | None = None
    step: int = 0
    epoch: float | None = None
    """None: not known."""
    averaged: bool = False
    recipe: str | None = None
    """Recipe name in the metadata of a file that has only weights."""
    warnings: tuple[str, ...] = ()
    """Messages about damaged checkpoints that were skipped."""

    @property
    def origin(self) -> str:
        """Return where the weights come from, for messages: "step 1,250 of RUN", or a file name."""
        return self.path.name if self.run_id is None else f"step {self.step:,} of {self.run_id}"


def read_saved_weights(path: Path) -> SavedWeights:
    """Read a checkpoint, the best (else the latest) checkpoint of a run folder, or a weights file of another tool."""
    if path.is_dir():
        return build_saved_weights(*find_checkpoint(path))
    metadata: dict[str, str] = {}
    # Only a safetensors file has metadata; errors of other files are reported below.
    with contextlib.suppress(SafetensorError, OSError, RuntimeError, TypeError, OverflowError, MemoryError):
        if path.is_file():  # opening a pipe would block
            with safe_open(path, framework="np") as file:
                metadata = dict(file.metadata() or {})
    if "trainstone" in metadata:
        return build_saved_weights(read_checkpoint(path))
    return SavedWeights(path, read_weights(path), recipe=metadata.get("recipe"))


def find_checkpoint(path: Path) -> tuple[Checkpoint, tuple[str, ...]]:
    """Return the best, else the latest checkpoint of a folder, and a message for each damaged one that was skipped."""
    folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    damaged = []
    if (folder / BEST).is_file():
        try:
            return read_checkpoint(folder / BEST), ()
        except ResultError as err:
            damaged.append(f"{err.message}; skipped")
    latest, warnings = find_latest(folder)
    if latest is None:
        raise DataError(
            f"{path} has no intact checkpoint{''.join(f'; {warning}' for warning in (*damaged, *warnings))}",
            hint="give a checkpoint, a weights file, or the run folder of a `trainstone train`",
        )
    return latest, (*damaged, *warnings)


class Origin(BaseModel):
    """Values in a checkpoint's document that identify its training run."""

    step: Annotated[int, Field(ge=0)]
    run_id: str
    config: dict[str, Any]
    epoch: float | None = None


def build_saved_weights(checkpoint: Checkpoint, warnings: tuple[str, ...] = ()) -> SavedWeights:
    try:
        origin = Origin.model_validate(checkpoint.document)
    except (ValidationError, RecursionError) as err:
        raise ResultError(
            f"{checkpoint.path} has invalid metadata: step, run_id or config is missing or wrong"
        ) from err
    own, average = (
        {name.removeprefix(part): tensor for name, tensor in checkpoint.tensors.items() if name.startswith(part)}
        for part in (MODEL, AVERAGE)
    )
    return SavedWeights(checkpoint.path, own | average, **dict(origin), averaged=bool(average), warnings=warnings)


def resolve_config(
    saved: SavedWeights, recipe: str | None, settings: Sequence[str], flags: Mapping[str, Any]
) -> Config:
    """Return the configuration of a checkpoint, or of the recipe for a weights file, with `settings` and `flags`."""
    if saved.config is None:
        if recipe is None:
            known = f"--recipe {saved.recipe}" if saved.recipe else "--recipe NAME"
            raise ConfigError(
                f"{saved.path} has only weights: it does not name their network",
                hint=f"add {known} (`trainstone recipes` lists them), and --set model.depth=N if the depth differs",
            )
        config = load_config(recipe, settings=settings, flags=flags)
        if config.model.num_classes != "auto":
            return config
        workload = WORKLOADS[config.workload]
        # As many as the last layer has; if that is not known, loading the weights reports what does not fit.
        number = max(workload.count_classes(saved.weights) or 0, workload.min_classes)
        return change_section(config, "model", num_classes=number)
    if recipe is not None:
        raise ConfigError(
            f"--recipe {recipe} cannot be combined with {saved.path}: a trainstone checkpoint contains its recipe",
            hint="leave --recipe out; change single keys with --set KEY=VALUE",
        )
    # Drop what was chosen for the machine that trained.
    values = {**saved.config, "device": "auto", "nodes": 1, "devices_per_node": 1}
    values.pop("system", None)
    for name in ("engine", "loader"):
        if isinstance(values.get(name), dict):
            values[name] = {**values[name], "threads": "auto"}
    try:
        return change_config(values, str(saved.path), settings=settings, flags=flags)
    except RecursionError as err:
        raise ConfigError(f"{saved.path}: the configuration is nested too deeply") from err


def check_weights(config: Config, saved: SavedWeights) -> None:
    """Raise if weights do not fit the configured network or are not finite; no memory is allocated for the network.

    So a file whose configuration claims a far larger network than it contains cannot exhaust memory.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        load_weights(WORKLOADS[config.workload].build_model(config), saved.weights, str(saved.path))
    check_finite(saved.weights, str(saved.path))


def load_network(config: Config, device: torch.device, saved: SavedWeights) -> nn.Module:
    """Build the network, load the weights and switch it to evaluation mode."""
    model = build_network(config, device)
    load_weights(model, saved.weights, str(saved.path))
    return model.eval()
