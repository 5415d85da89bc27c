"""What a run asks a person: how it is shown, and how it is answered on a terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fsm_agent.cli.clean import one_line
from fsm_agent.cli.failures import CliError, clock
from fsm_agent.cli.hints import Hint
from fsm_agent.cli.process import read_line, say
from fsm_agent.cli.settings import current
from fsm_agent.cli.terms import terms_of
from fsm_agent.people import verbs_of
from fsm_agent.run.delta import Verb
from fsm_agent.run.taint import in_words
from fsm_agent.runtime import Request
from fsm_agent.tools.render import mark_hidden, render_arguments

EFFECTS = {
    "read": "read: looks and changes nothing",
    "idempotent": "idempotent: doing it twice is harmless",
    "keyed": "keyed: may be sent again after a crash, with the same key",
    "probed": "probed: after a crash a check finds out whether it happened",
    "unsafe": "unsafe: started at most once; after a crash a person is asked",
}
TITLES = {
    "approval": "needs your approval",
    "question": "asks you",
    "in_doubt": "is in doubt: did it happen?",
}


class Choice(NamedTuple):
    """A decision before it is recorded."""

    verb: Verb
    reason: str = ""
    arguments: str | None = None
    answer: str | None = None
    is_whole: bool = True  # False: the command left out what the verb needs
    is_standing: bool = False  # of 'approve': for later calls of the run as well


class Key(NamedTuple):
    """A key that the person may press, and what it does."""

    key: str
    word: str


_KEYS = {
    "approval": (
        Key("a", "approve"), Key("r", "reject"), Key("e", "edit"), Key("s", "skip for now"),
    ),
    "in_doubt": (
        Key("h", "it happened"), Key("n", "it did not, run it"),
        Key("f", "tell the model nobody knows"), Key("s", "skip for now"),
    ),
}  # fmt: skip


def title(request: Request) -> str:
    """'issue_refund needs your approval'."""
    return f"{one_line(request.question.tool, 64)} {TITLES[request.question.kind]}"


def described(request: Request) -> list[tuple[str, str]]:
    """What is shown of a request: pairs of a style and a line. Hidden characters are marked."""
    question = request.question
    if question.kind == "question":
        lines = [("", line) for line in mark_hidden(question.reason).split("\n")]
        lines += [("cyan", f"  {mark_hidden(option)}") for option in question.options]
        lines += terms_of(request)
        return [*lines, ("dim", f"request {request.ask_id}, hash {request.digest[:8]}")]
    lines = [("bold", line) for line in render_arguments(question.arguments)]
    lines.append(("", ""))
    lines += [("dim", f"why     {line}") for line in mark_hidden(question.reason).split("\n")]
    lines += [
        ("bold yellow", f"taint   {one_line(mark_hidden(in_words(taint)), 300)}")
        for taint in question.taints
    ]
    if question.effect:
        lines.append(("dim", f"effect  {EFFECTS.get(question.effect, question.effect)}"))
    if request.unlock_ms > time.time() * 1000:
        lock = f"'it did not happen, run it' is locked until {clock(request.unlock_ms)}"
        lines.append(("dim", f"lock    {lock}: the old worker may still be at it"))
    lines += [("yellow", f"seen    {one_line(str(seen), 400)}") for seen in request.evidence]
    lines += terms_of(request)
    lines.append(("dim", f"hash    {request.digest[:8]}  (request {request.ask_id})"))
    return lines


def show(request: Request) -> None:
    """Put the request on stderr: in a panel on a terminal, in lines elsewhere."""
    if sys.stderr.isatty():
        _show_panel(request)
        return
    say(title(request) if title(request).endswith("?") else f"{title(request)}:")
    for _, line in described(request):
        if line:
            say(f"  {line}")


def _show_panel(request: Request) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    body = Text("\n").join(Text(line, style) for style, line in described(request))
    panel = Panel(
        body,
        title=Text(f" {title(request)} ", "bold yellow"),
        title_align="left",
        border_style="yellow",
        padding=(1, 2),
        width=min(console.width, 96),
    )
    console.print()
    console.print(panel)


def ask(request: Request, *, default: str = "") -> Choice | None:
    """Let the person at this terminal decide. None: not now. `default` is the key of Enter.

    Raises Stopped on Ctrl-C.
    """
    if request.question.kind == "question":
        text = read_line("  your answer (empty: skip for now) > ")
        return Choice("answer", answer=text) if text and text.strip() else None
    may_edit = "edit" in verbs_of(request)
    keys = [key for key in _KEYS[request.question.kind] if key.word != "edit" or may_edit]
    words = "   ".join(f"[{k.key}] {k.word}" + (" (Enter)" * (k.key == default)) for k in keys)
    while True:
        typed = read_line(f"  {words} > ")
        if typed is None or typed.strip().lower() in ("s", "skip"):
            return None
        known = {k.key: k for k in keys} | {k.word.split()[0]: k for k in keys}
        key = known.get(typed.strip().lower() or default)
        if key is None:
            continue
        if choice := _completed(key.key, request):
            return choice


def _completed(key: str, request: Request) -> Choice | None:
    """The choice with what it needs besides the key; None: ask again."""
    match key:
        case "a":
            return Choice("approve")
        case "n":
            return Choice("rerun")
        case "r":
            reason = read_line("  why? The model is told > ")
            return Choice("reject", reason=reason or "")
        case "e":
            say(f"  now  {one_line(request.question.arguments, 4000)}")
            typed = read_line("  the arguments as JSON (empty: back) > ")
            return Choice("edit", arguments=typed) if typed and typed.strip() else None
        case "h":
            typed = read_line("  what was its result? (empty: not known) > ")
            return Choice("happened", answer=typed or None)
        case _:
            return Choice("fail")


def completed(choice: Choice, request: Request) -> Choice:
    """The choice with what its command left out, as the person at this terminal gives it.

    Raises CliError if they give nothing: then nothing is decided.
    """
    if choice.verb == "answer":
        text = read_line("  the answer (empty: back) > ")
        whole = Choice("answer", answer=text) if text and text.strip() else None
    else:
        whole = _completed({"reject": "r", "edit": "e"}[choice.verb], request)
    if whole is None or (whole.verb == "reject" and not whole.reason.strip()):
        raise CliError("nothing was given, so nothing was decided.")
    return whole


def named(request: Request, *, within: str) -> str:
    """How a request is called beside those of a run: by its id, and by its run if it is another."""
    return request.ask_id if request.run_id == within else f"{request.run_id} {request.ask_id}"


def commands_for(requests: Sequence[Request]) -> list[Hint]:
    """The exact commands that decide each request, to be pasted.

    None has a placeholder: a shell would take it for what the person wants to say. What a command
    leaves out is asked for.
    """
    hints = []
    uses = Counter(request.ask_id for request in requests)
    for request in requests:
        place = f"{request.run_id} {request.ask_id}{current().store_option}"
        shown = f"{place} --hash {request.digest[:8]}"
        # A run below may ask under the same id: then the run's own id is not enough.
        where = shown if uses[request.ask_id] > 1 else place
        match request.question.kind:
            case "approval":
                approve = f"fsm-agent approve {shown}"
                hints.append(Hint(approve, "run it with exactly these arguments"))
                if "edit" in verbs_of(request):
                    hints.append(Hint(f"fsm-agent edit {where}", "run it with others: asks which"))
                hints.append(Hint(f"fsm-agent reject {where}", "do not run it: asks why"))
                hints.append(Hint(f"fsm-agent answer {where}", "do not run it: asks its result"))
            case "question":
                hints.append(Hint(f"fsm-agent answer {where}", "asks for the answer"))
                hints.append(Hint(f"fsm-agent reject {where}", "no answer: asks why"))
            case _:
                settle = f"fsm-agent settle {where}"
                hints.append(Hint(f"{settle} --happened", "it took effect"))
                hints.append(Hint(f"{settle} --rerun", "it did not: run it now"))
                hints.append(Hint(f"{settle} --fail", "nobody knows: the model is told so"))
    return hints
