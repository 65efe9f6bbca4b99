"""trainstone eval: what saved weights are worth. Quality, single images, inference speed, or a file for others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.execute import Life, ProgressStream, RunOptions, execute, print_resolved
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


def evaluate(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint, a run folder (its best one), or weights of other tools: .safetensors, .pth, .pt."
        ),
    ],
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="Which network weights of other tools are of, and how it sees images."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Judge by the images of this data set.", show_default="the checkpoint's"),
    ] = None,
    out: options.Out = Path("runs"),
    images: Annotated[
        list[Path], typer.Option("--predict", metavar="IMAGE...", help="Say what these images show.")
    ] = [],  # noqa: B006
    top: Annotated[int, typer.Option("--top", min=1, help="How many guesses for each image of --predict.")] = 5,
    bench: Annotated[bool, typer.Option("--bench", help="Measure inference speed (synthetic unless --data).")] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Time budget of --bench.", show_default="the recipe's: 60")
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write plain safetensors for other tools.")
    ] = None,
    device: options.DeviceName = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Judge saved weights by the validation images; or predict, measure inference, export."""
    mode = choose_mode(predict=bool(images), bench=bench, export=export is not None, seconds=seconds)
    flags = options.collect_flags({"measure.seconds": seconds, "device": device}, data)
    if data is not None or mode == "bench":
        flags["data.source"] = "files" if data is not None else "synthetic"
    options.prepare_process(verbose=verbose, quiet=quiet)
    first = read_rank().number == 0
    saved, config = open_requested(checkpoint, recipe, settings, flags, quiet=bool(quiet) or not first)
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
        print(printable(f"wrote {kind} of {saved.origin} to {export}: {size}, plain safetensors"))
    elif mode == "predict":
        predict_here(config, saved, images, top, as_json=as_json)
    else:
        evaluate_run(config, saved, mode, RunOptions(out, as_json, quiet))


def choose_mode(*, predict: bool, bench: bool, export: bool, seconds: float | None) -> str:
    """Return quality, predict, bench or export; two at once are refused."""
    requested = [name for name, given in (("predict", predict), ("bench", bench), ("export", export)) if given]
    if len(requested) > 1:
        named = " and ".join(f"--{name}" for name in requested)
        raise ConfigError(f"{named} are different things to do", hint="give the command once for each")
    if seconds is not None and not bench:
        raise ConfigError("--seconds is the time of --bench; to judge takes as long as there are images")
    return requested[0] if requested else "quality"


def refuse_repeated(path: Path) -> None:
    """A folder of train --runs has weights of several runs: one is to be named."""
    from trainstone.results.run_folder import read_result

    repeated = read_result(path).repeated if (path / "result.json").is_file() else None
    if repeated is None:
        return
    best = max(repeated.runs, key=lambda run: run.value or 0.0, default=None)
    raise DataError(
        f"{path} holds {len(repeated.runs)} runs, each with its own weights",
        hint=f"give one; the best of them is {path / best.run}" if best else None,
    )


def open_requested(
    checkpoint: Path, recipe: str | None, settings: list[str], flags: dict[str, Any], *, quiet: bool
) -> "tuple[SavedWeights, Config]":
    from trainstone.cli.render.progress import ProgressLine

    refuse_repeated(checkpoint)
    with ProgressLine(quiet=quiet) as line:
        line.show(Progress("loading torch"))
        from trainstone.flows.evaluate.load_weights import check_weights, open_saved, resolve_config

        line.show(Progress("reading the weights"))
        saved = open_saved(checkpoint)
        config = resolve_config(saved, recipe, settings, flags)
        check_weights(config, saved)
        return saved, config


def evaluate_run(config: "Config", saved: "SavedWeights", mode: str, opts: RunOptions) -> None:
    if mode == "bench":
        options.refuse_ranks("eval --bench")
        if config.engine.keep_memory:
            restart_keeping_memory()

    def flow(life: Life) -> ProgressStream:
        from trainstone.flows.evaluate.inference import run_inference
        from trainstone.flows.evaluate.run import run_eval

        return (yield from (run_inference if mode == "bench" else run_eval)(life, saved))

    execute("eval", config, flow, opts)


def predict_here(config: "Config", saved: "SavedWeights", images: list[Path], top: int, *, as_json: bool) -> None:
    """Print what images show; one that cannot be read makes the exit code that of bad data."""
    from trainstone.flows.evaluate.predict import predict

    seen = []
    for found in predict(config, saved, images, top):
        seen.append(found)
        if "error" in found:
            named = found["image"] in found["error"]
            print_stderr(printable(f"error: {found['error'] if named else found['image'] + ': ' + found['error']}"))
        elif not as_json:
            print(printable(found["image"]))
            for guess in found["guesses"]:
                print(printable(f"  {100 * guess['score']:5.1f} %  {describe_guess(guess)}"))
    if as_json:
        print_json({"checkpoint": str(saved.path), "from": saved.origin, "predictions": seen})
    if any("error" in found for found in seen):
        raise typer.Exit(DataError.exit_code)


def describe_guess(guess: dict[str, Any]) -> str:
    """Return a class's name, in brackets what it means, and where in the image it is if that is known."""
    text: str = guess.get("name", f"class {guess['class']}") + (f" ({guess['text']})" if "text" in guess else "")
    if "box" not in guess:
        return text
    left, top, right, bottom = (f"{100 * guess['box'][edge]:.0f}" for edge in ("left", "top", "right", "bottom"))
    return f"{text}  at {left}-{right} % from the left, {top}-{bottom} % from the top"
