import os
import subprocess
import sys

import pytest

from trainstone.machine import affinity

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no CPU affinity")


def test_what_was_given_is_remembered_and_restored(monkeypatch: pytest.MonkeyPatch):
    given = os.sched_getaffinity(0)
    monkeypatch.setenv(affinity.VARIABLE, "")
    affinity.remember_affinity()
    try:
        os.sched_setaffinity(0, {min(given)})  # what OpenMP does to the main thread
        assert affinity.read_affinity() == given
        affinity.restore_affinity()
        assert os.sched_getaffinity(0) == given
    finally:
        os.sched_setaffinity(0, given)


def test_without_a_note_the_system_is_asked():
    assert affinity.given_affinity() is None
    assert affinity.read_affinity() == os.sched_getaffinity(0)


def test_a_note_that_is_no_list_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(affinity.VARIABLE, "0,x")
    assert affinity.given_affinity() is None


def test_a_note_is_not_for_other_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(affinity.VARIABLE, "77")
    assert affinity.read_affinity() == {77}
    assert affinity.read_affinity(os.getppid()) == os.sched_getaffinity(os.getppid())


def test_binding_by_openmp_does_not_cost_us_our_cores():
    code = (
        "from trainstone.machine.affinity import remember_affinity\nremember_affinity()\nimport torch\n"
        "from trainstone.machine.cpus import available_cores\nprint(available_cores().logical)"
    )
    environment = {**os.environ, "OMP_PROC_BIND": "true"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(os.sched_getaffinity(0))
