"""trainstone data: verbs that prepare, convert, check, inspect, benchmark and generate data sets."""

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
from trainstone.cli.execute import ProgressStream, RunOptions, execute
from trainstone.cli.render.output import exit_on_interrupt, print_json
from trainstone.errors import EXIT_GATE, ConfigError, DataError
from trainstone.machine.allocator import keep_small_memory
from trainstone.machine.cpus import read_affinity
from trainstone.machine.ranks import read_rank
from trainstone.results.progress import Progress
from trainstone.text import printable
from trainstone.units import format_bytes, format_count, format_share

if TYPE_CHECKING:
    from trainstone.data.shard_plan import DataSetPlan
    from trainstone.data.verify import VerifyFindings
    from trainstone.flows.lifecycle import Lifecycle
    from trainstone.results.schema.dataset import DatasetSummary, SplitSummary

app = typer.Typer(
    name="data", help="Prepare, convert, check, inspect, benchmark and generate data sets.", no_args_is_help=True
)

SHOWN_BAD = 100
SHOWN_CLASSES = 3
HISTOGRAM_WIDTH = 40
FORMATS = {"TFRecord": "tfrecord", "WebDataset": "wds", "class folders": "folder", "COCO": "folder"}
"""The --format of `data convert` that keeps a data set in its storage; recordio for all others."""

To = Annotated[Path, typer.Option("--to", help="Folder to write; interrupted work in it is resumed.")]
Format = Annotated[
    Literal["recordio", "tfrecord", "folder", "wds"], typer.Option("--format", help="Storage format to write.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of images per split.")]
