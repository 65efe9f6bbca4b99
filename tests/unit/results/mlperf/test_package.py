"""A submission's folder: planned from runs that are alike, written whole or not at all, never over another."""

import json
import os
from pathlib import Path

import pytest

from made_submission import write_mlperf_runs
from trainstone.errors import ConfigError, ResultError
from trainstone.results.mlperf.package import make_plan, slug, write_package


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def repeated(tmp_path):
    return write_mlperf_runs(tmp_path)


def test_the_tree_of_five_runs(repeated, tmp_path):
    plan = make_plan([repeated], {})
    write_package(plan, tmp_path / "deep/org")
    system = "8xMade-up-accelerator"
    there = sorted(
        str(path.relative_to(tmp_path / "deep/org")) for path in (tmp_path / "deep/org").rglob("*.*") if path.is_file()
    )
    code = f"benchmarks/resnet/implementations/{system}"
    assert there == [
        *(f"{code}/{name}" for name in ("README.md", "config.toml", "run_and_time.sh")),
        *(f"results/{system}/resnet/result_{number}.txt" for number in range(5)),
        f"systems/{system}.json",
    ]
    copied = (tmp_path / f"deep/org/results/{system}/resnet/result_3.txt").read_bytes()
    assert copied == (repeated / "points/run-4/mlperf.log").read_bytes()
    assert json.loads((tmp_path / f"deep/org/systems/{system}.json").read_text())["submitter"] == "somebody"
    script = tmp_path / "deep/org" / code / "run_and_time.sh"
    assert "--runs 5 --seed 1" in script.read_text()
    assert os.access(script, os.X_OK)
    assert "seeds 1, 2, 3, 4, 5" in (tmp_path / "deep/org" / code / "README.md").read_text()


def test_five_runs_given_one_by_one_are_the_same(repeated, tmp_path):
    one_by_one = make_plan(sorted((repeated / "points").iterdir()), {}, name="my box/2")
    assert [run.path.parent.name for run in one_by_one.runs] == [f"run-{seed}" for seed in range(1, 6)]
    assert one_by_one.system == "my-box-2"


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling"])
def test_what_is_there_is_left_alone(repeated, tmp_path, kind):
    out = tmp_path / "org"
    if kind == "folder":
        out.mkdir()
        (out / "mine").write_text("keep")
    elif kind == "file":
        out.write_text("keep")
    else:
        (tmp_path / "elsewhere").mkdir() if kind == "link" else None
        out.symlink_to(tmp_path / "elsewhere")
    before = list_names(tmp_path)
    with pytest.raises(ResultError, match="is there already and is left alone"):
        write_package(make_plan([repeated], {}), out)
    assert list_names(tmp_path) == before


def test_an_empty_folder_may_be_filled(repeated, tmp_path):
    (tmp_path / "org").mkdir()
    write_package(make_plan([repeated], {}), tmp_path / "org")
    assert (tmp_path / "org/results").is_dir()


def test_a_failure_leaves_nothing_behind(repeated, tmp_path):
    plan = make_plan([repeated], {})
    (repeated / "points/run-3/mlperf.log").unlink()
    with pytest.raises(ResultError, match="cannot write"):
        write_package(plan, tmp_path / "org")
    assert list_names(tmp_path) == ["repeated"]


def test_a_run_given_twice_is_refused(repeated):
    with pytest.raises(ConfigError, match="given twice"):
        make_plan([repeated, repeated / "points/run-1"], {})


def test_what_is_no_run_is_refused(tmp_path, repeated):
    for path, told in ((tmp_path / "gone", "is no run folder"), (tmp_path, r"no mlperf\.log in")):
        with pytest.raises(ResultError, match=told):
            make_plan([path], {})
    (repeated / "points/run-1/result.json").unlink()
    with pytest.raises(ResultError, match=r"result\.json is missing"):
        make_plan([repeated], {})


def test_texts_from_files_stay_out_of_the_script(repeated, tmp_path):
    path = repeated / "points/run-1/result.json"
    document = json.loads(path.read_text())
    document["software"]["trainstone"] = '1"; rm -rf ~; "'
    document["config"]["seed"] = "5; ls"
    path.write_text(json.dumps(document))
    files = make_plan([repeated], {}).files
    script = next(text for name, text in files.items() if name.endswith(".sh"))
    assert "rm" not in script
    assert "ls" not in script.replace("else", "")
    assert "--runs 5 --seed 1" in script  # as the logs say


@pytest.mark.parametrize(("name", "slugged"), [("8xA 100/x", "8xA-100-x"), ("../..", "system"), ("é[*]", "system")])
def test_names_of_systems_are_names_of_files(name, slugged):
    assert slug(name) == slugged
