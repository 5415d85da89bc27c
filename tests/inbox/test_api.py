"""The HTTP API: what people see, decide, start and end, against a real server and store.

The numbers are those of the acceptance table.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest
from structlog.testing import capture_logs

from checkpoints import open_store
from checkpoints.model import RunId
from checkpoints.settings import StoreSettings
from checkpoints.testing.servers import start_redis
from fsm_agent import Agent, Runtime, tool
from fsm_agent import ask as asks_on_terms
from fsm_agent.errors import UsageError
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.approvals import asked_by
from fsm_agent.inbox.auth import StaticUsers
from fsm_agent.inbox.links import make_link
from fsm_agent.inbox.users import User, Users
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run.delta import Ruled
from fsm_agent.run.record import Run
from tests.conftest import ScriptedModel, ask, finish, turns
from tests.inbox.conftest import (
    KEYS,
    HandClock,
    Opener,
    Site,
    desk_agent,
    note,
    paying_back,
)


async def rulings(site: Site, run_id: str) -> list[Ruled]:
    """Decisions that the run took up."""
    events = await site.runtime.history(run_id)
    return [d for event in events for d in event.record.deltas if isinstance(d, Ruled)]


async def opened(site: Site, run_id: str) -> str:
    """The id of the one request of a run."""
    (request,) = await site.runtime.requests(run_id)
    return f"{run_id}.{request.ask_id}"


# -- looking and deciding -------------------------------------------------------------------------


async def test_what_waits_is_listed_with_its_hash_and_decided(site: Site) -> None:
    run_id = await site.parked()

    listed = (await site.get("/v1/approvals")).json()
    item = listed["approvals"][0]
    decided = await site.decide(item["id"], verb="approve", decision_id="d1")
    result = await site.runtime.work(run_id, desk_agent())

    assert (listed["total"], item["run_id"], item["tool"]) == (1, run_id, "refund")
    assert (item["state"], item["risk"], item["args"]) == (
        "pending", "high", '{"amount":42,"order":"A7"}',
    )  # fmt: skip
    assert decided.status_code == 200
    assert (decided.json()["verb"], decided.json()["by"]) == ("approve", "mia")
    assert result.answer == "Paid back."
    assert (await site.get("/v1/approvals")).json()["approvals"] == []


async def test_the_detail_says_what_helps_to_decide(site: Site) -> None:
    run_id = await site.parked(requester="kim")

    answer = await site.get(f"/v1/approvals/{await opened(site, run_id)}")
    again = await site.get(
        f"/v1/approvals/{await opened(site, run_id)}", **{"If-None-Match": answer.headers["etag"]}
    )

    told = answer.json()
    assert (told["requester"], told["verdict"]) == ("kim", "refund always needs approval")
    assert told["schema"]["properties"]["amount"] == {"type": "integer"}
    assert told["steps"][-1]["text"].startswith("refund needs a person's approval")
    assert told["verbs"] == ["approve", "reject", "edit", "answer"]
    assert again.status_code == 304


async def test_the_hash_of_a_run_below_decides_nothing_under_the_id_of_the_run_above(
    open_site: Opener,
) -> None:
    helper = Agent("helper", "Help.", tools=[note])
    boss = desk_agent(helper.as_tool())

    def reply(request: StepRequest) -> Reply:
        if request.instructions.startswith("Help."):
            return ask(("note", {"text": "it"}))
        return ask(("refund", {"order": "A7", "amount": 42}), ("helper", {"task": "Note it."}))

    site: Site = await open_site(ScriptedModel(reply), agents={"desk": boss})
    run_id = await site.runtime.start(boss, "Go.")
    await site.runtime.work(run_id, boss)
    own, below = sorted(
        await site.runtime.requests(run_id), key=lambda request: request.run_id != run_id
    )
    assert own.ask_id == below.ask_id

    crossed = await site.decide(f"{run_id}.a4-0", verb="approve", args_sha256=below.digest)
    said = await site.post(f"/v1/approvals/{run_id}.a4-0/comment", {"text": "Which?"})
    claimed = await site.post(f"/v1/approvals/{below.run_id}.a4-0/claim")
    decided = await site.decide(f"{run_id}.a4-0", verb="reject")

    assert (crossed.status_code, crossed.json()["type"]) == (412, "urn:fsm-agent:stale")
    assert [each.status_code for each in (said, claimed, decided)] == [200, 200, 200]
    (left,) = await site.runtime.requests(run_id)
    assert (left.run_id, left.claimed_by, left.comments) == (below.run_id, "mia", ())


async def test_edited_arguments_are_checked_against_the_tool_and_run(site: Site) -> None:
    run_id = await site.parked()
    approval = await opened(site, run_id)

    bad = await site.decide(approval, verb="edit", args={"order": "A7", "amount": "much"})
    nan = await site.decide(approval, verb="edit", args=None)
    good = await site.decide(approval, verb="edit", args={"order": "A7", "amount": 10})
    await site.runtime.work(run_id, desk_agent())

    assert (bad.status_code, nan.status_code, good.status_code) == (422, 422, 200)
    assert "amount" in bad.json()["detail"]
    run = await site.bench.run_of(run_id)
    assert "paid 10 for A7" in str(run.messages)


async def test_a_body_that_says_a_thing_twice_decides_nothing(site: Site) -> None:
    run_id = await site.parked()
    approval = await opened(site, run_id)
    seen = (await site.get(f"/v1/approvals/{approval}")).json()["args_sha256"]
    args = '{"order":"A7","amount":1,"amount":100}'

    answer = await site.client.post(
        f"/v1/approvals/{approval}/decision",
        content=f'{{"verb":"edit","args_sha256":"{seen}","args":{args}}}',
        headers=site.as_("mia") | {"content-type": "application/json"},
    )

    assert (answer.status_code, answer.json()["type"]) == (422, "urn:fsm-agent:bad-body")
    assert "'amount' stands twice" in answer.json()["detail"]
    assert [request.ruling for request in await site.runtime.requests(run_id)] == [None]


async def test_pages_of_the_list_have_a_stable_order_and_no_row_twice(site: Site) -> None:
    for number in range(5):
        await site.parked(run_id=f"r{number}")

    seen: list[str] = []
    cursor = ""
    while cursor is not None:
        page = (await site.get(f"/v1/approvals?limit=2&cursor={cursor}")).json()
        seen += [item["run_id"] for item in page["approvals"]]
        cursor = page["cursor"]

    assert seen == [f"r{number}" for number in range(5)]


@pytest.mark.parametrize(
    "limit", ["0", "9999", "a", "", "-1", "000001999", "000001" + "9" * 5000, "\u0661"]
)
@pytest.mark.parametrize("path", ["/v1/runs", "/v1/approvals"])
async def test_a_limit_that_makes_no_sense_is_refused(site: Site, path: str, limit: str) -> None:
    assert (await site.get(f"{path}?limit={limit}")).status_code == 422


@pytest.mark.parametrize("query", ["state=x", "cursor=!!", "cursor=e30"])
async def test_a_query_that_makes_no_sense_is_refused(site: Site, query: str) -> None:
    assert (await site.get(f"/v1/approvals?{query}")).status_code == 422


async def test_a_claim_is_shown_to_others_who_may_still_decide(site: Site) -> None:
    approval = await opened(site, await site.parked())

    claimed = await site.post(f"/v1/approvals/{approval}/claim", who="leo")
    second = await site.post(f"/v1/approvals/{approval}/claim", who="mia")
    mine = (await site.get("/v1/approvals?assignee=me", "leo")).json()["total"]
    others = (await site.get("/v1/approvals?assignee=me", "mia")).json()["total"]
    commented = await site.post(
        f"/v1/approvals/{approval}/comment", {"text": "Is Kim informed?"}, "mia"
    )
    released = await site.post(f"/v1/approvals/{approval}/release", who="leo")
    decided = await site.decide(approval, verb="reject", reason="no")

    assert (claimed.json()["claimed_by"], mine, others) == ("leo", 1, 0)
    assert (second.status_code, second.json()["by"]) == (409, "leo")
    assert commented.json()["comments"][0]["text"] == "Is Kim informed?"
    assert (released.json()["claimed_by"], decided.status_code) == (None, 200)


# -- 62 to 68: decisions --------------------------------------------------------------------------


async def test_62_a_double_click_is_one_decision_with_the_same_answer(site: Site) -> None:
    run_id = await site.parked()
    approval = await opened(site, run_id)
    body = {"verb": "approve", "decision_id": "click", "reason": "fine"}

    first, second = await asyncio.gather(*(site.decide(approval, **body) for _ in range(2)))
    await site.runtime.work(run_id, desk_agent())
    later = await site.decide(approval, **body)

    assert [a.status_code for a in (first, second, later)] == [200, 200, 200]
    assert first.content == second.content == later.content
    assert len(await rulings(site, run_id)) == 1


async def test_62_somebody_else_cannot_borrow_a_decision_id(site: Site) -> None:
    approval = await opened(site, await site.parked())

    await site.decide(approval, "mia", verb="approve", decision_id="same")
    second = await site.decide(approval, "leo", verb="approve", decision_id="same")

    assert (second.status_code, second.json()["by"]) == (409, "mia")


async def test_63_of_two_approvers_at_once_one_wins_and_the_other_is_told_who(
    open_site: Opener,
) -> None:
    """Races through two servers on one store; tests/crash runs a thousand on the script itself."""
    site: Site = await open_site()
    other: Site = await open_site(runtime=await site.bench.runtime(paying_back()))

    for number in range(40):
        approval = await opened(site, await site.parked(run_id=f"race{number}"))
        digest = (await site.get(f"/v1/approvals/{approval}")).json()["args_sha256"]
        path, body = f"/v1/approvals/{approval}/decision", {"args_sha256": digest}
        answers = await asyncio.gather(
            site.post(path, body | {"verb": "approve"}, "mia"),
            other.post(path, body | {"verb": "reject", "reason": "no"}, "leo"),
        )
        won, lost = sorted(answers, key=lambda answer: answer.status_code)
        assert (won.status_code, lost.status_code) == (200, 409)
        assert (lost.json()["by"], lost.json()["at"]) == (won.json()["by"], won.json()["at"])


@tool(approval=asks_on_terms(expires_s=0.3))
def brief(x: int) -> str:
    """Wait shortly for a person."""
    return "ran"


async def test_64_approval_and_expiry_at_once_have_one_outcome_everywhere(
    open_site: Opener,
) -> None:
    agent = Agent("desk", "Work.", tools=[brief])
    model = turns(ask(("brief", {"x": 1})), finish("over"))
    site: Site = await open_site(model, agents={"desk": agent})
    told, kept = [], []

    for number in range(8):
        run_id = await site.runtime.start(agent, "go", run_id=f"late{number}")
        await site.runtime.work(run_id, agent)
        (request,) = await site.runtime.requests(run_id)
        # Around the deadline, by the store's clock: some before it, some after.
        while await site.runtime.store.now_ms() < request.expires_ms - 12 + 4 * number:
            await asyncio.sleep(0.001)
        answer = await site.decide(f"{run_id}.{request.ask_id}", verb="approve")
        while not (result := await site.runtime.work(run_id, agent)).answer:
            await asyncio.sleep(0.005)
        told.append(answer.status_code)
        kept.append((await rulings(site, run_id))[0].verb)
        assert result.status == "done"

    assert set(told) <= {200, 410}
    assert ["approve" if code == 200 else "expire" for code in told] == kept


async def test_65_a_stale_version_or_a_wrong_hash_records_nothing(site: Site) -> None:
    approval = await opened(site, await site.parked())
    seen = await site.get(f"/v1/approvals/{approval}")
    path = f"/v1/approvals/{approval}/decision"
    before = await site.digest()

    wrong = await site.post(path, {"verb": "approve", "args_sha256": "0" * 64})
    blind = await site.post(path, {"verb": "approve"})
    assert await site.digest() == before
    await site.post(f"/v1/approvals/{approval}/comment", {"text": "Wait!"}, "leo")
    stale = await site.post(path, {"verb": "approve"}, If_Match=seen.headers["etag"])
    fresh = await site.get(f"/v1/approvals/{approval}")
    good = await site.post(path, {"verb": "approve"}, If_Match=fresh.headers["etag"])

    assert [a.status_code for a in (wrong, blind, stale, good)] == [412, 428, 412, 200]
    assert stale.json()["version"] == fresh.headers["etag"]
    assert wrong.json()["args_sha256"] == seen.json()["args_sha256"]


@tool(approval=asks_on_terms(not_requester=True))
def guarded_tool(x: int) -> str:
    """Needs somebody else."""
    return "ran"


@pytest.mark.parametrize("requester", ["mia", "MIA", " Mia", "mia.miller@example.org", "MiA\u200b"])
async def test_66_a_requester_cannot_approve_under_any_of_their_names(
    open_site: Opener, tmp_path: Path, requester: str
) -> None:
    agent = Agent("desk", "Work.", tools=[guarded_tool])
    model = turns(ask(("guarded_tool", {"x": 1})), finish())
    site: Site = await open_site(model, agents={"desk": agent})
    give_mia_an_alias(site)
    run_id = await site.runtime.start(agent, "go", requester=requester)
    await site.runtime.work(run_id, agent)
    approval = await opened(site, run_id)
    before = await site.digest()

    own = await site.decide(approval, "mia", verb="approve")
    edited = await site.decide(approval, "mia", verb="edit", args={"x": 2})
    links = [await link_to(site, run_id, audience=name) for name in ("mia", ALIAS.upper())]
    pressed = [await site.client.post(link, **form(verb="approve")) for link in links]  # type: ignore[arg-type]
    assert await site.digest() == before
    other = await site.decide(approval, "leo", verb="approve")

    assert (own.status_code, edited.status_code, other.status_code) == (403, 403, 200)
    assert [each.status_code for each in pressed] == [403, 403]


ALIAS = "mia.miller@example.org"


def give_mia_an_alias(site: Site) -> None:
    users = site.desk.auth.users._users  # type: ignore[attr-defined]
    mia: User = users["mia"]
    users["mia"] = User(name="mia", token_sha256=mia.token_sha256, aliases=(ALIAS,))


async def test_67_a_decision_before_anybody_works_again_is_kept_and_applied(site: Site) -> None:
    run_id = await site.parked()
    approval = await opened(site, run_id)

    await site.decide(approval, verb="reject", reason="not today")
    seen = (await site.get(f"/v1/approvals/{approval}")).json()
    await site.runtime.work(run_id, desk_agent())
    after = (await site.get(f"/v1/approvals/{approval}")).json()

    assert (seen["state"], seen["applied_seq"]) == ("rejected", None)
    assert after["applied_seq"] > 0
    assert after["result"]["status"] == "denied"


async def test_68_a_decision_after_the_end_has_no_effect(site: Site) -> None:
    run_id = await site.parked()
    approval = await opened(site, run_id)
    seen = (await site.get(f"/v1/approvals/{approval}")).json()
    await site.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"}, "root")
    await site.runtime.work(run_id, desk_agent())
    before = await site.digest()

    body = {"verb": "approve", "args_sha256": seen["args_sha256"]}
    late = await site.post(f"/v1/approvals/{approval}/decision", body)

    assert late.status_code in (404, 409, 410)
    assert await site.digest() == before


@tool(approval=asks_on_terms(quorum=2))
def pair() -> str:
    """Needs two people."""
    return "ran"


async def test_a_vote_of_several_says_how_many_are_missing(open_site: Opener) -> None:
    agent = Agent("desk", "Work.", tools=[pair])
    site: Site = await open_site(turns(ask(("pair", {})), finish()), agents={"desk": agent})
    run_id = await site.runtime.start(agent, "go")
    await site.runtime.work(run_id, agent)
    approval = await opened(site, run_id)

    first = await site.decide(approval, "mia", verb="approve", decision_id="v")
    repeat = await site.decide(approval, "mia", verb="approve", decision_id="v")
    again = await site.decide(approval, "mia", verb="approve", decision_id="w")
    second = await site.decide(approval, "leo", verb="approve")

    assert (first.json()["missing"], second.json()["missing"]) == (1, 0)
    assert first.content == repeat.content
    assert (again.status_code, again.json()["by"]) == (409, "mia")


async def test_one_person_is_one_vote_also_by_a_link_for_another_of_their_names(
    open_site: Opener,
) -> None:
    agent = Agent("desk", "Work.", tools=[pair])
    site: Site = await open_site(turns(ask(("pair", {})), finish()), agents={"desk": agent})
    give_mia_an_alias(site)
    run_id = await site.runtime.start(agent, "go")
    await site.runtime.work(run_id, agent)
    first = await site.decide(await opened(site, run_id), "mia", verb="approve")

    link = await link_to(site, run_id, audience=ALIAS)
    second = await site.client.post(link, **form(verb="approve"))  # type: ignore[arg-type]

    assert (first.status_code, second.status_code) == (200, 409)
    (request,) = await site.runtime.requests(run_id)
    assert [vote.by for vote in request.votes] == ["mia"]


@pytest.mark.parametrize("first", ["link", "command line"])
async def test_one_person_with_two_names_is_not_two_people(open_site: Opener, first: str) -> None:
    agent = Agent("desk", "Work.", tools=[pair])
    site: Site = await open_site(turns(ask(("pair", {})), finish()), agents={"desk": agent})
    users = site.desk.auth.users._users  # type: ignore[attr-defined]
    users["mia"] = msgspec.structs.replace(users["mia"], aliases=("m.miller",))
    run_id = await site.runtime.start(agent, "go")
    await site.runtime.work(run_id, agent)
    approval = await opened(site, run_id)

    if first == "link":
        link = await link_to(site, run_id, audience="M.Miller")
        await site.client.post(link, **form(verb="approve"))  # type: ignore[arg-type]
    else:
        await site.runtime.decide(run_id, approval.partition(".")[2], "approve", by="m.miller")
    again = await site.decide(approval, "mia", verb="approve")

    assert again.status_code in (403, 409)
    assert (await site.get(f"/v1/approvals/{approval}")).json()["missing"] == 1


def test_a_name_that_two_people_have_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    people = [
        {"name": "mia", "token_sha256": ""},
        {"name": "leo", "token_sha256": "", "aliases": ["MIA"]},
    ]
    with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
        out.write(msgspec.json.encode({"users": people}))

    with pytest.raises(UsageError, match="two users share a name"):
        Users(file)


# -- 69, 70: links --------------------------------------------------------------------------------


async def link_to(site: Site, run_id: str, **options: object) -> str:
    (request,) = await site.runtime.requests(run_id)
    settings = {"audience": "mia", "now_s": site.desk.clock.wall_ms() / 1000} | options
    return "/a/" + make_link(KEYS, request, **settings)  # type: ignore[arg-type]


def form(**fields: str) -> dict[str, object]:
    return {
        "content": urlencode(fields),
        "headers": {"Content-Type": "application/x-www-form-urlencoded"},
    }


async def test_69_a_scanner_that_opens_a_link_changes_nothing(site: Site) -> None:
    link = await link_to(site, await site.parked())
    before = await site.digest()

    got = await site.client.get(link)
    head = await site.client.head(link)
    fetched = await site.client.get(
        link, headers={"Sec-Purpose": "prefetch", "Purpose": "prefetch"}
    )
    probed = await site.client.options(link)

    assert (got.status_code, head.status_code, fetched.status_code) == (200, 200, 200)
    assert probed.status_code == 405
    assert "Approve and run" in got.text
    assert await site.digest() == before


async def test_69_the_button_of_a_link_decides_as_its_audience(site: Site) -> None:
    run_id = await site.parked()
    link = await link_to(site, run_id)

    pressed = await site.client.post(link, **form(verb="approve"))  # type: ignore[arg-type]
    await site.runtime.work(run_id, desk_agent())

    (ruled,) = await rulings(site, run_id)
    assert pressed.status_code == 200
    assert (ruled.by, ruled.channel, ruled.auth) == ("mia", "link", "signed_link")  # type: ignore[attr-defined]


async def test_an_empty_answer_answers_nothing(site: Site) -> None:
    run_id = await site.parked()
    approval, link = await opened(site, run_id), await link_to(site, run_id)
    before = await site.digest()

    pressed = await site.client.post(link, **form(verb="answer", answer=" "))  # type: ignore[arg-type]
    posted = await site.decide(approval, verb="answer", answer="")

    assert (pressed.status_code, posted.status_code) == (422, 422)
    assert await site.digest() == before


async def test_70_a_link_that_was_used_is_refused_and_logged(site: Site) -> None:
    run_id = await site.parked()
    link = await link_to(site, run_id)
    await site.client.post(link, **form(verb="approve"))  # type: ignore[arg-type]
    before = await site.digest()

    with capture_logs() as logs:
        again = await site.client.post(link, **form(verb="reject", reason="no"))  # type: ignore[arg-type]

    assert again.status_code == 409
    assert "used" in again.text
    assert [each["event"] for each in logs] == ["inbox.link_refused"]
    assert await site.digest() == before


async def test_70_a_link_that_was_tampered_with_is_refused_and_logged(site: Site) -> None:
    link = await link_to(site, await site.parked())
    body, mac = link.removeprefix("/a/").split(".")
    forged = [
        f"/a/{body[:-1]}{'A' if body[-1] != 'A' else 'B'}.{mac}",
        f"/a/{body}.{mac[:-2]}",
        f"/a/{body}.{mac}A",
        f"/a/{body}={'.'}{mac}",
        f"/a/{body}",
        f"/a/.{mac}",
        "/a/" + "A" * 5000,
        "/a/%00",
    ]
    before = await site.digest()

    with capture_logs() as logs:
        answers = [await site.client.post(each, **form(verb="approve")) for each in forged]  # type: ignore[arg-type]

    assert {answer.status_code for answer in answers} == {404}
    assert [each["event"] for each in logs] == ["inbox.link_refused"] * len(forged)
    assert await site.digest() == before


async def test_70_a_link_runs_out(open_site: Opener) -> None:
    clock = HandClock()
    site: Site = await open_site(clock=clock)
    link = await link_to(site, await site.parked(), expires_s=3600)
    clock.ms += 3600 * 1000

    late = await site.client.post(link, **form(verb="approve"))  # type: ignore[arg-type]

    assert (late.status_code, (await site.client.get(link)).status_code) == (410, 410)


async def test_70_a_link_is_good_for_its_verbs_and_its_request_only(site: Site) -> None:
    run_id, other = await site.parked(run_id="one"), await site.parked(run_id="two")
    link = await link_to(site, run_id, verbs=["reject"])

    wrong = await site.client.post(link, **form(verb="approve"))  # type: ignore[arg-type]
    right = await site.client.post(link, **form(verb="reject", reason="no"))  # type: ignore[arg-type]

    assert (wrong.status_code, right.status_code) == (403, 200)
    assert len(await site.runtime.requests(other)) == 1


async def test_70_a_link_does_not_count_for_what_was_changed_since(site: Site) -> None:
    run_id = await site.parked()
    (request,) = await site.runtime.requests(run_id)
    from msgspec.structs import replace

    link = "/a/" + make_link(
        KEYS, replace(request, digest="0" * 64), audience="mia",
        now_s=site.desk.clock.wall_ms() / 1000,
    )  # fmt: skip

    shown = await site.client.get(link)
    pressed = await site.client.post(link, **form(verb="approve"))  # type: ignore[arg-type]

    assert (shown.status_code, pressed.status_code) == (412, 412)


# -- 71: Slack ------------------------------------------------------------------------------------

SECRET = "slack signing secret"


@pytest.fixture
async def slack_site(open_site: Opener) -> Site:
    site: Site = await open_site(slack_secret=SECRET, clock=HandClock())
    auth = site.desk.auth
    assert isinstance(auth, StaticUsers)
    users: Users = auth.users
    mia = users._users["mia"]
    users._users["mia"] = User(name="mia", token_sha256=mia.token_sha256, slack="U1")
    return site


def button(site: Site, token: str, *, user: str = "U1", verb: str = "approve") -> bytes:
    payload = {
        "type": "block_actions",
        "user": {"id": user, "username": "whoever"},
        "actions": [{"action_id": f"fsm:{verb}", "value": token, "action_ts": "1700000000.1"}],
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


def signed(site: Site, raw: bytes, *, age_s: int = 0, secret: str = SECRET) -> dict[str, str]:
    stamp = str(site.desk.clock.wall_ms() // 1000 - age_s)
    mac = hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + raw, hashlib.sha256)
    return {
        "X-Slack-Request-Timestamp": stamp,
        "X-Slack-Signature": f"v0={mac.hexdigest()}",
        "Content-Type": "application/x-www-form-urlencoded",
    }


async def test_71_a_button_that_slack_sends_three_times_is_one_decision(slack_site: Site) -> None:
    site = slack_site
    run_id = await site.parked()
    raw = button(site, (await link_to(site, run_id)).removeprefix("/a/"))

    answers = [
        await site.client.post("/hooks/slack", content=raw, headers=signed(site, raw))
        for _ in range(3)
    ]
    await site.runtime.work(run_id, desk_agent())

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert {answer.content for answer in answers} == {answers[0].content}
    (ruled,) = await rulings(site, run_id)
    assert (ruled.by, ruled.channel) == ("mia", "slack")  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", ["secret", "old", "future", "body", "none", "words"])
async def test_71_a_button_that_slack_did_not_send_just_now_is_refused(
    slack_site: Site, case: str
) -> None:
    site = slack_site
    run_id = await site.parked()
    raw = button(site, (await link_to(site, run_id)).removeprefix("/a/"))
    headers = {
        "secret": signed(site, raw, secret="another"),
        "old": signed(site, raw, age_s=301),
        "future": signed(site, raw, age_s=-301),
        "body": signed(site, raw + b"x"),
        "none": {"Content-Type": "application/x-www-form-urlencoded"},
        "words": signed(site, raw) | {"X-Slack-Request-Timestamp": "now"},
    }[case]
    before = await site.digest()

    answer = await site.client.post("/hooks/slack", content=raw, headers=headers)

    assert answer.status_code == 401
    assert await site.digest() == before


async def test_71_a_stranger_in_slack_decides_nothing(slack_site: Site) -> None:
    site = slack_site
    run_id = await site.parked()
    token = (await link_to(site, run_id)).removeprefix("/a/")
    for raw in (button(site, token, user="U9"), button(site, "forged.token")):
        answer = await site.client.post("/hooks/slack", content=raw, headers=signed(site, raw))
        assert answer.status_code == 200  # Slack shows the words
        assert len(await site.runtime.requests(run_id)) == 1


# -- runs -----------------------------------------------------------------------------------------


async def test_a_run_is_started_once_and_asked_for_by_whoever_is_logged_in(site: Site) -> None:
    body = {"agent": "desk", "task": "refund it", "run_id": "web-1"}

    first = await site.post("/v1/runs", body, "root")
    again = await site.post("/v1/runs", body, "root")
    other = await site.post("/v1/runs", body | {"task": "something else"}, "root")
    forged = await site.post("/v1/runs", body | {"requester": "mia"}, "root")
    unknown = await site.post("/v1/runs", body | {"agent": "dask"}, "root")
    endless = body | {"run_id": "web-2", "limits": {"turns": 10**30}}
    huge = await site.post("/v1/runs", endless, "root")
    approver = await site.post("/v1/runs", body, "mia")

    codes = [a.status_code for a in (first, again, other, forged, unknown, huge, approver)]
    assert "the role 'approver', and this takes 'operator'" in approver.json()["detail"]
    assert codes == [201, 201, 409, 422, 422, 422, 403]
    assert "Did you mean 'desk'?" in unknown.json()["detail"]
    run: Run = await site.bench.run_of("web-1")
    assert (run.requester, run.task, run.seq) == ("root", "refund it", 1)


async def test_a_run_is_listed_shown_told_something_woken_and_ended(site: Site) -> None:
    run_id = await site.parked()

    listed = (await site.get("/v1/runs?status=waiting")).json()["runs"]
    said = await site.post(f"/v1/runs/{run_id}/say", {"text": "Hurry."}, "root")
    woken = await site.post(f"/v1/runs/{run_id}/resume", {}, "root")
    due = await site.runtime.store.due()
    ended = await site.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"}, "root")
    twice = await site.post(f"/v1/runs/{run_id}/cancel", {}, "root")
    await site.runtime.work(run_id, desk_agent())
    shown = await site.get(f"/v1/runs/{run_id}")
    late = await site.post(f"/v1/runs/{run_id}/resume", {}, "root")

    assert [each["run_id"] for each in listed] == [run_id]
    assert (said.status_code, woken.status_code, ended.status_code) == (202, 202, 202)
    assert due == [RunId(run_id)]
    assert (ended.json()["is_new"], twice.json()["is_new"]) == (True, False)
    assert (shown.json()["status"], shown.json()["reason"]) == ("error", "cancelled")
    assert "enough" in shown.json()["message"]
    assert late.status_code == 410
    cached = await site.get(f"/v1/runs/{run_id}", **{"If-None-Match": shown.headers["etag"]})
    assert cached.status_code == 304


async def test_the_openapi_document_names_every_route_of_the_api(site: Site) -> None:
    from fsm_agent.inbox.app import routes

    document = (await site.get("/v1/openapi.json", None)).json()

    told = {(path, method) for path, ops in document["paths"].items() for method in ops}
    real = {
        (route.path, method.lower())
        for route in routes()
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
        if route.path.startswith("/v1/") and ":path" not in route.path  # type: ignore[attr-defined]
    }
    assert told == real - {("/v1/openapi.json", "get")}
    assert document["components"]["schemas"]["DecisionBody"]["required"] == ["verb"]
    bodies = {path: ops["post"]["requestBody"] for path, ops in document["paths"].items()
              if "requestBody" in ops.get("post", {})}  # fmt: skip
    assert bodies["/v1/approvals/{approval_id}/decision"]["required"] is True
    assert bodies["/v1/runs/{run_id}/cancel"]["required"] is False


async def test_no_body_is_one_that_says_nothing(site: Site) -> None:
    run_id = await site.parked()
    decision = f"/v1/approvals/{await opened(site, run_id)}/decision"

    nothing = await site.client.post(f"/v1/runs/{run_id}/cancel", headers=site.as_("root"))
    too_little = await site.client.post(decision, headers=site.as_("mia"))
    no_json = await site.client.post(decision, content="{}", headers=site.as_("mia"))

    codes = [answer.status_code for answer in (nothing, too_little, no_json)]
    assert codes == [202, 422, 415]


async def test_a_client_that_leaves_before_it_has_said_all_is_no_error(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await site.parked()
    where = urlsplit(site.url)
    head = (
        f"POST /v1/runs/{run_id}/cancel HTTP/1.1\r\nHost: {where.netloc}\r\n"
        f"Authorization: Bearer {site.tokens['root']}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    )
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(head.encode())
    writer.write_eof()
    assert await reader.read() == b""
    while any("run_asgi" in repr(task) for task in asyncio.all_tasks()):
        await asyncio.sleep(0.01)
    writer.close()

    assert "Traceback" not in caplog.text
    assert not (await site.bench.run_of(run_id)).is_over


async def test_a_store_that_is_away_is_said_so(open_site: Opener, tmp_path: Path) -> None:
    process = start_redis(tmp_path / "redis.sock", tmp_path)
    try:
        settings = StoreSettings(answer_s=0.3, restart_s=0.3)
        store = await open_store(f"unix://{tmp_path / 'redis.sock'}", settings=settings)
        async with Runtime.open(store, model=paying_back()) as runtime:
            site: Site = await open_site(runtime=runtime)
            approval = await opened(site, await site.parked())
            process.kill()
            process.wait()
            listed = await site.get("/v1/runs")
            decided = await site.post(
                f"/v1/approvals/{approval}/decision", {"verb": "approve", "args_sha256": "0"}
            )
            page = await site.get("/inbox", Accept="text/html")
            healthy = await site.get("/healthz", None)
        await store.aclose()
    finally:
        process.kill()
        process.wait()

    assert (listed.status_code, decided.status_code, page.status_code) == (503, 503, 503)
    assert "nothing was recorded" in decided.json()["detail"]
    assert healthy.status_code == 200


async def test_runs_are_listed_by_agent_tenant_and_words(site: Site) -> None:
    for run_id, name, tenant in (
        ("r1", "desk", "acme"),
        ("r2", "desk", ""),
        ("r3", "shop", "acme"),
    ):
        agent = Agent(name, "Work.")
        await site.runtime.start(agent, f"Look at {run_id.upper()}", run_id=run_id, tenant=tenant)

    async def listed(query: str, who: str = "mia") -> list[str]:
        runs = (await site.get(f"/v1/runs?{query}", who)).json()["runs"]
        return sorted(run["run_id"] for run in runs)

    assert await listed("agent=desk") == ["r1", "r2"]
    assert await listed("tenant=acme") == ["r1", "r3"]
    assert await listed("tenant=acme&agent=desk") == ["r1"]
    assert await listed("q=look+at+r3") == ["r3"]
    assert await listed("q=nowhere") == []
    assert await listed("tenant=acme", "zeta-zoe") == []


async def test_a_fork_is_made_once_and_not_where_a_model_call_is_under_way(site: Site) -> None:
    run_id = await site.parked(run_id="origin", tenant="acme")
    path, body = f"/v1/runs/{run_id}/fork", {"at": 4, "run_id": "other"}

    first = await site.post(path, body, "acme-ann")
    again = await site.post(path, body, "acme-ann")
    taken = await site.post(path, {"at": 1, "run_id": "other"}, "acme-ann")
    unfit = await site.post(path, {"at": 3}, "acme-ann")
    hidden = await site.post(path, body, "zeta-zoe")

    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.json()["is_new"], again.json()["is_new"]) == (True, False)
    assert (taken.status_code, unfit.status_code, hidden.status_code) == (422, 422, 404)
    assert "a model call is under way there. Possible: 1" in unfit.json()["detail"]
    told = (await site.get("/v1/runs/other", "acme-ann")).json()
    assert (told["tenant"], told["status"]) == ("acme", "ready")  # of the origin's tenant
    assert (await site.get("/v1/runs/other", "zeta-zoe")).status_code == 404
    assert len(await site.runtime.runs()) == 2


@tool(approval=asks_on_terms(to="support", escalate={600: "LEADS"}))
def close_account(customer: str) -> str:
    """Close an account."""
    return "closed"


async def test_requests_are_found_by_whom_they_are_asked_of_by_now(open_site: Opener) -> None:
    agent = Agent("desk", "Work.", tools=[close_account])
    clock = HandClock()
    site: Site = await open_site(
        turns(ask(("close_account", {"customer": "Robin"})), finish()),
        agents={"desk": agent},
        clock=clock,
    )
    run_id = await site.runtime.start(agent, "go")
    await site.runtime.work(run_id, agent)
    (request,) = await site.runtime.requests(run_id)

    async def asked(who: str) -> int:
        return int((await site.get("/v1/approvals?asked=me", who)).json()["total"])

    async def page(who: str) -> str:
        return (await site.get("/inbox?show=asked", who, Accept="text/html")).text

    clock.ms = request.opened_ms + 599_000
    early = [await asked(who) for who in ("mia", "leo", "root")]
    early_page = await page("mia")
    clock.ms = request.opened_ms + 600_000
    sent = {"name": "lea", "auth": "test"}
    late_page = await page("leo")
    detail = await site.get(f"/runs/{run_id}/asks/{request.ask_id}", Accept="text/html")
    told = (await site.get(f"/v1/approvals/{run_id}.{request.ask_id}")).json()

    assert early == [1, 1, 0]
    assert "asked: support" in early_page
    assert "LEADS" not in early_page
    assert "asked: support, since <time" in late_page
    assert "LEADS" in late_page
    assert "asked: support, since <time" in detail.text
    assert not Actor(**sent, groups=("ops",)).is_among(asked_by(request, clock.ms))
    assert Actor(**sent, groups=("Leads ",)).is_among(asked_by(request, clock.ms))
    assert not Actor(**sent, groups=("leads",)).is_among(asked_by(request, clock.ms - 1))
    assert (told["to"], told["escalation"]) == (
        "support", [{"to": "LEADS", "at": request.opened_ms + 600_000}],
    )  # fmt: skip
    assert "Nothing is asked of you by name" in await page("root")
    assert (await site.get("/v1/approvals?asked=leo")).status_code == 422
