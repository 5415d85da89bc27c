"""Other code on stored runs: what is said, what parks, who may let it go on, and looking back."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from checkpoints.errors import CorruptEntry
from checkpoints.model import Commit, Head, RunId
from fsm_agent import Agent, Runtime, tool
from fsm_agent.engine.session import snapshot_of
from fsm_agent.errors import BadAgent, CodeChanged, NewerRecord, UsageError
from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.run import codec
from fsm_agent.run.delta import Created, Forked, Settled, Versioned
from fsm_agent.run.record import Record, Run, apply
from fsm_agent.worker.local import work_due_once
from tests.conftest import Bench, Ledger, ScriptedModel, ask, die, finish, results, turns, until

QUICK = 0.3
PROTOCOL = LabelProtocol(
    allowed=("TOOL", "FINISH", "STOP"), terminal=frozenset({"FINISH", "STOP"}), tool_label="TOOL"
)


def desk(
    *names: str,
    effect: Any = "unsafe",
    approval: Any = "always",
    version: str = "1",
    extra: bool = False,
    ledger: Ledger | None = None,
    **settings: Any,
) -> Agent:
    """An agent with these tools, all of one kind."""

    def declared(name: str) -> Any:
        def did(note: str = "") -> str:
            if ledger is not None:
                ledger.record(name)
            return f"{name} done"

        def did_to(account: str, note: str = "") -> str:
            return did(note)

        function = did_to if extra else did
        return tool(name=name, effect=effect, approval=approval, version=version)(function)

    return Agent("desk", **settings, tools=[declared(name) for name in names])


def model() -> ScriptedModel:
    return turns(ask(("pay", {})), finish("all done"))


async def waiting(bench: Bench, agent: Agent) -> tuple[Runtime, str]:
    """A run that waits for a person's word on `pay`."""
    runtime = await bench.runtime(model())
    result = await runtime.run(agent, "Go.")
    assert result.status == "waiting"
    return runtime, result.run_id


async def approve(runtime: Runtime, run_id: str) -> None:
    (request,) = await runtime.requests(run_id)
    await runtime.decide(run_id, request.ask_id, "approve", by="mia")


async def versions(runtime: Runtime, run_id: str) -> list[Versioned]:
    """What is on record of the code, in order."""
    events = await runtime.history(run_id)
    return [d for e in events for d in e.record.deltas if isinstance(d, Versioned)]


# -- what changed ---------------------------------------------------------------------------------


async def test_a_run_says_from_its_first_entry_on_what_code_it_began_with(bench: Bench) -> None:
    runtime, run_id = await waiting(bench, agent := desk("pay", "look"))

    (begun,) = await versions(runtime, run_id)

    assert begun == Versioned(agent.parts())
    assert list(begun.parts) == ["instructions", "protocol", "tool pay", "tool look"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (desk("pay"), ["tool look is gone"]),
        (desk("pay", "see"), ["tool look is gone", "tool see is new"]),
        (desk("pay", "look", version="2"), ["tool look has changed", "tool pay has changed"]),
        (desk("pay", "look", effect="read"), ["tool look has changed", "tool pay has changed"]),
        (desk("pay", "look", instructions="Else."), ["the instructions have changed"]),
        (desk("pay", "look", protocol=PROTOCOL), ["the protocol has changed"]),
    ],
)
@pytest.mark.parametrize("policy", ["warn", "continue", "park"])
async def test_each_policy_with_each_change(
    bench: Bench, capsys: Any, policy: Any, changed: Agent, says: list[str]
) -> None:
    changed.on_change = policy
    runtime, run_id = await waiting(bench, desk("pay", "look"))
    await approve(runtime, run_id)
    capsys.readouterr()

    if policy == "park":
        with pytest.raises(CodeChanged) as parked:
            await runtime.work(run_id, changed)
        assert all(change in str(parked.value) for change in says)
        assert f"run {run_id!r} stands in ACT after entry 5" in str(parked.value)
        assert len(await versions(runtime, run_id)) == 1
        assert await runtime.store.due() == []
        return
    await runtime.work(run_id, changed)

    assert (await versions(runtime, run_id))[1:] == [Versioned(changed.parts())]
    told = capsys.readouterr().out
    assert ("run.code_changed" in told) is (policy == "warn")
    assert all(change in told for change in says) is (policy == "warn")


