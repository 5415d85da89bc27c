"""Approvals on terms: deadlines, several people, standing consents, sums, and the record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from checkpoints.errors import AlreadyDecided, AlreadyVoted, AskClaimed, AskExpired, AskNotFound
from checkpoints.model import Decision, RunId
from checkpoints.people import MOST_COMMENTS
from fsm_agent import Agent, Runtime, ask_user, ask_user_within, tool
from fsm_agent import ask as asking_people
from fsm_agent.errors import CodeChanged, NotAllowed, UsageError
from fsm_agent.run import signal
from fsm_agent.run.delta import Attested, Commented, Consented, Intended, Judged, Revoked, Voted
from fsm_agent.run.signal import Decided
from fsm_agent.worker.local import work_due_once
from tests.conftest import Bench, ScriptedModel, ask, finish, results, turns, until

SOON_S = 0.05


class Desk:
    """An agent whose `send` asks people on the given terms."""

    def __init__(self, approval: Any = "always", **options: Any) -> None:
        self.sent: list[str] = []
        self.gate = asyncio.Event()

        @tool(approval=approval, **options)
        async def send(to: str, amount: int = 1) -> str:
            self.sent.append(f"{to} {amount}")
            return f"sent to {to}"

        @tool(effect="read", timeout_s=10.0)
        async def look() -> str:
            await self.gate.wait()
            return "found"

        self.agent = Agent("desk", tools=[send, look, ask_user])
        self.agents = {"desk": self.agent}


def sending(*calls: dict[str, Any], look: bool = False) -> ScriptedModel:
    wanted: list[tuple[str, dict[str, Any]]] = [("send", call) for call in calls]
    return turns(ask(*wanted, *([("look", {})] if look else [])), finish())


TO_MIA = {"to": "mia"}


async def waiting(
    bench: Bench, desk: Desk, model: ScriptedModel, *, requester: str = "req"
) -> tuple[Runtime, str, list[Any]]:
    runtime = await bench.runtime(model)
    result = await runtime.run(desk.agent, "Send it.", requester=requester)
    assert result.status == "waiting"
    return runtime, result.run_id, list(await runtime.requests(result.run_id))


async def past(runtime: Runtime, at_ms: int) -> None:
    """Return once the store's clock has passed a time."""

    async def is_past() -> bool:
        return await runtime.store.now_ms() >= at_ms

    await until(is_past)


async def facts(runtime: Runtime, run_id: str, *kinds: type) -> list[Any]:
    history = await runtime.history(run_id)
    return [d for event in history for d in event.record.deltas if isinstance(d, kinds)]


# -- comments -------------------------------------------------------------------------------------


async def test_what_was_said_of_a_request_is_on_record_with_its_decision(bench: Bench) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    await runtime.comment(run_id, request.ask_id, "Which Mia?", by="zoe")
    await runtime.comment(run_id, request.ask_id, "The one in Rome.", by="ann")
    await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    assert (await runtime.work(run_id, desk.agent)).status == "done"

    rows = [row for row in await runtime.audit(run_id) if isinstance(row.fact, Commented)]
    assert [(row.fact.by, row.fact.text) for row in rows] == [
        ("zoe", "Which Mia?"), ("ann", "The one in Rome."),
    ]  # fmt: skip
    (ruled,) = [row for row in await runtime.audit(run_id) if isinstance(row.fact, Attested)]
    assert {row.seq for row in rows} == {ruled.seq}
    assert all(row.fact.said_ms <= ruled.fact.decided_ms for row in rows)


