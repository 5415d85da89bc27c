"""Text files: which encoding they are in, and how sure that is."""

from __future__ import annotations

import codecs

from .reading import Limits, Reading

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"),
          (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
BYTES_A_CHAR = 4


def read(data: bytes, limits: Limits) -> Reading:
    """The text, at most `limits.text_chars` of it. Bytes that are no text become U+FFFD."""
    most = limits.text_chars * BYTES_A_CHAR + BYTES_A_CHAR
    head = data[:most]
    text, encoding, confidence = _decoded(head, is_whole=len(head) == len(data))
    text = text.replace("\r\n", "\n").replace("\0", "")
    if len(head) < len(data) or len(text) > limits.text_chars:
        share = min(1.0, limits.text_chars / len(text)) if text else 1.0
        missing = len(data) - int(len(head) * share)
        text = f"{text[: limits.text_chars]}\n[… about {missing:,} more bytes are not shown]"
    return Reading(text, confidence=confidence, facts={"encoding": encoding})


def _decoded(data: bytes, *, is_whole: bool) -> tuple[str, str, int]:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace"), encoding.removesuffix("-sig"), 100
    try:
        # What was cut off in the middle of a character is no sign of another encoding.
        decoder = codecs.getincrementaldecoder("utf-8")()
        return decoder.decode(data, final=is_whole), "utf-8", 100
    except UnicodeDecodeError:
        pass
    if _looks_chinese(data):
        return data.decode("gb18030", "replace"), "gb18030", 60
    return data.decode("cp1252", "replace"), "cp1252", 60


def _looks_chinese(data: bytes) -> bool:
    """Whether the bytes are pairs as GB 18030 has them, for the most part common characters."""
    try:
        text = data.decode("gb18030")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 4:
            return False
        text = data[: error.start].decode("gb18030")
    high = [char for char in text if ord(char) > 127]
    common = sum(
        "\u4e00" <= char <= "\u9fff" or char in "，。！？：；、“”（）《》" for char in high
    )
    return bool(high) and common >= 0.8 * len(high)
