"""trainstone eval: what saved weights are worth. Quality, single pictures, inference speed, or a file for others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trainstone.cli import options
from trainstone.cli.compare import spread_to
from trainstone.cli.execute import Options, execute
from trainstone.cli.output import print_json, print_stderr
from trainstone.errors import ConfigError, DataError
from trainstone.results.progress import Progress
from trainstone.text import printable

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainstone.config.schema import Config
    from trainstone.results.schema import Status
    from trainstone.train.lifecycle import Lifecycle
    from trainstone.train.saved import Saved


class EvalCommand(TyperCommand):
    """Gives --predict every word up to the next option, so that a shell pattern can stand after it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread_to(args, "--predict"))


def evaluate(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint, a run folder (its best one), or weights of other tools: .safetensors, .pth, .pt.",
            show_default=False,
        ),
    ],
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="Which network weights of other tools are of, and how it sees pictures."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Judge by the pictures of this data set.", show_default="the checkpoint's"),
    ] = None,
    out: options.Out = Path("runs"),
    images: Annotated[
        list[Path],
        typer.Option("--predict", metavar="IMAGE...", help="Say what these pictures show.", show_default=False),
    ] = [],  # noqa: B006
    top: Annotated[int, typer.Option("--top", min=1, help="How many guesses for each picture of --predict.")] = 5,
    bench: Annotated[bool, typer.Option("--bench", help="Measure inference speed (synthetic unless --data).")] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="Time budget of --bench.", show_default="the recipe's: 60"),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write plain safetensors for other tools.", show_default=False),
    ] = None,
    device: options.DeviceName = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Judge saved weights by the validation pictures; or predict, measure inference, export."""
    from trainstone.log import configure_terminal
    from trainstone.machine.ranks import read_rank

    mode = choose_mode(predict=bool(images), bench=bench, export=export is not None, seconds=seconds)
    flags = options.collect_flags(seconds=seconds, device=device, data=data)
    if data is not None or mode == "bench":
        flags["data.source"] = "files" if data is not None else "synthetic"
    configure_terminal(verbose=verbose, quiet=quiet)
    first = read_rank().number == 0
    refuse_repeated(checkpoint)
    saved, config = open_asked(checkpoint, recipe, settings, flags, quiet=bool(quiet) or not first)
    if dry_run:
        print_eval_plan(config, mode, out, as_json=as_json)
    elif mode in ("predict", "export") and not first:
        return
    elif export is not None:
        export_here(config, saved, export, as_json=as_json)
    elif mode == "predict":
        predict_here(config, saved, images, top, as_json=as_json)
    else:
        evaluate_run(config, saved, mode, Options(out, as_json, quiet))


def choose_mode(*, predict: bool, bench: bool, export: bool, seconds: float | None) -> str:
    """Return quality, predict, bench or export; two at once are refused."""
    asked = [name for name, given in (("predict", predict), ("bench", bench), ("export", export)) if given]
    if len(asked) > 1:
        named = " and ".join(f"--{name}" for name in asked)
        raise ConfigError(f"{named} are different things to do", hint="give the command once for each")
    if seconds is not None and not bench:
        raise ConfigError("--seconds is the time of --bench; to judge takes as long as there are pictures")
    return asked[0] if asked else "quality"


def refuse_repeated(path: Path) -> None:
    """A folder of train --runs has weights of several runs: one is to be named."""
    from trainstone.results.store import read_result

    repeated = read_result(path).repeated if (path / "result.json").is_file() else None
    if repeated is None:
        return
    best = max(repeated.runs, key=lambda run: run.value or 0.0, default=None)
    raise DataError(
        f"{path} holds {len(repeated.runs)} runs, each with its own weights",
        hint=f"give one; the best of them is {path / best.run}" if best else None,
    )


def open_asked(
    checkpoint: Path, recipe: str | None, settings: list[str], flags: dict[str, Any], *, quiet: bool
) -> "tuple[Saved, Config]":
    from trainstone.cli.progress import ProgressLine

    with ProgressLine(quiet=quiet) as line:
        line.show(Progress("loading torch"))
        from trainstone.train.saved import check_weights, open_saved, resolve_config

        line.show(Progress("reading the weights"))
        saved = open_saved(checkpoint)
        config = resolve_config(saved, recipe, settings, flags)
        check_weights(config, saved)
        return saved, config


def print_eval_plan(config: "Config", mode: str, out: Path, *, as_json: bool) -> None:
    from trainstone.config.load import write_toml

    if as_json:
        print_json({"config": config.model_dump(mode="json", exclude_none=True), "mode": mode, "out": str(out)})
        return
    print(write_toml(config))
    if mode in ("quality", "bench"):
        print(f"# would write a run folder RUN under {out}/")


def evaluate_run(config: "Config", saved: "Saved", mode: str, opts: Options) -> None:
    from trainstone.machine.allocator import restart_keeping_memory

    if mode == "bench":
        options.refuse_ranks("eval --bench")
        if config.engine.keep_memory:
            restart_keeping_memory()

    def flow(life: "Lifecycle") -> "Generator[Progress, None, Status]":
        from trainstone.train.evaluation import run_eval, run_inference

        return (yield from (run_inference if mode == "bench" else run_eval)(life, saved))

    execute("eval", config, flow, opts)


def predict_here(config: "Config", saved: "Saved", images: list[Path], top: int, *, as_json: bool) -> None:
    """Print what images show; one that cannot be read makes the exit code that of bad data."""
    from trainstone.train.evaluation import predict

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


def export_here(config: "Config", saved: "Saved", target: Path, *, as_json: bool) -> None:
    from trainstone.train.evaluation import export_weights
    from trainstone.units import format_bytes

    made = export_weights(config, saved, target)
    if as_json:
        print_json({"file": str(target), "checkpoint": str(saved.path), "from": saved.origin, **made})
        return
    kind = "averaged weights" if made["averaged"] else "weights"
    size = f"{made['tensors']} tensors, {format_bytes(made['bytes'])}"
    print(printable(f"wrote {kind} of {saved.origin} to {target}: {size}, plain safetensors"))
