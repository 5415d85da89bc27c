"""Files of a run in words for the model: between marks, so that they are not taken for orders."""

from __future__ import annotations

from .content import Part

UNSURE = 70  # percent of confidence below which the model is told to ask


def in_words(part: Part) -> str:
    """What a file is, what is in it, and how far that can be relied on."""
    name = part.file.name
    whence = f" with the result of {part.file.origin}" if part.file.origin else ""
    told = [f"file {name}{whence}", part.media_type, f"{part.file.size_bytes:,} bytes"]
    told += [f"{fact.replace('_', ' ')} {value}" for fact, value in part.facts.items()]
    lines = [f"[{', '.join(told)}]"]
    if part.problem:
        lines.append(f"[{'not all of it is here' if part.text else 'not read'}: {part.problem}]")
    if part.pictures:
        count = len(part.pictures)
        lines.append(f"[shown as {'a picture' if count == 1 else f'{count} pictures'}]")
    if part.text and part.confidence < UNSURE:
        lines.append(
            f"[the text was read with a confidence of {part.confidence} %:"
            " where it matters, ask the user]"
        )
    if part.text:
        lines += [part.text, f"[end of {name}]"]
    return "\n".join(lines)
