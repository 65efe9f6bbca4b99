from pathlib import Path

import pytest

from trainstone.config.load import (
    format_toml,
    hash_config,
    list_keys,
    list_shipped,
    load_config,
    load_system,
    parse_setting,
)
from trainstone.errors import ConfigError

SYSTEM = """
name = "lab-4gpu"
summary = "four devices under a desk"
devices_per_node = 4
[recipe.resnet50.train]
batch_size = 64
"""


def test_load_config_accepts_every_shipped_recipe_and_system():
    for kind, load in (("recipes", load_config), ("systems", load_system)):
        loaded = {name: load(name) for name in list_shipped(kind)}
        assert loaded
        assert [name for name, entry in loaded.items() if entry.name != name or not entry.summary] == []


def test_load_config_of_a_resolved_file_returns_the_same_config(tmp_path: Path):
    config = load_config("resnet50", settings=["train.batch_size=8", "measure.iterations=7"], flags={"seed": 5})
    path = tmp_path / "config.toml"
    path.write_text(format_toml(config))
    assert load_config(str(path)) == config
    assert load_config(str(tmp_path)) == config  # the folder of a run


def test_load_config_prefers_set_over_flags_over_system_over_recipe(tmp_path: Path):
    system = tmp_path / "lab.toml"
    system.write_text(SYSTEM)
    assert load_config("resnet50", system=str(system)).train.batch_size == 64
    config = load_config("resnet50", system=str(system), settings=["train.batch_size=8", "seed=1"], flags={"seed": 2})
    assert config.train.batch_size == 8
    assert config.seed == 1
    assert (config.system, config.nodes, config.devices_per_node) == ("lab-4gpu", 1, 4)


def test_parse_setting_reads_toml_values_and_bare_words():
    values = {"3": 3, "0.5": 0.5, "true": True, "fp32": "fp32", '"x y"': "x y", "cuda:1": "cuda:1", "007": "007"}
    assert {text: parse_setting(f"a.b={text}") for text in values} == {text: ("a.b", values[text]) for text in values}
    for text in ("a.b", "=3", "a.b=", "a.b=[1,", "a.b=x y", f"a.b={'9' * 5000}"):
        with pytest.raises(ConfigError, match=r"expected KEY=VALUE|is not a TOML value|cannot be read"):
            parse_setting(text)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("xyzzy=1", "unknown key 'xyzzy'"),
        ("train.batchsize=8", "unknown key 'train.batchsize', did you mean train.batch_size?"),
        ("batch_size=8", "did you mean train.batch_size or eval.batch_size?"),
        ("zzz.qqq=1", "unknown key"),
        (
            "train.batch_size=x",
            "invalid train.batch_size = 'x': input should be a valid integer; or input should be 'auto'",
        ),
        ("train.batch_size=0", "greater than or equal to 1"),
        ("train.batch_size=2.5", "integer"),
        ("train.batch_size=true", "integer"),
        ("model.depth=51", "input should be 18, 34, 50, 101 or 152"),
        ("engine.compile=1", "boolean"),
        ("measure.seconds=inf", "finite"),
        ("measure.seconds=-1", "greater than 0"),
        ("train=3", "invalid train = 3: train is a section; set its keys (train.batch_size, "),
        ("model.depth.x=1", "depth is a single value"),
    ],
)
def test_load_config_reports_an_invalid_setting_in_one_sentence(setting: str, words: str):
    with pytest.raises(ConfigError) as caught:
        load_config("resnet50", settings=[setting])
    assert words in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("resnet5", None, "did you mean resnet50"),
        ("nowhere.toml", None, "recipe file not found"),
        ("./bad.toml", b"name = ", "not valid TOML"),
        ("./bad.toml", b"\x00", "not valid TOML"),
        ("./bad.toml", b"\xff\xfe\x00", "cannot read"),
        ("./bad.toml", b'name = "x"\nsummary = "y"\n', "missing key 'version'"),
    ],
)
def test_load_config_rejects_unreadable_recipes_and_unknown_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, words: str
):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load_config(name)
    with pytest.raises(ConfigError, match="unknown system"):
        load_config("resnet50", system="dgx")


def test_list_keys_documents_every_key_and_hash_config_covers_what_is_executed():
    assert [key for key, allowed, _, meaning in list_keys() if not meaning or not allowed] == []
    base = load_config("resnet50")
    assert hash_config(base) == hash_config(load_config("resnet50", flags={"seed": 9, "measure.seconds": 5}))
    assert hash_config(base) != hash_config(load_config("resnet50", settings=["train.batch_size=8"]))


RECIPE = """
name = "r"
version = 1
summary = "s"
[original]
name = "sc22"
[train]
adapt = ["batch_size", "precision"]
[measure]
iterations = 500
[defects]
seed = 7
[defects.stop]
epochs = 1.0
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "r.toml").write_text(RECIPE)
    return str(tmp_path / "r.toml")


def test_load_config_applies_defects_only_on_request(tmp_path: Path, recipe: str):
    assert (load_config(recipe).stop.epochs, load_config(recipe).seed) == (90.0, 0)
    with_defects = load_config(recipe, settings=["original_defects=true"])
    assert (with_defects.stop.epochs, with_defects.seed, with_defects.original_defects) == (1.0, 7, True)
    # Settings override the defects, and a resolved configuration does not change.
    changed = load_config(recipe, settings=["original_defects=true", "stop.epochs=3.0"])
    (tmp_path / "config.toml").write_text(format_toml(changed))
    assert load_config(str(tmp_path / "config.toml")) == changed
    assert changed.stop.epochs == 3.0
    with pytest.raises(ConfigError, match="recipe resnet50 does not reproduce an original"):
        load_config("resnet50", settings=["original_defects=true"])


def test_load_config_removes_requested_keys_from_adapt(recipe: str):
    assert load_config(recipe).train.adapt == ("batch_size", "precision")
    assert load_config(recipe, settings=["train.batch_size=8"]).train.adapt == ("precision",)
    assert load_config(recipe, flags={"train.precision": "fp32"}).train.adapt == ("batch_size",)
    config = load_config(recipe, flags={"measure.seconds": 5.0, "measure.iterations": None})  # None removes a key
    assert (config.measure.seconds, config.measure.iterations) == (5.0, None)


def test_load_config_notes_a_system_without_settings_for_the_recipe():
    config = load_config("resnet50-wmlce", system="dgxa100")
    assert config.notes == (
        "system dgxa100 has no settings for recipe resnet50-wmlce; it has settings for resnet50-mlperf, ssd300-mlperf",
    )
    assert load_config("resnet50-mlperf", system="dgxa100").notes == ()


def test_load_config_refuses_to_change_defects_of_a_resolved_configuration(tmp_path: Path):
    for value, other in (("true", "false"), ("false", "true")):
        resolved = load_config("resnet50-wmlce", settings=[f"original_defects={value}"])
        (tmp_path / "config.toml").write_text(format_toml(resolved))
        with pytest.raises(ConfigError, match=f"is a resolved configuration with original_defects = {value}"):
            load_config(str(tmp_path / "config.toml"), settings=[f"original_defects={other}"])
        assert load_config(str(tmp_path / "config.toml"), settings=[f"original_defects={value}"]) == resolved
