"""Reading what the server answers into the values of model.py, and packing what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from .errors import CorruptEntry, StoreDiverged, StoreUsageError
from .model import (
    Ask,
    AskRecord,
    Comment,
    Entry,
    Head,
    Notice,
    Ruling,
    RunId,
    Signal,
    Status,
    Vote,
)

HEAD_FIELDS = 13
Pack = Callable[[str, str, bytes], bytes]
Unpack = Callable[[str, str, bytes], bytes]  # run id, place, stored bytes: see codec.py


_FARTHEST = 1 << 53  # a score of 'inf', which is none of ours, is a time as well


def number(text: bytes) -> int:
    """Digits, or a score as a float: some servers print 1.7e+12."""
    if text.isdigit():
        return int(text)
    return int(max(-_FARTHEST, min(float(text), _FARTHEST)))


def head(run_id: RunId, fields: Sequence[bytes], unpack: Unpack) -> Head:
    """A head from the fields that the scripts tell, in their order.

    Raises StoreDiverged for fields that no script writes, and what `unpack` raises.
    """
    try:
        return _head(run_id, fields, unpack)
    except ValueError as error:
        raise StoreDiverged(
            f"run {run_id!r}: its head holds data that is not this program's ({error})."
        ) from error


def _head(run_id: RunId, fields: Sequence[bytes], unpack: Unpack) -> Head:
    (
        seq,
        chain,
        status,
        token,
        _,
        owner,
        lease,
        recoveries,
        mail,
        created,
        updated,
        snapshot,
        due,
    ) = fields
    return Head(
        run_id=run_id,
        seq=int(seq),
        chain=chain,
        status=cast(Status, status.decode()),
        snapshot=unpack(run_id, "snapshot", snapshot),
        due_ms=number(due) if due else None,
        token=int(token),
        owner=owner.decode(errors="replace"),
        lease_until_ms=int(lease),
        recoveries=int(recoveries),
        mail=int(mail),
        created_ms=int(created),
        updated_ms=int(updated),
    )


def entry(run_id: RunId, item: Any) -> Entry:
    """One entry of the journal's stream. Raises CorruptEntry."""
    key, fields = item
    seq = int(key.partition(b"-")[0])
    if len(fields) != 6 or fields[0::2] != [b"o", b"h", b"b"]:
        raise CorruptEntry(run_id, seq, "it has other fields than an entry has")
    return Entry(seq, fields[5], fields[3])


def op_of(item: Any) -> tuple[bytes, int]:
    """The op mark of a journal's stream entry, empty but for the first of a commit, and its seq."""
    key, fields = item
    return (fields[1] if fields[0] == b"o" else b""), int(key.partition(b"-")[0])


def mail(run_id: RunId, box: Sequence[bytes], unpack: Unpack) -> list[Signal]:
    """A mailbox, as HGETALL tells it, by number."""
    found = []
    for signal_id, item in zip(box[0::2], box[1::2], strict=True):
        nth, at, _, body = item.split(b" ", 3)
        name = signal_id.decode()
        body = unpack(run_id, mail_place(name), body)
        found.append(Signal(signal_id=name, number=int(nth), at_ms=int(at), body=body))
    return sorted(found, key=lambda signal: signal.number)


def mail_place(signal_id: str) -> str:
    """Where a signal stands, as it is named before its number in the mailbox is known."""
    kind, _, rest = signal_id.partition(":")
    if kind == "vote":
        rest = rest.partition(":")[2]
    return f"decision {rest}" if kind in ("decision", "vote") else f"signal {signal_id}"


def packed_ask(ask: Ask, body: bytes) -> bytes:
    """A request as commit.lua files it, with its body as it is to be stored."""
    if not ask.digest or any(c.isspace() for c in ask.digest):
        raise StoreUsageError(f"request {ask.ask_id!r} has a digest that is empty or has spaces.")
    # The quorum stands behind the unlock time where there is one: most have none, and older
    # versions do not know it.
    lock = b"%d:%d" % (ask.unlock_ms, ask.quorum) if ask.quorum > 1 else b"%d" % ask.unlock_ms
    return b"%d %s %s " % (ask.expires_ms, lock, ask.digest.encode()) + body


