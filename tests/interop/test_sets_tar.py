"""Whole WebDataset sets of ours: GNU tar, Python's tarfile and the package webdataset find the same in them."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from made_sets import SCENES, draw_scenes, read_all
from peers import ask_peer, digest, find_peer
from trainstone.data.sample import Sample

SPLITS = ("train", "val")


@pytest.fixture(scope="module")
def tars(make: Callable[..., Path], imagenet: Path) -> Path:
    return make("imagenet", "--from", imagenet, "--shards", "8,2", "--format", "wds")


def list_tars(folder: Path, split: str) -> list[Path]:
    return sorted(folder.glob(f"{split}-*.tar"))


def expect(samples: Sequence[Sample]) -> list[dict[str, str]]:
    """The parts of each sample that are known from its folder."""
    return [{"jpg": digest(sample.image), "cls": digest(str(sample.label).encode())} for sample in samples]


def gather(files: Sequence[tuple[str, bytes]]) -> list[dict[str, str]]:
    """The parts of each sample, by the rule of WebDataset: a key ends at the first dot of the base name."""
    samples: dict[str, dict[str, str]] = {}
    for name, data in files:
        folder, _, base = name.rpartition("/")
        stem, _, extension = base.partition(".")
        samples.setdefault(f"{folder}/{stem}", {})[extension] = digest(data)
        assert extension != "json" or json.loads(data)["name"].startswith(folder)
    return [{extension: parts[extension] for extension in ("jpg", "cls")} for parts in samples.values()]


@pytest.mark.parametrize("split", SPLITS)
def test_gnu_tar_reads_our_tars(tars, tmp_path, split):
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
    assert gather(files) == expect(read_all(tars)[split])


def test_webdataset_reads_our_tars(tars, make):
    find_peer("webdataset")
    boxed = make("make", "detect", *SCENES, "--format", "wds", "--shards", "3,1")
    jobs = {
        f"{kind} {s}": [*map(str, list_tars(path, s))] for kind, path in (("a", tars), ("b", boxed)) for s in SPLITS
    }
    found = ask_peer("webdataset", **jobs)
    for split in SPLITS:
        parts = [{extension: sample[extension] for extension in ("jpg", "cls")} for sample in found[f"a {split}"]]
        assert parts == expect(read_all(tars)[split])
        drawn = draw_scenes(split)
        assert [sample["jpg"] for sample in found[f"b {split}"]] == [
            digest(drawn.read(n).image) for n in range(len(drawn))
        ]
        assert all(sample.keys() == {"__key__", "jpg", "json"} for sample in found[f"b {split}"])
