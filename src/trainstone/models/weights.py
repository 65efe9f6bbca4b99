"""Weights of a network: read from files of several kinds, put into a model, written.

The kinds: safetensors, trainstone's checkpoints, torch's files, pickles of arrays.

No code in a file ever runs: torch's pickles are opened as weights alone, others by a reader of our own, or not at all.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainstone.errors import DataError
from trainstone.models.backbone import ENDS, recognise, take_backbone
from trainstone.models.mxnet_names import rename_from_gluon
from trainstone.models.pickled import read_pickled
from trainstone.models.tensorfile import gather_tensors, read_tensors, write_tensors
from trainstone.text import printable
from trainstone.units import format_count

WRAPPERS = ("state_dict", "model", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.")  # DistributedDataParallel's and torch.compile's
ZIP = b"PK\x03\x04"
LEGACY = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"
"""A number near the start of what torch.save wrote before 1.6: such a pickle is torch's."""
PICKLES = (".pickle", ".pkl")
"""Needed for the oldest pickles alone: they begin with anything."""
THE_MODEL = "the model"
SAVE_AGAIN = "where it comes from, save the tensors alone: torch.save(model.state_dict(), FILE), or as safetensors"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by the names that the model gave them; of a checkpoint the averaged ones, if any.

    A backbone by the names of MLPerf's SSD in MXNet gets ours.
    """
    weights = _read_kind(path)
    if not weights:
        raise DataError(f"{path} holds no tensors")
    try:
        return rename_from_gluon(_strip_prefixes(weights))
    except ValueError as err:
        raise DataError(f"{path} holds {err}") from err


def load_pretrained(module: nn.Module, path: Path) -> None:
    """Begin a ResNet, or that of a detector, with the weights of a file; every tensor of it, or none and an error.

    What the file has beyond them may only be the last stage, the classifier, or other layers of a detector.
    """
    weights, _ = take_backbone(read_weights(path))
    own = module.state_dict()
    fitting = {name: tensor for name, tensor in weights.items() if name in own or not name.startswith(ENDS)}
    refuse_not_finite(fitting, str(path))
    try:
        load_weights(module, fitting, str(path))
    except DataError as err:
        hint = None
        if found := recognise(weights):
            hint = f"the file is of {found[0]}: --set model.depth={found[0].depth} --set model.width={found[0].width}"
        raise DataError(err.message, hint=hint) from err


def refuse_not_finite(weights: Mapping[str, Tensor], where: str) -> None:
    """Refuse infinite numbers and what is none."""
    bad = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if bad:
        raise DataError(f"{where}: {format_count(len(bad), 'tensor')} not of finite numbers, first {bad[0]}")


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str, *, of: str = THE_MODEL) -> None:
    """Copy weights into the model, in the model's types; all names and shapes must agree, or nothing is changed."""
    state = model.state_dict()
    optional = {name for name in state if name.endswith("num_batches_tracked")}
    missing = [name for name in state if name not in weights and name not in optional]
    unknown = [name for name in weights if name not in state]
    both = [name for name in state if name in weights]
    shapes = [name for name in both if weights[name].shape != state[name].shape]
    kinds = [name for name in both if weights[name].is_floating_point() != state[name].is_floating_point()]
    faults = [
        _list_names("missing", missing),
        _list_names("unknown", unknown),
        _list_names("of another shape", [f"{n} {tuple(weights[n].shape)} for {tuple(state[n].shape)}" for n in shapes]),
        _list_names("of another type", [f"{n} {weights[n].dtype} for {state[n].dtype}" for n in kinds]),
    ]
    if any(faults):
        found = "; ".join(fault for fault in faults if fault)
        hint = None if missing or unknown or kinds or of != THE_MODEL else _hint_classes(shapes, list(state), weights)
        raise DataError(f"{where} does not fit {of}: {found}", hint=hint)
    with torch.no_grad():
        for name in both:
            state[name].copy_(weights[name])


