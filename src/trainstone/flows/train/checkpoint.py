"""Checkpoints of a run: one safetensors file each, whole or absent whatever happens; written, found, read, thinned out.

One holds all that a training run is between two steps, as tensors and plain values. Batches and mixing follow from seed
and step, so their state is the step. Layout: docs/training.md.

And saved weights to be judged, put into a network again: a checkpoint brings its configuration; of weights of other
tools a recipe must say which network they are of.
"""

import contextlib
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainstone.config.load import change_config, load_config
from trainstone.config.schema import Config, change_section
from trainstone.engine.distributed.collectives import World, broadcast_dict
from trainstone.engine.task import Task, build_network
from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.files import sync_path
from trainstone.models.weights import (
    UPDATE,
    explain_write,
    load_weights,
    read_tensors,
    read_weights,
    refuse_not_finite,
    write_checkpoint_file,
)
from trainstone.results.findings import finding
from trainstone.results.run_folder import RunFolder
from trainstone.results.schema.run import Finding
from trainstone.workloads.registry import WORKLOADS

CHECKPOINTS = "checkpoints"
BEST = "best.safetensors"
NAME = re.compile(r"step-([0-9]{8,18})\.safetensors")
MODEL, AVERAGE, OPTIMIZER, RANDOM = "model.", "ema.", "optimizer.", "random."


class Checkpoint(NamedTuple):
    """One that was found whole; its document is the writer's, with `format` and `step` added."""

    path: Path
    document: dict[str, Any]
    tensors: dict[str, Tensor]


def write_checkpoint(folder: Path, step: int, document: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write step-<steps done>.safetensors and bring it to disk; nobody may change the tensors meanwhile."""
    path = folder / name_checkpoint(step)
    write_checkpoint_file(path, tensors, {**document, "step": step})
    return path


def name_checkpoint(step: int) -> str:
    return f"step-{step:08d}.safetensors"


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint whose every byte of meaning was checked; anything else is refused, and nothing of it runs."""
    tensors, document = read_tensors(path, ResultError)
    if document is None:
        raise ResultError(
            f"{path} is no checkpoint of trainstone: a safetensors file without trainstone's document",
            hint=f"if it holds weights alone: trainstone eval {path}",
        )
    return Checkpoint(path, document, tensors)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder by their names, those with more steps first; the best has no number."""
    try:
        paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_file()]
    except FileNotFoundError:
        return []
    except OSError as err:
        raise ResultError(f"cannot read {folder}: {err.strerror or err}") from err
    return sorted(paths, key=lambda path: (int(path.stem.removeprefix("step-")), path.name), reverse=True)


def find_latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the whole checkpoint with most steps, and a sentence for each damaged one that was passed over.

    One of a newer format is not damaged: passing it over would throw away its steps.
    """
    tried: set[Path] = set()
    passed_over: list[str] = []
    # A run that still goes on may have thinned out what was listed: look again after each that fails.
    while paths := [path for path in list_checkpoints(folder) if path not in tried]:
        tried.add(paths[0])
        try:
            return read_checkpoint(paths[0]), passed_over
        except ResultError as err:
            if err.hint == UPDATE:
                raise
            if paths[0].exists():
                passed_over.append(f"{err.message}; passed over")
    return None, passed_over


def find_start(run: RunFolder, world: World) -> tuple[Checkpoint | None, list[Finding]]:
    """Return the latest whole checkpoint of a run, the same on all ranks, and what is to be said of it."""
    folder = run.path / CHECKPOINTS
    document, latest = None, None
    if world.rank.number == 0:
        latest, damaged = find_latest(folder)
        # Damaged ones with more steps than the latest whole one would pass for later ones.
        for path in list_checkpoints(folder):
            if latest and path == latest.path:
                break
            with contextlib.suppress(OSError):
                path.rename(path.with_name(path.name + ".damaged"))
        document = {"name": latest.path.name if latest else None, "damaged": damaged}
    told = broadcast_dict(world, document)
    findings = [finding("checkpoint-damaged", message) for message in told["damaged"]]
    if told["name"] is None:
        begun = "the run has no checkpoint yet: it starts from the beginning"
        return None, [*findings, finding("resumed", begun)]
    checkpoint = latest or read_checkpoint(folder / told["name"])
    step = checkpoint.document["step"]
    return checkpoint, [*findings, finding("resumed", f"went on from {checkpoint.path.name}, after step {step:,}")]


def prune(folder: Path, keep: int) -> None:
    """Remove all but the latest `keep`, and what a killed writer left; never the best. Only the writer may call it."""
    try:
        for path in [*list_checkpoints(folder)[keep:], *folder.glob("*.safetensors.*.partial")]:
            path.unlink(missing_ok=True)
    except OSError as err:
        raise ResultError(f"cannot remove {err.filename}: {err.strerror or err}") from err


def keep_best(folder: Path, step: int) -> None:
    """Make the checkpoint of a step the best one, if it is there: the same file, or a copy where links are unknown."""
    path, best = folder / name_checkpoint(step), folder / BEST
    if not path.is_file():
        return
    partial = folder / f"{BEST}.{secrets.token_hex(4)}.partial"
    try:
        try:
            partial.hardlink_to(path)
        except OSError:
            shutil.copyfile(path, partial)
            sync_path(partial)
        partial.replace(best)
        sync_path(folder)
    except OSError as err:
        raise explain_write(best, err) from err
    finally:
        # Renaming does nothing where both names are one file already: the best named twice.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def take_tensors(task: Task) -> dict[str, Tensor]:
    """Weights, their average, the optimiser's memory, random states; nothing is copied."""
    names = {parameter: name for name, parameter in task.plain.named_parameters()}
    tensors = {MODEL + name: tensor for name, tensor in task.plain.state_dict().items()}
    if task.average:
        tensors |= {AVERAGE + name: tensor for name, tensor in task.average.tensors.items()}
    for parameter, state in task.optimizer.state.items():
        tensors |= {f"{OPTIMIZER}{names[parameter]}.{key}": t for key, t in state.items() if isinstance(t, Tensor)}
    tensors[f"{RANDOM}cpu"] = torch.get_rng_state()
    if task.device.type == "cuda":
        tensors[f"{RANDOM}cuda"] = torch.cuda.get_rng_state(task.device)
    return tensors


def take_values(task: Task) -> dict[str, Any]:
    """What is no tensor: the loss scale, and what the optimiser remembers of past rates."""
    groups = [
        {key: value for key, value in group.items() if key == "previous_lr" and value is not None}
        for group in task.optimizer.param_groups
    ]
    kind = type(task.optimizer).__name__
    return {"loss_scale": task.scale.state(), "optimizer": kind, "optimizer_groups": groups}


def restore(task: Task, tensors: Mapping[str, Tensor], values: Mapping[str, Any], where: str) -> None:
    """Put a task into the state that was taken of one built alike."""
    kind, before = type(task.optimizer).__name__, values.get("optimizer")
    if kind != before:
        raise ResultError(
            f"{where} was written with the optimiser {before}; now it is {kind}, whose momentum means something else",
            hint="keep optimizer.name and optimizer.momentum_correction as they were",
        )
    expected = take_tensors(task)
    missing = [name for name in expected if name not in tensors and not name.startswith(RANDOM)]
    unlike = [name for name in expected if name in tensors and tensors[name].shape != expected[name].shape]
    if missing or unlike:
        raise ResultError(
            f"{where} is of another network or optimiser: {len(missing)} tensors missing, {len(unlike)} of other shape"
            f" (first: {(missing + unlike)[0]})",
            hint="resume with the configuration that wrote it",
        )
    with torch.no_grad():
        for name, tensor in expected.items():
            if not name.startswith(RANDOM):
                tensor.copy_(tensors[name])
    if f"{RANDOM}cpu" in tensors:
        torch.set_rng_state(tensors[f"{RANDOM}cpu"].cpu())
    if f"{RANDOM}cuda" in tensors and task.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[f"{RANDOM}cuda"].cpu(), task.device)
    task.scale.load(dict(values.get("loss_scale", {})))
    for group, remembered in zip(task.optimizer.param_groups, values.get("optimizer_groups", []), strict=False):
        group.update(remembered)


