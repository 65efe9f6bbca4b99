"""What every record of result.json is, and the numbers it may hold."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=2**62)]
Rate = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]


class Record(BaseModel):
    """Frozen; keys that a newer trainstone of the same format added are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
