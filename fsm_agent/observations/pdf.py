"""PDF: its text page by page; of scanned ones the first pages as pictures."""

from __future__ import annotations

import pypdfium2 as pdfium

from .reading import Limits, Picture, Reading, Unreadable, shown

SCANNED_CHARS = 25  # fewer on a page, on average, is what a scanner leaves
SCANNED_CONFIDENCE = 20


def read(data: bytes, limits: Limits) -> Reading:
    """The text of at most `limits.pages` pages, with their numbers. Raises Unreadable."""
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower():
            raise Unreadable("it is protected by a password") from error
        raise Unreadable("it is damaged, or no PDF") from error
    try:
        return _read(document, limits)
    finally:
        document.close()


def _read(document: pdfium.PdfDocument, limits: Limits) -> Reading:
    count = len(document)
    if not count:
        raise Unreadable("it has no pages")
    texts: list[str] = []
    chars, damaged = 0, 0
    for number in range(min(count, limits.pages)):
        if chars > limits.text_chars:
            break
        try:
            text = document[number].get_textpage().get_text_range().strip()
        except pdfium.PdfiumError:
            text, damaged = "[this page cannot be read]", damaged + 1
        chars += len(text)
        texts.append(text.replace("\r\n", "\n"))
    is_scanned = chars < SCANNED_CHARS * len(texts)
    pages = "\n\n".join(f"--- page {n} ---\n{text}" for n, text in enumerate(texts, 1) if text)
    problems = []
    if len(texts) < count:
        problems.append(f"only the first {len(texts)} of {count} pages were read")
    if damaged:
        problems.append(f"{damaged} pages are damaged")
    return Reading(
        text=shown(pages, limits.text_chars),
        pictures=_drawn(document, limits) if is_scanned else (),
        confidence=SCANNED_CONFIDENCE if is_scanned else 95,
        facts={"pages": count},
        problem="; ".join(problems),
    )


def _drawn(document: pdfium.PdfDocument, limits: Limits) -> tuple[Picture, ...]:
    """The first pages as pictures, if the library for pictures is there."""
    try:
        from .image import encoded
    except ImportError:
        return ()
    pictures = []
    for number in range(min(len(document), limits.pictures)):
        page = document[number]
        # From the size of the paper, which the file may claim to be anything.
        longer = max(page.get_width(), page.get_height(), 1.0)
        bitmap = page.render(scale=min(limits.side / longer, 4.0))
        pictures.append(encoded(bitmap.to_pil(), limits.side))
    return tuple(pictures)
