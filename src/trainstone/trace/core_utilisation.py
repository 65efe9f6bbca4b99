"""How busy the pipes of a GPU's cores were, from the kernels that ncu measured: means weighted by each one's cycles."""

import math
from collections.abc import Mapping

from trainstone.errors import DataError
from trainstone.formats.ncu import NcuFile
from trainstone.results.schema.timeline import PIPES, CoreUse
from trainstone.results.verdicts import describe_counters
from trainstone.text import printable

PERCENT = ".avg.pct_of_peak_sustained_elapsed"
# By pipe, best first: the name that TBD's coreutil.py asks for, then those of other architectures and versions of ncu
# (from compute capability 8.6 on, 16-bit arithmetic runs in the fma pipe; `hmma` is the 16-bit part of the tensor
# pipe alone). Percent of the cycles elapsed, never of the active ones: an idle core counts.
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
"""All metrics that are of use here, for read_ncu."""
# Passes differ a little, so that 100 may be exceeded; more than this is damage.
MAX_PERCENT = 200.0
HINT = f"ask ncu for --metrics {CYCLE_METRICS[0]},{PIPE_METRICS['fma'][0]}{PERCENT}, ..."


def aggregate_cores(file: NcuFile) -> CoreUse:
    """Return each pipe's utilisation over all kernels: sum of cycles x percent / sum of cycles.

    A kernel without cycles cannot be weighed and is skipped. A pipe is averaged over the kernels that have it: one
    that no kernel has is absent, not zero. `told` says which metrics were taken and what was skipped.
    """
    # One metric counts the cycles of all kernels, since clocks differ.
    cycles = max(CYCLE_METRICS, key=lambda name: sum(name in kernel.metrics for kernel in file.kernels))
    weighed = [kernel for kernel in file.kernels if cycles in kernel.metrics and kernel.metrics[cycles].value > 0]
    if not weighed:
        raise DataError(f"{file.name}: no kernel has any cycles ({' or '.join(CYCLE_METRICS)})", hint=HINT)
    percents, taken = {}, dict[str, tuple[str | None, int]]()
    for pipe in PIPES:
        # One metric counts for all kernels, so that two measures are never mixed: the first that most of them have.
        accepted = [f"{name}{PERCENT}" for name in PIPE_METRICS[pipe]]
        chosen = max(accepted, key=lambda name: sum(name in kernel.metrics for kernel in weighed))
        having = [kernel.metrics for kernel in weighed if chosen in kernel.metrics]
        pairs = [(metrics[cycles].value, metrics[chosen].value) for metrics in having]
        if not pairs:
            continue
        percents[pipe] = math.fsum(weight * value for weight, value in pairs) / math.fsum(weight for weight, _ in pairs)
        if not 0 <= percents[pipe] <= MAX_PERCENT:
            raise DataError(f"{file.name}: {percents[pipe]:g} % of the peak of pipe {pipe}", hint=HINT)
        taken[pipe] = None if chosen == accepted[0] else chosen, len(pairs)
    if not percents:
        seen = sorted({name for kernel in file.kernels for name in kernel.metrics})
        shown = printable(", ".join(seen[:3]))
        raise DataError(f"{file.name} says of no pipe how busy it was; it has {shown} ...", hint=HINT)
    return CoreUse(
        pipes_percent=percents,
        kernels=len(weighed),
        processes=len({(kernel.process, kernel.run) for kernel in file.kernels}),
        cycles=math.fsum(kernel.metrics[cycles].value for kernel in weighed),
        sentences=describe_counters(len(file.kernels), len(weighed), cycles, taken),
        file=file.name,
    )
