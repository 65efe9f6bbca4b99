"""trainstone doctor and recipes through the real command line."""

import pytest

from command import narrow_arguments


def test_doctor_names_what_there_is_and_what_is_missing(trainstone):
    done = trainstone("doctor", "--json")
    assert done.code == 0, done.err
    checks = {check["name"]: check for check in done.json()["checks"]}
    names = {"software", "device", "cores", "memory", "precision", "allocator", "energy", "noise", "extra"}
    assert names <= set(checks)
    assert {check["status"] for check in checks.values()} <= {"ok", "limited", "missing"}
    assert done.json()["machine"]["cpu"]["model"]


@pytest.mark.slow
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


def test_a_number_of_steps_gives_whole_rounds_in_numbers_and_in_words(quick):
    words = ("doctor", "--aa", *narrow_arguments(), "--set", "measure.iterations=30")
    done = quick(*words, "--json", "-q")
    assert done.code == 0, done.err
    floor = done.json()
    assert set(floor) == {
        "mean_difference", "ci95", "noise_floor", "detectable", "num_pairs", "steps_per_block", "block_seconds",
    }  # fmt: skip
    assert (floor["num_pairs"], floor["steps_per_block"]) == (16, 1)
    assert [len(seconds) for seconds in floor["block_seconds"].values()] == [16, 16]
    done = quick(*words)
    assert done.code == 0, done.err
    assert done.out.startswith("The same thing twice, 16 interleaved pairs of 1 steps each:\n  difference ")
    assert "\n  noise floor " in done.out
    assert "\n  smallest detectable " in done.out


def test_too_little_time_for_a_noise_floor_is_told(quick):
    done = quick("doctor", "--aa", *narrow_arguments(), "--seconds", "0.01")
    assert done.code == 6
    assert "pairs of blocks" in done.err