@pytest.mark.parametrize("policy", ["warn", "continue", "park"])
@pytest.mark.parametrize("kind", ["prose", "order", "rule"])
async def test_what_changes_no_meaning_is_no_change(bench: Bench, policy: Any, kind: str) -> None:
    def agent(is_new: bool) -> Agent:
        def pay(amount: int = 1) -> str:
            return "paid"

        pay.__doc__ = "Pay it." if is_new and kind == "prose" else "Pay."
        rule: Any = (lambda args: True) if is_new and kind == "rule" else "always"
        tools = [tool(approval=rule)(pay), tool(effect="read")(other)]
        tools = tools[::-1] if is_new and kind == "order" else tools
        return Agent("desk", tools=tools, on_change=policy)

    def other() -> str:
        return "other"

    runtime, run_id = await waiting(bench, agent(False))
    await approve(runtime, run_id)

    assert (await runtime.work(run_id, agent(True))).status == "done"
    assert len(await versions(runtime, run_id)) == 1


def test_parts_are_the_same_in_every_process() -> None:
    """Sets of labels have no order, and a process of its own has another one."""
    code = (
        "from tests.integration.test_versions import Agent, PROTOCOL\n"
        "print(Agent('a', protocol=PROTOCOL).fingerprint())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": str(seed)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3, 4)
    }

    assert len(seen) == 1
    assert seen == {f"{Agent('a', protocol=PROTOCOL).fingerprint()}\n"}


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(BadAgent, match=r"on_change='parc'\. Did you mean 'park'"):
        Agent("desk", on_change="parc")  # type: ignore[arg-type]


def test_an_agent_with_other_tools_keeps_its_policy() -> None:
    assert desk("pay", on_change="park").with_tools([]).on_change == "park"


# -- going on after a park ------------------------------------------------------------------------


async def test_the_old_code_goes_on_after_a_park(bench: Bench) -> None:
    runtime, run_id = await waiting(bench, old := desk("pay", "look", on_change="park"))
    await approve(runtime, run_id)
    with pytest.raises(CodeChanged):
        await runtime.work(run_id, desk("pay", on_change="park"))

    assert (await runtime.work(run_id, old)).status == "done"
    assert len(await versions(runtime, run_id)) == 1


async def test_who_accepts_a_change_is_on_record_and_the_old_code_parks_then(bench: Bench) -> None:
    runtime, run_id = await waiting(bench, old := desk("pay", "look", on_change="park"))
    new = desk("pay", on_change="park")

    result = await runtime.work(run_id, new, accept_changes_by="mia")
    assert result.status == "waiting"  # nothing else happens, and her word is on record
    await approve(runtime, run_id)
    result = await runtime.work(run_id, new)

    assert result.status == "done"
    assert (await versions(runtime, run_id))[-1] == Versioned(new.parts(), "mia")
    fork = await runtime.fork(run_id, new_id="p1", by="leo")
    by = [row.fact.by for row in await runtime.audit(fork.run_id)
          if isinstance(row.fact, Versioned | Forked)]  # fmt: skip
    assert by == ["", "mia", "leo"]
    with pytest.raises(CodeChanged, match="tool look is new"):
        await runtime.work(fork.run_id, old)
    assert (await runtime.work(fork.run_id, new)).status == "done"


async def test_a_run_that_would_park_can_be_cancelled_with_any_code(bench: Bench) -> None:
    runtime, run_id = await waiting(bench, desk("pay", "look"))
    await runtime.cancel(run_id, by="mia")

    result = await runtime.work(run_id, desk("look", on_change="park"))

    assert (result.status, result.reason) == ("error", "cancelled")


