"""The form of a labelled reply as a grammar or a regular expression, for servers that hold to one.

A label of the protocol in double backticks, a line break, and a body that is not empty and has no
second label: no line of it begins with one or two backticks, though code fences stay possible. It
does not begin with a tag either, which might hold all of it. Only the tool label may come without
a body, since its calls are not text.
"""

from __future__ import annotations

import json
import re

from fsm_agent.labels.protocol import LabelProtocol


def grammar_of(protocol: LabelProtocol) -> str:
    """The protocol in GBNF, which llama.cpp's `grammar` field takes."""
    forms = []
    if spoken := _spoken(protocol):
        forms.append(f'"``" ({_choice(spoken)}) "``\\n" first (nl line)*')
    if protocol.tool_label is not None:
        forms.append(f'"``" {_choice((protocol.tool_label,))} "``" (nl line)*')
    return "\n".join(
        (
            f"root ::= {' | '.join(forms)}",
            "first ::= [^<`｀ \\t\\n\\r\\x0b\\x0c\\x85\\xa0] rest | fence",
            "line ::= blank* (start rest | fence)?",
            "fence ::= " + r'"```" [^`｀\n\r]*',
            "start ::= " + r"[^`｀ \t\n\r\x0b\x0c\x85\xa0]",
            "rest ::= " + r"[^\n\r]*",
            "blank ::= " + r"[ \t]",
            "nl ::= " + r'"\n"',
        )
    )


def regex_of(protocol: LabelProtocol) -> str:
    """The protocol as a regular expression of the whole reply, without look-around."""
    first = r"(?:[^<`｀\s][^\n\r]*|```[^`｀\n\r]*)"
    line = r"(?:[^`｀\s][^\n\r]*|```[^`｀\n\r]*)"
    more = rf"(?:\n[ \t]*{line}?)*"
    forms = []
    if spoken := _spoken(protocol):
        forms.append(rf"``(?:{'|'.join(map(re.escape, spoken))})``\n{first}{more}")
    if protocol.tool_label is not None:
        forms.append(rf"``{re.escape(protocol.tool_label)}``{more}")
    return forms[0] if len(forms) == 1 else f"(?:{'|'.join(forms)})"


def _spoken(protocol: LabelProtocol) -> tuple[str, ...]:
    return tuple(label for label in protocol.allowed if label != protocol.tool_label)


def _choice(labels: tuple[str, ...]) -> str:
    return " | ".join(json.dumps(label, ensure_ascii=False) for label in labels)
