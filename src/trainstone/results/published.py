"""Published training speeds (published.toml) to hold a run against: which there are, and which fit a result."""

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

PUBLISHED = "published"  # the word for all that fit
# Words of a device's name that make it another device: a figure of a 3090 is none of a 3090 Ti.
VARIANTS = frozenset({"ti", "super", "pcie", "nvl", "laptop", "mobile", "max", "ada"})


class Anchor(ConfigSection):
    """One published figure; an absent key was not given."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$")]  # what to type after --to
    workload: Literal["classify", "detect"]  # what is trained
    model: Literal["resnet50", "ssd300"]  # ResNet-50 v1.5 at 224 pixels, or SSD at 300
    device: str  # as people call it; its words are looked for in a device's full name
    devices: Annotated[int, Field(ge=1)]  # how many took part
    images_per_second: Annotated[float, Field(gt=0)]  # of all devices together
    precision: str | None = None  # as the source calls it
    batch: Annotated[int, Field(ge=1)] | None = None  # images a device and step
    stack: str  # framework, container, machine
    whole_run: bool = False  # images over the time of a whole run, evaluation included, as in MLPerf
    note: str | None = None  # what else the source says
    source: str  # where it stands

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
def load_anchors() -> tuple[Anchor, ...]:
    text = (resources.files("trainstone.results") / "published.toml").read_text(encoding="utf-8")
    return tuple(Anchor.model_validate(entry) for entry in tomllib.loads(text)["anchor"])


def anchors_for(result: Result) -> list[Anchor]:
    """Return the figures of the model that this result trained, or none: they are all of training."""
    if result.kind == "eval":
        return []
    model, size = result.config.get("model", {}), result.config.get("data", {}).get("image_size")
    trained = (result.config.get("workload"), model.get("name"), size, model.get("depth"))
    name = "resnet50" if trained == ("classify", "resnet", 224, 50) else None
    # SSD as MLPerf's; on narrower networks the figures say nothing.
    name = "ssd300" if (*trained, model.get("width")) == ("detect", "ssd", 300, 34, 64) else name
    return [anchor for anchor in load_anchors() if anchor.model == name]


def matching_device(result: Result) -> list[Anchor]:
    if not result.devices:
        return []
    here = _words(result.devices[0].name)
    named = [(anchor, _words(anchor.device)) for anchor in anchors_for(result)]
    return [anchor for anchor, words in named if words <= here and not (here - words) & VARIANTS]


def choose_anchors(name: str, result: Result) -> list[Anchor]:
    known = anchors_for(result)
    if not known:
        model, size = result.config.get("model", {}), result.config.get("data", {}).get("image_size")
        message = f"{result.recipe.name} (model.depth = {model.get('depth')}, data.image_size = {size})"
        hint = "measure one of them: trainstone bench resnet50, trainstone bench ssd300-mlperf"
        message = f"no published figures for {message}: there are some for ResNet-50 at 224 and SSD at 300"
        raise ResultError(message, hint=hint)
    chosen = known if name == PUBLISHED else [anchor for anchor in known if anchor.id == name]
    if not chosen:
        hint = f"figures that fit: {', '.join(anchor.id for anchor in known)}"
        message = f"the published figure {name!r} is of another model than {result.recipe.name}"
        raise ResultError(message, hint=hint)
    return chosen


def is_anchor(name: str) -> bool:
    return name == PUBLISHED or any(anchor.id == name for anchor in load_anchors())


def is_published(row: ComparisonRow) -> bool:
    return not row.b.runs


def describe_share(row: ComparisonRow) -> str:
    """Return 71.0 % (70.3 … 71.7 %), with a digit more than format_share where the interval is that narrow."""
    if row.ci95 is None:
        return format_share(row.ratio)
    digits = count_decimals(100 * row.ratio, 2)
    digits += 10**-digits > 50 * (row.ci95[1] - row.ci95[0])
    low, high = (format_percent(end, digits) for end in row.ci95)
    return f"{format_percent(row.ratio, digits)} ({low.removesuffix(' %')} … {high})"


def _words(name: str) -> frozenset[str]:
    """Split a name into lower-case words; 80GB is 80, and SXM is left out: it is the form that is seldom named."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return frozenset(re.sub(r"^(\d+)gb$", r"\1", word) for word in words if not word.startswith("sxm"))
