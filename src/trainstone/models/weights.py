"""Read, load, write and convert a network's weights.

Formats: safetensors, trainstone's checkpoints (safetensors with a JSON document), torch.save files, pickles of arrays.
No code in a file is executed: torch's files are loaded with weights_only=True, other pickles by legacy_pickle.py.
"""

import errno
import hashlib
import io
import json
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from trainstone.errors import ConfigError, DataError, ResultError, TrainstoneError
from trainstone.files import sync_path, write_atomically
from trainstone.models.legacy_pickle import pickle_arrays, read_pickled
from trainstone.models.mxnet_names import HEADS, name_in_gluon, rename_from_gluon
from trainstone.models.resnet import COUNTER, DEPTHS, build_resnet, list_names
from trainstone.text import printable
from trainstone.units import format_count

WRAPPERS = ("state_dict", "model", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.")  # DistributedDataParallel's and torch.compile's
ZIP = b"PK\x03\x04"
LEGACY = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"
"""Magic number near the start of files that torch.save wrote before 1.6."""
PICKLES = (".pickle", ".pkl")
"""Suffixes of protocol 0 pickles, which have no magic number."""
THE_MODEL = "the model"
SAVE_AGAIN = (
    "save only the tensors in the program that wrote it: torch.save(model.state_dict(), FILE), or as safetensors"
)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by the model's names; from a checkpoint the averaged (EMA) ones, if any.

    MXNet names of MLPerf's SSD backbone are translated.
    """
    weights = _read_kind(path)
    if not weights:
        raise DataError(f"{path} holds no tensors")
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in weights)), None):
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    try:
        return rename_from_gluon(weights)
    except ValueError as err:
        raise DataError(f"{path} holds {err}") from err


def load_pretrained(module: nn.Module, path: Path) -> None:
    """Initialise a ResNet, or a detector's backbone, from a file; all its tensors must be there, or an error is raised.

    Further tensors in the file are only allowed for the last stage, the classifier, or other layers of a detector.
    """
    weights, _ = split_backbone(read_weights(path))
    own = module.state_dict()
    fitting = {name: tensor for name, tensor in weights.items() if name in own or not name.startswith(ENDS)}
    check_finite(fitting, str(path))
    try:
        load_weights(module, fitting, str(path))
    except DataError as err:
        hint = None
        if found := recognise_resnet(weights):
            hint = f"the file has {found[0]}: --set model.depth={found[0].depth} --set model.width={found[0].width}"
        raise DataError(err.message, hint=hint) from err


def check_finite(weights: Mapping[str, Tensor], where: str) -> None:
    bad = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if bad:
        raise DataError(f"{where} has NaN or infinity in {format_count(len(bad), 'tensor')}, first {bad[0]}")


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str, *, of: str = THE_MODEL) -> None:
    """Copy weights into the model, cast to its dtypes; all names and shapes must match, or nothing is changed."""
    state = model.state_dict()
    optional = {name for name in state if name.endswith("num_batches_tracked")}
    missing = [name for name in state if name not in weights and name not in optional]
    unknown = [name for name in weights if name not in state]
    both = [name for name in state if name in weights]
    shapes = [name for name in both if weights[name].shape != state[name].shape]
    kinds = [name for name in both if weights[name].is_floating_point() != state[name].is_floating_point()]
    faults = {
        "missing": missing,
        "unknown": unknown,
        "of another shape": [f"{n} {tuple(weights[n].shape)} for {tuple(state[n].shape)}" for n in shapes],
        "of another type": [f"{n} {weights[n].dtype} for {state[n].dtype}" for n in kinds],
    }
    if found := "; ".join(_list_names(what, names) for what, names in faults.items() if names):
        hint = None if missing or unknown or kinds or of != THE_MODEL else _hint_classes(shapes, list(state), weights)
        raise DataError(f"{where} does not fit {of}: {found}", hint=hint)
    with torch.no_grad():
        for name in both:
            state[name].copy_(weights[name])


def write_weights(path: Path, model_state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a plain safetensors file for other tools, with the model's names, atomically."""
    write_bytes(path, save(gather_tensors(model_state), {"format": "pt", **metadata}))  # other tools require "pt"


def _read_kind(path: Path) -> dict[str, Tensor]:
    try:
        if not path.is_file():  # opening a pipe would block forever
            raise DataError(f"{path} {'is not an ordinary file' if path.exists() else 'does not exist'}")
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror or err}") from err
    is_pickle = _is_pickle(head)
    if head.startswith(ZIP) or (is_pickle and LEGACY in head):
        return _load_torch(path)
    if not is_pickle and (head[8:9] == b"{" or path.suffix == ".safetensors"):
        tensors, document = read_tensors(path, DataError)
        # In a checkpoint, averaged (ema.) parameters replace those of the model.
        parts = [{n.removeprefix(p): t for n, t in tensors.items() if n.startswith(p)} for p in ("model.", "ema.")]
        return tensors if document is None else parts[0] | parts[1]
    if is_pickle or path.suffix in PICKLES:
        return {name: torch.from_numpy(array) for name, array in read_pickled(path).items()}
    raise DataError(
        f"unknown format of {path}: it begins with {head[:12]!r}; safetensors, torch.save files and pickles of arrays "
        "are supported"
    )


