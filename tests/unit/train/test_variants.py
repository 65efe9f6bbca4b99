import pytest
import torch

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.errors import ConfigError, RunError
from trainstone.train import fit_batch, variants
from trainstone.train.variants import (
    fit_pair,
    inherit_autos,
    label_pair,
    list_differences,
    tell_unasked,
)

TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "device=cpu", "engine.threads=1"]


@pytest.fixture(autouse=True)
def own_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def make(*settings: str, recipe: str = "resnet50") -> Config:
    return load_config(recipe, settings=[*TINY, *settings])


def test_b_takes_over_what_as_autos_became():
    a, b = make("train.batch_size=auto", "engine.threads=auto"), make("train.batch_size=auto", "engine.threads=1")
    fitted = make("train.batch_size=16", "engine.threads=8")
    inherited = inherit_autos(a, b, fitted)
    assert inherited.train.batch_size == 16
    assert inherited.engine.threads == 1


def test_an_auto_of_b_alone_stays():
    a, b = make("train.batch_size=4"), make("train.batch_size=auto")
    assert inherit_autos(a, b, a).train.batch_size == "auto"


def test_a_pair_differs_in_what_was_asked_for_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fit_batch, "_fits_time", lambda config, device, batch: config.model.depth > 18 or batch <= 2)
    a = make("train.batch_size=auto", "engine.threads=4")
    pair = fit_pair(a, make("train.batch_size=auto", "engine.threads=1"), same_recipe=True, strict=False)
    assert {name: one.config.train.batch_size for name, one in pair.items()} == {"A": 2, "B": 2}
    assert [key for key, _, _ in list_differences(pair["A"].config, pair["B"].config)] == ["engine.threads"]


def test_another_recipe_is_fitted_by_itself():
    a, b = make("train.batch_size=4"), make("train.batch_size=2", "model.depth=34")
    pair = fit_pair(a, b, same_recipe=False, strict=False)
    assert {name: one.config.train.batch_size for name, one in pair.items()} == {"A": 4, "B": 2}


def test_the_same_is_fitted_once(monkeypatch: pytest.MonkeyPatch):
    a = make("train.batch_size=2")
    pair = fit_pair(a, make("train.batch_size=2"), same_recipe=False, strict=False)
    assert pair["A"] is pair["B"]


def test_errors_of_fitting_name_their_variant():
    with pytest.raises(ConfigError, match=r"^B: train.batch_size = 1 with data.image_size = 32"):
        fit_pair(make("train.batch_size=2"), make("train.batch_size=1"), same_recipe=True, strict=False)
    with pytest.raises(ConfigError, match=r"^B: --strict: engine.nvtx needs CUDA"):
        fit_pair(
            make("train.batch_size=2"), make("train.batch_size=2", "engine.nvtx=true"), same_recipe=True, strict=True
        )


def test_two_devices_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(variants, "choose_device", torch.device)
    with pytest.raises(ConfigError, match="A asks for cpu, B for cuda:1"):
        fit_pair(make(), make("device=cuda:1"), same_recipe=True, strict=False)


def test_both_must_fit_into_memory_together(monkeypatch: pytest.MonkeyPatch):
    """ResNet-18 has 11.7 million parameters: the other one's weights and momentum are 94 MB more."""
    a = make("train.batch_size=2")
    alone = fit_batch.needed_bytes(a, torch.device("cpu"), 2)
    monkeypatch.setattr(variants, "free_bytes", lambda _device: alone + 90 * 10**6)
    with pytest.raises(RunError, match="out of memory: both in one process"):
        fit_pair(a, a, same_recipe=True, strict=False)
    monkeypatch.setattr(variants, "free_bytes", lambda _device: alone + 100 * 10**6)
    fit_pair(a, a, same_recipe=True, strict=False)


def test_labels_are_the_keys_that_differ():
    assert label_pair(make("train.batch_size=2"), make("train.batch_size=4", "engine.channels_last=false")) == {
        "A": "train.batch_size=2, engine.channels_last=true",
        "B": "train.batch_size=4, engine.channels_last=false",
    }


def test_labels_of_many_differences_are_short():
    changes = ["train.batch_size=4", "model.depth=34", "data.image_size=64", "seed=7", "engine.compile=true"]
    assert label_pair(make(), make(*changes))["B"] == "seed=7, model.depth=34, data.image_size=64 and 2 more"


def test_labels_of_two_recipes_are_their_names():
    other = make("train.batch_size=4").model_copy(update={"name": "mine"})
    assert label_pair(make(), other) == {"A": "resnet50", "B": "mine"}
    assert label_pair(make(), make()) == {"A": "resnet50", "B": "resnet50"}


def test_how_long_is_measured_is_no_difference():
    assert list_differences(make("measure.seconds=1"), make("measure.seconds=2", 'system="lab"')) == []


def test_what_the_machine_made_of_it_is_told():
    asked = {"A": make("train.batch_size=auto"), "B": make("train.batch_size=auto", "model.depth=34")}
    fitted = {"A": make("train.batch_size=4"), "B": make("train.batch_size=2", "model.depth=34")}
    assert tell_unasked(asked, fitted) == ["train.batch_size: 4 and 2, as fitted to this machine"]
    asked = {"A": make("train.batch_size=auto"), "B": make("train.batch_size=2")}
    same = make("train.batch_size=2")
    (told,) = tell_unasked(asked, {"A": same, "B": same})
    assert told.startswith("in nothing")
    assert tell_unasked({"A": same, "B": same}, {"A": same, "B": same}) == []
