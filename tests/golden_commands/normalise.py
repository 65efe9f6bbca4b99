"""Replace what varies between runs and machines by placeholders, so that the rest can be compared as text."""

import re
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from support.processes.command import ROOT

NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
# Findings that depend on the machine or on how busy it is. Their line and the hint below it are left out.
FINDING = re.compile(
    r"(?:warning|info): .*\[(?:not-steady|wide-interval|outliers|noisy-machine|throttled|data-bound|peak-exceeded"
    r"|page-faults|not-measured|threads-exceed-cores|clock-skew|slow-link|few-steps)\]"
)
# Keys of result.json that are there only where something was seen or could be measured.
VARYING_KEYS = re.compile(
    r"(.*\.)?((machine|software|noise|findings|energy|devices\[\])[.\[].+|findings|energy|utilisation\.limit"
    r"|throughput\.(ci95|trend_percent).*|memory\.page_faults_per_step|step_seconds\.outlier.*"
    r"|sweep\.(knees|fits|curves)[.\[].+)"
)
# In every text: where it ran, when, and with which versions.
PLACE = [
    (r"\b\d{8}-\d{6}-([a-z0-9-]+?)-[0-9a-f]{4}\b", r"<run of \1>"),
    (rf"\b{re.escape(socket.gethostname())}\b", "<host>"),
    (r"trainstone \d+\.\d+\.\d+\S*", "trainstone <version>"),
    (r"resnet_iterdur_\d+_.+?\.txt", "resnet_iterdur_<time>_<host>.txt"),
    (r"─{2,}", "──"),
    (r"[ \t]+(?=│?$)", ""),
]
# In the output of commands that measure.
MEASURED = [
    (r"(· )[^·\n]+(, \d+ threads? ·)", r"\1<device>\2"),
    (r"1x[^·\n]+ · resnet", "1x<device> · resnet"),
    (r"localhost:\d+(?: over \S+;)?", "localhost:<port>"),
    # The verdict of a bench, a sweep, a profile, a data bench
    (r"limited by .*noise grade", "limited by <limit>; noise grade"),
    (r"(ResNet-18: ).*knee.*", r"\1<knee>"),
    (r"(ResNet-18: operators run for ).*", r"\1<shares>"),
    (r"^{N} (images/s with \d+ threads? on ).*", r"<number> \1<cores>"),
    # Rows of tables
    (r"(noise +grade) .*", r"\1 <grade>"),
    (r"noise grade [A-C]", "noise grade <grade>"),
    (r"^( *(?:window|over epochs|gradient sync|breakdown|busy|profiler|operators|roofline) ).*", r"\1<measured>"),
    (r"^( *(?:read|decode|crop-resize|batch|all|seed \d+) +){N} .*", r"\1<measured>"),
    (r"^ +\d+ +{N}.*[▁-▏]$", "<row>"),
    (r"^( +\d+ +){N} +[▁-▏]+ .*", r"\1<measured>"),
    (r"^(?!ResNet).*\b[Kk]nee\b.*|^At .* it reaches .*|^The speed falls beyond .*|^A step costs .*", "<knee>"),
    (r"^( *steps +)[▁-▏|].*", r"\1<sparkline>"),
    (r"^( *time +).*", r"\1<measured>"),
    (
        r"^\w+ +(software|device|cores|memory|precision|allocator|compiler|energy|telemetry|noise|extra) .*",
        r"<status> \1 <text>",
    ),
    (r"^ {15,}\S.*\n", ""),
    (r"(allocator: ).*", r"\1<allocator>"),
    (r"peak {N} [KMGT]?FLOP/s measured in this run: .*\)", "peak <number> measured in this run)"),
    (r"(decoder: \w+; ).*", r"\1<cores>"),
    (r"or {N} cores; .*", "or <number> cores"),
    (r"^(?:warning|info)(: steps \d+ to \d+ were profiled: ).* \[profiled\]", r"<severity>\1<cost> [profiled]"),
    # Intervals and numbers
    (r" \((?:interval )?not established: [^)\n]*\)| ± [\d.]+ % \([^)\n]*\)", " <interval>"),
    (r"\(no interval\)|^ *95 % interval within this run|^ *interval not established: .*", "<interval>"),
    (r"(?<=<interval>); {N} … {N}$", ""),
    (r"(is ){N} times as (?:fast|slow) as", r"\1<number> times as fast as"),
    (r"(images/s +){N}(?= <interval>)", r"\1<number>"),
    (r"after epoch \d+", "after epoch <number>"),
    (r"loss {N}", "loss <number>"),
    (r"{N} (?:%|(?:[KMGT]i)?B\b|ns\b|[µm]?s\b|min\b)(?: \d+ s\b)?", "<number>"),
    (r"{N}(?= images/s| times a steady one| a core\b)|(?<=synthetic ){N}(?=;)", "<number>"),
    (r"{N} … {N}$", "<number> … <number>"),
    (r"^(.+\n)\1+", r"\1"),
]
# In the files that the original programs wrote, and in mlperf.log.
ORIGINAL = [
    (r"(:::NVLOGv\S+ \S+ )\d+\.\d{9}", r"\1<time>"),
    (r'"time_ms": \d+', '"time_ms": <time>'),
    (r'"metadata": \{"file": "[^"]+", "lineno": \d+', '"metadata": {"file": <file>, "lineno": <line>'),
    (r'("(?:eval_accuracy|throughput|tracked_stats)", "value": )(?:\{[^}]*\}|[^,]+)', r"\1<number>"),
    (r'"tensor": "[^"]+"', '"tensor": <tensor>'),
    (r'("submission_platform", "value": )"1x[^"]+"', r'\1"1x<device>"'),
    (r"^I\d{4} [\d:.]+ +\d+ ", "I<time> <pid> "),
    (r"{N} seconds, {N} examples/second", "<number> seconds, <number> examples/second"),
    (r"(total_ips: ){N}", r"\1<number>"),
    (r"^( {16}){N}\.\d+", r"\1<number>"),
    (r"(Iteration Duration \d+ \d+ : ).*", r"\1<number>"),
    (r"(Training time: ).*", r"\1<time>"),
    (r"(?<=,)\d+\.\d+(?:e-\d+)?", "<number>"),
]


