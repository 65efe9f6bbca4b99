"""trainstone launch: run a verb on many ranks, by torchrun, Open MPI or Slurm."""

from pathlib import Path
from typing import Annotated

import typer

from trainstone.cli import options
from trainstone.cli.launch_slurm import Restarts, Words, slurm

# Options after the verb's name are the verb's, with or without -- before it.
VERB_FOLLOWS = {"allow_interspersed_args": False}

app = typer.Typer(
    name="launch",
    help="Run bench, train, profile or eval on many ranks: trainstone launch local --ranks 2 -- train demo-classify.",
    no_args_is_help=True,
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be run; run nothing, make nothing.")]


@app.command(context_settings=VERB_FOLLOWS)
def local(
    words: Words = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-np", min=1, help="How many.", show_default="one for each CUDA device"),
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Start more ranks than cores or memory have room for.")
    ] = False,
    max_restarts: Restarts = 0,
    system: options.SystemName = None,
    dry_run: DryRun = False,
    verbose: options.Verbose = 0,
) -> None:
    """Ranks on this machine, by torchrun: one for each device, or on the CPU with its cores divided among them."""
    from trainstone.cli.launching import name_launch, print_plan, run_launch
    from trainstone.launch.folder import prepare_folder
    from trainstone.launch.local import check_room, choose_ranks, plan_local
    from trainstone.launch.verb import read_verb

    verb = read_verb(words or [], system=system, ranks=ranks)
    number, name = choose_ranks(ranks), name_launch("local")
    check_room(verb, number, max_restarts, oversubscribe=oversubscribe)
    if dry_run or verb.dry_run:
        print_plan(plan_local(verb, verb.out.absolute() / "RUN", name, ranks=number, max_restarts=max_restarts), verb)
        return
    run = prepare_folder(verb)
    plan = plan_local(verb, run, name, ranks=number, max_restarts=max_restarts)
    run_launch(plan, verb, run, verbose=bool(verbose))


@app.command(context_settings=VERB_FOLLOWS)
def mpi(
    words: Words = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", "-np", min=1, help="How many in all.", show_default="the system's, or the hosts' slots"
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", "-H", metavar="A:4,B:4", help="Hosts and how many ranks each has.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option("--hostfile", help="The same as a file of mpirun's.")] = None,
    container: Annotated[
        str | None, typer.Option("--container", metavar="IMAGE", help="Run each rank in this Apptainer image.")
    ] = None,
    max_restarts: Restarts = 0,
    mpirun: Annotated[
        str, typer.Option("--mpirun", metavar="WORDS", help="Further options for mpirun, as one argument.")
    ] = "",
    system: options.SystemName = None,
    dry_run: DryRun = False,
    verbose: options.Verbose = 0,
) -> None:
    """Ranks on this machine or many, by Open MPI's mpirun."""
    from trainstone.cli.launching import name_launch, print_plan, run_launch
    from trainstone.launch.folder import prepare_folder
    from trainstone.launch.mpi import Asked, check_hosts, check_programs, plan_mpi
    from trainstone.launch.verb import read_verb

    verb = read_verb(words or [], system=system, ranks=ranks)
    asked, name = Asked(ranks, host, hostfile, container, max_restarts, mpirun), name_launch("mpi")
    planned = plan_mpi(verb, verb.out.absolute() / "RUN", name, asked)
    if dry_run or verb.dry_run:
        print_plan(planned, verb)
        return
    check_hosts(asked, verb)
    check_programs(planned)
    run = prepare_folder(verb)
    run_launch(plan_mpi(verb, run, name, asked), verb, run, verbose=bool(verbose))


app.command("slurm", context_settings=VERB_FOLLOWS)(slurm)
