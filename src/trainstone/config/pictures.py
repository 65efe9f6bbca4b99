"""What a recipe may say of pictures: which, what is done to them, how they are fed."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainstone.config.section import AnyRange, Range, Section, ShareRange, Shares


class DataConfig(Section):
    """What is fed."""

    source: Literal["synthetic", "files", "generated"] = "synthetic"
    """synthetic: uint8 images from a seeded generator, made before the clock starts, fed from host memory.
    files: real pictures, the data set at data.root. generated: drawn pictures, stored once under $TRAINSTONE_CACHE."""
    root: Annotated[str, Field(min_length=1)] | None = None
    """A data set: class folders, COCO, RecordIO, TFRecord, WebDataset. `--data DIR` sets this and data.source."""
    image_size: Annotated[int, Field(ge=32, le=4096)] = 224
    """Height and width in pixels."""
    num_synthetic_batches: Annotated[int, Field(ge=1, le=1024)] = 4
    """Different batches, used in turn."""
    generated_train: Annotated[int, Field(ge=1, le=10**7)] = 4000
    """Generated: pictures to train on."""
    generated_val: Annotated[int, Field(ge=1, le=10**7)] = 1000
    """Generated: pictures to validate with."""
    generated_clutter: bool = True
    """Generated: other things around and over the object; without, it is large and alone. Boxes: without, a picture has
    one to four things instead of up to eight, and none is small."""
    skip_empty: bool = False
    """Boxes: train on the pictures that have one alone. Records that were written with --skip-empty have no others."""

    @model_validator(mode="before")
    @classmethod
    def follow_root(cls, values: Any) -> Any:
        """Who says where files lie means them, unless a source is named."""
        if isinstance(values, dict) and values.get("root") is not None and "source" not in values:
            return {**values, "source": "files"}
        return values

    @model_validator(mode="after")
    def check_root(self) -> "DataConfig":
        """Files must lie somewhere."""
        if self.source == "files" and self.root is None:
            raise ValueError("data.source is files, but data.root does not say where they lie: give --data DIR")
        return self


class AugmentConfig(Section):
    """What is done to a picture before it is trained on, or validated with."""

    crop: Literal["area", "boxes", "overlap", "centre", "whole"] = "area"
    """Training. area: random area and aspect (torchvision, DALI, MXNet). boxes: so that part of an object is in it, by
    TensorFlow's rule. overlap: SSD's, so that every box overlaps the crop by a drawn share (sides, overlaps). centre:
    as in validation. whole: all of it, aspect not kept."""
    area: ShareRange = (0.08, 1.0)
    """Share of the picture's area that a random crop covers."""
    aspect: Range = (3 / 4, 4 / 3)
    """Width / height of a random crop, in pixels; crop overlap: in shares of the picture's sides."""
    sides: ShareRange = (0.3, 1.0)
    """Crop overlap: share of the picture's width, and of its height, that a crop covers."""
    overlaps: Shares = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    """Crop overlap: what the intersection over union of crop and every box must be at least; one of these is drawn, or
    that the picture stays whole."""
    aspect_law: Literal["log", "uniform"] = "log"
    """How crop area draws the aspect: its logarithm evenly (torchvision), or itself. Crop boxes: always itself."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 10
    """Crops tried until one lies inside the picture (and, with boxes, holds enough of an object). Crop overlap: tried
    before another overlap is drawn."""
    min_object_covered: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Crop boxes: share of an object's box that must be inside; the whole picture is the object where no box is."""
    flip: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability of mirroring left and right."""
    resize: Literal["bilinear", "antialias"] = "bilinear"
    """Training: bilinear between the four nearest pixels (TensorFlow, OpenCV), or of all pixels under each new one
    (Pillow, torchvision), which is slower."""
    saturation: Range = (1.0, 1.0)
    """Training: factor of the colours' strength."""
    hue_degrees: AnyRange = (0.0, 0.0)
    """Training: how far colours turn."""
    contrast: Range = (1.0, 1.0)
    """Training: factor of the distance from the middle grey."""
    brightness: Range = (1.0, 1.0)
    """Training: factor of all pixels, after the contrast."""
    val_crop: Literal["centre", "whole"] = "centre"
    """Validation. centre: the middle, after the shorter side is val_shorter. whole: all of it, aspect not kept."""
    val_shorter: Annotated[int, Field(ge=32, le=4096)] | Literal["auto"] = "auto"
    """Validation: shorter side in pixels, before the centre is cut out. auto: image_size x 256 / 224."""
    val_resize: Literal["bilinear", "antialias"] = "antialias"
    """Validation: as augment.resize."""
    normalise: Literal["standard", "standard_unit", "mean", "mean_255", "wmlce_dali"] = "standard"
    """On the device. standard: (x - 255 m) / (255 s); standard_unit: (x / 255 - m) / s; both with ImageNet's mean
    m = .485 .456 .406 and deviation s = .229 .224 .225. mean: x - c; mean_255: (x - c) / 255; both with
    c = 123.68 116.78 103.94. wmlce_dali: (x - (121, 115, 100)) / (70, 68, 71)."""


class LoaderConfig(Section):
    """How pictures come from files into batches: may change speed, not which pictures (decode and shrink: a little)."""

    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Threads that decode. auto: the physical cores this process may use."""
    prefetch: Annotated[int, Field(ge=1, le=1024)] = 3
    """Batches made ahead; bounds the memory."""
    cache: Literal["off", "files", "pixels"] = "off"
    """Keep in memory, up to loader.cache_bytes: pictures as they are stored, or decoded."""
    cache_bytes: Annotated[int, Field(ge=0)] = 2**30
    """Limit of the cache; what comes later is read each time."""
    decode: Literal["fast", "exact"] = "fast"
    """Training JPEGs: quick or accurate inverse cosine transform (validation: always accurate)."""
    shrink: bool = True
    """Decode training JPEGs at 1/2, 1/4 or 1/8 where the crop stays larger than what is made of it."""
    on_bad: Literal["error", "skip"] = "error"
    """A picture that cannot be decoded: stop, or take another in its place and count it (loader.skipped)."""
    last: Literal["carry", "drop", "fill", "fill_even"] = "carry"
    """Pictures that do not fill an epoch's last batch. carry: the next epoch fills it up. drop: they are left out.
    fill: pictures of the epoch's beginning fill it up (an epoch's steps are rounded up). fill_even: likewise, but what
    does not divide among the ranks is left out."""
