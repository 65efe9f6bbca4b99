"""Which ruleset a log is checked by: by benchmark, by line form, or as requested where that can be."""

import pytest

from made_mlperf import make_logged
from trainstone.errors import ConfigError, DataError
from trainstone.results.mlperf.summary import choose_ruleset

KNOWN = {"4.10.0": {"unet3d"}, "0.6.0": {"resnet", "ssd"}, "0.7.0": {"resnet"}, "4.0.0": {"resnet", "unet3d"}}


@pytest.mark.parametrize(
    ("changes", "requested", "ruleset"),
    [
        ({}, None, "4.0.0"),
        ({"benchmark": "ssd"}, None, "1.0.0"),
        ({"benchmark": "unet3d"}, None, "4.10.0"),
        ({"form": "0.6", "benchmark": "ssd"}, None, "0.6.0"),
        ({"form": "0.6"}, "0.6.0", "0.6.0"),
        ({}, "0.7.0", "0.7.0"),
    ],
)
def test_the_choice_has_its_reason(changes, requested, ruleset):
    choice = choose_ruleset(make_logged(**changes), KNOWN, requested)
    assert choice.ruleset == ruleset
    assert choice.reason


@pytest.mark.parametrize(
    ("changes", "requested", "kind", "seen"),
    [
        ({}, "9.9.9", ConfigError, "9.9.9"),
        ({}, "0.6.0", DataError, "0.6.0"),
        ({"form": "0.6"}, "4.0.0", DataError, "4.0.0"),
        ({"form": "0.5"}, None, DataError, "0.5"),
        ({"form": "0.5"}, "0.6.0", DataError, "0.5"),
        ({}, "4.10.0", ConfigError, "0.6.0, 0.7.0, 4.0.0"),
        ({"benchmark": "vgg"}, "4.0.0", DataError, "vgg"),
        ({"benchmark": "a\x1bb"}, None, DataError, r"a\x1bb"),
    ],
)
def test_what_cannot_be_is_refused(changes, requested, kind, seen):
    with pytest.raises(kind) as err:
        choose_ruleset(make_logged(**changes), KNOWN, requested)
    assert seen in err.value.message
    assert err.value.hint


def test_the_hint_for_ssd_is_the_ruleset_of_ssd300():
    known = {"1.0.0": {"ssd"}, "4.1.0": {"ssd"}, "5.0.0": {"bert"}}
    with pytest.raises(ConfigError) as err:
        choose_ruleset(make_logged(benchmark="ssd"), known, "5.0.0")
    assert err.value.hint == "--ruleset 1.0.0"
