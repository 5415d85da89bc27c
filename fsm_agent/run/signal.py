"""What the outside says to a run: a closed union, carried in its mailbox."""

from __future__ import annotations

import msgspec

from fsm_agent.errors import CorruptRecord, NewerRecord

from .content import File
from .delta import AskKind, OnExpiry, Verb
from .taint import Taint


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="decided"):
    """A person's decision on a request of the run."""

    ask_id: str
    verb: Verb
    by: str
    reason: str = ""
    arguments: str | None = None
    answer: str | None = None
    channel: str = ""
    auth: str = ""
    is_standing: bool = False  # of `approve`: later calls of the tool in this run need nobody


class CancelRequested(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """End the run at its next commit point: gracefully, what runs comes to its end before that;
    otherwise running tools and the model's reply are cut off, and child runs too."""

    by: str
    reason: str = ""
    is_graceful: bool = False


class Said(msgspec.Struct, frozen=True, array_like=True, tag="said"):
    """A further message of the user."""

    text: str
    by: str = ""
    files: tuple[File, ...] = ()  # their bytes are blobs of the run


class Happened(msgspec.Struct, frozen=True, array_like=True, tag="happened"):
    """Something that happened outside, told by a system."""

    source: str
    text: str


class Consent(msgspec.Struct, frozen=True, array_like=True, tag="consent"):
    """Later calls of a tool need nobody, for as long as this holds. See Consented."""

    tool: str
    rule: str
    by: str
    reason: str = ""
    channel: str = ""
    auth: str = ""


class Revoke(msgspec.Struct, frozen=True, array_like=True, tag="revoke"):
    """A standing consent holds no more."""

    consent_id: str
    by: str
    reason: str = ""


class Stirred(msgspec.Struct, frozen=True, array_like=True, tag="stirred"):
    """A child run can go on: somebody decided, or its time has come."""

    child: str


AnySignal = Decided | CancelRequested | Said | Happened | Consent | Revoke | Stirred


class Question(msgspec.Struct, frozen=True, array_like=True):
    """What a person is shown before they decide: the body of a request in the store."""

    kind: AskKind
    call_id: str
    tool: str
    arguments: str  # canonical JSON; its digest is what the decision names
    reason: str
    effect: str = ""
    agent: str = ""
    options: tuple[str, ...] = ()
    rule: str = ""  # the name of the rule that asks
    on_expiry: OnExpiry = "reject"
    quorum: int = 1
    requester: str = ""
    not_requester: bool = False
    parent: str = ""  # the run that the asking one works for
    to: str = ""  # whom the tool's author wants to be asked; anybody may decide
    escalation: tuple[tuple[int, str], ...] = ()  # ms after it was opened, and whom it reaches then
    taints: tuple[Taint, ...] = ()  # words of the arguments that no person said


_signals = msgspec.msgpack.Decoder(AnySignal)
_questions = msgspec.msgpack.Decoder(Question)


def encode(value: AnySignal | Question) -> bytes:
    """The bytes of a signal or a question."""
    return msgspec.msgpack.encode(value)


def signal_id_of(cancel: CancelRequested) -> str:
    """The mailbox id of a cancel request: one of each kind waits at most."""
    return "cancel:graceful" if cancel.is_graceful else "cancel"


def decode_signal(body: bytes) -> AnySignal:
    """The signal of `body`. Raises CorruptRecord, or NewerRecord for a kind or a word that only a
    newer version knows."""
    try:
        return _signals.decode(body)
    except msgspec.ValidationError as error:
        if str(error).startswith(("Invalid value ", "Invalid enum value ")):
            words = f"a newer version sent a signal that this one does not know ({error})"
            raise NewerRecord(f"{words}. Upgrade this one") from error
        raise CorruptRecord(f"a signal that cannot be read: {error}") from error
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CorruptRecord(f"a signal that cannot be read: {error}") from error


def decode_question(body: bytes) -> Question:
    """The question of `body`. Raises CorruptRecord."""
    try:
        return _questions.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CorruptRecord(f"a request that cannot be read: {error}") from error
