"""A page's charts as PNG, SVG or PDF files for papers, in the light theme, without a browser."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

from trainstone.errors import ResultError
from trainstone.report.blocks import Figure
from trainstone.report.page import read_template

WIDTH = 640
PNG_SCALE = 2.0


def export_figures(figures: Sequence[Figure], folder: Path, kind: str) -> list[Path]:
    """Write every chart to folder/<name>.<kind>; return the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_export(figure, folder / f"{figure.name}.{kind}", kind) for figure in figures]
    except OSError as err:
        raise ResultError(f"cannot write figures into {folder}: {err.strerror or err}") from err


def _export(figure: Figure, path: Path, kind: str) -> Path:
    spec = prepare(figure.spec)
    try:
        if kind == "svg":
            path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
        elif kind == "png":
            path.write_bytes(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE))
        else:
            path.write_bytes(vl_convert.vegalite_to_pdf(spec))
    except ValueError as err:
        raise ResultError(f"chart {figure.name} cannot be drawn as {kind}: {err}") from err
    return path


def prepare(spec: dict[str, Any]) -> dict[str, Any]:
    """Give a chart a width and the light theme's colours instead of the page's variables; white behind it."""
    text = json.dumps(spec)
    for name, value in read_colours().items():
        text = text.replace(f"var({name})", value)
    fixed: dict[str, Any] = json.loads(text.replace('"width": "container"', f'"width": {WIDTH}'))
    fixed["config"] = fixed["config"] | {"background": "white", "font": "DejaVu Sans, Arial, sans-serif"}
    return fixed


def read_colours() -> dict[str, str]:
    """Return the light theme's variables, from the style sheet that defines them."""
    light = read_template("style.css").partition(":root {")[2].partition("}")[0]
    return dict(re.findall(r"(--[a-z0-9-]+): ([^;]+);", light))
