"""What a request holds for the server's sake: images, constraints, roles, Azure's address."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai._models import FinalRequestOptions

from fsm_agent.errors import MissingSetting
from fsm_agent.labels.protocol import DEFAULT
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.connections import is_azure_classic, split_query
from fsm_agent.llm.model import StepRequest, ToolSpec
from fsm_agent.llm.profiles import Profile
from fsm_agent.llm.request import RequestBuilder, alternating
from fsm_agent.run.content import (
    AssistantMessage,
    Call,
    IllustratedMessage,
    Image,
    Message,
    NoteMessage,
    ToolMessage,
    UserMessage,
)
from fsm_agent.testing.model_server import ModelServer
from fsm_agent.testing.script import HttpError, Reply, Request

TOOLS = (ToolSpec("look", "Look.", {"type": "object", "properties": {}}),)


def step_of(*messages: Message, **fields: Any) -> StepRequest:
    given: dict[str, Any] = {"instructions": "Be brief.", "protocol": DEFAULT.without_tools()}
    return StepRequest(messages=messages or (UserMessage("hi"),), **(given | fields))


async def sent(model_options: dict[str, Any], request: StepRequest, *refusals: Any) -> list[Any]:
    """The bodies of the requests that one step takes."""
    left = list(refusals)

    async def answer(_: Request) -> Any:
        return left.pop(0) if left else Reply("ok", label="FINISH")

    async with ModelServer(answer) as server:
        model = OpenAIModel("m", server.base_url, **model_options)
        assert (await model.step(request, lambda piece: None)).text == "ok"
        await model.aclose()
    return [exchange.body for exchange in server.requests]


# --- images


async def test_images_go_as_parts_and_are_left_out_with_a_note_where_they_are_refused() -> None:
    pictures = (Image(url="https://x.org/a.png"), Image(data=b"\x89PNG", media_type="image/png"))
    refusal = HttpError(400, "this model does not support image input")

    first, second = await sent({}, step_of(IllustratedMessage("See?", pictures)), refusal)

    assert first["messages"][1]["content"] == [
        {"type": "text", "text": "See?"},
        {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    ]
    said = second["messages"][1]["content"]
    assert said == "See?\n\n[2 images were left out here: the model cannot see images.]"


# --- constraints


async def test_no_constraint_is_sent_unless_it_is_asked_for() -> None:
    (body,) = await sent({}, step_of())

    assert not {"grammar", "regex", "guided_regex", "structured_outputs"} & body.keys()


async def test_a_grammar_goes_to_llama_cpp_and_never_beside_tools() -> None:
    (alone,) = await sent({"constrain": "grammar"}, step_of())
    (beside,) = await sent({"constrain": "grammar"}, step_of(tools=TOOLS, protocol=DEFAULT))

    assert alone["grammar"].startswith("root ::=")
    assert "grammar" not in beside


async def test_a_regular_expression_goes_under_each_servers_name_for_it() -> None:
    (body,) = await sent({"constrain": "regex"}, step_of(tools=TOOLS, protocol=DEFAULT))

    assert body["regex"] == body["guided_regex"] == body["structured_outputs"]["regex"]


async def test_the_environment_switches_a_constraint_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSM_AGENT_CONSTRAINT", "grammar")
    (body,) = await sent({}, step_of())
    assert "grammar" in body

    monkeypatch.setenv("FSM_AGENT_CONSTRAINT", "magic")
    with pytest.raises(MissingSetting, match="Set it to grammar"):
        await sent({}, step_of())


async def test_a_server_that_refuses_the_constraint_is_asked_without_it() -> None:
    refusal = HttpError(400, "Unrecognized request argument supplied: guided_regex")

    first, second = await sent({"constrain": "regex"}, step_of(), refusal)

    assert ("regex" in first, "regex" in second) == (True, False)


# --- roles


def test_roles_take_turns_where_the_template_wants_it() -> None:
    call = Call("c1", "look", "{}")
    messages = (
        UserMessage("one"),
        UserMessage("two"),
        AssistantMessage("THINK", "hm"),
        AssistantMessage("TOOL", "", (call,)),
        ToolMessage("c1", "look", "found"),
        NoteMessage("go on"),
        AssistantMessage("THINK", "hm"),
    )
    body = RequestBuilder().body(step_of(*messages), "m", Profile(alternates_roles=True))

    roles = [each["role"] for each in msgspec.json.decode(body)["messages"]]
    assert roles == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip


def test_images_survive_when_messages_are_put_together() -> None:
    picture = {"type": "image_url", "image_url": {"url": "u"}}
    (one,) = alternating([{"role": "user", "content": "a"}, {"role": "user", "content": [picture]}])

    assert one["content"] == [{"type": "text", "text": "a"}, picture]


# --- Azure


def test_azures_classic_address_is_told_from_its_newer_one() -> None:
    classic = "https://x.openai.azure.com/openai?api-version=2024-10-21"

    assert is_azure_classic(classic)
    assert not is_azure_classic("https://x.openai.azure.com/openai/v1")
    assert split_query(classic) == (
        "https://x.openai.azure.com/openai",
        {"api-version": "2024-10-21"},
    )


async def test_azures_classic_form_names_the_deployment_and_sends_the_key_in_its_header() -> None:
    model = OpenAIModel("gpt", "https://x.openai.azure.com/openai?api-version=2024-10-21", "k")
    client = model._connections._client(model.endpoint())
    options = FinalRequestOptions(method="post", url="/chat/completions")
    request = client._build_request(options)
    await client.close()

    assert str(request.url) == (
        "https://x.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
    )
    assert request.headers["api-key"] == "k"
