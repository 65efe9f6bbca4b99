"""Which ruleset a log is checked by: by benchmark, by line form, or as asked where that can be."""

import pytest

from made_mlperf import make_logged
from trainstone.errors import ConfigError, DataError
from trainstone.results.mlperf.rules import choose_ruleset

KNOWN = {"4.10.0": {"unet3d"}, "0.6.0": {"resnet", "ssd"}, "0.7.0": {"resnet"}, "4.0.0": {"resnet", "unet3d"}}


@pytest.mark.parametrize(
    ("changes", "asked", "ruleset", "reason"),
    [
        ({}, None, "4.0.0", "the last with ResNet"),
        ({"benchmark": "ssd"}, None, "1.0.0", "RetinaNet"),
        ({"benchmark": "unet3d"}, None, "4.10.0", "the last with rules for unet3d"),
        ({"form": "0.6", "benchmark": "ssd"}, None, "0.6.0", "the log is of MLPerf 0.6"),
        ({"form": "0.6"}, "0.6.0", "0.6.0", "asked for"),
        ({}, "0.7.0", "0.7.0", "asked for"),
    ],
)
def test_the_choice_has_its_reason(changes, asked, ruleset, reason):
    choice = choose_ruleset(make_logged(**changes), KNOWN, asked)
    assert choice.ruleset == ruleset
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("changes", "asked", "kind", "told"),
    [
        ({}, "9.9.9", ConfigError, "--ruleset 9.9.9 is not known"),
        ({}, "0.6.0", DataError, "its lines are :::MLLOG, which ruleset 0.6.0 does not read"),
        ({"form": "0.6"}, "4.0.0", DataError, "its lines are :::MLL of 0.6, which ruleset 4.0.0 does not read"),
        ({"form": "0.5"}, None, DataError, "MLPerf 0.5 .* no ruleset of mlperf-logging reads"),
        ({"form": "0.5"}, "0.6.0", DataError, "MLPerf 0.5"),
        ({}, "4.10.0", ConfigError, r"--ruleset 4.10.0 has no resnet: resnet has rules in 0.6.0 \.\.\. 4.0.0"),
        ({"benchmark": "vgg"}, "4.0.0", DataError, "no ruleset has rules for benchmark vgg"),
        ({"benchmark": None}, None, DataError, "no ruleset has rules for benchmark None"),
        ({"benchmark": "a\x1bb"}, None, DataError, r"benchmark a\\x1bb"),
    ],
)
def test_what_cannot_be_is_refused(changes, asked, kind, told):
    with pytest.raises(kind, match=told):
        choose_ruleset(make_logged(**changes), KNOWN, asked)


def test_a_ruleset_without_the_benchmark_names_one_that_has_it():
    with pytest.raises(ConfigError) as caught:
        choose_ruleset(make_logged(), KNOWN, "4.10.0")
    assert caught.value.hint == "--ruleset 4.0.0"
    with pytest.raises(ConfigError, match=r"unet3d has rules in 4\.0\.0 \.\.\. 4\.10\.0") as caught:
        choose_ruleset(make_logged(benchmark="unet3d"), KNOWN, "0.7.0")
    assert caught.value.hint == "--ruleset 4.10.0"
