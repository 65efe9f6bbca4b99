"""MLPerf's MXNet SSD (Dell EMC's): lines of its program, variables of its start scripts, config_*.sh."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainstone.config.old.asked import Asked, set_data, set_out, tell_launcher, trace_flags
from trainstone.config.old.commands import split_words
from trainstone.config.old.flag import check_alone
from trainstone.config.old.launcher import Geometry, read_launcher, settle
from trainstone.config.old.line import Line, Reading, read_line
from trainstone.config.old.reading import Given, Grammar, read_flags, read_variables
from trainstone.config.old.script import open_script, tell_own
from trainstone.config.old.shell import ASSIGNMENT, PASTED, READ, Assigned, merge, read_assignments, read_commands
from trainstone.config.old.ssd_flags import FLAGS, SHORT, VARIABLES
from trainstone.config.old.ssd_scripts import (
    BACKBONE,
    DGX1,
    NODES_OF,
    PREPARING,
    REPEATING,
    STARTING,
    SYSTEMS,
    list_dgx1_words,
    read_preparing,
)
from trainstone.errors import ConfigError

ORIGINAL = "mlperf-ssd"
SCRIPTED = "ssd_main.py"
GRAMMAR = Grammar(ORIGINAL, FLAGS)
PROGRAM = r"ssd_main(?:_async)?\.py"
BASE_RATE = 2.5e-3
ABSENT = re.compile(r"""(?:(?:source|\.)\s+)?["']?((?:[^\s"'$`]*/)?config_([\w.-]+)\.sh)["']?""")
"""A system's file, by itself or sourced."""
COUNTS = ("NNODES", "NGPU", "DGXNNODES", "DGXNGPU", "NUMEPOCHS", "NEXP")
# Keys that a flag sets with its value, or its default.
KEYS = {
    "train.batch_size": "batch-size",
    "data.image_size": "data-shape",
    "optimizer.momentum": "momentum",
    "optimizer.weight_decay": "weight-decay",
    "schedule.decay_factor": "lr-decay-factor",
    "stop.epochs": "epochs",
    "parallel.bn_ranks": "bn-group",
    "eval.async": "async-val",
    "detect.min_score": "nms-valid-thresh",
    "detect.nms_overlap": "nms-overlap-thresh",
    "detect.before_nms": "nms-topk",
}
# And those that it sets where it is given alone.
GIVEN_KEYS = {
    "seed": "seed",
    "loader.threads": "dali-workers",
    "eval.batch_size": "eval-batch-size",
    "checkpoint.every_epochs": "save-interval",
    "model.pretrained": "pretrained-backbone",
}


def understand(words: Sequence[str]) -> Asked:
    """Read variables, a config_*.sh, a start script with variables before it, or a line of ssd_main.py."""
    line = read_line(words, Reading((PROGRAM, PREPARING, DGX1, STARTING), kept=READ))
    if _matches(PREPARING, line):
        return read_preparing(line)
    if _matches(DGX1, line):
        return read_dgx1(line)
    if _matches(PROGRAM, line) or any(word.startswith("-") for word in line.after):
        return read_program(line, line.after, read_launcher(line.before), tell_launcher(line))
    return read_script_line(line, words)


def _matches(pattern: str, line: Line) -> bool:
    return re.fullmatch(pattern, line.program) is not None


def read_dgx1(line: Line) -> Asked:
    """One of the eight scripts for a DGX-1, by its name, or as it is written where it is there."""
    if Path(line.path).is_file():
        line = open_script(line, (PROGRAM,), "")
        return read_program(line, line.after, read_launcher(line.before), tell_launcher(line))
    own = (*line.notes, tell_own(line, "benchmark"))
    return read_program(line._replace(notes=own), list_dgx1_words(line.program), Geometry(1, 8), ())


def read_program(line: Line, words: Sequence[str], geometry: Geometry, launched: Sequence[str]) -> Asked:
    """Read the flags of ssd_main.py."""
    given = read_flags(GRAMMAR, lengthen(words))
    keys, notes = read_keys(given), [*line.notes, *launched, *given.notes, *tell_odd(given)]
    synthetic = given.values["synthetic"]
    if synthetic:
        keys["data.source"] = "synthetic"
    else:
        name = "tfrecord-root" if given.values["use-tfrecord"] else "coco-root"
        notes += set_data(keys, given.values[name] if name in given.asked else None, f"--{name}")
    if not {"pretrained-backbone", "resume-from"} & set(given.asked) and not synthetic:
        notes.append("--pretrained-backbone is not given: it begins with random weights, as there")
    options = set_out(given.values.get("results"))
    said = trace_flags(FLAGS, given.asked)
    return Asked("bench" if synthetic else "train", keys, options, geometry, tuple(notes), said)


