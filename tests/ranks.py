"""Real processes that are ranks of one world, with the environment torchrun would give them.

A test file names one of its own functions; every rank calls it and hands back what it returns, as JSON.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nursery import share_nursery

if TYPE_CHECKING:
    from trainstone.config.schema import ParallelConfig
    from trainstone.train.distributed import World

CALL = """
import importlib.util, json, os, pathlib
spec = importlib.util.spec_from_file_location("rank_program", {file!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
answer = module.{function}(*{arguments!r})
pathlib.Path({folder!r}, "rank" + os.environ.get("RANK", "0") + ".json").write_text(json.dumps(answer))
raise SystemExit
"""


def run_ranks(world: int, function: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Call a function of a file in so many ranks; return what each returned, None of a rank that ended before."""
    folder.mkdir(parents=True, exist_ok=True)
    name, file = function.__name__, function.__code__.co_filename
    call = CALL.format(file=file, function=name, arguments=arguments, folder=str(folder))
    ended = [child.wait() for child in share_nursery().start_ranks(world, prepare=call)]
    assert [one.code for one in ended] == [0] * world, "\n".join(one.out + one.err for one in ended)
    answers = [folder / f"rank{number}.json" for number in range(world)]
    return [json.loads(answer.read_text()) if answer.exists() else None for answer in answers]


@contextmanager
def join_world(parallel: "ParallelConfig") -> "Iterator[World]":
    from trainstone.config.load import load_config
    from trainstone.train.preflight.roll import meet_all

    config = load_config("demo-classify").model_copy(update={"parallel": parallel, "device": "cpu"})
    with meet_all(config, None) as world:
        yield world
