"""What a page is made of: sections of a few kinds of blocks. A section's file chooses; templates/page.html.j2 draws.

Plain text everywhere: escaping is the template's work, so a block never holds HTML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainstone.results.schema.run import Finding
from trainstone.results.tables import Table as Table  # a block, too


@dataclass(frozen=True)
class FactsBlock:
    """Names and values, as a description list; `big` ones are shown as tiles."""

    rows: Sequence[tuple[str, str]]
    big: bool = False
    kind: str = "facts"


@dataclass(frozen=True)
class Figure:
    """A chart (Vega-Lite, report/charts.py) with the sentence that tells it to who cannot see it, and its data."""

    name: str  # for file names and anchors
    title: str
    alt: str
    spec: dict[str, Any]
    data: Table | None = None
    kind: str = "figure"


@dataclass(frozen=True)
class CodeBlock:
    """Text in a fixed font, to be copied; folded away when it is long."""

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
    """A box on an image, in its pixels, and what is in it."""

    left: float
    top: float
    width: float
    height: float
    text: str
    look: str = ""  # how it is drawn: true, right or wrong; otherwise as a plain box
    score: float | None = None  # how sure it is: in a gallery with min_score, less sure ones are hidden
    tag: str = ""  # what stands on the image, its first letter at tag_left, its base line at tag_base
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
    alt: str = ""  # what is to be seen; the title where there is nothing more to say
    num_true: int = 0
    num_right: int = 0  # right outlines that are shown at first
    letter_height: float = 0.0  # of tags, in the image's pixels


@dataclass(frozen=True)
class Gallery:
    rows: Sequence[Image]
    min_score: float | None = None
    """Larger images of true, right and wrong boxes, of which the less sure are hidden; the reader can move it."""
    kind: str = "gallery"


def keep_known(facts: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Return the rows of Facts: what has no value is left out."""
    return [(name, text) for name, text in facts.items() if text]


Block = FactsBlock | Table | Figure | CodeBlock | Links | FindingsBlock | Prose | Gallery


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: Sequence[Block]
    lead: str = ""  # one sentence that says what there is to see
