"""The HTTP API: what people see, decide, start and end, against a real server and store."""

from __future__ import annotations

from tests.inbox.conftest import Site


async def test_what_waits_is_listed_with_its_hash_and_decided_once(site: Site) -> None:
    run_id = await site.parked()

    listed = (await site.get("/v1/approvals")).json()
    item = listed["approvals"][0]
    decided = await site.decide(item["id"], verb="approve", decision_id="d1")
    result = await site.runtime.work(run_id, site.desk.agents["desk"])

    assert (listed["total"], item["run_id"], item["tool"]) == (1, run_id, "refund")
    assert (item["state"], item["risk"], item["args"]) == (
        "pending", "high", '{"amount":42,"order":"A7"}',
    )  # fmt: skip
    assert decided.status_code == 200
    assert (decided.json()["verb"], decided.json()["by"]) == ("approve", "mia")
    assert result.answer == "Paid back."
    assert (await site.get("/v1/approvals")).json()["approvals"] == []
