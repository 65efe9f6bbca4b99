"""What `trainstone data` prints: a set that was made, what was found bad, what a set is."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from trainstone.cli.output import print_json
from trainstone.text import printable
from trainstone.units import format_bytes, format_count, format_share

if TYPE_CHECKING:
    from trainstone.data.manifest import Manifest
    from trainstone.data.verify import Findings
    from trainstone.results.dataset import DatasetSummary, LookedAt, SplitSummary

SHOWN_BAD = 100
SHOWN_CLASSES = 3
HISTOGRAM_WIDTH = 40
FORMATS = {"TFRecord": "tfrecord", "WebDataset": "wds", "class folders": "folder", "COCO": "folder"}
"""--format of `data convert` for what a set is stored as; recordio for all else."""


def tell_manifest(manifest: "Manifest", target: Path, *, as_json: bool, worked: bool) -> None:
    if as_json:
        print_json({"path": str(target), "manifest": manifest.model_dump(mode="json")})
        return
    repaired = Counter(why for shard in manifest.shards for _, why in shard.repaired)
    skipped = [(name, why) for shard in manifest.shards for name, why in shard.skipped]
    parts = ", ".join(f"{split.records:,} {split.name}" for split in manifest.splits)
    size = format_bytes(sum(split.bytes for split in manifest.splits))
    files = "" if manifest.storage == "folder" else f", {format_count(len(manifest.shards), 'file')}"
    print(f"data set  {printable(str(target))}")
    print(f"          {manifest.storage}: {printable(parts)}; {count_classes(len(manifest.classes))}{files}, {size}")
    if not worked:
        print("          it was whole already; nothing was written")
    for why, count in repaired.items():
        print(f"repaired  {format_count(count, 'picture')}: {printable(why)}")
    for name, why in skipped[:SHOWN_BAD]:
        print(f"dropped   {printable(name)}: {printable(why)}")
    if len(skipped) > SHOWN_BAD:
        print(f"          and {len(skipped) - SHOWN_BAD:,} more: manifest.json names them")
    print(f"next      trainstone data verify {printable(str(target))}")


def count_classes(number: int) -> str:
    return f"{number:,} class{'' if number == 1 else 'es'}"


def print_findings(path: Path, storage: str, findings: "Findings", *, as_json: bool) -> None:
    stale = [str(index) for index in findings.stale]
    if as_json:
        bad = [
            {"file": one.file, "record": one.record, "byte": one.span.offset, "name": one.name, "why": one.why}
            for one in findings.bad
        ]
        told = {"path": str(path), "records": findings.records, "bytes": findings.bytes, "bad": bad}
        print_json({**told, "stale_indexes": stale})
        return
    for one in findings.bad:
        print(printable(one.tell()))
    for index in stale:
        print(printable(f"{index}: does not fit its records"))
    verdict = f"{len(findings.bad):,} bad" if findings.bad else "all good"
    print(f"{format_count(findings.records, 'record')}, {format_bytes(findings.bytes)}: {verdict}")
    if stale or any(one.record is not None or one.name for one in findings.bad):
        named = path if path.name else path.resolve()
        clean = named.with_name(f"{named.name}-clean")
        form = FORMATS.get(storage, "recordio")
        words = ["trainstone", "data", "convert", str(path), str(clean), "--format", form, "--on-bad", "skip"]
        print(f"next: {printable(shlex.join(words))}")
    elif findings.bad:
        print("no record can be blamed: make the set, or copy its files, again")


def tell_dataset(summary: "DatasetSummary", page: Path | None) -> None:
    from trainstone.cli.summary import print_rows

    console = Console(file=sys.stdout, highlight=False)
    what = "to classify" if summary.kind == "classify" else "to detect objects in"
    heading = f"{summary.name or summary.path}: pictures {what}, {summary.storage}"
    console.print(Text(heading, style="bold"))
    console.print()
    told = [("path", summary.path), ("classes", describe_classes(summary))]
    for split in summary.splits:
        told += describe_split(split, summary)
    print_rows(console, [(name, Text(text)) for name, text in told])
    for split in summary.splits:
        for one in split.bad:
            console.print(Text(f"bad: {one.where}: {one.why}", style="yellow"))
    console.print()
    written = "write a page with pictures with --page FILE" if page is None else printable(str(page))
    console.print(Text(f"page  {written}"))


def describe_classes(summary: "DatasetSummary") -> str:
    """Return 10 classes: circle-plain, circle-striped ..."""
    names = [f"{known.name} ({known.text})" if known.text else known.name for known in summary.classes]
    rest = " ..." if len(names) > SHOWN_CLASSES else ""
    return f"{len(names):,}" + (f": {', '.join(names[:SHOWN_CLASSES])}{rest}" if names else "")


def describe_split(split: "SplitSummary", summary: "DatasetSummary") -> Iterator[tuple[str, str]]:
    shards = "" if split.shards is None else f" in {format_count(split.shards, 'file')}"
    size = "" if split.bytes is None else f", {format_bytes(split.bytes)}"
    yield split.name, f"{format_count(split.records, 'picture')}{shards}{size}"
    from trainstone.cli.sparkline import draw_histogram

    counts = split.class_counts
    if counts and sum(counts):
        noun = "picture" if summary.kind == "classify" else "box"
        sample = "" if split.counted == split.records else f", counted in {split.counted:,} of them"
        least, most = min(counts), max(counts)
        even = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        plural = noun if most == 1 else ("boxes" if noun == "box" else f"{noun}s")
        drawn = draw_histogram(counts, HISTOGRAM_WIDTH, encoding=sys.stdout.encoding) if least < most else ""
        yield "  each class", f"{even} {plural}{sample}  {drawn}".rstrip()
    if split.boxes is not None and split.boxes.pictures:
        per = split.boxes.boxes / split.boxes.pictures
        yield "  boxes", f"{split.boxes.boxes:,}, {per:.1f} a picture"
    if split.looked_at is not None:
        yield "  pictures", describe_pictures(split.looked_at, split.records)
    for number, what in ((split.outside, "labels that no class has"), (split.unlabelled, "without a class")):
        if number:
            yield "", f"{number:,} {what}"
    if split.num_bad:
        yield "  bad", f"{split.num_bad:,} seen; trainstone data verify {summary.path} finds all"


def describe_pictures(seen: "LookedAt", records: int) -> str:
    kinds = ", ".join(f"{format_share(n / seen.pictures)} {kind}" for kind, n in seen.kinds.items())
    if seen.width.minimum == seen.width.maximum and seen.height.minimum == seen.height.maximum:
        size = f"all {seen.width.median:.0f} x {seen.height.median:.0f}"
    else:
        size = (
            f"{seen.width.median:.0f} x {seen.height.median:.0f} (median; "
            f"{seen.width.minimum:.0f} to {seen.width.maximum:.0f} wide, "
            f"{seen.height.minimum:.0f} to {seen.height.maximum:.0f} high)"
        )
    sample = "" if seen.pictures == records else f"; looked at {seen.pictures:,}"
    return f"{size}, {kinds}, {format_bytes(seen.bytes.median)} each{sample}"
