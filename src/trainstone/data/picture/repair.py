"""Pictures that decoders of JPEG RGB stumble over, made into such; found by looking, never from a list of names.

ImageNet holds one PNG named .JPEG and 22 CMYK JPEGs; TensorFlow's converter re-encoded those 23 it knew in this way.
"""

from pathlib import PurePosixPath

from trainstone.data.picture.look import Look

QUALITY = 100  # as TensorFlow's build_imagenet_data.py did
JPEG_ENDINGS = (".jpg", ".jpeg", ".jpe")


def repair(name: str, image: bytes, seen: Look) -> tuple[bytes, str | None]:
    """Re-encode a CMYK JPEG, and what is named JPEG but is none, as JPEG RGB; return the bytes and what was wrong."""
    ending = PurePosixPath(name).suffix
    if seen.kind == "jpeg" and seen.colour == "cmyk":
        why = "CMYK JPEG"
    elif seen.kind != "jpeg" and ending.lower() in JPEG_ENDINGS:
        why = f"{seen.kind.upper()} named {ending}"
    else:
        return image, None
    from trainstone.data.picture.decode import decode, encode_jpeg  # heavy, and seldom needed

    return encode_jpeg(decode(image), QUALITY), why
