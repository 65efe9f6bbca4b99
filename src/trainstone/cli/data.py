"""trainstone data: prepare, convert, check, show and time data sets. The verbs below it; each calls the data folder."""

import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainstone.cli import options
from trainstone.cli.execute import Life, ProgressStream, RunOptions, execute
from trainstone.cli.render.output import interruptible, print_json
from trainstone.errors import EXIT_GATE, ConfigError
from trainstone.machine.allocator import keep_small_memory
from trainstone.machine.cpus import read_affinity
from trainstone.machine.ranks import read_rank
from trainstone.results.progress import Progress
from trainstone.text import printable
from trainstone.units import format_bytes, format_count, format_share

if TYPE_CHECKING:
    from trainstone.data.shard_plan import DataSetPlan
    from trainstone.data.verify import VerifyFindings
    from trainstone.results.schema.dataset import DatasetSummary, SplitSummary

app = typer.Typer(name="data", help="Prepare, convert, check, show and generate data sets.", no_args_is_help=True)

SHOWN_BAD = 100
SHOWN_CLASSES = 3
HISTOGRAM_WIDTH = 40
FORMATS = {"TFRecord": "tfrecord", "WebDataset": "wds", "class folders": "folder", "COCO": "folder"}
"""--format of `data convert` for what a set is stored as; recordio for all else."""

To = Annotated[Path, typer.Option("--to", help="Folder to make; interrupted work in it goes on.")]
Format = Annotated[Literal["recordio", "tfrecord", "folder", "wds"], typer.Option("--format", help="How to store it.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many images of each split.")]
Resize = Annotated[int | None, typer.Option("--resize", min=1, help="Shorter side in pixels; images are re-encoded.")]
Quality = Annotated[int | None, typer.Option("--quality", min=1, max=100, help="Re-encode as JPEG of this quality.")]
Shards = Annotated[
    str | None,
    typer.Option(
        "--shards", metavar="N[,M]", help="Files for training (and validation).", show_default="the original's"
    ),
]
NoRepair = Annotated[bool, typer.Option("--no-repair", help="Leave CMYK JPEGs and PNGs named .JPEG as they are.")]
OnBad = Annotated[
    Literal["error", "skip"],
    typer.Option("--on-bad", help="error: end at what is no image. skip: decode every image, drop damaged ones."),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Threads.", show_default="one for each core we may use")
]


