"""Orders, names and boundaries must be the originals' to the last file."""

import itertools
import random

import numpy as np
import pytest

from trainstone.data.generated.source import GeneratedSource, generate
from trainstone.data.plan import draw_order, even_bounds, make_plan, tensorflow_bounds
from trainstone.data.sample import ClassName, DataSet, Split


def make_set(train: int, val: int = 0, name: str = "imagenet", kind: str = "classify") -> DataSet:
    found = generate(GeneratedSource(kind, "", 0, 32, 32, 2), {"train": train, "val": val})
    splits = [Split(split.name, split.source) for split in found.splits if len(split.source)]
    return DataSet(kind, "made up", found.classes, splits, name)


@pytest.mark.parametrize(
    ("storage", "kind", "seed"),
    [("recordio", "classify", 100), ("tfrecord", "classify", 12345), ("tfrecord", "detect", 2020)],
    ids=["im2rec", "build_imagenet_data", "create_tfrecord"],
)
def test_records_are_shuffled_as_the_original_does(storage: str, kind: str, seed: int):
    shuffled = list(range(100))
    random.seed(seed)
    random.shuffle(shuffled)
    assert draw_order(100, storage, kind) == shuffled
    assert draw_order(5, "recordio", None) == [0, 1, 2, 3, 4]
    assert draw_order(5, "folder", "classify") == [0, 1, 2, 3, 4]


def original_bounds(records: int, shards: int, threads: int = 8) -> list[tuple[int, int]]:
    """The arithmetic of build_imagenet_data.py, as its facts tell it."""
    spacing = np.linspace(0, records, threads + 1).astype(int)
    bounds = []
    for thread in range(threads):
        edges = np.linspace(spacing[thread], spacing[thread + 1], shards // threads + 1).astype(int)
        bounds += [(int(edges[s]), int(edges[s + 1])) for s in range(shards // threads)]
    return bounds


@pytest.mark.parametrize(("records", "shards"), [(1_281_167, 1024), (50_000, 128), (100_000, 64), (10, 8)])
def test_tfrecord_shards_have_the_originals_boundaries(records: int, shards: int):
    assert tensorflow_bounds(records, shards) == original_bounds(records, shards)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("bounds", [even_bounds, tensorflow_bounds])
def test_every_record_is_in_one_shard(bounds, count: int):
    edges = bounds(100, count)
    assert len(edges) == count
    assert edges[0][0] == 0
    assert edges[-1][1] == 100
    assert all(before[1] == after[0] for before, after in itertools.pairwise(edges))


def test_imagenet_gets_1024_and_128_files_with_the_originals_names():
    plan = make_plan(make_set(2000, 200), "tfrecord")
    names = [shard.file for shard in plan.shards]
    assert names[0] == "validation-00000-of-00128"  # written first, as there
    assert names[127] == "validation-00127-of-00128"
    assert names[128] == "train-00000-of-01024"
    assert len(names) == 1024 + 128
    assert plan.first_label == 1


def test_never_more_files_than_pictures():
    assert [shard.file for shard in make_plan(make_set(3), "tfrecord").shards] == [
        f"train-{number:05d}-of-00003" for number in range(3)
    ]


@pytest.mark.parametrize(
    ("storage", "kind", "shards", "names"),
    [
        ("recordio", "classify", {}, ["val.rec", "train.rec"]),
        ("recordio", "classify", {"train": 2}, ["val.rec", "train_0.rec", "train_1.rec"]),
        ("wds", "classify", {"train": 2}, ["val-000000.tar", "train-000000.tar", "train-000001.tar"]),
        ("tfrecord", "detect", {"train": 2}, ["val.0_of_1.tfrecord", "train.0_of_2.tfrecord", "train.1_of_2.tfrecord"]),
        ("folder", "classify", {"train": 2}, ["val", "train"]),
    ],
)
def test_names(storage: str, kind: str, shards: dict[str, int], names: list[str]):
    plan = make_plan(make_set(20, 5, name="mine", kind=kind), storage, shards=shards)
    assert [shard.file for shard in plan.shards] == names


def test_a_limit_takes_the_first_of_the_shuffled_list():
    plan = make_plan(make_set(100, 50), "recordio", limit=10)
    assert list(plan.split("train").order) == draw_order(100, "recordio", "classify")[:10]


def test_an_identity_changes_with_whatever_changes_the_bytes():
    found = make_set(100, 50)
    plans = [
        make_plan(found, "tfrecord"),
        make_plan(found, "recordio"),
        make_plan(found, "tfrecord", limit=99),
        make_plan(found, "tfrecord", shuffle=False),
        make_plan(found, "tfrecord", shards={"train": 5}),
        make_plan(found, "tfrecord", first_label=0),
        make_plan(make_set(100, 51), "tfrecord"),
        make_plan(make_set(100, 50, name="other"), "tfrecord"),
    ]
    assert len({plan.identity() for plan in plans}) == len(plans)
    assert plans[0].identity() == make_plan(make_set(100, 50), "tfrecord").identity()


def test_classes_of_one_name_are_told_apart():
    names = [ClassName("crane", ""), ClassName("dog", "a dog"), ClassName("crane", "bird"), ClassName("crane")]
    found = DataSet("classify", "", names, make_set(4).splits)
    assert make_plan(found, "folder").classes == (
        ("crane", ""),
        ("dog", "a dog"),
        ("crane-2", "bird"),
        ("crane-3", "crane"),
    )