def lengthen(words: Sequence[str]) -> list[str]:
    """Write -j 6, -j6 and -t 23 as --dali-workers 6 and --target-map 23."""
    done = []
    for word in words:
        long = SHORT.get(word[:2])
        done.append(word if long is None else f"{long}={word[2:].removeprefix('=')}" if word[2:] else long)
    return done


def read_keys(given: Given) -> dict[str, Any]:
    """Return the keys that flags set."""
    values, asked = given.values, given.asked
    keys: dict[str, Any] = {key: values[flag] for key, flag in KEYS.items()}
    keys |= {key: values[flag] for key, flag in GIVEN_KEYS.items() if flag in asked}
    fp16 = values["precision"].lower()
    loss_scale = {"fp16": {"train.loss_scale": values["fp16-loss-scale"]}, "amp": {"train.loss_scale": "dynamic"}}
    post = values["post-nms"]
    epochs = list_judged(values)
    keys |= {
        "train.precision": "fp32" if fp16 == "fp32" else "fp16",
        **loss_scale.get(fp16, {}),
        "engine.channels_last": values["data-layout"].upper() == "NHWC",
        "optimizer.learning_rate": values.get("lr") or BASE_RATE,
        "schedule.decay_epochs": list(values["lr-decay-epochs"]),
        "schedule.warm_up_epochs": values.get("lr-warmup-epochs") or 0.0,
        "schedule.warm_up_from": 1 - 2 ** -max(0.0, values["lr-warmup-factor"]),
        "eval.at_epochs": epochs,
        "eval.target": values["target-map"] / 100,
        "detect.max_found": values["nms-topk"] if post == -1 else post,
    }
    if not epochs:
        keys["eval.every_epochs"] = 0
    if values["log-interval"] != 100:
        keys["original.every_steps"] = values["log-interval"]
    return keys


def list_judged(values: Mapping[str, Any]) -> list[float]:
    """Return the epochs that are judged: those listed, and every so many where that is asked for."""
    listed, last = set(values["val-epochs"]), values["epochs"]
    if interval := values.get("val-interval"):
        listed |= (
            {float(epoch) for epoch in range(interval, min(last, 100_000) + 1, interval)} if interval > 0 else set()
        )
    return sorted(listed)


def tell_odd(given: Given) -> list[str]:
    """Say what the original refused, or what cannot go together."""
    values, asked = given.values, given.asked
    if "resume-from" in asked and "pretrained-backbone" in asked:
        check_alone(["--resume-from and --pretrained-backbone exclude each other"], original=ORIGINAL)
    notes = []
    if values["bn-group"] > 1 and (values["data-layout"].upper() == "NCHW" or values["precision"] == "fp32"):
        notes.append(f"{asked['bn-group']} with NCHW or fp32: refused there; here it is done")
    if not list_judged(values):
        notes.append(f"{asked['val-epochs']}: no epoch to evaluate after; here the end of the run is")
    return notes


def read_script_line(line: Line, words: Sequence[str]) -> Asked:
    """Read variables, given as words or in files, before a start script or alone."""
    set_before = [word for word in line.before if ASSIGNMENT.fullmatch(word) or word.endswith(".sh")]
    launched = line._replace(before=tuple(word for word in line.before if word not in (*set_before, "source", ".")))
    assigning = [name_absent(word) for word in (*set_before, *line.after)]
    if len(named := {word for word in assigning if word.startswith("SYSTEM=")}) > 1:
        check_alone([f"{' and '.join(sorted(named))}: one system at a time"], original=ORIGINAL)
    earlier = read_commands([name_absent(text) for text in line.earlier], PASTED, {})
    found = merge(earlier, read_assignments(assigning, program=SCRIPTED))
    notes = [*line.notes, *tell_launcher(launched), *found.notes]
    system = name_system(found, words)
    found, told = add_system(found, system)
    notes += [*told, *tell_computed(found)]
    given = read_variables(ORIGINAL, VARIABLES, found.values)
    few = [f"{name}={given.values[name]}: must be at least 1" for name in COUNTS if given.values.get(name, 1) < 1]
    check_alone(few, original=ORIGINAL)
    geometry, mended = find_geometry(given, launched, system)
    notes += [*given.notes, *mended]
    asked = read_program(Line((), "", ()), list_words(given), geometry, ())
    said = {**asked.said, **trace_flags(VARIABLES, given.asked)}
    keys = dict(asked.keys)
    if "CLEAR_CACHES" in given.asked:
        keys["mlperf.clear_caches"] = given.values["CLEAR_CACHES"] > 0
    missing = {"--coco-root": "DATADIR", "--pretrained-backbone": "PRETRAINED_DIR"}
    for note in asked.notes:
        flag = note.partition(" ")[0]
        notes.append(note.replace(flag, missing[flag], 1).removesuffix(", as there") if flag in missing else note)
    return Asked(asked.verb, keys, (*read_runs(line, given), *asked.options), geometry, tuple(notes), said)


