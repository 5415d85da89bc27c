"""Scripted models for the quality table: a good one, a sloppy one, and several hostile ones.

Each looks only at the request, so a resumed run is answered alike. The task is always to find the
prices of two things with a tool, to add them with another, and to say the sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from fsm_agent.testing import Reply, Request, Script, ToolCall, call, otherwise

PRICES = {
    "lamp": 17, "chair": 42, "table": 95, "mirror": 23, "shelf": 31,
    "carpet": 64, "clock": 12, "sofa": 230, "vase": 9, "desk": 88,
}  # fmt: skip
WRONG_SHARE = 0.3  # of the sloppy model's replies


def task_of(first: str, second: str) -> str:
    return f"What do a {first} and a {second} cost together?"


# -- the good one ---------------------------------------------------------------------------------


def good(request: Request) -> Reply:
    """What a model says that knows what it is doing, in any phase of any capability."""
    labels = labels_of(request)
    wanted = _items(request)
    known = {name: int(price) for name, price in _COSTS.findall(request.everything)}
    missing = [name for name in wanted if name not in known]
    if "PLAN" in labels:
        return Reply("1. Find the prices.\n2. Add them.", label="PLAN")
    if "BRIEF" in labels:
        return Reply("The prices, and their sum.", label="BRIEF")
    if "OUTLINE" in labels:
        return Reply("\n".join(f"- What does a {name} cost?" for name in wanted), label="OUTLINE")
    if "price" in request.offered and missing:
        return _acting(labels, *(call("price", item=name) for name in missing))
    if "APPEND" in labels or "Find the prices. [now]" in request.system:
        return _saying(labels, ". ".join(f"The {name} costs {known[name]}" for name in wanted))
    if "add" in request.offered and not _SUM.search(request.everything):
        return _acting(labels, call("add", a=known[wanted[0]], b=known[wanted[1]]))
    total = sum(known.get(name, 0) for name in wanted)
    cited = " [1][2]" if "cite" in request.system.casefold() else ""
    return _saying(labels, f"Together they cost {total}{cited}.")


_COSTS = re.compile(r"(?:^|[^\w])(?:[Tt]he )?(\w+) costs (\d+)")
_SUM = re.compile(r"the sum is (\d+)")
_LABEL = re.compile(r"^- ``(\w+)``:", re.MULTILINE)
_TASK = re.compile(r"What do a (\w+) and a (\w+) cost together|What does a (\w+) cost")


def labels_of(request: Request) -> list[str]:
    """The labels that the model may use; none where it speaks without."""
    return _LABEL.findall(request.system)


def _items(request: Request) -> list[str]:
    """What the request is about: of the task that was set last."""
    found = _TASK.findall("\n".join(str(m.get("content")) for m in request.messages[1:]))
    whole = [names for names in found if names[1]] or found
    return [name for name in (whole[-1] if whole else ()) if name]


def _acting(labels: list[str], *calls: ToolCall) -> Reply:
    return Reply(label="TOOL" if labels else None, tool_calls=calls)


def _saying(labels: list[str], text: str) -> Reply:
    return Reply(text, label="FINISH" if labels else None)


# -- the sloppy one -------------------------------------------------------------------------------


def sloppy(request: Request) -> Reply:
    """The good reply, spoilt in three of ten: its label, or without labels its calls."""
    reply, rng = good(request), Random(f"{request.model} {request.digest}")
    if rng.random() >= WRONG_SHARE:
        return reply
    if reply.label is None:
        return _spoilt_calls(reply, rng)
    labels = labels_of(request)
    match rng.choice(["missing", "unknown", "other", "two"]):
        case "missing":
            return replace(reply, label=None)
        case "unknown":
            return replace(reply, label=rng.choice(["ANSWER", "RESULT", "ACTION"]))
        case "other":
            others = [label for label in labels if label != reply.label]
            return replace(reply, label=rng.choice(others) if others else None)
        case _:
            return replace(reply, text=f"{reply.text}\n``{rng.choice(labels)}``\nAnd so on.")


def _spoilt_calls(reply: Reply, rng: Random) -> Reply:
    if not reply.tool_calls:
        return replace(reply, text="")
    first, *others = reply.tool_calls
    bad = rng.choice(
        [ToolCall(name=first.name, arguments=first.arguments[:-4]), ToolCall(name="prices")]
    )
    return replace(reply, tool_calls=[bad, *others])


# -- the hostile ones -----------------------------------------------------------------------------


def _mute(request: Request) -> Reply:
    return Reply("")


def _unlabelled(request: Request) -> Reply:
    return Reply(f"Let me tell you story number {len(request.messages)}.")


def _looper(request: Request) -> Reply:
    return _acting(labels_of(request), call("price", item="lamp"))


def _ghost(request: Request) -> Reply:
    return _acting(labels_of(request), call(f"tool_{len(request.messages)}", x=1))


def _thief(request: Request) -> Reply:
    return _acting(labels_of(request), call("pay", amount=1_000 + len(request.messages)))


def _flood(request: Request) -> Reply:
    calls = (call("price", item=name) for name in [*PRICES] * 10)
    return _acting(labels_of(request), *calls)


def _rambler(request: Request) -> Reply:
    return Reply(f"Thought {len(request.messages)}.", label="THINK")


def _garbler(request: Request) -> Reply:
    bad = ToolCall(name="price", arguments='{"item": "la')
    return _acting(labels_of(request), bad)


def _quitter(request: Request) -> Reply:
    """Never goes on with what it has begun: each plan is dropped, each question raises others."""
    labels, count = labels_of(request), len(request.messages)
    for label in ("REPLAN", "APPEND", "PAUSE"):
        if label in labels:
            return Reply(f"- Something else, number {count}", label=label)
    return good(request)


HOSTILE: dict[str, Callable[[Request], Reply]] = {
    "mute": _mute,
    "unlabelled": _unlabelled,
    "looper": _looper,
    "ghost": _ghost,
    "thief": _thief,
    "flood": _flood,
    "rambler": _rambler,
    "garbler": _garbler,
    "quitter": _quitter,
}


# -- all of them as one server --------------------------------------------------------------------


async def _answer(request: Request) -> Reply:
    """By the model's name: `good`, `sloppy-3` (its number is a seed), `hostile-mute` …"""
    kind, _, which = request.model.partition("-")
    if kind == "hostile":
        return HOSTILE[which](request)
    return sloppy(request) if kind == "sloppy" else good(request)


script = Script(otherwise(_answer))
