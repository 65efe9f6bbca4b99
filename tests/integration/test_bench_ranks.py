"""`trainstone bench` and `profile` on two ranks: one run folder, output of rank 0 only."""

import json
import signal
from pathlib import Path

import pytest

from support.processes.command import find_run, narrow_arguments
from support.processes.forked import Child, Nursery, wait_until
from trainstone.results.run_folder import read_result
from trainstone.results.steps import Columns, read_columns
from trainstone.trace.breakdown import analyse_trace

SMALL = ("engine.keep_memory=false", "train.batch_size=4")


def start(
    nursery: Nursery, verb: str, name: str, *arguments: str, recipe: str = "resnet50", **changes: object
) -> list[Child]:
    settings = [*SMALL, *(f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items())]
    words = [*narrow_arguments(), *(part for setting in settings for part in ("--set", setting))]
    return nursery.start_ranks(2, verb, recipe, *words, "--out", str(nursery.folder / name), *arguments)


def read_steps(run: Path, rank: int) -> Columns:
    return read_columns(run / f"steps-rank{rank:04d}.csv")


def test_bench_on_two_ranks_writes_one_result(nursery: Nursery):
    first, second = (child.wait() for child in start(nursery, "bench", "bench-two", "--iterations", "40"))
    assert (first.code, second.code) == (0, 0), first.err
    run = find_run(nursery.folder / "bench-two")
    result = read_result(run)
    assert (result.status, result.world.ranks, result.kind) == ("ok", 2, "bench")
    steps = [read_steps(run, rank) for rank in (0, 1)]
    assert [len(columns["step"]) for columns in steps] == [40, 40]
    assert steps[0]["images"].tolist() == steps[1]["images"].tolist() == [4] * 40
    assert {"log.txt", "log-rank0001.txt", "steps-rank0001.csv"} <= set(result.files)
    assert len([name for name in result.files if name.startswith("telemetry-")]) == 2
    assert "images/s on 2 ranks" in (result.verdict or "")
    assert "images/s on 2 ranks" in first.out
    assert (second.out, second.err) == ("", "")
    # The images of both ranks by the time of rank 0.
    throughput, used = result.throughput, result.utilisation
    assert throughput is not None
    assert used is not None
    inside = slice(throughput.steady_from_step, None)
    expected = 2 * steps[0]["images"][inside].sum() / steps[0]["step_seconds"][inside].sum()
    assert throughput.images_per_second == pytest.approx(expected, rel=1e-9)
    assert used.mfu == pytest.approx(
        throughput.images_per_second / 2 * used.flops_per_image / used.peak_flops, rel=1e-6
    )
    assert result.energy is None  # both would read the same counter
    assert throughput.num_steps == len(steps[0]["step"][inside])
    assert [device.rank for device in result.devices] == [0, 1]
    for device, columns in zip(result.devices, steps, strict=True):
        assert min(columns["step_seconds"]) <= device.step_seconds_median <= max(columns["step_seconds"])
        assert device.data_wait_seconds == pytest.approx(columns["data_seconds"].sum())
    # Size and cost of the gradient all-reduce.
    message = result.communication
    assert message is not None
    assert message.gradient_bytes % 4 == 0  # fp32
    assert 100_000 < message.gradient_bytes < 10_000_000
    assert message.bucket_bytes == result.config["parallel"]["bucket_bytes"]
    assert message.exposed_seconds is not None
    assert message.share is not None
    assert abs(message.exposed_seconds) < 10 * result.step_seconds.median
    assert message.share < 1
    assert "of gradients per step" in first.out


def test_bench_signal_to_one_rank_ends_both_with_one_result(nursery: Nursery):
    children = start(nursery, "bench", "bench-stopped", "--seconds", "300", measure__half_width=1e-9)
    wait_until(lambda: "measuring ·" in children[0].err.read_text())
    children[1].send(signal.SIGTERM)
    assert [child.wait().code for child in children] == [130, 130]
    run = find_run(nursery.folder / "bench-stopped")
    result = read_result(run)
    assert result.status == "interrupted"
    assert result.throughput is not None
    assert len(read_steps(run, 0)["step"]) == len(read_steps(run, 1)["step"]) > 0
    assert any("stopped by a signal to another rank" in found.message for found in result.findings)
    assert result.communication is not None
    assert result.communication.exposed_seconds is None


