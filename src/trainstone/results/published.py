"""Published training speeds (published.toml): load them, and find those that fit a result."""

import re
import tomllib
from functools import lru_cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import Field

from trainstone.config.schema import ConfigSection
from trainstone.errors import ResultError
from trainstone.results.schema.run import ComparisonRow, Result
from trainstone.units import count_decimals, format_percent, format_share

PUBLISHED = "published"  # --to published: all figures that fit
# Words that make a name another device: a figure for a 3090 does not fit a 3090 Ti.
VARIANTS = frozenset({"ti", "super", "pcie", "nvl", "laptop", "mobile", "max", "ada"})


class PublishedFigure(ConfigSection):
    """A published training speed; an absent key was not given by the source."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$")]  # the argument of --to
    workload: Literal["classify", "detect"]
    model: Literal["resnet50", "ssd300"]  # ResNet-50 v1.5 at 224 pixels, or SSD at 300
    device: str  # short name; its words must all be in the full device name
    devices: Annotated[int, Field(ge=1)]  # number of devices
    images_per_second: Annotated[float, Field(gt=0)]  # total of all devices
    precision: str | None = None  # as the source calls it
    batch: Annotated[int, Field(ge=1)] | None = None  # images per device and step
    stack: str  # framework, container, machine
    whole_run: bool = False  # images / time of the whole run, evaluation included, as in MLPerf
    note: str | None = None  # what else the source says
    source: str  # repository and file, or result log

    @property
    def per_device(self) -> float:
        return self.images_per_second / self.devices

    @property
    def kind(self) -> str:
        return f"{self.devices} × {self.device}" if self.devices > 1 else self.device

    @property
    def title(self) -> str:
        return ", ".join(part for part in (self.kind, self.precision, self.stack) if part)


@lru_cache(maxsize=1)
def load_figures() -> tuple[PublishedFigure, ...]:
    text = (resources.files("trainstone.results") / "published.toml").read_text(encoding="utf-8")
    return tuple(PublishedFigure.model_validate(entry) for entry in tomllib.loads(text)["figure"])


def find_figures(result: Result) -> list[PublishedFigure]:
    """Return the figures for the model that this result trained; none for an evaluation."""
    if result.kind == "eval":
        return []
    model, size = result.config.get("model", {}), result.config.get("data", {}).get("image_size")
    trained = (result.config.get("workload"), model.get("name"), size, model.get("depth"))
    name = "resnet50" if trained == ("classify", "resnet", 224, 50) else None
    # MLPerf's SSD; the figures do not apply to narrower networks.
    name = "ssd300" if (*trained, model.get("width")) == ("detect", "ssd", 300, 34, 64) else name
    return [figure for figure in load_figures() if figure.model == name]


def find_device_figures(result: Result) -> list[PublishedFigure]:
    if not result.devices:
        return []
    here = _words(result.devices[0].name)
    named = [(figure, _words(figure.device)) for figure in find_figures(result)]
    return [figure for figure, words in named if words <= here and not (here - words) & VARIANTS]


def choose_figures(name: str, result: Result) -> list[PublishedFigure]:
    known = find_figures(result)
    if not known:
        model, size = result.config.get("model", {}), result.config.get("data", {}).get("image_size")
        trained = f"{result.recipe.name} (model.depth = {model.get('depth')}, data.image_size = {size})"
        hint = "measure one of them: trainstone bench resnet50, trainstone bench ssd300-mlperf"
        message = f"no published figures for {trained}; available: ResNet-50 at 224 pixels, SSD at 300 pixels"
        raise ResultError(message, hint=hint)
    chosen = known if name == PUBLISHED else [figure for figure in known if figure.id == name]
    if not chosen:
        hint = f"figures for this model: {', '.join(figure.id for figure in known)}"
        message = f"published figure {name!r} is for another model than {result.recipe.name}"
        raise ResultError(message, hint=hint)
    return chosen


def is_figure_id(name: str) -> bool:
    return name == PUBLISHED or any(figure.id == name for figure in load_figures())


def is_published(row: ComparisonRow) -> bool:
    return not row.b.runs


def describe_share(row: ComparisonRow) -> str:
    """Format e.g. 71.0 % (70.3 … 71.7 %); a narrow interval gets one digit more than format_share."""
    if row.ci95 is None:
        return format_share(row.ratio)
    digits = count_decimals(100 * row.ratio, 2)
    digits += 10**-digits > 50 * (row.ci95[1] - row.ci95[0])
    low, high = (format_percent(end, digits) for end in row.ci95)
    return f"{format_percent(row.ratio, digits)} ({low.removesuffix(' %')} … {high})"


def _words(name: str) -> frozenset[str]:
    """Split a name into lower-case words; 80GB becomes 80, and SXM is dropped, since names often omit it."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return frozenset(re.sub(r"^(\d+)gb$", r"\1", word) for word in words if not word.startswith("sxm"))
