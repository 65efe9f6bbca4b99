"""The house's rules that a machine can keep: import order, torch-free folders, names, sizes."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import ROOT

SOURCE = ROOT / "src/trainstone"
# A folder imports only folders below it, and root modules.
LAYERS = "cli > launch > report > train > workloads > measure > data > models > results > config > machine > formats"
ORDER = LAYERS.split(" > ")
TORCH_FREE = {"cli", "launch", "report", "results", "config", "machine", "formats"}
# Imports torch inside functions only, so that the parent of child runs and the launchers can use it.
LIFECYCLE = "trainstone.flows.lifecycle"
ROOT_MODULES = {"errors", "files", "log", "text", "units", "__init__", "__main__"}
ROOT_NAMES = ROOT_MODULES | {"__version__"}
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path, *, inside_functions: bool) -> Iterator[str]:
    """Modules that a file imports; those under TYPE_CHECKING are never executed and do not count."""
    tree = ast.parse(path.read_text())
    skipped: set[int] = set()
    for node in ast.walk(tree):
        lazy = isinstance(node, ast.FunctionDef) and not inside_functions
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if lazy or typing_only:
            skipped |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folder_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else ""


def test_every_folder_has_its_place_in_the_order():
    folders = {folder_of(path) for path in FILES} - {""}
    assert folders <= set(ORDER)
    assert {path.stem for path in FILES if folder_of(path) == ""} == ROOT_MODULES


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_what_lies_below_it(path: Path):
    folder = folder_of(path)
    if folder == "":
        return
    for module in imports(path, inside_functions=True):
        parts = module.split(".")
        if parts[0] != "trainstone" or len(parts) < 2 or parts[1] in ROOT_NAMES:
            continue
        assert parts[1] in ORDER, f"{path} imports {module}, which is not in the house"
        assert ORDER.index(parts[1]) >= ORDER.index(folder), f"{folder}/ is below {parts[1]}/: {path} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_torch_free_folders_stay_so(path: Path):
    if folder_of(path) == "data" and path != SOURCE / "data/loader.py":
        assert not [module for module in imports(path, inside_functions=True) if module.split(".")[0] == "torch"]
    if folder_of(path) not in TORCH_FREE | {""}:
        return
    for module in imports(path, inside_functions=folder_of(path) != "cli"):
        assert module.split(".")[0] != "torch", f"{path} imports torch"
        parts = module.split(".")
        if parts[0] == "trainstone" and len(parts) > 1 and parts[1] in ORDER and not module.startswith(LIFECYCLE):
            assert parts[1] in TORCH_FREE, f"{path} imports {module}, which is not torch-free"


def test_lifecycle_does_not_import_torch():
    code = f"import sys, {LIFECYCLE}, trainstone.flows.sweep.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom trainstone.cli.main import app\n"
        "try:\n    app(['bench', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'altair', 'psutil'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_say_what_they_are_and_keep_their_size(path: Path):
    text = path.read_text()
    assert path.stem not in {"utils", "common", "helper", "helpers", "misc", "manager", "base"}
    if path.name != "__init__.py" or folder_of(path) == "":
        assert ast.get_docstring(ast.parse(text)), f"{path} does not say what it does"
    else:
        assert text == "", f"{path} re-exports; import by full path instead"
    assert text.count("\n") <= 600, f"{path} is about more than one thing"


def test_functions_stay_readable():
    long = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno > 60:
                long.append(f"{path.name}:{node.name}")
    assert not long
