"""What `eval --predict` and `eval --export` print: guesses for pictures, and where weights were written."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainstone.cli.output import print_json
from trainstone.text import printable
from trainstone.units import format_bytes, format_count

if TYPE_CHECKING:
    from trainstone.train.predict import Exported, Guess, Prediction
    from trainstone.train.saved import Saved

EDGES = ("left", "top", "right", "bottom")
"""Of a box, as shares of the picture's width and height."""


def print_prediction(prediction: "Prediction", *, as_json: bool) -> None:
    """Print a picture's guesses, or why there are none: an error is told in either form, on stderr."""
    if prediction.error is not None:
        named = str(prediction.image) in prediction.error
        told = prediction.error if named else f"{prediction.image}: {prediction.error}"
        print(printable(f"error: {told}"), file=sys.stderr)
    elif not as_json:
        print(printable(str(prediction.image)))
        for guess in prediction.guesses:
            print(printable(f"  {100 * guess.score:5.1f} %  {name_class(guess)}{tell_place(guess)}"))


def name_class(guess: "Guess") -> str:
    """Return a class as people know it: its name, and in brackets what it means."""
    name = guess.name or f"class {guess.number}"
    return f"{name} ({guess.text})" if guess.text else name


def tell_place(guess: "Guess") -> str:
    """Return where in the picture it is, in percent of its sides, if that is known."""
    if guess.edges is None:
        return ""
    left, top, right, bottom = (f"{100 * edge:.0f}" for edge in guess.edges)
    return f"  at {left}-{right} % from the left, {top}-{bottom} % from the top"


def describe_predictions(saved: "Saved", predictions: Sequence["Prediction"]) -> dict[str, Any]:
    """Return the document of --json."""
    return {"checkpoint": str(saved.path), "from": saved.origin, "predictions": [describe(one) for one in predictions]}


def describe(prediction: "Prediction") -> dict[str, Any]:
    """Return one picture of the document."""
    if prediction.error is not None:
        return {"image": str(prediction.image), "error": prediction.error}
    guesses = []
    for guess in prediction.guesses:
        named = {key: value for key, value in (("name", guess.name), ("text", guess.text)) if value}
        place = {} if guess.edges is None else {"box": dict(zip(EDGES, guess.edges, strict=True))}
        guesses.append({"class": guess.number, **named, "score": guess.score, **place})
    return {"image": str(prediction.image), "guesses": guesses}


def print_export(made: "Exported", saved: "Saved", target: Path, *, as_json: bool) -> None:
    """Say what was written."""
    if as_json:
        print_json({"file": str(target), "checkpoint": str(saved.path), "from": saved.origin, **made._asdict()})
        return
    kind = "averaged weights" if made.averaged else "weights"
    size = f"{format_count(made.tensors, 'tensor')}, {format_bytes(made.bytes)}"
    print(printable(f"wrote {kind} of {saved.origin} to {target}: {size}, plain safetensors"))
