"""Which rule of the protocol a whole reply breaks, if it breaks one."""

from __future__ import annotations

import msgspec

from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.llm.model import RequestedCall, Violation

CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "incomplete"})
FILTERED = frozenset(
    {"content_filter", "content_filtered", "content_policy", "guardrail_intervened", "spii"}
    | {"image_safety", "sensitive", "safety", "prohibited_content", "blocklist", "recitation"}
)
REFUSED = frozenset({"refusal"})


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply before it is judged. Without a label, `text` is all of it."""

    label: str | None
    text: str
    thinking: str = ""
    refusal: str = ""
    calls: tuple[RequestedCall, ...] = ()
    finish_reason: str | None = None
    second_label: str | None = None
    second_line: int = 0
    has_markup: bool = False  # an answer that ends with a tool call in a model's own marks

    @property
    def was_cut(self) -> bool:
        return self.finish_reason in CUT

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


class Verdict(msgspec.Struct, frozen=True):
    """The first rule that is broken, in words for the model; None and '' for a good reply."""

    violation: Violation | None = None
    detail: str = ""


GOOD = Verdict()


def judge(draft: Draft, protocol: LabelProtocol | None) -> Verdict:
    """The verdict on a reply: the first violation that holds, in a fixed order.

    refusal, content_filter, multiple_labels, truncated, empty_completion (nothing came),
    missing_label, tool_without_calls, label_with_tools, invalid_arguments, and empty_completion
    once more for a final label without text. Without a protocol the label rules do not apply.
    """
    return (
        _declined(draft)
        or _two_labels(draft)
        or _cut(draft, protocol)
        or _nothing(draft)
        or (_label_rules(draft, protocol) if protocol else None)
        or _bad_arguments(draft)
        or (_empty_final(draft, protocol) if protocol else None)
        or GOOD
    )


def _declined(draft: Draft) -> Verdict | None:
    if draft.refusal or draft.finish_reason in REFUSED:
        return Verdict("refusal", "The model refused to answer.")
    if draft.finish_reason in FILTERED:
        return Verdict("content_filter", "The provider's content filter cut the reply.")
    return None


def _two_labels(draft: Draft) -> Verdict | None:
    if draft.second_label is None:
        return None
    return Verdict(
        "multiple_labels",
        f"The reply has the label ``{draft.label}`` and, in line {draft.second_line} of its text, "
        f"``{draft.second_label}``. Use one.",
    )


def _cut(draft: Draft, protocol: LabelProtocol | None) -> Verdict | None:
    """A cut intermediate text is still thinking; a cut action or answer is neither."""
    if not draft.was_cut:
        return None
    label = draft.label
    may_stand = (
        protocol is not None
        and label is not None
        and label != protocol.tool_label
        and label not in protocol.final | protocol.terminal
        and not draft.calls
    )
    if may_stand:
        return None
    return Verdict("truncated", "The reply hit its length limit before it was complete.")


def _nothing(draft: Draft) -> Verdict | None:
    if draft.is_blank and draft.label is None and not draft.calls:
        return Verdict("empty_completion", "The reply was empty.")
    return None


def _label_rules(draft: Draft, protocol: LabelProtocol) -> Verdict | None:
    allowed = ", ".join(f"``{label}``" for label in protocol.allowed)
    if draft.label is None:
        return Verdict(
            "missing_label",
            f"The reply did not begin with a label. Begin with one of {allowed}, in double "
            "backticks on the first line.",
        )
    is_tool = draft.label == protocol.tool_label
    if is_tool and not draft.calls:
        return Verdict(
            "tool_without_calls",
            f"The label ``{draft.label}`` announces a tool call, but the reply has none.",
        )
    if (draft.calls or draft.has_markup) and not is_tool:
        return Verdict("label_with_tools", _with_tools(draft.label, protocol))
    return None


def _with_tools(label: str, protocol: LabelProtocol) -> str:
    said = f"The reply has the label ``{label}`` and tool calls."
    if protocol.tool_label is None:
        return f"{said} No tools are available now."
    return f"{said} Calls need the label ``{protocol.tool_label}``; none was run."


def _bad_arguments(draft: Draft) -> Verdict | None:
    bad = next((call for call in draft.calls if call.problem), None)
    if bad is None:
        return None
    return Verdict("invalid_arguments", f"The call of {bad.name} cannot be run. {bad.problem}")


def _empty_final(draft: Draft, protocol: LabelProtocol) -> Verdict | None:
    if draft.label in protocol.final and draft.is_blank:
        return Verdict(
            "empty_completion", f"The label ``{draft.label}`` came without any text for the user."
        )
    return None
