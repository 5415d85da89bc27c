"""A real model that is asked each question once in a sweep, and then gives the same answer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from fsm_agent.llm.model import Model, Piece, Reply, StepRequest
from fsm_agent.run.content import AssistantMessage, Message, ToolMessage


class RememberingModel:
    """Asks `model` what was never asked, and keeps the reply in `folder`, for all processes.

    So a sweep over a paid model costs about one run, and its runs can be compared. Call ids are
    left out of the comparison: they come from places in the journal, which crashes move.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        self._model, self._folder = model, folder

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        """See Model."""
        file = self._folder / digest_of(request)
        if (known := _read(file)) is not None:
            on_piece(Piece("body", known.text))
            return known
        reply = await self._model.step(request, on_piece)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_bytes(msgspec.msgpack.encode(reply))
        draft.rename(file)
        return reply

    async def aclose(self) -> None:
        """See Model."""
        await self._model.aclose()


def digest_of(request: StepRequest) -> str:
    """Equal for requests that say the same to a model."""
    names: dict[str, str] = {}

    def plain(message: Message) -> Message:
        match message:
            case AssistantMessage(calls=calls):
                for call in calls:
                    names[call.call_id] = f"call {len(names)}"
                renamed = tuple(
                    msgspec.structs.replace(call, call_id=names[call.call_id]) for call in calls
                )
                return msgspec.structs.replace(message, calls=renamed)
            case ToolMessage(call_id=call_id):
                return msgspec.structs.replace(message, call_id=names.get(call_id, call_id))
            case _:
                return message

    said = [
        request.instructions,
        [plain(message) for message in request.messages],
        request.tools,
        repr(request.protocol),
        [request.model, request.max_tokens, request.temperature],
    ]
    return hashlib.sha256(msgspec.msgpack.encode(said)).hexdigest()


def _read(file: Path) -> Reply | None:
    if not file.exists():
        return None
    return msgspec.msgpack.decode(file.read_bytes(), type=Reply)
