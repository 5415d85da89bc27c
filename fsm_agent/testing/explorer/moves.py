"""Every move of two workers, a store, a network between them, and what may befall each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from . import scripts
from .rules import Bounds, Rules
from .scripts import Entry, Kind, Request, Stored
from .state import Answer, Place, Sent, State, Worker

T = TypeVar("T")
_A = {"unsafe": "an unsafe", "keyed": "a keyed"}


class Move(NamedTuple):
    """A step to another state; `broken` is the promise that it breaks, or ''."""

    words: str
    state: State
    broken: str = ""


class Explored:
    """The moves of a protocol within bounds."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules, self.bounds = rules, bounds

    def moves(self, state: State) -> Iterator[Move]:
        """All that can happen next."""
        for number in (0, 1):
            yield from self._of_worker(state, number)
        yield from self._of_network(state)
        yield from self._of_store(state)
        may_rerun = self.rules.person_reruns and not state.is_rerun_asked
        if may_rerun and self._is_asking(state.stored):
            yield Move("a person says 'run it again'", state._replace(is_rerun_asked=True))

    def _is_asking(self, stored: Stored) -> bool:
        return bool(stored.journal) and stored.journal[-1].kind == "ask"

    def stuck(self, state: State) -> str:
        """What is wrong with a state from which nothing happens any more, or ''."""
        is_over = state.stored.is_closed or self._is_asking(state.stored)
        is_anybody_there = any(w.place not in ("dead", "left") for w in state.workers)
        return (
            "the run has not ended, and nothing moves it"
            if is_anybody_there and not is_over
            else ""
        )

    # -- workers ----------------------------------------------------------------------------------

    def _of_worker(self, state: State, number: int) -> Iterator[Move]:
        worker = state.workers[number]
        who = "AB"[number]
        match worker.place:
            case "idle":
                # The first to claim is A: with B it would be the same, with the names changed.
                if self._is_due(state) and (number == 0 or state.workers[0].claims):
                    after = worker._replace(place="claiming", claims=worker.claims + 1, attempt=0)
                    yield Move(f"{who} claims", _sent(state, number, after))
            case "may start":
                yield self._tool(state, number)
            case "claiming" | "committing":
                yield from self._waiting(state, number)
        if state.left.crashes and worker.place not in ("dead", "left", "idle"):
            dead = _with(_unheard(state, number), number, _gone(worker, "dead"))
            yield Move(f"{who} dies", _spent(dead, "crashes"))

    def _is_due(self, state: State) -> bool:
        if state.stored.lease == "live" or state.stored.is_closed:
            return False
        return state.is_rerun_asked or not self._is_asking(state.stored)

    def _loads(self, state: State, number: int, token: int) -> State:
        """The claim is heard. A pause between this and the reading would be a later answer."""
        worker, journal = state.workers[number], state.stored.journal
        if worker.known > len(journal):  # the store has forgotten what it acknowledged
            return _with(state, number, _gone(worker, "left"))
        return self._next(state, number, worker._replace(token=token, view=journal))

    def _next(self, state: State, number: int, worker: Worker) -> State:
        """What the journal says is next: a commit, or nothing."""
        view = worker.view
        step = len(_results(view))
        if step == self.bounds.steps:
            return _with(state, number, _idle(worker))
        if not self.rules.has_intent:
            return _with(state, number, worker._replace(place="may start"))
        if view and view[-1].kind == "ask" and not state.is_rerun_asked:
            stored, _ = scripts.release(state.stored, (number, worker.claims), worker.token)
            return _with(_written(state, stored), number, _idle(worker))  # woken for nothing
        if view and view[-1].kind == "intent" and self.rules.tool == "unsafe":
            return self._commits(state, number, worker, "ask")  # somebody started it: in doubt
        return self._commits(state, number, worker, "intent")

    def _tool(self, state: State, number: int) -> Move:
        """The tool has its effect, and its result is on its way to the store."""
        worker = state.workers[number]
        step = len(_results(worker.view))
        key = "" if self.rules.key == "position" else str(worker.view[-1].op)
        keys = state.effects[step]
        if self.rules.tool == "unsafe" or key not in keys:  # a key that came before does nothing
            keys = (*keys, key)
        effects = (*state.effects[:step], keys, *state.effects[step + 1 :])
        after = self._commits(state._replace(effects=effects), number, worker, "result")
        broken = f"the effect of {_A[self.rules.tool]} tool happened twice" if len(keys) > 1 else ""
        return Move(f"{'AB'[number]} runs the tool of step {step + 1}", after, broken)

    def _commits(self, state: State, number: int, worker: Worker, kind: Kind) -> State:
        step = len(_results(worker.view))
        entry = Entry(kind, step, (number, worker.claims, len(worker.view)))
        is_closing = kind == "result" and step + 1 == self.bounds.steps
        nonce = (number, worker.claims)
        request = Request(nonce, worker.token, worker.view, entry, is_closing, kind == "ask")
        return _sent(state, number, worker._replace(place="committing", pending=request, attempt=0))

    def _waiting(self, state: State, number: int) -> Iterator[Move]:
        worker, who = state.workers[number], "AB"[number]
        for answer in state.answers:
            if answer.worker == number:
                yield self._hears(state, number, answer)
        mine = (number, worker.attempt)
        is_under_way = any((s.worker, s.attempt) == mine for s in state.sent) or any(
            (a.worker, a.attempt) == mine for a in state.answers
        )
        again = _sent(_unheard(state, number), number, worker._replace(attempt=worker.attempt + 1))
        if not is_under_way:
            yield Move(f"{who} sends again what was lost", again)
        elif state.left.messages:
            yield Move(f"{who} does not wait and sends again", _spent(again, "messages"))
        if state.left.stops and worker.place == "committing":
            stored, _ = scripts.release(state.stored, (number, worker.claims), worker.token)
            after = _written(_unheard(state, number), stored)
            after = _with(after, number, _idle(worker))
            yield Move(f"{who} is stopped and gives the run back", _spent(after, "stops"))

    def _hears(self, state: State, number: int, answer: Answer) -> Move:
        worker = state.workers[number]
        words = f"{'AB'[number]} hears {answer.word}"
        state = _unheard(state, number)
        if self.rules.waits and answer.word in ("OK", "DUP"):
            # What was acknowledged is on the replica, and so is all that was written before.
            kept = tuple(s for s in state.before if s.writes >= answer.writes)
            state = state._replace(before=kept)
        if worker.place == "claiming":
            if answer.word != "OK":
                return Move(words, _with(state, number, _idle(worker)))
            return Move(words, self._loads(state, number, answer.token))
        assert worker.pending
        if answer.word in ("SEQ", "FORK"):
            if not self.bounds.failovers:
                broken = "an owner was refused although nobody took the run over"
                return Move(words, _with(state, number, _idle(worker)), broken)
            return Move(words, _with(state, number, _gone(worker, "left")))
        if answer.word not in ("OK", "DUP"):
            return Move(words, _with(state, number, _idle(worker)))
        return Move(words, self._acknowledged(state, number, worker.pending))

    def _acknowledged(self, state: State, number: int, request: Request) -> State:
        view = (*request.view, request.entry)
        known = len(view) if self.bounds.failovers else 0
        after = state.workers[number]._replace(view=view, pending=None, attempt=0, known=known)
        match request.entry.kind:
            case "intent":
                return _with(state, number, after._replace(place="may start"))
            case "ask":
                return _with(state, number, _idle(after))
            case "result":
                return self._next(state, number, after)

    # -- the network and the store ----------------------------------------------------------------

    def _of_network(self, state: State) -> Iterator[Move]:
        for sent in dict.fromkeys(state.sent):
            who = "AB"[sent.worker]
            rest = _without(state.sent, sent)
            yield self._arrives(state._replace(sent=rest), sent)
            if state.left.messages:
                lost = state._replace(sent=rest)
                yield Move(f"a request of {who} is lost", _spent(lost, "messages"))
            if state.left.messages:
                copy = self._arrives(state, sent)
                yield copy._replace(
                    words=f"{copy.words}, and a copy stays under way",
                    state=_spent(copy.state, "messages"),
                )
        if state.left.messages:
            for answer in dict.fromkeys(state.answers):
                gone = state._replace(answers=_without(state.answers, answer))
                yield Move(
                    f"{answer.word} to {'AB'[answer.worker]} is lost", _spent(gone, "messages")
                )

    def _arrives(self, state: State, sent: Sent) -> Move:
        """The store's script, and its answer as far as anybody still waits for it."""
        before = state.stored
        if sent.commit:
            stored, word = scripts.commit(before, sent.commit, self.rules)
            broken = self._broken_by(before, sent.commit, word)
            words = f"the store says {word} to {sent.commit.entry.kind} of {'AB'[sent.worker]}"
        else:
            stored, word = scripts.claim(before, sent.nonce)
            broken, words = "", f"the store says {word} to the claim of {'AB'[sent.worker]}"
        after = self._cleared(_written(state, stored))
        if stored.journal != before.journal:
            after = after._replace(is_rerun_asked=False)
        if _is_awaited(state, sent):
            writes = after.stored.writes
            answer = Answer(sent.worker, sent.attempt, word, after.stored.token, writes)
            after = after._replace(answers=tuple(sorted((*after.answers, answer))))
        return Move(words, after, broken)

    def _cleared(self, state: State) -> State:
        """Without what is under way and can never change anything any more."""
        if state.left.failovers or self.rules.fence == "none":
            return state
        kept = tuple(sent for sent in state.sent if not _is_void(state, sent))
        return state if len(kept) == len(state.sent) else state._replace(sent=kept)

    def _broken_by(self, before: Stored, request: Request, word: str) -> str:
        if word == "DUP" and before.nonce != request.nonce:
            return "a worker that had lost the run was told that its entry counts"
        if word != "OK":
            return ""
        if before.nonce != request.nonce:
            return "a stale owner's commit was accepted"
        if before.is_closed:
            return "an entry was added after the end"
        if before.lease == "none":
            return "an entry was added after the run was given back"
        if any(entry.op == request.entry.op for entry in before.journal):
            return "an entry is in the journal twice"
        return ""

    def _of_store(self, state: State) -> Iterator[Move]:
        if state.stored.lease == "live":
            after = state._replace(stored=state.stored._replace(lease="expired"))
            if not self._is_held_by_the_living(state):
                yield Move("the lease runs out", after)
            elif state.left.expired:
                yield Move("the lease of a living owner runs out", _spent(after, "expired"))
        if state.left.failovers:
            for count, stored in enumerate(reversed(state.before[-self.bounds.forgets :]), 1):
                yield self._failover(state, stored, count)

    def _is_held_by_the_living(self, state: State) -> bool:
        assert state.stored.nonce
        number, claims = state.stored.nonce
        worker = state.workers[number]
        return worker.claims == claims and worker.place not in ("idle", "dead", "left")

    def _failover(self, state: State, stored: Stored, count: int) -> Move:
        after = state._replace(stored=stored, before=())
        broken = ""
        if self.rules.waits:
            # An answer that was not acknowledged yet never will be.
            heard = tuple(a for a in after.answers if a.writes <= stored.writes)
            after = after._replace(answers=heard)
            if any(w.known > len(stored.journal) for w in state.workers):
                broken = "an acknowledged entry was lost"
        return Move(f"a failover loses {count} writes", _spent(after, "failovers"), broken)


