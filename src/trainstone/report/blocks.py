"""The blocks and sections of a page as records; templates/page.html.j2 renders them.

Blocks hold plain text, never HTML: the template escapes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainstone.results.schema.run import Finding
from trainstone.results.tables import Table as Table  # a table is also a block


@dataclass(frozen=True)
class FactsBlock:
    """Names and values as a description list, or as tiles if `big`."""

    rows: Sequence[tuple[str, str]]
    big: bool = False
    kind: str = "facts"


@dataclass(frozen=True)
class Figure:
    """A chart (a Vega-Lite spec, see report/charts.py) with its alt text and its data as a table."""

    name: str  # for file names and anchors
    title: str
    alt: str
    spec: dict[str, Any]
    data: Table | None = None
    kind: str = "figure"


@dataclass(frozen=True)
class CodeBlock:
    """Preformatted text to copy; collapsed if `folded`."""

    title: str
    text: str
    folded: bool = False
    kind: str = "code"


@dataclass(frozen=True)
class Links:
    rows: Sequence[tuple[str, str]]
    kind: str = "links"


@dataclass(frozen=True)
class FindingsBlock:
    rows: Sequence[Finding]
    kind: str = "findings"


@dataclass(frozen=True)
class Prose:
    text: str
    kind: str = "prose"


@dataclass(frozen=True)
class Outline:
    """A box on an image, in pixels, with its label."""

    left: float
    top: float
    width: float
    height: float
    text: str
    look: str = ""  # CSS class: truth, correct or wrong; empty for a plain box
    score: float | None = None  # confidence; a gallery with min_score hides lower ones
    tag: str = ""  # text on the image, which starts at tag_left with its baseline at tag_base
    tag_left: float = 0.0
    tag_base: float = 0.0


@dataclass(frozen=True)
class Image:
    """A small image with its caption; `jpeg_base64` holds nothing but base64."""

    jpeg_base64: str
    width: int
    height: int
    title: str
    note: str = ""
    outlines: Sequence[Outline] = ()
    alt: str = ""  # alt text; empty: the title
    num_true: int = 0
    num_correct: int = 0  # correct detections with at least min_score
    letter_height: float = 0.0  # font size of tags in pixels of the image


@dataclass(frozen=True)
class Gallery:
    rows: Sequence[Image]
    min_score: float | None = None
    """Show larger images with detections of at least this score; the reader can change it. None: plain images."""
    kind: str = "gallery"


def drop_empty(facts: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Return the rows of a FactsBlock; facts without a value are skipped."""
    return [(name, text) for name, text in facts.items() if text]


Block = FactsBlock | Table | Figure | CodeBlock | Links | FindingsBlock | Prose | Gallery


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: Sequence[Block]
    lead: str = ""  # one sentence below the title