async def test_nothing_that_people_say_is_more_than_the_run_can_put_on_record(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    leaf, ask_id = "\N{HERB}", request.ask_id  # of four bytes
    for endless in (leaf * 50_001, "x" * 150_000):
        with pytest.raises(UsageError, match="150,000 are possible"):
            await runtime.decide(run_id, ask_id, "answer", by="leo", answer="a", reason=endless)
        with pytest.raises(UsageError, match="150,000 are possible"):
            await runtime.consent(run_id, "send", by="leo", reason=endless)
        with pytest.raises(UsageError, match="150,000 are possible"):
            await runtime.cancel(run_id, by="leo", reason=endless)
        with pytest.raises(UsageError, match="5,000 are possible"):
            await runtime.comment(run_id, ask_id, endless, by="leo")
        with pytest.raises(UsageError, match="5,000 are possible"):
            await runtime.claim(run_id, ask_id, by=endless)
    for _ in range(MOST_COMMENTS):
        await runtime.comment(run_id, ask_id, leaf * 1_200, by="leo")
    answer, reason = leaf * 18_000, leaf * 18_000
    await runtime.decide(run_id, ask_id, "answer", by="leo", answer=answer, reason=reason)

    assert (await runtime.work(run_id, desk.agent)).status == "done"

    assert len(await facts(runtime, run_id, Commented)) == MOST_COMMENTS


# -- deadlines ------------------------------------------------------------------------------------


async def test_a_deadline_refuses_the_call_and_any_worker_applies_it(bench: Bench) -> None:
    desk = Desk(asking_people(expires_s=SOON_S))
    runtime, run_id, (request,) = await waiting(bench, desk, model := sending(TO_MIA))
    head = await runtime.store.head(RunId(run_id))
    assert head.due_ms == request.expires_ms > request.opened_ms
    await past(runtime, request.expires_ms)

    other = await bench.runtime(model)
    assert await work_due_once(other, desk.agents) == 1

    assert (await runtime.result(run_id)).status == "done"
    assert desk.sent == []
    ((_, status, text),) = results(model.requests[-1])
    assert status == "expired"
    assert "Nobody decided in time" in text
    (ruled,) = await facts(runtime, run_id, Attested)
    assert (ruled.verb, ruled.by, ruled.channel) == ("expire", "the deadline", "deadline")
    assert ruled.decided_ms >= request.expires_ms


async def test_who_comes_after_the_deadline_is_told_so_before_and_after_it_was_applied(
    bench: Bench,
) -> None:
    desk = Desk(asking_people(expires_s=SOON_S))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    await past(runtime, request.expires_ms)

    with pytest.raises(AskExpired):
        await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    await runtime.work(run_id, desk.agent)
    with pytest.raises(AskExpired):
        await runtime.decide(run_id, request.ask_id, "approve", by="leo")

    assert desk.sent == []


async def test_a_decision_before_the_deadline_counts_however_late_it_is_taken_up(
    bench: Bench,
) -> None:
    desk = Desk(asking_people(expires_s=1.5))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))

    await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    await past(runtime, request.expires_ms)
    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", ["mia 1"])


async def test_a_deadline_passes_while_other_calls_of_the_batch_run(bench: Bench) -> None:
    desk = Desk(asking_people(expires_s=SOON_S))
    runtime = await bench.runtime(model := sending(TO_MIA, look=True))
    run_id = await runtime.start(desk.agent, "Send it.")
    working = asyncio.create_task(runtime.work(run_id, desk.agent))

    await until(lambda: facts(runtime, run_id, Attested))
    assert not working.done()
    desk.gate.set()

    assert (await working).status == "done"
    assert [status for _, status, _ in results(model.requests[-1])] == ["expired", "success"]


async def test_a_deadline_can_end_the_run_with_a_result_for_every_call(bench: Bench) -> None:
    desk = Desk(asking_people(expires_s=SOON_S, on_expiry="fail_run"))
    runtime = await bench.runtime(sending(TO_MIA, look=True))

    result = await runtime.run(desk.agent, "Send it.")

    assert (result.status, result.reason) == ("error", "expired")
    assert "nobody decided request" in result.message
    run = await bench.run_of(result.run_id)
    assert [c.result.status for c in run.calls if c.result] == ["expired", "cancelled"]
    assert desk.sent == []


async def test_a_deadline_approves_only_where_the_tool_says_so(bench: Bench) -> None:
    desk = Desk(asking_people(expires_s=SOON_S, on_expiry="approve"))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    assert request.question.on_expiry == "approve"
    await past(runtime, request.expires_ms)

    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", ["mia 1"])
    (ruled,) = await facts(runtime, run_id, Attested)
    assert (ruled.verb, ruled.by) == ("approve", "the deadline")


