"""Sweeps: knee, alternatives, fit of step time; rows, findings and table cells from the runs of points."""

import itertools
import random

import pytest

from support.builders.results import make_result
from support.builders.sweeps import make_row, make_sweep, steps_of
from trainstone.results import knee
from trainstone.results.combine import check_points, collect_measured, collect_profiled, combine_sweep
from trainstone.results.findings import finding
from trainstone.results.schema import sweep as swept
from trainstone.results.schema.run import Memory, Utilisation
from trainstone.results.schema.timeline import Timeline
from trainstone.results.tables import describe_point
from trainstone.results.verdicts import format_sweep_verdict


def between(*intervals: tuple[float, float]) -> list[swept.SweepRow]:
    """Make points at 1, 2, 3 ... with these intervals."""
    return [make_row(value, (low + high) / 2, ci95=(low, high)) for value, (low, high) in enumerate(intervals, start=1)]


@pytest.mark.parametrize(
    ("rates", "knee", "could_be"),
    [
        ({1: 2.0, 2: 3.5, 4: 4.56, 8: 4.7, 16: 4.65}, 4, []),
        ({1: 95.0, 2: 100.0, 4: 100.0}, 1, [2]),  # exactly 5 % below counts
        ({1: 94.9, 2: 100.0, 4: 100.0}, 2, [1]),
        ({8: 10.0, 1: 3.0, 4: 9.9}, 4, []),  # the order of rows does not matter
        ({1: 5.0, 2: 9.3, 4: 10.0, 8: 10.1}, 4, []),
        ({1: 1.0, 2: 2.0}, None, []),  # still rising
        ({1: 1.0, 2: 2.0, 4: 2.05}, 2, []),
        ({1: 1.0}, None, []),
    ],
)
def test_find_knee_returns_smallest_value_within_five_percent_of_best(rates, knee, could_be):
    knees = make_sweep(*(make_row(value, rate) for value, rate in rates.items())).knees
    assert [(found.value, found.could_be) for found in knees] == ([] if knee is None else [(knee, could_be)])


def test_find_knee_lists_alternatives_within_intervals():
    slow, fast = (make_row(value, rate, 0.06) for value, rate in ((1, 90.0), (2, 100.0)))
    assert not knee.is_behind(slow, fast)
    assert knee.is_behind(make_row(1, 90.0, 0.04), make_row(2, 100.0, 0.04))
    assert (knee.find_knee([slow, fast]).value, knee.find_knee([slow, fast]).could_be) == (2, [1])
    rows = [make_row(1, 5.0), *(make_row(v, r, 0.05) for v, r in ((2, 9.3), (4, 10.0), (8, 10.1)))]
    assert make_sweep(*rows).knees[0].could_be == [2, 8]
    assert make_sweep(*rows[:-1], make_row(8, 10.1, None)).knees[0].could_be == []  # an interval is missing


def test_could_be_knee_needs_one_best_rate_for_all_points():
    points = between((99, 101), (96, 98.9), (90, 130))
    assert [knee.could_be_knee(points, point) for point in points] == [True, False, True]
    points = between((97, 130), (95, 100))
    assert [knee.could_be_knee(points, point) for point in points] == [True, False]


def test_could_be_knee_covers_all_rates_inside_intervals():
    chance = random.Random(1)
    for _ in range(40):
        points = between(*(tuple(sorted(chance.uniform(80, 130) for _ in range(2))) for _ in range(3)))
        grids = [[low + (high - low) * share / 6 for share in range(7)] for low, high in (p.ends for p in points)]
        found = {
            next(place for place, rate in enumerate(rates) if rate >= (1 - knee.NEAR) * max(rates))
            for rates in itertools.product(*grids)
        }
        assert found <= {place for place, point in enumerate(points) if knee.could_be_knee(points, point)}


