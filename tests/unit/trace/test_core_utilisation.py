import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given

from support.builders.damage import damaged, quick, real_data
from support.builders.ncu_files import (
    AFTER,
    BEFORE,
    CYCLES,
    FMA,
    FP16,
    KERNELS,
    PERCENT,
    SFU,
    TENSOR,
    make_long,
    make_wide,
)
from trainstone.errors import DataError
from trainstone.formats.ncu import Metric, NcuFile, NcuKernel, read_ncu
from trainstone.trace.core_utilisation import WANTED, aggregate_cores

ORIGINAL = {"fma": FMA, "fp16": FP16, "tensor": TENSOR, "sfu": SFU}
FMA_CYCLES, FMA_FP16 = f"sm__pipe_fma_cycles_active{PERCENT}", f"sm__inst_executed_pipe_fma_type_fp16{PERCENT}"
AVERAGE = "sm__cycles_elapsed.avg"


def original_formula(text: str, weight: str, metric: str) -> float:
    """Reimplement the formula of coreutil.py for all kernels, with commas removed from numbers."""
    lines = [line for line in text.splitlines() if re.match(r'"?(ID|[0-9]+)"?,', line)]
    values: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines):
        if row["Metric Name"] in (weight, metric):
            values.setdefault(row["ID"], {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    cycles = sum(own[weight] for own in values.values())
    return sum(own[weight] * own[metric] / 100 for own in values.values()) / cycles * 100


def make_file(*kernels: Mapping[str, float]) -> NcuFile:
    made = [
        NcuKernel(None, 0, number, "k", {name: Metric(value, "") for name, value in metrics.items()})
        for number, metrics in enumerate(kernels)
    ]
    return NcuFile("cores.csv", tuple(made))


@pytest.mark.parametrize("make", [make_long, make_wide])
def test_aggregate_cores_weights_kernels_by_cycles(tmp_path: Path, make: Callable[[], str]):
    path = tmp_path / "cores.csv"
    path.write_text(BEFORE + make() + AFTER)
    use = aggregate_cores(read_ncu(path, WANTED))
    for pipe, metric in ORIGINAL.items():
        assert use.pipes_percent[pipe] == pytest.approx(original_formula(make_long(), CYCLES, metric), rel=1e-12)
    assert use.pipes_percent["fma"] == pytest.approx((1016888 * 40.25 + 3000 * 1.5) / 1020000)
    assert use.pipes_percent["tensor"] == pytest.approx(112 * 90 / 1020000)  # only the last kernel has it
    assert (use.kernels, use.processes, use.cycles, use.file) == (3, 1, 1020000, str(path))
    assert use.sentences == []


def test_aggregate_cores_combines_processes(tmp_path: Path):
    path = tmp_path / "cores.csv"
    busy = {0: ("k", {CYCLES: "1,020,000", FMA: "100"})}
    path.write_text(make_long(process=7) + make_long(busy, process=8) + make_long(busy, process=8))
    use = aggregate_cores(read_ncu(path))
    single = original_formula(make_long(), CYCLES, FMA)
    assert (use.kernels, use.processes) == (5, 3)
    assert use.pipes_percent["fma"] == pytest.approx((single + 200) / 3)


@pytest.mark.parametrize(
    ("kernels", "percents", "message"),
    [
        ([{CYCLES: 10, SFU: 5}], {"sfu": 5}, []),  # a pipe that no kernel has is absent
        (
            [{CYCLES: 10, SFU: 5, FMA: 10}, {CYCLES: 30, FMA: 20}],
            {"fma": 17.5, "sfu": 5},
            ["sfu: mean of the 1 of 2 kernels that were measured"],
        ),
        (
            [{CYCLES: 10, FMA: 10}, {FMA: 90}, {CYCLES: 0, FMA: 50}],
            {"fma": 10},
            [f"2 of 3 kernels skipped: no {CYCLES}"],
        ),
        ([{CYCLES: 10, AVERAGE: 4, FMA: 10}, {AVERAGE: 12, FMA: 50}], {"fma": 40}, []),  # one metric counts for all
        ([{CYCLES: 10, FMA: 10, FMA_CYCLES: 90}, {CYCLES: 10, FMA_CYCLES: 70}], {"fma": 80}, [f"fma is {FMA_CYCLES}"]),
        ([{CYCLES: 10, FMA_CYCLES: 90, FMA: 10}, {CYCLES: 10, FMA_CYCLES: 70, FMA: 20}], {"fma": 15}, []),
        (  # names are not mixed where one kernel has both
            [{CYCLES: 10, FMA: 10}, {CYCLES: 10, FMA: 30, FMA_CYCLES: 80}, {CYCLES: 20, FMA_CYCLES: 90}],
            {"fma": 20},
            ["fma: mean of the 2 of 3 kernels that were measured"],
        ),
    ],
)
def test_aggregate_cores_averages_measured_kernels_and_describes_the_rest(
    kernels: list[dict[str, float]], percents: dict[str, float], message: list[str]
):
    use = aggregate_cores(make_file(*kernels))
    assert (use.pipes_percent, use.sentences) == (percents, message)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ({FMA: 10}, r"cores.csv: no kernel has a positive cycle metric \(gpc__cycles_elapsed.max or "),
        ({CYCLES: 0, FMA: 10}, "no kernel has a positive cycle metric"),
        ({CYCLES: -5, FMA: 10}, "no kernel has a positive cycle metric"),
        ({CYCLES: 10, "a": 1, "b": 1, "c": 1}, r"no pipe utilisation metric; found a, b, c"),
        ({CYCLES: 10, FMA: -1}, "pipe fma at -1 % of its peak"),
        ({CYCLES: 10, SFU: 5000}, "pipe sfu at 5000 % of its peak"),
    ],
)
def test_aggregate_cores_rejects_missing_or_invalid_metrics(kernel: dict[str, float], message: str):
    with pytest.raises(DataError, match=message) as caught:
        aggregate_cores(make_file(kernel))
    assert "--metrics" in (caught.value.hint or "")


