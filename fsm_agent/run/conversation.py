"""What is said in a run: how replies, files and words become the messages that a model sees."""

from __future__ import annotations

from msgspec.structs import replace

from .accounts import settled_call
from .content import (
    AssistantMessage,
    FilesMessage,
    IllustratedMessage,
    Message,
    SignedMessage,
)
from .delta import Perceived, Replied, Signed
from .files import in_words
from .step import Step
from .value import OpenCall, Run

IMAGE_CHARS = 4_000  # an image costs about as much as so many characters, whatever its size
DRAFT_CHARS = 500  # of a reply that broke the protocol: enough for the model to see its mistake
KEPT_STEPS = 32  # how far back loop detection looks


def say(run: Run, message: Message) -> Run:
    return replace(run, messages=(*run.messages, message))


def message_size(message: Message) -> int:
    """Characters of a message that a model is billed for, roughly."""
    size = len(message.text) + 16
    if isinstance(message, IllustratedMessage):
        size += IMAGE_CHARS * len(message.images)
    elif isinstance(message, FilesMessage):
        size += IMAGE_CHARS * len(message.pictures)
    if isinstance(message, AssistantMessage):
        size += sum(len(call.name) + len(call.arguments) + 32 for call in message.calls)
    return size


def fold_reply(run: Run, reply: Replied) -> Run:
    is_good = reply.violation is None
    finalising = run.final_turns_left
    run = replace(
        settled_call(run, reply.usage),
        turns=run.turns + 1,
        repairs=0 if is_good else run.repairs + 1,
        errors=0 if is_good and not reply.calls else run.errors,
        failures=0,
        steps=(*run.steps[1 - KEPT_STEPS :], Step(reply)),
        last=reply,
        calls=tuple(OpenCall(call, call.arguments) for call in reply.calls) if is_good else (),
        step=run.seq,
        final_turns_left=None if finalising is None else max(0, finalising - 1),
    )
    if is_good:
        return say(run, AssistantMessage(reply.label, reply.text, reply.calls, reply.reasoning))
    draft = draft_of(reply)
    return say(run, AssistantMessage(reply.label, draft)) if draft else run


def draft_of(reply: Replied) -> str:
    """What stays in the conversation of a reply that broke the protocol."""
    if len(reply.text) <= DRAFT_CHARS:
        return reply.text
    return f"{reply.text[:DRAFT_CHARS]} […{len(reply.text) - DRAFT_CHARS} characters cut]"


def fold_signature(run: Run, signed: Signed) -> Run:
    """It belongs to the reply that was said last."""
    *before, last = run.messages
    if not isinstance(last, AssistantMessage):
        return run
    with_it = SignedMessage(last.label, last.text, last.calls, last.reasoning, signed.replay)
    return replace(run, messages=(*before, with_it))


def fold_files(run: Run, perceived: Perceived) -> Run:
    if perceived.usage:
        run = settled_call(run, perceived.usage)
    run = replace(run, unread=())
    text = "\n\n".join(map(in_words, perceived.parts))
    return say(run, FilesMessage(text, perceived.parts)) if perceived.parts else run
