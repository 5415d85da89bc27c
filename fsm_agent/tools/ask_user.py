"""The tool with which a model asks the user: it runs no code, the answer is its result."""

from __future__ import annotations

from typing import Annotated

from .registry import tool


@tool(effect="read")
def ask_user(
    question: Annotated[str, "What to ask, in full: the user sees nothing else."],
    options: Annotated[tuple[str, ...], "Answers to choose from; empty for free text."] = (),
) -> str:
    """Ask the user a question and wait for the answer. Use it only for what you cannot find out."""
    raise RuntimeError("ask_user is answered by a person; the engine never calls it")


ASK_USER = ask_user