Resize = Annotated[int | None, typer.Option("--resize", min=1, help="Resize images to this shorter side in pixels.")]
Quality = Annotated[
    int | None, typer.Option("--quality", min=1, max=100, help="Re-encode images as JPEG with this quality.")
]
Shards = Annotated[
    str | None,
    typer.Option(
        "--shards",
        metavar="N[,M]",
        help="Number of record files for training (and validation).",
        show_default="as the tool that defined the format",
    ),
]
NoRepair = Annotated[
    bool, typer.Option("--no-repair", help="Do not convert CMYK JPEGs, and PNGs named .JPEG, to RGB JPEGs.")
]
OnBad = Annotated[
    Literal["error", "skip"],
    typer.Option(
        "--on-bad", help="error: stop at a file that is not an image. skip: decode every image and drop damaged ones."
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Number of threads.", show_default="one per available core")
]


@app.command()
def bench(
    path: Annotated[Path, typer.Argument(help="Data set: a folder or a record file.")],
    recipe: Annotated[
        str,
        typer.Option("--recipe", help="Recipe with the image size, the preprocessing, the loader and the training."),
    ] = "resnet50",
    settings: options.Settings = [],  # noqa: B006  (never mutated)
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads", metavar="N,N...", help="Numbers of loader threads to measure.", show_default="1, 2, 4 ... all"
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Time budget for all thread counts together, in seconds.")
    ] = 20.0,
    demand: Annotated[
        float | None,
        typer.Option(
            "--demand",
            min=0.001,
            metavar="IMAGES/S",
            help="Training speed that the loader must reach, in images/s.",
            show_default="measured here with synthetic data",
        ),
    ] = None,
    out: options.Out = Path("runs"),
    seed: options.Seed = None,
    device: options.DeviceName = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Measure how fast a data set loads, per thread count and stage, and how many cores the training needs."""
    from trainstone.config.load import load_config

    configure_process(quiet)
    options.check_single_process("data bench")  # other ranks would use the measured cores
    config = load_config(recipe, settings=settings, flags=options.collect_flags({"seed": seed, "device": device}, path))
    counts = None
    if threads is not None:
        parts = [part.strip() for part in threads.split(",")]
        if not all(part.isdecimal() and 1 <= int(part) <= 1024 for part in parts):
            raise ConfigError(f"invalid --threads {threads}: expected numbers from 1 to 1024, such as 1,2,4")
        counts = sorted({int(part) for part in parts})
    if demand is not None and not math.isfinite(demand):
        raise ConfigError(f"invalid --demand {demand}: expected a finite number of images per second")

    def flow(life: "Lifecycle") -> ProgressStream:
        yield Progress("loading torch")
        from trainstone.flows.data_bench.run import run_data_bench
        from trainstone.results.schema.data_bench import Demand

        given = Demand(device="", devices=1, images_per_second=demand, how="given") if demand is not None else None
        return (yield from run_data_bench(life, counts, seconds, given))

    execute("data", config, flow, RunOptions(out, as_json, quiet))


@app.command()
def imagenet(
    source: Annotated[Path, typer.Option("--from", help="Folder with the downloaded archives, or with the images.")],
    target: To,
    storage: Format = "recordio",
    dataset: Annotated[
        Literal["imagenet", "tiny-imagenet", "imagenetv2", "folder"],
        typer.Option("--dataset", help="Data set in --from; folder: any class folders."),
    ] = "imagenet",
    limit: Limit = None,
    resize: Resize = None,
    quality: Quality = None,
    shards: Shards = None,
    val_labels: Annotated[
        Path | None,
        typer.Option("--val-labels", help="Classes of the validation images: a file with one synset per line."),
    ] = None,
    boxes: Annotated[
        Path | None, typer.Option("--boxes", help="Bounding boxes: a folder or archive of XML files, or a CSV file.")
    ] = None,
    no_repair: NoRepair = False,
    on_bad: OnBad = "error",
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Prepare ImageNet, or a data set like it, in the formats and order of the original tools."""
    from trainstone.data.shard_plan import Treatment, build_plan
    from trainstone.data.sources.imagenet import find_raw_data_set

    configure_process(quiet)
    if dataset != "imagenet" and (val_labels is not None or boxes is not None):
        raise ConfigError(f"--val-labels and --boxes need --dataset imagenet: it is {dataset}")
    check_target_outside(source, target)
    found = find_raw_data_set(dataset, source, target, val_labels=val_labels, boxes=boxes)
    treatment = Treatment(not no_repair, resize, quality, skip_bad=on_bad == "skip")
    plan = build_plan(found, storage, limit=limit, shards=parse_shards(shards, storage), treatment=treatment)
    run_plan(plan, target, workers, as_json=as_json, quiet=quiet)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Data set: a folder or a record file.")],
    target: Annotated[Path, typer.Argument(help="Folder to write; interrupted work in it is resumed.")],
    storage: Format = "recordio",
    shuffle: Annotated[
        bool,
        typer.Option(
            "--shuffle", help="Shuffle the training images, in the order of the tool that defined the format."
        ),
    ] = False,
    skip_empty: Annotated[
        bool, typer.Option("--skip-empty", help="Skip training images without boxes, as the original SSD does.")
    ] = False,
    first_label: Annotated[
        int | None,
        typer.Option(
            "--first-label",
            min=0,
            max=1,
            help="TFRecord: label number of the first class, 0, or 1 if 0 is the background.",
            show_default="from the source, else 1",
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
    """Convert a data set to another storage format; labels, boxes and order are kept."""
    from trainstone.data.recognise import drop_images_without_boxes, open_dataset
    from trainstone.data.shard_plan import Treatment, build_plan

    configure_process(quiet)
    check_target_outside(source, target)
    found = open_dataset(source, damaged=on_bad == "skip")
    if skip_empty:
        found = drop_images_without_boxes(found)
    treatment = Treatment(not no_repair, resize, quality, skip_bad=on_bad == "skip")
    files = parse_shards(shards, storage)
    plan = build_plan(
        found, storage, shuffle=shuffle, limit=limit, shards=files, first_label=first_label, treatment=treatment
    )
    run_plan(plan, target, workers, as_json=as_json, quiet=quiet)


@app.command()
def make(
    kind: Annotated[
        Literal["classify", "detect"], typer.Argument(help="classify: images with a class. detect: images with boxes.")
    ],
    target: Annotated[
        Path | None, typer.Option("--to", help="Folder to write.", show_default="in $TRAINSTONE_CACHE")
    ] = None,
    storage: Format = "folder",
    count: Annotated[int, typer.Option("--count", min=1, help="Number of training images.")] = 2000,
    val: Annotated[int, typer.Option("--val", min=0, help="Number of validation images.")] = 500,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="N|WxH", help="Width and height in pixels.", show_default="96, for detect 300"),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            "--classes", min=2, help="Number of classes: at most 100, for detect 10.", show_default="10, for detect 8"
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of the images.")] = 0,
    shards: Shards = None,
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Generate a data set of JPEG images for training tests: shapes, textures, scenes."""
    from trainstone.data.synthetic.generated import GeneratedSource, plan_generated_set

    configure_process(quiet)
    width, height = parse_size(size or ("96" if kind == "classify" else "300"))
    num_classes = classes or (10 if kind == "classify" else 8)
    train = GeneratedSource(kind, "train", count, width, height, num_classes, seed)
    plan, place = plan_generated_set(train, val, storage, parse_shards(shards, storage))
    run_plan(plan, target or place, workers, as_json=as_json, quiet=quiet)


@app.command()
def coco(
    target: To,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Folder with COCO's zip files, or with their contents; --download stores them here."
        ),
    ] = None,
    download: Annotated[
        str | None,
        typer.Option("--download", metavar="URL", help="Mirror to download the zip files from."),
    ] = None,
    on_bad: OnBad = "error",
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Prepare COCO 2017: unpack and check it, write box-only annotations, lists of images with boxes, class names."""
    from trainstone.cli.render.progress import ProgressLine
    from trainstone.data.sources.coco import prepare_coco
    from trainstone.data.sources.download import download_files, list_coco_files

    configure_process(quiet)
    if source is None and download is None:
        raise ConfigError("no source of COCO: expected --from DIR or --download URL", hint="--from DIR")
    zips = source if source is not None else target.with_name(f"{target.name}-zips")
    if read_rank().number > 0:
        return  # only rank 0 downloads and unpacks
    worked = False
    with ProgressLine(quiet=bool(quiet)) as line, exit_on_interrupt():
        for step in download_files(list_coco_files(download), zips) if download is not None else ():
            line.show_work(*step)
        for step in prepare_coco(zips, target, count_workers(workers), skip_bad=on_bad == "skip"):
            worked = True
            line.show_work(*step)
    print_prepared(target, as_json=as_json, worked=worked)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="Data set: a folder or a record file.")],
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Decode every record and list bad ones by file, record and byte; exit with code 9 if there are any."""
    from trainstone.cli.render.progress import ProgressLine
    from trainstone.data import verify as checks
    from trainstone.data.manifest import read_manifest
    from trainstone.data.recognise import open_dataset

    configure_process(quiet)
    rank = read_rank()
    manifest = read_manifest(path) if path.is_dir() else None
    found = open_dataset(path, classes=False)
    findings = checks.VerifyFindings()
    with ProgressLine(quiet=bool(quiet) or rank.number > 0) as line, exit_on_interrupt(""):
        for findings in checks.verify(found, count_workers(workers), manifest, path, rank):
            line.show_work("checking", findings.records, None, "images", findings.bytes)
    if rank.world == 1 and not findings.records:
        raise DataError(f"no records in {path}", hint="write it again: trainstone data convert")
    print_findings(path, found.storage, findings, as_json=as_json)
    if findings.bad or findings.stale:
        raise typer.Exit(EXIT_GATE)


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="Data set: a folder or a record file.")],
    page: Annotated[
        Path | None, typer.Option("--page", help="Write an HTML page with sample images to this file.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Show what a data set contains: number of images, classes, sizes; --page adds sample images."""
    from trainstone.data.info import summarise_data_set
    from trainstone.data.recognise import open_dataset

    configure_process(quiet)
    if read_rank().number > 0:
        return  # only rank 0 prints
    with exit_on_interrupt(""):
        summary = summarise_data_set(open_dataset(path), str(path))
    if page is not None:
        from trainstone.report.dataset import build_dataset_page
        from trainstone.report.page import write_page

        write_page(build_dataset_page(summary), page)
    if as_json:
        print_json(summary.model_dump(mode="json", exclude={"samples"}))
        return
    print_dataset(summary, page)


def configure_process(quiet: int) -> None:
    """Configure logging; reuse the memory of written images for the next ones."""
    keep_small_memory()
    options.prepare_process(quiet=quiet)


def count_workers(requested: int | None) -> int:
    """Return the requested number of threads, else one per available core."""
    return requested or len(read_affinity()) or os.cpu_count() or 1


def parse_shards(text: str | None, storage: str) -> dict[str, int]:
    if text is None:
        return {}
    if storage == "folder":
        raise ConfigError("--shards needs a format with record files: --format is folder")
    parts = text.split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() and 0 < int(part) < 100_000 for part in parts):
        raise ConfigError(
            f"invalid --shards {text}: expected one number, or two for training and validation",
            hint="--shards 1024,128",
        )
    return dict(zip(("train", "val"), map(int, parts), strict=False))


