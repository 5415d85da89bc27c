"""How often a model breaks the label protocol, with and without a constraint on its form.

OPENAI_BASE_URL=http://127.0.0.1:58080/v1 python -m benchmarks.streams_constraint [grammar|regex]
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from typing import Any

from fsm_agent.labels.protocol import DEFAULT
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.model import StepRequest
from fsm_agent.run.content import UserMessage

PROMPTS = (
    "What is the capital of Norway?",
    "Write a haiku about rain.",
    "List three fruits.",
    "Say hello in French.",
    "What is 2 + 2?",
    "Explain what a list is in Python, with a code block.",
    "Name a colour.",
    "Why is the sky blue?",
    "Give me a recipe for tea.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "Tell me a joke.",
    "How many days has a week?",
    "What does the label `THINK` mean?",
    "Repeat the word TOOL three times.",
    "Write one line of shell.",
    "Summarise: the cat sat on the mat.",
    "Is water wet?",
    "What comes after Tuesday?",
    "Describe a tree.",
)
MAX_TOKENS = 80
PROTOCOL = DEFAULT.without_tools()


async def violations(constrain: Any) -> Counter[str]:
    """What the replies to all prompts broke; '' for a good one."""
    model = OpenAIModel(os.environ.get("FSM_AGENT_MODEL", "smollm2"), constrain=constrain)
    counts: Counter[str] = Counter()
    for prompt in PROMPTS:
        request = StepRequest(
            instructions="You are a helpful assistant.",
            messages=(UserMessage(prompt),),
            protocol=PROTOCOL,
            max_tokens=MAX_TOKENS,
            temperature=0.8,
        )
        reply = await model.step(request, lambda piece: None)
        is_cut_only = reply.violation == "truncated" and reply.label is not None
        counts["" if is_cut_only else reply.violation or ""] += 1
    await model.aclose()
    return counts


async def main(constraint: str) -> None:
    if not os.environ.get("OPENAI_BASE_URL"):
        sys.exit("Set OPENAI_BASE_URL to the server to ask.")
    for constrain in (None, constraint):
        counts = await violations(constrain)
        broken = sum(count for name, count in counts.items() if name)
        kinds = ", ".join(f"{name} {count}" for name, count in counts.items() if name) or "none"
        print(
            f"constraint {constrain or 'none':8} broke the protocol "
            f"{broken:2} of {len(PROMPTS)}: {kinds}",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "grammar"))
