"""`trainstone bench --against` (two variants in one process) and `trainstone doctor` on the command line."""

import json
import signal
from pathlib import Path

import pytest

from support.processes.command import find_run, narrow_arguments
from support.processes.forked import Nursery, wait_until
from trainstone.config.load import load_config
from trainstone.results.run_folder import read_result
from trainstone.results.steps import Columns, read_columns

TINY = ["bench", *narrow_arguments()]
ROW_KEYS = {
    "label", "a", "b", "ratio", "ci95", "ci_covers", "p_value", "p_holm", "noise_floor", "outcome", "differences",
}  # fmt: skip


def steps_of(run: Path, name: str) -> Columns:
    return read_columns(run / "points" / name / "steps-rank0000.csv")


@pytest.mark.serial
def test_against_same_config_gives_comparison_and_equal_losses(quick, tmp_path: Path):
    done = quick(*TINY, "--against", "train.batch_size=2", "--iterations", "40", "--json")
    assert done.code == 0, done.err
    result = done.json()
    run = find_run(tmp_path)
    assert result == json.loads((run / "result.json").read_text())
    assert (result["kind"], result["status"]) == ("bench", "ok")
    (row,) = result["comparison"]["rows"]
    assert set(row) == ROW_KEYS
    assert row["ci_covers"] == "interleaved blocks"
    low, high = row["ci95"]
    assert low < row["ratio"] < high
    assert row["p_value"] == row["p_holm"]
    assert row["noise_floor"] > 0
    assert row["ratio"] == pytest.approx(row["a"]["images_per_second"] / row["b"]["images_per_second"], rel=0.2)
    assert (row["a"]["runs"], row["b"]["runs"]) == (["points/a"], ["points/b"])
    assert row["differences"] == []
    assert result["verdict"] == result["comparison"]["verdict"]
    assert result["verdict"].startswith("A (resnet50) is ")
    assert result["points"] == [
        {"label": "A: resnet50", "run": "points/a"},
        {"label": "B: resnet50", "run": "points/b"},
    ]
    assert {"machine", "software", "noise", "memory", "devices", "findings"} <= set(result)
    assert "throughput" not in result
    losses = [steps_of(run, name)["loss"].tolist() for name in "ab"]
    assert losses[0] == losses[1]  # the variants do not influence each other
    assert len(losses[0]) == 40


@pytest.mark.slow
@pytest.mark.serial
def test_against_finds_difference_and_writes_run_per_variant(trainstone, tmp_path: Path):
    done = trainstone(*TINY, "--against", "data.image_size=192", "--seconds", "5", "--json")
    assert done.code == 0, done.err
    result = done.json()
    (row,) = result["comparison"]["rows"]
    assert row["outcome"] == "faster"
    assert row["ratio"] > 1.2  # how much faster depends on the processor
    assert result["verdict"].startswith("A (data.image_size=32) is ")
    assert result["verdict"].endswith("interleaved blocks): faster")
    run = find_run(tmp_path)
    host = result["process"]["host"]
    assert {path.name for path in run.iterdir()} - {"report.html"} == {
        "result.json", "config.toml", "machine.json", f"telemetry-{host}-cpu.csv", "log.txt", "points",
    }  # fmt: skip
    for name, size in (("a", 32), ("b", 192)):
        folder = run / "points" / name
        assert {path.name for path in folder.iterdir()} - {"report.html"} == {
            "result.json", "config.toml", "machine.json", "steps-rank0000.csv",
        }  # fmt: skip
        child = read_result(folder)
        assert child.status == "ok"
        assert child.run_id == f"{result['run_id']}-{name}"
        assert child.throughput is not None
        assert child.step_seconds is not None
        assert child.noise is not None
        assert child.phases is not None
        assert child.devices[0].label == "cpu"
        assert child.verdict is not None
        assert load_config(str(folder / "config.toml")).data.image_size == size
    assert "points/a/steps-rank0000.csv" in result["files"]


def test_against_other_recipe_file(quick, tmp_path: Path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'name = "mine"\nversion = 1\nsummary = "a test"\n[model]\ndepth = 34\n[measure]\nseconds = 500.0\n'
    )
    settings = ["--set", "data.image_size=32", "--set", "train.precision=fp32"]
    done = quick(
        "bench", *settings, "--against", "mine.toml", "--against", "train.batch_size=4",
        "--set", "model.depth=18", "--set", "train.batch_size=2", "--iterations", "18", "--json", "--device", "cpu",
    )  # fmt: skip
    assert done.code == 0, done.err
    result = done.json()
    (row,) = result["comparison"]["rows"]
    assert (row["a"]["label"], row["b"]["label"]) == ("resnet50", "mine")
    other = load_config(str(find_run(tmp_path) / "points/b/config.toml"))
    assert other.model.depth == 18  # --set applies to both
    assert other.train.batch_size == 4  # --against KEY=VALUE applies to B only
    assert other.measure.seconds == 60


