"""Fitting a recipe to the machine; precision trials; baselines of a bench on real images; timing of the loader."""

from pathlib import Path

import pytest
import torch

from support.builders.data_sets import ListSource, make_classify_samples, make_set
from support.builders.loaders import make_loader
from trainstone.config.load import load_config
from trainstone.config.schema import OptimizerConfig
from trainstone.data.loader import STAGES, Loader
from trainstone.data.splits import open_split
from trainstone.engine import fit, precision_trial
from trainstone.engine.fit import fit_to_machine
from trainstone.engine.lr_schedule import describe_rate_change
from trainstone.engine.precision_trial import Trial, choose_fastest, try_precisions
from trainstone.engine.task import build_task
from trainstone.errors import ConfigError, MachineError, RunError
from trainstone.flows import loader_timing
from trainstone.flows.bench import input_baselines
from trainstone.flows.bench.input_baselines import InputBaselines
from trainstone.flows.data_bench import run
from trainstone.flows.loader_timing import LoaderTiming
from trainstone.machine.cpus import Cores
from trainstone.machine.signals import StopSignals
from trainstone.measure.recorder import StepRecorder
from trainstone.results.step_summary import summarise_steps
from trainstone.results.steps import read_columns

TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "device=cpu"]
CPU = torch.device("cpu")


def test_fit_to_machine_resolves_every_auto():
    fitted = fit_to_machine(load_config("resnet50", settings=[*TINY, "measure.seconds=30"]), strict=False)
    assert isinstance(fitted.config.train.batch_size, int)
    assert isinstance(fitted.config.engine.threads, int)
    assert fitted.config.train.precision == "fp32"
    assert fitted.config.device == "cpu"
    assert torch.get_num_threads() == fitted.config.engine.threads


@pytest.mark.parametrize(
    "settings",
    [
        ["engine.cuda_graphs=true"],
        ["engine.nvtx=true"],
        ["train.precision=tf32"],
        ["measure.profiler_range=[1, 1]"],
        ['system="lab"', "devices_per_node=4"],
    ],
)
def test_fit_to_machine_adapts_unsupported_settings_or_refuses_if_strict(settings: list[str]):
    config = load_config("resnet50", settings=[*TINY, "train.batch_size=2", *settings])
    fitted = fit_to_machine(config, strict=False)
    assert [found.code for found in fitted.findings] == ["engine-adapted"]
    engine, train = fitted.config.engine, fitted.config.train
    assert (engine.cuda_graphs, engine.nvtx, train.precision) == (False, False, "fp32")
    # The fitted values, so that config.toml repeats the run without a finding.
    assert (fitted.config.measure.profiler_range, fitted.config.devices_per_node) == (None, 1)
    with pytest.raises(ConfigError, match="--strict"):
        fit_to_machine(config, strict=True)


def test_fit_to_machine_refuses_too_large_batch_with_hint():
    config = load_config("resnet50", settings=["device=cpu", "train.precision=fp32", "train.batch_size=100000"])
    with pytest.raises(RunError, match=r"out of memory: train.batch_size = 100000 needs about") as caught:
        fit_to_machine(config, strict=False)
    hinted = int(caught.value.hint.split("=")[-1])
    assert 1 <= hinted < 100000


def test_fit_batch_halves_batch_until_steps_fit(monkeypatch: pytest.MonkeyPatch):
    tried = []

    def fits(config, device, batch):
        tried.append(batch)
        return batch <= 4

    monkeypatch.setattr(fit, "_fits_time", fits)
    config = load_config("resnet50", settings=[*TINY, "engine.threads=16"])
    config, found = fit.fit_batch(config, CPU)
    assert config.train.batch_size == 4
    assert tried == [16, 8, 4]
    assert [f.code for f in found] == ["batch-fitted"]