def parse_size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and 16 <= int(part) <= 4096 for part in parts):
        raise ConfigError(
            f"invalid --size {text}: expected N or WIDTHxHEIGHT, each from 16 to 4096 pixels", hint="--size 300x200"
        )
    return int(parts[0]), int(parts[-1])


def check_target_outside(source: Path, target: Path) -> None:
    """Raise if the target is inside the source: a later read would mix both data sets."""
    source_folder, target_folder = source.resolve(), target.resolve()
    if target_folder == source_folder or source_folder in target_folder.parents:
        raise ConfigError(f"{target} is inside the source {source}", hint="choose a folder outside the source")


def run_plan(plan: "DataSetPlan", target: Path, workers: int | None, *, as_json: bool, quiet: int) -> None:
    from trainstone.cli.render.progress import ProgressLine
    from trainstone.data.prepare import prepare

    rank = read_rank()
    worked = False
    with ProgressLine(quiet=bool(quiet) or rank.number > 0) as line, exit_on_interrupt():
        for progress in prepare(plan, target, rank, count_workers(workers)):
            worked = True
            line.show_work(*progress)
    print_prepared(target, as_json=as_json, worked=worked)


def print_prepared(target: Path, *, as_json: bool, worked: bool) -> None:
    """Print the contents of the target folder, on rank 0 only."""
    from trainstone.data.manifest import read_manifest

    number, world, _ = read_rank()
    if number > 0:
        return
    manifest = read_manifest(target)
    if manifest is None:
        print(f"rank 0 of {world} is done; the last rank to finish writes manifest.json")
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
        print("          it was already complete; nothing was written")
    for why, count in repaired.items():
        print(f"repaired  {format_count(count, 'image')}: {printable(why)}")
    for name, why in skipped[:SHOWN_BAD]:
        print(f"dropped   {printable(name)}: {printable(why)}")
    if len(skipped) > SHOWN_BAD:
        print(f"          and {len(skipped) - SHOWN_BAD:,} more; manifest.json lists all")
    print(f"next      trainstone data verify {printable(shlex.quote(str(target)))}")


