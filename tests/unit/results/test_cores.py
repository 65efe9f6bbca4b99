import csv
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given

from damage import damaged, quick, real_data
from made_ncu import AFTER, BEFORE, CYCLES, FMA, FP16, KERNELS, PERCENT, SFU, TENSOR, make_long, make_wide
from trainstone.errors import DataError
from trainstone.formats.ncu import NcuFile, NcuKernel, read_ncu
from trainstone.formats.ncuvalues import Metric
from trainstone.results.cores import WANTED, aggregate_cores, format_original, tell_cores, weighted_mean
from trainstone.results.profiled import CoreUse

ORIGINAL = {"fma": FMA, "fp16": FP16, "tensor": TENSOR, "sfu": SFU}
FMA_CYCLES, FMA_FP16 = f"sm__pipe_fma_cycles_active{PERCENT}", f"sm__inst_executed_pipe_fma_type_fp16{PERCENT}"


def original_formula(text: str, weight: str, metric: str) -> float:
    """The formula of coreutil.py, written anew: all kernels, and commas taken out of numbers."""
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
def test_all_kernels_count_by_their_cycles(tmp_path: Path, make: object):
    path = tmp_path / "cores.csv"
    path.write_text(BEFORE + make() + AFTER)  # type: ignore[operator]
    file = read_ncu(path, WANTED)
    use = aggregate_cores(file)
    for pipe, metric in ORIGINAL.items():
        assert use.pipes_percent[pipe] == pytest.approx(original_formula(make_long(), CYCLES, metric), rel=1e-12)
    assert use.pipes_percent["fma"] == pytest.approx((1016888 * 40.25 + 3000 * 1.5) / 1020000)
    assert use.pipes_percent["tensor"] == pytest.approx(112 * 90 / 1020000)  # of the last kernel, and no other
    assert (use.kernels, use.processes, use.cycles, use.file) == (3, 1, 1020000, str(path))
    assert tell_cores(file) == []


def test_processes_are_counted_and_weighed_together(tmp_path: Path):
    path = tmp_path / "cores.csv"
    busy = {0: ("k", {CYCLES: "1,020,000", FMA: "100"})}
    path.write_text(make_long(process=7) + make_long(busy, process=8) + make_long(busy, process=8))
    use = aggregate_cores(read_ncu(path))
    alone = original_formula(make_long(), CYCLES, FMA)
    assert (use.kernels, use.processes) == (5, 3)
    assert use.pipes_percent["fma"] == pytest.approx((alone + 200) / 3)


def test_the_originals_lines_are_printed():
    use = CoreUse(pipes_percent={"sfu": 2.390481, "fma": 17.507649, "tensor": 0.0}, kernels=1, processes=1, cycles=1.0)
    assert format_original(use) == "fma\t17.50765 %\ntensor\t0.00000 %\nsfu\t2.39048 %\n"


def test_a_pipe_that_no_kernel_has_is_absent():
    assert aggregate_cores(make_file({CYCLES: 10, SFU: 5})).pipes_percent == {"sfu": 5}


def test_a_pipe_that_some_kernels_have_is_theirs_and_told():
    file = make_file({CYCLES: 10, SFU: 5, FMA: 10}, {CYCLES: 30, FMA: 20})
    assert aggregate_cores(file).pipes_percent == {"fma": 17.5, "sfu": 5}
    assert tell_cores(file) == ["sfu was measured of 1 of 2 kernels: the mean is theirs"]


def test_a_kernel_without_cycles_is_left_out_and_told():
    file = make_file({CYCLES: 10, FMA: 10}, {FMA: 90}, {CYCLES: 0, FMA: 50})
    use = aggregate_cores(file)
    assert (use.pipes_percent, use.kernels, use.cycles) == ({"fma": 10}, 1, 10)
    assert tell_cores(file) == [f"2 kernels of 3 without {CYCLES} left out"]


def test_cycles_are_counted_by_one_metric_for_all():
    average = "sm__cycles_elapsed.avg"
    file = make_file({CYCLES: 10, average: 4, FMA: 10}, {average: 12, FMA: 50})
    assert aggregate_cores(file).pipes_percent == {"fma": 40}
    assert tell_cores(file) == []


def test_one_name_stands_for_a_pipe_and_is_told():
    both = make_file({CYCLES: 10, FMA: 10, FMA_CYCLES: 90}, {CYCLES: 10, FMA_CYCLES: 70})
    assert aggregate_cores(both).pipes_percent == {"fma": 80}
    assert tell_cores(both) == [f"fma is {FMA_CYCLES}"]
    preferred = make_file({CYCLES: 10, FMA_CYCLES: 90, FMA: 10}, {CYCLES: 10, FMA_CYCLES: 70, FMA: 20})
    assert aggregate_cores(preferred).pipes_percent == {"fma": 15}
    assert tell_cores(preferred) == []


