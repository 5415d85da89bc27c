"""A second look at a turn by a model: when it is due, what it is asked, and what its words mean."""

from __future__ import annotations

import re

import msgspec

from fsm_agent.errors import BadAgent
from fsm_agent.run.content import AssistantMessage, ToolMessage
from fsm_agent.run.delta import CriticVerdict
from fsm_agent.run.record import Run

from .verdict import Continue, Finish, Verdict, Warn

CRITICISE = (
    "You look over the shoulder of an agent. Given its task and its last step, judge: is the step "
    "right, is more needed, what should come next? Begin your reply with exactly one word, alone "
    "on the first line:\n"
    "RIGHT - the step is sound; the agent goes on by itself.\n"
    "MORE - it is sound, but something the task needs is being forgotten.\n"
    "WRONG - a result is wrong, misread, or does not help with the task.\n"
)
MAY_FINISH = "DONE - the task is fulfilled; the text below is the whole answer for the user.\n"
THEN = "Then, on the next line, say why in at most three sentences, addressed to the agent."
MOST_CHARS = 6_000  # of each thing that the critic is shown

_FIRST = re.compile(r"[\s`*#\"'(\[]*(RIGHT|MORE|WRONG|DONE)\b[\s`*\"')\]:.,–-]*", re.IGNORECASE)


class Critic(msgspec.Struct, frozen=True, kw_only=True):
    """Explicit reflection: after each turn with calls, or only after calls of `tools`.

    `model` None means the agent's own. With `may_finish` the critic can end the run with an answer
    of its own.
    """

    tools: tuple[str, ...] = ()  # (): after any
    model: str | None = None
    max_tokens: int = 400
    may_finish: bool = False
    instructions: str = CRITICISE

    def __post_init__(self) -> None:
        if isinstance(self.tools, str):
            raise BadAgent(f"Critic: tools is the string {self.tools!r}. Give a tuple of names.")
        if self.max_tokens < 20:
            raise BadAgent("Critic: max_tokens must be 20 or more.")

    def is_due(self, run: Run) -> bool:
        """Whether the turn that was just made is to be looked at, and was not yet."""
        if not run.calls or run.final_turns_left is not None or run.criticised == run.step:
            return False
        names = {call.call.name for call in run.calls}
        return not self.tools or bool(names.intersection(self.tools))

    def prompt(self) -> str:
        """The system prompt."""
        return self.instructions + (MAY_FINISH if self.may_finish else "") + THEN

    def question(self, run: Run) -> str:
        """The task and the turn, in words."""
        said = next(m for m in reversed(run.messages) if isinstance(m, AssistantMessage))
        results = [m for m in run.messages[-len(run.calls) :] if isinstance(m, ToolMessage)]
        lines = [f"The task:\n{_cut(run.task)}", f"The agent said:\n{_cut(said.text) or '-'}"]
        for call, result in zip(said.calls, results, strict=False):
            asked = f"{call.name} {_cut(call.arguments)}"
            lines.append(f"It called {asked}\nResult ({result.status}):\n{_cut(result.text)}")
        return "\n\n".join(lines)

    def read(self, text: str) -> tuple[CriticVerdict, str]:
        """What the reply says: a verdict, and its reason."""
        found = _FIRST.match(text)
        if not found:
            return "unknown", text.strip()
        word = found[1].lower()
        if word == "done" and not self.may_finish:
            word = "right"
        verdict: CriticVerdict = msgspec.convert(word, CriticVerdict)
        return verdict, text[found.end() :].strip()


def verdict_of(verdict: CriticVerdict, text: str) -> Verdict:
    """What follows from the critic's word. Without one the run goes on as if nobody had looked."""
    if verdict == "done" and text:
        return Finish(text, is_completed=True, why="critic")
    if verdict == "wrong":
        return Warn(f"A reviewer says that the last step is wrong. {text}".strip())
    if verdict == "more" and text:
        return Warn(f"A reviewer says that something is missing. {text}")
    return Continue()


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + " [… cut]"