def test_against_with_few_rounds_is_not_assessed(quick):
    done = quick(*TINY, "--against", "seed=1", "--iterations", "11", "-q")
    assert done.code == 0, done.err
    assert "not assessed" in done.out
    assert "2 complete rounds A B B A, 6 needed [few-steps]" in done.out.replace("\n", " ")


def test_against_failure_names_variant_in_all_folders(quick, tmp_path: Path):
    done = quick(*TINY, "--against", "optimizer.learning_rate=1e30", "--iterations", "40")
    assert done.code == 6
    assert "error: B: the loss of step" in done.err
    run = find_run(tmp_path)
    for folder in (run, run / "points/a", run / "points/b"):
        result = read_result(folder)
        assert result.status == "failed"
        assert result.findings[-1].code == "run-failed"
        assert result.findings[-1].message.startswith("B: the loss of step")


def test_against_interrupted_keeps_measured_steps(nursery: Nursery, tmp_path: Path):
    child = nursery.start(*TINY, "--against", "train.batch_size=4", "--iterations", "100000", cwd=tmp_path)
    files = "runs/*/points/b/steps-rank0000.csv"
    wait_until(lambda: any(len(file.read_text().splitlines()) > 5 for file in tmp_path.glob(files)))
    child.send(signal.SIGTERM)
    ended = child.wait()
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    assert "stopped by SIGTERM" in ended.out
    run = find_run(tmp_path)
    for folder in (run, run / "points/a", run / "points/b"):
        result = read_result(folder)
        assert result.status == "interrupted"
        assert "interrupted" in [found.code for found in result.findings]
    assert read_result(run / "points/b").throughput is not None


def test_doctor_lists_checks_with_status(trainstone):
    done = trainstone("doctor", "--json")
    assert done.code == 0, done.err
    checks = {check["name"]: check for check in done.json()["checks"]}
    names = {"software", "device", "cores", "memory", "precision", "allocator", "energy", "noise", "extra"}
    assert names <= set(checks)
    assert {check["status"] for check in checks.values()} <= {"ok", "limited", "missing"}
    assert done.json()["machine"]["cpu"]["model"]


@pytest.mark.slow
@pytest.mark.serial
def test_doctor_gpu_selftest_on_cpu_is_right(trainstone, tmp_path: Path):
    done = trainstone("doctor", "--gpu-selftest", "--device", "cpu", "--json", "--out", "checked")
    assert done.code == 0, done.out + done.err
    document, file = done.json(), json.loads((tmp_path / done.json()["file"]).read_text())
    assert document["checks"] == file["checks"]
    assert file["machine"]["cpu"]["model"]
    statuses = {check["name"]: check["status"] for check in document["checks"]}
    names = {"timing", "fp32", "profile", "all-reduce"}
    assert {statuses[name] for name in names} == {"ok"}
    skipped = {name for name, status in statuses.items() if status == "skipped"}
    assert {"graphs", "tf32", "telemetry"} <= skipped <= {"graphs", "tf32", "bf16", "fp16", "telemetry"}


@pytest.mark.slow
@pytest.mark.serial
def test_doctor_aa_gives_noise_floor(trainstone):
    done = trainstone("doctor", "--aa", *narrow_arguments(), "--seconds", "6", "--json")
    assert done.code == 0, done.err
    floor = done.json()
    low, high = floor["ci95"]
    assert low < floor["mean_difference"] < high
    assert 0 < floor["noise_floor"] < floor["detectable"] < 1
    assert floor["num_pairs"] >= 6
    assert len(floor["block_seconds"]["A"]) == len(floor["block_seconds"]["B"]) == floor["num_pairs"]


def test_doctor_aa_iterations_gives_complete_rounds(quick):
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
    assert done.out.startswith("A/A test: 16 interleaved pairs of blocks of 1 steps\n  difference ")
    assert "\n  noise floor " in done.out
    assert "\n  smallest detectable " in done.out


def test_doctor_aa_with_too_little_time_fails(quick):
    done = quick("doctor", "--aa", *narrow_arguments(), "--seconds", "0.01")
    assert done.code == 6
    assert "pairs of blocks" in done.err