def test_kernels_of_different_gpus_may_have_a_name_each():
    file = make_file({CYCLES: 10, FP16: 10}, {CYCLES: 10, FMA_FP16: 30}, {CYCLES: 20})
    assert aggregate_cores(file).pipes_percent == {"fp16": 20}
    assert tell_cores(file) == [
        f"fp16 is {FP16} or {FMA_FP16}",
        "fp16 was measured of 2 of 3 kernels: the mean is theirs",
    ]


def test_names_are_not_mixed_where_one_kernel_has_both():
    file = make_file({CYCLES: 10, FMA: 10}, {CYCLES: 10, FMA: 30, FMA_CYCLES: 80}, {CYCLES: 20, FMA_CYCLES: 90})
    assert aggregate_cores(file).pipes_percent == {"fma": 20}
    assert tell_cores(file) == ["fma was measured of 2 of 3 kernels: the mean is theirs"]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ({FMA: 10}, r"cores.csv: no kernel has any cycles \(gpc__cycles_elapsed.max or "),
        ({CYCLES: 0, FMA: 10}, "no kernel has any cycles"),
        ({CYCLES: -5, FMA: 10}, "no kernel has any cycles"),
        ({CYCLES: 10, "a": 1, "b": 1, "c": 1}, r"of no pipe how busy it was; it has a, b, c and 1 more"),
        ({CYCLES: 10, FMA: -1}, "-1 % of the peak of pipe fma"),
        ({CYCLES: 10, SFU: 5000}, "5000 % of the peak of pipe sfu"),
    ],
)
def test_what_cannot_be_aggregated_is_said(kernel: dict[str, float], message: str):
    with pytest.raises(DataError, match=message) as caught:
        aggregate_cores(make_file(kernel))
    assert "--metrics" in (caught.value.hint or "")


def test_any_metric_can_be_averaged_by_any_other():
    file = make_file({"a": 1, "w": 3}, {"a": 5, "w": 1}, {"a": 100}, {"w": 100})
    assert weighted_mean(file, "a", "w") == 2
    with pytest.raises(DataError, match="no kernel with a and x"):
        weighted_mean(file, "a", "x")
    with pytest.raises(DataError, match="w of all kernels is zero"):
        weighted_mean(make_file({"a": 1, "w": 0}), "a", "w")
    with pytest.raises(DataError, match="w is below zero"):
        weighted_mean(make_file({"a": 1, "w": -1}), "a", "w")


@given(damaged((BEFORE + make_long(KERNELS) + AFTER).encode()))
@quick
def test_damage_gives_a_result_or_is_told(tmp_path: Path, content: bytes):
    path = tmp_path / "cores.csv"
    path.write_bytes(content)
    try:
        file = read_ncu(path, WANTED)
        use, _ = aggregate_cores(file), tell_cores(file)
    except DataError:
        return
    assert all(0 <= percent <= 200 for percent in use.pipes_percent.values())
    assert format_original(use).count("\n") == len(use.pipes_percent)


@pytest.mark.parametrize(
    "metric", ["sm__inst_executed_pipe_tensor.sum", "sm__cycles_elapsed.avg.per_second", "dram__bytes.sum"]
)
def test_real_kernels_of_a_v100_agree_with_the_originals_formula(metric: str):
    path = real_data("profilers/ncu/v100_cutlass_gemm_ncu.csv")
    expected = original_formula(path.read_text(), "sm__cycles_elapsed.avg", metric)
    assert weighted_mean(read_ncu(path), metric, "sm__cycles_elapsed.avg") == pytest.approx(expected, rel=1e-12)
    with pytest.raises(DataError, match="of no pipe how busy it was"):
        aggregate_cores(read_ncu(path))


def test_a_real_kernel_of_a_2080_ti_has_newer_names():
    path = real_data("profilers/ncu/rtx2080ti_sgemm_3136x64x64.metrics.csv")
    use = aggregate_cores(read_ncu(path, WANTED))
    assert use.pipes_percent["fma"] == pytest.approx(original_formula(path.read_text(), CYCLES, FMA_CYCLES))
    assert use.pipes_percent == {"fma": pytest.approx(22.06044562100154), "fp16": 0, "tensor": 0, "sfu": 0}
    assert (use.kernels, use.processes, use.cycles) == (1, 1, 14120)
