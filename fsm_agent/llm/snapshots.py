"""Whether each chunk of a stream repeats all that came before, and what it adds if so."""

from __future__ import annotations


class Snapshots:
    """Turns chunks into what each of them adds.

    Some relays send the whole text so far in every chunk. That is taken for granted only once a
    chunk begins with all that came before, and that was more than a word: 'ha' and 'haha' are
    two real pieces. The check costs nothing once a text is longer than its chunks.
    """

    def __init__(self, min_chars: int) -> None:
        self._min = min_chars
        self._all: list[str] = []
        self._size = 0
        self._last: str | None = None  # the last snapshot, once this is known to be such a stream

    def added(self, text: str, *, is_last: bool = False) -> str:
        """What `text` adds. The last chunk may also say once more all that was said."""
        if self._last is not None:
            return self._added_to(self._last, text)
        if len(text) >= self._size + (not is_last) and self._size >= 2 and self._repeats(text):
            return self._added_to("".join(self._all), text)
        self._all.append(text)
        self._size += len(text)
        return text

    def _repeats(self, text: str) -> bool:
        before = "".join(self._all)
        if not text.startswith(before):
            return False
        begun = before.lstrip()
        is_label = begun.startswith("`") and any(char.isalnum() for char in begun)
        if len(text) == self._size:
            return is_label and self._size >= self._min  # two equal pieces are just that
        return self._size >= self._min or is_label

    def _added_to(self, before: str, text: str) -> str:
        if not text.startswith(before):
            self._last = before + text
            return text
        self._last, self._all = text, []
        return text[len(before) :]
