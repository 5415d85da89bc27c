"""Commands that are shown to be pasted: each whole, harmless as it stands, with what it says."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from typing import NamedTuple, TextIO

from fsm_agent.cli.process import say

_PARTS = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")  # of a command, each with its quotes


class Hint(NamedTuple):
    """A command, and in a few words what it says. The words have no quotes: shells read them."""

    command: str
    words: str = ""


def say_hints(hints: Iterable[Hint]) -> None:
    """Put the commands on stderr, indented."""
    for hint in hints:
        for line in laid_out(hint, width_of(sys.stderr) - 2):
            say(f"  {line}")


def width_of(stream: TextIO) -> int:
    """The columns of a terminal; whatever else reads takes lines of any length."""
    return shutil.get_terminal_size().columns if stream.isatty() else sys.maxsize


def laid_out(hint: Hint, width: int) -> list[str]:
    """The lines of a hint: one where it fits, else the words above and the command broken between
    its words, in a way that a shell puts together again."""
    comment = f"# {hint.words}" if hint.words else ""
    whole = f"{hint.command}  {comment}".rstrip()
    if len(whole) <= width:
        return [whole]
    lines, line = [comment] if comment else [], ""
    for part in _PARTS.findall(hint.command):
        if line and len(line) + len(part) + len("  \\") > width:
            lines.append(f"{line} \\")
            line = f"    {part}"
        else:
            line = f"{line} {part}" if line else part
    return [*lines, line]
