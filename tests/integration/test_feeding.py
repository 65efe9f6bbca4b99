"""Real images through the real command line: bench --data and data bench."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from support.builders.data_sets import make_set
from support.processes.command import find_run, narrow_arguments
from trainstone.results.run_folder import read_result
from trainstone.results.steps import read_columns

TINY = [*narrow_arguments(), "--set", "model.num_classes=10"]


def make_slow_images(root: Path) -> Path:
    """Images whose decoding takes far longer than a tiny network's step."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (root / "train" / name).mkdir(parents=True)
        for number in range(4):
            pixels = cv2.resize(rng.integers(0, 256, (300, 300, 3), dtype=np.uint8), (2000, 2000))
            assert cv2.imwrite(str(root / "train" / name / f"{number}.jpg"), pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
    return root


@pytest.mark.slow
@pytest.mark.serial
def test_one_slow_thread_is_told_to_be_data_bound_and_by_how_much(quick, tmp_path: Path):
    data = make_slow_images(tmp_path / "set")
    slow = ["loader.threads=1", "augment.resize=antialias", "loader.shrink=false", "loader.prefetch=1"]
    settings = [part for setting in (*slow, "train.batch_size=12") for part in ("--set", setting)]
    done = quick("bench", *TINY, "--data", str(data), *settings, "--iterations", "10", "--json", whole=True)
    assert done.code == 0, done.err
    result = done.json()
    loader = result["loader"]
    assert loader["data_bound"]
    assert loader["threads"] == 1
    assert loader["images_per_second"] < loader["synthetic_images_per_second"]
    assert result["throughput"]["images_per_second"] < 0.9 * loader["synthetic_images_per_second"]
    assert "data-bound: " in result["verdict"]
    assert "with synthetic data" in result["verdict"]
    assert result["utilisation"]["limit"] == "data"
    assert "data-bound" in {finding["code"] for finding in result["findings"]}
    assert set(loader["stage_seconds_per_image"]) == {"read", "decode", "crop-resize", "batch"}
    run = find_run(tmp_path)
    assert len(read_columns(run / "steps-synthetic-rank0000.csv")["step"]) == 2 * 6
    page = (run / "report.html").read_text()
    assert "Is it fed fast enough?" in page


def test_losses_and_epochs_do_not_depend_on_threads_and_damaged_images_are_counted(quick, tmp_path: Path):
    data = make_set(tmp_path / "set", "recordio", count=20)
    damage(data / "train.rec")
    seen = []
    for threads in (1, 3):
        out = f"runs-{threads}"
        more = ["--set", f"loader.threads={threads}", "--set", "loader.on_bad=skip", "--set", "train.batch_size=8"]
        done = quick("bench", *TINY, "--data", str(data), *more, "--iterations", "10", "--out", out, "-q")
        assert done.code == 0, done.err
        assert "left out" in done.out
        run = find_run(tmp_path / out)
        columns = read_columns(run / "steps-rank0000.csv")
        seen.append(columns["loss"].tolist())
        assert columns["epoch"].tolist() == [8 * step // 20 for step in range(10)]
        result = read_result(run)
        assert result.loader is not None
        assert (result.loader.skipped, result.loader.skipped_images) == (4, 1)  # 10 steps of 8 are four epochs of 20
        assert "images-skipped" in {finding.code for finding in result.findings}
        assert (run / "log.txt").read_text().count("left out:") == 3  # the run's own loader, and that alone, twice
    assert seen[0] == seen[1]


def test_a_damaged_image_ends_the_run_and_is_named(quick, tmp_path: Path):
    data = make_set(tmp_path / "set", "recordio", count=6)
    place = damage(data / "train.rec")
    done = quick("bench", *TINY, "--data", str(data), "--iterations", "10")
    assert done.code == 3
    assert f"train.rec, record 2 at byte {place}" in done.err
    assert "loader.on_bad=skip" in done.err
    assert read_result(find_run(tmp_path)).status == "failed"


def damage(path: Path) -> int:
    """Cut the image of record 2 short without changing any length; return where the record begins."""
    offsets = [int(line.split("\t")[1]) for line in path.with_suffix(".idx").read_text().splitlines()]
    content = bytearray(path.read_bytes())
    content[offsets[3] - 200 : offsets[3]] = bytes(200)
    path.write_bytes(content)
    return offsets[2]


def test_data_bench_tells_threads_stages_and_cores(quick, tmp_path: Path):
    data = make_set(tmp_path / "set", "wds", count=10)
    requested = ["--threads", "1,2", "--seconds", "1", "--demand", "1000", "--set", "data.image_size=32"]
    done = quick("data", "bench", str(data), *requested, "--json", whole=True)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["kind"], result["status"]) == ("data", "ok")
    feeding = result["data_bench"]
    assert [point["threads"] for point in feeding["points"]] == [1, 2]
    assert [stage["name"] for stage in feeding["stages"]] == ["read", "decode", "crop-resize", "batch"]
    assert sum(stage["share"] for stage in feeding["stages"]) == pytest.approx(1)
    assert feeding["demand"]["images_per_second"] == 1000
    assert feeding["images"] == 10
    assert "cores" in result["verdict"]
    assert "images/s" in (tmp_path / "runs" / result["run_id"] / "report.html").read_text()


def test_data_bench_measures_what_this_machine_takes(quick, tmp_path: Path):
    data = make_set(tmp_path / "set", "folder", kind="detect", count=6)  # boxes do not matter here
    tiny = [*TINY, "--set", "train.batch_size=4"]
    done = quick("data", "bench", str(data), "--threads", "1", "--seconds", "0.5", *tiny)
    assert done.code == 0, done.err
    assert "ResNet-18" in done.out
    assert "stage" in done.out
    assert "which also train" in done.out
