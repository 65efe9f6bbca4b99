"""The CPUs this process was given at its start.

With OMP_PROC_BIND set, importing torch binds the main thread to one core; asked later, the system would say that we
have only that one. The start of the command line notes the set, in a variable that the trial's child process inherits.
"""

import os

VARIABLE = "TRAINSTONE_CPUS"


def remember_affinity() -> None:
    """Note the CPUs we may use now; call it before torch is imported."""
    if hasattr(os, "sched_getaffinity"):
        os.environ[VARIABLE] = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))


def given_affinity() -> frozenset[int] | None:
    """Return the noted CPUs; None: nothing was noted."""
    try:
        return frozenset(int(cpu) for cpu in os.environ[VARIABLE].split(","))
    except (KeyError, ValueError):
        return None


def read_affinity(pid: int = 0) -> frozenset[int]:
    """Return the CPUs a process may run on, its cpuset included; empty where the system cannot tell."""
    given = given_affinity() if pid in (0, os.getpid()) else None
    if given:
        return given
    ask = getattr(os, "sched_getaffinity", None)
    try:
        return frozenset(ask(pid)) if ask else frozenset()
    except OSError:
        return frozenset()


def restore_affinity() -> None:
    """Take the noted CPUs back."""
    cpus = given_affinity()
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
