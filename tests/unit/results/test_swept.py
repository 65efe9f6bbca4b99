"""Rows, findings and cells of a sweep from the runs of its points."""

from made_results import make_result
from made_sweep import make_row, make_sweep
from trainstone.results.checks import finding
from trainstone.results.profiled import Timeline
from trainstone.results.schema import Memory, Utilisation
from trainstone.results.sweep import label_point, name_file, write_setting
from trainstone.results.swept import conclude_sweep, describe_measured, describe_profiled, find_faults
from trainstone.results.tables import describe_point


def test_a_row_takes_what_its_run_measured():
    child = make_result(
        "x",
        50.0,
        ranks=2,
        settings=("train.accumulate=3",),
        utilisation=Utilisation(mfu=0.4, limit="compute"),
        memory=Memory(peak_device_bytes=5, peak_host_bytes=9),
    )
    told = describe_measured(child)
    assert told["images_per_step"] == 8 * 3 * 2
    assert (told["images_per_second"], told["mfu"], told["limit"]) == (50.0, 0.4, "compute")
    assert told["memory_bytes"] == 5
    assert describe_measured(make_result("x", None)) == {}


def test_findings_of_points_are_told_once_and_counted():
    doubt = finding("few-steps", "no interval")
    own = finding("run-failed", "x")
    children = [make_result(name, findings=[doubt, own], verdict="ResNet-50: x") for name in "ab"]
    concluded = conclude_sweep(make_sweep(make_row(1, 1.0), make_row(2, 2.0)), children)
    assert [f.message for f in concluded["findings"]] == ["2 of 2 points: no interval"]
    assert concluded["verdict"].startswith("ResNet-50: no knee up to batch 2")
    assert concluded["noise"].grade == "B"
    # A smaller batch, as the point's own hint says, would be another point
    assert concluded["findings"][0].hint == "give each point more time: --seconds N"


def test_of_profiles_only_what_they_alone_can_say_is_told():
    lacking = finding("not-measured", "core utilisation: no permission", hint="ask for it", severity="warning")
    slow = finding("profiled", "each took 90 % longer", severity="warning")
    other = [finding("not-measured", "telemetry: no RAPL"), finding("not-steady", "x"), finding("interrupted", "x")]
    profiles = [make_result("a", findings=[lacking, slow, *other]), make_result("b", findings=other)]
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 2.0))
    found = conclude_sweep(sweep, [make_result("c", findings=[])], profiles)["findings"]
    assert [(f.message, f.hint) for f in found] == [
        ("1 of 2 profiles: core utilisation: no permission", "ask for it"),
        ("1 of 2 profiles: each took 90 % longer", slow.hint),
    ]


def test_core_counters_that_were_asked_for_and_lack_are_noted():
    timeline = Timeline(device="cuda", steps=[], compute_utilisation=0.9, accounted_share=1.0)
    lacking = finding("not-measured", "core utilisation: no permission", severity="warning")
    child = make_result("a", timeline=timeline, findings=[lacking])
    assert describe_profiled(child) == {"compute_utilisation": 0.9}
    told = describe_profiled(child, cores=True)
    assert told == {"compute_utilisation": 0.9, "note": "no core counters: no permission"}
    assert describe_profiled(make_result("a"), cores=True) == {"note": "no core counters"}
    row = make_row(1, 1.0, profile="ok", **told)
    assert describe_point(make_sweep(row, profile=True, cores=True), row)["note"] == "no core counters: no permission"


def test_faults_are_named():
    rows = [
        make_row(1, 1.0, profile="failed", note="no profiler"),
        make_row(2, note="the loss is nan"),
        make_row(4, status="out_of_memory", note="out of memory: 4 needs about 9 GiB"),
        make_row(8, status="not_tried"),
    ]
    found = {f.code: f.message for f in find_faults(make_sweep(*rows, profile=True))}
    assert found == {
        "child-failed": "1 of 4 points failed: batch 2: the loss is nan",
        "out-of-memory": "out of memory at batch 4 (4 needs about 9 GiB); not tried, because larger: batch 8",
        "profile-failed": "no profile of batch 1: no profiler",
    }


def test_cells():
    rows = [
        make_row(1, 1.0, None, steady=False),
        make_row(2, 2.0, compute_utilisation=0.91, cores_percent={"fma": 17.5}),
        make_row(4, status="out_of_memory", note="out of memory: it is large"),
        make_row(8, status="not_tried", note="batch 4 was out of memory"),
        make_row(3, 2.0),
    ]
    sweep = make_sweep(*rows, profile=True, cores=True)
    cells = [describe_point(sweep, row) for row in sweep.rows]
    assert len({tuple(line) for line in cells}) == 1
    assert cells[0]["note"] == "no interval; not steady"
    assert cells[1] | {"MFU": "50.0 %", "memory": "1 GiB", "fp16": ""} == cells[1]
    assert (cells[1]["±"], cells[1]["utilisation"], cells[1]["fma"]) == ("1.0 %", "91.0 %", "17.5 %")
    assert cells[1]["note"] == "knee"
    assert cells[2]["note"] == "out of memory: it is large"
    assert cells[3]["note"] == "not tried: batch 4 was out of memory"


def test_names():
    assert label_point("train.batch_size", 16) == "batch 16"
    assert label_point("train.batch_size", 16, "engine.compile", True) == "batch 16, engine.compile true"
    assert name_file("batch 16, augment.area [0.1, 1]") == "batch_16_augment.area_0.1_1"
    assert [write_setting(value) for value in ("bf16", "1", "true", True, [0.1, 1], "a b")] == [
        "bf16",
        '"1"',
        '"true"',
        "true",
        "[0.1, 1]",
        '"a b"',
    ]
