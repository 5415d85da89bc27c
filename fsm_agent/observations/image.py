"""Pictures: checked by their header, turned upright, and made as small as the model sees them."""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageOps

from .reading import Limits, Picture, Reading, Unreadable

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
AS_IT_IS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
MOST_BYTES = 3 << 20  # of a picture that goes to the model as it is


def read(data: bytes, limits: Limits) -> Reading:
    """The picture. Raises Unreadable, before it is decoded where its header says too much."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _opened(data, limits)
        facts: dict[str, int | float | str] = {"width": image.width, "height": image.height}
        frames = getattr(image, "n_frames", 1)
        if frames > 1:
            facts["frames"] = frames
        try:
            picture = _shown(image, data, limits)
        except (OSError, ValueError, SyntaxError, EOFError) as error:
            raise Unreadable(f"the picture is damaged: {error}") from error
    return Reading(pictures=(picture,), facts=facts)


def _opened(data: bytes, limits: Limits) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = None  # ours is checked below, from the header
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (OSError, ValueError, SyntaxError) as error:
        raise Unreadable("it is no picture of a known format, or is damaged") from error
    pixels = image.width * image.height
    if pixels > limits.pixels:
        raise Unreadable(
            f"it has {image.width} x {image.height} pixels, at most {limits.pixels:,} are read"
        )
    return image


def _shown(image: Image.Image, data: bytes, limits: Limits) -> Picture:
    media_type = AS_IT_IS.get(image.format or "")
    is_turned = image.getexif().get(0x0112, 1) != 1
    is_small = max(image.size) <= limits.side and len(data) <= MOST_BYTES
    image.load()  # also where it goes as it is: a model server would choke on a damaged one
    if media_type and is_small and not is_turned:
        return Picture(media_type, data)
    return encoded(ImageOps.exif_transpose(image), limits.side)


def encoded(image: Image.Image, side: int) -> Picture:
    """The picture with its longer side at most `side`: PNG where it has transparency."""
    image = image.convert("RGBA" if "A" in image.getbands() or image.mode == "P" else "RGB")
    image.thumbnail((side, side))
    out = io.BytesIO()
    if image.mode == "RGBA":
        image.save(out, "PNG")
        return Picture("image/png", out.getvalue())
    image.save(out, "JPEG", quality=85)
    return Picture("image/jpeg", out.getvalue())
