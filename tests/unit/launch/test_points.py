"""What a sweep runs: lists are split as written, all points are checked before anything runs, the order is shuffled."""

import re

import pytest

from made_sweep import plan_small
from trainstone.config.load import load_config
from trainstone.errors import ConfigError
from trainstone.launch.sweep import BATCH_SIZES, configure, make_plan, name_all, parse_over, settle

CONFIG = load_config("resnet50")


@pytest.mark.parametrize(
    ("rest", "values"),
    [
        ("1,2,4", [1, 2, 4]),
        ("[0.1,1],[0.5,1]", [[0.1, 1], [0.5, 1]]),
        ("'a,b',\"c,d\"", ["a,b", "c,d"]),
        (" fp32 , bf16 ", ["fp32", "bf16"]),
    ],
)
def test_values_of_over_are_toml_or_words(rest: str, values: list):
    assert parse_over(f"augment.area={rest}") == ("augment.area", values)


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "a", "0", "-1", "1,2,2", "1.5", "auto", "1;2", "9" * 5000, "1" + "0" * 9]
)
def test_bad_batch_sizes_are_refused(text: str):
    with pytest.raises(ConfigError) as caught:
        make_plan(CONFIG, text, None)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("train.precision", "not KEY=VALUE,VALUE"),
        ("=1,2", "not KEY=VALUE,VALUE"),
        ("train.precision=", "not KEY=VALUE,VALUE"),
        ("train.precision=fp32,", "not KEY=VALUE"),
        ("train.precision=fp32,fp32", "the same point"),
        ("train.precison=fp32,bf16", "did you mean train.precision?"),
        ("train=1,2", "it is a section"),
        ("train.precision=fp32,fp33", "train.precision = 'fp33'"),
        ("optimizer.learning_rate=1,1.0", "are the same point"),
        ("data.image_size=2026-01-01,32", "data.image_size"),
        ("optimizer.learning_rate=0.1,nan", "optimizer.learning_rate = nan"),
        ("train.precision=[", "is not a TOML value"),
        (f"seed=1,{'9' * 5000}", "seed"),
        (f"seed=1,{'[' * 5000}", "seed"),
    ],
)
def test_bad_lists_are_refused_before_anything_runs(over: str, words: str):
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        make_plan(CONFIG, None, over)
    assert len(caught.value.message) < 6000


def test_one_key_cannot_be_both():
    with pytest.raises(ConfigError, match="same key twice"):
        make_plan(CONFIG, "1,2", "train.batch_size=4,8")


def test_the_default_is_the_originals_shuffled_by_the_seed():
    plans = [make_plan(CONFIG.model_copy(update={"seed": seed}), None, None) for seed in (0, 0, 1)]
    assert plans[0].sweep.key == "train.batch_size"
    assert tuple(plans[0].sweep.values) == BATCH_SIZES == (1, 2, 4, 8, 16, 32, 64, 96, 128)
    orders = [[point.value for point in plan.points] for plan in plans]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(BATCH_SIZES) != orders[0]
    assert [point.order for point in plans[0].points] == list(range(1, 10))


def test_two_lists_are_a_product():
    plan = plan_small("1,2", "train.precision=fp32,bf16")
    assert plan.sweep.num_points == len(plan.points) == 4
    assert plan.labels[0] == "batch 1, train.precision fp32"
    assert {point.name for point in plan.points} >= {"batch_1_train.precision_bf16"}
    point = next(p for p in plan.points if p.label == "batch 2, train.precision bf16")
    config = configure(plan.config, plan.sweep, point)
    assert (config.train.batch_size, config.train.precision) == (2, "bf16")


def test_file_names_are_safe_and_differ():
    assert name_all(["batch 1", "a/b ../c", "a b ..c", "x", "X"]) == ["batch_1", "a_b_.._c", "a_b_..c", "x", "X-4"]
    assert name_all(["/", "..", "é"]) == ["point", "point-1", "point-2"]


def test_later_points_take_over_what_the_first_settled():
    plan = plan_small("1,2")
    resolved = load_config("resnet50", settings=["device=cpu", "train.precision=bf16", "engine.threads=3"])
    settled = settle(plan.config, plan.sweep, resolved)
    assert (settled.train.precision, settled.engine.threads) == ("bf16", 3)
    assert settled.train.batch_size == plan.config.train.batch_size  # it is what is swept
    assert settled.seed == plan.config.seed
