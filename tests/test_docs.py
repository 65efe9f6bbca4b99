"""The documentation matches the code.

README's commands run, and the real command line parses every command of a docs page. The tree in README is the source
tree; links and their anchors exist. The flag tables of docs/how-to/move-from-*.md are the records that the program
reads, and the command lines shown there work.
"""

import itertools
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from support.builders.checkpoints import make_checkpoint
from support.builders.command_lines import find_verb, mlperf_words, parse_printed_commands, parse_words
from support.builders.mlperf_logs import write_closed_log
from support.processes.command import ROOT, narrow_arguments
from trainstone.config.load import list_shipped
from trainstone.models.resnet import build_resnet
from trainstone.originals.command_line.reader import Flag, read_table
from trainstone.originals.command_line.translate import ORIGINALS, read_key, translate

README = (ROOT / "README.md").read_text()
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*ROOT.glob("*.md"), *PAGES, ROOT / "benchmarks/README.md"]


def shell_lines(text: str = README) -> list[str]:
    """Return the command lines of a page's sh blocks, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
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


DOCUMENTED = [
    pytest.param(line, id=f"{page.stem}: {line}")
    for page in PAGES
    for line in shell_lines(page.read_text())
    if re.search(r"(?:^| )(?:trainstone|make) ", line)
]


@pytest.mark.parametrize("line", DOCUMENTED)
def test_command_of_a_page_is_parsed_by_the_command_line(line: str):
    """Also behind a launcher (srun ... trainstone train) and in a shell loop."""
    if line.startswith("make "):
        test_readme_make_targets_exist(line)
        return
    command = re.search(r"(?:^| )trainstone ([^;>|]*)", line)
    assert command is not None, line
    parse_words(shlex.split(command[1].replace("$seed", "1")))


def test_pages_show_many_commands():
    assert len(DOCUMENTED) > 60


def test_readme_tree_is_the_folder():
    tree = README[README.index("```text\nsrc/trainstone/") :]
    named = set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE))
    there = {p.name for p in (ROOT / "src/trainstone").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert named == there
    for folder, text in re.findall(r"^  (\w+)/ +(.*)$", tree, re.MULTILINE):
        for file in re.findall(r"\b(\w+\.py)\b", text):
            assert (ROOT / "src/trainstone" / folder / file).exists(), f"{folder}/{file} is in README only"


def list_anchors(document: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_files_named_in_documents_exist(document: Path):
    text = document.read_text()
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if not target.startswith(("http:", "https:")):
            path = document.parent / target if target else document
            assert path.exists(), f"{document.name} links to {target}"
            assert not anchor or anchor in list_anchors(path), f"{document.name} links to {target}#{anchor}"
    packages = "|".join(sorted(path.parent.name for path in (ROOT / "src/trainstone").glob("*/__init__.py")))
    for name in re.findall(rf"`((?:{packages})/[\w/]+\.\w+)`", text):
        assert (ROOT / "src/trainstone" / name).exists(), f"{document.name} names {name}"


HEAD = "| old | default there | here | remark |"


def page_row(flag: Flag) -> str:
    """A row of the table that explains a flag or variable."""
    default = f"`{flag.default}`" if flag.default else "–"
    remark = "; ".join(filter(None, (flag.remark, f"allowed: {', '.join(flag.choices)}" if flag.choices else "")))
    return f"| `{flag.old}` | {default} | {flag.equivalent or '–'} | {remark} |"


def read_page(original: str) -> str:
    return (ROOT / "docs/how-to" / f"move-from-{original}.md").read_text()


@pytest.mark.parametrize("original", ORIGINALS)
def test_tables_of_flags_are_the_records(original: str):
    tables = re.findall(
        rf"^{re.escape(HEAD)}\n\|---\|---\|---\|---\|\n((?:\|.*\n)+)", read_page(original), re.MULTILINE
    )
    assert [row for table in tables for row in table.splitlines()] == [page_row(flag) for flag in read_table(original)]


@pytest.mark.parametrize("original", ORIGINALS)
def test_lines_that_the_pages_show_work(original: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("config_DGXA100.sh").write_text("\n".join(f"export {word}" for word in mlperf_words("dgxa100")))
    lines = re.findall(rf"^trainstone recipes --from {original} -- (.*?)(?: > .*)?$", read_page(original), re.MULTILINE)
    assert lines
    for line in lines:
        message = translate(original, shlex.split(line))
        assert message.command
        parse_printed_commands(message)


@pytest.mark.parametrize("original", ORIGINALS)
def test_commands_that_the_pages_name_are_the_command_line_s(original: str):
    page = read_page(original)
    texts = [*re.findall(r"`([^`\n]+)`", page), *re.findall(r"^trainstone .*", page, re.MULTILINE)]
    commands = [command.strip() for text in texts for command in re.findall(r"\btrainstone [^;>#|]*", text)]
    assert len(commands) > 5
    for command in commands:
        words = shlex.split(re.sub(r"(?<![\w.-])(N|NODES|BATCH|\$seed)$|(?<= )(N|NODES|\$seed)(?= )", "1", command))[1:]
        if find_verb(words)[1]:
            parse_words(words)


def test_a_page_has_what_the_names_of_scripts_for_a_dgx1_mean():
    rows = dict(
        re.findall(r"^\| (?:no )?`(gbn\d?|nhwc|nchw|fp16|amp)` \| (`.*`) \|$", read_page("mlperf-ssd"), re.MULTILINE)
    )
    assert set(rows) == {"gbn", "gbn2", "gbn4", "nhwc", "nchw", "fp16", "amp"}
    for shared, layout, precision in itertools.product(("gbn", "gbn2", "gbn4"), ("nhwc", "nchw"), ("fp16", "amp")):
        name = "_".join(["train_mlperf_dgx1", *([shared] if shared != "gbn" else []), layout, precision])
        config = translate("mlperf-ssd", [f"{name}.sh"]).config
        assert config is not None
        for key, value in re.findall(r"`([\w.]+) = (.*?)`", rows[shared] + rows[layout] + rows[precision]):
            assert read_key(config, key) == json.loads(value), (name, key)


def test_systems_that_the_pages_name_are_shipped():
    shipped = set(list_shipped("systems"))
    for original in ORIGINALS:
        assert set(re.findall(r"--system ([a-z0-9-]+)", read_page(original))) <= shipped