def test_bench_nan_loss_ends_both_ranks(nursery: Nursery):
    rates = {"optimizer__learning_rate": 1e30, "schedule__warm_up_epochs": 0.0}
    children = start(nursery, "bench", "bench-diverged", "--iterations", "500", **rates)
    first, second = (child.wait() for child in children)
    assert (first.code, second.code) == (6, 6), first.err
    assert "is NaN or infinite on one of the ranks" in first.err
    assert read_result(find_run(nursery.folder / "bench-diverged")).status == "failed"


def test_single_process_commands_refuse_several_ranks(nursery: Nursery):
    for arguments, message in (
        (("bench", "--runs", "2"), "bench --runs needs a single process: found 2 ranks"),
        (("bench", "--against", "train.batch_size=2"), "bench --against needs a single process"),
        (("profile", "--cores"), "profile --cores needs a single process"),
    ):
        first, *_ = [child.wait() for child in nursery.start_ranks(2, *arguments)]
        assert first.code == 2
        assert message in first.err


def test_bench_on_two_ranks_shards_images_and_reports_missing_baselines(nursery: Nursery):
    generated = {"data__generated_train": 64, "data__generated_val": 16, "loader__threads": 1}
    children = start(nursery, "bench", "bench-real", "--iterations", "8", recipe="demo-classify", **generated)
    ended = [child.wait() for child in children]
    assert [one.code for one in ended] == [0, 0], ended[0].err
    run = find_run(nursery.folder / "bench-real")
    result = read_result(run)
    assert result.loader is None
    assert any("are not measured with 2 ranks" in found.message for found in result.findings)
    # 64 images, 8 per step on both ranks: an epoch has 8 steps.
    assert read_steps(run, 0)["epoch"].tolist() == read_steps(run, 1)["epoch"].tolist() == [0] * 8
    assert read_steps(run, 0)["loss"].tolist() != read_steps(run, 1)["loss"].tolist()


def test_profile_on_two_ranks_writes_trace_of_same_steps_per_rank(nursery: Nursery):
    # Several buckets, so that the first all-reduce overlaps with backward.
    buckets = {"parallel__bucket_bytes": 200_000, "data__image_size": 64}
    children = start(nursery, "profile", "profile-two", "--iterations", "2", measure__seconds=3.0, **buckets)
    first, second = (child.wait() for child in children)
    assert (first.code, second.code) == (0, 0), first.err
    assert (second.out, second.err) == ("", "")
    run = find_run(nursery.folder / "profile-two")
    result = read_result(run)
    timelines = [analyse_trace(run / f"trace/rank{rank:04d}.json.gz").timeline for rank in (0, 1)]
    assert [timeline.rank for timeline in timelines] == [0, 1]
    assert [step.step for step in timelines[0].steps] == [step.step for step in timelines[1].steps]
    for timeline in timelines:
        for step in timeline.steps:
            assert 0 < step.communication_total_seconds <= step.seconds
            assert step.communication_seconds + step.overlap_seconds <= step.communication_total_seconds * (1 + 1e-9)
            assert step.optimizer_seconds > 0
        assert sum(step.overlap_seconds for step in timeline.steps) > 0
        assert any("of communication is hidden behind compute" in message for message in timeline.sentences)
    assert result.timeline is not None
    assert result.timeline.trace == "trace/rank0000.json.gz"
    assert [device.rank for device in result.devices] == [0, 1]
    assert "trace/rank0001.json.gz" in result.files
    assert len(read_steps(run, 0)["step"]) == len(read_steps(run, 1)["step"])


def test_profile_signal_to_one_rank_ends_both(nursery: Nursery):
    children = start(nursery, "profile", "profile-stopped", "--start", "100000")
    wait_until(lambda: "waiting for steady steps ·" in children[0].err.read_text())
    children[1].send(signal.SIGTERM)
    assert [child.wait().code for child in children] == [130, 130]
    assert read_result(find_run(nursery.folder / "profile-stopped")).status == "interrupted"
