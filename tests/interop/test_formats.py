"""Byte equality of edge-case records with TensorFlow and MXNet (whole data sets: test_sets_*.py), and WebDataset tars
read by GNU tar and the package webdataset."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.builders.raw_data_sets import SCENES, draw_scenes, pack_image, read_all
from support.processes.peers import digest, find_peer, query_peer
from trainstone.data.sample import Sample
from trainstone.formats import recordio
from trainstone.formats.recordio import MAGIC_BYTES, ImageRecord
from trainstone.formats.tfrecord import Feature, bytes_feature, encode_example, float_feature, int64_feature

JPEG = b"\xff\xd8" + bytes(range(256)) * 430
EXAMPLES: list[dict[str, Feature]] = [
    {},
    {
        "image/encoded": bytes_feature(JPEG),
        "image/class/label": int64_feature(7),
        "image/object/bbox/xmin": float_feature(0.25, 0.5),
    },
    {
        "image/encoded": bytes_feature(b""),
        "image/class/label": int64_feature(-1, 0, 127, 128, -(1 << 63), (1 << 63) - 1),
        "image/object/bbox/xmin": float_feature(),
        "no bytes": bytes_feature(),
        "no integers": int64_feature(),
        "ünï": bytes_feature(b"one", b"", b"three"),
        "floats": float_feature(-0.0, 1e-45, 3.4028234663852886e38, float("inf"), 0.1),
    },
]
IMAGES = [
    ImageRecord((3.0,), 0, JPEG),
    ImageRecord((0.5,), 1, b""),
    ImageRecord((1.0, -2.5, 3.0), 2, JPEG[:1001], vector=True),
    ImageRecord((4.0,), 3, b"x", vector=True),
    ImageRecord((-1.0,), 4, MAGIC_BYTES * 7),
    ImageRecord((1.0,), 5, b"abcd" + MAGIC_BYTES + b"ab" + MAGIC_BYTES + JPEG[:50] + MAGIC_BYTES),
    ImageRecord((2.0,), 1 << 40, b"last"),
]


def test_encode_example_matches_tensorflow_bytes():
    jobs = [
        {
            name: [feature.kind, [value.hex() if isinstance(value, bytes) else value for value in feature.values]]
            for name, feature in example.items()
        }
        for example in EXAMPLES
    ]
    theirs = query_peer("tensorflow", encode=jobs)["encode"]
    assert [encode_example(example).hex() for example in EXAMPLES[1:]] == theirs[1:]
    # Without features TensorFlow omits the empty feature table.
    assert (encode_example({}), theirs[0]) == (b"\x0a\x00", "")


def test_recordio_and_index_match_mxnet_bytes(tmp_path: Path):
    jobs = [
        {"key": image.id, "labels": image.labels, "vector": image.vector, "image": image.image.hex()}
        for image in IMAGES
    ]
    query_peer("mxnet", write={str(tmp_path / "theirs.rec"): jobs})
    ours = b"".join(pack_image(image) for image in IMAGES)
    assert (tmp_path / "theirs.rec").read_bytes() == ours
    index = "".join(recordio.format_index_line(*entry) for entry in recordio.rebuild_index(tmp_path / "theirs.rec"))
    assert (tmp_path / "theirs.idx").read_text() == index


SPLITS = ("train", "val")


@pytest.fixture(scope="module")
def tars(make: Callable[..., Path], imagenet: Path) -> Path:
    return make("imagenet", "--from", imagenet, "--shards", "8,2", "--format", "wds")


def list_tars(folder: Path, split: str) -> list[Path]:
    return sorted(folder.glob(f"{split}-*.tar"))


def expect(samples: Sequence[Sample]) -> list[dict[str, str]]:
    """Return the expected image and label digests of each sample."""
    return [{"jpg": digest(sample.image), "cls": digest(str(sample.label).encode())} for sample in samples]


def group_by_key(files: Sequence[tuple[str, bytes]]) -> list[dict[str, str]]:
    """Group files by WebDataset's rule: a key ends at the first dot of the base name."""
    samples: dict[str, dict[str, str]] = {}
    for name, data in files:
        folder, _, base = name.rpartition("/")
        stem, _, extension = base.partition(".")
        samples.setdefault(f"{folder}/{stem}", {})[extension] = digest(data)
        assert extension != "json" or json.loads(data)["name"].startswith(folder)
    return [{extension: parts[extension] for extension in ("jpg", "cls")} for parts in samples.values()]


@pytest.mark.parametrize("split", SPLITS)
def test_gnu_tar_reads_wds_tars(tars, tmp_path, split):
    tool = shutil.which("tar")
    if tool is None or "GNU tar" not in subprocess.run([tool, "--version"], capture_output=True, text=True).stdout:
        pytest.skip("needs GNU tar")
    files = []
    for path in list_tars(tars, split):
        options = ["--quoting-style=literal", "--file", path]
        done = subprocess.run([tool, "--list", *options], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        out = subprocess.run([tool, "--extract", *options, "--directory", tmp_path], capture_output=True, text=True)
        assert (out.returncode, out.stderr) == (0, "")
        files += [(name, (tmp_path / name).read_bytes()) for name in done.stdout.splitlines()]
    assert group_by_key(files) == expect(read_all(tars)[split])


def test_webdataset_reads_wds_tars(tars, make):
    find_peer("webdataset")
    boxed = make("make", "detect", *SCENES, "--format", "wds", "--shards", "3,1")
    jobs = {
        f"{kind} {s}": [*map(str, list_tars(path, s))] for kind, path in (("a", tars), ("b", boxed)) for s in SPLITS
    }
    found = query_peer("webdataset", **jobs)
    for split in SPLITS:
        parts = [{extension: sample[extension] for extension in ("jpg", "cls")} for sample in found[f"a {split}"]]
        assert parts == expect(read_all(tars)[split])
        drawn = draw_scenes(split)
        assert [sample["jpg"] for sample in found[f"b {split}"]] == [
            digest(drawn.read(n).image) for n in range(len(drawn))
        ]
        assert all(sample.keys() == {"__key__", "jpg", "json"} for sample in found[f"b {split}"])
