"""How to repeat it, how it was got, and the raw data."""

from trainstone.report.blocks import Block, Code, Facts, Links, Section
from trainstone.report.view import RunView
from trainstone.results.summary import describe_repeat

CONTENTS = {
    "result.json": "all numbers, with the configuration and the machine",
    "config.toml": "the resolved recipe",
    "machine.json": "machine facts",
    "log.txt": "what the program logged",
}
MAX_LINKS = 60
MAX_CONFIG_BYTES = 200_000


def build(view: RunView) -> Section | None:
    """Command, files, configuration."""
    result = view.result
    facts = [
        ("run", result.run_id),
        ("recipe", f"{result.recipe.name} v{result.recipe.version}, {result.recipe.sha256[:12]}"),
        ("started", result.process.started_utc),
        ("status", result.status),
        ("command", result.command),
    ]
    blocks: list[Block] = [Facts(facts)]
    config = read_config(view)
    if config:
        blocks.append(Code("Repeat it", describe_repeat(result, view.path)))
    rows = [(view.address(name), describe(name)) for name in list_files(view)]
    if rows:
        blocks.append(Links(rows))
    if config:
        blocks.append(Code("Configuration", config, folded=True))
    return Section("repeat", "Repeat it, and raw data", blocks)


def read_config(view: RunView) -> str:
    """Return config.toml as it stands; nothing where it is missing, damaged or absurdly long."""
    file = view.path / "config.toml"
    try:
        return file.read_text(encoding="utf-8") if file.stat().st_size <= MAX_CONFIG_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return ""


def list_files(view: RunView) -> list[str]:
    """Files of the run itself; those of its points are linked from their own pages."""
    names = [
        path.relative_to(view.path).as_posix()
        for folder in (view.path, view.path / "original", view.path / "trace", view.path / "launch")
        for path in sorted(folder.glob("*"))
        if path.is_file() and path.name != "report.html" and not path.name.endswith(".partial")
    ]
    return names[:MAX_LINKS]


def describe(name: str) -> str:
    """Say what a file holds."""
    if name in CONTENTS:
        return CONTENTS[name]
    if name.startswith("steps-rank"):
        return "every step"
    return "telemetry" if name.startswith("telemetry-") else ""
