"""Files of a run: from blobs to parts that a model can be shown, and pictures into requests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from checkpoints.errors import EntryTooLarge, StoreUnavailable
from fsm_agent.capabilities.agent import Agent
from fsm_agent.errors import MissingSetting, ProviderError
from fsm_agent.llm.model import Transcriber, name_of
from fsm_agent.observations.given import safe_name
from fsm_agent.observations.read import read
from fsm_agent.observations.reading import shown
from fsm_agent.observations.sniff import sniff
from fsm_agent.reflection.money import Price, price_of
from fsm_agent.run.content import (
    File,
    FilesMessage,
    IllustratedMessage,
    Image,
    Message,
    Part,
    Picture,
    Usage,
    clean_text,
)
from fsm_agent.run.delta import AnyDelta, Perceived, Reserved
from fsm_agent.run.record import OpenCall
from fsm_agent.run.state import Trigger
from fsm_agent.tools.attachments import Attachment

from .costs import charge, has_room, sane
from .deps import Deps
from .session import Session

MAX_NAME_NOTE = 300  # characters of what is told of one file

TOKENS_A_SECOND = 12  # of sound, roughly what is billed for it with its words
TRANSCRIPT_TOKENS = 500  # set aside besides
TRANSCRIPT_CONFIDENCE = 75
UNKNOWN_SECONDS = 600.0


async def enclose(
    session: Session, agent: Agent, deps: Deps, call: OpenCall, given: Sequence[Attachment]
) -> tuple[tuple[File, ...], str]:
    """Keep the files of a call's result beside the run, and what the model is told of them at once.

    What is in them is read in OBSERVE, like what a person gave. Never an error: the tool has run.
    """
    limits = agent.file_limits
    room = limits.files - sum(len(other.files) for other in session.run.calls)
    kept: list[File] = []
    notes = []
    for file in given:
        name, problem = safe_name(clean_text(file.name)), clean_text(file.problem)
        size_bytes = len(file.data)
        if not problem and len(kept) >= room:
            problem = f"the results of one turn have at most {limits.files} files"
        elif size_bytes > limits.file_bytes:
            problem = f"it has {size_bytes:,} bytes, at most {limits.file_bytes:,} are taken"
        if not problem:
            data = cleaned(deps, file.data)
            try:
                digest = await deps.store.put_blob(session.lease.run_id, data)
            except (EntryTooLarge, StoreUnavailable) as error:
                problem = _cause(error)
            else:
                kept.append(File(name, digest, len(data), origin=call.call.name))
        what = f"not here: {problem}" if problem else f"{size_bytes:,} bytes, shown below"
        notes.append(f"[file {name}: {what}"[:MAX_NAME_NOTE] + "]")
    return tuple(kept), "\n".join(notes)


def cleaned(deps: Deps, data: bytes) -> bytes:
    """A text without secrets; bytes that are no text stay as they are."""
    try:
        return deps.clean_words(data.decode()).encode()
    except UnicodeDecodeError:
        return data


async def perceive(
    session: Session, agent: Agent, deps: Deps, groups: Sequence[Sequence[File]]
) -> tuple[list[list[Part]], tuple[AnyDelta, ...]]:
    """The parts of each group of files, each with what could be read of it: never an error.

    Sound is put into words by the model's endpoint where that is set up: one reserve for all of it
    goes on record first, and the facts that are returned settle it, after those of the parts.
    Raises Interrupted if a cancel request came.
    """
    if any(groups):
        await session.flush()  # reading takes its time: what came before must not wait for it
    parts = [[await _read(session, agent, deps, file) for file in group] for group in groups]
    sounds = [part for group in parts for part in group if _is_heard(part)]
    if not sounds:
        return parts, ()
    problem, usage = await _begin(session, agent, deps, sounds), None
    for group in parts:
        for number, part in enumerate(group):
            if not _is_heard(part):
                continue
            if problem:
                group[number] = _unheard(part, problem)
                continue
            group[number], billed = await _heard(session, agent, deps, part)
            usage = _sum(usage, billed)
    if usage is None:
        return parts, ()
    return parts, (Perceived((), usage), *charge(_price(agent, deps), usage))


async def _read(session: Session, agent: Agent, deps: Deps, file: File) -> Part:
    run_id = session.lease.run_id
    data = await deps.store.get_blob(run_id, file.digest)
    if data is None:
        why = "its bytes are not in the store any more"
        return Part(file, "unknown", "", confidence=0, problem=why)
    found = sniff(data)
    with session.interruptible():
        reading = await read(data, found, agent.file_limits)
    pictures = []
    for picture in reading.pictures:
        with suppress(EntryTooLarge):
            digest = await deps.store.put_blob(run_id, picture.data)
            pictures.append(Picture(digest, picture.media_type))
    return Part(
        file=file,
        kind=found.kind,
        media_type=found.media_type,
        text=reading.text,
        pictures=tuple(pictures),
        confidence=reading.confidence,
        facts=reading.facts,
        problem=reading.problem,
    )


def _is_heard(part: Part) -> bool:
    """Whether there is sound in it to put into words."""
    return part.kind in ("audio", "video") and not part.problem and "audio" in part.facts


def _unheard(part: Part, why: str) -> Part:
    """A film can still be looked at; of a sound there is nothing then."""
    return replace(part, problem=f"its sound is not in words: {why}")


def _price(agent: Agent, deps: Deps) -> Price | None:
    return price_of(agent.prices, name_of(deps.model, "transcript"))


async def _begin(session: Session, agent: Agent, deps: Deps, sounds: Sequence[Part]) -> str:
    """Put a reserve for all sounds on record. Returns why they cannot be heard; '' if they can."""
    if not isinstance(deps.model, Transcriber) or not deps.model.can_transcribe:
        return "no model for that is set up (FSM_AGENT_TRANSCRIBE_MODEL)"
    run, price = session.run, _price(agent, deps)
    if run.limits.micros is not None and price is None:
        return "the run has a limit on money, and no price for the model that hears"
    reserve = sum(map(_reserve_tokens, sounds))
    # At the dearer of its prices: nobody knows how much is said.
    micros = max(price.micros(reserve, 0), price.micros(0, reserve)) if price else 0
    if not has_room(run, reserve, micros):
        return "the budget has no room for it"
    began = Reserved(run.attempts + 1, reserve, purpose="transcript", micros=micros)
    session.stage(Trigger.BEGAN, began)
    await session.flush()
    return ""


def _reserve_tokens(part: Part) -> int:
    seconds = float(part.facts.get("seconds", UNKNOWN_SECONDS))
    return int(TOKENS_A_SECOND * seconds) + TRANSCRIPT_TOKENS


async def _heard(session: Session, agent: Agent, deps: Deps, part: Part) -> tuple[Part, Usage]:
    """The part with what is said in it, or why not, and what that cost."""
    assert isinstance(deps.model, Transcriber)
    data = await deps.store.get_blob(session.lease.run_id, part.file.digest)
    estimate = Usage(_reserve_tokens(part), 0, is_estimate=True)
    try:
        with session.interruptible():
            text, billed = await deps.model.transcribe(data or b"", part.media_type)
    except ProviderError as error:
        is_billed = error.status is None and error.kind != "unreachable"
        return _unheard(part, _cause(error)), estimate if is_billed else Usage(0, 0)
    except MissingSetting as error:
        return _unheard(part, _cause(error)), Usage(0, 0)
    text = shown(clean_text(text.strip()), agent.file_limits.text_chars)
    confidence = TRANSCRIPT_CONFIDENCE if text else 0
    heard = replace(part, text=text, confidence=confidence)
    return heard, sane(billed) if billed else estimate


def _cause(error: Exception) -> str:
    return clean_text(str(error))[:200]


def _sum(one: Usage | None, other: Usage) -> Usage:
    if one is None:
        return other
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        one.is_estimate or other.is_estimate,
    )


async def illustrated(
    session: Session, deps: Deps, messages: tuple[Message, ...]
) -> tuple[Message, ...]:
    """The messages with the pictures of their files put in. Each blob is fetched once a session."""
    if FilesMessage not in set(map(type, messages)):  # most runs have no files at all
        session.pictures.clear()
        return messages
    wanted = {
        picture.digest: picture
        for message in messages
        if isinstance(message, FilesMessage)
        for picture in message.pictures
    }
    kept = session.pictures
    if not wanted:
        kept.clear()
        return messages
    for digest in [known for known in kept if known not in wanted]:
        del kept[digest]
    for digest, picture in wanted.items():
        if digest not in kept:
            data = await deps.store.get_blob(session.lease.run_id, digest)
            kept[digest] = Image(data=data, media_type=picture.media_type) if data else None
    return tuple(
        _with_pictures(message, kept) if isinstance(message, FilesMessage) else message
        for message in messages
    )


def _with_pictures(message: FilesMessage, kept: dict[str, Image | None]) -> Message:
    images = (kept[picture.digest] for picture in message.pictures)
    found = tuple(image for image in images if image)
    return IllustratedMessage(message.text, found) if found else message