def test_fit_steps_finds_costs_and_never_negative_parts():
    (fit,) = make_sweep(*steps_of(0.062, 0.201, 1, 2, 4, 8)).fits
    assert (fit.fixed_seconds, fit.seconds_per_image) == (pytest.approx(0.062), pytest.approx(0.201))
    assert fit.error < 1e-9
    convex = knee.fit_steps([make_row(1, 1.0), make_row(2, 1.0), make_row(4, 0.5)])
    assert (convex.fixed_seconds, convex.seconds_per_image > 0) == (0, True)
    falling = knee.fit_steps([make_row(1, 1.0), make_row(2, 3.0), make_row(4, 9.0)])
    assert (falling.fixed_seconds > 0, falling.seconds_per_image) == (True, 0)
    assert make_sweep(make_row(1, 1.0), make_row(2, 1.5)).fits == []
    poor = make_sweep(make_row(1, 1.0), make_row(2, 6.0), make_row(4, 3.0), make_row(8, 30.0))
    assert poor.fits[0].error > knee.POOR_FIT
    assert not any("step costs" in sentence for sentence in poor.sentences)


@pytest.mark.parametrize(
    ("key", "num_knees"), [("train.batch_size", 1), ("model.width", 1), ("engine.threads", 1), ("seed", 0)]
)
def test_assess_sweep_finds_knee_only_for_ordered_keys(key: str, num_knees: int):
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 1.0), make_row(4, 1.0), key=key)
    assert (len(sweep.knees), len(sweep.fits)) == (num_knees, key == "train.batch_size")


def test_split_curves_distinguishes_true_from_one():
    rows = [make_row(b, 1.0, curve=c) for c in (True, 1) for b in (1, 2)]
    assert [knee.curve for knee in make_sweep(*rows, curve_key="x", curves=[True, 1]).knees] == [True, 1]


@pytest.mark.parametrize("value", [10**400, float("inf"), {"a": 1}, None, [1]])
def test_assess_sweep_ignores_values_that_are_not_numbers(value):
    assert make_sweep(make_row(1, 1.0), make_row(2, 1.0), values=[1, 2, value]).knees == []


def test_assess_sweep_sentences_name_knee_fit_peak_and_memory():
    full = make_row(16, status="out_of_memory")
    message = " ".join(make_sweep(*steps_of(0.1, 0.1, 1, 2, 4, 8, 12), make_row(14, 9.3), full).sentences)
    for words in ("Knee at batch 8:", "A step costs", "reaches 50 %", "by compute", "batch 16 does not fit"):
        assert words in message
    falling = make_sweep(make_row(1, 9.0), make_row(2, 10.0), make_row(4, 5.0)).sentences
    assert any("50 % of the best at batch 4" in sentence for sentence in falling)
    assert make_sweep(make_row(1, 1.0)).sentences == []


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        (make_sweep(make_row(1, 1.0), make_row(2, 2.0)), "no knee up to batch 2"),
        (make_sweep(make_row(1, 2.0), make_row(2, 2.0), values=[1, 2, 4]), "(2 of 3 points)"),
        (make_sweep(make_row("fp32", 1.0), make_row("bf16", 2.0), key="train.precision"), "train.precision bf16: 2 ±"),
        (
            make_sweep(*(make_row(b, b, curve=c) for c in "ab" for b in (1, 2)), curve_key="x", curves=["a", "b"]),
            "x b: no knee",
        ),
    ],
)  # fmt: skip
def test_format_sweep_verdict_names_result(sweep, words: str):
    assert words in format_sweep_verdict(sweep, "X")


def test_format_sweep_verdict_without_measured_points_is_none():
    sweep = make_sweep(make_row(1), make_row(2, status="out_of_memory"))
    assert (format_sweep_verdict(sweep, "X"), sweep.sentences) == (None, [])


def test_assess_sweep_of_choices_separates_only_disjoint_intervals():
    rows = [make_row("fp32", 10.0), make_row("bf16", 30.0), make_row("fp16", 29.9), make_row("tf32", 20.0, None)]
    fastest, *others = make_sweep(*rows, key="train.precision").sentences
    assert "bf16 is the fastest" in fastest
    assert ["separate" in sentence for sentence in others] == [True, True, False]  # fp16, tf32, fp32