async def test_a_child_run_parks_its_parent_and_is_accepted_with_it(bench: Bench) -> None:
    def boss(*names: str) -> Agent:
        helper = desk(*names, on_change="park")
        return Agent("boss", tools=[helper.as_tool(name="helper")])

    def answer(request: Any) -> Any:
        spoken = sum(hasattr(m, "calls") for m in request.messages)
        if any(t.name == "helper" for t in request.tools):
            return [ask(("helper", {"task": "pay"})), finish("all done")][min(spoken, 1)]
        return [ask(("pay", {})), finish("child done")][min(spoken, 1)]

    runtime = await bench.runtime(ScriptedModel(answer))
    result = await runtime.run(boss("pay", "look"), "Go.")
    (child,) = result.children
    (request,) = await runtime.requests(result.run_id)
    await runtime.decide(child, request.ask_id, "approve", by="mia")

    with pytest.raises(CodeChanged, match=f"{child}.*tool look is gone"):
        await runtime.work(result.run_id, boss("pay"))
    done = await runtime.work(result.run_id, boss("pay"), accept_changes_by="leo")

    assert done.status == "done"
    assert (await versions(runtime, child))[-1].by == "leo"


# -- calls that the code cannot serve -------------------------------------------------------------


async def test_an_approved_call_of_a_tool_that_is_gone_parks_whatever_the_policy(
    bench: Bench,
) -> None:
    for policy in ("warn", "continue"):
        runtime, run_id = await waiting(bench, desk("pay"))
        await approve(runtime, run_id)

        with pytest.raises(CodeChanged) as stuck:
            await runtime.work(run_id, desk("pey", on_change=policy))

        assert str(stuck.value).startswith(
            f"run {run_id!r} stands at call c4-0 of pay, which was approved: no tool is named"
            " 'pay'. Did you mean 'pey'? Registered: pey. Go on with the code that had it"
        )
        assert (await runtime.work(run_id, desk("pay"))).status == "done"


async def test_accepting_that_an_approved_tool_is_gone_tells_the_model(
    bench: Bench, ledger: Ledger
) -> None:
    runtime, run_id = await waiting(bench, desk("pay", ledger=ledger))
    await approve(runtime, run_id)

    result = await runtime.work(run_id, desk("look"), accept_changes_by="mia")

    assert result.status == "done"
    settled = [d for e in await runtime.history(run_id) for d in e.record.deltas
               if isinstance(d, Settled)]  # fmt: skip
    assert [(d.status, d.text) for d in settled] == [
        ("error", "It has no result: the tool pay is gone.")
    ]
    assert ledger == {}


async def test_accepting_arguments_that_no_longer_fit_tells_the_model(bench: Bench) -> None:
    runtime, run_id = await waiting(bench, desk("pay"))
    await approve(runtime, run_id)
    with pytest.raises(CodeChanged, match="which was approved: pay takes other arguments now"):
        await runtime.work(run_id, desk("pay", extra=True))

    result = await runtime.work(run_id, desk("pay", extra=True), accept_changes_by="mia")

    assert result.status == "done"


@pytest.mark.parametrize("effect", ["unsafe", "read"])
@pytest.mark.parametrize("verb", ["happened", "fail", "rerun"])
async def test_accepting_that_a_started_tool_is_gone_puts_what_is_in_doubt_before_a_person(
    bench: Bench, effect: Any, verb: Any
) -> None:
    started = asyncio.Event()

    @tool(name="pay", effect=effect, timeout_s=1)
    async def pay() -> str:
        started.set()
        await asyncio.sleep(60)
        return "paid"

    store = await bench.store()
    first = await bench.runtime(model(), store=store, lease_s=QUICK)
    run_id = await first.start(Agent("desk", tools=[pay]), "Go.")
    working = asyncio.create_task(first.work(run_id, Agent("desk", tools=[pay])))
    await started.wait()
    await die(store, working)
    seen = model()
    second = await bench.runtime(seen)
    await until(lambda: _is_due(second, run_id))

    result = await second.work(run_id, desk("look"), accept_changes_by="mia")

    if effect == "read":
        assert result.status == "done"
        assert results(seen.requests[-1]) == [
            ("pay", "error", "It has no result: the tool pay is gone.")
        ]
        return
    assert result.status == "waiting"
    (request,) = await second.requests(run_id)
    assert "The tool pay is gone since" in request.question.reason
    if verb == "rerun":
        await until(lambda: _is_unlocked(second, request.unlock_ms), limit_s=30)
    said = "it was" if verb == "happened" else None
    await second.decide(run_id, request.ask_id, verb, by="mia", answer=said)
    assert (await second.work(run_id, desk("look"))).status == "done"
    (told,) = results(seen.requests[-1])
    assert told[1] == {"happened": "success", "fail": "in_doubt", "rerun": "error"}[verb]


