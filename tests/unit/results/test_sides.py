import math
import shutil

import pytest

from made_results import change_result, make_result, write_repeated, write_run, write_runs
from trainstone.errors import ResultError
from trainstone.results.compare import (
    Run,
    find_differences,
    find_doubts,
    find_runs,
    group_runs,
    refuse_shared,
    tell_unsteady,
)
from trainstone.results.schema import Point, Throughput


def runs_of(*results):
    return [Run(None, result, result.throughput) for result in results]


def unlike(a, b):
    return [str(found) for found in find_differences(runs_of(a), runs_of(b)) if found.unlike]


def alike(a, b):
    return [str(found) for found in find_differences(runs_of(a), runs_of(b)) if not found.unlike]


def test_a_run_folder_its_file_and_a_folder_of_runs(tmp_path):
    one, two = write_runs(tmp_path, "run", [100.0, 101.0])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert [run.folder for run in find_runs([one])[0]] == [one]
    assert [run.folder for run in find_runs([two / "result.json"])[0]] == [two]
    assert [run.folder for run in find_runs([tmp_path])[0]] == [one, two]


@pytest.mark.parametrize(("kind", "hint"), [("sweep", "name points"), ("profile", "measure it again")])
def test_a_sweep_or_a_profile_is_refused_and_left_out_of_a_folder(tmp_path, kind, hint):
    (run,) = write_runs(tmp_path, "run", [100.0])
    points = [Point(label="batch 1", run="points/x")] if kind == "sweep" else []
    rate = None if kind == "sweep" else 50.0
    other = write_run(tmp_path, make_result("other", rate, kind=kind, points=points))
    with pytest.raises(ResultError) as caught:
        find_runs([other])
    assert caught.value.hint.startswith(hint)
    runs, left_out = find_runs([tmp_path])
    assert [one.folder for one in runs] == [run]
    assert [left.lost for left in left_out] == [False]  # it never had a number to lose


def test_repeated_runs_count_one_by_one(tmp_path):
    whole = write_repeated(tmp_path, "five", [100.0, 101.0, 102.0])
    for path in (whole, whole / "result.json", tmp_path):
        assert [run.throughput.images_per_second for run in find_runs([path])[0]] == [100.0, 101.0, 102.0]


def test_what_has_no_number_is_refused_or_left_out_of_a_folder(tmp_path):
    write_run(tmp_path, make_result("good"))
    bad = write_run(tmp_path, make_result("bad", None, status="failed"))
    with pytest.raises(ResultError, match="bad: no throughput, its status is failed"):
        find_runs([bad])
    runs, left_out = find_runs([tmp_path])
    assert [run.result.run_id for run in runs] == ["good"]
    assert left_out == [(f"{bad}: no throughput, its status is failed", True)]
    shutil.rmtree(tmp_path / "good")
    with pytest.raises(ResultError, match=r"no runs to compare in .*status is failed"):
        find_runs([tmp_path])


def test_what_cannot_be_read_is_left_out_of_a_folder_by_its_own_name(tmp_path):
    good, torn = write_runs(tmp_path, "run", [100.0, 100.0])
    (torn / "result.json").write_text('{"format": 1, "ki')
    odd = write_run(tmp_path, make_result("odd", 1e300))
    runs, left_out = find_runs([tmp_path])
    assert [run.folder for run in runs] == [good]
    assert [left.lost for left in left_out] == [True] * 2
    assert str(odd) in left_out[0].told
    assert str(torn) in left_out[1].told


def test_of_repeated_runs_the_readable_ones_count(tmp_path):
    whole = write_repeated(tmp_path, "five", [100.0, 101.0, 102.0])
    shutil.rmtree(whole / "points/five-child1")
    runs, left_out = find_runs([whole])
    assert [run.throughput.images_per_second for run in runs] == [100.0, 102.0]
    assert [(left.told.partition(":")[0], left.lost) for left in left_out] == [
        (f"no result in {whole}/points/five-child1", True)
    ]


@pytest.mark.parametrize("point", ["../elsewhere", "/etc", ".", "points/../..", "points/x\0y"])
def test_points_outside_are_refused(tmp_path, point):
    result = make_result("whole").model_copy(update={"points": [Point(label="x", run=point)]})
    with pytest.raises(ResultError, match="lies outside of it"):
        find_runs([write_run(tmp_path, result)])


