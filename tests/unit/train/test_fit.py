import pytest
import torch

from trainstone.config.load import load_config
from trainstone.errors import ConfigError, MachineError, RunError
from trainstone.train import fit_batch, fit_precision
from trainstone.train.fit import fit_to_machine
from trainstone.train.fit_batch import count_step_work
from trainstone.train.trial import Trial

TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "device=cpu"]
CPU = torch.device("cpu")


def test_no_auto_is_left():
    fitted = fit_to_machine(load_config("resnet50", settings=[*TINY, "measure.seconds=30"]), strict=False)
    assert isinstance(fitted.config.train.batch_size, int)
    assert isinstance(fitted.config.engine.threads, int)
    assert fitted.config.train.precision == "fp32"
    assert fitted.config.device == "cpu"
    assert torch.get_num_threads() == fitted.config.engine.threads


def test_resnet50_counts_what_is_published():
    work = count_step_work(load_config("resnet50"), 4)
    assert work.flops == pytest.approx(4 * 24.3e9, rel=0.01)


@pytest.mark.parametrize("setting", ["engine.cuda_graphs=true", "engine.nvtx=true", "train.precision=tf32"])
def test_what_a_cpu_has_not_is_adapted_or_refused(setting: str):
    config = load_config("resnet50", settings=[*TINY, "train.batch_size=2", setting])
    fitted = fit_to_machine(config, strict=False)
    assert [found.code for found in fitted.findings] == ["engine-adapted"]
    assert not fitted.config.engine.cuda_graphs
    assert not fitted.config.engine.nvtx
    assert fitted.config.train.precision == "fp32"
    with pytest.raises(ConfigError, match="--strict"):
        fit_to_machine(config, strict=True)


def test_a_system_with_more_devices_is_adapted_or_refused():
    settings = [*TINY, "train.batch_size=2", 'system="lab"', "devices_per_node=4"]
    config = load_config("resnet50", settings=settings)
    fitted = fit_to_machine(config, strict=False)
    assert [found.message for found in fitted.findings] == ["system lab has 1 x 4 devices; this run uses one"]
    assert fitted.config.devices_per_node == 1  # what was run, so that config.toml repeats it without a finding
    with pytest.raises(ConfigError, match="--strict"):
        fit_to_machine(config, strict=True)


def test_a_batch_too_large_for_memory_is_refused_with_one_that_fits():
    config = load_config("resnet50", settings=["device=cpu", "train.precision=fp32", "train.batch_size=100000"])
    with pytest.raises(RunError, match=r"out of memory: train.batch_size = 100000 needs about") as caught:
        fit_to_machine(config, strict=False)
    assert caught.value.hint is not None
    hinted = int(caught.value.hint.split("=")[-1])
    assert 1 <= hinted < 100000


def test_batch_norm_needs_two_values():
    config = load_config("resnet50", settings=[*TINY, "train.batch_size=1"])
    with pytest.raises(ConfigError, match="single value a channel"):
        fit_to_machine(config, strict=False)


def test_a_batch_is_halved_until_enough_steps_fit(monkeypatch: pytest.MonkeyPatch):
    tried = []

    def fits(config, device, batch):
        tried.append(batch)
        return batch <= 4

    monkeypatch.setattr(fit_batch, "_fits_time", fits)
    config = load_config("resnet50", settings=[*TINY, "engine.threads=16"])
    config, found = fit_batch.fit_batch(config, CPU)
    assert config.train.batch_size == 4
    assert tried == [16, 8, 4]
    assert [f.code for f in found] == ["batch-fitted"]


def try_with(monkeypatch: pytest.MonkeyPatch, trials: list[Trial], asked: str):
    monkeypatch.setattr(fit_precision, "try_precisions", lambda *_: trials)
    monkeypatch.setattr(fit_precision, "candidate_precisions", lambda _: [trial.precision for trial in trials])
    return fit_precision.fit_precision(load_config("resnet50", settings=[f"train.precision={asked}"]), CPU, 2)


def test_auto_avoids_a_precision_that_is_emulated(monkeypatch: pytest.MonkeyPatch):
    config, (found,) = try_with(monkeypatch, [Trial("fp32", 1.0), Trial("bf16", 13.0)], "auto")
    assert config.train.precision == "fp32"
    assert "bf16 takes 13.00 times as long" in found.message


def test_a_slow_precision_asked_for_is_told(monkeypatch: pytest.MonkeyPatch):
    config, (found,) = try_with(monkeypatch, [Trial("fp32", 1.0), Trial("bf16", 13.0)], "bf16")
    assert config.train.precision == "bf16"
    assert found.code == "precision-slow"
    assert "13.0 times as long as fp32" in found.message


def test_a_precision_that_crashes_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MachineError, match="bf16 does not run on this device: crashed"):
        try_with(monkeypatch, [Trial("fp32", 1.0), Trial("bf16", None, "crashed: Illegal instruction")], "bf16")


def test_a_cpu_without_sixteen_bit_units_takes_fp32_untried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fit_precision, "candidate_precisions", lambda _: ["fp32"])
    monkeypatch.setattr(fit_precision, "try_precisions", lambda *_: pytest.fail("nothing to try"))
    config, (found,) = fit_precision.fit_precision(load_config("resnet50"), CPU, 2)
    assert config.train.precision == "fp32"
    assert found.code == "precision-chosen"
