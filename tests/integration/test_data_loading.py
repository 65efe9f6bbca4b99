"""`bench --data` and `data bench` with real images on the command line."""

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
    """Write images whose decoding takes much longer than a step of a tiny network."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (root / "train" / name).mkdir(parents=True)
        for number in range(4):
            pixels = cv2.resize(rng.integers(0, 256, (300, 300, 3), dtype=np.uint8), (2000, 2000))
            assert cv2.imwrite(str(root / "train" / name / f"{number}.jpg"), pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
    return root


@pytest.mark.slow
@pytest.mark.serial
def test_bench_with_one_slow_thread_reports_data_bound(quick, tmp_path: Path):
    data = make_slow_images(tmp_path / "set")
    slow = ["loader.threads=1", "augment.resize=antialias", "loader.shrink=false", "loader.prefetch=1"]
    settings = [part for setting in (*slow, "train.batch_size=12") for part in ("--set", setting)]
    done = quick("bench", *TINY, "--data", str(data), *settings, "--iterations", "10", "--json", with_report=True)
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
    assert "Data loading" in page


def test_bench_losses_do_not_depend_on_threads_with_damaged_images(quick, tmp_path: Path):
    data = make_set(tmp_path / "set", "recordio", count=20)
    damage(data / "train.rec")
    losses = []
    for threads in (1, 3):
        out = f"runs-{threads}"
        more = ["--set", f"loader.threads={threads}", "--set", "loader.on_bad=skip", "--set", "train.batch_size=8"]
        done = quick("bench", *TINY, "--data", str(data), *more, "--iterations", "10", "--out", out, "-q")
        assert done.code == 0, done.err
        assert "skipped" in done.out
        run = find_run(tmp_path / out)
        columns = read_columns(run / "steps-rank0000.csv")
        losses.append(columns["loss"].tolist())
        assert columns["epoch"].tolist() == [8 * step // 20 for step in range(10)]
        result = read_result(run)
        assert result.loader is not None
        assert (result.loader.skipped, result.loader.skipped_images) == (4, 1)  # 10 steps of 8 are four epochs of 20
        assert "images-skipped" in {finding.code for finding in result.findings}
        assert (run / "log.txt").read_text().count(
            "skipped image:"
        ) == 3  # the run's loader, and twice the loader measured without training
    assert losses[0] == losses[1]


def test_bench_fails_at_damaged_image_and_reports_it(quick, tmp_path: Path):
    data = make_set(tmp_path / "set", "recordio", count=6)
    offset = damage(data / "train.rec")
    done = quick("bench", *TINY, "--data", str(data), "--iterations", "10")
    assert done.code == 3
    assert f"train.rec, record 2 at byte {offset}" in done.err
    assert "loader.on_bad=skip" in done.err
    assert read_result(find_run(tmp_path)).status == "failed"


def damage(path: Path) -> int:
    """Damage the end of the image in record 2 without changing any length; return the record's byte offset."""
    offsets = [int(line.split("\t")[1]) for line in path.with_suffix(".idx").read_text().splitlines()]
    content = bytearray(path.read_bytes())
    content[offsets[3] - 200 : offsets[3]] = bytes(200)
    path.write_bytes(content)
    return offsets[2]


def test_data_bench_reports_threads_stages_and_cores(quick, tmp_path: Path):
    data = make_set(tmp_path / "set", "wds", count=10)
    options = ["--threads", "1,2", "--seconds", "1", "--demand", "1000", "--set", "data.image_size=32"]
    done = quick("data", "bench", str(data), *options, "--json", with_report=True)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["kind"], result["status"]) == ("data", "ok")
    data_bench = result["data_bench"]
    assert [point["threads"] for point in data_bench["points"]] == [1, 2]
    assert [stage["name"] for stage in data_bench["stages"]] == ["read", "decode", "crop-resize", "batch"]
    assert sum(stage["share"] for stage in data_bench["stages"]) == pytest.approx(1)
    assert data_bench["demand"]["images_per_second"] == 1000
    assert data_bench["images"] == 10
    assert "cores" in result["verdict"]
    assert "images/s" in (tmp_path / "runs" / result["run_id"] / "report.html").read_text()


def test_data_bench_measures_demand_of_training(quick, tmp_path: Path):
    data = make_set(tmp_path / "set", "folder", kind="detect", count=6)  # boxes are ignored
    tiny = [*TINY, "--set", "train.batch_size=4"]
    done = quick("data", "bench", str(data), "--threads", "1", "--seconds", "0.5", *tiny)
    assert done.code == 0, done.err
    assert "ResNet-18" in done.out
    assert "stage" in done.out
    assert "which also train" in done.out
