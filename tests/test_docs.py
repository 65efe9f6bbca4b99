"""The documents keep their word: README's commands run, its tree is the folder, links and finding codes exist."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from command import ROOT, narrow_arguments
from made_mlperf import write_closed_log
from made_saved import make_checkpoint
from trainstone.models.resnet import build_resnet
from trainstone.results.checks import CODES

README = (ROOT / "README.md").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks/README.md"]


def shell_lines() -> list[str]:
    """Command lines of README's sh blocks, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_readme_shows_both_commands_early():
    assert shell_lines()[:2] == ["make bench", "make test"]
    assert README.index("make bench") < 400


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("make ")])
def test_readme_make_targets_exist(line: str):
    done = subprocess.run(["make", "--dry-run", *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_readme_data_commands_run_one_after_the_other(quick):
    lines = [line for line in shell_lines() if line.startswith("trainstone data ")]
    assert len(lines) >= 4
    for line in lines:  # each works on what those before it made
        brief = ["--demand", "100", "--seconds", "0.5"] if " bench " in line else []
        done = quick(*shlex.split(line)[1:], *brief)
        assert done.code == 0, done.err
        assert done.out


COMMANDS = [line for line in shell_lines() if line.startswith("trainstone ") and "trainstone data" not in line]


@pytest.mark.parametrize("line", COMMANDS)
def test_readme_commands_run(quick, golden, tmp_path: Path, line: str):
    """Benches are only planned (--dry-run, the same parsing and loading); the noise floor gets a tiny model."""
    arguments = shlex.split(line)[1:]
    if arguments[0] in ("report", "compare") or "runs/a" in arguments:
        run = golden("data-starved")
        for name in ("a", "b"):
            copy = shutil.copytree(run, tmp_path / "runs" / name)
            text = (copy / "result.json").read_text()
            (copy / "result.json").write_text(text.replace('"run_id": "', f'"run_id": "{name}-'))
    if arguments[0] == "eval":
        (tmp_path / "runs" / "a" / "checkpoints").mkdir()
        make_checkpoint(tmp_path / "runs" / "a" / "checkpoints")
    if arguments[0] == "weights":
        torch.save(build_resnet(34, width=16).state_dict(), tmp_path / arguments[2])
    if arguments[0] == "mlperf":
        write_closed_log(tmp_path / "runs" / "a" / "mlperf.log", seed=1)
    if arguments[0] in ("bench", "sweep", "profile", "train", "eval"):
        arguments.append("--dry-run")
    if arguments[0] == "launch":
        arguments.insert(2, "--dry-run")
    if "--aa" in arguments:
        arguments += [*narrow_arguments(), "--set", "measure.iterations=30"]
    done = quick(*arguments)
    assert done.code == 0, done.err
    assert done.out


def test_readme_tree_is_the_folder():
    tree = README[README.index("```text\nsrc/trainstone/") :]
    named = set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE))
    there = {p.name for p in (ROOT / "src/trainstone").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert named == there
    for folder, text in re.findall(r"^  (\w+)/ +(.*)$", tree, re.MULTILINE):
        for file in re.findall(r"\b(\w+\.py)\b", text):
            assert (ROOT / "src/trainstone" / folder / file).exists(), f"{folder}/{file} is in README only"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_documents_exist(document: Path):
    for name in re.findall(
        r"`((?:cli|launch|report|train|workloads|measure|models|results|config|machine)/\w+\.\w+)`",
        document.read_text(),
    ):
        assert (ROOT / "src/trainstone" / name).exists(), f"{document.name} names {name}"


def test_every_finding_has_its_section():
    text = (ROOT / "docs/troubleshooting.md").read_text()
    assert re.findall(r"^### ([a-z-]+)$", text, re.MULTILINE) == list(CODES)


def test_every_result_key_is_documented():
    from trainstone.results.schema import Result

    text = (ROOT / "docs/results-format.md").read_text()
    missing = [name for name in Result.model_fields if f"`{name}`" not in text and f"`{name}[]`" not in text]
    assert not missing
