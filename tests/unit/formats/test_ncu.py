from pathlib import Path

import pytest

from support.builders import ncu_files as made_ncu
from support.builders.damage import real_data, write
from support.builders.ncu_files import AFTER, BEFORE, CYCLES, FMA, KERNELS, LONG_COLUMNS, SFU, make_long, make_wide
from trainstone.errors import DataError, MachineError
from trainstone.formats.ncu import Metric, NcuFile, NcuKernel, read_ncu


def read(folder: Path, text: str | bytes, wanted: set[str] | None = None) -> NcuFile:
    return read_ncu(write(folder / "cores.csv", text.encode() if isinstance(text, str) else text), wanted)


def is_expected(kernels: tuple[NcuKernel, ...]) -> bool:
    got = {
        kernel.id: (kernel.name, {name: metric.value for name, metric in kernel.metrics.items()}) for kernel in kernels
    }
    return got == {
        key: (name, {metric: float(value.replace(",", "")) for metric, value in metrics.items()})
        for key, (name, metrics) in KERNELS.items()
    }


def one(folder: Path, metric: str, value: str, unit: str = "") -> Metric | None:
    text = make_long({0: ("k", {metric: value})}, units={metric: unit})
    return read(folder, text).kernels[0].metrics.get(metric)


FORMS = {
    "long": make_long(),
    "wide": make_wide(),
    "output around": BEFORE + make_long() + AFTER,
    "output between": make_long().replace('\n"3"', '\n==PROF== Profiling "relu"\nepoch 1: 3, 4, 5\n"3"', 1),
    "windows": make_long().replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + make_long(),
    "few columns": make_long(columns=["Metric Value", "Metric Name", "Kernel Name", "ID"]),
    "more columns": make_long(columns=["ID", "Kernel Time", "NVTX", *LONG_COLUMNS[1:]]),
    "without rules": "\n".join(
        line + (',"Rule Name","Rule Type"' if line.startswith('"ID"') else ",") for line in make_long().splitlines()
    ),
    "available kernels": make_long() + "==WARNING== Some\nAvailable Kernels:\n1. stats(const __half *, float *, int)\n",
    "wide without units": "\n".join(line for line in make_wide().splitlines() if not line.startswith('""')),
    "wide, units in the header": "\n".join(
        line.replace(CYCLES, f"{CYCLES} [cycle]") for line in make_wide().splitlines() if not line.startswith('""')
    ),
    "sorted by metric": "\n".join(
        [make_long().splitlines()[0], *sorted(make_long().splitlines()[1:], key=lambda row: row[-60:])]
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_read_ncu_returns_same_kernels_for_all_layouts(tmp_path: Path, form: str):
    file = read(tmp_path, FORMS[form])
    assert is_expected(file.kernels)
    assert file.name == str(tmp_path / "cores.csv")


@pytest.mark.parametrize(
    ("value", "unit", "number", "plain"),
    [
        ("1.016888", "Mcycle", 1016888, "cycle"),
        ("1,016.888", "Kcycle", 1016888, "cycle"),
        ("17.5", "%", 17.5, "%"),
        ("1.5", "Ghz", 1.5e9, "hz"),
        ("2.25", "usecond", 2.25e-6, "second"),
        ("2", "ms", 0.002, "second"),
        ("1.25", "cycle/nsecond", 1.25e9, "cycle/second"),
        ("8.19", "Kbyte/block", 8190, "byte/block"),
        ("1e3", "", 1000, ""),
        ("100 (50; 50)", "inst", 100, "inst"),
    ],
)
def test_read_ncu_converts_numbers_to_base_units(tmp_path: Path, value: str, unit: str, number: float, plain: str):
    assert one(tmp_path, "some__metric.sum", value, unit) == Metric(pytest.approx(number, rel=1e-12), plain)


@pytest.mark.parametrize(
    "value", ["", "n/a", "(!) n/a", "nan", "-nan", "inf", "a__b,c__d", "(1, 1)", "1.2.3", "\u0661", "1e30,5"]
)
def test_read_ncu_skips_text_values(tmp_path: Path, value: str):
    assert one(tmp_path, "some__metric.sum", value, "%") is None


@pytest.mark.parametrize(
    "value", ["12,5", "1.016.888", "3.530.235,80", "1 016 888", "1\u202f016,5", "1'016'888", "10,16,888"]
)
def test_read_ncu_rejects_numbers_in_other_locales(tmp_path: Path, value: str):
    with pytest.raises(DataError, match=r"cores.csv, line 2: a: number .* is in another locale") as caught:
        read(tmp_path, make_long({0: ("k", {"a": value, "b": "1"})}), {"b"})
    assert "LC_ALL=C" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (make_long(process=7) + make_long(process=8).partition("\n")[2], [(7, 0), (8, 0)]),
        (make_long() + make_long(), [(7, 0), (7, 1)]),
        (make_wide() + "==PROF== Disconnected\n" + make_wide(), [(7, 0), (7, 1)]),
    ],
    ids=["processes", "headers", "wide headers"],
)
def test_read_ncu_separates_processes_and_tables(tmp_path: Path, text: str, expected: list[tuple[int | None, int]]):
    kernels = read(tmp_path, text).kernels
    found = [(kernel.process, kernel.run, kernel.id) for kernel in kernels]
    assert found == [(*run, kernel_id) for run in expected for kernel_id in (0, 3, 4)]
    assert is_expected(kernels[:3])
    assert is_expected(kernels[3:])


