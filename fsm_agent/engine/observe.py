"""OBSERVE: take what came since the last turn into the conversation, files included.

In this order: the files of the task, then what people said, oldest first, then events. At most
MAX_INPUTS of them in a turn, of MAX_INPUT_BYTES in all unless it is one; the rest waits in the
mailbox for the next one.
"""

from __future__ import annotations

from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.content import File, clean_text
from fsm_agent.run.delta import AnyDelta, Entered, Hinted, ModelFailed, Noticed, Observed, Perceived
from fsm_agent.run.signal import Happened, Said
from fsm_agent.run.state import Trigger

from .deps import Deps
from .files import perceive
from .host import ask_host
from .outcome import Move, Outcome
from .session import Session

MAX_INPUTS = 16  # of a turn
MAX_INPUT_BYTES = 500_000  # of their texts: one entry holds them all, and the store caps entries
MAX_EVENT_CHARS = 8_000

Input = tuple[str, Said | Happened]


async def observe(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """Drain the mailbox; a repeat of a signal is dropped.

    Also where a run enters its first phase, and where the host may say something before the turn.
    A signal leaves the mailbox with the entry that has what it said, so a worker that dies while
    it reads files loses none. Raises Interrupted if a cancel request came meanwhile.
    """
    inputs = _of_a_turn(_waiting(session))
    new = [each for each in inputs if each[0] not in session.run.signals]
    files = [session.run.unread, *(_files(signal) for _, signal in new)]
    parts, settled = await perceive(session, agent, deps, files)
    facts: list[AnyDelta] = []
    if not session.run.phase and (first := agent.capability.first).name:
        facts.append(Entered(first.name))
    if session.run.unread:
        facts.append(Perceived(tuple(parts[0])))
    for number, (signal_id, signal) in enumerate(new, 1):
        facts.append(_fact(signal_id, signal))
        if _files(signal):
            facts.append(Perceived(tuple(parts[number])))
    facts += settled
    for signal_id, _ in inputs:
        session.consume(signal_id)
    if said := await _said_by_host(session, agent):
        facts.append(Hinted("host", said))
    return Move(Trigger.OBSERVED, tuple(facts))


async def _said_by_host(session: Session, agent: Agent) -> str | None:
    run, hooks = session.run, agent.hooks
    is_retry = isinstance(run.last, ModelFailed)
    if is_retry or agent.due_calls(run):
        return None  # not a turn of its own
    return await ask_host(hooks.before_turn, "before_turn", hooks.timeout_s, run)


def _waiting(session: Session) -> list[Input]:
    words: list[Input] = [
        (signal_id, signal)
        for signal_id, signal in session.signals.items()
        if isinstance(signal, Said)
    ]
    return words + [
        (signal_id, signal)
        for signal_id, signal in session.signals.items()
        if isinstance(signal, Happened)
    ]


def _of_a_turn(waiting: list[Input]) -> list[Input]:
    """The first of them that fit; the first one always does."""
    taken: list[Input] = []
    size_bytes = 0
    for signal_id, signal in waiting[:MAX_INPUTS]:
        size_bytes += len(_fact(signal_id, signal).text.encode())
        if taken and size_bytes > MAX_INPUT_BYTES:
            break
        taken.append((signal_id, signal))
    return taken


def _files(signal: Said | Happened) -> tuple[File, ...]:
    return signal.files if isinstance(signal, Said) else ()


def _fact(signal_id: str, signal: Said | Happened) -> Observed | Noticed:
    text = clean_text(signal.text)
    if isinstance(signal, Said):
        return Observed(text, signal_id)
    if len(text) > MAX_EVENT_CHARS:
        text = f"{text[:MAX_EVENT_CHARS]} [… {len(text) - MAX_EVENT_CHARS} characters cut]"
    return Noticed(clean_text(signal.source), text, signal_id)
