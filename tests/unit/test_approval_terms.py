"""What may be demanded of people, who counts as one person, and what sums hold."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent import ask, ask_user, ask_user_within, tool
from fsm_agent.errors import BadAgent, UsageError
from fsm_agent.run.person import identity
from fsm_agent.run.tally import SoFar, numbers_of
from fsm_agent.tools.approval import explain, needs_approval
from fsm_agent.tools.ask_user import is_question
from fsm_agent.tools.rule import Rule, rule_of


async def late(arguments: dict[str, Any]) -> bool:
    return True


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"when": "always"}, "give True, or a function"),
        ({"when": False}, "give True, or a function"),
        ({"when": late}, "decide at once"),
        ({"expires_s": 0}, "positive"),
        ({"expires_s": float("inf")}, "positive"),
        ({"expires_s": float("nan")}, "positive"),
        ({"on_expiry": "approve"}, "without expires_s"),
        ({"expires_s": 1, "on_expiry": "allow"}, "reject, fail_run, approve"),
        ({"quorum": 0}, "1 or more"),
        ({"quorum": True}, "1 or more"),
    ],
)
def test_terms_that_cannot_work_are_refused(terms: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadAgent, match=problem):
        ask(**terms)


def test_silence_is_never_consent_by_default() -> None:
    assert ask(expires_s=1).on_expiry == "reject"
    with pytest.raises(BadAgent, match="nothing to approve"):
        ask_user_within(1, on_expiry="approve")


def test_the_short_forms_mean_rules() -> None:
    def big(arguments: dict[str, Any]) -> bool:
        return True

    assert rule_of("never") is None
    assert rule_of("always") == ask() == Rule()
    assert rule_of(big) == ask(when=big)
    assert [rule.name for rule in (ask(), ask(when=big))] == ["always", "big"]


def test_a_question_with_a_deadline_is_still_a_question() -> None:
    assert is_question(ask_user)
    assert is_question(ask_user_within(60))
    assert ask_user_within(60).name == "ask_user"


@pytest.mark.parametrize(
    ("rule", "sees"),
    [
        (lambda args: True, False),
        (lambda args, so_far: True, True),
        (lambda args, so_far=None: True, True),
        (lambda args, limit=5: True, False),
        (lambda *args: True, False),
        (dict, False),
    ],
)
def test_a_rule_is_given_sums_where_it_takes_them(rule: Any, sees: bool) -> None:
    assert ask(when=rule).sees_so_far is sees


def test_a_dry_run_says_why_a_call_would_be_asked_about() -> None:
    @tool(approval=lambda args, so_far: so_far["cents"] + args["cents"] > 100 and "too much")
    def pay(cents: int, to: str = "mia") -> str:
        return "paid"

    assert not explain(pay, '{"cents": 100}').asks
    asked = explain(pay, '{"cents": 1}', SoFar(2, {"cents": 100}))
    assert (asked.asks, asked.reason, asked.numbers) == (True, "too much", {"cents": 1})
    with pytest.raises(UsageError, match="pay"):
        explain(pay, '{"cents": "much"}')


def test_a_rule_that_fails_asks_and_is_not_sure() -> None:
    @tool(approval=lambda args, so_far: args["nothing"])
    def pay(cents: int) -> str:
        return "paid"

    verdict = needs_approval(pay, {"cents": 1})

    assert (verdict.asks, verdict.is_sure) == (True, False)


@pytest.mark.parametrize(
    "other",
    ["Mia Berg", "mia berg", " MIA\tBERG ", "ＭＩＡ　ＢＥＲＧ", "mi\u200ba berg", "MiaBerg"],
)
def test_one_name_in_many_spellings_is_one_person(other: str) -> None:
    assert identity(other) == identity("Mia Berg")


def test_other_names_are_other_people_and_a_name_of_nothing_is_none() -> None:
    assert identity("mia") != identity("mía") != identity("leo")
    assert identity("straße") == identity("STRASSE")
    assert identity("ışık") == identity("IŞIK") != identity("isik")
    assert identity("İpek") == identity("ipek") == identity("IPEK")
    assert identity(" \u200b\u202e\t") == ""


UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180e\u180f\u200b\u200d\u2060\u2064\u2065\u206a"
    "\u2800\u3164\ufe00\ufe0f\ufeff\uffa0\ufff0\U0001d159\U0001d173\U000e0001\U000e0020\U000e0100\U000e01ef"
    "\U000e0fff"
)


@pytest.mark.parametrize("unseen", UNSEEN, ids=ascii)
def test_a_character_that_nobody_sees_makes_no_other_person(unseen: str) -> None:
    for name in (f"Mi{unseen}a", f"{unseen}MIA", f"mia{unseen * 3}"):
        assert identity(name) == identity("Mia")
    assert identity(f"jose{unseen}\u0301") == identity("José")
    assert identity(unseen) == ""


@given(st.text())
def test_the_identity_of_an_identity_is_itself_in_any_form(name: str) -> None:
    who = identity(name)

    assert identity(who) == who
    assert identity(unicodedata.normalize("NFD", name)) == who
    assert identity(unicodedata.normalize("NFKC", name)) == who


def test_numbers_are_summed_and_nothing_else_is() -> None:
    found = numbers_of({"a": 1, "b": 2.5, "c": True, "d": "3", "e": [4], "f": None, "g": 10**30})

    assert (found["a"], found["b"], set(found)) == (1, 2.5, {"a", "b", "g"})
    assert found["g"] > 10**30
    so_far = SoFar().plus({"a": 1}).plus({"a": 2, "b": 0.5})
    assert (so_far.calls, so_far["a"], so_far["b"], so_far["never"]) == (2, 3, 0.5, 0)


def test_a_negative_number_makes_no_room_for_others() -> None:
    so_far = SoFar().plus({"cents": -1000}).plus({"cents": 700}).plus({"cents": -1})

    assert (so_far.calls, so_far["cents"]) == (3, 700)
