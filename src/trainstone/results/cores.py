"""How busy the pipes of a GPU's cores were, from the kernels that ncu measured: means weighted by each one's cycles.

How a file is read is in formats/ncu.py, how ncu is started in launch/ncu.py.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from trainstone.errors import DataError
from trainstone.formats.ncu import NcuFile, NcuKernel
from trainstone.results.profiled import PIPES, CoreUse
from trainstone.text import printable
from trainstone.units import format_count

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

    A kernel without cycles cannot be weighed and is left out. A pipe is weighed over the kernels that have it: one
    that no kernel has is absent, not zero. `tell_cores` says what was left out.
    """
    weighed, cycles_name = _weigh(file)
    percents = {}
    for pipe in PIPES:
        if names := choose_names(weighed, pipe):
            percents[pipe] = _mean(file, weighed, names, cycles_name)
            if not 0 <= percents[pipe] <= MAX_PERCENT:
                raise DataError(f"{file.name}: {percents[pipe]:g} % of the peak of pipe {pipe}", hint=HINT)
    if not percents:
        seen = sorted({name for kernel in file.kernels for name in kernel.metrics})
        raise DataError(f"{file.name} says of no pipe how busy it was; {_list_some(seen)}", hint=HINT)
    return CoreUse(
        pipes_percent=percents,
        kernels=len(weighed),
        processes=len({(kernel.process, kernel.run) for kernel in file.kernels}),
        cycles=math.fsum(kernel.metrics[cycles_name].value for kernel in weighed),
        file=file.name,
    )


def tell_cores(file: NcuFile) -> list[str]:
    """Say which metrics stand behind aggregate_cores, and what it left out."""
    weighed, cycles_name = _weigh(file)
    told = []
    if left_out := len(file.kernels) - len(weighed):
        told.append(f"{format_count(left_out, 'kernel')} of {len(file.kernels)} without {cycles_name} left out")
    for pipe in PIPES:
        names = choose_names(weighed, pipe)
        if names and names != (f"{PIPE_METRICS[pipe][0]}{PERCENT}",):
            told.append(f"{pipe} is {' or '.join(names)}")
        having = [kernel for kernel in weighed if any(name in kernel.metrics for name in names)]
        if names and len(having) < len(weighed):
            told.append(f"{pipe} was measured of {len(having)} of {len(weighed)} kernels: the mean is theirs")
    return told


def weighted_mean(file: NcuFile, metric: str, weight: str) -> float:
    """Return the mean of a metric over all kernels that have both, weighted by another of their metrics."""
    kernels = [kernel for kernel in file.kernels if metric in kernel.metrics and weight in kernel.metrics]
    if not kernels:
        raise DataError(f"{file.name} has no kernel with {metric} and {weight}", hint=HINT)
    return _mean(file, kernels, (metric,), weight)


def format_original(use: CoreUse) -> str:
    """Return the lines that TBD's coreutil.py prints; a pipe that was not measured has none."""
    return "".join(f"{pipe}\t{use.pipes_percent[pipe]:.5f} %\n" for pipe in PIPES if pipe in use.pipes_percent)


def choose_names(kernels: Sequence[NcuKernel], pipe: str) -> tuple[str, ...]:
    """Return the metric that stands for a pipe: the first that all kernels have which have any.

    Kernels of different GPUs may have one name each; then all those names are returned, and no kernel has two. Else,
    the one that most kernels have, so that two measures are never mixed.
    """
    return _choose(kernels, [f"{name}{PERCENT}" for name in PIPE_METRICS[pipe]])


def _choose(kernels: Sequence[NcuKernel], accepted: Iterable[str]) -> tuple[str, ...]:
    counts = {name: sum(name in kernel.metrics for kernel in kernels) for name in accepted}
    seen = [name for name, count in counts.items() if count]
    having = sum(any(name in kernel.metrics for name in seen) for kernel in kernels)
    for name in seen:
        if counts[name] == having:
            return (name,)
    if sum(counts.values()) == having:
        return tuple(seen)
    return (max(seen, key=lambda name: counts[name]),) if seen else ()


def _weigh(file: NcuFile) -> tuple[list[NcuKernel], str]:
    """Return the kernels that have cycles, and the metric that counts them: one for all, since clocks differ."""
    counts = {name: sum(name in kernel.metrics for kernel in file.kernels) for name in CYCLE_METRICS}
    name = max(CYCLE_METRICS, key=lambda name: counts[name])
    weighed = [kernel for kernel in file.kernels if name in kernel.metrics and kernel.metrics[name].value > 0]
    if not weighed:
        raise DataError(f"{file.name}: no kernel has any cycles ({' or '.join(CYCLE_METRICS)})", hint=HINT)
    return weighed, name


def _mean(file: NcuFile, kernels: Sequence[NcuKernel], names: Sequence[str], weight: str) -> float:
    pairs = [
        (kernel.metrics[weight].value, kernel.metrics[name].value)
        for kernel in kernels
        for name in names
        if name in kernel.metrics
    ]
    if any(pair_weight < 0 for pair_weight, _ in pairs):
        raise DataError(f"{file.name}: {weight} is below zero", hint=HINT)
    total = math.fsum(pair_weight for pair_weight, _ in pairs)
    if total == 0:
        raise DataError(f"{file.name}: {weight} of all kernels is zero", hint=HINT)
    return math.fsum(pair_weight * value for pair_weight, value in pairs) / total


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"it has {printable(', '.join(names[:3]))}{more}"
