"""What the model is told after a reply that broke the protocol, and when telling ends."""

from __future__ import annotations

from fsm_agent.run.delta import Replied
from fsm_agent.run.record import Run

from .scene import Scene
from .verdict import Continue, Finish, Repair, Stop, Verdict


def check(run: Run, scene: Scene) -> Verdict:
    """Repair after a violation, until `limits.repairs` in a row; then Finish or Stop.

    Where the scene may rescue, a whole unlabelled text is kept as the answer rather than lost,
    marked as not completed.
    """
    reply = run.last
    if not isinstance(reply, Replied) or reply.violation is None:
        return Continue()
    if run.repairs <= run.limits.repairs:
        return Repair(_correction(reply, scene.allowed))
    if scene.may_rescue and reply.violation == "missing_label" and reply.text.strip():
        return Finish(reply.text.strip(), is_completed=False, why="repairs")
    return Stop("repairs", f"{run.repairs} replies in a row broke the protocol. {_fault(reply)}")


def _fault(reply: Replied) -> str:
    return reply.detail or f"The reply broke the protocol ({reply.violation})."


def _correction(reply: Replied, allowed: tuple[str, ...]) -> str:
    text = f"Your last reply cannot be used. {_fault(reply)}"
    if not allowed:
        return f"{text} Answer again."
    names = [f"``{label}``" for label in allowed]
    if all(name in text for name in names):
        return text
    rule = f"Begin with exactly one of {', '.join(names)}, alone on the first line, then the body."
    return f"{text} {rule}"
