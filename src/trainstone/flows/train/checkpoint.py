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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainstone.engine.distributed.collectives import World, broadcast_dict
from trainstone.engine.task import Task
from trainstone.errors import ResultError
from trainstone.files import sync_path
from trainstone.models.weights import (
    UPDATE,
    explain_write,
    read_tensors,
    write_checkpoint_file,
)
from trainstone.results.findings import finding
from trainstone.results.run_folder import RunFolder
from trainstone.results.schema.run import Finding

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
    text = broadcast_dict(world, document)
    findings = [finding("checkpoint-damaged", message) for message in text["damaged"]]
    if text["name"] is None:
        begun = "the run has no checkpoint yet: it starts from the beginning"
        return None, [*findings, finding("resumed", begun)]
    checkpoint = latest or read_checkpoint(folder / text["name"])
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
