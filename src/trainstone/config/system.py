"""What a system file may say: geometry, how ranks are started there, and what each recipe changes."""

from typing import Annotated, Any

from pydantic import Field

from trainstone.config.schema import Section


class LaunchConfig(Section):
    """How a system starts many ranks; options of `trainstone launch` go before these."""

    partition: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: queue."""
    account: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: who pays."""
    time: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: time limit as sbatch takes it, for example 4:20:00."""
    gres: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: devices of a node, for example gpu:4."""
    sbatch: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Slurm: further options, for example exclusive or mem=0."""
    prologue: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Shell lines before the work, for example module load cuda."""
    environment: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    """Variables that every rank gets. Their names are not quoted in scripts."""
    container: Annotated[str, Field(min_length=1)] | None = None
    """Apptainer image that ranks run in."""


class System(Section):
    """Where a recipe was meant to run: geometry, and what each recipe changes there."""

    name: str
    """Name of the system."""
    summary: str
    """One line about the machine."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of hosts."""
    devices_per_node: Annotated[int, Field(ge=1)] = 1
    """Devices a host."""
    launch: LaunchConfig = LaunchConfig()
    recipe: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """One table for each recipe: the keys it changes on this system."""