@app.command()
def bench(
    path: Annotated[Path, typer.Argument(help="A data set: a folder, or a file of records.")],
    recipe: Annotated[
        str, typer.Option("--recipe", help="Whose crop, size and loader to use, and whose training to feed.")
    ] = "resnet50",
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="N,N...", help="How many to try.", show_default="1, 2, 4 ... all")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for all numbers of threads.")] = 20.0,
    demand: Annotated[
        float | None,
        typer.Option(
            "--demand",
            min=0.001,
            metavar="IMAGES/S",
            help="What has to be fed.",
            show_default="measured: this machine's devices, synthetic data",
        ),
    ] = None,
    out: options.Out = Path("runs"),
    seed: options.Seed = None,
    device: options.DeviceName = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Measure how fast images come out of a data set, by threads and stages; say how many cores devices need."""
    from trainstone.config.load import load_config

    start_work(quiet)
    options.refuse_ranks("data bench")  # others would take the cores of the one that measures
    config = load_config(recipe, settings=settings, flags=options.collect_flags({"seed": seed, "device": device}, path))
    counts = None
    if threads is not None:
        parts = [part.strip() for part in threads.split(",")]
        if not all(part.isdecimal() and 1 <= int(part) <= 1024 for part in parts):
            raise ConfigError(f"--threads {threads}: it takes numbers from 1 to 1024, such as 1,2,4")
        counts = sorted({int(part) for part in parts})
    if demand is not None and not math.isfinite(demand):
        raise ConfigError(f"--demand {demand}: it takes a number of images a second")

    def flow(life: Life) -> ProgressStream:
        yield Progress("loading torch")
        from trainstone.flows.data_bench.run import run_data_bench
        from trainstone.results.schema.data_bench import Demand

        given = Demand(device="", devices=1, images_per_second=demand, how="given") if demand is not None else None
        return (yield from run_data_bench(life, counts, seconds, given))

    execute("data", config, flow, RunOptions(out, as_json, quiet))


@app.command()
def imagenet(
    source: Annotated[Path, typer.Option("--from", help="Where the data lie: archives as downloaded, or folders.")],
    target: To,
    storage: Format = "recordio",
    dataset: Annotated[
        Literal["imagenet", "tiny-imagenet", "imagenetv2", "folder"],
        typer.Option("--dataset", help="What lies there; folder: any class folders."),
    ] = "imagenet",
    limit: Limit = None,
    resize: Resize = None,
    quality: Quality = None,
    shards: Shards = None,
    val_labels: Annotated[
        Path | None, typer.Option("--val-labels", help="Classes of the validation images: a synset a line.")
    ] = None,
    boxes: Annotated[
        Path | None, typer.Option("--boxes", help="Bounding boxes: folder or archive of XML, or CSV.")
    ] = None,
    no_repair: NoRepair = False,
    on_bad: OnBad = "error",
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Make a training set of ImageNet or the like, as the original tools wrote it."""
    from trainstone.data.shard_plan import Treatment, make_plan
    from trainstone.data.sources.imagenet import find_raw

    start_work(quiet)
    if dataset != "imagenet" and (val_labels is not None or boxes is not None):
        raise ConfigError("--val-labels and --boxes are for --dataset imagenet")
    refuse_inside(source, target)
    found = find_raw(dataset, source, target, val_labels=val_labels, boxes=boxes)
    treatment = Treatment(not no_repair, resize, quality, skip_bad=on_bad == "skip")
    plan = make_plan(found, storage, limit=limit, shards=parse_shards(shards, storage), treatment=treatment)
    run_plan(plan, target, workers, as_json=as_json, quiet=quiet)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A data set: a folder, or a file of records.")],
    target: Annotated[Path, typer.Argument(help="Folder to make; interrupted work in it goes on.")],
    storage: Format = "recordio",
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle as the format's original tool does.")] = False,
    skip_empty: Annotated[
        bool, typer.Option("--skip-empty", help="Leave training images without any box out, as SSD's original does.")
    ] = False,
    first_label: Annotated[
        int | None,
        typer.Option(
            "--first-label",
            min=0,
            max=1,
            help="What TFRecord calls the first class: 1 if 0 is background.",
            show_default="the source's, else 1",
        ),
    ] = None,
    limit: Limit = None,
    resize: Resize = None,
    quality: Quality = None,
    shards: Shards = None,
    no_repair: NoRepair = False,
    on_bad: OnBad = "error",
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Turn a data set into another storage; labels, boxes and order are kept."""
    from trainstone.data.recognise import open_dataset, without_empty
    from trainstone.data.shard_plan import Treatment, make_plan

    start_work(quiet)
    refuse_inside(source, target)
    found = open_dataset(source, damaged=on_bad == "skip")
    if skip_empty:
        found = without_empty(found)
    treatment = Treatment(not no_repair, resize, quality, skip_bad=on_bad == "skip")
    files = parse_shards(shards, storage)
    plan = make_plan(
        found, storage, shuffle=shuffle, limit=limit, shards=files, first_label=first_label, treatment=treatment
    )
    run_plan(plan, target, workers, as_json=as_json, quiet=quiet)


@app.command()
def make(
    kind: Annotated[Literal["classify", "detect"], typer.Argument(help="Images with a class, or with boxes.")],
    target: Annotated[
        Path | None, typer.Option("--to", help="Folder to make.", show_default="in $TRAINSTONE_CACHE")
    ] = None,
    storage: Format = "folder",
    count: Annotated[int, typer.Option("--count", min=1, help="Training images.")] = 2000,
    val: Annotated[int, typer.Option("--val", min=0, help="Validation images.")] = 500,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="N|WxH", help="Width and height in pixels.", show_default="96; detect: 300"),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            "--classes", min=2, help="Number of classes; at most 100, detect: 10.", show_default="10; detect: 8"
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other images for another seed.")] = 0,
    shards: Shards = None,
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Generate images that a network can learn from: shapes, textures, scenes; as real JPEGs."""
    from trainstone.data.synthetic.generated import GeneratedSource, plan_stored

    start_work(quiet)
    width, height = parse_size(size or ("96" if kind == "classify" else "300"))
    num_classes = classes or (10 if kind == "classify" else 8)
    train = GeneratedSource(kind, "train", count, width, height, num_classes, seed)
    plan, place = plan_stored(train, val, storage, parse_shards(shards, storage))
    run_plan(plan, target or place, workers, as_json=as_json, quiet=quiet)