FP32, SLOW, FAST = Trial("fp32", 1.0), Trial("bf16", 13.0), Trial("bf16", 0.4)
CRASHED = Trial("bf16", None, "crashed: Illegal instruction")
BF16, WMLCE = ("resnet50", ["train.precision=bf16"]), ("resnet50-wmlce", [])  # WMLCE's fp16 may be adapted


def fit_precision(monkeypatch: pytest.MonkeyPatch, trials: list[Trial], recipe: str, settings: list[str]):
    """Fit the precision with these trial results; fp16 is not a candidate of this device."""
    monkeypatch.setattr(fit, "try_precisions", lambda _, requested, __: [t for t in trials if t.precision in requested])
    candidates = [precision_trial.precision for precision_trial in trials if precision_trial.precision != "fp16"]
    monkeypatch.setattr(fit.devices, "candidate_precisions", lambda _: candidates)
    return fit.fit_precision(load_config(recipe, settings=settings), CPU, 2)


@pytest.mark.parametrize(
    ("trials", "recipe", "taken", "code", "words"),
    [
        ([FP32, SLOW], ("resnet50", []), "fp32", "precision-chosen", "bf16 takes 13.00 times as long"),
        ([FP32], ("resnet50", []), "fp32", "precision-chosen", "no 16-bit arithmetic"),
        ([FP32, SLOW], BF16, "bf16", "precision-slow", "13.0 times as long as fp32"),
        ([FP32, Trial("fp16", 5.0), FAST], WMLCE, "bf16", "engine-adapted", "fp16 takes 5.0 times as long as fp32"),
        ([FP32, Trial("fp16", None, "no kernel"), FAST], WMLCE, "bf16", "engine-adapted", "no kernel: using bf16"),
        ([FP32, Trial("fp16", 5.0)], WMLCE, "fp32", "engine-adapted", "using fp32"),
        ([FP32, Trial("fp16", None, "no kernel")], WMLCE, "fp32", "engine-adapted", "no kernel: using fp32"),
    ],
)
def test_fit_precision_chooses_adapts_or_warns(monkeypatch, trials, recipe, taken, code, words):
    config, (found,) = fit_precision(monkeypatch, trials, *recipe)
    assert (config.train.precision, found.code) == (taken, code)
    assert words in found.message


def test_fit_precision_refuses_precision_that_crashes(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MachineError, match="Illegal instruction"):
        fit_precision(monkeypatch, [FP32, CRASHED], *BF16)


ORIGINAL = ["model.depth=18", "data.image_size=32", "device=cpu", "engine.threads=2"]


def fit_original(monkeypatch: pytest.MonkeyPatch, seconds_per_image: float, *settings: str, system="bede-1x4", **how):
    """Fit WMLCE's recipe with this fake time per image."""
    monkeypatch.setattr(fit, "_try_steps", lambda config, device, batch: batch * seconds_per_image)
    monkeypatch.setattr(fit, "try_precisions", lambda *_: [Trial("fp32", 1.0), Trial("fp16", 2.0)])
    config = load_config("resnet50-wmlce", system=system, settings=[*ORIGINAL, *settings])
    return fit_to_machine(config, **{"strict": False} | how)


@pytest.mark.parametrize(("seconds_per_image", "batch"), [(1e-4, 256), (0.01, 64), (0.1, 8), (10.0, 2)])
def test_fit_to_machine_for_bench_fits_batch_to_time(
    monkeypatch: pytest.MonkeyPatch, seconds_per_image: float, batch: int
):
    fitted = fit_original(monkeypatch, seconds_per_image)
    assert fitted.config.train.batch_size == batch
    message = [found.message for found in fitted.findings if found.code == "batch-fitted"]
    fits = "to fit into memory and time"
    assert message == ([f"using {batch} images per step and device instead of 256, {fits}"] if batch < 256 else [])
    assert fitted.config.train.adapt == ()


def test_fit_to_machine_strict_refuses_other_batch_or_precision(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"--strict: using 8 images"):
        fit_original(monkeypatch, 0.1, "train.precision=fp32", system="bede-1x1", strict=True)
    with pytest.raises(ConfigError, match=r"--strict: fp16 takes 2.0 times as long"):
        fit_original(monkeypatch, 1e-6, system="bede-1x1", strict=True)


