"""What DALI is asked for, and what happens where it fails or is missing. With it: tests/interop/test_loader_dali.py."""

import io
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_sets import JPEGS, Listed, to_classify
from trainstone.config.pictures import AugmentConfig, LoaderConfig
from trainstone.data.feeding import dali
from trainstone.data.feeding.cache import Cache
from trainstone.data.feeding.crops import Crop, window_centre
from trainstone.data.feeding.dali import Cut, Dali, plan_cut
from trainstone.data.feeding.draws import make_key
from trainstone.data.feeding.feed import Bad, Feed, Worker
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.shown import Shown
from trainstone.data.feeding.transform import View, make_transform
from trainstone.data.picture.look import Look, look
from trainstone.data.sample import Sample
from trainstone.errors import ConfigError, DataError, MachineError

SIZE = 16
PLAIN = LoaderConfig(shrink=False)


@dataclass
class Room:
    """Memory of a batch."""

    pixels: Any = field(default_factory=lambda: np.zeros((8, SIZE, SIZE, 3), np.uint8))
    shown: list[Shown] = field(default_factory=lambda: [Shown(-7)] * 8)

    @property
    def classes(self) -> Any:
        return np.array([row.label for row in self.shown])

    def put(self, rows: list[int], made: Any) -> None:
        self.pixels[rows] = made


@dataclass
class Made:
    pixels: Any

    def as_tensor(self) -> Any:
        return self.pixels


