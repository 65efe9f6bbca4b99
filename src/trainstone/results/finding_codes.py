"""Every finding code with its meaning, its hint and its severity; docs/reference/findings.md is generated from it."""

from typing import Literal, NamedTuple

Severity = Literal["info", "warning", "error"]


class FindingCode(NamedTuple):
    meaning: str
    hint: str
    """What to do next; a check that knows more gives a hint of its own."""
    severity: Severity = "warning"


CODES = {
    "few-steps": FindingCode(
        "No confidence interval: fewer than 20 steady steps, or steps so correlated that they are fewer than "
        "3 independent ones (8 independent blocks from 50 steps on). An interval from so little data would often be "
        "wrong.",
        "run longer (--seconds 120), or use a smaller batch (--set train.batch_size=2)",
    ),
    "not-steady": FindingCode(
        "The step time drifts through the whole window. Steps that get slower mean heat or a power limit; steps that "
        "get faster mean a long warm-up; both mean another process on the machine.",
        "run longer; if the speed falls, check temperature and power limit: trainstone doctor",
    ),
    "wide-interval": FindingCode(
        "The 95 % interval is wider than ± 5 %: the steps vary much, or there are few of them.",
        "run longer (--seconds 120) on a quieter machine; --runs 5 shows the spread between runs",
    ),
    "outliers": FindingCode(
        "More than 2 % of the steady steps are outliers. They are counted in every number. Periodic outliers come "
        "from a timer, such as a monitoring agent; clustered ones from another process.",
        "step_seconds.outlier_steps in result.json lists the steps",
        "info",
    ),
    "noisy-machine": FindingCode(
        "The noise grade is C. The reasons are listed: CPU time taken by the hypervisor or by other processes, a CPU "
        "quota, memory pressure, or unsteady steps. Do not quote the number.",
        "stop other processes, or run again later; measure the noise floor: trainstone doctor --aa",
    ),
    "throttled": FindingCode(
        "The device reduced its clock because of heat or a power limit.",
        "improve the cooling or raise the power limit, then run again",
    ),
    "data-bound": FindingCode(
        "The device waits for data more than 10 % of the time, or training on real images is more than 10 % slower "
        "than on synthetic batches. The model could train faster than this number.",
        "use more loader.threads, or smaller images; compare them: trainstone data bench SET",
    ),
    "images-skipped": FindingCode(
        "Damaged images were skipped (loader.on_bad = skip) and replaced by others. log.txt names the first hundred.",
        "list them: trainstone data verify SET; copy the set without them: trainstone data convert SET COPY "
        "--on-bad skip",
    ),
    "peak-exceeded": FindingCode(
        "The run was faster than the measured peak of the device: the peak measurement was disturbed, both times.",
        "run again on a quieter machine",
    ),
    "page-faults": FindingCode(
        "Each step causes many page faults: freed memory is returned to the kernel and has to be mapped again. With "
        "engine.keep_memory on, the C library is not glibc or GLIBC_TUNABLES was already set.",
        "leave engine.keep_memory on, or preload another allocator with LD_PRELOAD",
        "info",
    ),
    "threads-exceed-cores": FindingCode(
        "There are more threads than physical cores available to this process; affinity and cgroup quota count. "
        "Threads then wait for each other.",
        "--set engine.threads=auto",
    ),
    "precision-chosen": FindingCode(
        "Which precision auto selected, and what the trial measured for the others. A crash with 'Illegal "
        "instruction' means that the CPU reports a feature that it cannot execute here, as some virtual machines do.",
        "choose another with --set train.precision=fp32 (or tf32, bf16, fp16)",
        "info",
    ),
    "precision-slow": FindingCode(
        "The requested precision is slower than fp32 on this device, which emulates it. bf16 on a CPU with only AVX2 "
        "is 13 times slower.",
        "--set train.precision=auto",
    ),
    "compile-chosen": FindingCode(
        "Whether engine.compile = auto compiles the model, and how much faster that was in a trial.",
        "choose with --set engine.compile=true (or false)",
        "info",
    ),
    "batch-limited": FindingCode(
        "A larger batch would be faster, or may be: too few of its steps fit into the time budget, or there was no "
        "time to try it.",
        "give it more time: --set measure.seconds=300",
    ),
    "trials-outdated": FindingCode(
        "The steps took more than 10 % longer, or less, than in the stored trials that chose precision and batch size: "
        "something has changed, or the machine was busy. The next run takes the trials again.",
        "run again: trainstone bench",
    ),
    "batch-fitted": FindingCode(
        "The batch size was reduced to fit into memory, or, in bench, to fit 26 steps into the time. It was auto in "
        "train, or the recipe allows it in train.adapt.",
        "to compare with other machines, fix it: --set train.batch_size=N",
        "info",
    ),
    "rate-derived": FindingCode(
        "The global batch differs from that of the recipe's system, so train scales the learning rate by the recipe's "
        "rule: linearly, by the square root, or by the number of ranks.",
        "to keep a rate of your own: --set optimizer.learning_rate=X --set optimizer.rate_for=run",
        "info",
    ),
    "recipe-note": FindingCode(
        "Something that this recipe or system does differently from its original, such as an optimizer whose formula "
        "was not published.",
        "docs/how-to has a page on each original",
        "info",
    ),
    "engine-adapted": FindingCode(
        "The device lacks something that the recipe requests (CUDA graphs, NVTX, tf32, a 16-bit precision that is "
        "slow here), or the system has more devices. It was switched off.",
        "--strict refuses to run instead of adapting",
        "info",
    ),
    "learning-rate": FindingCode(
        "The peak learning rate is far from what such a batch usually takes: more than 16 times (SGD: 0.1 for 256 "
        "images) or 8 times (LARS: 10.5 for 3264, by the square root) above it, or below a hundredth.",
        "set optimizer.learning_rate for this batch, or optimizer.rate_for=N to scale it with the batch",
    ),
    "not-evaluated": FindingCode(
        "The data set has no validation split, and the recipe does not need one. The accuracy is unknown, and the "
        "MLPerf checker refuses an mlperf.log without eval_accuracy.",
        "add a val/ folder, or evaluate later: trainstone eval RUN --data DIR",
        "info",
    ),
    "not-pretrained": FindingCode(
        "A detector starts from random weights. It trains, but more slowly: MLPerf's SSD300 starts from a ResNet-34 "
        "trained on ImageNet to reach 0.23 mAP within 50 epochs. The run is in the open division.",
        "trainstone weights convert resnet34.pth r34.safetensors, then --set model.pretrained=r34.safetensors",
        "info",
    ),
    "not-closed": FindingCode(
        "mlperf.division = closed is set, but the run differs from the closed division's rules. The message names the "
        "first keys, log.txt all of them. The MLPerf checker sees only the log and may accept it.",
        "--set mlperf.division=auto, or use the values of resnet50-mlperf or ssd300-mlperf",
    ),
    "page-cache-kept": FindingCode(
        "mlperf.clear_caches is set, but the page cache was not cleared: that needs root, and few containers allow "
        "it. Recently read images come from memory, so the run is faster than on a fresh machine.",
        "run as root, or clear it before the run: sync; echo 3 > /proc/sys/vm/drop_caches",
    ),
    "resumed": FindingCode(
        "The run resumed from a checkpoint, or from the beginning if there was none yet. Steps after the checkpoint "
        "were repeated, with the same results.",
        "the run's clock was stopped in between; mlperf.log's was not",
        "info",
    ),
    "checkpoint-damaged": FindingCode(
        "A checkpoint was incomplete or changed, and an older one was used.",
        "check the disk; checkpoint.keep sets how many checkpoints are stored",
    ),
    "profiled": FindingCode(
        "Which steps were profiled, and how much longer they took than steps of the same run without the profiler.",
        "measure the speed with trainstone bench: profiled steps are slower",
        "info",
    ),
    "not-measured": FindingCode(
        "What could not be measured here, and why: no RAPL counters, no sensors, no NVML. The values are absent from "
        "result.json.",
        "to see what is missing: trainstone doctor",
        "info",
    ),
    "interrupted": FindingCode(
        "The run was stopped before its end. What was measured until then is in the result.",
        "run it again for the full time: trainstone bench RUN/config.toml",
    ),
    "killed": FindingCode(
        "result.json has the status running, but the process is gone: it was killed, mostly because memory ran out, "
        "or the machine went down. The number is computed from the steps in the step file.",
        "run it again: trainstone bench RUN/config.toml; dmesg shows whether memory ran out",
        "error",
    ),
    "damaged-file": FindingCode(
        "A file of the run folder cannot be read: it was cut or changed after the run. What depends on it is missing "
        "from the page.",
        "restore the file from a backup, or repeat the run",
    ),
    "out-of-memory": FindingCode(
        "The run needs more memory than is available: the estimate shows it before the start, or torch reports it "
        "later. A SIGKILL by the kernel's memory limit counts too. A sweep does not try larger batches.",
        "--set train.batch_size=auto, or a smaller number",
        "error",
    ),
    "run-failed": FindingCode(
        "The run ended with an error; the message is that error's.",
        "log.txt in the run folder has the traceback",
        "error",
    ),
    "rank-failed": FindingCode(
        "One rank failed and the launcher stopped the others. The message names the rank, its host and the "
        "cause. After a SIGKILL, dmesg on that host shows whether memory ran out.",
        "launch/ in the run folder has the output of the ranks and of their launcher",
        "error",
    ),
    "child-failed": FindingCode(
        "A child run of --runs or of a sweep ended with an error.",
        "its folder is under points/ in the run folder",
        "error",
    ),
    "profile-failed": FindingCode(
        "sweep --profile: a point was measured, but its profile failed. The speed is valid.",
        "the folder of that profile is under points/ in the run folder",
    ),
}