def test_fit_to_machine_for_training_fits_batch_to_memory_and_reports_rate(monkeypatch: pytest.MonkeyPatch):
    fitted = fit_original(monkeypatch, 1.0, measured=False)
    assert fitted.config.train.batch_size == 256  # memory is enough, and training has no budget
    (message,) = [found.message for found in fitted.findings if found.code == "rate-derived"]
    images = "a step has 256 images; system bede-1x4 has 1,024"
    assert message == f"{images}: the peak learning rate is 0.256 instead of 1.024, in proportion to the images"
    monkeypatch.setattr(fit, "_fits_memory", lambda config, device, batch: batch <= 40)
    fitted = fit_original(monkeypatch, 1.0, system="bede-1x1", measured=False)
    assert fitted.config.train.batch_size == 32
    assert [found.code for found in fitted.findings] == ["engine-adapted", "batch-fitted", "rate-derived"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate_for": 256}, "0.05 instead of 0.4, in proportion to the images"),
        ({"rate_for": 256, "rate_scaling": "sqrt"}, "0.07071 instead of 0.2, by the square root of the images"),
        ({"rate_for": "rank"}, "0.1 instead of 0.4, in proportion to the ranks"),
        ({"rate_for": "run"}, "the peak learning rate stays 0.1 (optimizer.rate_for = run)"),
    ],
)
def test_describe_rate_change_follows_rate_rule(changes: dict, message: str):
    optimizer = OptimizerConfig(learning_rate=0.1, **changes)
    sentence = describe_rate_change(optimizer, intended=(1024, 4), now=(128, 1), where="system x")
    assert sentence.startswith("a step has 128 images; system x has 1,024: ")
    assert sentence.endswith(message)
    assert describe_rate_change(optimizer, intended=(1024, 4), now=(1024, 4), where="system x") is None


@pytest.mark.parametrize(
    ("seconds", "choice"),
    [
        ({"fp32": 1.0}, "fp32"),
        ({"fp32": 1.0, "bf16": 13.0}, "fp32"),  # emulated
        ({"fp32": 1.0, "bf16": 0.95}, "fp32"),  # not clearly faster
        ({"fp32": 1.0, "bf16": 0.3}, "bf16"),
        ({"fp32": 1.0, "bf16": 0.30, "fp16": 0.29}, "bf16"),  # equals: the one without a loss scale
        ({"fp32": 1.0, "tf32": 0.5, "bf16": 0.3, "fp16": 0.2}, "fp16"),
        ({"fp32": 1.0, "bf16": None}, "fp32"),  # crashed
        ({"fp32": None, "bf16": 0.3}, "bf16"),
    ],
)
def test_choose_fastest_returns_fastest_working_precision(seconds: dict, choice: str):
    assert choose_fastest([Trial(precision, value) for precision, value in seconds.items()]) == choice


def test_try_precisions_runs_fp32():
    (done,) = try_precisions("cpu", ["fp32"], threads=1)
    assert done.failure is None
    assert 0 < done.seconds < 10


def test_try_precisions_survives_crash_of_one_precision(monkeypatch: pytest.MonkeyPatch):
    script = (
        "import json, os, signal, sys\n"
        "for name in sys.argv[2].split(','):\n"
        "    if name == 'bf16': os.kill(os.getpid(), signal.SIGILL)\n"
        "    print(json.dumps({'precision': name, 'seconds': 0.5, 'failure': None}), flush=True)\n"
    )
    real_run = precision_trial.subprocess.run

    def run_script(command, **options):
        return real_run([command[0], "-c", script, *command[4:]], **options)

    monkeypatch.setattr(precision_trial.subprocess, "run", run_script)
    fp32, bf16, fp16 = try_precisions("cpu", ["fp32", "bf16", "fp16"], threads=1)
    assert (fp32.seconds, fp16.seconds) == (0.5, 0.5)
    assert bf16.failure == "crashed: Illegal instruction"


