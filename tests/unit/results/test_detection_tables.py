"""Tables of scores: COCO's own names, lines, classes in order, and nothing that is no number."""

import numpy as np

from made_boxes import draw_boxes
from trainstone.results.detection import MOST_CLASSES, BoxScores, ClassScore, Found, Truth, list_tables, score_boxes
from trainstone.results.quality import QualityTable


def some_scores(num_classes: int = 4) -> BoxScores:
    truth, found = draw_boxes(
        np.random.default_rng(1), num_pictures=9, num_classes=num_classes, true=30 * num_classes, found=400
    )
    return score_boxes(truth, found, pictures=np.arange(9), num_classes=num_classes)


def find(tables: list[QualityTable], name: str) -> QualityTable:
    return next(table for table in tables if table.name == name)


def test_the_twelve_have_cocos_names_and_order():
    scores = some_scores()
    table = find(list_tables(scores, []), "coco")
    assert [row[0] for row in table.rows] == [
        "AP @[ IoU=0.50:0.95 | area=all | maxDets=100 ]",
        "AP @[ IoU=0.50 | area=all | maxDets=100 ]",
        "AP @[ IoU=0.75 | area=all | maxDets=100 ]",
        "AP @[ IoU=0.50:0.95 | area=small | maxDets=100 ]",
        "AP @[ IoU=0.50:0.95 | area=medium | maxDets=100 ]",
        "AP @[ IoU=0.50:0.95 | area=large | maxDets=100 ]",
        "AR @[ IoU=0.50:0.95 | area=all | maxDets=1 ]",
        "AR @[ IoU=0.50:0.95 | area=all | maxDets=10 ]",
        "AR @[ IoU=0.50:0.95 | area=all | maxDets=100 ]",
        "AR @[ IoU=0.50:0.95 | area=small | maxDets=100 ]",
        "AR @[ IoU=0.50:0.95 | area=medium | maxDets=100 ]",
        "AR @[ IoU=0.50:0.95 | area=large | maxDets=100 ]",
    ]
    assert [row[1] for row in table.rows] == [round(value, 4) for value in scores.metrics.values()]
    assert f"{scores.num_true} true and 400 found boxes" in table.note


def test_numbers_that_are_not_defined_are_left_empty():
    truth = Truth(np.array([0]), np.array([0]), np.array([[0.0, 0, 9, 9]]), np.array([81.0]), np.array([False]))
    found = Found(np.array([0]), np.array([0]), np.array([[0.0, 0, 9, 9]]), np.array([0.5]))
    tables = list_tables(score_boxes(truth, found, pictures=np.arange(1), num_classes=2), ["a", "b"])
    assert [row[1] for row in find(tables, "coco").rows] == [1, 1, 1, 1, None, None, 1, 1, 1, 1, None, None]
    assert "no true box of that size" in find(tables, "coco").note
    assert [row[1:] for row in find(tables, "ap-by-size").rows] == [[1, 1, 1], [None, None, 0], [None, None, 0]]
    assert find(tables, "ap-by-class").rows == [["a", 1.0, 1.0, 1]]


def test_lines_go_from_no_recall_to_all_of_it():
    scores = some_scores()
    table = find(list_tables(scores, []), "precision-recall")
    assert table.drawn == "lines"
    assert table.columns == ["recall", "precision", "line"]
    lines = {row[2] for row in table.rows}
    assert lines == {"overlap 0.50", "overlap 0.75", "mean of 0.50 to 0.95"}
    for line in lines:
        points = [row for row in table.rows if row[2] == line]
        assert [row[0] for row in points] == [number / 100 for number in range(101)]
        assert [row[1] for row in points] == sorted((row[1] for row in points), reverse=True)
    half = [row[1] for row in table.rows if row[2] == "overlap 0.50"]
    assert abs(np.mean(half) - scores.metrics["map50"]) < 1e-4


def test_classes_are_sorted_and_named():
    scores = some_scores()
    table = find(list_tables(scores, ["cat", "dog"]), "ap-by-class")
    assert table.drawn == "bars"
    assert table.columns == ["class", "AP", "AP50", "true boxes"]
    assert [row[1] for row in table.rows] == sorted((row[1] for row in table.rows), reverse=True)
    assert {row[0] for row in table.rows} == {"cat", "dog", "class 2"}  # the fourth has no true box
    by_name = {row[0]: row for row in table.rows}
    assert by_name["dog"][3] == scores.classes[1].num_true
    assert by_name["dog"][2] == round(scores.classes[1].average_precision_50, 4)


def test_of_many_classes_those_with_the_most_boxes_are_shown():
    scores = some_scores()
    classes = [ClassScore(label, label / 1000, 0.5, 1000 - label) for label in range(MOST_CLASSES + 20)]
    many = BoxScores(**{**vars(scores), "classes": classes})
    table = find(list_tables(many, [str(number) for number in range(500)]), "ap-by-class")
    assert [row[0] for row in table.rows] == [str(number) for number in reversed(range(MOST_CLASSES))]
    assert "the 100 of 120 classes with the most true boxes" in table.note