def _is_void(state: State, sent: Sent) -> bool:
    """A commit of a lost lease, or one after the end, whose answer nobody waits for."""
    is_over = state.stored.is_closed or state.stored.nonce != sent.nonce
    return sent.commit is not None and is_over and not _is_awaited(state, sent)


def _is_awaited(state: State, sent: Sent) -> bool:
    """Whether somebody would hear the answer: not who gave up, died, or went on to another call."""
    worker = state.workers[sent.worker]
    call = ((sent.worker, worker.claims), worker.attempt, worker.pending)
    is_waiting = worker.place in ("claiming", "committing")
    return is_waiting and call == (sent.nonce, sent.attempt, sent.commit)


def _results(view: tuple[Entry, ...]) -> list[Entry]:
    return [entry for entry in view if entry.kind == "result"]


def _gone(worker: Worker, place: Place) -> Worker:
    return Worker(place=place, claims=worker.claims)


def _idle(worker: Worker) -> Worker:
    return Worker(claims=worker.claims, known=worker.known)


def _with(state: State, number: int, worker: Worker) -> State:
    one, other = state.workers
    return state._replace(workers=(worker, other) if number == 0 else (one, worker))


def _sent(state: State, number: int, worker: Worker) -> State:
    """The worker's pending call goes out."""
    request = Sent(number, (number, worker.claims), worker.attempt, worker.pending)
    state = _with(state, number, worker)
    return state._replace(sent=tuple(sorted((*state.sent, request), key=_order)))


def _order(sent: Sent) -> tuple[int, int, int, int]:
    """Two states that differ only in the order of what is on its way are one."""
    seq = len(sent.commit.view) if sent.commit else -1
    return sent.worker, sent.nonce[1], seq, sent.attempt


def _unheard(state: State, number: int) -> State:
    """The worker drops its connection, with the answers that were on it."""
    return state._replace(answers=tuple(a for a in state.answers if a.worker != number))


def _without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    at = items.index(item)
    return (*items[:at], *items[at + 1 :])


def _spent(state: State, fault: str) -> State:
    one_less = {fault: getattr(state.left, fault) - 1}
    return state._replace(left=state.left._replace(**one_less))


def _written(state: State, stored: Stored) -> State:
    """The store has changed; where failovers are left, what it was is remembered."""
    if stored == state.stored:
        return state
    if not state.left.failovers:
        return state._replace(stored=stored)
    before = (*state.before, state.stored)[-3:]
    return state._replace(stored=stored._replace(writes=state.stored.writes + 1), before=before)
