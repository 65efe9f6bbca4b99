"""Rules of the layout that a machine can check, from one parse of the source: package order, cycles, sizes, names.

docs/architecture.md says why each rule is there.
"""

import ast
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from support.processes.command import ROOT

SOURCE = ROOT / "src/trainstone"
# A package imports only packages after it, and root modules.
ORDER = (
    *("cli", "launch", "report", "flows", "originals", "engine", "workloads", "measure", "data", "models", "trace"),
    *("results", "stats", "config", "machine", "formats"),
)
TORCH_FREE = {"cli", "launch", "report", "trace", "results", "stats", "config", "machine", "formats", "data"}
# Of the other packages: parents of child runs, and the readers of old command lines.
TORCH_FREE_MODULES = (
    "flows.lifecycle",
    "flows.child_runs",
    "flows.sweep",
    "flows.profile.ncu",
    "originals.command_line",
)
NEEDS_TORCH = ("data.loader",)
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 600, 60, 7
ONCE_AN_ORIGINAL = "command_line"  # one for each, in its folder
# Keyword options of a network and of charts, as torchvision's and Altair's have them, and torch's own signature.
MANY_PARAMETERS = {"models.resnet.build_resnet", "report.charts.bar_chart", "report.charts.share_bars"}
MANY_PARAMETERS |= {"engine.sync_batch_norm.forward"}
COMMON_NAMES = {"run", "result", "__init__", ONCE_AN_ORIGINAL}


class Module(NamedTuple):
    name: str
    """Without `trainstone.`; empty for the root package."""
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package below trainstone; empty for root modules."""
        return self.name.split(".")[0] if len(self.path.relative_to(SOURCE).parts) > 1 else ""


def parse(path: Path) -> Module:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    text = path.read_text()
    return Module(".".join(part for part in parts if part != "__init__"), path, text, ast.parse(text))


MODULES = {module.name: module for module in map(parse, sorted(SOURCE.rglob("*.py")))}


def list_imports(module: Module, *, inside_functions: bool = True) -> Iterator[str]:
    """Yield what a module imports; what stands under TYPE_CHECKING is never executed and does not count."""
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        lazy = isinstance(node, ast.FunctionDef) and not inside_functions
        if lazy or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            skipped |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(module.tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full.removeprefix("trainstone.") in MODULES else node.module or ""


def find_imported(module: Module) -> set[str]:
    """Return the modules of trainstone that a module imports, function-level imports included."""
    found = {name.removeprefix("trainstone.") for name in list_imports(module) if name.startswith("trainstone.")}
    assert found <= MODULES.keys(), f"{module.path} imports {found - MODULES.keys()}"
    return found - {module.name}


GRAPH = {name: find_imported(module) for name, module in MODULES.items()}


def test_packages_have_their_place_in_the_order():
    assert {module.package for module in MODULES.values()} - {""} == set(ORDER)


@pytest.mark.parametrize("name", [name for name, module in MODULES.items() if module.package])
def test_module_imports_only_what_is_below_it(name: str):
    place = ORDER.index(MODULES[name].package)
    for imported in GRAPH[name]:
        package = MODULES[imported].package
        assert not package or ORDER.index(package) >= place, f"{name} imports {imported}, which is above it"


def test_no_two_modules_import_each_other():
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as err:
        pytest.fail(f"import cycle: {' <- '.join(err.args[1])}")


def test_every_module_is_reached_from_an_entry_point():
    entries = {name for name, module in MODULES.items() if 'if __name__ == "__main__"' in module.text}
    reached, waiting = set[str](), entries
    while waiting:
        reached |= waiting
        waiting = {name for done in waiting for name in GRAPH[done]} - reached
    unused = {name for name, module in MODULES.items() if module.path.name != "__init__.py"} - reached
    assert unused == set()


def is_torch_free(module: Module) -> bool:
    named = module.name.startswith(TORCH_FREE_MODULES)
    return (module.package in TORCH_FREE | {""} or named) and module.name not in NEEDS_TORCH


def test_torch_free_modules_load_without_torch():
    names = [f"trainstone.{name}".rstrip(".") for name, module in MODULES.items() if is_torch_free(module)]
    code = f"import importlib, sys\nfor name in {names}:\n    importlib.import_module(name)\n"
    code += "    if 'torch' in sys.modules: sys.exit(f'{name} imports torch')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name, module in MODULES.items() if is_torch_free(module)])
def test_torch_free_packages_import_no_torch_inside_functions(name: str):
    if MODULES[name].package not in {"cli", "flows"}:
        assert not [found for found in list_imports(MODULES[name]) if found.split(".")[0] == "torch"]


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom trainstone.cli.main import app\n"
        "try:\n    app(['bench', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'altair', 'psutil'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("name", MODULES)
def test_files_say_what_they_are_and_keep_their_size(name: str):
    path, text = MODULES[name].path, MODULES[name].text
    assert path.stem not in {"utils", "common", "helper", "helpers", "misc", "manager", "base"}
    if path.name != "__init__.py" or not name:
        assert ast.get_docstring(MODULES[name].tree), f"{path} does not say what it does"
    else:
        assert text == "", f"{path} re-exports; import by full path instead"
    assert text.count("\n") <= MAX_FILE_LINES, f"{path} is about more than one thing"


def list_functions() -> Iterator[tuple[Module, ast.FunctionDef]]:
    for module in MODULES.values():
        yield from ((module, node) for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))


def test_functions_stay_readable():
    long = [
        f"{module.name}.{node.name}"
        for module, node in list_functions()
        if (node.end_lineno or 0) - node.lineno > MAX_FUNCTION_LINES
    ]
    assert long == []


def count_parameters(function: ast.FunctionDef) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] == ["self"])


def test_functions_have_few_parameters():
    many = {
        f"{module.name}.{node.name}"
        for module, node in list_functions()
        if count_parameters(node) > MAX_PARAMETERS and not module.name.startswith("cli.")
    }
    assert many == MANY_PARAMETERS


def test_file_names_occur_at_most_twice():
    stems = Counter(module.path.stem for module in MODULES.values())
    assert [stem for stem, count in stems.items() if count > 2 and stem not in COMMON_NAMES] == []


def test_class_names_occur_once():
    places = defaultdict(list)
    for module in MODULES.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    "package", sorted({str(module.path.parent.relative_to(SOURCE)) for module in MODULES.values()})
)
def test_architecture_document_names_every_package(package: str):
    assert package == "." or f"{package}/" in (ROOT / "docs/architecture.md").read_text()


MUTANTS = tomllib.loads((ROOT / "tests/mutants/mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["id"])
def test_mutant_quotes_code_that_exists_once(mutant: dict[str, str]):
    assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1