def print_findings(path: Path, storage: str, findings: "VerifyFindings", *, as_json: bool) -> None:
    stale = [str(index) for index in findings.stale]
    if as_json:
        records = [
            {"file": bad.file, "record": bad.record, "byte": bad.span.offset, "name": bad.name, "why": bad.why}
            for bad in findings.bad
        ]
        document = {"path": str(path), "records": findings.records, "bytes": findings.bytes, "bad": records}
        print_json({**document, "stale_indexes": stale})
        return
    for bad in findings.bad:
        print(printable(bad.describe()))
    for index in stale:
        print(printable(f"{index}: does not match its records"))
    verdict = f"{len(findings.bad):,} bad" if findings.bad else "all good"
    print(f"{format_count(findings.records, 'record')}, {format_bytes(findings.bytes)}: {verdict}")
    if stale or any(bad.record is not None or bad.name for bad in findings.bad):
        named = path if path.name else path.resolve()
        clean = named.with_name(f"{named.name}-clean")
        kept_format = FORMATS.get(storage, "recordio")
        command = ["trainstone", "data", "convert", str(path), str(clean), "--format", kept_format, "--on-bad", "skip"]
        print(f"next: {printable(shlex.join(command))}")
    elif findings.bad:
        print("the bad record is unknown: prepare the data set, or copy its files, again")