def ask_record(
    run_id: RunId,
    ask_id: str,
    unpack: Unpack,
    request: bytes,
    ruling: bytes | None,
    votes: bytes | None = None,
    claim: bytes | None = None,
    comments: bytes | None = None,
) -> AskRecord:
    """A request with what people made of it, from its fields of the asks hash."""
    opened, expires, lock, digest, body = request.split(b" ", 4)
    unlock, _, quorum = lock.partition(b":")
    claimed_ms, claimed_by = _claim(claim) if claim else (0, "")
    return AskRecord(
        run_id=run_id,
        ask=Ask(
            ask_id=ask_id,
            digest=digest.decode(),
            body=unpack(run_id, f"request {ask_id}", body),
            expires_ms=int(expires),
            unlock_ms=int(unlock),
            quorum=int(quorum or 1),
        ),
        opened_ms=int(opened),
        ruling=None if ruling is None else _ruling(ask_id, ruling),
        votes=tuple(_votes(votes or b"")),
        comments=tuple(_comments(comments or b"", partial(unpack, run_id, f"comment {ask_id}"))),
        claimed_by=claimed_by,
        claimed_ms=claimed_ms,
    )


def packed_notice(run_id: RunId, notice: Notice, pack: Pack) -> bytes:
    """A notice as the outbox keeps it. Its time stands beside it."""
    notice_id, channel = notice.notice_id, notice.channel or "-"
    if not notice_id or any(c.isspace() for c in notice_id + channel):
        raise StoreUsageError(f"notice {notice_id!r} has an empty name, or one with spaces.")
    names = (run_id.encode(), notice_id.encode(), channel.encode())
    return b"%d %s %s %s " % (notice.tries, *names) + (
        pack(run_id, f"notice {notice_id}", notice.body)
    )


def notice(packed: bytes, at_ms: int, unpack: Unpack) -> Notice:
    """A notice of the outbox. Raises StoreDiverged if its body was changed."""
    tries, run, name, channel, body = packed.split(b" ", 4)
    run_id, notice_id = RunId(run.decode()), name.decode()
    return Notice(
        notice_id=notice_id,
        run_id=run_id,
        body=unpack(run_id, f"notice {notice_id}", body),
        at_ms=at_ms,
        channel="" if channel == b"-" else channel.decode(),
        tries=int(tries),
        stored=packed,
    )


def _votes(packed: bytes) -> Iterator[Vote]:
    while packed:
        at, *sizes, rest = packed.split(b" ", 5)
        (_, verb, by, _), packed = _cut(rest, sizes)
        yield Vote(verb=verb.decode(), by=by.decode(), at_ms=int(at))


def _comments(packed: bytes, unpack: Callable[[bytes], bytes]) -> Iterator[Comment]:
    while packed:
        at, _, *sizes, rest = packed.split(b" ", 4)
        (by, text), packed = _cut(rest, sizes)
        yield Comment(by=by.decode(), at_ms=int(at), text=unpack(text).decode())


def _claim(packed: bytes) -> tuple[int, str]:
    at, size, rest = packed.split(b" ", 2)
    return int(at), rest[: int(size)].decode()


def _cut(packed: bytes, sizes: Sequence[bytes]) -> tuple[list[bytes], bytes]:
    """Pieces of these sizes, and what is left."""
    pieces = []
    for size in map(int, sizes):
        pieces.append(packed[:size])
        packed = packed[size:]
    return pieces, packed


def _ruling(ask_id: str, packed: bytes) -> Ruling:
    at, id_size, verb_size, rest = packed.split(b" ", 3)
    start, end = int(id_size), int(id_size) + int(verb_size)
    return Ruling(
        ask_id=ask_id,
        verb=rest[start:end].decode(),
        by=rest[end:].decode(),
        at_ms=int(at),
        is_repeat=False,
    )


def info(text: bytes) -> dict[str, str]:
    """INFO's lines."""
    pairs = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon and not name.startswith("#")}


def foreign(key: bytes) -> StoreDiverged:
    """A key of ours that holds something else."""
    return StoreDiverged(
        f"key {key.decode(errors='replace')!r} holds data that is not this program's. "
        "Nothing was changed; use another namespace or database."
    )
