"""trainstone eval: evaluate saved weights, predict images, measure inference speed, or export weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.execute import ProgressStream, RunOptions, execute, print_resolved
from trainstone.cli.render.output import print_json, print_stderr
from trainstone.errors import ConfigError, DataError
from trainstone.machine.allocator import restart_keeping_memory
from trainstone.machine.ranks import read_rank
from trainstone.results.progress import Progress
from trainstone.text import printable
from trainstone.units import format_bytes

if TYPE_CHECKING:
    from trainstone.config.schema import Config
    from trainstone.flows.evaluate.load_weights import SavedWeights
    from trainstone.flows.lifecycle import Lifecycle

Recipe = Annotated[
    str | None,
    typer.Option("--recipe", help="Recipe that describes the model and its input; needed for weights of other tools."),
]

Data = Annotated[
    Path | None, typer.Option("--data", help="Data set to evaluate on.", show_default="from the checkpoint")
]


def evaluate(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint, run folder (its best checkpoint), or weights of other tools: .safetensors, .pth, .pt."
        ),
    ],
    settings: options.Settings = [],  # noqa: B006  (never mutated)
    recipe: Recipe = None,
    data: Data = None,
    out: options.Out = Path("runs"),
    images: Annotated[
        list[Path], typer.Option("--predict", metavar="IMAGE...", help="Print the predictions for these images.")
    ] = [],  # noqa: B006
    top: Annotated[int, typer.Option("--top", min=1, help="Number of predictions per image of --predict.")] = 5,
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure inference speed, on synthetic images without --data.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="Time budget of --bench, in seconds.", show_default="from the recipe, else 60"),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the weights as a safetensors file for other tools."),
    ] = None,
    device: options.DeviceName = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Evaluate saved weights on the validation images; or predict images, measure inference speed, export."""
    mode = choose_mode(predict=bool(images), bench=bench, export=export is not None, seconds=seconds)
    flags = options.collect_flags({"measure.seconds": seconds, "device": device}, data)
    if data is not None or mode == "bench":
        flags["data.source"] = "files" if data is not None else "synthetic"
    options.prepare_process(verbose=verbose, quiet=quiet)
    first = read_rank().number == 0
    saved, config = open_weights(checkpoint, recipe, settings, flags, quiet=bool(quiet) or not first)
    if dry_run:
        lines = [f"# would write a run folder RUN under {out}/"] if mode in ("quality", "bench") else []
        print_resolved(config, lines, as_json=as_json, mode=mode, out=str(out))
    elif mode in ("predict", "export") and not first:
        return
    elif export is not None:
        from trainstone.flows.evaluate.run import export_weights

        made = export_weights(config, saved, export)
        if as_json:
            print_json({"file": str(export), "checkpoint": str(saved.path), "from": saved.origin, **made})
            return
        kind = "averaged weights" if made["averaged"] else "weights"
        size = f"{made['tensors']} tensors, {format_bytes(made['bytes'])}"
        print(printable(f"wrote {kind} of {saved.origin} to {export}: {size}, safetensors"))
    elif mode == "predict":
        print_predictions(config, saved, images, top, as_json=as_json)
    else:
        evaluate_run(config, saved, mode, RunOptions(out, as_json, quiet))


def choose_mode(*, predict: bool, bench: bool, export: bool, seconds: float | None) -> str:
    """Return quality, predict, bench or export; raise if more than one is requested."""
    requested = [name for name, given in (("predict", predict), ("bench", bench), ("export", export)) if given]
    if len(requested) > 1:
        named = " and ".join(f"--{name}" for name in requested)
        raise ConfigError(f"{named} exclude each other", hint="give one of them")
    if seconds is not None and not bench:
        raise ConfigError("--seconds needs --bench: an evaluation always uses all images")
    return requested[0] if requested else "quality"


def check_single_run(path: Path) -> None:
    """Raise for a folder of train --runs: it holds the weights of several runs."""
    from trainstone.results.run_folder import read_result

    repeated = read_result(path).repeated if (path / "result.json").is_file() else None
    if repeated is None:
        return
    best = max(repeated.runs, key=lambda run: run.value or 0.0, default=None)
    raise DataError(
        f"{path} holds {len(repeated.runs)} runs, each with its own weights",
        hint=f"give one of them; the best is {path / best.run}" if best else None,
    )


def open_weights(
    checkpoint: Path, recipe: str | None, settings: list[str], flags: dict[str, Any], *, quiet: bool
) -> "tuple[SavedWeights, Config]":
    from trainstone.cli.render.progress import ProgressLine

    check_single_run(checkpoint)
    with ProgressLine(quiet=quiet) as line:
        line.show(Progress("loading torch"))
        from trainstone.flows.evaluate.load_weights import check_weights, read_saved_weights, resolve_config

        line.show(Progress("reading the weights"))
        saved = read_saved_weights(checkpoint)
        config = resolve_config(saved, recipe, settings, flags)
        check_weights(config, saved)
        return saved, config


def evaluate_run(config: "Config", saved: "SavedWeights", mode: str, opts: RunOptions) -> None:
    if mode == "bench":
        options.check_single_process("eval --bench")
        if config.engine.keep_memory:
            restart_keeping_memory()

    def flow(life: "Lifecycle") -> ProgressStream:
        from trainstone.flows.evaluate.inference import run_inference
        from trainstone.flows.evaluate.run import run_eval

        return (yield from (run_inference if mode == "bench" else run_eval)(life, saved))

    execute("eval", config, flow, opts)


def print_predictions(config: "Config", saved: "SavedWeights", images: list[Path], top: int, *, as_json: bool) -> None:
    """Print the predictions; if an image cannot be read, exit with the code of a DataError."""
    from trainstone.flows.evaluate.predict import predict

    seen = []
    for found in predict(config, saved, images, top):
        seen.append(found)
        if "error" in found:
            named = found["image"] in found["error"]
            print_stderr(printable(f"error: {found['error'] if named else found['image'] + ': ' + found['error']}"))
        elif not as_json:
            print(printable(found["image"]))
            for prediction in found["guesses"]:
                print(printable(f"  {100 * prediction['score']:5.1f} %  {describe_prediction(prediction)}"))
    if as_json:
        print_json({"checkpoint": str(saved.path), "from": saved.origin, "predictions": seen})
    if any("error" in found for found in seen):
        raise typer.Exit(DataError.exit_code)


def describe_prediction(prediction: dict[str, Any]) -> str:
    """Return the name of the class, its description in brackets, and the position of the box, if any."""
    text: str = prediction.get("name", f"class {prediction['class']}") + (
        f" ({prediction['text']})" if "text" in prediction else ""
    )
    if "box" not in prediction:
        return text
    left, top, right, bottom = (f"{100 * prediction['box'][edge]:.0f}" for edge in ("left", "top", "right", "bottom"))
    return f"{text}  at {left}-{right} % from the left, {top}-{bottom} % from the top"
