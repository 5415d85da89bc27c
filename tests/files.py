"""Files for tests, made on the spot: pictures, PDFs, sounds and films, sound and broken ones."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from collections.abc import Sequence

import av
from PIL import Image


def png(width: int = 8, height: int = 6, colour: str = "red") -> bytes:
    return picture("PNG", width, height, colour)


def picture(form: str, width: int = 8, height: int = 6, colour: str = "red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(out, form)
    return out.getvalue()


def turned_jpeg(width: int = 40, height: int = 20) -> bytes:
    """A JPEG that its EXIF data says to turn by 90 degrees."""
    image, exif = Image.new("RGB", (width, height), "blue"), Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    image.save(out, "JPEG", exif=exif)
    return out.getvalue()


def png_bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A few bytes whose header promises gigabytes of pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 100_000)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def pdf(pages: Sequence[str], *, bomb_bytes: int = 0) -> bytes:
    """A PDF with a line of text on each page; '' gives a page without text."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>"
        % (b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(len(pages))), len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        drawn = b"BT /F1 12 Tf 72 700 Td (%s) Tj ET" % text.encode("latin-1") if text else b""
        body = zlib.compress(drawn + b" " * bomb_bytes)
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number)
        )
        objects.append(
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(body), body)
        )
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return out + trailer % (len(objects) + 1, start)


def wav(seconds: float = 1.0, rate: int = 8_000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(b"\0\1" * int(seconds * rate))
    return out.getvalue()


def film(seconds: int = 3, rate: int = 5) -> bytes:
    """A film without sound, with a key frame each second."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate, options={"g": str(rate)})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(seconds * rate):
            image = Image.new("RGB", (64, 48), (number * 7 % 256, 90, 30))
            for packet in stream.encode(av.VideoFrame.from_image(image)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return out.getvalue()
