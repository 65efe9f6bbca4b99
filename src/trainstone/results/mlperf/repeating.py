"""How the runs of a package are repeated: its run_and_time.sh and its README.md. Runs nothing."""

import re
from collections.abc import Sequence

from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.schema import Result, World
from trainstone.text import printable
from trainstone.units import format_count

SCRIPT = "run_and_time.sh"


def find_seeds(runs: Sequence[LoggedRun], results: Sequence[Result]) -> list[int | None]:
    """Return the seed of each run: what its log says, else its configuration; None where neither does."""
    seeds: list[int | None] = []
    for run, result in zip(runs, results, strict=True):
        told = run.seeds[0] if run.seeds else result.config.get("seed")
        seeds.append(told if type(told) is int and told >= 0 else None)
    return seeds


def write_readme(runs: Sequence[LoggedRun], results: Sequence[Result]) -> str:
    """Say what was run, for who wants to repeat it."""
    first, software = results[0], results[0].software
    seeds = ["unknown" if seed is None else str(seed) for seed in find_seeds(runs, results)]
    lines = [
        f"# {first.recipe.name} {first.recipe.version}, trainstone {software.get('trainstone', 'unknown')}",
        "",
        f"{format_count(len(runs), 'run')} of `config.toml`, {'seed' if len(seeds) == 1 else 'seeds'} "
        f"{', '.join(seeds)}; `{SCRIPT}` repeats {'it' if len(seeds) == 1 else 'them'}.",
        f"PyTorch {software.get('torch', 'unknown')}, Python {software.get('python', 'unknown')}, "
        f"{tell_world(first.world)}.",
        "",
        "The source of that version of trainstone belongs here, too, before this is submitted.",
    ]
    return "\n".join(printable(line) for line in lines) + "\n"


def write_script(runs: Sequence[LoggedRun], results: Sequence[Result]) -> str:
    """Return a shell script that repeats the runs; of texts from files only plain versions and numbers stand in it."""
    version = str(results[0].software.get("trainstone", ""))
    wanted = f"trainstone=={version}" if re.fullmatch(r"[0-9A-Za-z.+-]{1,40}", version) else "trainstone"
    seeds, world = find_seeds(runs, results), results[0].world
    numbers = [seed for seed in seeds if seed is not None]
    lines = [
        "#!/bin/sh",
        "# Needs the prepared data where config.toml says (data.root), or --data DIR with a full path.",
        *([] if len(numbers) == len(seeds) else ["# Not every run has told its seed: others are taken."]),
        *([] if world.nodes == 1 else list_node_lines(world)),
        "set -eu",
        'cd "$(dirname "$0")"',
        f'pip install "{wanted}"',
        *list_commands(numbers if len(numbers) == len(seeds) else list(range(1, len(seeds) + 1)), world),
    ]
    return "\n".join(lines) + "\n"


def list_commands(seeds: Sequence[int], world: World) -> list[str]:
    """Return the lines that train: --runs for one rank and seeds counted up, else a loop over the seeds."""
    counted = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    if world.ranks == 1 and counted:  # under a launcher every rank would start runs of its own
        repeat = f" --runs {len(seeds)}" if len(seeds) > 1 else ""
        return [f'exec trainstone train config.toml{repeat} --seed {seeds[0]} "$@"']
    return [
        f"for seed in {' '.join(map(str, seeds))}; do",
        f'    {list_launcher(world)} train config.toml --seed $seed "$@"',
        "done",
    ]


def list_launcher(world: World) -> str:
    """Return the words that start all ranks."""
    if world.ranks == 1:
        return "trainstone"
    here = max(1, world.ranks // world.nodes)
    if world.nodes == 1:
        return f"trainstone launch local --ranks {here} --"
    return f"trainstone launch ${{LAUNCH:-slurm --nodes {world.nodes} --ranks-per-node {here}}} --"


def list_node_lines(world: World) -> list[str]:
    """Return what the script says where one node is not enough."""
    return [
        f"# {tell_world(world)}: started once, it submits a job to Slurm for each run. All nodes must see this folder.",
        "# LAUNCH says otherwise: 'slurm --nodes 2 --partition gpu', 'mpi -np 16 --hostfile HOSTS'.",
    ]


def tell_world(world: World) -> str:
    """Return 8 ranks, or 16 ranks on 2 nodes."""
    ranks = format_count(world.ranks, "rank")
    return ranks if world.nodes == 1 else f"{ranks} on {format_count(world.nodes, 'node')}"
