"""What a sweep runs: lists are split as written, all points are checked before anything runs, the order is shuffled."""

import pytest

from made_sweep import plan_small
from trainstone.config.load import load_config
from trainstone.errors import ConfigError
from trainstone.launch.points import (
    BATCH_SIZES,
    configure,
    make_plan,
    name_all,
    parse_batch_sizes,
    parse_over,
    settle,
    split_values,
)

CONFIG = load_config("resnet50")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2,4", ["1", "2", "4"]),
        ("[0.1,1],[0.5,1]", ["[0.1,1]", "[0.5,1]"]),
        ('\'a,b\',"c,\\"d"', ["'a,b'", '"c,\\"d"']),
        ('"a\\\\",b', ['"a\\\\"', "b"]),
        (" fp32 , bf16 ", ["fp32", "bf16"]),
        ("1,,2", ["1", "", "2"]),
        ("1,", ["1", ""]),
    ],
)
def test_commas_inside_quotes_and_brackets_belong_to_the_value(text: str, parts: list[str]):
    assert list(split_values(text)) == parts


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "0", "-1", "1,2,2", "1.5", "auto", "1;2", "٣"])
def test_bad_batch_sizes_are_refused(text: str):
    with pytest.raises(ConfigError, match=r"--batch-sizes"):
        parse_batch_sizes(text)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("train.precision", "not KEY=VALUE,VALUE"),
        ("=1,2", "not KEY=VALUE,VALUE"),
        ("train.precision=", "not KEY=VALUE,VALUE"),
        ("train.precision=fp32,", "a value is empty"),
        ("train.precision=fp32,fp32", "names fp32 twice"),
        ("train.precison=fp32,bf16", "did you mean train.precision?"),
        ("precision=fp32,bf16", "did you mean train.precision?"),
        ("train=1,2", "it is a section"),
        ("train.precision=fp32,fp33", "train.precision = 'fp33'"),
        ("model.depth=18,19", "model.depth = 19"),
        ("optimizer.learning_rate=1,1.0", "are the same point"),
        ("data.image_size=2026-01-01,32", "no key takes 2026-01-01"),
        ("optimizer.learning_rate=0.1,nan", "optimizer.learning_rate = nan"),
        ("train.precision=[", "is not a TOML value"),
    ],
)
def test_bad_lists_are_refused_before_anything_runs(over: str, words: str):
    with pytest.raises(ConfigError) as caught:
        make_plan(CONFIG, None, over)
    assert words in caught.value.message


@pytest.mark.parametrize("digits", ["9" * 5000, "0" * 5000, "1" + "0" * 9])
def test_very_long_batch_sizes_are_refused(digits: str):
    with pytest.raises(ConfigError, match="is no whole number above 0 and below 1,000,000,000") as caught:
        parse_batch_sizes(f"1,{digits}")
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "9" * 30, "[" * 5000])
def test_very_long_values_are_refused(value: str):
    with pytest.raises(ConfigError, match=r"--over seed: ") as caught:
        parse_over(f"seed=1,{value}")
    assert len(caught.value.message) < 300


def test_one_key_cannot_be_both():
    with pytest.raises(ConfigError, match="same key twice"):
        make_plan(CONFIG, "1,2", "train.batch_size=4,8")


def test_the_default_is_the_originals():
    plan = make_plan(CONFIG, None, None)
    assert tuple(plan.sweep.values) == BATCH_SIZES == (1, 2, 4, 8, 16, 32, 64, 96, 128)
    assert plan.sweep.key == "train.batch_size"


def test_the_order_is_shuffled_by_the_seed_and_recorded():
    plans = [make_plan(CONFIG.model_copy(update={"seed": seed}), None, None) for seed in (0, 0, 1)]
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
    for labels in (["a-2", "a", "a/"], ["a", "a/", "a-1"], ["A-3", "a-2", "a", "a/"]):
        names = [name.lower() for name in name_all(labels)]
        assert len(set(names)) == len(names), names


def test_later_points_take_over_what_the_first_settled():
    plan = plan_small("1,2")
    resolved = load_config("resnet50", settings=["device=cpu", "train.precision=bf16", "engine.threads=3"])
    settled = settle(plan.config, plan.sweep, resolved)
    assert (settled.train.precision, settled.engine.threads) == ("bf16", 3)
    assert settled.train.batch_size == plan.config.train.batch_size  # it is what is swept
    assert settled.seed == plan.config.seed