WITH_LOADER = [*TINY, "train.batch_size=2", "engine.threads=1", "loader.threads=1", "measure.iterations=12"]


def test_input_baselines_are_measured_before_and_after(tmp_path: Path):
    torch.manual_seed(0)
    data = make_set(tmp_path / "set", "recordio", count=10)
    config = load_config("resnet50", settings=WITH_LOADER, flags={"data.source": "files", "data.root": str(data)})
    fitted, opened = fit_to_machine(config, strict=True), open_split(data, "train")
    with StopSignals() as signals, StepRecorder(tmp_path / input_baselines.FILE_NAME, split_phases=False) as recorder:
        baselines = InputBaselines(opened, recorder)
        before = [progress.phase for progress in input_baselines.measure_before(fitted, baselines, signals)]
        assert before == ["timing the loader"] * 6 + ["synthetic data"] * 6
        task = build_task(fitted.config, CPU, opened)
        after = [progress.phase for progress in input_baselines.measure_after(task, fitted, baselines, signals)]
        assert after == ["synthetic data"] * 6 + ["timing the loader"] * 6
        assert baselines.counted == [2, 3, 4, 5, 8, 9, 10, 11]  # the first two of each half do not count
        assert len(baselines.loader.batch_seconds) == 12
        columns = {**baselines.recorder.columns()}
        summary = summarise_steps(columns, compiled=False)
        assessed = input_baselines.assess_loader(fitted.config, task.loader, baselines, summary)
    assert assessed.images_per_second == pytest.approx(2 * 12 / sum(baselines.loader.batch_seconds))
    counted = columns["step_seconds"][baselines.counted]
    assert assessed.synthetic_images_per_second == pytest.approx(2 * 8 / counted.sum())
    assert (assessed.storage, assessed.images, assessed.threads) == ("RecordIO", 10, 1)
    assert read_columns(tmp_path / input_baselines.FILE_NAME)["step"].tolist() == list(range(12))


@pytest.mark.parametrize(
    ("logical", "physical", "counts"),
    [(1, 1, [1]), (2, 2, [1, 2]), (12, 6, [1, 2, 4, 6, 8, 12]), (16, 8, [1, 2, 4, 8, 16]), (3, None, [1, 2, 3])],
)
def test_choose_threads_returns_powers_of_two_cores_and_hardware_threads(
    logical: int, physical: int | None, counts: list[int]
):
    assert run.choose_threads(Cores(logical, physical, None, physical or logical)) == counts


def test_measure_threads_times_each_number_twice_on_other_images():
    opened = []

    def open_with(threads: int, first_step: int) -> Loader:
        opened.append((threads, first_step))
        return make_loader(ListSource(make_classify_samples(40)), threads=threads, first_step=first_step)

    done: list[LoaderTiming] = []
    message = {progress.phase for progress in run.measure_threads(open_with, [1, 2], 0.05, done)}
    assert message == {"1 thread", "2 threads"}
    assert [threads for threads, _ in opened] == [1, 2, 2, 1]
    steps = [step for _, step in opened]
    assert steps == sorted(set(steps))
    for turns in done:
        assert len(turns.batch_seconds) >= 2 * 4
        assert turns.wall_seconds == pytest.approx(sum(turns.batch_seconds))
        assert turns.cpu_seconds > 0
        assert turns.images >= 4 * len(turns.batch_seconds)
        point = run.summarise_turns(turns, 4, 2)
        assert point.threads == turns.threads
        assert point.images_per_second == pytest.approx(4 * len(turns.batch_seconds) / turns.wall_seconds)
    stages = loader_timing.split_stages(done[0])
    assert [stage.name for stage in stages] == list(STAGES)
    assert sum(stage.share for stage in stages) == pytest.approx(1)
    assert all(stage.seconds_per_image > 0 for stage in stages)