async def test_two_workers_at_one_deadline_record_one_end(bench: Bench) -> None:
    desk = Desk(asking_people(expires_s=SOON_S))
    runtime, run_id, (request,) = await waiting(bench, desk, model := sending(TO_MIA))
    others = [await bench.runtime(model) for _ in range(4)]
    await past(runtime, request.expires_ms)

    await asyncio.gather(*(work_due_once(other, desk.agents) for other in others))

    assert len(await facts(runtime, run_id, Attested)) == 1


async def test_a_worker_that_dies_between_the_end_and_its_entry_leaves_it_to_the_next(
    bench: Bench,
) -> None:
    desk, store = Desk(asking_people(expires_s=SOON_S)), await bench.store()
    runtime, run_id, (request,) = await waiting(bench, desk, model := sending(TO_MIA))
    await past(runtime, request.expires_ms)
    dying = await bench.runtime(model, store=store, lease_s=0.1)

    async def die(commit: Any) -> None:
        store.is_dead = True

    store.before_commit = die
    with pytest.raises(Exception, match="dead"):
        await dying.work(run_id, desk.agent)
    await until(runtime.store.due)
    await work_due_once(runtime, desk.agents)

    assert (await runtime.result(run_id)).status == "done"
    assert len(await facts(runtime, run_id, Attested)) == 1
    assert desk.sent == []


async def test_a_question_has_a_deadline_where_the_agent_gives_it_one(bench: Bench) -> None:
    agent = Agent("desk", tools=[ask_user_within(SOON_S)])
    runtime = await bench.runtime(model := turns(ask(("ask_user", {"question": "?"})), finish()))
    result = await runtime.run(agent, "Ask.")
    (request,) = await runtime.requests(result.run_id)
    assert request.question.kind == "question"
    await past(runtime, request.expires_ms)

    assert (await runtime.work(result.run_id, agent)).status == "done"

    ((_, status, text),) = results(model.requests[-1])
    assert (status, "answered" in text) == ("expired", True)


# -- a batch, call by call ------------------------------------------------------------------------


async def test_approved_denied_and_expired_stand_in_call_order_with_their_reasons(
    bench: Bench,
) -> None:
    def terms(arguments: dict[str, Any]) -> bool:
        return True

    desk = Desk(asking_people(when=terms, expires_s=1.5))
    model = sending({"to": "a"}, {"to": "b"}, {"to": "c"})
    runtime, run_id, (one, two, three) = await waiting(bench, desk, model)
    await runtime.decide(run_id, three.ask_id, "approve", by="leo")
    await runtime.decide(run_id, one.ask_id, "reject", by="leo", reason="not her")
    assert (await runtime.work(run_id, desk.agent)).asks == (two.ask_id,)
    await past(runtime, two.expires_ms)

    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", ["c 1"])
    told = results(model.requests[-1])
    assert [status for _, status, _ in told] == ["denied", "expired", "success"]
    assert "not her" in told[0][2]
    assert "in time" in told[1][2]
    assert told[2][2] == "sent to c"


# -- what was decided stays decided ---------------------------------------------------------------


async def test_a_decision_outlives_any_change_of_the_rule(bench: Bench) -> None:
    asked = Desk(lambda args: True)
    model = sending({"to": "a"}, {"to": "b"})
    runtime, run_id, (one, two) = await waiting(bench, asked, model)
    await runtime.decide(run_id, one.ask_id, "approve", by="leo")
    await runtime.decide(run_id, two.ask_id, "reject", by="leo")
    changed = Desk("never")
    stricter = Desk("always")

    assert (await runtime.work(run_id, changed.agent)).status == "done"

    assert changed.sent == ["a 1"]  # the rejected one did not run, though nobody would be asked now
    runtime, run_id, (one, two) = await waiting(bench, Desk(lambda args: True), model)
    await runtime.decide(run_id, one.ask_id, "approve", by="leo")
    await runtime.decide(run_id, two.ask_id, "reject", by="leo")
    assert (await runtime.work(run_id, stricter.agent)).status == "done"
    assert stricter.sent == ["a 1"]  # and the approved one was not asked about again