def _load_torch(path: Path) -> dict[str, Tensor]:
    """Load a torch.save file with weights_only=True; anything but tensors is rejected before it is executed.

    Tensors are unwrapped from the dicts that training scripts put around them.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unpacked_bytes = sum(member.file_size for member in archive.infolist())
            if unpacked_bytes > path.stat().st_size:  # a compressed file could fill the memory
                message = f"{path} is compressed: it unpacks to {unpacked_bytes} bytes; torch.save does not compress"
                raise DataError(message, hint=SAVE_AGAIN)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols: the error is enough
            found = torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except Exception as err:  # a damaged file may raise any exception: struct.error, KeyError, ...
        wanted = re.search(r"GLOBAL (\S+)", str(err))
        if wanted and isinstance(err, pickle.UnpicklingError):
            what = f"holds code, or objects other than tensors: it requests {printable(wanted[1])[:100]}"
        else:
            reason = printable(str(err).strip().partition("\n")[0])[:200] or type(err).__name__
            what = f"is truncated, damaged or not a file of only weights: {reason}"
        raise DataError(f"{path} {what}; it was not opened", hint=SAVE_AGAIN) from err
    for _ in WRAPPERS:  # no deeper: a dict may contain itself
        inner = [found[name] for name in WRAPPERS if isinstance(found, dict) and isinstance(found.get(name), dict)]
        found = inner[0] if inner else found
    if not isinstance(found, dict):
        raise DataError(f"{path} holds type {type(found).__name__}, not a dict of tensors", hint=SAVE_AGAIN)
    others = [name for name, value in found.items() if not isinstance(name, str) or not _is_plain(value)]
    if others:
        raise DataError(
            f"{path} holds more than plain tensors by name: {_list_names('other', map(str, others))}; "
            f"allowed is a dict of tensors, also under the key {', '.join(WRAPPERS)}",
            hint=SAVE_AGAIN,
        )
    return {name: tensor.detach() for name, tensor in found.items()}


def _is_plain(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        # An expanded tensor has more elements than stored numbers; copying it could fill the memory.
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def _is_pickle(head: bytes) -> bool:
    # A safetensors file with a header of 128 bytes begins like a pickle, but its ninth byte is a brace.
    return head.startswith(b"\x80") and head[8:9] != b"{"


def _list_names(what: str, names: Iterable[str]) -> str:
    shown = [printable(name)[:200] for name in names]
    more = ", ..." if len(shown) > 3 else ""
    return f"{len(shown)} {what} ({', '.join(shown[:3])}{more})"


def _hint_classes(differing: list[str], names: list[str], weights: Mapping[str, Tensor]) -> str | None:
    """Return the --set option that gives the model's last layer the file's size, if nothing else differs."""
    last = names[-1].rpartition(".")[0]
    classes = {weights[name].shape[:1] for name in differing}
    if any(name.rpartition(".")[0] != last for name in differing) or len(classes) != 1 or not (shape := classes.pop()):
        return None
    return f"--set model.num_classes={shape[0]}"


BACKBONE = "backbone."
"""Prefix of the ResNet in trainstone's detectors."""
ENDS = ("layer4.", "fc.")
"""Parts that a backbone may not have: a detector has other layers there."""


