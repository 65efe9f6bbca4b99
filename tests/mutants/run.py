"""Run the mutants of mutants.toml against the unit tests: `make mutants`, or `python tests/mutants/run.py [ID ...]`.

A mutant changes one operator or constant. Tests that still pass with it do not check that line. The working tree is
never changed: each worker has a temporary copy of the repository and a virtual environment that imports that copy.

caught    a test fails, crashes or hangs
survived  every test of the package passes
gone      `old` does not occur exactly once in the file: update the entry, or delete it

The exit code is 1 if fewer are caught than mutants.toml records. `--record` writes the outcomes into mutants.toml.
"""

import argparse
import importlib.util
import os
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen, TimeoutExpired, check_output

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
TEST_SECONDS, PACKAGE_SECONDS = 180, 1800  # a test or package that takes longer counts as hanging
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
running: set[Popen[bytes]] = set()


class Copy:
    """A copy of the repository, with a Python that imports it. PYTHONPATH is not enough: some tests replace it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / ".venv/bin/python"
        for name in ("src", "tests", "docs"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        venv.create(folder / ".venv", symlinks=True)
        (packages,) = folder.glob(".venv/lib/python*/site-packages")
        # .pth files are not followed recursively: the real src stays invisible.
        (packages / "copy.pth").write_text(f"{folder / 'src'}\n{sysconfig.get_path('purelib')}\n")
        used = check_output([self.python, "-c", "import trainstone; print(trainstone.__file__)"], cwd="/", text=True)
        assert Path(used).is_relative_to(folder), f"{self.python} imports {used}"

    def run_tests(self, tests: list[str], *options: str) -> tuple[int, str]:
        """Run tests; return the exit code of pytest, negative if it crashed or was killed, and its output."""
        command = [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        command += ["-o", f"faulthandler_timeout={TEST_SECONDS}", "-o", "faulthandler_exit_on_timeout=true"]
        command += ["--hypothesis-profile=ci", *tests]  # the same examples each time, and no deadline on a busy machine
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder.parent)}
        env.pop("TRAINSTONE_REAL_DATA", None)  # optional data would make outcomes depend on the machine
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            child = Popen(command, cwd=self.folder, env=env, stdout=output, stderr=output, start_new_session=True)
            running.add(child)
            try:
                child.wait(PACKAGE_SECONDS)
            except TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
            running.discard(child)
            output.seek(0)
            return child.wait(), output.read()

    def try_mutant(self, mutant: dict[str, str]) -> tuple[str, str]:
        """Run the tests of a mutant's package up to the first failure; return the outcome and the test that failed."""
        path = self.folder / mutant["file"]
        text = path.read_text() if path.exists() else ""
        if text.count(mutant["old"]) != 1:
            return "gone", ""
        self.write(path, text.replace(mutant["old"], mutant["new"]))
        code, output = self.run_tests(self.order_tests(mutant), "-x")
        self.write(path, text)
        if code in (3, 4, 5):  # an error of pytest, wrong options, no tests
            raise RuntimeError(f"{mutant['id']}: pytest ended with exit code {code}\n{output[-2000:]}")
        found = FAILED.search(output)
        return ("caught", found[1] if found else f"exit code {code}") if code else ("survived", "")

    def order_tests(self, mutant: dict[str, str]) -> list[str]:
        """Return all test files of the package: first those named like the module, then those that import it."""
        *package, stem = Path(mutant["file"]).with_suffix("").parts[1:]
        imports = re.compile(rf"from {'.'.join(package)}(\.| import .*\b){stem}\b")
        folders = map(self.folder.joinpath, mutant["tests"].split())
        files = [file for folder in folders for file in sorted(folder.rglob("test_*.py"))]
        files.sort(key=lambda file: (stem not in file.stem, not imports.search(file.read_text())))
        return [str(file.relative_to(self.folder)) for file in files]

    def write(self, path: Path, text: str) -> None:
        """Write a source file and delete its .pyc, which would look up to date with equal size and time."""
        path.write_text(text)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def run_mutants(mutants: list[dict[str, str]], copies: list[Copy]) -> dict[str, tuple[str, str]]:
    """Run all mutants, one at a time in each copy; print and return their outcomes with the tests that failed."""
    rest, outcomes = iter(todo := list(mutants)), dict[str, tuple[str, str]]()

    def work(copy: Copy) -> None:
        for mutant in rest:
            began = time.monotonic()
            outcome, test = outcomes[mutant["id"]] = copy.try_mutant(mutant)
            changed = "" if outcome == mutant["outcome"] else f" (recorded: {mutant['outcome']})"
            if todo:  # not interrupted
                print(f"{outcome:8} {time.monotonic() - began:4.0f} s  {mutant['id']:26} {test}{changed}", flush=True)

    with ThreadPoolExecutor(len(copies)) as pool:
        try:
            list(pool.map(work, copies))
        finally:  # after an error or Ctrl-C some tests are still running
            todo.clear()
            for child in list(running):
                os.killpg(child.pid, signal.SIGKILL)
    return outcomes


def main() -> int:
    """Run the mutants named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help="Mutants to run (default: all).")
    parser.add_argument("--record", action="store_true", help="Write the outcomes into mutants.toml.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    text = LIST.read_text()
    mutants = [one for one in tomllib.loads(text)["mutant"] if not arguments.ids or one["id"] in arguments.ids]
    if unknown := set(arguments.ids) - {mutant["id"] for mutant in mutants}:
        parser.error(f"unknown mutants: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)  # some tests act as another user
        copies = [Copy(Path(folder, str(number))) for number in range(2)]
        outcomes = run_mutants(mutants, copies)
        tests = sorted({test for _, test in outcomes.values() if ".py" in test})
        broken = FAILED.findall(copies[0].run_tests(tests)[1]) if tests else []
    for test in broken:
        print(f"{test} also fails without a mutant: it does not count")
    names = {id_: "survived" if test in broken else name for id_, (name, test) in outcomes.items()}
    if arguments.record:
        for id_ in (id_ for id_, name in names.items() if name != "gone"):
            text = re.sub(rf'(?m)(^id = "{id_}"\n(?:.+\n)*?outcome = )"\w+"', rf'\g<1>"{names[id_]}"', text)
        LIST.write_text(text)
    counts, recorded = Counter(names.values()), Counter(mutant["outcome"] for mutant in mutants)["caught"]
    print(f"{counts['caught']} caught ({recorded} recorded), {counts['survived']} survived, {counts['gone']} gone")
    return int(counts["caught"] < recorded)


if __name__ == "__main__":
    sys.exit(main())
