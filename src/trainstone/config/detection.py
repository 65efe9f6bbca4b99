"""What a recipe may say of finding things: which default boxes learn what, and which boxes are given out."""

from typing import Annotated

from pydantic import Field

from trainstone.config.section import Section

Share = Annotated[float, Field(ge=0, le=1)]


class DetectConfig(Section):
    """Boxes: how a network learns them, and which of them it gives out."""

    match_overlap: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A default box learns an object where their intersection over union is above this; each object's best one always
    does."""
    negatives: Annotated[float, Field(gt=0, le=100)] = 3.0
    """Boxes without an object that count in the loss, for each with one: those with the highest loss."""
    min_score: Share = 0.0
    """Found boxes with at most this score are left out."""
    before_nms: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Boxes of a picture, all classes together, that enter the search for duplicates: those with the best scores."""
    nms_overlap: Share = 0.5
    """Of two boxes of a class that overlap by more, the one with the lower score is a duplicate."""
    max_found: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Boxes of a picture that are given out at most."""
    inclusive_edges: bool = False
    """Count a box from 10 to 20 as 11 pixels wide in evaluation, as the original SSD did. COCO: 10."""
