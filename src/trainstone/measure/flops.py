"""Count FLOPs, bytes moved and bytes saved for backward of a training step, without executing it; derive the roofline
time and the memory of a batch. FLOP formulas are torch's; bytes are the minimum of an operator: each tensor once, no
workspace, no cache misses. Nothing here measures time.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

Shape = tuple[int, ...]

# glibc keeps blocks up to this size in its heap; larger ones come from mmap and are returned when freed (malloc.c,
# DEFAULT_MMAP_THRESHOLD_MAX on 64 bits). With glibc.malloc.mmap_threshold raised, all blocks are in the heap.
GLIBC_HEAP_BLOCK_BYTES = 32 * 2**20

# Fragmentation of that heap: peak resident memory exceeds weights, gradients, momentum and saved tensors by 1.9 times
# the ten largest saved tensors in the heap. Fitted in 2026-11 to 30 fresh processes (ResNet-18 to 152, batch 1 to 64,
# 224 pixels, fp32, channels-last, torch 2.13, glibc 2.36, 2 cores, both allocator settings): the estimate errs by -0.4
# to +15 %; on 4 other processes (64 to 256 pixels) by +8 to +15 %.
HEAP_HOLES_FACTOR = 1.9
HEAP_HOLES_BLOCKS = 10

# In-place operators that change only metadata, and a view that its schema does not mark as one.
_METADATA_ONLY = {"as_strided_", "detach_", "resize_", "set_", "squeeze_", "t_", "transpose_", "unsqueeze_"}
_METADATA_ONLY |= {"_unsafe_view"}
_OVERWRITING = {"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"}  # the target is not read


@dataclass(frozen=True)
class Op:
    """All calls of an operator with equal shapes and cost; `flops` and `bytes_moved` are their sums."""

    name: str
    input_shapes: tuple[Shape, ...]
    count: int
    flops: int
    bytes_moved: int


@dataclass(frozen=True)
class StepWork:
    """Work of one forward and backward pass, at the batch size it was counted with."""

    flops: int
    bytes_moved: int
    saved_tensor_bytes: tuple[int, ...]
    """Sizes of the storages that autograd saves for backward, each once, without parameters; largest first."""
    parameter_bytes: int
    """Bytes of the parameters with a gradient."""
    ops: tuple[Op, ...]


class CallCounter(TorchDispatchMode):
    """Context manager that counts operator calls; calls without FLOPs and bytes moved are skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, tuple[Shape, ...], int, int]] = Counter()
        """Number of calls by (operator, input shapes, FLOPs, bytes moved)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func.overloadpacket)
        flops = formula(*args, **kwargs, out_val=out) if formula else 0
        bytes_moved = _bytes_moved(func, args, kwargs, out)
        if flops or bytes_moved:
            shapes = tuple(tuple(tensor.shape) for tensor in _tensors((args, kwargs)))
            self.calls[str(func), shapes, flops, bytes_moved] += 1
        return out


def count_work(run_step: Callable[[], Tensor], *, backward: bool = True) -> StepWork:
    """Count the work of `run_step`, a forward pass that returns the loss, and of the loss's backward pass.

    Use it on the meta device, where nothing is computed or allocated. Autocast has no effect on meta: to count it, let
    `run_step` use FakeTensors. Afterwards the model's parameters have (meta) gradients.
    """
    saved: dict[int, int] = {}  # storage -> bytes; all stay alive until backward, so addresses are unique
    parameters: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    with CallCounter() as counter, torch.set_grad_enabled(backward):
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = run_step()
        if backward:
            nodes, seen = [loss.grad_fn], set()
            while nodes:
                node = nodes.pop()
                if node is None or node in seen:
                    continue
                seen.add(node)
                nodes += [following for following, _ in node.next_functions]
                if hasattr(node, "variable"):  # only AccumulateGrad, the node of a leaf, has it
                    storage = node.variable.untyped_storage()
                    parameters[storage._cdata] = storage.nbytes()
            loss.backward()
    ops = list_ops(counter)
    return StepWork(
        flops=sum(op.flops for op in ops),
        bytes_moved=sum(op.bytes_moved for op in ops),
        saved_tensor_bytes=tuple(sorted((saved[key] for key in saved.keys() - parameters.keys()), reverse=True)),
        parameter_bytes=sum(parameters.values()),
        ops=ops,
    )


def list_ops(counter: "CallCounter") -> tuple[Op, ...]:
    return tuple(
        Op(name, shapes, count, flops * count, moved * count)
        for (name, shapes, flops, moved), count in counter.calls.items()
    )


def roofline_seconds(ops: Iterable[Op], peak_flops: float, bytes_per_second: float) -> tuple[float, float]:
    """Sum the operators' minimum times: the longer of compute and memory traffic for each.

    Return the seconds of compute-bound operators, and of memory-bound ones.
    """
    compute_seconds = memory_seconds = 0.0
    for op in ops:
        arithmetic, traffic = op.flops / peak_flops, op.bytes_moved / bytes_per_second
        if arithmetic > traffic:
            compute_seconds += arithmetic
        else:
            memory_seconds += traffic
    return compute_seconds, memory_seconds


def estimate_training_bytes(work: StepWork, heap_block_bytes: float = math.inf) -> int:
    """Estimate the resident memory of training with momentum, without the interpreter and the libraries.

    `heap_block_bytes` is infinite if glibc keeps freed memory (machine/allocator.py), else GLIBC_HEAP_BLOCK_BYTES; 0
    ignores fragmentation (other allocators: the estimate is then a lower bound).
    """
    in_heap = [size for size in work.saved_tensor_bytes if size <= heap_block_bytes]
    holes = HEAP_HOLES_FACTOR * sum(in_heap[:HEAP_HOLES_BLOCKS])
    return round(work.parameter_bytes * 3 + sum(work.saved_tensor_bytes) + holes)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes_moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> int:
    """Return the bytes of the distinct tensors that the call reads, plus those it writes (in place: both)."""
    name = func.overloadpacket.__name__
    if func.is_view or name in _METADATA_ONLY or name.startswith(("empty", "new_empty")):
        return 0
    reads_nothing = name.endswith("_like") or name.startswith("new_")  # only shape and dtype are used
    read: list[Tensor] = []
    written = _tensors(out)
    values = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    for argument in func._schema.arguments:
        tensors = _tensors(values.get(argument.name))
        target = argument.alias_info is not None and argument.alias_info.is_write
        if target:
            written += tensors
        if not (reads_nothing or (target and (argument.is_out or name in _OVERWRITING))):
            read += tensors
    return _distinct_bytes(read) + _distinct_bytes(written) if written else 0


def _distinct_bytes(tensors: list[Tensor]) -> int:
    """Return the bytes of distinct tensors; an expanded dimension (stride 0) adds no memory."""
    distinct = {(t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()): t for t in tensors}
    return sum(
        int(
            t.element_size()
            * math.prod(size for size, stride in zip(t.shape, t.stride(), strict=True) if stride or not size)
        )
        for t in distinct.values()
    )
