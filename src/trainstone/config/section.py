"""What every section of a recipe is: a frozen record that refuses unknown keys; and values that several take."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def check_range(ends: tuple[float, float]) -> tuple[float, float]:
    """Refuse a range whose ends are in the wrong order, or not above zero."""
    if not 0 < ends[0] <= ends[1]:
        raise ValueError("a range is [low, high], 0 < low <= high")
    return ends


def check_order(ends: tuple[float, float]) -> tuple[float, float]:
    """Refuse a range whose ends are in the wrong order."""
    if ends[0] > ends[1]:
        raise ValueError("a range is [low, high], low <= high")
    return ends


# TOML has lists only, which strict models would refuse; the numbers in them stay strict.
Range = Annotated[tuple[float, float], Field(strict=False), AfterValidator(check_range)]
_Share = Annotated[float, Field(le=1, strict=True)]
ShareRange = Annotated[tuple[_Share, _Share], Field(strict=False), AfterValidator(check_range)]
AnyRange = Annotated[tuple[float, float], Field(strict=False), AfterValidator(check_order)]
Shares = Annotated[tuple[Annotated[float, Field(ge=0, lt=1, strict=True)], ...], Field(strict=False)]
StepRange = Annotated[
    tuple[Annotated[int, Field(ge=0, strict=True)], Annotated[int, Field(ge=1, strict=True)]], Field(strict=False)
]


class Section(BaseModel):
    """Strict (no text where a number belongs), frozen, no unknown keys.

    A key that is a word of Python has a _ behind it here, and nowhere else: eval.async is EvalConfig.async_.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        alias_generator=lambda name: name.removesuffix("_"),
        serialize_by_alias=True,
    )