TABLES = {
    name: [(re.compile(pattern.replace("{N}", NUMBER), re.MULTILINE), text) for pattern, text in rules]
    for name, rules in {"place": PLACE, "measured": MEASURED, "original": ORIGINAL}.items()
}


def normalise(text: str, table: str = "", folder: Path | None = None) -> str:
    """Return the text with placeholders: of the place and, if named, of the table `measured` or `original`."""
    for path, name in ((folder, "<folder>"), (Path(sys.executable), "<python>"), (ROOT, "<repository>")):
        text = text if path is None else text.replace(str(path), name)
    for rules in (TABLES["place"], TABLES[table] if table else []):
        for pattern, placeholder in rules:
            text = pattern.sub(placeholder, text)
    return text


def normalise_output(text: str, folder: Path) -> str:
    lines = normalise(text, "measured", folder).splitlines()
    kept: list[str] = []
    hint = False
    for line in lines:
        hint = bool(FINDING.search(line)) or (hint and line.startswith("    "))
        if not hint:
            kept.append(re.sub(r"(?<=\S) {2,}", "  ", line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept))


def list_phases(text: str) -> str:
    """Return stderr with each progress line cut to its phase, repetitions merged: how often it is drawn varies."""
    lines = [line if line.startswith(("error:", "hint:")) else line.partition(" · ")[0] for line in text.splitlines()]
    return "\n".join(line for line, _ in groupby(lines))


def list_keys(document: Any) -> list[str]:
    below: dict[str, set[str]] = {}
    for key in sorted(set(_walk(document, ""))):
        if not VARYING_KEYS.fullmatch(key):
            parent, _, name = key.rpartition(".")
            below.setdefault(parent, set()).add(name)
    return [f"{parent or '(top)'}: {', '.join(sorted(names))}" for parent, names in sorted(below.items())]


def _walk(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            key = f"{path}.{name}" if path else str(name)
            yield key
            yield from _walk(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, f"{path}[]")


def count_names(names: Iterable[str]) -> list[str]:
    return [name + (f" × {count}" if count > 1 else "") for name, count in sorted(Counter(names).items())]
