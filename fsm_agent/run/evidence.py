"""What a worker saw of a run that was no longer its own: evidence for a person, never state."""

from __future__ import annotations

import msgspec


class Orphan(msgspec.Struct, frozen=True, array_like=True):
    """A call that a worker had started and could not put on record any more."""

    owner: str
    call_id: str
    when: str  # 'after the run was taken over', or what else had come between
    status: str = ""  # a ResultStatus; '': it was cut off without a result
    text: str = ""  # the beginning of its result

    def __str__(self) -> str:
        if not self.status:
            return f"{self.owner}: call {self.call_id} was under way, and was cut off {self.when}"
        return (
            f"{self.owner}: call {self.call_id} ended with {self.status} {self.when}: {self.text}"
        )


_decoder = msgspec.msgpack.Decoder(Orphan)


def encode(orphan: Orphan) -> bytes:
    """The bytes of a report."""
    return msgspec.msgpack.encode(orphan)


def decode(body: bytes) -> Orphan:
    """The report of `body`; one that cannot be read is shown as it is, of no known call."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError):
        text = body[:200].decode(errors="replace")
        return Orphan("unknown worker", "", "at an unknown time", "unreadable", text)
