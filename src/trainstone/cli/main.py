"""The trainstone command: registers the verbs, turns errors into messages and exit codes.

Each verb is a module of this package and imports torch only when it is called.
"""

import io
import os
import sys
from typing import Annotated

import typer

from trainstone import __version__
from trainstone.cli.bench import bench
from trainstone.cli.compare import MultiValueCommand, compare
from trainstone.cli.data import app as data
from trainstone.cli.doctor import doctor
from trainstone.cli.eval import evaluate
from trainstone.cli.execute import print_error
from trainstone.cli.launch import app as launch
from trainstone.cli.mlperf import app as mlperf
from trainstone.cli.profile import profile
from trainstone.cli.recipes import recipes
from trainstone.cli.report import report
from trainstone.cli.sweep import sweep
from trainstone.cli.train import train
from trainstone.cli.weights import app as weights
from trainstone.errors import EXIT_INTERRUPTED, TrainstoneError
from trainstone.machine.cpus import remember_affinity
from trainstone.machine.launch_protocol import begin_attempt, report_exit_code, write_failure
from trainstone.machine.signals import StopSignals

app = typer.Typer(
    name="trainstone",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (bench, compare, doctor, evaluate, profile, recipes, report, sweep, train):
    app.command("eval" if verb is evaluate else None, cls=MultiValueCommand)(verb)
for verbs in (data, launch, mlperf, weights):
    app.add_typer(verbs)


def print_version(requested: bool) -> None:
    if requested:
        print(f"trainstone {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure how fast this machine trains vision models, with a confidence interval, and what limits it."""


def main() -> None:
    """Run the requested verb. A TrainstoneError becomes one message and an exit code; other errors keep a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ± must not fail a run
    remember_affinity()
    # Hide torch's warnings about unresolved host names and lost ranks: our own message reports them.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        with StopSignals(at_once=True):  # until a run folder is open: from then on the run handles signals
            begin_attempt(verb)
            app()
    except KeyboardInterrupt:
        sys.exit(report_exit_code(EXIT_INTERRUPTED, verb))
    except SystemExit as end:
        sys.exit(report_exit_code(end.code, verb) if isinstance(end.code, int) else end.code)
    except TrainstoneError as err:
        print_error(err)
        sys.exit(err.exit_code)
    except Exception as err:
        write_failure(err)
        raise