@app.command()
def coco(
    target: To,
    source: Annotated[
        Path | None, typer.Option("--from", help="Folder with COCO's zip files, or with what was in them.")
    ] = None,
    download: Annotated[
        str | None,
        typer.Option("--download", metavar="URL", help="A mirror to fetch the zip files from first, into --from."),
    ] = None,
    on_bad: OnBad = "error",
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Unpack and check COCO 2017; write box-only annotations, the list of images that have boxes, the class map."""
    from trainstone.cli.render.progress import ProgressLine
    from trainstone.data.sources.coco import prepare_coco
    from trainstone.data.sources.download import fetch, list_coco_files

    start_work(quiet)
    if source is None and download is None:
        raise ConfigError("where is COCO?", hint="--from DIR, or --download URL of a mirror")
    zips = source if source is not None else target.with_name(f"{target.name}-zips")
    if read_rank().number > 0:
        return  # one process fills the network and the disk
    worked = False
    with ProgressLine(quiet=bool(quiet)) as line, interruptible():
        for step in fetch(list_coco_files(download), zips) if download is not None else ():
            line.show_work(*step)
        for step in prepare_coco(zips, target, count_workers(workers), skip_bad=on_bad == "skip"):
            worked = True
            line.show_work(*step)
    describe_made(target, as_json=as_json, worked=worked)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A data set: a folder, or a file of records.")],
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Decode every record; name each bad one by file, record and byte. Exit 9 if there is one."""
    from trainstone.cli.render.progress import ProgressLine
    from trainstone.data import verify as checks
    from trainstone.data.manifest import read_manifest
    from trainstone.data.recognise import open_dataset

    start_work(quiet)
    rank = read_rank()
    manifest = read_manifest(path) if path.is_dir() else None
    found = open_dataset(path, classes=False)
    findings = checks.VerifyFindings()
    with ProgressLine(quiet=bool(quiet) or rank.number > 0) as line, interruptible(""):
        for findings in checks.verify(found, count_workers(workers), manifest, path, rank):
            line.show_work("checking", findings.records, None, "images", findings.bytes)
    print_findings(path, found.storage, findings, as_json=as_json)
    if findings.bad or findings.stale:
        raise typer.Exit(EXIT_GATE)


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A data set: a folder, or a file of records.")],
    page: Annotated[Path | None, typer.Option("--page", help="Write a page with sample images to this file.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Say what a data set is: how many, which classes, which sizes; with images on a page."""
    from trainstone.data.info import summarise
    from trainstone.data.recognise import open_dataset

    start_work(quiet)
    if read_rank().number > 0:
        return  # one telling is enough
    with interruptible(""):
        summary = summarise(open_dataset(path), str(path))
    if page is not None:
        from trainstone.report.dataset import build_dataset_page
        from trainstone.report.page import write_page

        write_page(build_dataset_page(summary), page)
    if as_json:
        print_json(summary.model_dump(mode="json", exclude={"samples"}))
        return
    describe_dataset(summary, page)


def start_work(quiet: int) -> None:
    """Warnings to stderr; memory of images that were written is kept for the next ones."""
    keep_small_memory()
    options.prepare_process(quiet=quiet)


def count_workers(requested: int | None) -> int:
    """Return how many threads to use: as asked, else one for each core we may use."""
    return requested or len(read_affinity()) or os.cpu_count() or 1


def parse_shards(text: str | None, storage: str) -> dict[str, int]:
    if text is None:
        return {}
    if storage == "folder":
        raise ConfigError("--shards divides files of records; the format folder has none")
    parts = text.split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() and 0 < int(part) < 100_000 for part in parts):
        raise ConfigError(f"--shards {text}: a number, or two for training and validation", hint="--shards 1024,128")
    return dict(zip(("train", "val"), map(int, parts), strict=False))


def parse_size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and 16 <= int(part) <= 4096 for part in parts):
        raise ConfigError(f"--size {text}: pixels from 16 to 4096, once or as WIDTHxHEIGHT", hint="--size 300x200")
    return int(parts[0]), int(parts[-1])


def refuse_inside(source: Path, target: Path) -> None:
    """Refuse to write into the folder that is read: the next reader would take both for one."""
    here, there = source.resolve(), target.resolve()
    if there == here or here in there.parents:
        raise ConfigError(f"{target} lies inside {source}", hint="write beside it, not into it")


def run_plan(plan: "DataSetPlan", target: Path, workers: int | None, *, as_json: bool, quiet: int) -> None:
    from trainstone.cli.render.progress import ProgressLine
    from trainstone.data.prepare import prepare

    rank = read_rank()
    worked = False
    with ProgressLine(quiet=bool(quiet) or rank.number > 0) as line, interruptible():
        for progress in prepare(plan, target, rank, count_workers(workers)):
            worked = True
            line.show_work(*progress)
    describe_made(target, as_json=as_json, worked=worked)


def describe_made(target: Path, *, as_json: bool, worked: bool) -> None:
    """Print what lies in the target now; of many ranks only the first does."""
    from trainstone.data.manifest import read_manifest

    number, world, _ = read_rank()
    if number > 0:
        return
    manifest = read_manifest(target)
    if manifest is None:
        print(f"rank 0 of {world} has done its part; the last rank to end writes manifest.json")
        return
    if as_json:
        print_json({"path": str(target), "manifest": manifest.model_dump(mode="json")})
        return
    repaired = Counter(why for shard in manifest.shards for _, why in shard.repaired)
    skipped = [(name, why) for shard in manifest.shards for name, why in shard.skipped]
    parts = ", ".join(f"{split.records:,} {split.name}" for split in manifest.splits)
    size = format_bytes(sum(split.bytes for split in manifest.splits))
    files = "" if manifest.storage == "folder" else f", {format_count(len(manifest.shards), 'file')}"
    print(f"data set  {printable(str(target))}")
    classes = f"{len(manifest.classes):,} class{'' if len(manifest.classes) == 1 else 'es'}"
    print(f"          {manifest.storage}: {printable(parts)}; {classes}{files}, {size}")
    if not worked:
        print("          it was whole already; nothing was written")
    for why, count in repaired.items():
        print(f"repaired  {format_count(count, 'image')}: {printable(why)}")
    for name, why in skipped[:SHOWN_BAD]:
        print(f"dropped   {printable(name)}: {printable(why)}")
    if len(skipped) > SHOWN_BAD:
        print(f"          and {len(skipped) - SHOWN_BAD:,} more: manifest.json names them")
    print(f"next      trainstone data verify {printable(str(target))}")


def print_findings(path: Path, storage: str, findings: "VerifyFindings", *, as_json: bool) -> None:
    stale = [str(index) for index in findings.stale]
    if as_json:
        bad = [
            {"file": one.file, "record": one.record, "byte": one.span.offset, "name": one.name, "why": one.why}
            for one in findings.bad
        ]
        message = {"path": str(path), "records": findings.records, "bytes": findings.bytes, "bad": bad}
        print_json({**message, "stale_indexes": stale})
        return
    for one in findings.bad:
        print(printable(one.describe()))
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


def describe_dataset(summary: "DatasetSummary", page: Path | None) -> None:
    from rich.console import Console

    from trainstone.cli.render.tables import print_lines, print_rows

    console = Console(file=sys.stdout, highlight=False)
    what = "to classify" if summary.kind == "classify" else "to detect objects in"
    print_lines(console, [f"{summary.name or summary.path}: images {what}, {summary.storage}"], "bold")
    console.print()
    names = [f"{known.name} ({known.text})" if known.text else known.name for known in summary.classes]
    rest = " ..." if len(names) > SHOWN_CLASSES else ""
    named = f": {', '.join(names[:SHOWN_CLASSES])}{rest}" if names else ""
    rows = [row for split in summary.splits for row in describe_split(split, summary)]
    print_rows(console, [("path", summary.path), ("classes", f"{len(names):,}{named}"), *rows])
    for split in summary.splits:
        print_lines(console, [f"bad: {one.where}: {one.why}" for one in split.bad], "yellow")
    console.print()
    print_lines(console, [f"page  {page or 'write a page with images with --page FILE'}"])


def describe_split(split: "SplitSummary", summary: "DatasetSummary") -> Iterator[tuple[str, str]]:
    from trainstone.cli.render.sparkline import draw_histogram

    shards = "" if split.shards is None else f" in {format_count(split.shards, 'file')}"
    size = "" if split.bytes is None else f", {format_bytes(split.bytes)}"
    yield split.name, f"{format_count(split.records, 'image')}{shards}{size}"
    counts = split.class_counts
    if counts and sum(counts):
        noun = "image" if summary.kind == "classify" else "box"
        sample = "" if split.counted == split.records else f", counted in {split.counted:,} of them"
        least, most = min(counts), max(counts)
        even = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        plural = noun if most == 1 else ("boxes" if noun == "box" else f"{noun}s")
        drawn = draw_histogram(counts, HISTOGRAM_WIDTH, encoding=sys.stdout.encoding) if least < most else ""
        yield "  each class", f"{even} {plural}{sample}  {drawn}".rstrip()
    if split.boxes is not None and split.boxes.images:
        per = split.boxes.boxes / split.boxes.images
        yield "  boxes", f"{split.boxes.boxes:,}, {per:.1f} an image"
    if (seen := split.looked_at) is not None:
        kinds = ", ".join(f"{format_share(n / seen.images)} {kind}" for kind, n in seen.kinds.items())
        size = f"{seen.width.median:.0f} x {seen.height.median:.0f}"
        if seen.width.minimum == seen.width.maximum and seen.height.minimum == seen.height.maximum:
            size = f"all {size}"
        else:
            wide = f"{seen.width.minimum:.0f} to {seen.width.maximum:.0f} wide"
            size += f" (median; {wide}, {seen.height.minimum:.0f} to {seen.height.maximum:.0f} high)"
        sample = "" if seen.images == split.records else f"; looked at {seen.images:,}"
        yield "  images", f"{size}, {kinds}, {format_bytes(seen.bytes.median)} each{sample}"
    for number, what in ((split.outside, "labels that no class has"), (split.unlabelled, "without a class")):
        if number:
            yield "", f"{number:,} {what}"
    if split.num_bad:
        yield "  bad", f"{split.num_bad:,} seen; trainstone data verify {summary.path} finds all"
