"""Weights of a network: read from files of several kinds, recognised, put into a model, written, converted.

The kinds: safetensors, trainstone's checkpoints (safetensors with a document), torch's files, pickles of arrays.

No code in a file ever runs: torch's pickles are opened as weights alone, others by a reader of our own, or not at all.
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
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in weights)), None):
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    try:
        return rename_from_gluon(weights)
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
    """Write a plain safetensors file for other tools, names as the model has them, whole or not at all."""
    write_bytes(path, save(gather_tensors(model_state), {"format": "pt", **metadata}))  # "pt" is what others look for


def _read_kind(path: Path) -> dict[str, Tensor]:
    try:
        if not path.is_file():  # opening a pipe would wait for ever
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
        # Of a checkpoint; an average of parameters alone takes the rest from the model.
        parts = [{n.removeprefix(p): t for n, t in tensors.items() if n.startswith(p)} for p in ("model.", "ema.")]
        return tensors if document is None else parts[0] | parts[1]
    if is_pickle or path.suffix in PICKLES:
        return {name: torch.from_numpy(array) for name, array in read_pickled(path).items()}
    raise DataError(
        f"{path} holds no weights: it is neither safetensors, a file of torch.save nor a pickle of arrays "
        f"(it begins with {head[:12]!r})"
    )


def _load_torch(path: Path) -> dict[str, Tensor]:
    """Open a file of torch.save as weights alone; anything else that it asks for is refused before it happens.

    Tensors are taken out of the dicts that training scripts put around them.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unpacked_bytes = sum(member.file_size for member in archive.infolist())
            if unpacked_bytes > path.stat().st_size:  # a small file that would fill the memory
                message = f"{path} unpacks to {unpacked_bytes} bytes, more than it has; torch.save does not compress"
                raise DataError(message, hint=SAVE_AGAIN)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols: the error says enough
            found = torch.load(path, map_location="cpu", weights_only=True)
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


def _is_pickle(head: bytes) -> bool:
    # A header of safetensors may have 128 bytes and so begin like a pickle; but its ninth byte is a brace.
    return head.startswith(b"\x80") and head[8:9] != b"{"


def _list_names(what: str, names: Iterable[str]) -> str:
    shown = [printable(name)[:200] for name in names]
    more = ", ..." if len(shown) > 3 else ""
    return f"{len(shown)} {what} ({', '.join(shown[:3])}{more})"


def _hint_classes(differing: list[str], names: list[str], weights: Mapping[str, Tensor]) -> str | None:
    """Return how to make the model's last layer like the file's, if that is all that differs."""
    last = names[-1].rpartition(".")[0]
    classes = {weights[name].shape[:1] for name in differing}
    if any(name.rpartition(".")[0] != last for name in differing) or len(classes) != 1 or not (shape := classes.pop()):
        return None
    return f"--set model.num_classes={shape[0]}"


BACKBONE = "backbone."
"""What a detector of ours calls its ResNet."""
ENDS = ("layer4.", "fc.")
"""Parts that a backbone may lack: a detector has other layers there."""


class Network(NamedTuple):
    depth: int
    width: int
    """Channels of the stem and the first stage."""
    norm: str
    ends: tuple[str, ...]
    """Which of ENDS are there."""

    def __str__(self) -> str:
        kind = "" if self.norm == "batch" else f" with {self.norm} norm"
        whole = {0: " up to layer3", 1: " without fc", 2: ""}[len(self.ends)]
        return f"ResNet-{self.depth}{kind}{whole}"


def take_backbone(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the ResNet in weights, also in those of a detector, and the names of the tensors outside it."""
    inner = {n.removeprefix(BACKBONE): t for n, t in weights.items() if n.startswith(BACKBONE)}
    if inner:
        return inner, tuple(name for name in weights if not name.startswith(BACKBONE))
    heads = tuple(name for name in weights if name.startswith(HEADS))
    return {name: tensor for name, tensor in weights.items() if name not in heads}, heads


def recognise(weights: Mapping[str, Tensor]) -> tuple[Network, nn.Module] | None:
    """Return the ResNet that most names are of, and that network on the meta device; None for other networks."""
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
    """Return the tensors of a safetensors file and the document of a checkpoint, its checksum checked."""
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
    return tensors, document


def write_checkpoint_file(path: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    gathered, text = gather_tensors(tensors), json.dumps({**document, "format": FORMAT}, allow_nan=False)
    write_bytes(path, save(gathered, {"trainstone": text, "sha256": _hash(text, gathered)}))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file and its folder to disk, whole or not at all.

    safetensors' save_file leaves files of another name when it is killed, and readable by their owner alone.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [content])
        sync_path(path.parent)
    except OSError as err:
        raise explain_write(path, err) from err


def explain_write(path: Path, err: OSError) -> ResultError:
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
    with path.open("rb") as file:
        head = file.read(9)
    if not head:
        return "is empty"
    if len(head) == 9 and (head.startswith(ZIP) or _is_pickle(head)):
        return "is a pickle, which may hold code: it is not opened"
    return f"is cut off, damaged or not a safetensors file: {printable(reason.splitlines()[0])[:200]}"


KINDS = {".pth": "torch", ".pt": "torch", ".safetensors": "safetensors", ".pickle": "mlperf_ssd", ".pkl": "mlperf_ssd"}
"""Kind of a file by its suffix."""
GLUON_DEPTHS = (18, 34)
NO_BATCHES = torch.tensor(0)
"""For counters of batches that a file has not: MLPerf's and torch's before 0.4.1 have none."""
BUFFERS = ("running_mean", "running_var", COUNTER)


class Converted(NamedTuple):
    network: str
    format: str
    tensors: int
    parameters: int
    bytes: int
    left_out: tuple[str, ...]
    """Names in the source that are not in the target."""


def choose_kind(target: Path) -> str:
    """Return what to write by the target's name; what is there already is not written over."""
    if target.suffix not in KINDS:
        raise ConfigError(f"{target}: what shall it be?", hint=f"end its name in one of {', '.join(KINDS)}")
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists; it is not written over", hint="choose another name, or remove it first")
    return KINDS[target.suffix]


def convert_weights(source: Path, target: Path) -> Converted:
    """Write the ResNet in a file as another kind of file, whole or not at all."""
    kind, where = choose_kind(target), str(source)
    found = read_weights(source)
    weights, others = take_backbone(found)
    recognised = recognise(weights)
    if recognised is None:
        shown = ", ".join(printable(name)[:60] for name in list(found)[:3])
        raise DataError(
            f"{source} is of no network that is known here: its tensors are called {shown}, ...",
            hint=f"known: ResNet-{', -'.join(map(str, DEPTHS))} by torchvision's names, MLPerf SSD's backbone in MXNet",
        )
    network, skeleton = recognised
    load_weights(skeleton, weights, where, of=str(network))
    refuse_not_finite(weights, where)
    kept = {name: weights.get(name, NO_BATCHES) for name in skeleton.state_dict()}
    if kind == "mlperf_ssd":  # its backbone has no last stage, no classifier and no counters
        if network.depth not in GLUON_DEPTHS or network.norm != "batch":
            known = " and -".join(map(str, GLUON_DEPTHS))
            raise ConfigError(
                f"{where} is of {network}; MLPerf SSD's names are for ResNet-{known} with batch norm",
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
    left_out = (*others, *(name for name in weights if name not in kept))
    message = network._replace(ends=tuple(end for end in network.ends if any(name.startswith(end) for name in kept)))
    return Converted(str(message), kind, len(kept), parameters, target.stat().st_size, left_out)
