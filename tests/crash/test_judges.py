"""The judges, each with what only it can see, and the words in which a report tells it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from checkpoints.chain import genesis, links
from fsm_agent import Agent
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run import codec
from fsm_agent.run.content import UserMessage
from fsm_agent.run.delta import Attested, Began, Replied, Settled
from fsm_agent.testing.crash import Ledger, Outcome, Report, Scenario, html, memory, sweep, table
from fsm_agent.testing.crash.evidence import Ending, Evidence, Journal
from fsm_agent.testing.crash.ledger import Entry
from fsm_agent.testing.crash.oracles import judged
from fsm_agent.testing.crash.span import seconds
from tests.crash.desk import DeskModel, make_desk


@pytest.fixture(scope="module")
def report() -> Report:
    scenario = Scenario(make_agent=make_desk, make_model=DeskModel, task="Refund <order> A7.")
    return sweep(scenario, only=lambda name: name in ("create#1:before", "tool refund#1:after"))


@pytest.fixture(scope="module")
def calm(report: Report) -> Outcome:
    return report.undisturbed


def problems(outcome: Outcome, calm: Outcome) -> list[str]:
    return [f"{p.oracle}: {p.text}" for p in judged(outcome, calm, is_comparable=True)]


def with_deltas(calm: Outcome, change: Callable[[list[Any]], list[Any]]) -> Outcome:
    """The outcome with other deltas on record, chained as if they had been written so."""
    assert calm.evidence
    journal = calm.evidence.journals[0]
    bodies = []
    for _, _, body in journal.entries:
        record = codec.decode(body)
        deltas = tuple(change(list(record.deltas)))
        bodies.append(codec.encode(msgspec.structs.replace(record, deltas=deltas)))
    chains = links(genesis(journal.run_id), 0, bodies)
    entries = tuple(zip(range(1, len(bodies) + 1), chains, bodies, strict=True))
    return with_evidence(calm, journals=(Journal(journal.run_id, entries),))


def with_evidence(calm: Outcome, **changes: Any) -> Outcome:
    assert calm.evidence
    evidence = Evidence(
        **{"result": calm.evidence.result, "journals": calm.evidence.journals,
           "asks": calm.evidence.asks} | changes
    )  # fmt: skip
    return msgspec.structs.replace(calm, evidence=evidence)


def with_ledger(calm: Outcome, change: Callable[[list[Entry]], list[Entry]]) -> Outcome:
    return msgspec.structs.replace(calm, entries=tuple(change(list(calm.ledger.entries()))))


def test_the_undisturbed_run_is_right(calm: Outcome) -> None:
    assert problems(calm, calm) == []


def test_another_answer_is_seen(calm: Outcome) -> None:
    result = msgspec.structs.replace(calm.result, answer="Something else.")

    (found,) = problems(with_evidence(calm, result=result), calm)

    assert found.startswith("answer: its answer is 'Something else.'")


def test_another_end_is_seen(calm: Outcome) -> None:
    result = msgspec.structs.replace(calm.result, status="error", reason="loop", answer=None)

    (found,) = problems(with_evidence(calm, result=result), calm)

    assert found.startswith("answer: it is error (loop: ), undisturbed done")


def of(tool: str, kind: str) -> Callable[[Entry], bool]:
    return lambda entry: entry.tool == tool and entry.kind == kind


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: [*e, *filter(of("refund", "started"), e)], "refund is unsafe and was started"),
        (lambda e: [*e, *filter(of("refund", "effect"), e)], "refund is unsafe and took effect"),
        (lambda e: [*e, Entry("hold", "another key")], "hold was sent under 2 different keys"),
        (lambda e: [x for x in e if x.tool != "refund"], "refund took effect never"),
        (lambda e: [x for x in e if x.tool != "hold"], "hold took effect never, undisturbed once"),
    ],
)
def test_an_effect_too_many_or_too_few_is_seen(
    calm: Outcome, change: Callable[[list[Entry]], list[Entry]], words: str
) -> None:
    changed = with_ledger(calm, change)

    found = problems(changed, calm)

    assert found
    assert all(text.startswith("effects: ") for text in found)
    assert words in found[0]


def test_a_byte_that_was_changed_is_seen(calm: Outcome) -> None:
    assert calm.evidence
    journal = calm.evidence.journals[0]
    seq, chain, body = journal.entries[3]
    entries = (*journal.entries[:3], (seq, chain, body + b"\0"), *journal.entries[4:])

    (found,) = problems(with_evidence(calm, journals=(Journal(journal.run_id, entries),)), calm)

    assert found.startswith("journal: ")
    assert "entry 4 is corrupt" in found


def test_an_entry_that_is_missing_is_seen(calm: Outcome) -> None:
    assert calm.evidence
    journal = calm.evidence.journals[0]
    entries = journal.entries[:3] + journal.entries[4:]

    (found,) = problems(with_evidence(calm, journals=(Journal(journal.run_id, entries),)), calm)

    assert "journal: " in found
    assert "entry 4" in found


def test_a_run_without_an_end_is_seen(calm: Outcome) -> None:
    assert calm.evidence
    journal = calm.evidence.journals[0]
    cut = Journal(journal.run_id, journal.entries[:-1])

    found = problems(with_evidence(calm, journals=(cut,)), calm)

    assert any("which is no end" in text for text in found)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Settled, "has 2 results"),
        (Attested, "was taken up twice"),
        (Replied, "was asked for twice"),
    ],
)
def test_a_fact_that_counts_twice_is_seen(calm: Outcome, kind: type, words: str) -> None:
    changed = with_deltas(calm, lambda d: [x for y in d for x in [y] * (1 + isinstance(y, kind))])

    found = problems(changed, calm)

    assert any(words in text for text in found), found


def test_a_result_that_nobody_called_for_is_seen(calm: Outcome) -> None:
    def rename(deltas: list[Any]) -> list[Any]:
        return [
            msgspec.structs.replace(d, call_id="a9-9") if isinstance(d, Settled) else d
            for d in deltas
        ]

    found = problems(with_deltas(calm, rename), calm)

    assert found
    assert found[0].startswith("journal: ")


def test_tokens_that_nobody_counts_are_seen(calm: Outcome) -> None:
    def renumbered(deltas: list[Any]) -> list[Any]:
        return [
            msgspec.structs.replace(d, attempt=7) if isinstance(d, Began) else d for d in deltas
        ]

    found = problems(with_deltas(calm, renumbered), calm)

    assert any("its model calls are numbered" in text for text in found)


def test_a_decision_that_was_lost_is_seen(calm: Outcome) -> None:
    assert calm.evidence
    ask = msgspec.structs.replace(calm.evidence.asks[0], ask_id="a99")

    found = problems(with_evidence(calm, asks=(*calm.evidence.asks, ask)), calm)

    assert any("decision on a99 was taken up never" in text for text in found)
    assert any("request a99 is on record never" in text for text in found)


def test_a_request_that_is_still_open_is_seen(calm: Outcome) -> None:
    assert calm.evidence
    ask = msgspec.structs.replace(calm.evidence.asks[0], verb="")

    found = problems(with_evidence(calm, asks=(ask,)), calm)

    assert any("is still open" in text for text in found)


def test_a_run_that_does_not_end_is_seen(calm: Outcome) -> None:
    stuck = Ending("timed out", "TimeoutError", "it took over 30 s")
    changed = msgspec.structs.replace(calm, endings=(stuck,), evidence=None)

    (found,) = problems(changed, calm)

    assert found == "ends: the last process timed out: TimeoutError: it took over 30 s"


# -- telling --------------------------------------------------------------------------------------


def test_the_page_is_whole_and_escapes_everything(report: Report) -> None:
    text = html.page(report, agent="<b>desk</b>", task="<script>alert(1)</script>", took_s=1.0)

    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<b>desk" not in text
    assert not re.search(r"(src|href)=", text)  # nothing is fetched
    assert "prefers-color-scheme: dark" in text
    assert 'class="cell green"' in text
    assert 'class="cell amber"' in text
    assert text.count("<table") == text.count("</table>")


def test_the_table_names_every_wrong_case_with_its_line(report: Report) -> None:
    failed = msgspec.structs.replace(report.outcomes[0], is_reached=False)
    broken = Report(undisturbed=report.undisturbed, points=report.points, outcomes=[failed])

    lines = list(table.lines(broken, took_s=1.0))

    assert "wrong: create#1:before=kill" in lines
    assert "  fsm-agent crashtest … --replay 'create#1:before=kill'" in lines
    assert lines[-1] == "failed: 1 of 1 run over 2 points in 1 s."


def test_a_ledger_tells_calls_effects_and_keys_apart(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.started("pay", "k1")
    ledger.record("pay", "order 7")
    assert ledger.happened("pay", "k1")
    assert not ledger.happened("pay", "k2")
    ledger.ended("pay", "k1", "paid")
    ledger.started("look", "k3")

    assert ledger.effects() == [("pay", "order 7")]
    assert (ledger.raw("pay"), ledger.by_key("pay"), ledger.starts("pay")) == (1, 1, 1)
    assert ledger.result_of("pay", "k1") == "paid"
    assert (ledger.raw("look"), ledger.cut_off("look")) == (0, 1)
    assert not ledger.happened("look", "k3")


# -- a model that is asked once -------------------------------------------------------------------


async def test_a_remembering_model_is_asked_once_for_each_request(tmp_path: Path) -> None:
    asked: list[str] = []

    class Counting(DeskModel):
        async def step(self, request: StepRequest, on_piece: Any) -> Reply:
            asked.append(request.instructions)
            return await super().step(request, on_piece)

    pieces: list[Any] = []
    request = StepRequest(instructions="x", messages=(UserMessage("hello"),))
    first = await memory.RememberingModel(Counting(), tmp_path).step(request, pieces.append)
    again = await memory.RememberingModel(Counting(), tmp_path).step(request, pieces.append)
    other = msgspec.structs.replace(request, instructions="y")
    await memory.RememberingModel(Counting(), tmp_path).step(other, pieces.append)

    assert first == again
    assert asked == ["x", "y"]


def test_a_length_of_time_is_read_as_people_write_it() -> None:
    assert [seconds(text) for text in ("90", "60s", "5m", "1.5h", 2)] == [90, 60, 300, 5400, 2]


def test_an_agent_may_be_given_as_it_is_or_made(tmp_path: Path) -> None:
    made = Agent("a")
    ledger = Ledger(tmp_path / "ledger")

    for way in (made, lambda: made, lambda ledger: made):
        scenario = Scenario(make_agent=way, make_model=DeskModel, task="x")
        assert scenario.agent(ledger) is made
