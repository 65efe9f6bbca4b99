import random
from pathlib import Path

import pytest
from hypothesis import given

import made_ncu
from damage import damaged, quick, read_damaged, real_data
from made_ncu import AFTER, BEFORE, CYCLES, FMA, KERNELS, LONG_COLUMNS, SFU, make_long, make_wide
from trainstone.errors import DataError, MachineError
from trainstone.formats.ncu import NcuFile, NcuKernel, read_ncu
from trainstone.formats.ncuvalues import Metric


def read(folder: Path, text: str | bytes) -> NcuFile:
    path = folder / "cores.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_ncu(path)


def number(text: str) -> float:
    return float(text.replace(",", ""))


def is_expected(kernels: tuple[NcuKernel, ...]) -> bool:
    got = {
        kernel.id: (kernel.name, {name: metric.value for name, metric in kernel.metrics.items()}) for kernel in kernels
    }
    expected = {key: (name, {m: number(v) for m, v in metrics.items()}) for key, (name, metrics) in KERNELS.items()}
    return got == expected


def one(folder: Path, metric: str, value: str, unit: str = "") -> Metric | None:
    text = make_long({0: ("k", {metric: value})}, units={metric: unit})
    return read(folder, text).kernels[0].metrics.get(metric)


FORMS = {
    "long": make_long(),
    "wide": make_wide(),
    "output around": BEFORE + make_long() + AFTER,
    "output around wide": BEFORE + make_wide() + AFTER,
    "output between": make_long().replace('\n"3"', '\n==PROF== Profiling "relu"\nepoch 1: 3, 4, 5\n"3"', 1),
    "windows": make_long().replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + make_long(),
    "spaces": make_long().replace('","', '", "'),
    "any order": make_long(columns=random.Random(3).sample(LONG_COLUMNS, len(LONG_COLUMNS))),
    "few columns": make_long(columns=["Metric Value", "Metric Name", "Kernel Name", "ID"]),
    "more columns": make_long(columns=["ID", "Kernel Time", "NVTX", *LONG_COLUMNS[1:]]),
    "rules left out": "\n".join(
        line + (',"Rule Name","Rule Type"' if line.startswith('"ID"') else ",") for line in make_long().splitlines()
    ),
    "available kernels": make_long() + "==WARNING== Some\nAvailable Kernels:\n1. stats(const __half *, float *, int)\n",
    "no last line end": make_long().rstrip("\n"),
    "no units": make_long(columns=[column for column in LONG_COLUMNS if column != "Metric Unit"]),
    "wide without units": "\n".join(line for line in make_wide().splitlines() if not line.startswith('""')),
    "wide, units in the header": "\n".join(
        line.replace(CYCLES, f"{CYCLES} [cycle]") for line in make_wide().splitlines() if not line.startswith('""')
    ),
    "sorted by metric": "\n".join(
        [make_long().splitlines()[0], *sorted(make_long().splitlines()[1:], key=lambda row: row[-60:])]
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_kernels(tmp_path: Path, form: str):
    file = read(tmp_path, FORMS[form])
    assert is_expected(file.kernels)
    assert file.name == str(tmp_path / "cores.csv")


def test_what_is_not_quoted_is_read_too(tmp_path: Path):
    text = "output\nID,Kernel Name,Metric Name,Metric Unit,Metric Value\n0,relu,a__b.sum,Kinst,2.5\n1,2\n"
    text += '1,"f(int, int)",a__b.sum,Kinst,"1,002.5"\n'
    kernels = read(tmp_path, text).kernels
    assert [(kernel.id, kernel.name, kernel.metrics) for kernel in kernels] == [
        (0, "relu", {"a__b.sum": Metric(2500, "inst")}),
        (1, "f(int, int)", {"a__b.sum": Metric(1002500, "inst")}),
    ]


@pytest.mark.parametrize(
    ("value", "unit", "metric"),
    [
        ("1.016888", "Mcycle", Metric(1016888, "cycle")),
        ("1,016.888", "Kcycle", Metric(1016888, "cycle")),
        ("1016888", "cycle", Metric(1016888, "cycle")),
        ("17.5", "%", Metric(17.5, "%")),
        ("1.5", "Ghz", Metric(1.5e9, "hz")),
        ("2.25", "usecond", Metric(2.25e-6, "second")),
        ("2", "ms", Metric(0.002, "second")),
        ("1.25", "cycle/nsecond", Metric(1.25e9, "cycle/second")),
        ("8.19", "Kbyte/block", Metric(8190, "byte/block")),
        ("3", "register/thread", Metric(3, "register/thread")),
        ("1e3", "", Metric(1000, "")),
        ("-2.5", "", Metric(-2.5, "")),
        ("100 (50; 50)", "inst", Metric(100, "inst")),
        ("1 016 888", "cycle", Metric(1016888, "cycle")),
        ("1\u202f016\u202f888", "cycle", Metric(1016888, "cycle")),
        ("1'016'888", "cycle", Metric(1016888, "cycle")),
        ("10,16,888", "cycle", Metric(1016888, "cycle")),
    ],
)
def test_numbers_become_plain_numbers_in_plain_units(tmp_path: Path, value: str, unit: str, metric: Metric):
    got = one(tmp_path, "some__metric.sum", value, unit)
    assert got is not None
    assert got.value == pytest.approx(metric.value, rel=1e-12)
    assert got.unit == metric.unit


@pytest.mark.parametrize(
    "value", ["", "n/a", "(!) n/a", "nan", "-nan", "inf", "a__b.sum,c__d.sum", "(1, 1)", "1.2.3", "\u0661"]
)
def test_what_is_no_number_was_not_measured(tmp_path: Path, value: str):
    assert one(tmp_path, "some__metric.sum", value, "%") is None


def test_decimal_commas_of_other_locales_are_recognised_from_the_whole_file(tmp_path: Path):
    metrics = {"a": "117.344", "b": "27.595.520", "c": "12,5", "d": "3.530.235,80"}
    kernel = read(tmp_path, make_long({0: ("k", metrics)})).kernels[0]
    assert {name: metric.value for name, metric in kernel.metrics.items()} == {
        "a": 117344,
        "b": 27595520,
        "c": 12.5,
        "d": 3530235.8,
    }
    plain = read(tmp_path, make_long({0: ("k", {"a": "117.344", "b": "1,016"})})).kernels[0].metrics
    assert (plain["a"].value, plain["b"].value) == (117.344, 1016)
    with pytest.raises(DataError, match=r"cores.csv, line 2: 1.5 has a decimal point, 12,5 in line 3 a decimal comma"):
        read(tmp_path, make_long({0: ("k", {"a": "1.5", "b": "12,5"})}))


def test_a_kernel_belongs_to_its_process(tmp_path: Path):
    both = make_long(process=7) + make_long(process=8).partition("\n")[2]
    kernels = read(tmp_path, both).kernels
    assert [(kernel.process, kernel.run, kernel.id) for kernel in kernels] == [
        *((7, 0, 0), (7, 0, 3), (7, 0, 4)),
        *((8, 0, 0), (8, 0, 3), (8, 0, 4)),
    ]
    assert is_expected(kernels[:3])
    assert is_expected(kernels[3:])


@pytest.mark.parametrize("between", ["", "==PROF== Disconnected\n"])
@pytest.mark.parametrize("make", [make_long, make_wide])
def test_the_same_process_number_after_another_header_is_another_run(tmp_path: Path, make: object, between: str):
    text = make() + between + make()  # type: ignore[operator]
    kernels = read(tmp_path, text).kernels
    assert [(kernel.run, kernel.id) for kernel in kernels] == [(0, 0), (0, 3), (0, 4), (1, 0), (1, 3), (1, 4)]


def test_without_processes_ids_that_restart_are_another_run(tmp_path: Path):
    columns = ["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"]
    table = make_long(columns=columns)
    kernels = read(tmp_path, table + table.partition("\n")[2]).kernels
    assert [(kernel.process, kernel.run, kernel.id) for kernel in kernels] == [
        *((None, 0, 0), (None, 0, 3), (None, 0, 4)),
        *((None, 1, 0), (None, 1, 3), (None, 1, 4)),
    ]
    single = make_long({0: KERNELS[0]}, columns=columns)
    assert len(read(tmp_path, single + single.partition("\n")[2]).kernels) == 2


def test_a_metric_that_sections_repeat_is_read_once_and_rules_have_none(tmp_path: Path):
    columns = [*LONG_COLUMNS, "Rule Name", "Rule Description"]
    text = make_long({0: ("k", {"Duration": "5"})}, columns=columns, units={"Duration": "nsecond"})
    row = made_ncu.place(0, 7, "k")
    text += made_ncu.quote([*row.values(), "Memory", "Duration", "%", "9", "", ""]) + "\n"
    text += made_ncu.quote([*row.values(), "Rules", "", "", "", "Bottleneck", "first line\nsecond, line"]) + "\n"
    kernels = read(tmp_path, text).kernels
    assert [kernel.metrics for kernel in kernels] == [{"Duration": Metric(pytest.approx(5e-9), "second")}]


def test_only_what_is_wanted_is_kept(tmp_path: Path):
    path = tmp_path / "cores.csv"
    path.write_text(make_wide())
    assert [set(kernel.metrics) for kernel in read_ncu(path, {SFU, CYCLES}).kernels] == [{SFU, CYCLES}] * 3


DAMAGED_ROWS = {
    "short": ('"4","7","python3"', "it has 3 fields, the header has 15"),
    "long": ('"4"' + ',"x"' * 15, "it has 16 fields, the header has 15"),
    "separated": ("0,7,p,h,k,1,7,b,g,0,7.0,s,cycles,cycle,1,016,888", "it has 17 fields, the header has 15"),
    "no id": ('"four"' + ',"x"' * 14, "its ID is 'four'"),
    "zero bytes": ('"4"' + ',"x"' * 13 + ',"\0"', "it holds zero bytes"),
    "quotes": ('"4","a"b"c"', "its quotes are damaged"),
    "huge field": ('"4","' + "x" * 200_000 + '"', "a field is too long"),
    "huge line": ("x" * (2 << 20), "the line is longer than"),
    "open": ('"4","7","pyth', "the file ends within a row"),
    "open, then a row": ('"4","7","pyth\n' + make_long().splitlines()[1], "the row's quotes do not close"),
    "open for long": ('"4","7","pyth' + "\nmore" * 60, "the row's quotes do not close"),
}


@pytest.mark.parametrize("what", DAMAGED_ROWS)
def test_damaged_rows_are_told_with_their_line(tmp_path: Path, what: str):
    row, message = DAMAGED_ROWS[what]
    table = make_long()
    with pytest.raises(DataError, match=rf"cores.csv, line {table.count(chr(10)) + 1}: .*{message}"):
        read(tmp_path, table + row + "\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "it is empty"),
        (make_long({}), "it has a header and no rows"),
        ("hello\nworld\n", "it says 'hello'"),
        (
            "==PROF== Connected\n==WARNING== No kernels were profiled.\n",
            "it says '==WARNING== No kernels were profiled.'",
        ),
        ("x\n==WARNING== w\n==ERROR== Failed to find metric\n==ERROR== b", "it says '==ERROR== Failed to find metric'"),
        ("a,b,c\n1,2,3\n", "it says 'a,b,c'"),
        ("\x1b[31mred\n", r"it says '\\x1b[31mred'"),
    ],
)
def test_a_file_without_kernels_says_what_it_has_instead(tmp_path: Path, text: str, found: str):
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert caught.value.message.endswith(f"cores.csv: {found}")
    assert "--csv" in (caught.value.hint or "")


def test_other_kinds_of_files_are_named(tmp_path: Path):
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        with pytest.raises(DataError, match="is UTF-16 text"):
            read(tmp_path, make_long().encode(encoding))
    with pytest.raises(DataError, match="is a report of ncu"):
        read(tmp_path, b"NVR\0\1\2\3")
    with pytest.raises(DataError, match="it is no file"):
        read_ncu(tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        read_ncu(tmp_path / "none.csv")


def test_a_missing_permission_is_the_machines_fault(tmp_path: Path):
    told = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n"
    for text in (told, BEFORE + make_long() + told):
        with pytest.raises(MachineError, match="ERR_NVGPUCTRPERM") as caught:
            read(tmp_path, text)
        assert "NVreg_RestrictProfilingToAdminUsers=0" in (caught.value.hint or "")


@pytest.mark.parametrize("form", ["output around", "output around wide", "rules left out"])
@given(content=damaged(b""))
@quick
def test_nothing_else_than_kernels_or_an_error_comes_of_noise(tmp_path: Path, form: str, content: bytes):
    check_damage(tmp_path, FORMS[form].encode()[:700] + content)


@given(damaged(FORMS["output around"].encode()))
@quick
def test_damage_of_the_long_form_is_told_or_does_no_harm(tmp_path: Path, content: bytes):
    check_damage(tmp_path, content)


@given(damaged(FORMS["output around wide"].encode()))
@quick
def test_damage_of_the_wide_form_is_told_or_does_no_harm(tmp_path: Path, content: bytes):
    check_damage(tmp_path, content)


def check_damage(folder: Path, content: bytes) -> None:
    read_damaged(folder / "cores.csv", content, read_ncu, place="")


def test_a_real_file_of_a_v100_is_read_whole():
    file = read_ncu(real_data("profilers/ncu/v100_cutlass_gemm_ncu.csv"))
    assert [(kernel.process, kernel.id) for kernel in file.kernels] == [(24103, number) for number in range(11)]
    assert {len(kernel.metrics) for kernel in file.kernels} == {15}
    last = file.kernels[-1]
    assert last.name == "void cutlass::Kernel<cutlass_70_tensorop_s884gemm_f16_128x128_nn_align8>(T1::Params)"
    assert last.metrics["sm__cycles_elapsed.avg"] == Metric(224198002.15, "cycle")
    assert last.metrics["sm__inst_executed_pipe_tensor.sum"] == Metric(33554432000, "inst")


def test_a_real_file_without_processes_is_read_whole():
    (kernel,) = read_ncu(real_data("profilers/ncu/rtx2080ti_sgemm_3136x64x64.metrics.csv")).kernels
    assert (kernel.process, kernel.id, kernel.name) == (None, 0, "volta_sgemm_32x128_nn")
    assert kernel.metrics[CYCLES] == Metric(14120, "cycle")
    assert kernel.metrics["gpu__time_duration.sum"] == Metric(pytest.approx(10.72e-6), "second")
    assert FMA not in kernel.metrics
    assert not any(name.startswith("breakdown:") for name in kernel.metrics)
