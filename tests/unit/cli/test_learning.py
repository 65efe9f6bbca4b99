"""What the terminal says of a training, at every width, and that text from a file is not obeyed."""

from pathlib import Path

import pytest

from made_learning import make_quality, make_training, write_training
from trainstone.cli.summary import print_result, training_rows
from trainstone.results.schema import Result


def tell(result: Result, width: int = 36, encoding: str = "utf-8") -> dict[str, str]:
    return {name: str(text) for name, text in training_rows(result, width, encoding)}


def test_a_training_tells_quality_target_epochs_and_time():
    assert tell(make_training()) == {
        "quality": "92.4 % top-1 after epoch 8; top-5 99.7 %, loss 0.382",
        "over epochs": "▁▃▄▆▆▇██  first 21.2 %, best 92.4 %",
        "target": "90 % top-1, reached in 2 min 27 s",
        "epochs": "8",
        "time": "2 min 27 s: training 76 %, data wait 5 %, evaluation 16 %, checkpoints 2 %",
    }


def test_what_is_not_there_is_not_told():
    quality = make_quality(history=[], target=None, seconds_to_target=None, starts=3)
    result = make_training(status="interrupted", quality=quality).model_copy(update={"phases": None})
    assert tell(result) == {"epochs": "0.4, in 3 starts"}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_summary_has_them_beside_the_throughput(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, width: int
):
    monkeypatch.setenv("COLUMNS", str(width))
    path = write_training(tmp_path)
    print_result(make_training(), path)
    text = " ".join(capsys.readouterr().out.split())
    assert "ResNet-18: 92.4 % top-1 (target 90 %) after 8 epochs" in text
    for name in ("quality 92.4 %", "target 90 %", "throughput 213 images/s", "steps "):
        assert f" {name}" in text
