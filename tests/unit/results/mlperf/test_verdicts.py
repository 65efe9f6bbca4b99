"""What the package checker says, step by step; the lines are its own."""

import pytest

from trainstone.results.mlperf.verdicts import explain_rcp, read_steps

SYSTEM = "INFO -   System description checker passed for box\n"
PASSED = SYSTEM + "INFO - RCP Test Passed: RCP found\nINFO - PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !\n"


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


def test_one_bad_log_is_accepted_and_said():
    passed, text = told("WARNING -  1 file does not comply, accepting this under olympic scoring\n")["logs"]
    assert passed
    assert text == "1 file does not comply, accepting this under olympic scoring"


def test_a_checker_that_stopped_early_said_nothing_of_convergence():
    assert told(SYSTEM)["convergence"] == (None, "the checker did not come to it")


def test_words_of_the_convergence_check():
    assert "faster than that allows" in explain_rcp("RCP found", False)
    assert "faster" not in explain_rcp("RCP Interpolation", True)
    assert "so large a batch" in explain_rcp("Missing RCP, please submit RCP with BS = 90000", False)
    assert explain_rcp("Something new\n", True) == "Something new\\n"
