"""What the package checker says, step by step; the lines are its own."""

import pytest

from trainstone.results.mlperf.verdicts import explain_rcp, read_steps

SYSTEM = "INFO -   System description checker passed for box\n"
RAN = "INFO -  Running compliance checks in dir ./results/box/resnet\nINFO -  Running Seed Checker\n"
PASSED = SYSTEM + RAN + "INFO - RCP Test Passed: RCP found\nINFO - PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !\n"
ACCEPTED = "1 file does not comply, accepting this under olympic scoring"


def told(log: str, division: str = "closed") -> dict[str, tuple[bool | None, str]]:
    return {step.name: (step.passed, step.told) for step in read_steps(log, division)}


def test_all_passed():
    steps = told(PASSED)
    assert {name: passed for name, (passed, _) in steps.items()} == dict.fromkeys(
        ("system", "logs", "seeds", "convergence"), True
    )


def test_the_open_division_is_not_asked_for_seeds():
    assert told(SYSTEM, "open")["seeds"] == (None, "not asked of the open division")
    assert told("", "open")["system"] == (None, "not looked at by this ruleset")


@pytest.mark.parametrize(
    ("log", "step", "words"),
    [
        (
            "ERROR -   System description checker failed for box : ['Missing field cooling']\n",
            "system",
            "Missing field",
        ),
        ("ERROR -  2 files do not comply, directory cannot be accepted\n", "logs", "2 files do not comply"),
        ("ERROR - Incorrect number of files in dir, found 3, expected 5\n", "logs", "found 3, expected 5"),
        (
            "ERROR -  Seed checker failed and found the following errors: Result file r logs no seed.\nERROR - Seed\n",
            "seeds",
            "Result file r logs no seed.",
        ),
        ("ERROR - RCP Test Failed: Insufficient convergence\n", "convergence", "more than one run missed"),
    ],
)
def test_what_failed_is_named(log, step, words):
    passed, text = told(log)[step]
    assert passed is False
    assert words in text


def test_one_bad_log_is_accepted_and_never_said_to_pass():
    log = PASSED.replace("INFO -  Running Seed", f"WARNING -  {ACCEPTED}\nINFO -  Running Seed")
    logs = next(step for step in read_steps(log, "closed", 1) if step.name == "logs")
    assert logs == ("logs", False, ACCEPTED, True)


def test_logs_that_failed_by_themselves_are_never_said_to_pass():
    assert told(PASSED)["logs"][0] is True
    failed = {step.name: step for step in read_steps(PASSED, "closed", 2)}["logs"]
    assert (failed.passed, failed.told, failed.accepted) == (False, "2 logs failed", False)


def test_a_benchmark_that_was_skipped_has_passed_nothing():
    steps = told(SYSTEM + "WARNING -  Skipping benchmark: resnet\nINFO - PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !\n")
    assert steps["logs"] == (False, "Skipping benchmark: resnet: the ruleset has none, so no log was looked at")
    assert steps["seeds"][0] is None
    assert steps["convergence"][0] is None


def test_several_complaints_of_seeds_are_one_step_each():
    log = (
        "ERROR -  Seed checker failed and found the following errors: Result file a logs no seed.\n"
        "Result file b logs no seed.\nERROR - Seed checker failed\n"
    )
    seeds = [step for step in read_steps(PASSED + log, "closed") if step.name == "seeds"]
    assert [step.told for step in seeds] == ["Result file a logs no seed.", "Result file b logs no seed."]
    assert all(step.passed is False for step in seeds)


def test_a_checker_that_stopped_early_said_nothing_of_the_rest():
    steps = told(SYSTEM)
    assert [steps[name] for name in ("logs", "seeds", "convergence")] == [(None, "the checker did not come to it")] * 3


def test_words_of_the_convergence_check():
    assert "faster than that allows" in explain_rcp("RCP found", False)
    assert "faster" not in explain_rcp("RCP Interpolation", True)
    assert "so large a batch" in explain_rcp("Missing RCP, please submit RCP with BS = 90000", False)
    assert explain_rcp("Something new\n", True) == "Something new\\n"
