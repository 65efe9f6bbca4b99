"""Training checkpoints: write (atomically), find, read, restore and prune them; one safetensors file each.

A checkpoint holds the complete training state between two steps, as tensors and plain values. Batches and mixing depend
on seed and step only, so the step number is their state. Layout: docs/how-to/train-to-a-target.md.
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
    build_write_error,
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
    """A checkpoint that was read and verified; its document is the writer's, with `format` and `step` added."""

    path: Path
    document: dict[str, Any]
    tensors: dict[str, Tensor]


def write_checkpoint(folder: Path, step: int, document: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write step-<steps done>.safetensors and sync it to disk; the tensors must not change during the call."""
    path = folder / name_checkpoint(step)
    write_checkpoint_file(path, tensors, {**document, "step": step})
    return path


def name_checkpoint(step: int) -> str:
    return f"step-{step:08d}.safetensors"


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; raise ResultError if it is damaged. No code from the file is executed."""
    tensors, document = read_tensors(path, ResultError)
    if document is None:
        raise ResultError(
            f"{path} is not a trainstone checkpoint: its safetensors metadata has no trainstone entry",
            hint=f"if it holds only weights: trainstone eval {path}",
        )
    return Checkpoint(path, document, tensors)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the numbered checkpoints of a folder, most steps first; best.safetensors is not among them."""
    try:
        paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_file()]
    except FileNotFoundError:
        return []
    except OSError as err:
        raise ResultError(f"cannot read {folder}: {err.strerror or err}") from err
    return sorted(paths, key=lambda path: (int(path.stem.removeprefix("step-")), path.name), reverse=True)


def find_latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the intact checkpoint with the most steps, and a message for each damaged one that was skipped.

    A checkpoint in a newer format is an error: skipping it would lose its steps.
    """
    tried: set[Path] = set()
    skipped: list[str] = []
    # A run that is still training may have pruned a listed file: list again after each failure.
    while paths := [path for path in list_checkpoints(folder) if path not in tried]:
        tried.add(paths[0])
        try:
            return read_checkpoint(paths[0]), skipped
        except ResultError as err:
            if err.hint == UPDATE:
                raise
            if paths[0].exists():
                skipped.append(f"{err.message}; skipped")
    return None, skipped


def find_resume_checkpoint(run: RunFolder, world: World) -> tuple[Checkpoint | None, list[Finding]]:
    """Return the latest intact checkpoint of a run, the same on all ranks, and findings about it."""
    folder = run.path / CHECKPOINTS
    document, latest = None, None
    if world.rank.number == 0:
        latest, damaged = find_latest(folder)
        # Rename damaged files with more steps: they would look like later checkpoints.
        for path in list_checkpoints(folder):
            if latest and path == latest.path:
                break
            with contextlib.suppress(OSError):
                path.rename(path.with_name(path.name + ".damaged"))
        document = {"name": latest.path.name if latest else None, "damaged": damaged}
    shared = broadcast_dict(world, document)
    findings = [finding("checkpoint-damaged", message) for message in shared["damaged"]]
    if shared["name"] is None:
        return None, [*findings, finding("resumed", "the run has no checkpoint yet: training starts at step 0")]
    checkpoint = latest or read_checkpoint(folder / shared["name"])
    step = checkpoint.document["step"]
    return checkpoint, [*findings, finding("resumed", f"resumed from {checkpoint.path.name}, after step {step:,}")]


def prune(folder: Path, keep: int) -> None:
    """Remove all but the latest `keep` checkpoints, and partial files of a killed writer; keep the best.

    Call it only on the rank that writes checkpoints.
    """
    try:
        for path in [*list_checkpoints(folder)[keep:], *folder.glob("*.safetensors.*.partial")]:
            path.unlink(missing_ok=True)
    except OSError as err:
        raise ResultError(f"cannot remove {err.filename}: {err.strerror or err}") from err


def keep_best(folder: Path, step: int) -> None:
    """Make the checkpoint of a step the best one, if it exists: a hard link, or a copy if links are not supported."""
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
        raise build_write_error(best, err) from err
    finally:
        # If both names are already the same file, replace() does nothing and the partial name stays.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def collect_tensors(task: Task) -> dict[str, Tensor]:
    """Return weights, their average, optimiser state and random states as tensors; nothing is copied."""
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


def collect_values(task: Task) -> dict[str, Any]:
    """Return the state that is not a tensor: the loss scale, and the optimiser's previous learning rate."""
    groups = [
        {key: value for key, value in group.items() if key == "previous_lr" and value is not None}
        for group in task.optimizer.param_groups
    ]
    kind = type(task.optimizer).__name__
    return {"loss_scale": task.scale.state(), "optimizer": kind, "optimizer_groups": groups}


def restore(task: Task, tensors: Mapping[str, Tensor], values: Mapping[str, Any], where: str) -> None:
    """Load a saved state into a task that was built from the same configuration."""
    kind, before = type(task.optimizer).__name__, values.get("optimizer")
    if kind != before:
        raise ResultError(
            f"{where} was written with optimiser {before}; this run uses {kind}, whose momentum is not compatible",
            hint="resume with the same optimizer.name and optimizer.momentum_correction",
        )
    expected = collect_tensors(task)
    missing = [name for name in expected if name not in tensors and not name.startswith(RANDOM)]
    unlike = [name for name in expected if name in tensors and tensors[name].shape != expected[name].shape]
    if missing or unlike:
        raise ResultError(
            f"{where} does not fit this network or optimiser: {len(missing)} tensors missing, {len(unlike)} with "
            f"another shape (first: {(missing + unlike)[0]})",
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
    """Return whether all weights and running statistics are finite."""
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    norms = torch._foreach_norm(tensors, float("inf"))
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
