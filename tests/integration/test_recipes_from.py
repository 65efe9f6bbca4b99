"""Tests of `trainstone recipes --from`: command lines of the originals become recipes that run."""

import shlex
from pathlib import Path

import pytest

from support.builders.command_lines import SC22, WMLCE_JOB, mlperf_words
from support.processes.command import narrow_arguments

LINES = [
    ("wmlce", [WMLCE_JOB]),
    ("sc22", SC22),
    ("tbd", ["--skip_eval", "--train_steps=20", "-batch_size=8"]),
    ("mlperf-resnet50", mlperf_words("a30-1x2")),
    ("mlperf-ssd", ["SYSTEM=C4140", "DATADIR=/data", "PRETRAINED_DIR=/weights", "run_and_time.sh"]),
]


@pytest.mark.parametrize(("original", "words"), LINES)
def test_recipes_from_command_file_and_json_agree(quick, tmp_path: Path, original: str, words: list[str]):
    translated = quick("recipes", "--from", original, "--json", "--", *words).json()
    assert set(translated) == {"verb", "command", "config", "notes"}
    planned = quick(*shlex.split(translated["command"])[1:], "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert planned.json()["config"] == translated["config"]
    printed = quick("recipes", "--from", original, "--", *words)
    (tmp_path / "mine.toml").write_text(printed.out)
    planned = quick(translated["verb"], "mine.toml", "--dry-run", "--json")
    assert planned.json()["config"] == translated["config"]


def test_recipes_from_data_script_has_command_without_recipe(quick):
    words = ["--from", "mlperf-ssd", "--json", "--", "prepare-json.py", "/coco/annotations/a.json", "b.json"]
    translated = quick("recipes", *words).json()
    assert set(translated) == {"verb", "command", "notes"}
    assert translated["command"] == "trainstone data coco --from /coco --to /coco-checked"


def test_recipes_from_benchmark_line_runs(quick, tmp_path: Path):
    line = "python main.py --mode=training_benchmark --iter_unit batch --num_iter=12 --batch_size 2 --warmup_steps=2"
    printed = quick("recipes", "--from", "wmlce", "--", *shlex.split(line))
    (tmp_path / "mine.toml").write_text(printed.out)
    done = quick("bench", "mine.toml", "--json", *narrow_arguments())
    assert done.code == 0, done.err
    result = done.json()
    assert result["recipe"]["name"] == "resnet50-wmlce"
    assert result["config"]["measure"]["iterations"] == 12


def test_recipes_from_mlperf_config_file_is_read_not_executed(quick, tmp_path: Path):
    file = tmp_path / "config_MINE.sh"
    lines = [f"export {word}" for word in mlperf_words("dgxa100")]
    file.write_text("\n".join([*lines, "export WALLTIME=$(touch made-by-a-shell)"]))
    translated = quick("recipes", "--from", "mlperf-resnet50", "--json", "--", "./config_MINE.sh").json()
    assert translated["command"] == "trainstone train resnet50-mlperf --system dgxa100"
    file.write_text("touch made-by-a-shell\n")
    done = quick("recipes", "--from", "mlperf-resnet50", "--", "config_MINE.sh")
    assert done.code == 2
    assert "config_MINE.sh" in done.err
    assert not (tmp_path / "made-by-a-shell").exists()