async def _is_due(runtime: Runtime, run_id: str) -> bool:
    return RunId(run_id) in await runtime.store.due()


async def _is_unlocked(runtime: Runtime, unlock_ms: int) -> bool:
    return await runtime.store.now_ms() >= unlock_ms


async def test_a_changed_rule_changes_no_decision(bench: Bench, ledger: Ledger) -> None:
    runtime, run_id = await waiting(bench, desk("pay", ledger=ledger))
    await approve(runtime, run_id)

    def asks_anew(args: Any) -> str:
        return "never again"

    result = await runtime.work(run_id, desk("pay", approval=asks_anew, ledger=ledger))

    assert (result.status, ledger) == ("done", {"pay": 1})


async def test_an_approval_is_of_the_version_that_was_shown(bench: Bench, ledger: Ledger) -> None:
    runtime, run_id = await waiting(bench, desk("pay"))
    (shown,) = await runtime.requests(run_id)
    await approve(runtime, run_id)

    result = await runtime.work(run_id, desk("pay", version="2", ledger=ledger))

    assert (result.status, ledger) == ("waiting", {})
    (anew,) = await runtime.requests(run_id)
    assert (anew.digest != shown.digest, anew.ask_id != shown.ask_id) == (True, True)
    assert "was changed since this call was approved" in anew.question.reason


# -- before a deploy ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize(
    ("new", "kinds", "words"),
    [
        (desk("look"), ["tool_gone"], "there is no tool pay any more"),
        (desk("pay", extra=True), ["arguments"], "pay takes other arguments now: "),
        (desk("pay", version="2"), ["approval_void"], "a person would be asked again"),
        (desk("pay", "see", on_change="park"), ["parks"], "it would park, as its agent says: "),
        (desk("pay", "see"), [], ""),
        (desk("pay", approval="never"), [], ""),
    ],
)
async def test_a_check_names_what_the_new_code_cannot_serve(
    bench: Bench, new: Agent, kinds: list[str], words: str, is_decided: bool
) -> None:
    runtime, run_id = await waiting(bench, desk("pay"))
    (request,) = await runtime.requests(run_id)
    if is_decided:
        # Taken up, and stopped before the call starts.
        await approve(runtime, run_id)
        with pytest.raises(CodeChanged):
            await runtime.work(run_id, desk("look", on_change="continue"))

    checked = await runtime.check_deploy(new)

    assert (checked.runs, checked.others) == (1, 0)
    assert checked.requests == (0 if is_decided else 1)
    assert [found.kind for found in checked.obstacles if found.kind != "parks"] == [
        kind for kind in kinds if kind != "parks"
    ]
    for found in checked.obstacles:
        assert (found.run_id, found.agent) == (run_id, "desk")
        if found.kind in kinds:
            assert words in found.reason
        if found.kind not in ("parks",):
            assert found.ask_id == ("" if is_decided else request.ask_id)
            assert ("was approved" in found.reason) is is_decided


async def test_a_check_writes_nothing_and_leaves_other_agents_and_ended_runs_out(
    bench: Bench,
) -> None:
    runtime, run_id = await waiting(bench, desk("pay"))
    ended = await runtime.run(desk("pay", approval="never"), "Go.")
    await runtime.start(Agent("other"), "Go.")
    before = await digest_of(runtime, run_id, ended.run_id)

    checked = await runtime.check_deploy([desk("look"), desk("pay")])

    assert (checked.runs, checked.others, len(checked.obstacles)) == (1, 1, 1)
    assert await digest_of(runtime, run_id, ended.run_id) == before


async def test_a_check_knows_started_calls_and_child_runs(bench: Bench) -> None:
    started = asyncio.Event()

    def helper(effect: Any) -> Agent:
        @tool(name="pay", effect=effect, timeout_s=5)
        async def pay(ctx: Any = None) -> str:
            started.set()
            await asyncio.sleep(60)
            return "paid"

        return Agent("helper", tools=[pay])

    def answer(request: Any) -> Any:
        return ask(("pay", {})) if any(t.name == "pay" for t in request.tools) else ask(
            ("helper", {"task": "pay"})
        )  # fmt: skip

    store = await bench.store()
    runtime = await bench.runtime(ScriptedModel(answer), store=store, lease_s=QUICK)
    boss = Agent("boss", tools=[helper("unsafe").as_tool()])
    run_id = await runtime.start(boss, "Go.")
    working = asyncio.create_task(runtime.work(run_id, boss))
    await started.wait()
    await die(store, working)
    other = await bench.runtime(model())

    assert (await other.check_deploy([boss])).obstacles == ()
    changed = Agent("boss", tools=[helper("read").as_tool()])
    (found,) = (await other.check_deploy([changed])).obstacles
    assert (found.kind, found.agent) == ("effect", "helper")
    gone = Agent("boss", tools=[Agent("helper").as_tool(name="aide")])
    kinds = {f.agent: f.kind for f in (await other.check_deploy([gone])).obstacles}
    assert kinds == {"boss": "tool_gone", "helper": "tool_gone"}


