"""Pictures that are not what they should be, found by looking."""

import io

import numpy as np
import pytest
from PIL import Image

from trainstone.data.picture.decode import decode
from trainstone.data.picture.look import look
from trainstone.data.picture.repair import repair


def save(kind: str, mode: str = "RGB") -> bytes:
    y, x = np.mgrid[:24, :40]
    buffer = io.BytesIO()
    Image.fromarray(np.stack([x * 5, y * 8, x + y], axis=2).astype(np.uint8)).convert(mode).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "image", "why"),
    [
        ("n02105855/n02105855_2933.JPEG", save("PNG"), "PNG named .JPEG"),
        ("a.jpg", save("GIF"), "GIF named .jpg"),
        ("a.jpeg", save("PNG", "RGBA"), "PNG named .jpeg"),
        ("n01739381/n01739381_1309.JPEG", save("JPEG", "CMYK"), "CMYK JPEG"),
        ("a.png", save("JPEG", "CMYK"), "CMYK JPEG"),
    ],
)
def test_faults_are_mended_and_named(name: str, image: bytes, why: str):
    mended = repair(name, image, look(image))
    assert mended.why == why
    assert look(mended.image)[:4] == ("jpeg", 40, 24, "rgb")
    assert np.abs(decode(mended.image).astype(int) - decode(image)).mean() < 3


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("a.jpg", save("JPEG")),
        ("a.JPEG", save("JPEG", "L")),
        ("a.png", save("PNG")),
        ("b.png", save("JPEG")),
        ("c", save("BMP")),
    ],
)
def test_all_others_keep_their_bytes(name: str, image: bytes):
    assert repair(name, image, look(image)) == (image, None)