async def test_a_waiting_call_goes_on_waiting_when_the_rule_would_not_ask_any_more(
    bench: Bench,
) -> None:
    runtime, run_id, _ = await waiting(bench, Desk("always"), sending(TO_MIA))
    changed = Desk("never")

    assert (await runtime.work(run_id, changed.agent)).status == "waiting"

    assert changed.sent == []


async def test_a_rule_is_asked_once_for_a_call(bench: Bench) -> None:
    seen: list[str] = []

    def rule(arguments: dict[str, Any]) -> bool:
        seen.append(arguments["to"])
        return True

    runtime, run_id, (request,) = await waiting(bench, desk := Desk(rule), sending(TO_MIA))
    for _ in range(2):
        await runtime.work(run_id, desk.agent)
    await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    await runtime.work(run_id, desk.agent)

    assert seen == ["mia"]


@pytest.mark.parametrize("how", ["late", "own"])
async def test_what_reaches_the_mailbox_against_the_terms_runs_nothing(
    bench: Bench, how: str
) -> None:
    """Somebody with a store of their own went around the runtime's checks."""
    desk = Desk(asking_people(expires_s=60, not_requester=True, quorum=2))
    runtime, run_id, (request,) = await waiting(
        bench, desk, model := sending(TO_MIA), requester="Ann"
    )
    by = "  ＡＮＮ " if how == "own" else "leo"
    decided = Decided(request.ask_id, "approve", by)
    forged = Decision(
        decision_id="f", verb="approve", by=by, digest=request.digest,
        body=signal.encode(decided), is_veto=True,
    )  # fmt: skip
    await runtime.store.decide(RunId(run_id), request.ask_id, forged)

    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", [])
    ((_, status, text),) = results(model.requests[-1])
    assert status == "denied"
    assert ("started the run" if how == "own" else "1 of 2 people") in text


async def test_the_journal_says_who_decided_how_when_and_on_which_hash(bench: Bench) -> None:
    runtime, run_id, (request,) = await waiting(bench, desk := Desk(), sending(TO_MIA))
    await runtime.decide(
        run_id, request.ask_id, "approve", by="Léo", reason="ok", channel="cli", auth="os_user"
    )
    await runtime.work(run_id, desk.agent)

    rows = await runtime.audit(run_id)

    (row,) = [row for row in rows if isinstance(row.fact, Attested)]
    fact = row.fact
    assert (fact.by, fact.reason, fact.channel, fact.auth) == ("Léo", "ok", "cli", "os_user")
    assert fact.digest == request.digest
    assert request.opened_ms <= fact.decided_ms <= fact.at_ms
    chains = {e.seq: e.chain.hex() for e in await runtime.store.journal(RunId(run_id))}
    assert all(row.chain == chains[row.seq] for row in rows)
    kinds = [type(row.fact).__name__ for row in await runtime.audit(run_id, call_id=fact.call_id)]
    assert kinds == ["Judged", "Asked", "Attested", "Intended", "Settled"]


# -- who may decide -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "alias", ["Ann Ö", "ann ö", " ANN  Ö\t", "ａｎｎ ö", "ann o\u0308", "a\u200bnn ö"]
)
async def test_whoever_started_the_run_may_not_approve_it_under_any_spelling(
    bench: Bench, alias: str
) -> None:
    desk = Desk(asking_people(not_requester=True))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA), requester="Ann Ö")

    for verb, given in (
        ("approve", {}),
        ("edit", {"arguments": "{}"}),
        ("answer", {"answer": "x"}),
    ):
        with pytest.raises(NotAllowed, match="somebody else has to"):
            await runtime.decide(run_id, request.ask_id, verb, by=alias, **given)
    assert await runtime.store.mailbox(RunId(run_id)) == []

    await runtime.decide(run_id, request.ask_id, "approve", by="Zoe")
    assert (await runtime.work(run_id, desk.agent)).status == "done"


async def test_whoever_started_the_run_may_still_say_no(bench: Bench) -> None:
    desk = Desk(asking_people(not_requester=True))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA), requester="ann")

    await runtime.decide(run_id, request.ask_id, "reject", by="ann")

    assert (await runtime.work(run_id, desk.agent)).status == "done"
    assert desk.sent == []


