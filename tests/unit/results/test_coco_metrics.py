"""COCO's twelve metrics agree with pycocotools for both evaluators; matching of boxes for images."""

import json
import sys

import numpy as np
import pytest

from support.builders.boxes import draw_boxes, run_pycocotools
from support.builders.damage import real_data
from trainstone.errors import DataError, MachineError
from trainstone.formats.coco import number_categories, read_instances
from trainstone.results import coco_metrics
from trainstone.results.coco_metrics import Detections, GroundTruth, list_tables, score_boxes
from trainstone.results.schema.quality import QualityTable

BOTH = sorted(coco_metrics.EVALUATORS)


def truth_of(*boxes: tuple[float, ...], image: int = 0, label: int = 0, crowd: bool = False) -> GroundTruth:
    edges = np.array(boxes, float).reshape(-1, 4)
    area = (edges[:, 2:] - edges[:, :2]).prod(axis=1)
    same = np.ones(len(edges), np.int64)
    return GroundTruth(image * same, label * same, edges, area, same * crowd > 0)


def found_of(*boxes: tuple[float, ...], image: int = 0, label: int = 0) -> Detections:
    """Make detections from left, top, right, bottom, score."""
    rows = np.array(boxes, float).reshape(-1, 5)
    same = np.ones(len(rows), np.int64)
    return Detections(image * same, label * same, rows[:, :4], rows[:, 4])


def join(*truths: GroundTruth) -> GroundTruth:
    return GroundTruth(
        *(np.concatenate([getattr(one, name) for one in truths]) for name in GroundTruth.__dataclass_fields__)
    )


@pytest.mark.parametrize("evaluator", BOTH)
def test_score_boxes_of_real_results_matches_known_metrics(evaluator: str):
    folder = real_data("eval")
    instances = read_instances(folder / "instances_val2014_100.json")
    results = json.loads((folder / "instances_val2014_fakebbox100_results.json").read_text())
    expected = json.loads((folder / "expected_fakebbox100.json").read_text())["stats"]
    numbers = number_categories(instances.categories)
    # Ties between images are resolved by image order, in COCO by image id.
    places = {number: place for place, number in enumerate(sorted(image.id for image in instances.images))}
    boxes = np.array([item.bbox for item in instances.annotations])
    truth = GroundTruth(
        np.array([places[item.image_id] for item in instances.annotations]),
        np.array([numbers[item.category_id] - 1 for item in instances.annotations]),
        np.hstack((boxes[:, :2], boxes[:, :2] + boxes[:, 2:])),
        np.array([item.area for item in instances.annotations]),
        np.array([item.crowd for item in instances.annotations]),
    )
    boxes = np.array([item["bbox"] for item in results])
    found = Detections(
        np.array([places[item["image_id"]] for item in results]),
        np.array([numbers[item["category_id"]] - 1 for item in results]),
        np.hstack((boxes[:, :2], boxes[:, :2] + boxes[:, 2:])),
        np.array([item["score"] for item in results]),
    )
    scores = score_boxes(truth, found, images=np.arange(100), num_classes=80, evaluator=evaluator)
    assert list(scores.metrics) == list(coco_metrics.METRICS)
    assert list(scores.metrics.values()) == pytest.approx(expected, abs=1e-6)
    assert scores.evaluator.startswith(evaluator)