class Network(NamedTuple):
    depth: int
    width: int
    """Channels of the stem and the first stage."""
    norm: str
    ends: tuple[str, ...]
    """Those of ENDS that are present."""

    def __str__(self) -> str:
        kind = "" if self.norm == "batch" else f" with {self.norm} norm"
        whole = {0: " up to layer3", 1: " without fc", 2: ""}[len(self.ends)]
        return f"ResNet-{self.depth}{kind}{whole}"


def split_backbone(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the ResNet's tensors, also from a detector's weights, and the names of all other tensors."""
    inner = {n.removeprefix(BACKBONE): t for n, t in weights.items() if n.startswith(BACKBONE)}
    if inner:
        return inner, tuple(name for name in weights if not name.startswith(BACKBONE))
    heads = tuple(name for name in weights if name.startswith(HEADS))
    return {name: tensor for name, tensor in weights.items() if name not in heads}, heads


def recognise_resnet(weights: Mapping[str, Tensor]) -> tuple[Network, nn.Module] | None:
    """Return the ResNet that matches most names, and that network on the meta device; None for other networks."""
    names = {name for name in weights if not name.endswith(COUNTER)}
    norm = "batch" if any(name.endswith(("running_mean", "running_var")) for name in names) else "group"
    last = any(name.startswith("fc.") for name in names)  # a classifier needs the stage before it
    ends = ENDS if last else tuple(end for end in ENDS if any(name.startswith(end) for name in names))
    absent = tuple(end for end in ENDS if end not in ends)
    listed = {depth: {n for n in list_names(depth, norm) if not n.startswith(absent)} for depth in DEPTHS}
    depth = min(DEPTHS, key=lambda depth: len(listed[depth] ^ names))
    if 2 * len(listed[depth] & names) < len(listed[depth]):
        return None
    first, last = weights.get("conv1.weight"), weights.get("fc.weight")
    width = first.shape[0] if first is not None and first.dim() == 4 and len(first) else 64
    num_classes = last.shape[0] if last is not None and last.dim() and len(last) else 1000
    stem = "small" if first is not None and first.shape[2:] == (3, 3) else "imagenet"
    with torch.device("meta"):
        skeleton = build_resnet(depth, num_classes=num_classes, stem=stem, width=width, norm=norm)
    for end in absent:
        delattr(skeleton, end.rstrip("."))
    return Network(depth, width, norm, ends), skeleton


# History: 1: {"format", "step", ...}. What "sha256" covers must never change: it is checked before the format is.
FORMAT = 1
UPDATE = "update trainstone"
"""Hint of the error for a newer format."""


def read_tensors(path: Path, error: type[TrainstoneError]) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Return the tensors of a safetensors file, and a checkpoint's document after checking its checksum."""
    try:
        if not path.is_file():  # opening a pipe would block forever
            raise ValueError("is not an ordinary file" if path.exists() else "does not exist")
        # pread, not mmap: a mapped file could change after the check, or shrink and crash the process.
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
    return tensors, document


def write_checkpoint_file(path: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    gathered, text = gather_tensors(tensors), json.dumps({**document, "format": FORMAT}, allow_nan=False)
    write_bytes(path, save(gathered, {"trainstone": text, "sha256": _hash(text, gathered)}))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically and sync it and its folder to disk.

    safetensors' save_file would leave temporary files if killed, and its files are readable only by their owner.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [content])
        sync_path(path.parent)
    except OSError as err:
        raise build_write_error(path, err) from err


def build_write_error(path: Path, err: OSError) -> ResultError:
    full = err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = "choose another folder"
    return ResultError(
        f"cannot write {path}: {err.strerror or err}", hint=f"free some space, or {hint}" if full else hint
    )


def gather_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, contiguous and without shared memory; copied only if needed."""
    gathered = {}
    memories = set()
    for name, tensor in tensors.items():
        ready = tensor.detach().to("cpu").contiguous()
        if ready.untyped_storage().data_ptr() in memories:
            ready = ready.clone()
        memories.add(ready.untyped_storage().data_ptr())
        gathered[name] = ready
    return gathered


def _open_document(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Return a checkpoint's document after checking the file's checksum; None for other safetensors files."""
    text = metadata.get("trainstone")
    if text is None:
        return None
    if metadata.get("sha256") != _hash(text, tensors):
        raise ValueError("is damaged: its content does not match its checksum")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ValueError(f"has a document that is not valid JSON: {err}") from err
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise ValueError("has a document without a format number")
    return document


def _hash(document: str, tensors: Mapping[str, Tensor]) -> str:
    """Hash the document and each tensor's name, dtype, shape and bytes, independent of their position in the file."""
    digest = hashlib.sha256(json.dumps(document).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        # An ASCII line that also determines the number of bytes after it: different contents give different input.
        digest.update(f"\n{json.dumps([name, str(tensor.dtype), list(tensor.shape)])}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _explain(path: Path, reason: str) -> str:
    with path.open("rb") as file:
        head = file.read(9)
    if not head:
        return "is empty"
    if len(head) == 9 and (head.startswith(ZIP) or _is_pickle(head)):
        return "is a pickle, which may contain code: it is not opened"
    return f"is truncated, damaged or not a safetensors file: {printable(reason.splitlines()[0])[:200]}"


KINDS = {".pth": "torch", ".pt": "torch", ".safetensors": "safetensors", ".pickle": "mlperf_ssd", ".pkl": "mlperf_ssd"}
"""Format of a file by its suffix."""
GLUON_DEPTHS = (18, 34)
NO_BATCHES = torch.tensor(0)
"""Value of missing batch counters: files of MLPerf, and of torch before 0.4.1, have none."""
BUFFERS = ("running_mean", "running_var", COUNTER)


class Converted(NamedTuple):
    network: str
    format: str
    tensors: int
    parameters: int
    bytes: int
    skipped: tuple[str, ...]
    """Names in the source that were not written to the target."""


def choose_kind(target: Path) -> str:
    """Return the format for a target file name; ConfigError if it is unknown or the file exists."""
    if target.suffix not in KINDS:
        raise ConfigError(f"unknown suffix of {target}; allowed are {', '.join(KINDS)}")
    if target.exists() or target.is_symlink():
        raise ConfigError(
            f"{target} exists; existing files are not overwritten", hint="choose another name, or remove it first"
        )
    return KINDS[target.suffix]


def convert_weights(source: Path, target: Path) -> Converted:
    """Write the ResNet of a file in another format, atomically."""
    kind, where = choose_kind(target), str(source)
    found = read_weights(source)
    weights, others = split_backbone(found)
    recognised = recognise_resnet(weights)
    if recognised is None:
        shown = ", ".join(printable(name)[:60] for name in list(found)[:3])
        raise DataError(
            f"{source} has an unknown network: its tensors are called {shown}, ...",
            hint=f"supported: ResNet-{', -'.join(map(str, DEPTHS))} with torchvision's names, MLPerf SSD's backbone",
        )
    network, skeleton = recognised
    load_weights(skeleton, weights, where, of=str(network))
    check_finite(weights, where)
    kept = {name: weights.get(name, NO_BATCHES) for name in skeleton.state_dict()}
    if kind == "mlperf_ssd":  # its backbone has no last stage, no classifier and no counters
        if network.depth not in GLUON_DEPTHS or network.norm != "batch":
            known = " and -".join(map(str, GLUON_DEPTHS))
            raise ConfigError(
                f"{where} has {network}; MLPerf SSD's names exist for ResNet-{known} with batch norm",
                hint="write .pth or .safetensors",
            )
        kept = {name: tensor for name, tensor in kept.items() if name_in_gluon(name) is not None}
        arrays = {str(name_in_gluon(n)): t.detach().float().cpu().numpy() for n, t in kept.items()}
        write_bytes(target, pickle_arrays(arrays))
    elif kind == "safetensors":
        write_weights(target, kept, {})
    else:
        memory = io.BytesIO()
        torch.save(OrderedDict(gather_tensors(kept)), memory)
        write_bytes(target, memory.getvalue())
    parameters = sum(tensor.numel() for name, tensor in kept.items() if not name.endswith(BUFFERS))
    skipped = (*others, *(name for name in weights if name not in kept))
    written = network._replace(ends=tuple(end for end in network.ends if any(name.startswith(end) for name in kept)))
    return Converted(str(written), kind, len(kept), parameters, target.stat().st_size, skipped)