def print_dataset(summary: "DatasetSummary", page: Path | None) -> None:
    from rich.console import Console

    from trainstone.cli.render.tables import print_lines, print_rows

    console = Console(file=sys.stdout, highlight=False)
    what = "classification" if summary.kind == "classify" else "detection"
    print_lines(console, [f"{summary.name or summary.path}: images for {what}, {summary.storage}"], "bold")
    console.print()
    names = [f"{known.name} ({known.text})" if known.text else known.name for known in summary.classes]
    rest = " ..." if len(names) > SHOWN_CLASSES else ""
    named = f": {', '.join(names[:SHOWN_CLASSES])}{rest}" if names else ""
    rows = [row for split in summary.splits for row in split_rows(split, summary)]
    print_rows(console, [("path", summary.path), ("classes", f"{len(names):,}{named}"), *rows])
    for split in summary.splits:
        print_lines(console, [f"bad: {bad.where}: {bad.why}" for bad in split.bad], "yellow")
    console.print()
    print_lines(console, [f"page  {page or 'add --page FILE to write a page with sample images'}"])


def split_rows(split: "SplitSummary", summary: "DatasetSummary") -> Iterator[tuple[str, str]]:
    from trainstone.cli.render.sparkline import draw_histogram

    shards = "" if split.shards is None else f" in {format_count(split.shards, 'file')}"
    size = "" if split.bytes is None else f", {format_bytes(split.bytes)}"
    yield split.name, f"{format_count(split.records, 'image')}{shards}{size}"
    counts = split.class_counts
    if counts and sum(counts):
        noun = "image" if summary.kind == "classify" else "box"
        sample = "" if split.counted == split.records else f", in a sample of {split.counted:,}"
        least, most = min(counts), max(counts)
        even = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        plural = noun if most == 1 else ("boxes" if noun == "box" else f"{noun}s")
        histogram = draw_histogram(counts, HISTOGRAM_WIDTH, encoding=sys.stdout.encoding) if least < most else ""
        yield "  per class", f"{even} {plural}{sample}  {histogram}".rstrip()
    if split.boxes is not None and split.boxes.images:
        per = split.boxes.boxes / split.boxes.images
        yield "  boxes", f"{split.boxes.boxes:,}, {per:.1f} per image"
    if (seen := split.sampled) is not None:
        kinds = ", ".join(f"{format_share(n / seen.images)} {kind}" for kind, n in seen.kinds.items())
        size = f"{seen.width.median:.0f} x {seen.height.median:.0f}"
        if seen.width.minimum == seen.width.maximum and seen.height.minimum == seen.height.maximum:
            size = f"all {size}"
        else:
            wide = f"{seen.width.minimum:.0f} to {seen.width.maximum:.0f} wide"
            size += f" (median; {wide}, {seen.height.minimum:.0f} to {seen.height.maximum:.0f} high)"
        sample = "" if seen.images == split.records else f"; in a sample of {seen.images:,}"
        yield "  images", f"{size}, {kinds}, {format_bytes(seen.bytes.median)} each{sample}"
    for number, what in ((split.outside, "with labels beyond the classes"), (split.unlabelled, "without a class")):
        if number:
            yield "", f"{number:,} {what}"
    if split.num_bad:
        yield (
            "  bad",
            f"{split.num_bad:,} in the sample; to find all: trainstone data verify {shlex.quote(summary.path)}",
        )