@pytest.mark.parametrize("evaluator", BOTH)
@pytest.mark.parametrize("added_pixels", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_score_boxes_of_random_boxes_matches_pycocotools(seed: int, added_pixels: int, evaluator: str):
    random = np.random.default_rng(seed)
    sizes = {"num_images": (3, 12, 3)[seed], "num_classes": (1, 2, 5)[seed]}
    # Few images and classes, so that one has far more than 100 detections, and ties beyond the hundredth.
    truth, found = draw_boxes(random, **sizes, true=40, found=600)
    theirs = run_pycocotools(truth, found, **sizes, added_pixels=added_pixels)
    scores = score_boxes(
        truth, found, images=np.arange(sizes["num_images"]), num_classes=sizes["num_classes"],
        inclusive_edges=added_pixels == 1, evaluator=evaluator,
    )  # fmt: skip
    expected = {name: value for name, value in zip(coco_metrics.METRICS, theirs.stats, strict=True) if value > -1}
    assert scores.metrics == pytest.approx(expected, abs=1e-12)
    precision = theirs.eval["precision"][:, :, :, 0, 2]
    has_truth = [label for label in range(sizes["num_classes"]) if precision[0, 0, label] > -1]
    assert [one.label for one in scores.classes] == has_truth
    for one in scores.classes:
        assert one.average_precision == pytest.approx(precision[:, :, one.label].mean(), abs=1e-12)
        assert one.average_precision_50 == pytest.approx(precision[0, :, one.label].mean(), abs=1e-12)
        assert one.num_true == ((truth.label == one.label) & ~truth.crowd).sum()
    assert scores.curves["map75"] == pytest.approx(precision[5][:, has_truth].mean(axis=1), abs=1e-12)
    assert scores.curves["map"] == pytest.approx(precision[:, :, has_truth].mean(axis=(0, 2)), abs=1e-12)


@pytest.mark.parametrize("evaluator", BOTH)
def test_score_boxes_omits_metrics_without_true_boxes(evaluator: str, capfd: pytest.CaptureFixture[str]):
    truth = truth_of((0, 0, 50, 50))
    nothing = score_boxes(truth, found_of(), images=np.arange(2), num_classes=3, evaluator=evaluator)
    assert nothing.metrics == {name: 0.0 for name in coco_metrics.METRICS if name[-5:] not in ("small", "large")}
    assert nothing.sizes == {"small": 0, "medium": 1, "large": 0}
    right = score_boxes(truth, found_of((0, 0, 50, 50, 0.9)), images=np.arange(2), num_classes=3, evaluator=evaluator)
    assert list(right.metrics.values()) == pytest.approx([1.0] * 8)
    assert set(right.metrics) == set(nothing.metrics)
    assert right.curves["map"] == pytest.approx(np.ones(101))
    assert len(right.classes) == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("evaluator", BOTH)
def test_score_boxes_uses_image_numbers(evaluator: str):
    truth = join(truth_of((0, 0, 50, 50), image=0), truth_of((0, 0, 50, 50), image=4951))
    found = found_of((0, 0, 50, 50, 0.9), image=4951)
    scores = score_boxes(truth, found, images=np.array([4951, 17, 0]), num_classes=1, evaluator=evaluator)
    assert scores.metrics["recall_100"] == pytest.approx(0.5)
    assert (scores.num_images, scores.num_true, scores.num_found) == (3, 2, 1)


def test_score_boxes_without_true_boxes_raises():
    for truth in (truth_of(), truth_of((0, 0, 50, 50), crowd=True)):
        with pytest.raises(DataError, match="no true box in 7 validation images") as caught:
            score_boxes(truth, found_of((0, 0, 9, 9, 0.5)), images=np.arange(7), num_classes=2)
        assert "trainstone data info" in (caught.value.hint or "")


def test_score_boxes_skips_non_finite_detections():
    found = found_of((0, 0, 50, 50, 0.4), (0, np.nan, 50, 50, 0.9), (0, 0, np.inf, 50, 0.9), (0, 0, 50, 50, np.nan))
    found = Detections(found.image, found.label, found.edges.astype(np.float32), found.score.astype(np.float32))
    scores = score_boxes(truth_of((0, 0, 50, 50)), found, images=np.arange(1), num_classes=1)
    assert (scores.metrics["map"], scores.num_found) == (pytest.approx(1.0), 1)


def test_score_boxes_uses_next_evaluator_if_first_is_missing(monkeypatch: pytest.MonkeyPatch):
    truth, found = draw_boxes(np.random.default_rng(9), num_images=5, num_classes=3, true=20, found=100)
    first = score_boxes(truth, found, images=np.arange(5), num_classes=3)
    assert first.evaluator.startswith("hotcoco")
    monkeypatch.setitem(sys.modules, "hotcoco", None)
    second = score_boxes(truth, found, images=np.arange(5), num_classes=3)
    assert second.evaluator.startswith("faster-coco-eval")
    assert second.metrics == pytest.approx(first.metrics, abs=1e-12)
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(MachineError, match="hotcoco and faster-coco-eval cannot be imported") as caught:
        score_boxes(truth, found, images=np.arange(5), num_classes=3)
    assert caught.value.hint == "pip install hotcoco"


@pytest.mark.parametrize("seed", range(3))
def test_match_boxes_matches_pycocotools(seed: int):
    sizes = {"num_images": 6, "num_classes": 3}
    truth, found = draw_boxes(np.random.default_rng(seed), **sizes, true=30, found=90)
    # The order of ties is not specified, so these boxes have none.
    random = np.random.default_rng(100 + seed)
    found = Detections(found.image, found.label, found.edges + random.random((90, 4)), random.permutation(90) / 90)
    evaluation = run_pycocotools(truth, found, **sizes)
    theirs = np.zeros(90, bool)
    for message in evaluation.evalImgs:
        if message is not None and message["aRng"] == [0, 1e10]:
            theirs[np.array(message["dtIds"], int) - 1] = message["dtMatches"][0] > 0
    assert coco_metrics.match_boxes(truth, found)[0].tolist() == theirs.tolist()


def some_scores() -> coco_metrics.BoxScores:
    truth, found = draw_boxes(np.random.default_rng(1), num_images=9, num_classes=4, true=120, found=400)
    return score_boxes(truth, found, images=np.arange(9), num_classes=4)


def find(tables: list[QualityTable], name: str) -> QualityTable:
    return next(table for table in tables if table.name == name)


def test_list_tables_has_coco_names_curves_and_sorted_classes():
    scores = some_scores()
    tables = list_tables(scores, ["cat", "dog"])
    table = find(tables, "coco")
    precision = [f"AP @[ IoU={overlap} | area=all | maxDets=100 ]" for overlap in ("0.50:0.95", "0.50", "0.75")]
    recall = [f"AR @[ IoU=0.50:0.95 | area=all | maxDets={most} ]" for most in (1, 10, 100)]
    sized = [f"@[ IoU=0.50:0.95 | area={size} | maxDets=100 ]" for size in ("small", "medium", "large")]
    expected = [*precision, *(f"AP {name}" for name in sized), *recall, *(f"AR {name}" for name in sized)]
    assert [row[0] for row in table.rows] == expected
    assert [row[1] for row in table.rows] == [round(value, 4) for value in scores.metrics.values()]
    assert f"{scores.num_true} true and 400 detected boxes" in table.note
    table = find(tables, "precision-recall")
    assert (table.drawn, table.columns) == ("lines", ["recall", "precision", "line"])
    lines = {row[2] for row in table.rows}
    assert lines == {"overlap 0.50", "overlap 0.75", "mean of 0.50 to 0.95"}
    for line in lines:
        points = [row for row in table.rows if row[2] == line]
        assert [row[0] for row in points] == [number / 100 for number in range(101)]
        assert [row[1] for row in points] == sorted((row[1] for row in points), reverse=True)
    half = [row[1] for row in table.rows if row[2] == "overlap 0.50"]
    assert abs(np.mean(half) - scores.metrics["map50"]) < 1e-4
    table = find(tables, "ap-by-class")
    assert (table.drawn, table.columns) == ("bars", ["class", "AP", "AP50", "true boxes"])
    assert [row[1] for row in table.rows] == sorted((row[1] for row in table.rows), reverse=True)
    assert {row[0] for row in table.rows} == {"cat", "dog", "class 2"}  # the fourth has no true box
    by_name = {row[0]: row for row in table.rows}
    assert by_name["dog"][3] == scores.classes[1].num_true
    assert by_name["dog"][2] == round(scores.classes[1].average_precision_50, 4)
    # Of many classes those with the most boxes are shown.
    classes = [
        coco_metrics.ClassScore(label, label / 1000, 0.5, 1000 - label)
        for label in range(coco_metrics.MAX_CLASSES + 20)
    ]
    many = coco_metrics.BoxScores(**{**vars(scores), "classes": classes})
    table = find(list_tables(many, [str(number) for number in range(500)]), "ap-by-class")
    assert [row[0] for row in table.rows] == [str(number) for number in reversed(range(coco_metrics.MAX_CLASSES))]
    assert "the 100 of 120 classes with the most true boxes" in table.note


def test_list_tables_leaves_undefined_metrics_empty():
    truth, found = truth_of((0, 0, 9, 9)), found_of((0, 0, 9, 9, 0.5))
    tables = list_tables(score_boxes(truth, found, images=np.arange(1), num_classes=2), ["a", "b"])
    assert [row[1] for row in find(tables, "coco").rows] == [1, 1, 1, 1, None, None, 1, 1, 1, 1, None, None]
    assert "no true box of that size" in find(tables, "coco").note
    assert [row[1:] for row in find(tables, "ap-by-size").rows] == [[1, 1, 1], [None, None, 0], [None, None, 0]]
    assert find(tables, "ap-by-class").rows == [["a", 1.0, 1.0, 1]]