def test_read_ncu_reads_unquoted_rows(tmp_path: Path):
    text = "output\nID,Kernel Name,Metric Name,Metric Unit,Metric Value\n0,relu,a.sum,inst,2.5\n1,2\n"
    kernels = read(tmp_path, text + '1,"f(int, int)",a.sum,Kinst,"1,002.5"\n').kernels
    assert [(kernel.id, kernel.name, kernel.metrics) for kernel in kernels] == [
        (0, "relu", {"a.sum": Metric(2.5, "inst")}),
        (1, "f(int, int)", {"a.sum": Metric(1002500, "inst")}),
    ]


def test_read_ncu_uses_first_of_repeated_metrics_and_skips_rules(tmp_path: Path):
    columns = [*LONG_COLUMNS, "Rule Name", "Rule Description"]
    text = make_long({0: ("k", {"Duration": "5"})}, columns=columns, units={"Duration": "nsecond"})
    row = made_ncu.place(0, 7, "k")
    text += made_ncu.quote([*row.values(), "Memory", "Duration", "%", "9", "", ""]) + "\n"
    text += made_ncu.quote([*row.values(), "Rules", "", "", "", "Bottleneck", "first line\nsecond, line"]) + "\n"
    kernels = read(tmp_path, text).kernels
    assert [kernel.metrics for kernel in kernels] == [{"Duration": Metric(pytest.approx(5e-9), "second")}]


def test_read_ncu_keeps_only_wanted_metrics(tmp_path: Path):
    kernels = read(tmp_path, make_wide(), {SFU, CYCLES}).kernels
    assert [set(kernel.metrics) for kernel in kernels] == [{SFU, CYCLES}] * 3


ROW = make_long().splitlines()[1]
DAMAGED_ROWS = {
    "short": ('"4","7","python3"', "3 fields; expected 15 fields"),
    "long": ('"4"' + ',"x"' * 15, "16 fields; expected 15 fields"),
    "thousands not quoted": ("0,7,p,h,k,1,7,b,g,0,7.0,s,cycles,cycle,1,016,888", "17 fields; expected 15 fields"),
    "no id": ('"four"' + ',"x"' * 14, "15 fields with a number as ID"),
    "quotes": ('"4","a"b"c"', "damaged quotes"),
    "huge field": ('"4","' + "x" * 200_000 + '"', "a field that is too long"),
    "huge line": ("x" * (2 << 20), "line too long"),
    "huge number": (ROW.replace("1,016,888", "1e31"), "1e31 is too large"),
    "open": ('"4","7","pyth', "the file ends within a row"),
}


@pytest.mark.parametrize("what", DAMAGED_ROWS)
def test_read_ncu_names_line_of_damaged_row(tmp_path: Path, what: str):
    row, message = DAMAGED_ROWS[what]
    table = make_long().replace('"0","7"', '"1","7"')
    with pytest.raises(DataError, match=rf"cores.csv, line {table.count(chr(10)) + 1}: .*{message}"):
        read(tmp_path, table + row + "\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "it has no rows"),
        (make_long({}), "it has no rows"),
        ("hello\nworld\n", "it contains 'hello'"),
        (
            "==PROF== Connected\n==WARNING== No kernels were profiled.\n",
            "it contains '==WARNING== No kernels were profiled.'",
        ),
        (
            "x\n==WARNING== w\n==ERROR== Failed to find metric\n==ERROR== b",
            "it contains '==ERROR== Failed to find metric'",
        ),
        ("a,b,c\n1,2,3\n", "it contains 'a,b,c'"),
        ("\x1b[31mred\n", r"it contains '\\x1b[31mred'"),
    ],
)
def test_read_ncu_without_kernels_quotes_file_content(tmp_path: Path, text: str, found: str):
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert caught.value.message.endswith(f"cores.csv: no kernel found; {found}")
    assert "--csv" in (caught.value.hint or "")


def test_read_ncu_rejects_reports_folders_and_missing_files(tmp_path: Path):
    with pytest.raises(DataError, match="is a binary report of ncu"):
        read(tmp_path, b"NVR\0\1\2\3")
    with pytest.raises(DataError, match="not a file"):
        read_ncu(tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        read_ncu(tmp_path / "none.csv")


def test_read_ncu_raises_machine_error_for_missing_permission(tmp_path: Path):
    message = (
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n"
    )
    for text in (message, BEFORE + make_long() + message):
        with pytest.raises(MachineError, match="ERR_NVGPUCTRPERM") as caught:
            read(tmp_path, text)
        assert "NVreg_RestrictProfilingToAdminUsers=0" in (caught.value.hint or "")


def test_read_ncu_reads_real_files():
    file = read_ncu(real_data("profilers/ncu/v100_cutlass_gemm_ncu.csv"))
    assert [(kernel.process, kernel.id) for kernel in file.kernels] == [(24103, number) for number in range(11)]
    assert {len(kernel.metrics) for kernel in file.kernels} == {15}
    last = file.kernels[-1]
    assert last.name == "void cutlass::Kernel<cutlass_70_tensorop_s884gemm_f16_128x128_nn_align8>(T1::Params)"
    assert last.metrics["sm__cycles_elapsed.avg"] == Metric(224198002.15, "cycle")
    assert last.metrics["sm__inst_executed_pipe_tensor.sum"] == Metric(33554432000, "inst")
    (kernel,) = read_ncu(real_data("profilers/ncu/rtx2080ti_sgemm_3136x64x64.metrics.csv")).kernels
    assert (kernel.process, kernel.id, kernel.name) == (None, 0, "volta_sgemm_32x128_nn")
    assert kernel.metrics[CYCLES] == Metric(14120, "cycle")
    assert kernel.metrics["gpu__time_duration.sum"] == Metric(pytest.approx(10.72e-6), "second")
    assert FMA not in kernel.metrics
    assert not any(name.startswith("breakdown:") for name in kernel.metrics)
