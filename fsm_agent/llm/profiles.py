"""How providers differ in what they accept, as data."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

import msgspec

Change = Literal[
    "without_stream_options",
    "without_tools",
    "without_images",
    "without_parallel_tool_calls",
    "without_temperature",
    "system_role",
    "swap_max_tokens",
    "with_reasoning_content",
    "with_signatures",
    "with_alternating_roles",
    "without_system_role",
    "without_constraint",
]
Constraint = Literal["grammar", "regex"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What may stand in a request to one model at one endpoint."""

    system_role: Literal["system", "developer", "user"] = "system"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    has_stream_options: bool = True
    has_tools: bool = True
    has_images: bool = True
    has_temperature: bool = True
    parallel_tool_calls: bool | None = None  # None: not sent
    echoes_reasoning: bool = False  # the provider wants reasoning_content back with its calls
    replays_signatures: bool = False  # reasoning_details and thought signatures go back
    alternates_roles: bool = False  # user and assistant must take turns
    constraint: Constraint | None = None  # how the server can be held to the protocol's form
    changes: tuple[Change, ...] = ()  # learnt from refusals, in order


_EDITS: dict[Change, dict[str, object]] = {
    "without_stream_options": {"has_stream_options": False},
    "without_tools": {"has_tools": False, "parallel_tool_calls": None},
    "without_images": {"has_images": False},
    "without_parallel_tool_calls": {"parallel_tool_calls": None},
    "without_temperature": {"has_temperature": False},
    "system_role": {"system_role": "system"},
    "with_reasoning_content": {"echoes_reasoning": True},
    "with_signatures": {"replays_signatures": True},
    "with_alternating_roles": {"alternates_roles": True},
    "without_system_role": {"system_role": "user", "alternates_roles": True},
    "without_constraint": {"constraint": None},
}

# By the end of the host name.
_HOSTS: dict[str, Profile] = {
    "api.openai.com": Profile(max_tokens_field="max_completion_tokens"),
    "api.deepseek.com": Profile(echoes_reasoning=True),
    "api.moonshot.ai": Profile(echoes_reasoning=True),
    "api.moonshot.cn": Profile(echoes_reasoning=True),
    "openrouter.ai": Profile(replays_signatures=True),
    "generativelanguage.googleapis.com": Profile(replays_signatures=True),
}


def profile_for(base_url: str) -> Profile:
    """What is known of an endpoint before it was ever asked."""
    host = urlsplit(base_url).hostname or ""
    return _HOSTS.get(host, Profile())


def adapted(profile: Profile, change: Change) -> Profile | None:
    """The profile after one change, None where it was made before or changes nothing."""
    if change in profile.changes:
        return None
    edits = dict(_EDITS.get(change, {}))
    if change == "swap_max_tokens":
        is_old = profile.max_tokens_field == "max_tokens"
        edits["max_tokens_field"] = "max_completion_tokens" if is_old else "max_tokens"
    after = msgspec.structs.replace(profile, **edits)
    if after == profile:
        return None
    return msgspec.structs.replace(after, changes=(*profile.changes, change))