async def test_a_run_without_a_name_cannot_begin_where_the_name_matters(bench: Bench) -> None:
    runtime = await bench.runtime(sending(TO_MIA))

    with pytest.raises(UsageError, match="requester="):
        await runtime.start(Desk(asking_people(not_requester=True)).agent, "Go.", requester=" ")


async def test_nobody_decides_as_time_or_as_nobody(bench: Bench) -> None:
    desk = Desk(asking_people(quorum=2))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))

    for name in ("The Deadline", "", "\u200b"):
        with pytest.raises(NotAllowed):
            await runtime.decide(run_id, request.ask_id, "approve", by=name)


async def test_a_quorum_needs_different_people_and_shows_who_agreed(bench: Bench) -> None:
    desk = Desk(asking_people(quorum=2))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))

    first = await runtime.decide(run_id, request.ask_id, "approve", by="Leo", reason="fine")
    assert first.missing == 1
    assert (await runtime.work(run_id, desk.agent)).status == "waiting"
    with pytest.raises(AlreadyVoted, match="1 more person"):
        await runtime.decide(run_id, request.ask_id, "approve", by="LEO ")
    (open_one,) = await runtime.requests(run_id)
    assert [v.by for v in open_one.votes] == ["Leo"]
    assert desk.sent == []
    last = await runtime.decide(run_id, request.ask_id, "approve", by="Zoe")
    assert last.missing == 0
    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", ["mia 1"])
    (vote,) = await facts(runtime, run_id, Voted)
    assert (vote.by, vote.reason, vote.digest) == ("Leo", "fine", request.digest)
    (ruled,) = await facts(runtime, run_id, Attested)
    assert ruled.by == "Zoe"


async def test_both_words_of_a_quorum_in_one_mailbox_are_taken_up_in_order(bench: Bench) -> None:
    desk = Desk(asking_people(quorum=3))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    for name in ("a", "b", "c"):
        await runtime.decide(run_id, request.ask_id, "approve", by=name)

    assert (await runtime.work(run_id, desk.agent)).status == "done"

    assert [f.by for f in await facts(runtime, run_id, Voted, Attested)] == ["a", "b", "c"]
    assert desk.sent == ["mia 1"]


async def test_one_of_many_is_enough_to_reject_and_nobody_edits_for_the_others(
    bench: Bench,
) -> None:
    desk = Desk(asking_people(quorum=3))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    with pytest.raises(UsageError, match="needs 3 people"):
        await runtime.decide(run_id, request.ask_id, "edit", by="zoe", arguments="{}")

    await runtime.decide(run_id, request.ask_id, "reject", by="zoe", reason="no")
    with pytest.raises(AlreadyDecided, match="reject by zoe"):
        await runtime.decide(run_id, request.ask_id, "approve", by="kim")

    assert (await runtime.work(run_id, desk.agent)).status == "done"
    assert desk.sent == []


async def test_a_quorum_that_is_not_reached_in_time_expires(bench: Bench) -> None:
    desk = Desk(asking_people(quorum=2, expires_s=1.5))
    runtime, run_id, (request,) = await waiting(bench, desk, model := sending(TO_MIA))
    await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    await past(runtime, request.expires_ms)

    assert (await runtime.work(run_id, desk.agent)).status == "done"

    assert [status for _, status, _ in results(model.requests[-1])] == ["expired"]
    assert desk.sent == []


async def test_a_question_back_and_a_claim_change_nothing(bench: Bench) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    seq = (await runtime.store.head(RunId(run_id))).seq

    await runtime.comment(run_id, request.ask_id, "Which Mia?", by="leo")
    await runtime.claim(run_id, request.ask_id, by="Leo")
    with pytest.raises(AskClaimed, match="Leo"):
        await runtime.claim(run_id, request.ask_id, by="zoe")
    with pytest.raises(UsageError, match="empty"):
        await runtime.comment(run_id, request.ask_id, " ", by="leo")

    (shown,) = await runtime.requests(run_id)
    assert [(c.by, c.text) for c in shown.comments] == [("leo", "Which Mia?")]
    assert shown.claimed_by == "Leo"
    assert (await runtime.store.head(RunId(run_id))).seq == seq
    assert await runtime.store.due() == []
    await runtime.release(run_id, request.ask_id, by="LEO")
    await runtime.decide(run_id, request.ask_id, "approve", by="zoe")
    assert (await runtime.work(run_id, desk.agent)).status == "done"


