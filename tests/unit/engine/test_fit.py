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
from trainstone.engine import fit, trials
from trainstone.engine.fit import Fit, finish
from trainstone.engine.lr_schedule import describe_rate_change
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
from trainstone.results.schema.trials import SpeedTrial, Trials
from trainstone.results.step_summary import summarise_steps
from trainstone.results.steps import read_columns

TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "device=cpu"]
CPU = torch.device("cpu")


def fit_to_machine(config, **options):
    return finish(fit.fit_to_machine(config, **options))


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


class FakeNetwork:
    """Takes these seconds per image, after a fixed time per step; out of memory above `memory` images."""

    steps_per_turn, _device = 1, CPU

    def __init__(self, seconds: float = 0.01, fixed: float = 0.1, memory: float = float("inf")):
        self.seconds, self.fixed, self.memory = seconds, fixed, memory
        self.tried: list[int] = []

    def __call__(self, config, device):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def time_turn(self, precision: str, batch_size: int, *, compiled: bool = False) -> float:
        if batch_size > self.memory:
            raise RuntimeError("CUDA error: out of memory")
        self.tried.append(batch_size)
        return self.fixed + self.seconds * batch_size


def fit_auto_batch(monkeypatch, network: FakeNetwork, *settings: str, device=CPU, known: Trials | None = None) -> Fit:
    """Choose an automatic batch with a fake network on a fake device; memory estimates say that all fits."""
    monkeypatch.setattr(fit, "TrialNetwork", network)
    monkeypatch.setattr(fit, "_fits_memory", lambda *_, **__: True)
    monkeypatch.setattr(fit, "check_memory", lambda *_: None)
    monkeypatch.setattr(trials.devices, "name_device", str)
    config = load_config("resnet50", settings=[*TINY, "engine.threads=2", *settings])
    fitting = Fit(config, device=device, began=trials.time.perf_counter())
    fitting.trials = known or fitting.trials
    finish(fit.choose_batch(fitting))
    return fitting


@pytest.mark.parametrize(
    ("network", "seconds", "batch", "best"),
    [
        # 0.1 s + 0.01 s per image: 90 % of the rate at 90 images, within 3 % of the fastest tried at 256
        (FakeNetwork(), 1000, 256, 256),
        (FakeNetwork(fixed=0.0), 60, 2, 2),  # every batch is as fast as any other
        (FakeNetwork(), 10, 8, None),  # 26 steps of 0.18 s fit into 6 s; 26 of 0.26 s do not
    ],
)
def test_choose_batch_takes_smallest_near_best_that_fits_time(monkeypatch, tmp_path, network, seconds, batch, best):
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    fitted = fit_auto_batch(monkeypatch, network, f"measure.seconds={seconds}")
    assert fitted.config.train.batch_size == fitted.trials.chosen_batch_size == batch
    if best:
        assert fitted.findings == []
    else:
        (limited,) = fitted.findings
        assert limited.code == "batch-limited"
        assert "slower" in limited.message
        # The hint is true: with these seconds a larger batch is used.
        again = fit_auto_batch(monkeypatch, network, limited.hint.split()[-1])
        assert again.config.train.batch_size > batch


