"""A final answer of a declared type: what the model is told of it, and how it is read."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fsm_agent.errors import BadAgent

_FENCED = re.compile(r"^```[\w-]*[ \t]*\n(.*?)\n?```[ \t]*$", re.DOTALL | re.MULTILINE)


class Misfit(Exception):
    """A text that is not a value of the type. Says why, in words for the model."""


class Output:
    """The type of an answer: anything that msgspec can decode from JSON, such as a Struct."""

    def __init__(self, type_: Any) -> None:
        try:
            self._decoder = msgspec.json.Decoder(type_)
            self._lenient = msgspec.json.Decoder(type_, strict=False)
            schema = msgspec.json.schema(type_)
        except (TypeError, ValueError) as error:
            raise BadAgent(f"output={type_!r} cannot be the type of an answer: {error}") from error
        self._schema = msgspec.json.encode(schema).decode()

    @property
    def taught(self) -> str:
        """What the model is told."""
        return (
            "The final answer is data, not prose: one JSON value that fits this JSON schema, and "
            f"nothing else.\n{self._schema}"
        )

    def read(self, text: str) -> Any:
        """The value of an answer. Raises Misfit. See `json_of` for what may surround it."""
        body = json_of(text).encode()
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            return self._read_leniently(body, error)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise Misfit(f"It is not JSON: {error}.") from error

    def _read_leniently(self, body: bytes, error: msgspec.ValidationError) -> Any:
        """'5' may stand for 5, as in the arguments of tools."""
        try:
            return self._lenient.decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            raise Misfit(f"It does not fit the schema: {error}.") from error


def json_of(text: str) -> str:
    """The JSON in an answer: all of it, or its one fenced block, whatever stands around that."""
    text = text.strip()
    fenced = _FENCED.findall(text)
    return str(fenced[0]).strip() if len(fenced) == 1 else text