# -- standing consents ----------------------------------------------------------------------------


def one_by_one(*calls: dict[str, Any]) -> ScriptedModel:
    return turns(*(ask(("send", call)) for call in calls), finish())


async def test_an_approval_for_later_calls_holds_for_the_same_rule_in_this_run(
    bench: Bench,
) -> None:
    def to_others(arguments: dict[str, Any]) -> bool:
        return arguments["to"] != "me"

    desk = Desk(to_others)
    model = one_by_one({"to": "a"}, {"to": "b"}, {"to": "c"})
    runtime, run_id, (request,) = await waiting(bench, desk, model)

    await runtime.decide(run_id, request.ask_id, "approve", by="leo", is_standing=True)
    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", ["a 1", "b 1", "c 1"])
    (consented,) = await facts(runtime, run_id, Consented)
    assert (consented.tool, consented.rule, consented.by) == ("send", "to_others", "leo")
    judged = await facts(runtime, run_id, Judged)
    assert [(j.asks, j.consent) for j in judged] == [
        (True, ""), (False, consented.consent_id), (False, consented.consent_id),
    ]  # fmt: skip
    assert "leo agreed" in judged[1].reason
    other = await runtime.run(desk.agent, "Send it.")
    assert other.status == "waiting"  # never across runs


async def test_a_consent_is_listed_and_can_be_taken_back(bench: Bench) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, one_by_one(*[TO_MIA] * 4))
    consent_id = await runtime.consent(run_id, "send", by="leo", reason="all fine")
    (pending,) = await runtime.consents(run_id)
    assert (pending.consent_id, pending.is_taken_up, pending.rule) == (consent_id, False, "")
    assert (await runtime.work(run_id, desk.agent)).status == "waiting"  # for later calls only
    (held,) = await runtime.consents(run_id)
    assert (held.is_taken_up, held.by, held.reason) == (True, "leo", "all fine")
    with pytest.raises(UsageError, match=consent_id):
        await runtime.revoke(run_id, "nothing", by="leo")

    await runtime.revoke(run_id, consent_id, by="zoe")

    assert await runtime.consents(run_id) == []
    await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    assert (await runtime.work(run_id, desk.agent)).status == "waiting"
    assert desk.sent == ["mia 1"]
    assert len(await facts(runtime, run_id, Revoked)) == 1


@pytest.mark.parametrize(
    ("approval", "by", "rule"),
    [
        (asking_people(quorum=2), "leo", ""),
        (asking_people(not_requester=True), "REQ", ""),
        (lambda args: args["nothing"], "leo", ""),
        ("always", "leo", "another_rule"),
    ],
    ids=["quorum", "requester", "failed rule", "another rule"],
)
async def test_a_consent_does_not_stand_for_what_its_giver_could_not_decide(
    bench: Bench, approval: Any, by: str, rule: str
) -> None:
    desk = Desk(approval)
    runtime = await bench.runtime(
        turns(ask(("ask_user", {"question": "?"})), ask(("send", TO_MIA)))
    )
    result = await runtime.run(desk.agent, "Go.", requester="req")
    await runtime.consent(result.run_id, "send", by=by, rule=rule)
    (question,) = await runtime.requests(result.run_id)
    await runtime.decide(result.run_id, question.ask_id, "answer", by="leo", answer="go on")

    assert (await runtime.work(result.run_id, desk.agent)).status == "waiting"

    assert desk.sent == []


async def test_only_one_persons_approval_can_stand_for_later_calls(bench: Bench) -> None:
    desk = Desk(asking_people(quorum=2))
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))

    for verb in ("approve", "reject"):
        with pytest.raises(UsageError, match="later calls"):
            await runtime.decide(run_id, request.ask_id, verb, by="leo", is_standing=True)


