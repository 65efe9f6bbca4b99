"""trainstone data: prepare, convert, check and show data sets. The verbs below it; each calls the data folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainstone.cli import databench, options
from trainstone.cli.preparing import (
    count_workers,
    interruptible,
    parse_shards,
    parse_size,
    refuse_inside,
    run_plan,
    start_work,
    tell_made,
)
from trainstone.errors import EXIT_GATE, ConfigError

app = typer.Typer(name="data", help="Prepare, convert, check, show and generate data sets.", no_args_is_help=True)

app.command()(databench.bench)
Storage = Literal["recordio", "tfrecord", "folder", "wds"]
From = Annotated[Path, typer.Option("--from", help="Where the data lie: archives as downloaded, or folders.")]
To = Annotated[Path, typer.Option("--to", help="Folder to make; interrupted work in it goes on.")]
Format = Annotated[Storage, typer.Option("--format", help="How to store it.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many pictures of each split.")]
Resize = Annotated[int | None, typer.Option("--resize", min=1, help="Shorter side in pixels; pictures are re-encoded.")]
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
def imagenet(
    source: From,
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
        Path | None, typer.Option("--val-labels", help="Classes of the validation pictures: a synset a line.")
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
    from trainstone.data.plan import Treatment, make_plan
    from trainstone.data.raw.imagenet import find_raw

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
        bool, typer.Option("--skip-empty", help="Leave training pictures without any box out, as SSD's original does.")
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
    from trainstone.data.plan import Treatment, make_plan
    from trainstone.data.recognise import open_dataset, without_empty

    start_work(quiet)
    refuse_inside(source, target)
    found = open_dataset(source, damaged=on_bad == "skip")
    if skip_empty:
        found = without_empty(found)
    treatment = Treatment(not no_repair, resize, quality, skip_bad=on_bad == "skip")
    plan = make_plan(
        found,
        storage,
        shuffle=shuffle,
        limit=limit,
        shards=parse_shards(shards, storage),
        first_label=first_label,
        treatment=treatment,
    )
    run_plan(plan, target, workers, as_json=as_json, quiet=quiet)


@app.command()
def make(
    kind: Annotated[Literal["classify", "detect"], typer.Argument(help="Pictures with a class, or with boxes.")],
    target: Annotated[
        Path | None, typer.Option("--to", help="Folder to make.", show_default="in $TRAINSTONE_CACHE")
    ] = None,
    storage: Format = "folder",
    count: Annotated[int, typer.Option("--count", min=1, help="Training pictures.")] = 2000,
    val: Annotated[int, typer.Option("--val", min=0, help="Validation pictures.")] = 500,
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
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other pictures for another seed.")] = 0,
    shards: Shards = None,
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Generate pictures that a network can learn from: shapes, textures, scenes; as real JPEGs."""
    from trainstone.data.generated.source import GeneratedSource, plan_stored

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
    from trainstone.cli.progress import ProgressLine
    from trainstone.data.raw.coco import prepare_coco
    from trainstone.data.raw.download import fetch, list_coco_files
    from trainstone.machine.ranks import read_rank

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
    tell_made(target, as_json=as_json, worked=worked)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A data set: a folder, or a file of records.")],
    workers: Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Decode every record; name each bad one by file, record and byte. Exit 9 if there is one."""
    from trainstone.cli.dataset import print_findings
    from trainstone.cli.progress import ProgressLine
    from trainstone.data.manifest import read_manifest
    from trainstone.data.recognise import open_dataset
    from trainstone.data.verify import Findings
    from trainstone.data.verify import verify as look_at_all
    from trainstone.machine.ranks import read_rank

    start_work(quiet)
    rank = read_rank()
    manifest = read_manifest(path) if path.is_dir() else None
    found = open_dataset(path, classes=False)
    findings = Findings()
    with ProgressLine(quiet=bool(quiet) or rank.number > 0) as line, interruptible(""):
        for findings in look_at_all(found, count_workers(workers), manifest, path, rank):
            line.show_work("checking", findings.records, None, "pictures", findings.bytes)
    print_findings(path, found.storage, findings, as_json=as_json)
    if findings.bad or findings.stale:
        raise typer.Exit(EXIT_GATE)


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A data set: a folder, or a file of records.")],
    page: Annotated[Path | None, typer.Option("--page", help="Write a page with sample pictures to this file.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Say what a data set is: how many, which classes, which sizes; with pictures on a page."""
    from trainstone.cli.dataset import tell_dataset
    from trainstone.cli.output import print_json
    from trainstone.data.info import summarise
    from trainstone.data.recognise import open_dataset
    from trainstone.machine.ranks import read_rank

    start_work(quiet)
    if read_rank().number > 0:
        return  # one telling is enough
    with interruptible(""):
        summary = summarise(open_dataset(path), str(path))
    if page is not None:
        from trainstone.report.dataset import write_dataset_page

        write_dataset_page(summary, page)
    if as_json:
        print_json(summary.model_dump(mode="json", exclude={"samples"}))
        return
    tell_dataset(summary, page)
