"""trainstone mlperf: MLPerf logs checked by MLPerf's own checkers, packed for a submission, summed up."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.errors import EXIT_GATE, DataError

if TYPE_CHECKING:
    from trainstone.cli.mlperfing import Verdict
    from trainstone.results.mlperf.rules import Rulesets

app = typer.Typer(name="mlperf", help="Check, pack and sum up MLPerf training logs.", no_args_is_help=True)

Logs = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE|RUN|DIR",
        help="Logs; runs of train, which hold mlperf.log; folders with result_*.txt.",
        show_default=False,
    ),
]
Ruleset = Annotated[
    str | None,
    typer.Option(
        "--ruleset", metavar="X.Y.0", help="Rules of this round of MLPerf.", show_default="resnet 4.0.0, ssd 1.0.0"
    ),
]


@app.command()
def check(
    paths: Logs,
    ruleset: Ruleset = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the checker's own logs in this folder.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run MLPerf's compliance checker on logs and explain what it says. Exit 9 if one fails."""
    from trainstone.cli.mlperfing import Verdict, document_verdict, print_verdicts
    from trainstone.cli.output import print_json
    from trainstone.launch.checkers import list_rulesets
    from trainstone.results.mlperf.find import find_logs

    known = list_rulesets()
    logs, errors = find_logs(paths)
    verdicts = [check_one(log, known, ruleset, keep, number) for number, log in enumerate(logs)]
    verdicts += [Verdict(path, error=err) for path, err in errors.items()]
    if len(verdicts) == 1 and verdicts[0].error is not None:
        raise verdicts[0].error
    if as_json:
        print_json({"passed": all(v.passed for v in verdicts), "logs": [document_verdict(v) for v in verdicts]})
    else:
        print_verdicts(verdicts)
    if any(verdict.error is None and not verdict.passed for verdict in verdicts):
        raise typer.Exit(EXIT_GATE)
    if any(verdict.error is not None for verdict in verdicts):
        raise typer.Exit(DataError.exit_code)


@app.command()
def package(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="A run of train --runs 5, or five runs of train.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder to make: the submission.", show_default=False)
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="What files and folders call the system.", show_default="the logs' platform"),
    ] = None,
    fields: Annotated[
        list[str],
        typer.Option(
            "--field",
            metavar="NAME=TEXT",
            help="Tell a field of the system's description that the run cannot know; repeatable.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    ruleset: Ruleset = None,
    as_json: options.Json = False,
) -> None:
    """Make a submission's folder of runs and let MLPerf's package, seed and convergence checkers judge it."""
    from trainstone.cli.mlperfing import document_package, print_package
    from trainstone.cli.output import print_json
    from trainstone.launch.checkers import check_package, list_rulesets
    from trainstone.results.mlperf.package import make_plan, write_package
    from trainstone.results.mlperf.rules import choose_ruleset
    from trainstone.results.mlperf.summary import make_group
    from trainstone.results.mlperf.system import parse_fields

    known = list_rulesets()
    plan = make_plan(runs, parse_fields(fields), name)
    choice = choose_ruleset(plan.runs[0], known, ruleset)
    verdicts = [check_one(run.path, known, choice.ruleset, None) for run in plan.runs]
    for verdict in verdicts:
        if verdict.error is not None:
            raise verdict.error
    write_package(plan, out)
    checked = check_package(out, choice.ruleset)
    group = make_group(plan.runs)
    if as_json:
        print_json(document_package(plan, out, choice, verdicts, checked, group))
    else:
        print_package(plan, out, choice, verdicts, checked, group)
    if not checked.passed:
        raise typer.Exit(EXIT_GATE)


@app.command()
def summary(paths: Logs, as_json: options.Json = False) -> None:
    """Sum logs up: minutes, epochs and accuracy of each run, MLPerf's score, epochs against the reference."""
    from trainstone.cli.mlperfing import print_groups, warn
    from trainstone.cli.output import print_json
    from trainstone.results.mlperf.find import find_logs
    from trainstone.results.mlperf.summary import document_group, group_runs, read_logs

    logs, empty = find_logs(paths)
    logged, errors = read_logs(logs)
    errors += empty.values()
    if not logged and len(errors) == 1:
        raise errors[0]
    for err in errors:
        warn(f"not read: {err.message}")
    groups = group_runs(logged)
    if as_json:
        print_json({"groups": [document_group(g) for g in groups], "not_read": [err.message for err in errors]})
    else:
        print_groups(groups)
    if errors:
        raise typer.Exit(DataError.exit_code)


def check_one(log: Path, known: "Rulesets", ruleset: str | None, keep: Path | None, number: int = 0) -> "Verdict":
    """Check a log; one that cannot be checked has its error in the verdict."""
    from trainstone.cli.mlperfing import Verdict
    from trainstone.launch.checkers import check_log
    from trainstone.results.mlperf.complaints import read_complaints
    from trainstone.results.mlperf.logged import read_logged
    from trainstone.results.mlperf.package import slug
    from trainstone.results.mlperf.rules import choose_ruleset

    try:
        run = read_logged(log)
        choice = choose_ruleset(run, known, ruleset)
        kept = keep / f"{number}-{slug('-'.join(log.absolute().parts[-3:]))}.log" if keep is not None else None
        checked = check_log(log, choice.ruleset, kept)
    except DataError as err:
        return Verdict(log, error=err)
    complaints = tuple(read_complaints(checked.log, run, choice.ruleset))
    return Verdict(log, run, choice, checked.passed, complaints, checked.fault, kept)