def is_finite(model: nn.Module) -> bool:
    """Say whether every weight is a number, and every running statistic."""
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    norms = torch._foreach_norm(tensors, float("inf"))
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())


@dataclass(frozen=True)
class Saved:
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
    doubts: tuple[str, ...] = ()
    """Damaged checkpoints that were passed over."""

    @property
    def origin(self) -> str:
        """Where a sentence says they are from: step 1,250 of a run, or a file."""
        return self.path.name if self.run_id is None else f"step {self.step:,} of {self.run_id}"


def open_saved(path: Path) -> Saved:
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
    return Saved(path, read_weights(path), recipe=metadata.get("recipe"))


def find_checkpoint(path: Path) -> tuple[Checkpoint, tuple[str, ...]]:
    """Return the best or else the latest of a folder, and a sentence for each damaged one that was passed over."""
    folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    damaged = []
    if (folder / BEST).is_file():
        try:
            return read_checkpoint(folder / BEST), ()
        except ResultError as err:
            damaged.append(f"{err.message}; passed over")
    latest, doubts = find_latest(folder)
    if latest is None:
        raise DataError(
            f"{path} holds no whole checkpoint{''.join(f'; {doubt}' for doubt in (*damaged, *doubts))}",
            hint="give a checkpoint, a file of weights, or the folder of a run of trainstone train",
        )
    return latest, (*damaged, *doubts)


class Origin(BaseModel):
    """What a checkpoint says of its training, beside its tensors."""

    step: Annotated[int, Field(ge=0)]
    run_id: str
    config: dict[str, Any]
    epoch: float | None = None


def describe_checkpoint(checkpoint: Checkpoint, doubts: tuple[str, ...] = ()) -> Saved:
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
    return Saved(checkpoint.path, own | average, **dict(origin), averaged=bool(average), doubts=doubts)


def resolve_config(saved: Saved, recipe: str | None, settings: Sequence[str], flags: Mapping[str, Any]) -> Config:
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


def check_weights(config: Config, saved: Saved) -> None:
    """Refuse weights that are not of the configured network, or no numbers; nothing is built for it.

    So a file whose configuration asks for a far larger network than it holds does not get the memory.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        load_weights(WORKLOADS[config.workload].build_model(config), saved.weights, str(saved.path))
    refuse_not_finite(saved.weights, str(saved.path))


def load_network(config: Config, device: torch.device, saved: Saved) -> nn.Module:
    """Build the network, give it the weights and make it ready to judge."""
    model = build_network(config, device)
    load_weights(model, saved.weights, str(saved.path))
    return model.eval()