def test_choose_batch_on_accelerator_starts_at_64_and_stops_at_memory(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    network = FakeNetwork(seconds=0.0001, fixed=0.1, memory=1000)
    fitted = fit_auto_batch(monkeypatch, network, "measure.seconds=600", device=torch.device("cuda"))
    assert (network.tried[0], fitted.config.train.batch_size) == (64, 512)  # not capped at 256
    assert fitted.trials.ended == {"fp32": "memory"}
    assert fitted.findings == []
    small = FakeNetwork(memory=20)
    fitted = fit_auto_batch(monkeypatch, small, "measure.seconds=600", device=torch.device("cuda"))
    assert fitted.config.train.batch_size == 16


def test_fit_batch_of_training_on_accelerator_tries_the_batch(monkeypatch):
    """Estimates of memory are a lower bound: here they say that all fits."""
    network = FakeNetwork(memory=100)
    monkeypatch.setattr(fit, "TrialNetwork", network)
    monkeypatch.setattr(fit, "_fits_memory", lambda *_: True)
    fitting = Fit(load_config("resnet50", settings=TINY), measured=False, device=torch.device("cuda"))
    finish(fit.fit_batch(fitting))
    assert fitting.config.train.batch_size == 64
    assert [found.code for found in fitting.findings] == ["batch-fitted"]


def test_choose_batch_with_stored_trials_fits_into_the_memory_of_today(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    fitted = fit_auto_batch(monkeypatch, FakeNetwork(), "measure.seconds=1000")
    large = fitted.config.train.batch_size
    again = Fit(fitted.config, device=CPU, trials=fitted.trials)
    monkeypatch.setattr(fit, "_fits_memory", lambda _config, _device, size, *_: size <= large // 4)
    finish(fit.choose_batch(again))
    assert again.config.train.batch_size == large // 4
    assert [found.code for found in again.findings] == ["batch-limited"]


class CompilingNetwork(FakeNetwork):
    """torch.compile makes a step this many times as fast; None: it fails."""

    def __init__(self, gain: float | None):
        super().__init__()
        self.gain = gain

    def time_turn(self, precision: str, batch_size: int, *, compiled: bool = False) -> float:
        seconds = super().time_turn(precision, batch_size)
        if compiled and self.gain is None:
            raise RuntimeError("no C++ compiler")
        return seconds / self.gain if compiled else seconds


@pytest.mark.parametrize(
    ("gain", "seconds", "compiled", "words"),
    [
        (1.5, 600, True, "using torch.compile: torch.compile (fp32, batch 8) is 1.50 times as fast as eager"),
        (0.9, 600, False, "not using torch.compile: torch.compile (fp32, batch 8) takes 1.11 times as long as eager"),
        (None, 600, False, "does not run (no C++ compiler)"),
        (1.5, 60, False, None),  # no time to compile
    ],
)
def test_fit_compile_uses_torch_compile_only_where_it_wins(monkeypatch, tmp_path, gain, seconds, compiled, words):
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    monkeypatch.setattr(fit, "TrialNetwork", CompilingNetwork(gain))
    monkeypatch.setattr(fit.shutil, "which", lambda name: f"/usr/bin/{name}")
    settings = [*TINY, "engine.threads=2", "train.batch_size=8", f"measure.seconds={seconds}"]
    for _ in range(2):  # the second time from the cache folder, if at all
        fitting = Fit(load_config("resnet50", settings=settings), device=CPU)
        fitting.trials = trials.read_trials(trials.find_cache_file(fitting.config, CPU)) or fitting.trials
        finish(fit.fit_compile(fitting))
        assert fitting.config.engine.compile is compiled
        assert [words in found.message for found in fitting.findings] == ([True] if words else [])
    if words:
        monkeypatch.setattr(fit, "TrialNetwork", None)
        finish(fit.fit_compile(Fit(load_config("resnet50", settings=settings), device=CPU, trials=fitting.trials)))


def test_fit_engine_ignores_stored_trials_if_the_recipe_says_so(monkeypatch):
    stored = Trials(taken_utc="2026-11-19T00:00:00+00:00", batches=[], ended={"fp32": "knee"})
    monkeypatch.setattr(fit, "read_trials", lambda _: stored)
    for reuse, expected in ((True, stored.ended), (False, {})):
        settings = [*TINY, f"measure.reuse_trials={str(reuse).lower()}"]
        assert finish(fit.fit_engine(load_config("resnet50", settings=settings))).trials.ended == expected


def test_choose_batch_reuses_trials_unless_time_ended_them(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    now = iter(float(second) for second in range(10_000))
    monkeypatch.setattr(trials.time, "perf_counter", lambda: next(now))  # each look at the clock takes a second
    network = FakeNetwork(fixed=1.0)
    fitted = fit_auto_batch(monkeypatch, network, "measure.seconds=60")
    assert fitted.trials.ended == {"fp32": "time"}
    assert [one.code for one in fitted.findings] == ["batch-limited"]
    stored = trials.read_trials(trials.find_cache_file(fitted.config, CPU))
    assert (stored.batches, stored.reused) == (fitted.trials.batches, True)
    network.tried.clear()
    again = fit_auto_batch(monkeypatch, network, "measure.seconds=60", known=stored)
    assert (network.tried, again.config.train.batch_size) == ([], fitted.config.train.batch_size)
    longer = fit_auto_batch(monkeypatch, network, "measure.seconds=600", known=stored)
    assert max(network.tried) > max(row.batch_size for row in stored.batches)
    assert longer.trials.budget_seconds == {"fp32": 600}


def test_find_cache_file_depends_on_what_changes_the_speed(monkeypatch):
    def find(*settings: str):
        return trials.find_cache_file(load_config("resnet50", settings=[*TINY, "engine.threads=2", *settings]), CPU)

    same = find()
    for setting in ("train.batch_size=4", "train.precision=bf16", "seed=3", "optimizer.learning_rate=0.5"):
        assert find(setting) == same
    others = [find(setting) for setting in ("engine.threads=1", "model.depth=50", "data.image_size=64")]
    for name, value in (
        ("memory_limit_bytes", lambda: 2**30),
        ("read_cpuinfo", lambda: {"flags": "fpu avx2"}),
        ("available_cores", lambda: Cores(8, 4, None, 4)),
        ("__version__", "9.9"),
        ("count_local_ranks", lambda: 2),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(trials, name, value)
            others.append(find())
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    others.append(find())
    assert len({same, *others}) == 1 + len(others)


def test_read_trials_ignores_damaged_file(tmp_path: Path):
    file = tmp_path / "trials.json"
    assert trials.read_trials(file) is None
    file.write_text('{"taken_utc": 3}')
    assert trials.read_trials(file) is None
    (tmp_path / "file").write_text("")
    trials.store_trials(tmp_path / "file" / "trials.json", Trials(taken_utc="2026-11-19"))  # a run must not fail


SLOW, FAST = SpeedTrial(name="bf16", ratio=1 / 13), SpeedTrial(name="bf16", ratio=2.5, ci95=(2.4, 2.6))
SLOW_FP16 = SpeedTrial(name="fp16", ratio=0.2, ci95=(0.19, 0.21))
BROKEN = SpeedTrial(name="fp16", failure="no kernel")
CRASHED = SpeedTrial(name="bf16", failure="crashed: Illegal instruction")
BF16, WMLCE = ("resnet50", ["train.precision=bf16"]), ("resnet50-wmlce", [])  # WMLCE's fp16 may be adapted


def fit_precision(monkeypatch: pytest.MonkeyPatch, found: list[SpeedTrial], recipe: str, settings: list[str]):
    """Fit the precision with these trial results; fp16 is not a candidate of this device."""
    known = Trials(
        taken_utc="2026-11-19T00:00:00+00:00",
        precisions=[SpeedTrial(name="fp32", ratio=1.0), *found],
        budget_seconds={"precision": 60.0},
    )
    candidates = ["fp32", *(trial.name for trial in found if trial.name != "fp16")]
    monkeypatch.setattr(fit.devices, "candidate_precisions", lambda _: candidates)
    fitting = Fit(load_config(recipe, settings=settings), trials=known)
    finish(fit.fit_precision(fitting))
    return fitting.config, fitting.findings


@pytest.mark.parametrize(
    ("trials", "recipe", "taken", "code", "words"),
    [
        ([SLOW], ("resnet50", []), "fp32", "precision-chosen", "using fp32: bf16 takes 13.00 times as long"),
        (
            [FAST],
            ("resnet50", []),
            "bf16",
            "precision-chosen",
            "bf16 is 2.50 times as fast as fp32 (95 %: 2.40",
        ),
        ([], ("resnet50", []), "fp32", "precision-chosen", "no 16-bit arithmetic"),
        ([SLOW], BF16, "bf16", "precision-slow", "13.00 times as long as fp32"),
        ([SLOW_FP16, FAST], WMLCE, "bf16", "engine-adapted", "fp16 takes 5.00 times as long as fp32"),
        ([BROKEN, FAST], WMLCE, "bf16", "engine-adapted", "(no kernel) on this device: using bf16"),
        ([SLOW_FP16], WMLCE, "fp32", "engine-adapted", "using fp32"),
        ([BROKEN], WMLCE, "fp32", "engine-adapted", "(no kernel) on this device: using fp32"),
    ],
)
def test_fit_precision_chooses_adapts_or_warns(monkeypatch, trials, recipe, taken, code, words):
    config, (found,) = fit_precision(monkeypatch, trials, *recipe)
    assert (config.train.precision, found.code) == (taken, code)
    assert words in found.message


def test_fit_precision_accepts_requested_precision_without_finding(monkeypatch: pytest.MonkeyPatch):
    config, findings = fit_precision(monkeypatch, [FAST], *BF16)
    assert (config.train.precision, findings) == ("bf16", [])


def test_fit_precision_refuses_precision_that_crashes(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MachineError, match="Illegal instruction"):
        fit_precision(monkeypatch, [CRASHED], *BF16)


ORIGINAL = ["model.depth=18", "data.image_size=32", "device=cpu", "engine.threads=2"]


def fit_original(monkeypatch: pytest.MonkeyPatch, seconds_per_image: float, *settings: str, system="bede-1x4", **how):
    """Fit WMLCE's recipe with this fake time per image."""
    monkeypatch.setattr(fit, "TrialNetwork", FakeNetwork(seconds=seconds_per_image, fixed=0.0))
    slow = [SpeedTrial(name="fp32", ratio=1.0), SpeedTrial(name="bf16", ratio=0.1), SLOW_FP16]
    known = Trials(taken_utc="2026-11-19T00:00:00+00:00", precisions=slow, budget_seconds={"precision": 1000.0})
    monkeypatch.setattr(fit, "read_trials", lambda _: known)
    config = load_config("resnet50-wmlce", system=system, settings=[*ORIGINAL, *settings])
    return fit_to_machine(config, **{"strict": False} | how)


@pytest.mark.parametrize(("seconds_per_image", "batch"), [(1e-4, 256), (0.01, 128), (0.1, 8), (10.0, 2)])
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
    with pytest.raises(ConfigError, match=r"--strict: fp16 takes 5.00 times as long"):
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
