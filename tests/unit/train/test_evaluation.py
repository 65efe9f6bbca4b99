from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flows import follow
from made_saved import RUN_ID, make_checkpoint, make_config
from ranks import run_ranks
from trainstone.config.load import load_config
from trainstone.data.generated.stored import find_stored, provide_stored
from trainstone.errors import ConfigError, DataError
from trainstone.machine.ranks import read_rank
from trainstone.results.quality import Evaluation
from trainstone.results.schema import Result
from trainstone.results.store import create_run, read_result
from trainstone.train.evaluation import open_pictures, run_eval, tell_left_out, write_eval_verdict
from trainstone.train.saved import open_saved, resolve_config


def judge(checkpoint: str, out: str, *settings: str) -> str | None:
    """Evaluate as the command does; the first rank returns where."""
    saved = open_saved(Path(checkpoint))
    config = resolve_config(saved, None, ["device=cpu", "engine.threads=1", "loader.threads=1", *settings], {})
    run = create_run(Path(out), "eval", config, "trainstone eval") if read_rank().number == 0 else None
    for _ in follow(lambda life: run_eval(life, saved), config, run):
        pass
    return str(run.path) if run else None


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A checkpoint, and what one rank found."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINSTONE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        checkpoint = make_checkpoint(folder)
        told = judge(str(checkpoint), str(folder))
    return checkpoint, read_result(Path(str(told)))


def test_the_result_says_quality_and_where_the_weights_come_from(alone):
    _, result = alone
    assert (result.kind, result.status, result.quality.metric) == ("eval", "ok", "top1")
    (found,) = result.quality.history
    assert (found.step, found.images, found.epoch) == (12, 31, pytest.approx(2.4))
    assert set(found.metrics) == {"top1", "top5", "loss"}
    assert result.quality.value == found.metrics["top1"]
    assert result.quality.parameters == sum(p.numel() for p in count_parameters())
    assert 0 < result.phases.eval_seconds <= result.phases.program_seconds
    assert result.devices[0].label == "cpu"
    assert result.machine
    assert result.verdict.endswith(f"on 31 pictures (from step 12 of {RUN_ID})")


def count_parameters() -> list[torch.nn.Parameter]:
    from made_saved import make_network

    return list(make_network(make_config()).parameters())


@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_ranks_counts_the_same(alone, tmp_path: Path, world: int):
    checkpoint, one = alone
    answers = run_ranks(world, judge, tmp_path, str(checkpoint), str(tmp_path / "runs"))
    assert answers[1:] == [None] * (world - 1)
    many = read_result(Path(answers[0]))
    assert (many.world.ranks, [device.rank for device in many.devices]) == (world, list(range(world)))
    ours, theirs = one.quality.history[0], many.quality.history[0]
    assert (theirs.images, theirs.metrics["top1"], theirs.metrics["top5"]) == (
        ours.images,
        ours.metrics["top1"],
        ours.metrics["top5"],
    )
    assert theirs.metrics["loss"] == pytest.approx(ours.metrics["loss"], rel=1e-6)
    assert many.verdict == one.verdict


def test_the_average_is_judged_not_the_weights_themselves(alone, tmp_path: Path):
    _, averaged = alone
    own = judge(str(make_checkpoint(tmp_path, average=False)), str(tmp_path / "runs"))
    losses = [result.quality.history[0].metrics["loss"] for result in (averaged, read_result(Path(str(own))))]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_damaged_pictures_are_left_out_and_told():
    config = load_config("demo-classify", settings=["eval.batch_size=256"])
    opened = SimpleNamespace(source=range(1000))
    (found,) = tell_left_out(opened, 997, config)
    assert (found.code, found.message) == ("pictures-skipped", "3 damaged pictures not judged; log.txt names them")
    assert tell_left_out(opened, 1000, config) == []


def test_a_rest_left_out_is_told_and_not_taken_for_damaged():
    config = load_config("demo-classify", settings=["eval.batch_size=256", "eval.drop_rest=true"])
    opened = SimpleNamespace(source=range(50_000))
    (found,) = tell_left_out(opened, 49_920, config)  # WMLCE's published accuracies are of so many
    assert found.message == "80 pictures not judged: they fill no batch of 256 (eval.drop_rest)"
    assert [one.message.split()[0] for one in tell_left_out(opened, 49_918, config)] == ["80", "2"]


def test_synthetic_data_cannot_be_judged_by():
    with pytest.raises(ConfigError, match="no pictures to judge by") as refused:
        open_pictures(make_config("data.source=synthetic"))
    assert "--data DIR" in str(refused.value.hint)


def test_a_data_set_that_is_gone_asks_for_data():
    with pytest.raises(DataError, match="/nowhere") as refused:
        open_pictures(make_config("data.source=files", "data.root=/nowhere"))
    assert "--data DIR" in str(refused.value.hint)


def test_more_classes_than_the_network_has_ask_for_other_data():
    larger = make_config("model.num_classes=12")
    for _ in provide_stored(larger, 1):
        pass
    with pytest.raises(DataError, match="12 classes, the network 10") as refused:
        open_pictures(make_config("data.source=files", f"data.root={find_stored(larger).target}"))
    assert "--data DIR" in str(refused.value.hint)


def test_the_pictures_are_those_for_validation():
    config = make_config()
    for _ in provide_stored(config, 1):
        pass
    opened = open_pictures(config)
    assert (opened.name, len(opened.source)) == ("val", 31)


def test_verdict():
    found = Evaluation(
        epoch=8,
        step=1250,
        seconds=9,
        eval_seconds=8,
        metrics={"top1": 0.924, "top5": 0.9911, "loss": 0.3},
        images=1000,
    )
    told = write_eval_verdict("ResNet-18", found, "top1", "step 1,250 of RUN")
    assert told == "ResNet-18: 92.4 % top-1, 99.1 % top-5 on 1,000 pictures (from step 1,250 of RUN)"
    told = write_eval_verdict("ResNet-18", found, "top5", "w.pth")
    assert told == "ResNet-18: 99.1 % top-5, 92.4 % top-1 on 1,000 pictures (from w.pth)"
