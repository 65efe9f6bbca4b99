"""train --runs on the command line: which runs there are to make, and by which commands."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from trainstone.errors import ConfigError

if TYPE_CHECKING:
    from trainstone.config.schema import Config
    from trainstone.results.quality import Repeated


def plan_runs(config: "Config", resume: Path | None, runs: int, *, strict: bool, changed: bool) -> "Repeated | None":
    """Return what --runs asks for, or the run that is resumed was asked for; None: a single run."""
    from trainstone.launch.sweep import check_settled
    from trainstone.machine.ranks import read_rank
    from trainstone.results.quality import Repeated
    from trainstone.results.store import read_result

    repeated = read_result(resume).repeated if resume else None
    if resume and runs > 1:
        raise ConfigError("--runs begins new runs, --resume goes on with those there are", hint="give one of the two")
    if repeated and changed:
        raise ConfigError(
            f"{resume} has {repeated.num_runs} runs of one configuration: --resume cannot change it",
            hint=f"for another begin anew: trainstone train {resume}/config.toml --runs {repeated.num_runs} --set ...",
        )
    if resume and repeated:
        check_settled(resume)
    if runs > 1:
        repeated = Repeated(num_runs=runs, first_seed=config.seed, strict=strict)
    if repeated and read_rank().world > 1:
        raise ConfigError(
            f"--runs starts its runs itself, one after the other; here {read_rank().world} ranks would each do so",
            hint="start it without a launcher; or each run by itself: trainstone launch ... -- train ... --seed N",
        )
    return repeated


def tell_commands(repeated: "Repeated", config: "Config", resume: Path | None) -> list[str]:
    from trainstone.launch.child_runs import list_due, plan_child

    folder = resume or Path("RUN")
    due = list_due(folder, repeated)
    return [shlex.join(plan_child(folder, repeated, seed, config.name).command) for seed in due]
