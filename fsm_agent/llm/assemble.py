"""Which tool calls the deltas of a stream amount to."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from fsm_agent.llm.arguments import is_complete, parse_arguments
from fsm_agent.llm.model import RequestedCall
from fsm_agent.llm.names import offered_name
from fsm_agent.llm.wire import CallDelta, FunctionDelta
from fsm_agent.run.content import clean_json, clean_text

MAX_CALLS = 128
_PARALLEL = frozenset(
    {"multi_tool_use.parallel", "functions.multi_tool_use.parallel", "multi_tool_use_parallel"}
    | {"parallel", "parallel_tool_use"}
)


class _OpenCall:
    """A call under way."""

    def __init__(self, index: int | None) -> None:
        self.index, self.id, self.name = index, "", ""
        self.pieces: list[str] = []
        self.size_chars = 0
        self.extra: dict[str, Any] | None = None

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def add(self, fragment: str) -> None:
        """Take a fragment of the arguments, or a snapshot of them as far as they go."""
        is_longer = 2 <= self.size_chars <= len(fragment)
        if is_longer and fragment[0] == "{" and fragment.startswith(self.arguments):
            self.pieces, self.size_chars = [], 0
        self.pieces.append(fragment)
        self.size_chars += len(fragment)


class CallAssembler:
    """Puts tool calls together, in order of first appearance, whatever the deltas leave out.

    The index is the key where there is one. A new id, or a name for a call whose arguments are
    whole already, begins another call; a delta with neither goes on with the open one.
    """

    def __init__(self, offered: Collection[str]) -> None:
        self._offered = frozenset(offered)
        self._calls: list[_OpenCall] = []
        self.size_chars = 0
        """Characters of names and arguments so far."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, deltas: list[CallDelta]) -> None:
        """Take the `tool_calls` of one chunk."""
        for position, delta in enumerate(deltas):
            function = delta.function or FunctionDelta(delta.name, delta.arguments)
            call = self._target(delta, function, position)
            if delta.id:
                call.id = delta.id
            call.extra = delta.extra_content or call.extra
            self._extend(call, function)

    def add_legacy(self, function: FunctionDelta) -> None:
        """Take the `function_call` of one chunk, which old relays send instead."""
        self.add([CallDelta(function=function)])

    def _target(self, delta: CallDelta, function: FunctionDelta, position: int) -> _OpenCall:
        call = self._candidate(delta)
        if call is None or self._begins_another(call, delta, function, position):
            call = _OpenCall(delta.index)
            if len(self._calls) < MAX_CALLS:
                self._calls.append(call)
        return call

    def _candidate(self, delta: CallDelta) -> _OpenCall | None:
        """The call that the delta could go on with: the one of its id, else the newest."""
        newest = None
        for call in reversed(self._calls):
            if _may_go_on(call, delta):
                if not delta.id or call.id == delta.id:
                    return call
                newest = newest or call
        return newest

    def _begins_another(
        self, call: _OpenCall, delta: CallDelta, function: FunctionDelta, position: int
    ) -> bool:
        if delta.id and call.id:
            if delta.id == call.id:
                return False
            # Some servers make up an id for each delta: half an object still has to be ended.
            is_open = call.size_chars > 0 and not is_complete(call.arguments)
            if not function.name:
                return not is_open and call.size_chars > 0
            return not (is_open and function.name == call.name)
        if not function.name:
            return False
        if delta.index is None and position > 0 and call.name:
            return True
        has_both = function.name in self._offered and call.name in self._offered
        if has_both and function.name != call.name and delta.index is None:
            return True
        return bool(call.name) and is_complete(call.arguments)

    def _extend(self, call: _OpenCall, function: FunctionDelta) -> None:
        if function.name:
            call.name = _joined_name(call.name, function.name)
            self.size_chars += len(function.name)
        if isinstance(function.arguments, dict):
            function.arguments = json.dumps(function.arguments, ensure_ascii=False)
        if function.arguments:
            call.add(function.arguments)
            self.size_chars += len(function.arguments)

    def finish(self, *, was_cut: bool) -> tuple[RequestedCall, ...]:
        """The calls. With `was_cut` the reply hit its length limit, and none may be whole."""
        named = (call for call in self._calls if call.name.strip())
        return tuple(
            part for call in named for part in self._unpacked(self._finished(call, was_cut))
        )

    def _finished(self, call: _OpenCall, was_cut: bool) -> RequestedCall:
        raw = clean_text(call.arguments)
        arguments, problem = parse_arguments(raw)
        if problem and was_cut:
            problem = "The reply hit its length limit, and the arguments were cut off."
        return RequestedCall(
            name=offered_name(clean_text(call.name), self._offered),
            arguments=clean_json(arguments),
            raw_arguments=raw,
            problem=problem,
            provider_id=clean_text(call.id),
            extra=call.extra,
        )

    def _unpacked(self, call: RequestedCall) -> Iterator[RequestedCall]:
        """A wrapper for parallel calls that some models make up, as the calls inside it."""
        uses = (call.arguments or {}).get("tool_uses")
        if call.name in self._offered or call.name not in _PARALLEL or not isinstance(uses, list):
            yield call
            return
        inner = [self._use(use) for use in uses]
        if not inner or any(one is None or one.name not in self._offered for one in inner):
            yield call
            return
        yield from (one for one in inner if one is not None)

    def _use(self, use: Any) -> RequestedCall | None:
        if not isinstance(use, dict):
            return None
        name = use.get("recipient_name", use.get("name"))
        parameters = use.get("parameters", use.get("arguments", {}))
        if isinstance(parameters, str):
            parameters, _ = parse_arguments(parameters)
        if not isinstance(name, str) or not isinstance(parameters, dict):
            return None
        name = offered_name(name, self._offered)
        return RequestedCall(name, parameters, json.dumps(parameters, ensure_ascii=False))


def _may_go_on(call: _OpenCall, delta: CallDelta) -> bool:
    """Whether the index of `delta`, or without one its id, is not that of another call."""
    if delta.index is not None:
        return call.index is None or call.index == delta.index
    return not delta.id or not call.id or delta.id == call.id


def _joined_name(known: str, fragment: str) -> str:
    """A name as set, resent, or sent in pieces."""
    if not known or fragment.startswith(known):
        return fragment
    return known if fragment == known else known + fragment
