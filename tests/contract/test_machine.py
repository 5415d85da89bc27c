"""Two clients and the real scripts against a simple model, in any order of steps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from checkpoints import open_store
from checkpoints.chain import genesis, link
from checkpoints.errors import (
    AlreadyDecided,
    AskNotFound,
    CheckpointError,
    DecisionStale,
    LeaseLost,
    RunBusy,
    RunClosed,
)
from checkpoints.model import Ask, Commit, Decision, Lease, ParkedStatus, RunId
from checkpoints.redis_store import RedisStore

T = TypeVar("T")
R = RunId("run")
_number = count()
clients = st.integers(min_value=0, max_value=1)
ask_ids = st.sampled_from(["q1", "q2"])


class TwoClients(RuleBasedStateMachine):
    """What a run should be, told by a model of a dozen fields."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.namespace = f"m{os.getpid()}-{next(_number)}"
        self.stores: list[RedisStore] = [
            self.do(open_store(self.url, namespace=self.namespace, partitions=1)) for _ in range(2)
        ]
        self.do(self.stores[0].create(R, op="begin", body=b"1", snapshot=b""))
        self.left: list[RedisStore] = []  # of clients that have died
        self.bodies = [b"1"]
        self.chain = link(genesis(R), 1, b"1")
        self.leases: list[Lease | None] = [None, None]  # what each client believes to hold
        self.last: list[Commit | None] = [None, None]
        self.landed: list[bool] = [False, False]  # was the client's last commit accepted?
        self.sent: list[tuple[Lease, Commit]] = []  # every commit ever sent
        self.acknowledged: dict[int, bytes] = {1: self.chain}  # seq → chain, as a client was told
        self.owner: int | None = None  # the newest claimer, released or not
        self.is_held = False
        self.is_expired = False
        self.status = "ready"
        self.tokens = 0
        self.recoveries = 0
        self.mail = 0
        self.box: list[str] = []
        self.asks: dict[str, str | None] = {}  # ask → decision id
        self.is_due = True

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        for store in (*self.stores, *self.left):
            self.do(store.aclose())
        self.loop.close()

    @property
    def is_closed(self) -> bool:
        return self.status in ("done", "error")

    @rule(client=clients)
    def claim(self, client: int) -> None:
        call = self.stores[client].claim(
            R, owner=f"w{client}", nonce=f"n{next(_number)}", term_ms=600_000
        )
        if self.is_closed or (self.is_held and not self.is_expired):
            with pytest.raises(RunClosed if self.is_closed else RunBusy):
                self.do(call)
            return
        granted = self.do(call)
        self.tokens += 1
        assert granted.is_takeover == self.is_held
        self.recoveries += self.is_held
        assert (granted.lease.token, granted.head.recoveries) == (self.tokens, self.recoveries)
        self.leases[client], self.owner = granted.lease, client
        self.is_held, self.is_expired, self.status, self.is_due = True, False, "running", False

    def may_write(self, client: int) -> bool:
        lease = self.leases[client]
        return lease is not None and self.owner == client and lease.token == self.tokens

    @rule(
        client=clients,
        size=st.integers(min_value=1, max_value=3),
        status=st.sampled_from(["running", "running", "waiting", "sleeping", "done", "error"]),
        opens=st.lists(ask_ids, max_size=2, unique=True),
        withdraws=st.lists(ask_ids, max_size=1),
        reads_mail=st.booleans(),
        is_progress=st.booleans(),
    )
    def commit(
        self,
        client: int,
        size: int,
        status: Any,
        opens: list[str],
        withdraws: list[str],
        reads_mail: bool,
        is_progress: bool,
    ) -> None:
        lease = self.leases[client]
        if lease is None:
            return
        bodies = tuple(b"%d" % next(_number) for _ in range(size))
        commit = Commit(
            op=f"op{next(_number)}",
            expected_seq=len(self.bodies),
            previous_chain=self.chain,
            bodies=bodies,
            status=status,
            snapshot=b"s%d" % size,
            release=status in ("waiting", "sleeping"),
            opened=tuple(Ask(ask_id=one, digest="d", body=b"") for one in opens),
            withdrawn=tuple(withdraws),
            consumed=tuple(self.box) if reads_mail else (),
            seen_mail=self.mail if reads_mail else 0,
            is_progress=is_progress,
        )
        self.last[client], self.landed[client] = commit, False
        self.sent.append((lease, commit))
        call = self.stores[client].commit(lease, commit)
        if not self.may_write(client) or self.is_closed or not self.is_held:
            expected = RunClosed if self.may_write(client) and self.is_closed else LeaseLost
            with pytest.raises(expected):
                self.do(call)
            return
        done = self.do(call)
        assert not done.was_repeat
        self.landed = [False, False]
        self.landed[client] = True
        for body in bodies:
            self.bodies.append(body)
            self.chain = link(self.chain, len(self.bodies), body)
        assert (done.seq, done.chain, done.mail) == (len(self.bodies), self.chain, self.mail)
        self.acknowledged[done.seq] = done.chain
        for one in opens:
            if self.asks.get(one) is None:
                self.asks[one] = None
        for one in withdraws:
            if one in self.asks and self.asks[one] is None:
                del self.asks[one]
        if reads_mail:
            self.box.clear()
        self.status = status
        if is_progress:
            self.recoveries = 0
        self.is_expired = False
        self.is_held = not commit.release and not self.is_closed
        self.is_due = commit.release and self.mail > commit.seen_mail
        if self.is_closed:
            self.asks = {one: ruling for one, ruling in self.asks.items() if ruling is not None}

    @precondition(lambda self: any(self.last))
    @rule(client=clients)
    def repeat_the_last_commit(self, client: int) -> None:
        """As after a lost reply, at any later time."""
        lease, commit = self.leases[client], self.last[client]
        if lease is None or commit is None or not self.landed[client]:
            return
        call = self.stores[client].commit(lease, commit)
        if self.may_write(client):
            assert self.do(call).was_repeat
        else:
            with pytest.raises(LeaseLost):
                self.do(call)

    @precondition(lambda self: self.sent)
    @rule(client=clients, data=st.data())
    def deliver_an_old_commit_late(self, client: int, data: st.DataObject) -> None:
        """As the network may, at any time and through any connection: what was applied is applied,
        and what was refused stays refused."""
        lease, commit = data.draw(st.sampled_from(self.sent))
        before = self.do(self.stores[0].head(R))
        with suppress(CheckpointError):
            assert self.do(self.stores[client].commit(lease, commit)).was_repeat

        after = self.do(self.stores[0].head(R))
        assert after == before

    @precondition(lambda self: self.is_held)
    @rule()
    def claim_again(self) -> None:
        """As after a lost reply: the same nonce gets the same lease, which runs anew."""
        assert self.owner is not None
        lease = self.leases[self.owner]
        if lease is None or not self.may_write(self.owner) or self.is_closed:
            return
        again = self.do(
            self.stores[self.owner].claim(
                R, owner=lease.owner, nonce=lease.nonce, term_ms=lease.term_ms
            )
        )
        assert again.lease == lease
        self.is_expired = self.is_due = False

    @rule(client=clients)
    def crash(self, client: int) -> None:
        """A client dies with all that it knew; another takes its place, and finds what is there."""
        self.left.append(self.stores[client])
        self.stores[client] = self.do(open_store(self.url, namespace=self.namespace, partitions=1))
        self.leases[client], self.last[client], self.landed[client] = None, None, False

    @precondition(lambda self: self.is_held)
    @rule()
    def expire(self) -> None:
        """Let the lease's end pass, without waiting for it."""
        store = self.stores[0]
        keys = store._of(R)
        self.do(store._line.call("HSET", keys.head, "l", 1))
        self.do(store._line.call("ZADD", keys.partition.due, 1, R))
        self.is_expired = self.is_due = True

    @rule(client=clients)
    def renew(self, client: int) -> None:
        lease = self.leases[client]
        if lease is None:
            return
        is_held = self.do(self.stores[client].renew([lease]))[R].is_held
        assert is_held == (self.may_write(client) and self.is_held)
        if is_held:
            self.is_expired = self.is_due = False

    @rule(client=clients, status=st.sampled_from([None, "waiting", "sleeping"]))
    def release(self, client: int, status: ParkedStatus | None) -> None:
        lease = self.leases[client]
        if lease is None:
            return
        mail_at_claim = self.do(
            self.stores[client]._line.call("HGET", self.stores[0]._of(R).head, "v")
        )
        self.do(self.stores[client].release(lease, due_ms=None, status=status))
        if self.may_write(client) and self.is_held:
            self.is_held = self.is_expired = False
            self.status = self.do(self.stores[0].head(R)).status
            assert self.status == status or (status is None and self.status != "running")
            self.is_due = self.mail > int(mail_at_claim)

    def wake(self) -> None:
        if not self.is_held or self.is_expired:
            self.is_due = True

    @rule(client=clients, signal_id=st.sampled_from(["a", "b"]))
    def signal(self, client: int, signal_id: str) -> None:
        call = self.stores[client].signal(R, signal_id=signal_id, body=b"")
        if self.is_closed:
            with pytest.raises(RunClosed):
                self.do(call)
            return
        is_new = self.do(call)
        assert is_new == (signal_id not in self.box)
        if is_new:
            self.box.append(signal_id)
            self.mail += 1
            self.wake()

    @rule(client=clients, ask_id=ask_ids, decision_id=st.sampled_from(["d1", "d2"]))
    def decide(self, client: int, ask_id: str, decision_id: str) -> None:
        decision = Decision(decision_id=decision_id, verb="ok", by="me", digest="d", body=b"")
        call = self.stores[client].decide(R, ask_id, decision)
        ruled = self.asks.get(ask_id)
        expected: type[CheckpointError] | None = None
        if ruled == decision_id:
            assert self.do(call).is_repeat
            return
        if ruled is not None:
            expected = AlreadyDecided
        elif self.is_closed:
            expected = RunClosed
        elif ask_id not in self.asks:
            expected = AskNotFound
        if expected is not None:
            with pytest.raises(expected):
                self.do(call)
            return
        with pytest.raises(DecisionStale):
            self.do(self.stores[client].decide(R, ask_id, replace(decision, digest="old")))
        assert not self.do(call).is_repeat
        self.asks[ask_id] = decision_id
        self.box.append(f"decision:{ask_id}")
        self.mail += 1
        self.wake()

    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        store = self.stores[0]
        head = self.do(store.head(R))
        assert (head.seq, head.chain, head.status) == (len(self.bodies), self.chain, self.status)
        assert (head.token, head.mail, head.recoveries) == (self.tokens, self.mail, self.recoveries)
        assert (head.lease_until_ms > 0) == self.is_held
        entries = self.do(store.journal(R))  # which has verified their chain
        assert [e.seq for e in entries] == [*range(1, len(self.bodies) + 1)]
        assert [e.body for e in entries] == self.bodies
        assert all(entries[seq - 1].chain == told for seq, told in self.acknowledged.items())
        assert sorted(s.signal_id for s in self.do(store.mailbox(R))) == sorted(self.box)
        assert (R in self.do(store.due())) == self.is_due
        open_ids = sorted(one for one, ruled in self.asks.items() if ruled is None)
        assert sorted(r.ask.ask_id for r in self.do(store.asks())) == open_ids
        assert [h.run_id for h in self.do(store.runs(status=head.status))] == [R]


def test_two_clients_in_any_order_of_steps(embedded_url: str) -> None:
    # By its socket: to join and to leave the folder is not what is tried here.
    TwoClients.url = f"unix://{embedded_url.partition(':')[2]}/server.sock"

    run_state_machine_as_test(
        TwoClients,
        settings=settings(
            max_examples=50,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