def test_collect_measured_returns_columns_of_run():
    used, memory = Utilisation(mfu=0.4, limit="compute"), Memory(peak_device_bytes=5, peak_host_bytes=9)
    child = make_result("x", 50.0, ranks=2, settings=("train.accumulate=3",), utilisation=used, memory=memory)
    row = collect_measured(child)
    expected = {"images_per_step": 8 * 3 * 2, "images_per_second": 50.0, "mfu": 0.4, "memory_bytes": 5}
    assert row | expected == row
    assert collect_measured(make_result("x", None)) == {}


def test_combine_sweep_lists_each_finding_once_with_count():
    findings = [finding("few-steps", "x"), finding("run-failed", "x")]
    children = [make_result(name, findings=findings, verdict="ResNet-50: x") for name in "ab"]
    missing = finding("not-measured", "core utilisation: x", severity="warning")
    profiles = [make_result("p", findings=[missing, finding("not-measured", "x"), finding("not-steady", "x")])]
    combined = combine_sweep(make_sweep(make_row(1, 1.0), make_row(2, 2.0)), children, profiles)
    messages = ["2 of 2 points: x", "1 of 1 profiles: core utilisation: x"]
    assert [found.message for found in combined["findings"]] == messages
    assert "--seconds" in combined["findings"][0].hint  # a smaller batch would be another point
    assert combined["verdict"].startswith("ResNet-50: no knee up to batch 2")
    assert combined["noise"].grade == "B"


def test_collect_profiled_notes_missing_core_counters():
    child = make_result("a", timeline=Timeline(device="cuda", steps=[], compute_utilisation=0.9, accounted_share=1.0))
    assert collect_profiled(child) == {"compute_utilisation": 0.9}
    assert collect_profiled(child, cores=True)["note"]
    assert collect_profiled(make_result("a"), cores=True)["note"]


def test_check_points_returns_finding_per_kind_of_failure():
    rows = [
        make_row(1, 1.0, profile="failed", note="no profiler"),
        make_row(2, note="the loss is nan"),
        make_row(4, status="out_of_memory", note="out of memory: 4 needs about 9 GiB"),
        make_row(8, status="not_tried"),
    ]
    found = {one.code: one.message for one in check_points(make_sweep(*rows, profile=True))}
    assert list(found) == ["child-failed", "out-of-memory", "profile-failed"]
    assert "batch 2: the loss is nan" in found["child-failed"]
    assert "batch 8" in found["out-of-memory"]


def test_describe_point_returns_cells():
    rows = [
        make_row(1, 1.0, None, steady=False),
        make_row(2, 2.0, compute_utilisation=0.91, cores_percent={"fma": 17.5}),
        make_row(4, status="out_of_memory", note="out of memory: it is large"),
        make_row(3, 2.0),
    ]
    sweep = make_sweep(*rows, profile=True, cores=True)
    cells = [{name: text for name, (text, _) in describe_point(sweep, row).items()} for row in sweep.rows]
    assert len({tuple(line) for line in cells}) == 1
    expected = {"±": "1.0 %", "MFU": "50.0 %", "memory": "1 GiB", "utilisation": "91.0 %", "fma": "17.5 %", "fp16": ""}
    assert cells[1] | expected == cells[1]
    notes = ["no interval; not steady", "knee", "out of memory: it is large", ""]
    assert [line["note"] for line in cells] == notes


def test_labels_and_file_names_are_formatted():
    assert knee.label_point("train.batch_size", 16, "engine.compile", True) == "batch 16, engine.compile true"
    assert knee.name_file("batch 16, augment.area [0.1, 1]") == "batch_16_augment.area_0.1_1"
    written = [knee.quote_setting(value) for value in ("bf16", "1", "true", True, [0.1, 1], "a b")]
    assert written == ["bf16", '"1"', '"true"', "true", "[0.1, 1]", '"a b"']
