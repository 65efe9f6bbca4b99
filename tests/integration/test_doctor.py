"""trainstone doctor and recipes through the real command line."""

import pytest

from command import narrow_arguments


def test_doctor_names_what_there_is_and_what_is_missing(trainstone):
    done = trainstone("doctor", "--json")
    assert done.code == 0, done.err
    checks = {check["name"]: check for check in done.json()["checks"]}
    assert {"software", "device", "cores", "memory", "precision", "allocator", "energy", "noise", "extra"} <= set(
        checks
    )
    assert {check["status"] for check in checks.values()} <= {"ok", "limited", "missing"}
    assert done.json()["machine"]["cpu"]["model"]


def test_doctor_prints_a_line_each(quick):
    done = quick("doctor")
    assert done.code == 0, done.err
    assert "auto takes" in done.out or "no 16-bit arithmetic" in done.out
    assert done.out.strip().splitlines()[-1].startswith("Measure: trainstone bench")


@pytest.mark.serial
def test_the_same_thing_twice_gives_a_noise_floor(trainstone):
    done = trainstone("doctor", "--aa", *narrow_arguments(), "--seconds", "6", "--json")
    assert done.code == 0, done.err
    floor = done.json()
    low, high = floor["ci95"]
    assert low < floor["mean_difference"] < high
    assert 0 < floor["noise_floor"] < floor["detectable"] < 1
    assert floor["num_pairs"] >= 6
    assert len(floor["block_seconds"]["A"]) == len(floor["block_seconds"]["B"]) == floor["num_pairs"]


def test_a_number_of_steps_gives_whole_rounds(quick):
    settings = ["--set", "measure.iterations=30"]
    done = quick("doctor", "--aa", *narrow_arguments(), *settings, "--json", "-q")
    assert done.code == 0, done.err
    floor = done.json()
    assert set(floor) == {
        "mean_difference", "ci95", "noise_floor", "detectable", "num_pairs", "steps_per_block", "block_seconds",
    }  # fmt: skip
    assert (floor["num_pairs"], floor["steps_per_block"]) == (16, 1)
    assert [len(seconds) for seconds in floor["block_seconds"].values()] == [16, 16]


def test_the_noise_floor_in_words(quick):
    settings = ["--set", "measure.iterations=30"]
    done = quick("doctor", "--aa", *narrow_arguments(), *settings)
    assert done.code == 0, done.err
    assert done.out.startswith("The same thing twice, 16 interleaved pairs of 1 steps each:\n  difference ")
    assert "\n  noise floor " in done.out
    assert "\n  smallest detectable " in done.out
    assert "same thing twice · step 1" in done.err


def test_too_little_time_for_a_noise_floor_is_told(quick):
    done = quick("doctor", "--aa", *narrow_arguments(), "--seconds", "0.01")
    assert done.code == 6
    assert "pairs of blocks" in done.err


def test_recipes_lists_and_shows(quick):
    listed = dict(line.split()[:2] for line in quick("recipes").out.splitlines() if line[:1].isalpha())
    assert listed["demo-classify"] == "v1"
    assert listed["resnet50"] == "v2"
    assert {f"resnet50-{original}" for original in ("mlperf", "tbd", "sc22", "wmlce")} < set(listed)
    (wmlce,) = [one for one in quick("recipes", "--json").json() if one["name"] == "resnet50-wmlce"]
    assert wmlce["systems"] == ["bede-1x1", "bede-1x4", "bede-4x4", "bede-8x4"]
    shown = quick("recipes", "resnet50", env={"COLUMNS": "160"})
    assert "# Command    trainstone bench" in shown.out
    assert "train.batch_size" in shown.out
    assert quick("recipes", "resnet50", "--json").json()["model"]["depth"] == 50
    assert quick("recipes", "resnet5").code == 2