# -- sums -----------------------------------------------------------------------------------------


def over_fifty(arguments: dict[str, Any], so_far: Any) -> bool | str:
    total = so_far["amount"] + arguments["amount"]
    return f"{total} in all after {so_far.calls} calls" if total > 50 else False


@pytest.mark.parametrize("is_batch", [True, False])
async def test_ten_small_calls_do_not_slip_under_a_limit(bench: Bench, is_batch: bool) -> None:
    desk = Desk(over_fifty)
    calls = [{"to": f"c{n}", "amount": 10} for n in range(10)]
    model = sending(*calls) if is_batch else one_by_one(*calls)

    *_, requests = await waiting(bench, desk, model)

    assert len(desk.sent) == 5
    assert len(requests) == (5 if is_batch else 1)
    assert requests[0].question.reason == "60 in all after 5 calls"


async def test_a_default_counts_like_a_given_number(bench: Bench) -> None:
    desk = Desk(lambda args, so_far: so_far["amount"] >= 2)

    await waiting(bench, desk, one_by_one({"to": "a"}, {"to": "b"}, {"to": "c"}))

    assert desk.sent == ["a 1", "b 1"]


async def test_sums_count_what_was_approved_and_edited_and_not_what_was_refused(
    bench: Bench,
) -> None:
    desk = Desk(over_fifty)
    model = one_by_one(*({"to": "x", "amount": amount} for amount in (60, 70, 20, 80)))
    runtime, run_id, (first,) = await waiting(bench, desk, model)
    await runtime.decide(run_id, first.ask_id, "reject", by="leo")
    await runtime.work(run_id, desk.agent)
    (second,) = await runtime.requests(run_id)
    assert second.question.reason == "70 in all after 0 calls"
    await runtime.decide(
        run_id, second.ask_id, "edit", by="leo", arguments={"to": "x", "amount": 25}
    )

    await runtime.work(run_id, desk.agent)

    assert desk.sent == ["x 25", "x 20"]
    (fourth,) = await runtime.requests(run_id)
    assert fourth.question.reason == "125 in all after 2 calls"


@pytest.mark.parametrize("verb", ["approve", "reject", "answer"])
async def test_arguments_are_for_edit_alone_and_nothing_is_decided_with_them(
    bench: Bench, verb: Any
) -> None:
    desk = Desk(over_fifty)
    model = sending({"to": "mia", "amount": 60})
    runtime, run_id, (request,) = await waiting(bench, desk, model)
    answer = "no" if verb == "answer" else None
    less = {"to": "mia", "amount": 1}

    with pytest.raises(UsageError, match=f"{verb} takes no arguments"):
        await runtime.decide(run_id, request.ask_id, verb, by="leo", answer=answer, arguments=less)

    assert [r.ruling for r in await runtime.requests(run_id)] == [None]


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {"to": "mia"}
    value["amount"] = [value]
    return value


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [
        '{"to":"mia","amount":1,"amount":100}',
        '{"to":"mia","amount":1e400}',
        '{"to":"mia","amount":NaN}',
        '{"to":"mia","amount":' + "[" * 3_000 + "]" * 3_000 + "}",
        "[]",
        " ",
        {"to": "mia", "amount": {float("nan")}},
        {"to": b"mia"},
        endless(),
    ],
    ids=lambda given: str(given)[:36],
)
async def test_edited_arguments_are_what_a_call_of_the_model_may_hold(
    bench: Bench, arguments: Any, is_checked: bool
) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    agent = desk.agent if is_checked else None

    with pytest.raises(UsageError):
        await runtime.decide(
            run_id, request.ask_id, "edit", by="leo", arguments=arguments, agent=agent
        )


@pytest.mark.parametrize("verb", ["approve", "reject", "edit"])
async def test_an_answer_is_for_verbs_that_tell_the_model_one(bench: Bench, verb: Any) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))
    arguments = TO_MIA if verb == "edit" else None

    with pytest.raises(UsageError, match=f"{verb} takes no answer"):
        await runtime.decide(
            run_id, request.ask_id, verb, by="leo", answer="sent", arguments=arguments
        )