async def digest_of(runtime: Runtime, *run_ids: str) -> str:
    """Everything that the store keeps of these runs and of what is due."""
    found: list[Any] = [await runtime.store.due(limit=1000)]
    for run_id in map(RunId, run_ids):
        head: Head = await runtime.store.head(run_id)
        entries = await runtime.store.journal(run_id)
        asks = await runtime.store.asks(run_id, is_open=False)
        mail = await runtime.store.mailbox(run_id)
        found.append([head, entries, asks, mail, await runtime.store.orphans(run_id)])
    return hashlib.sha256(msgspec.msgpack.encode(found)).hexdigest()


# -- looking back ---------------------------------------------------------------------------------


async def test_every_entry_of_a_run_can_be_looked_at_and_nothing_is_written(bench: Bench) -> None:
    runtime, run_id = await waiting(bench, desk("pay"))
    await approve(runtime, run_id)
    await runtime.work(run_id, desk("pay"))
    before = await digest_of(runtime, run_id)
    history = await runtime.history(run_id)

    seen = [await runtime.replay(run_id, at=event.seq) for event in history]
    whole = await runtime.replay(run_id)

    assert [replayed.run.state for replayed in seen] == [event.state for event in history]
    assert seen[0].run.messages[0].text == "Go."
    assert (whole.run, whole.differences) == (await bench.run_of(run_id), ())
    assert [replayed.chain for replayed in seen] == [
        entry.chain.hex() for entry in await runtime.store.journal(RunId(run_id))
    ]
    assert await digest_of(runtime, run_id) == before
    assert [replayed.differences for replayed in seen] == [()] * len(history)
    for seq in (0, -1, len(history) + 1):
        with pytest.raises(UsageError, match=f"has no entry {seq}: its entries are 1 to"):
            await runtime.replay(run_id, at=seq)


async def test_a_replay_says_in_what_the_head_differs(bench: Bench) -> None:
    runtime, run_id = await waiting(bench, desk("pay"))
    store: Any = (await bench.store())._store
    keys = store._of(RunId(run_id))
    told = codec.decode_snapshot((await runtime.store.head(RunId(run_id))).snapshot)
    lied = codec.encode_snapshot(replace(told, turns=7))
    await store._line.call("SET", keys.snapshot, lied)
    await store._line.call("HSET", keys.head, "s", "done")

    replayed = await runtime.replay(run_id)

    assert replayed.differences == (
        "its status is 'done', and the journal ends in ACT",
        "its turns is 7, and the journal makes it 1",
    )
    await store._line.call("SET", keys.snapshot, b"\x01rubbish")
    assert "its snapshot cannot be read" in (await runtime.replay(run_id)).differences[1]


async def test_a_changed_byte_is_found_before_anything_is_shown(bench: Bench) -> None:
    runtime, run_id = await waiting(bench, desk("pay"))
    store: Any = (await bench.store())._store
    keys = store._of(RunId(run_id))
    (first, *_) = await runtime.store.journal(RunId(run_id))
    await store._line.call("XDEL", keys.journal, "3-0")
    assert first.seq == 1

    with pytest.raises(CorruptEntry, match="entry 3"):
        await runtime.replay(run_id)


# -- records of a newer version -------------------------------------------------------------------


async def add_later_record(bench: Bench, run_id: str, body: bytes) -> None:
    """What a worker of a newer version leaves behind."""
    store = await bench.store()
    claim = await store.claim(RunId(run_id), owner="newer", nonce="n", term_ms=1000)
    commit = Commit(
        op="later",
        expected_seq=claim.head.seq,
        previous_chain=claim.head.chain,
        bodies=(body,),
        status="ready",
        snapshot=claim.head.snapshot,
        due_ms=claim.server_ms,
        release=True,
    )
    await store.commit(claim.lease, commit)


