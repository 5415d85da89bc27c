"""The tool with which a model asks the user: it runs no code, the answer is its result."""

from __future__ import annotations

from typing import Annotated, Any

from fsm_agent.errors import BadAgent
from fsm_agent.run.delta import OnExpiry

from .registry import Tool, tool
from .rule import ask


@tool(effect="read")
def ask_user(
    question: Annotated[str, "What to ask, in full: the user sees nothing else."],
    options: Annotated[tuple[str, ...], "Answers to choose from; empty for free text."] = (),
) -> str:
    """Ask the user a question and wait for the answer. Use it only for what you cannot find out."""
    raise RuntimeError("ask_user is answered by a person; the engine never calls it")


ASK_USER = ask_user


def ask_user_within(seconds: float, *, on_expiry: OnExpiry = "reject") -> Tool[..., str]:
    """`ask_user` with a deadline: then the model is told that nobody answered, or the run ends.

    Raises BadAgent for a span that cannot work.
    """
    if on_expiry == "approve":
        raise BadAgent("ask_user_within(on_expiry='approve'): a question has nothing to approve.")
    terms = ask(expires_s=seconds, on_expiry=on_expiry)
    return tool(ask_user.function, effect="read", approval=terms)


def is_question(tool: Tool[..., Any]) -> bool:
    """Whether calls of the tool are answered by a person."""
    return tool.function is ASK_USER.function