@dataclass
class Pipeline:
    """In DALI's place: each row gets the number of bytes of its picture, modulo 256."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    fails: bool = False
    built: int = 0

    def run(self, **inputs: Any) -> tuple[Made]:
        self.asked.append(inputs)
        if self.fails:
            raise RuntimeError("Error in CPU operator\n\nencountered:\n\nFailed to decode sample #1")
        rows = [np.full((SIZE, SIZE, 3), len(image) % 256, np.uint8) for image in inputs["image"]]
        return (Made(np.stack(rows)),)


@pytest.fixture
def pipeline(monkeypatch) -> Pipeline:
    one = Pipeline()

    def build(*_: Any) -> Pipeline:
        one.built += 1
        return one

    monkeypatch.setattr(dali, "build_pipeline", build)
    return one


def make_feed(samples: list[Sample], **wishes: Any) -> Feed:
    return Feed(Listed(samples), make_transform(AugmentConfig(), PLAIN, SIZE, train=True), seed=5, **wishes)


def make_batch(feeder: Dali, count: int, bad: list[Bad]) -> Room:
    """Let one thread make a batch of the first pictures."""
    room, worker = Room(), Worker()
    for row, place in enumerate(feeder.plan([Place(0, number) for number in range(count)])):
        feeder.fill(room, row, place, worker, bad)
    return room


def as_gif() -> bytes:
    out = io.BytesIO()
    Image.new("P", (20, 20)).save(out, "GIF")
    return out.getvalue()


def test_colours_are_not_dalis(pipeline):
    transform = make_transform(AugmentConfig(contrast=(0.5, 1.5)), PLAIN, SIZE, train=True)
    with pytest.raises(ConfigError, match=r"loader\.engine = dali changes no colours"):
        Dali(Feed(Listed(to_classify(1)), transform, seed=5), 8, threads=2)


def test_a_crop_is_decoded_as_it_is():
    view = View(Crop(left=3, top=4, width=20, height=10), flip=True)
    assert plan_cut(view, Look("jpeg", 100, 80, "rgb"), SIZE) == Cut((4, 3), (10, 20), (0, 0), (10, 20))


def test_of_a_window_all_is_decoded_that_its_edges_are_made_of():
    seen = Look("jpeg", 1000, 600, "rgb")
    part = window_centre(1000, 600, 224, 256)
    cut = plan_cut(View(part, flip=False), seen, 224)
    (top, left), (height, width) = cut.start, cut.shape
    reach = 600 / 256
    assert part.top - reach - 3 < top <= part.top - reach
    assert part.bottom + reach <= top + height < part.bottom + reach + 3
    assert part.left - reach - 3 < left <= part.left - reach
    assert part.right + reach <= left + width < part.right + reach + 3
    assert cut.window_start == pytest.approx((part.top - top, part.left - left))
    assert cut.window_end == pytest.approx((part.bottom - top, part.right - left))


def test_a_window_never_leaves_the_picture():
    cut = plan_cut(View(window_centre(20, 16, 224, 224), flip=False), Look("jpeg", 20, 16, "rgb"), 224)
    assert cut.start[0] == 0
    assert cut.shape[0] == 16
    assert 0 <= cut.start[1] <= cut.start[1] + cut.shape[1] <= 20


def test_dali_is_asked_for_our_crops_and_mirroring(pipeline):
    feed = make_feed(to_classify(6))
    feeder = Dali(feed, 8, threads=2)
    room = make_batch(feeder, 6, bad := [])
    (asked,) = pipeline.asked
    plain = make_transform(AugmentConfig(), PLAIN, SIZE, train=True)
    views = [plain.choose(look(JPEGS[number]), (), make_key(5, 0, number)) for number in range(6)]
    assert asked["start"].tolist() == [[view.part.top, view.part.left] for view in views]
    assert asked["shape"].tolist() == [[view.part.height, view.part.width] for view in views]
    assert asked["window_start"].tolist() == [[0, 0]] * 6
    assert asked["window_end"].tolist() == asked["shape"].tolist()
    assert asked["flip"].tolist() == [view.flip for view in views]
    assert [image.tobytes() for image in asked["image"]] == list(JPEGS)
    assert room.classes.tolist() == [0, 1, 0, 1, 0, 1, -7, -7]
    assert room.pixels[:, 0, 0, 0].tolist() == [*(len(image) % 256 for image in JPEGS), 0, 0]
    assert bad == []


def test_what_dali_does_not_know_is_made_without_it(pipeline):
    samples = [*to_classify(3), Sample("a/odd.gif", as_gif(), 1)]
    feeder = Dali(make_feed(samples), 8, threads=2)
    room = make_batch(feeder, 4, [])
    assert len(pipeline.asked[0]["image"]) == 3
    assert room.classes.tolist()[:4] == [0, 1, 0, 1]


def test_a_batch_that_dali_cannot_make_is_made_without_it_and_the_next_by_a_new_pipeline(pipeline, caplog):
    feed = make_feed(to_classify(4))
    feeder = Dali(feed, 8, threads=2)
    pipeline.fails = True
    room = make_batch(feeder, 4, [])
    assert "Failed to decode sample #1" in caplog.text
    expected = np.zeros((SIZE, SIZE, 3), np.uint8)
    feed.fill(Place(0, 3), expected, Worker(), [])
    assert (room.pixels[3] == expected).all()
    assert room.classes.tolist()[:4] == [0, 1, 0, 1]
    pipeline.fails = False
    room = make_batch(feeder, 4, [])
    assert pipeline.built == 2
    assert room.pixels[3, 0, 0, 0] == len(JPEGS[3]) % 256


def test_a_damaged_picture_is_named_or_counted(pipeline, caplog):
    samples = to_classify(4)
    samples[2] = Sample("a/broken.jpg", JPEGS[2][:-400], 0)
    transform = make_transform(AugmentConfig(crop="whole"), LoaderConfig(), SIZE, train=True)
    pipeline.fails = True
    with pytest.raises(DataError, match="listed 2: truncated JPEG"):
        make_batch(Dali(Feed(Listed(samples), transform, 5), 8, 2), 4, [])
    bad: list[Bad] = []
    room = make_batch(Dali(Feed(Listed(samples), transform, 5, skip_bad=True), 8, 2), 4, bad)
    assert {one.where for one in bad} == {"listed 2"}
    assert set(room.classes.tolist()[:4]) <= {0, 1}
    assert caplog.text == ""


def test_an_error_that_is_told_already_keeps_dali_out(pipeline):
    samples = [Sample("a/text.jpg", b"no picture", 0), *to_classify(1)]
    feeder = Dali(make_feed(samples), 8, threads=2)
    room, worker = Room(), Worker()
    first, second = feeder.plan([Place(0, 0), Place(0, 1)])
    with pytest.raises(DataError, match="listed 0: not a picture"):
        feeder.fill(room, 0, first, worker, [])
    feeder.fill(room, 1, second, worker, [])
    assert pipeline.asked == []


def test_files_are_kept_and_pixels_refused(pipeline):
    cache = Cache("files", 2**20)
    feeder = Dali(make_feed(to_classify(4), cache=cache), 8, threads=2)
    make_batch(feeder, 4, [])
    assert all(cache.get(number).sample.image == JPEGS[number] for number in range(4))
    with pytest.raises(ConfigError, match=r"loader\.cache = pixels"):
        Dali(make_feed(to_classify(4), cache=Cache("pixels", 2**20)), 8, threads=2)


def test_without_dali_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(MachineError, match="NVIDIA DALI cannot be loaded") as caught:
        Dali(make_feed(to_classify(1)), 8, threads=2)
    assert caught.value.hint == 'pip install "trainstone[dali]"'
