"""Base class of the records of result.json, and their number types."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=2**62)]
Rate = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]


class Record(BaseModel):
    """Frozen; unknown keys, added by a newer trainstone with the same format, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
