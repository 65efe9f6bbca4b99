"""Safetensors files: read into own memory and checked, written whole or not at all; and trainstone's document in them.

Such a file holds no code. Its reader knows whether a bad one is an error of data or of a result.
"""

import errno
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from trainstone.errors import ResultError, TrainstoneError
from trainstone.files import sync_path, write_atomically
from trainstone.text import printable

# History: 1: {"format", "step", ...}. What "sha256" covers must never change: it is checked before the format is.
FORMAT = 1
UPDATE = "update trainstone"
"""Hint of the error for a newer format."""


class TensorFile(NamedTuple):
    """All that a safetensors file holds."""

    tensors: dict[str, Tensor]
    document: dict[str, Any] | None
    """The document of a checkpoint."""


def read_tensors(path: Path, error: type[TrainstoneError]) -> TensorFile:
    """Read a whole file, a checkpoint with its checksum checked; `error` says what is wrong with it."""
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise ValueError("is not an ordinary file" if path.exists() else "does not exist")
        # pread: what is checked is what is used. A mapped file may change, or shrink and kill the process, later on.
        with safe_open(path, framework="pt", device="cpu", backend="pread") as file:
            metadata, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        document = _open_document(metadata, tensors)
    except OSError as err:
        raise error(f"cannot read {path}: {err.strerror or err}") from err
    except ValueError as err:
        raise error(f"{path} {err}") from err
    except (SafetensorError, RuntimeError, TypeError, OverflowError, MemoryError) as err:
        raise error(f"{path} {_explain(path, str(err))}") from err
    if document and document["format"] > FORMAT:
        message = f"{path} is a checkpoint of format {document['format']}; this trainstone reads up to {FORMAT}"
        raise error(message, hint=UPDATE)
    return TensorFile(tensors, document)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file and bring it to disk; after a crash it is there as it was, or as it is now.

    safetensors' save_file leaves files of another name when it is killed, and readable by their owner alone.
    """
    write_pieces(path, [save(dict(tensors), dict(metadata))])


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file and its folder to disk, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, pieces)
        sync_path(path.parent)
    except OSError as err:
        raise explain_write(path, err) from err


def explain_write(path: Path, err: OSError) -> ResultError:
    """Return the error for a file that cannot be written."""
    full = err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = "write into another folder"
    return ResultError(
        f"cannot write {path}: {err.strerror or err}", hint=f"free some space, or {hint}" if full else hint
    )


def gather_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return them on the CPU, row by row, none in the memory of another; copied only where that is needed."""
    gathered = {}
    memories = set()
    for name, tensor in tensors.items():
        ready = tensor.detach().to("cpu").contiguous()
        if ready.untyped_storage().data_ptr() in memories:
            ready = ready.clone()
        memories.add(ready.untyped_storage().data_ptr())
        gathered[name] = ready
    return gathered


def seal(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the metadata of a checkpoint: the document, and a checksum of it and of the gathered tensors."""
    text = json.dumps({**document, "format": FORMAT}, allow_nan=False)
    return {"trainstone": text, "sha256": _hash(text, tensors)}


def _open_document(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Return the document of a checkpoint after checking the whole file against its checksum; None if it has none."""
    text = metadata.get("trainstone")
    if text is None:
        return None
    if metadata.get("sha256") != _hash(text, tensors):
        raise ValueError("is damaged: its content and its checksum differ")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ValueError(f"has a document that is no JSON: {err}") from err
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise ValueError("has a document without a format number")
    return document


def _hash(document: str, tensors: Mapping[str, Tensor]) -> str:
    """Cover the document and each tensor's name, type, shape and bytes, wherever they lie in the file."""
    digest = hashlib.sha256(json.dumps(document).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        # One line of ASCII, which also says how many bytes follow: no two contents give the same sequence.
        digest.update(f"\n{json.dumps([name, str(tensor.dtype), list(tensor.shape)])}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _explain(path: Path, reason: str) -> str:
    """Describe a file that safetensors cannot read."""
    with path.open("rb") as file:
        head = file.read(9)
    if not head:
        return "is empty"
    # A header of safetensors may have 128 bytes and so begin like a pickle; but its ninth byte is a brace.
    if head.startswith((b"PK\x03\x04", b"\x80")) and head[8:] not in (b"", b"{"):
        return "is a pickle, which may hold code: it is not opened"
    return f"is cut off, damaged or not a safetensors file: {printable(reason.splitlines()[0])[:200]}"