def write_weights(path: Path, model_state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a plain safetensors file for other tools, names as the model has them, whole or not at all."""
    write_tensors(path, gather_tensors(model_state), {"format": "pt", **metadata})  # "pt" is what others look for


def _read_kind(path: Path) -> dict[str, Tensor]:
    """Read a file as what its first bytes say it is."""
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise DataError(f"{path} {'is not an ordinary file' if path.exists() else 'does not exist'}")
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror or err}") from err
    # A header of safetensors may have 128 bytes and so begin like a pickle; but its ninth byte is a brace.
    is_pickle = head.startswith(b"\x80") and head[8:9] != b"{"
    if head.startswith(ZIP) or (is_pickle and LEGACY in head):
        return _unwrap(path, _load_torch(path))
    if not is_pickle and (head[8:9] == b"{" or path.suffix == ".safetensors"):
        return _read_safetensors(path)
    if is_pickle or path.suffix in PICKLES:
        return {name: torch.from_numpy(array) for name, array in read_pickled(path).items()}
    raise DataError(
        f"{path} holds no weights: it is neither safetensors, a file of torch.save nor a pickle of arrays "
        f"(it begins with {head[:12]!r})"
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    file = read_tensors(path, DataError)
    if file.document is None:
        return file.tensors
    # An average of parameters alone takes the rest from the model.
    parts = [{n.removeprefix(p): t for n, t in file.tensors.items() if n.startswith(p)} for p in ("model.", "ema.")]
    return parts[0] | parts[1]


def _load_torch(path: Path) -> Any:
    """Open a file of torch.save as weights alone; anything else that it asks for is refused before it happens."""
    try:
        if zipfile.is_zipfile(path):
            _check_unpacked(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols: the error says enough
            return torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except Exception as err:  # a damaged file makes torch raise anything: struct.error, KeyError, ...
        wanted = re.search(r"GLOBAL (\S+)", str(err))
        if wanted and isinstance(err, pickle.UnpicklingError):
            what = f"holds code, or objects other than tensors: it asks for {printable(wanted[1])[:100]}"
        else:
            reason = printable(str(err).strip().partition("\n")[0])[:200] or type(err).__name__
            what = f"is cut off, damaged or not a file of weights alone: {reason}"
        raise DataError(f"{path} {what}; it was not opened", hint=SAVE_AGAIN) from err


def _check_unpacked(path: Path) -> None:
    """Refuse a small file that would fill the memory; torch never compresses."""
    with zipfile.ZipFile(path) as archive:
        unpacked_bytes = sum(member.file_size for member in archive.infolist())
    if unpacked_bytes > path.stat().st_size:
        raise DataError(
            f"{path} unpacks to {unpacked_bytes} bytes, more than it has; torch.save does not compress", hint=SAVE_AGAIN
        )


def _unwrap(path: Path, found: Any) -> dict[str, Tensor]:
    """Take the tensors out of the dicts that training scripts put around them."""
    for _ in WRAPPERS:  # no deeper: a dict may hold itself
        inner = [found[name] for name in WRAPPERS if isinstance(found, dict) and isinstance(found.get(name), dict)]
        found = inner[0] if inner else found
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no weights but one {type(found).__name__}", hint=SAVE_AGAIN)
    others = [name for name, value in found.items() if not isinstance(name, str) or not _is_plain(value)]
    if others:
        raise DataError(
            f"{path} holds more than plain tensors by name: {_list_names('other', map(str, others))}; "
            f"weights may lie under {', '.join(WRAPPERS)}",
            hint=SAVE_AGAIN,
        )
    return {name: tensor.detach() for name, tensor in found.items()}


def _is_plain(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        # One number may be made to look like many; whoever copies such a tensor fills the memory.
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def _strip_prefixes(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in weights)), None):
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return weights


def _list_names(what: str, names: Iterable[str]) -> str:
    """Return "7 missing (a, b, c, ...)"; nothing for none."""
    shown = [printable(name)[:200] for name in names]
    more = ", ..." if len(shown) > 3 else ""
    return f"{len(shown)} {what} ({', '.join(shown[:3])}{more})" if shown else ""


def _hint_classes(differing: list[str], names: list[str], weights: Mapping[str, Tensor]) -> str | None:
    """Return how to make the model's last layer like the file's, if that is all that differs."""
    last = names[-1].rpartition(".")[0]
    classes = {weights[name].shape[:1] for name in differing}
    if any(name.rpartition(".")[0] != last for name in differing) or len(classes) != 1 or not (shape := classes.pop()):
        return None
    return f"--set model.num_classes={shape[0]}"
