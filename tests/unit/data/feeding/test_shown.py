"""Boxes as arrays: moved into the part that is shown, and packed into batches of like shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainstone.data.feeding.crops import Crop, Window
from trainstone.data.feeding.shown import IGNORED, NOTHING, Shown, list_boxes, pack
from trainstone.data.sample import Box

BOX = Box(3, 0.25, 0.5, 0.75, 1.0, crowd=True, area=0.1)


def show(count: int, number: int = 0) -> Shown:
    boxes = [Box(label, 0.0, 0.0, 0.5, 0.25) for label in range(count)]
    return Shown(boxes=list_boxes(boxes, (20, 40), Crop(0, 0, 20, 40), flip=False), facts=(number, 20, 40))


def test_edges_are_shares_of_the_part():
    found = list_boxes([BOX], (200, 100), Crop(50, 40, 100, 60), flip=False)
    assert found.edges.tolist() == [[0.0, pytest.approx(1 / 6), 1.0, 1.0]]
    assert (found.labels.tolist(), found.crowds.tolist()) == ([3], [True])
    assert found.areas.tolist() == pytest.approx([0.1 * 200 * 100])


def test_mirroring_and_cutting():
    found = list_boxes([BOX], (200, 100), Crop(0, 0, 100, 80), flip=True)
    assert found.edges[0] == pytest.approx([0.0, 0.625, 0.5, 1.0])


def test_an_unknown_area_is_the_boxs():
    found = list_boxes([BOX._replace(area=None), BOX._replace(area=0.0)], (200, 100), Crop(0, 0, 200, 100), flip=False)
    assert found.areas.tolist() == [pytest.approx(0.25 * 20_000), 0.0]


def test_a_box_of_which_nothing_is_left_is_left_out():
    found = list_boxes([BOX, Box(1, 0.0, 0.0, 0.1, 0.1)], (200, 100), Window(40, 40, 200, 100), flip=False)
    assert found.labels.tolist() == [3]


@pytest.mark.parametrize(("most", "places"), [(0, 8), (1, 8), (8, 8), (9, 16), (24, 24)])
def test_places_come_in_eights(most: int, places: int):
    edges, labels = pack([show(0), show(most), NOTHING], "boxes")
    assert (edges.shape, labels.shape) == ((3, places, 4), (3, places))
    assert (edges.dtype, labels.dtype) == (np.float32, np.int64)
    assert labels[1].tolist() == [*range(most), *[IGNORED] * (places - most)]
    assert (labels[[0, 2]] == IGNORED).all()
    assert (edges[labels == IGNORED] == 0).all()


def test_truth_tells_crowds_areas_and_facts():
    edges, labels, crowds, areas, facts = pack([show(2, 7), NOTHING], "truth")
    assert [part.dtype for part in (edges, labels, crowds, areas, facts)] == [
        np.float32, np.int64, np.bool_, np.float32, np.int64,
    ]  # fmt: skip
    assert areas[0].tolist() == [100, 100, 0, 0, 0, 0, 0, 0]
    assert not crowds.any()
    assert facts.tolist() == [[7, 20, 40], [IGNORED, 0, 0]]


def test_classes():
    (labels,) = pack([Shown(4), NOTHING], "class")
    assert labels.dtype == np.int64
    assert labels.tolist() == [4, IGNORED]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_whatever_the_rows_every_box_is_there_once(counts: list[int]):
    _, labels = pack([show(count) for count in counts], "boxes")
    assert [(row != IGNORED).sum() for row in labels] == counts
    assert labels.shape[1] % 8 == 0
    assert 0 <= labels.shape[1] - max(counts) <= 8
