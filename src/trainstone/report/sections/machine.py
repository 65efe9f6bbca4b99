"""The machine and its software, as they were when the run began."""

from typing import Any

from trainstone.report.blocks import Block, Facts, Section
from trainstone.report.view import RunView


def build(view: RunView) -> Section | None:
    """Everything in machine.json, flat."""
    blocks: list[Block] = []
    for facts in (view.result.machine, view.result.software):
        rows = flatten(facts)
        if rows:
            blocks.append(Facts(rows))
    if not blocks:
        return None
    names = sorted({device.name for device in view.result.devices})
    lead = f"{', '.join(names)} on {view.result.process.host}." if names else ""
    noise = view.result.noise
    if noise:
        lead += f" Noise grade {noise.grade}: {'; '.join(noise.reasons) or 'quiet'}."
    return Section("machine", "Machine", blocks, lead.strip())


def flatten(facts: dict[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Names joined by dots, lists by commas; what is unknown is left out."""
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        label = f"{above}{name}".replace("_", " ")
        if isinstance(value, dict):
            rows += flatten(value, f"{above}{name}.")
        elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
            for number, inner in enumerate(value):
                rows += flatten(inner, f"{above}{name} {number}.") if isinstance(inner, dict) else [(label, str(inner))]
        elif isinstance(value, list):
            rows += [(label, ", ".join(map(str, value)))] if value else []
        elif value is not None:
            rows.append((label, str(value)))
    return rows