NEW_KIND = b"\x01" + msgspec.msgpack.encode(["observed", 5, [["dreamt", "of", "sheep"]]])
NEW_SCHEMA = b"\x02" + msgspec.msgpack.encode("0.9.0") + b"\x80"


@pytest.mark.parametrize(
    ("body", "says"), [(NEW_KIND, "the fact 'dreamt'"), (NEW_SCHEMA, "fsm-agent 0.9.0 wrote it")]
)
async def test_a_worker_that_meets_a_newer_record_leaves_the_run_to_newer_workers(
    bench: Bench, body: bytes, says: str
) -> None:
    runtime = await bench.runtime(model())
    run_id = await runtime.start(agent := desk("pay"), "Go.")
    await add_later_record(bench, run_id, body)
    before = [entry.chain for entry in await runtime.store.journal(RunId(run_id))]

    with pytest.raises(NewerRecord, match=f"entry 2 cannot be read here: .*{says}") as refused:
        await runtime.work(run_id, agent)

    assert "corrupt" not in str(refused.value)
    head = await runtime.store.head(RunId(run_id))
    assert [e.chain for e in await runtime.store.journal(RunId(run_id))] == before
    assert (head.status, head.lease_until_ms) == ("ready", 0)
    assert head.due_ms is not None
    assert head.due_ms > await runtime.store.now_ms()  # later, for somebody else
    assert await work_due_once(runtime, {"desk": agent}) == 0
    (found,) = (await runtime.check_deploy([agent])).obstacles
    assert (found.kind, says in found.reason) == ("unreadable", True)


@pytest.mark.parametrize(
    "said", [["teleported", "home"], ["decided", "a4-0", "postpone", "mia"]], ids=["kind", "verb"]
)
async def test_a_signal_of_a_newer_version_waits_for_newer_workers(
    bench: Bench, said: list[str]
) -> None:
    runtime, run_id = await waiting(bench, agent := desk("pay"))
    store = runtime.store
    await store.signal(RunId(run_id), signal_id="later", body=msgspec.msgpack.encode(said))
    before = len(await store.journal(RunId(run_id)))

    with pytest.raises(NewerRecord, match="a newer version sent a signal"):
        await runtime.work(run_id, agent)

    head = await store.head(RunId(run_id))
    assert head.due_ms is not None
    assert head.due_ms > await store.now_ms()
    assert len(await store.journal(RunId(run_id))) == before
    assert [mail.signal_id for mail in await store.mailbox(RunId(run_id))] == ["later"]


async def test_a_signal_of_a_newer_version_that_comes_meanwhile_gives_the_run_back(
    bench: Bench,
) -> None:
    """The commit of the reply hears of it; what the tool did is on record before the end."""

    async def answer(request: Any) -> Any:
        body = msgspec.msgpack.encode(["teleported", "home"])
        await runtime.store.signal(RunId(run_id), signal_id="later", body=body)
        return ask(("pay", {}))

    runtime = await bench.runtime(ScriptedModel(answer))
    agent = desk("pay", effect="read", approval="never")
    run_id = await runtime.start(agent, "Go.")

    with pytest.raises(NewerRecord):
        await runtime.work(run_id, agent)

    head = await runtime.store.head(RunId(run_id))
    assert (head.lease_until_ms, head.status) == (0, "ready")
    assert (await runtime.replay(run_id)).differences == ()


async def test_a_run_of_an_older_version_that_names_no_parts_goes_on_without_a_word(
    bench: Bench,
) -> None:
    recorded = await bench.runtime(model())
    agent = desk("pay", on_change="park")
    record = Record(None, 1000, (Created("desk", "Go.", agent.limits, "", "an older digest"),))
    first = apply(Run(run_id="old"), record)
    await recorded.store.create(
        RunId("old"),
        op="o",
        body=codec.encode(record),
        snapshot=codec.encode_snapshot(snapshot_of(first)),
    )

    assert (await recorded.work("old", agent)).status == "waiting"
    assert await versions(recorded, "old") == []
