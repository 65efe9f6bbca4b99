"""Pictures that decoders of JPEG RGB stumble over, made into such; found by looking, never from a list of names.

ImageNet holds one PNG named .JPEG and 22 CMYK JPEGs; TensorFlow's converter re-encoded those 23 it knew in this way.
"""

from pathlib import PurePosixPath
from typing import NamedTuple

from trainstone.data.picture.look import Look

QUALITY = 100  # as TensorFlow's build_imagenet_data.py did
JPEG_ENDINGS = (".jpg", ".jpeg", ".jpe")


class Repaired(NamedTuple):
    """A picture's bytes, and what was wrong with the former ones; None where they are still the same."""

    image: bytes
    why: str | None


def repair(name: str, image: bytes, seen: Look) -> Repaired:
    """Re-encode a CMYK JPEG and what is named JPEG but is none as JPEG RGB; leave all others as they are."""
    why = find_fault(name, seen)
    if why is None:
        return Repaired(image, None)
    from trainstone.data.picture.decode import decode, encode_jpeg  # heavy, and seldom needed

    return Repaired(encode_jpeg(decode(image), QUALITY), why)


def find_fault(name: str, seen: Look) -> str | None:
    """Say what is wrong, in a few words."""
    if seen.kind == "jpeg":
        return "CMYK JPEG" if seen.colour == "cmyk" else None
    ending = PurePosixPath(name).suffix
    return f"{seen.kind.upper()} named {ending}" if ending.lower() in JPEG_ENDINGS else None