async def test_a_stored_approval_with_arguments_runs_and_counts_the_calls_own(
    bench: Bench,
) -> None:
    desk = Desk(over_fifty)
    model = turns(
        ask(("send", {"to": "mia", "amount": 60})),
        ask(("send", {"to": "tom", "amount": 5})),
        finish(),
    )
    runtime, run_id, (request,) = await waiting(bench, desk, model)
    stored = Decided(ask_id=request.ask_id, verb="approve", by="leo",
                     arguments='{"amount":1,"to":"mia"}')  # fmt: skip
    decision = Decision(decision_id="d", verb="approve", by="leo", digest=request.digest,
                        body=signal.encode(stored))  # fmt: skip
    await runtime.store.decide(RunId(run_id), request.ask_id, decision)

    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("waiting", ["mia 60"])
    (second,) = await runtime.requests(run_id)
    assert second.question.reason == "65 in all after 1 calls"


async def test_a_resumed_run_knows_its_sums(bench: Bench) -> None:
    desk = Desk(over_fifty)
    runtime, run_id, (request,) = await waiting(
        bench, desk, model := one_by_one(*[{"to": "x", "amount": 30}] * 3)
    )
    await runtime.decide(run_id, request.ask_id, "approve", by="leo")

    other = await bench.runtime(model)
    await other.work(run_id, desk.agent)

    (last,) = await runtime.requests(run_id)
    assert last.question.reason == "90 in all after 2 calls"
    assert len(await facts(runtime, run_id, Intended)) == 2


# -- code that changed ----------------------------------------------------------------------------


@pytest.mark.parametrize("has_decision", [True, False])
@pytest.mark.parametrize("kind", ["removed", "renamed"])
async def test_a_tool_that_is_gone_parks_the_run_with_its_name_and_loses_no_decision(
    bench: Bench, kind: str, has_decision: bool
) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending(TO_MIA))

    @tool(approval="always")
    async def dispatch_mail(to: str, amount: int = 1) -> str:
        return "other"

    gone = Agent("desk", tools=[dispatch_mail] if kind == "renamed" else [ask_user])
    if has_decision:
        await runtime.decide(run_id, request.ask_id, "approve", by="leo")
        with pytest.raises(CodeChanged, match="'send'"):
            await runtime.work(run_id, gone)
        assert await runtime.store.due() == []  # no worker tries it again and again
    else:
        assert (await runtime.work(run_id, gone)).status == "waiting"
        await runtime.decide(run_id, request.ask_id, "approve", by="leo")

    assert (await runtime.work(run_id, desk.agent)).status == "done"
    assert desk.sent == ["mia 1"]


# -- questions ------------------------------------------------------------------------------------


async def test_answers_that_come_early_late_or_twice_are_refused_with_what_is_open(
    bench: Bench,
) -> None:
    agent = Agent("desk", tools=[ask_user])
    model = turns(
        ask(("ask_user", {"question": "One?"})), ask(("ask_user", {"question": "Two?"})), finish()
    )
    runtime = await bench.runtime(model)
    run_id = (await runtime.run(agent, "Ask.")).run_id
    (one,) = await runtime.requests(run_id)
    with pytest.raises(AskNotFound, match=f"Open requests: {one.ask_id}"):
        await runtime.decide(run_id, "q99-0", "answer", by="leo", answer="early")

    await runtime.decide(run_id, one.ask_id, "answer", by="leo", answer="1")
    with pytest.raises(AlreadyDecided, match="answer by leo"):
        await runtime.decide(run_id, one.ask_id, "answer", by="zoe", answer="11")
    await runtime.work(run_id, agent)
    (two,) = await runtime.requests(run_id)
    with pytest.raises(AlreadyDecided):
        await runtime.decide(run_id, one.ask_id, "answer", by="leo", answer="late")
    await runtime.decide(run_id, two.ask_id, "answer", by="leo", answer="2")
    await runtime.work(run_id, agent)

    assert [text for *_, text in results(model.requests[-1])] == ["1", "2"]
