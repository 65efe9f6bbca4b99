"""CSV files in ncu's long and wide form, with program output around them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PERCENT = ".avg.pct_of_peak_sustained_elapsed"
FMA = f"sm__inst_executed_pipe_fma{PERCENT}"
FP16 = f"sm__inst_executed_pipe_fp16{PERCENT}"
TENSOR = f"sm__inst_executed_pipe_tensor{PERCENT}"
SFU = f"sm__inst_executed_pipe_xu{PERCENT}"
CYCLES = "gpc__cycles_elapsed.max"
BEFORE = "==PROF== Connected to process 7 (/usr/bin/python3)\nstep 1, loss 6.9, 12.5 images/s\n3,\n"
AFTER = '==PROF== Disconnected from process 7\n"done", she said, and more\n'
LONG_COLUMNS = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size"),
    *("Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
)
WIDE_COLUMNS = LONG_COLUMNS[:11]
Kernels = Mapping[int, tuple[str, Mapping[str, str]]]
# Kernel id -> name and metrics; cycles 1,016,888 + 3,000 + 112.
KERNELS: Kernels = {
    0: (
        "void gemm<float, (bool)1>(T1 *, int)",
        {CYCLES: "1,016,888", FMA: "40.25", FP16: "0", TENSOR: "0", SFU: "2.5"},
    ),
    3: ("relu", {CYCLES: "3,000", FMA: "1.5", FP16: "0", TENSOR: "0", SFU: "12.125"}),
    4: ("relu", {CYCLES: "112", FMA: "0", FP16: "0", TENSOR: "90", SFU: "0"}),
}


def unit_of(metric: str) -> str:
    return "cycle" if "cycles_elapsed" in metric else "%"


def place(kernel_id: int, process: int, name: str) -> dict[str, str]:
    """Return the columns that both forms share."""
    values = (kernel_id, process, "python3", "127.0.0.1", name, 1, 7, "(256, 1, 1)", "(4, 1, 1)", 0, "7.0")
    return dict(zip(WIDE_COLUMNS, map(str, values), strict=True))


def quote(fields: Iterable[Any]) -> str:
    return ",".join('"' + str(field).replace('"', '""') + '"' for field in fields)


def make_long(
    kernels: Kernels = KERNELS,
    *,
    process: int = 7,
    columns: Sequence[str] = LONG_COLUMNS,
    units: Mapping[str, str] = {},
) -> str:
    lines = [quote(columns)]
    for kernel_id, (name, metrics) in kernels.items():
        for metric, value in metrics.items():
            row = place(kernel_id, process, name) | {"Section Name": "Command line profiler metrics"}
            row |= {"Metric Name": metric, "Metric Unit": units.get(metric, unit_of(metric)), "Metric Value": value}
            lines.append(quote(row.get(column, "") for column in columns))
    return "\n".join(lines) + "\n"


def make_wide(kernels: Kernels = KERNELS) -> str:
    metrics = list(dict.fromkeys(metric for _, values in kernels.values() for metric in values))
    lines = [
        quote([*WIDE_COLUMNS, *metrics]),
        quote([""] * len(WIDE_COLUMNS) + [unit_of(metric) for metric in metrics]),
    ]
    for kernel_id, (name, values) in kernels.items():
        own = place(kernel_id, 7, name)
        lines.append(quote([*own.values(), *(values.get(metric, "") for metric in metrics)]))
    return "\n".join(lines) + "\n"