def test_missing_empty_and_circular(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    for name in ("nothing", "empty", "circle", "x" * 5000):
        with pytest.raises(ResultError):
            find_runs([tmp_path / name])


@pytest.mark.parametrize(
    "throughput",
    [
        {"images_per_second": math.nan},
        {"images_per_second": 0.0},
        {"images_per_second": 1e300},
        {"ci95": [0.0, 101.0]},
        {"ci95": [101.0, 102.0]},
    ],
)
def test_what_is_no_throughput_is_damage(tmp_path, throughput):
    result = make_result("odd")
    path = write_run(tmp_path, result)
    change_result(path, throughput=result.throughput.model_dump(mode="json") | throughput)
    with pytest.raises(ResultError, match=r"odd.* is damaged|cannot read .*odd"):
        find_runs([path])


def test_a_run_on_both_sides_is_refused_also_as_a_copy(tmp_path):
    (path,) = write_runs(tmp_path / "a", "run", [100.0])
    copy = shutil.copytree(path, tmp_path / "b" / "renamed")
    with pytest.raises(ResultError, match="on both sides stands the same run"):
        refuse_shared(find_runs([path])[0], find_runs([copy])[0])


def test_groups_are_by_what_was_executed():
    results = [
        make_result("1"),
        make_result("2", settings=("seed=7", "engine.threads=4", "measure.seconds=5"), host="there", device="Zen"),
        make_result("3", settings=("train.precision=bf16",)),
        make_result("4", ranks=2),
        make_result("5"),
    ]
    groups = [[run.result.run_id for run in group] for group in group_runs(runs_of(*results)).values()]
    assert groups == [["1", "2", "5"], ["3"], ["4"]]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"settings": ("train.precision=bf16",)}, "train.precision: fp32 | bf16"),
        ({"settings": ("model.depth=18",)}, "model.depth: 50 | 18"),
        ({"settings": ("version=3",)}, "recipe.version: 2 | 3"),
        ({"ranks": 4}, "world.ranks: 1 | 4"),
        ({"software": {"torch": "2.14.0+cpu"}}, "torch: 2.13.0 | 2.14.0"),
        ({"software": {"trainstone": "0.2.0"}}, "trainstone: 0.1.0 | 0.2.0"),
        ({"source": "nvprof"}, "source: trainstone | nvprof"),
    ],
)
def test_what_makes_runs_unlike(changes, told):
    assert unlike(make_result("a"), make_result("b", **changes)) == [told]


def test_cuda_and_driver_forbid_if_both_have_them():
    def on_gpu(name: str, build: str, driver: str):
        return make_result(name, machine={"devices": [{"driver": driver}]}, software={"torch": f"2.13.0+{build}"})

    a, b = on_gpu("a", "cu126", "560"), on_gpu("b", "cu128", "570")
    assert unlike(a, b) == ["torch build: cu126 | cu128", "driver: 560 | 570"]
    cpu = make_result("c")
    assert unlike(a, cpu) == []
    assert {"torch build: cu126 | absent", "driver: 560 | absent", "torch build: absent | cpu"} <= set(alike(a, cpu))


def test_machines_may_differ_and_it_is_listed():
    a = make_result("a", settings=("engine.threads=2",))
    b = make_result("b", host="there", device="Zen", settings=("engine.threads=8",), grade="C", status="interrupted")
    assert unlike(a, b) == []
    assert set(alike(a, b)) == {
        "host: here | there",
        "device: Intel Xeon | Zen",
        "engine.threads: 2 | 8",
        "cpu.model: Intel Xeon | Zen",
        "noise grade: B | C",
        "status: ok | interrupted",
    }


def drifting(name: str, **changes):
    measured = Throughput(
        images_per_second=1.0, ci_covers="x", steady=False, steady_from_step=0, num_steps=30, trend_percent=9.0
    )
    return make_result(name, throughput=measured, **changes)


def test_doubts_are_told_of_both_sides():
    a, b = drifting("a", status="interrupted"), drifting("b", status="interrupted")
    assert alike(a, b) == ["status: interrupted on both sides", "steady: no on both sides"]
    assert alike(a, make_result("b")) == ["status: interrupted | ok", "steady: no | yes"]
    assert alike(make_result("a"), make_result("b")) == []
    assert find_doubts(runs_of(a, make_result("b"))) == {"status": "interrupted, ok", "steady": "no, yes"}
    assert find_doubts(runs_of(make_result("b"))) == {}


def test_a_side_is_unsteady_if_half_of_its_runs_are():
    steady, unsteady = make_result("s"), drifting("d")
    assert tell_unsteady(runs_of(steady), runs_of(steady)) is None
    assert tell_unsteady(runs_of(unsteady), runs_of(steady)) == "1 of 1 run of A never became steady"
    assert tell_unsteady(runs_of(steady), runs_of(unsteady, steady)) == "1 of 2 runs of B never became steady"
    assert tell_unsteady(runs_of(steady), runs_of(unsteady, steady, steady)) is None


def test_software_must_agree_among_pooled_runs():
    mixed = runs_of(make_result("1"), make_result("2", software={"torch": "2.14.0+cpu"}))
    (found,) = find_differences(mixed, mixed)
    assert (str(found), found.unlike) == ("torch: 2.13.0, 2.14.0 on both sides", True)
    both_hosts = runs_of(make_result("1"), make_result("2", host="there"))
    assert find_differences(both_hosts, both_hosts) == []


def test_odd_values_in_a_result_do_not_trip_it():
    odd = make_result(
        "odd",
        config={"device": [1], "engine": {}, "model": {"depth": None, "x": {"y": True}}},
        machine={"cpu": "a string", "devices": {"not": "a list"}, "memory": []},
        software={"torch": 2.13, "environment": {"A": 1}},
    )
    assert "model.x.y: absent | true" in unlike(make_result("a"), odd)
