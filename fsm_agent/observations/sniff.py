"""What a file is, by its first bytes. Its name and what the sender says of it count for nothing."""

from __future__ import annotations

from typing import NamedTuple

from fsm_agent.run.content import PartKind


class Type(NamedTuple):
    """A kind that a reader knows, and the media type."""

    kind: PartKind
    media_type: str


UNKNOWN = Type("unknown", "application/octet-stream")
LOOKED_AT = 4096

_BEGINNINGS: tuple[tuple[bytes, PartKind, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image", "image/png"),
    (b"\xff\xd8\xff", "image", "image/jpeg"),
    (b"GIF87a", "image", "image/gif"),
    (b"GIF89a", "image", "image/gif"),
    (b"II*\x00", "image", "image/tiff"),
    (b"MM\x00*", "image", "image/tiff"),
    (b"fLaC", "audio", "audio/flac"),
    (b"OggS", "audio", "audio/ogg"),
    (b"ID3", "audio", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video", "video/webm"),
    (b"PK\x03\x04", "unknown", "application/zip"),
    (b"\x1f\x8b", "unknown", "application/gzip"),
    (b"7z\xbc\xaf\x27\x1c", "unknown", "application/x-7z-compressed"),
    (b"\xfd7zXZ\x00", "unknown", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "unknown", "application/zstd"),
    (b"\x7fELF", "unknown", "application/x-executable"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "unknown", "application/x-ole-storage"),
    (b"SQLite format 3\x00", "unknown", "application/vnd.sqlite3"),
)
_RIFF: dict[bytes, Type] = {
    b"WAVE": Type("audio", "audio/wav"),
    b"AVI ": Type("video", "video/x-msvideo"),
    b"WEBP": Type("image", "image/webp"),
}
_PICTURES = frozenset({b"heic", b"heix", b"mif1", b"avif", b"avis"})  # brands of ISO media files
# Of text. The first looks like a frame of MPEG audio.
_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
_SOUNDS = frozenset({b"M4A ", b"M4B "})
_OLD_MEDIA = (b"moov", b"mdat", b"wide", b"free")  # QuickTime files from before there were brands


def sniff(data: bytes) -> Type:
    """The type of a file; UNKNOWN where nothing says what it is. Empty files are text."""
    for magic, kind, media_type in _BEGINNINGS:
        if data.startswith(magic):
            return Type(kind, media_type)
    if data[:4] == b"RIFF" and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    if data[4:8] == b"ftyp":
        return _of_brand(data[8:12])
    if data[4:8] in _OLD_MEDIA:
        return Type("video", "video/quicktime")
    if _is_bmp(data):
        return Type("image", "image/bmp")
    if b"%PDF-" in data[:1024]:  # readers take one that does not begin at once
        return Type("pdf", "application/pdf")
    if _is_mpeg_audio(data) and not data.startswith(_MARKS):
        return Type("audio", "audio/mpeg")
    return _text_or_unknown(data)


def _of_brand(brand: bytes) -> Type:
    if brand in _PICTURES:
        name = "avif" if brand.startswith(b"avi") else "heic"
        return Type("image", f"image/{name}")
    if brand in _SOUNDS:
        return Type("audio", "audio/mp4")
    return Type("video", "video/quicktime" if brand == b"qt  " else "video/mp4")


def _is_bmp(data: bytes) -> bool:
    return data[:2] == b"BM" and len(data) > 26 and data[6:10] == b"\0\0\0\0"


def _is_mpeg_audio(data: bytes) -> bool:
    """A frame header with a version, layer, bit rate and sample rate that exist."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer = data[1] >> 3 & 3, data[1] >> 1 & 3
    rate, frequency = data[2] >> 4, data[2] >> 2 & 3
    return version != 1 and layer != 0 and rate not in (0, 15) and frequency != 3


def _text_or_unknown(data: bytes) -> Type:
    head = data[:LOOKED_AT]
    if head.startswith(_MARKS):
        return Type("text", "text/plain")
    # NUL and most control characters stand in no text of an eight-bit encoding.
    control = sum(byte < 32 and byte not in b"\t\n\r\f\x1b\b" for byte in head)
    if control:
        return UNKNOWN
    start = head.lstrip()[:256].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return Type("text", "text/html")
    if start.startswith(b"<svg") or (start.startswith(b"<?xml") and b"<svg" in start):
        return Type("text", "image/svg+xml")  # a program, in text: it is shown, never drawn
    return Type("text", "text/plain")
