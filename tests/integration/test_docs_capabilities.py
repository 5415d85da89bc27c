"""The code of docs/capabilities.md and of the README's section, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fsm_agent import Agent
from fsm_agent.llm.model import Reply, StepRequest
from tests.conftest import USAGE, Bench, ScriptedModel, finish

ROOT = Path(__file__).parents[2]


def block(page: str, holds: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return next(code for code in blocks if holds in code)


def agent_of(code: str) -> Agent:
    namespace: dict[str, Any] = {"tools": []}
    exec(code, namespace)
    agent = namespace["agent"]
    assert isinstance(agent, Agent)
    return agent


def test_a_capability_of_ones_own_takes_forty_lines() -> None:
    assert len(block("docs/capabilities.md", "# review.py").strip().splitlines()) <= 40


async def test_the_pages_capability_drafts_checks_and_writes_again_boundedly(bench: Bench) -> None:
    agent = agent_of(block("docs/capabilities.md", "# review.py"))

    def answer(request: StepRequest) -> Reply:
        assert request.protocol
        labels = request.protocol.allowed
        if labels == ("FINISH",):
            return finish("the text")
        label = "REDO" if "REDO" in labels else labels[0]
        return Reply(label=label, text=f"words {len(request.messages)}", usage=USAGE)

    runtime = await bench.runtime(model := ScriptedModel(answer))

    result = await runtime.run(agent, "Write about cats.")

    assert (result.status, result.answer) == ("done", "the text")
    assert [r.protocol.allowed for r in model.requests if r.protocol] == [
        *[("DRAFT",), ("PASS", "REDO")] * 2, ("DRAFT",), ("PASS",), ("FINISH",),
    ]  # fmt: skip
    run = await bench.run_of(result.run_id)
    assert run.phase == "final"


async def test_the_pages_typed_agent_answers_with_a_value(bench: Bench) -> None:
    agent = agent_of(block("docs/capabilities.md", "class Place"))
    runtime = await bench.runtime(ScriptedModel(lambda r: finish('{"city": "Bern", "people": 1}')))

    result = await runtime.run(agent, "Which city?")

    assert (result.value.city, result.value.people) == ("Bern", 1)


def test_the_readmes_agents_can_be_made() -> None:
    namespace: dict[str, Any] = {"tools": []}

    exec(block("README.md", "import plan, research, solve"), namespace)

    assert namespace["careful"].registry.get("plan").approval == "always"
    assert namespace["helper"].registry.get("plan").approval == "never"