def list_words(given: Given) -> list[str]:
    """Return the words that run_and_time.sh passes on to ssd_main_async.py."""
    values = given.values
    words = ["--log-interval=100", "--data-layout=NHWC", f"--epochs={values['NUMEPOCHS']}", "--async-val"]
    if values.get("DATADIR"):
        words.append(f"--coco-root={values['DATADIR'].rstrip('/')}/coco2017")
    if values.get("PRETRAINED_DIR"):
        words.append(f"--pretrained-backbone={values['PRETRAINED_DIR'].rstrip('/')}/{BACKBONE}")
    if values.get("LOGDIR"):
        words.append(f"--results={values['LOGDIR']}")
    return words + split_words(values.get("EXTRA_PARAMS", ""))


def read_runs(line: Line, given: Given) -> tuple[str, ...]:
    """Return --runs N where a script repeats, or is asked to."""
    repeated = "NEXP" in given.asked or line.program in REPEATING
    runs = given.values["NEXP"] if repeated else 1
    return ("--runs", str(runs)) if runs > 1 else ()


def name_absent(text: str) -> str:
    """Return SYSTEM=<name> for a config_<name>.sh that is not here, or a command that sources it."""
    named = ABSENT.fullmatch(text)
    return f"SYSTEM={named[2]}" if named and not Path(named[1]).is_file() else text


def name_system(found: Assigned, words: Sequence[str]) -> str:
    """Return the system that is named, by a variable or by the file that is read."""
    files = [part for word in words for part in word.split() if Path(part).name.startswith("config_")]
    named = [Path(file.rstrip(";&")).name.removeprefix("config_").removesuffix(".sh") for file in files]
    return found.values.get("SYSTEM", named[-1] if named else "")


def add_system(found: Assigned, system: str) -> tuple[Assigned, list[str]]:
    """Take what config_<SYSTEM>.sh sets: of the file where it is here, else as Dell EMC's did."""
    if not found.values.get("SYSTEM"):
        return found, []
    file = f"config_{system}.sh"
    if Path(file).is_file():
        read = read_assignments([file], program=SCRIPTED)
        return merge(read, found), [f"{file}: read as text, not executed"]
    if system not in SYSTEMS:
        raise ConfigError(
            f"SYSTEM={system}: there is no {file} here", hint=f"known without their file: {', '.join(SYSTEMS)}"
        )
    nodes, each, extra = SYSTEMS[system]
    own = Assigned({"NNODES": str(nodes), "NGPU": str(each), "EXTRA_PARAMS": extra}, {}, [])
    return merge(own, found), [f"{file}: as Dell EMC's; a file of that name that is here would be read"]


def find_geometry(given: Given, line: Line, system: str) -> tuple[Geometry, list[str]]:
    """Return nodes and devices: of the launcher, of the variables; the number that one file has wrong is mended."""
    values = given.values
    started = read_launcher(line.before)
    nodes, each = values.get("NNODES", values.get("DGXNNODES")), values.get("NGPU", values.get("DGXNGPU"))
    notes = []
    right = NODES_OF.get(system)
    if right and nodes == 1 and started.nodes is None:
        nodes = right
        notes.append(f"NNODES=1: config_{system}.sh says so by mistake; it ran on {right} nodes")
    if line.program == "run.slurm" and each is None:
        each = 4
    if started.ranks is not None and started.nodes is None and each is None:
        return settle(started), notes
    return settle(Geometry(started.nodes or nodes, started.each or each, started.ranks)), notes


def tell_computed(found: Assigned) -> list[str]:
    """Say what only a shell could tell; refuse it where the recipe needs it."""
    rows = {row.name: row for row in VARIABLES}
    needed = [f"{name}={text}" for name, text in found.computed.items() if name in rows and rows[name].ours]
    if needed:
        raise ConfigError(
            f"only a shell could tell these, and none is started: {'; '.join(needed)}", hint="give their values"
        )
    return [f"{name}={shlex.quote(text)}: not computed, and not needed" for name, text in found.computed.items()]
