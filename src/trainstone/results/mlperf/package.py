"""A submission's folder as MLPerf wants it: results/, systems/, benchmarks/. Planned first; written whole or not."""

import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.files import dump_json
from trainstone.results.mlperf.alike import check_alike, check_number
from trainstone.results.mlperf.find import LOG_NAME, find_run_logs
from trainstone.results.mlperf.logged import LoggedRun, read_logged
from trainstone.results.mlperf.repeating import write_readme, write_script
from trainstone.results.mlperf.system import describe_system, list_unknown
from trainstone.results.store import read_result
from trainstone.text import printable

HINT = "trainstone train RECIPE --runs 5, and give its run folder"


@dataclass(frozen=True)
class Plan:
    """What will be written."""

    system: str
    """Name of the system in files and folders."""
    runs: tuple[LoggedRun, ...]
    fields: Mapping[str, str]
    """The system's description."""
    files: Mapping[str, str | Path]
    """Relative name -> text, or the file to copy."""

    @property
    def unknown(self) -> list[str]:
        """Fields of the description that nobody has told."""
        return list_unknown(self.fields)


def make_plan(given: Sequence[Path], told: Mapping[str, str], name: str | None = None) -> Plan:
    """Plan the package of runs, or of the points of one; `told` are fields of the system's description."""
    logs = [log for run in given for log in _find_logs(run)]
    if len({log.resolve() for log in logs}) < len(logs):
        raise ConfigError("the same run is given twice", hint="each result is a run of its own, with its own seed")
    runs = tuple(read_logged(log) for log in logs)
    results = [read_result(log.parent) for log in logs]
    check_alike(runs, results)
    check_number(runs)
    first = runs[0]
    system = slug(name or first.platform or "system")
    benchmark = first.benchmark or ""
    if not re.fullmatch(r"[a-z0-9_]{1,40}", benchmark):
        raise DataError(f"{printable(str(first.path))} does not say which benchmark of MLPerf it is", hint=HINT)
    fields = describe_system(first, results[0], told)
    code = f"benchmarks/{benchmark}/implementations/{system}"
    files: dict[str, str | Path] = {
        f"results/{system}/{benchmark}/result_{number}.txt": run.path for number, run in enumerate(runs)
    }
    files[f"systems/{system}.json"] = dump_json(fields)
    files[f"{code}/README.md"] = write_readme(runs, results)
    files[f"{code}/run_and_time.sh"] = write_script(runs, results)
    config = first.path.parent / "config.toml"
    return Plan(system, runs, fields, files | ({f"{code}/config.toml": config} if config.is_file() else {}))


def write_package(plan: Plan, out: Path) -> None:
    """Write the folder under another name and move it into its place; nothing there is overwritten."""
    shown = printable(str(out))
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise ResultError(f"{shown} is there already and is left alone", hint="choose another folder with --out DIR")
    partial = out.with_name(f"{out.name}.{secrets.token_hex(4)}.partial")
    try:
        for name, content in plan.files.items():
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, target)
            else:
                target.write_text(content, encoding="utf-8", errors="backslashreplace")
            if target.suffix == ".sh":
                target.chmod(0o755)
        partial.replace(out)
    except OSError as err:
        raise ResultError(f"cannot write {shown}: {err.strerror or err}", hint="choose another --out DIR") from err
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def slug(name: str) -> str:
    """Return a name that files, folders and patterns of file names bear."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:100] or "system"


def _find_logs(run: Path) -> list[Path]:
    if not run.is_dir():
        raise ResultError(f"{printable(str(run))} is no run folder", hint=HINT)
    logs = find_run_logs(run)
    if not logs:
        raise ResultError(f"no {LOG_NAME} in {printable(str(run))} or in its points/", hint=HINT)
    return logs