@given(damaged((BEFORE + make_long(KERNELS) + AFTER).encode()))
@quick
def test_aggregate_cores_of_damaged_file_returns_valid_percent_or_raises(tmp_path: Path, content: bytes):
    path = tmp_path / "cores.csv"
    path.write_bytes(content)
    try:
        use = aggregate_cores(read_ncu(path, WANTED))
    except DataError:
        return
    assert all(0 <= percent <= 200 for percent in use.pipes_percent.values())


def test_aggregate_cores_rejects_real_file_without_pipes():
    with pytest.raises(DataError, match="no pipe utilisation metric"):
        aggregate_cores(read_ncu(real_data("profilers/ncu/v100_cutlass_gemm_ncu.csv")))


@pytest.mark.parametrize("metric", ["sm__inst_executed_pipe_tensor.sum", "dram__bytes.sum"])
def test_aggregate_cores_matches_original_formula_on_v100_kernels(metric: str):
    """The file has no pipe metric, so another metric, scaled to percent, replaces it."""
    path = real_data("profilers/ncu/v100_cutlass_gemm_ncu.csv")
    kernels = [
        {AVERAGE: kernel.metrics[AVERAGE].value, FMA: kernel.metrics[metric].value / 1e10}
        for kernel in read_ncu(path).kernels
    ]
    expected = original_formula(path.read_text(), AVERAGE, metric) / 1e10
    assert aggregate_cores(make_file(*kernels)).pipes_percent["fma"] == pytest.approx(expected, rel=1e-12)


def test_aggregate_cores_reads_newer_metric_names_of_2080_ti():
    path = real_data("profilers/ncu/rtx2080ti_sgemm_3136x64x64.metrics.csv")
    use = aggregate_cores(read_ncu(path, WANTED))
    assert use.pipes_percent["fma"] == pytest.approx(original_formula(path.read_text(), CYCLES, FMA_CYCLES))
    assert use.pipes_percent == {"fma": pytest.approx(22.06044562100154), "fp16": 0, "tensor": 0, "sfu": 0}
    assert (use.kernels, use.processes, use.cycles) == (1, 1, 14120)
