"""Compute the utilisation of the pipes of a GPU's SMs from ncu metrics: means over kernels weighted by cycles."""

import math
from collections.abc import Mapping

from trainstone.errors import DataError
from trainstone.formats.ncu import NcuFile
from trainstone.results.schema.timeline import PIPES, CoreUse
from trainstone.results.verdicts import describe_counters
from trainstone.text import printable

PERCENT = ".avg.pct_of_peak_sustained_elapsed"
# Metrics by pipe, preferred first: the one of TBD's coreutil.py, then those of other architectures and versions of ncu
# (from compute capability 8.6 on, 16-bit arithmetic runs in the fma pipe; `hmma` is only the 16-bit part of the tensor
# pipe). Percent of elapsed cycles, not of active ones, so that idle SMs count.
PIPE_METRICS: Mapping[str, tuple[str, ...]] = {
    "fma": ("sm__inst_executed_pipe_fma", "sm__pipe_fma_cycles_active"),
    "fp16": ("sm__inst_executed_pipe_fp16", "sm__inst_executed_pipe_fma_type_fp16"),
    "tensor": (
        "sm__inst_executed_pipe_tensor",
        "sm__pipe_tensor_cycles_active",
        "sm__inst_executed_pipe_tensor_op_hmma",
        "sm__pipe_tensor_op_hmma_cycles_active",
        "sm__inst_executed_pipe_tensor_subpipe_hmma",
    ),
    "sfu": ("sm__inst_executed_pipe_xu", "sm__pipe_xu_cycles_active"),
}
CYCLE_METRICS = (
    *("gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg"),
    *("sm__cycles_elapsed.max", "sm__cycles_elapsed.avg"),
)
WANTED = frozenset((*CYCLE_METRICS, *(f"{name}{PERCENT}" for names in PIPE_METRICS.values() for name in names)))
"""All metrics that are used here, for read_ncu."""
# Replay passes differ a little, so values may exceed 100; more than this is damage.
MAX_PERCENT = 200.0
HINT = f"ncu --csv --log-file FILE.csv --metrics {CYCLE_METRICS[0]},{PIPE_METRICS['fma'][0]}{PERCENT} COMMAND"


def aggregate_cores(file: NcuFile) -> CoreUse:
    """Return each pipe's utilisation over all kernels: sum(cycles x percent) / sum(cycles).

    Kernels without cycles are skipped. A pipe is averaged over the kernels that have it; a pipe that no kernel has is
    absent, not zero. `sentences` describe the metrics used and the kernels skipped.
    """
    # Use one cycle metric for all kernels, since clocks differ.
    cycles = max(CYCLE_METRICS, key=lambda name: sum(name in kernel.metrics for kernel in file.kernels))
    weighted = [kernel for kernel in file.kernels if cycles in kernel.metrics and kernel.metrics[cycles].value > 0]
    if not weighted:
        raise DataError(f"{file.name}: no kernel has a positive cycle metric ({' or '.join(CYCLE_METRICS)})", hint=HINT)
    percents, taken = {}, dict[str, tuple[str | None, int]]()
    for pipe in PIPES:
        # Use one metric for all kernels, so that different metrics are not mixed: the first that most kernels have.
        accepted = [f"{name}{PERCENT}" for name in PIPE_METRICS[pipe]]
        chosen = max(accepted, key=lambda name: sum(name in kernel.metrics for kernel in weighted))
        present = [kernel.metrics for kernel in weighted if chosen in kernel.metrics]
        pairs = [(metrics[cycles].value, metrics[chosen].value) for metrics in present]
        if not pairs:
            continue
        percents[pipe] = math.fsum(weight * value for weight, value in pairs) / math.fsum(weight for weight, _ in pairs)
        if not 0 <= percents[pipe] <= MAX_PERCENT:
            raise DataError(
                f"{file.name}: pipe {pipe} at {percents[pipe]:g} % of its peak; at most {MAX_PERCENT:g} % is possible",
                hint=HINT,
            )
        taken[pipe] = None if chosen == accepted[0] else chosen, len(pairs)
    if not percents:
        seen = sorted({name for kernel in file.kernels for name in kernel.metrics})
        shown = printable(", ".join(seen[:3]))
        raise DataError(f"{file.name}: no pipe utilisation metric; found {shown} ...", hint=HINT)
    return CoreUse(
        pipes_percent=percents,
        kernels=len(weighted),
        processes=len({(kernel.process, kernel.run) for kernel in file.kernels}),
        cycles=math.fsum(kernel.metrics[cycles].value for kernel in weighted),
        sentences=describe_counters(len(file.kernels), len(weighted), cycles, taken),
        file=file.name,
    )
