"""What people may say to runs: decide what waits, talk about it, agree in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from checkpoints.model import Decision, Ruling, RunId
from fsm_agent.audit import Audit
from fsm_agent.capabilities.agent import Agent
from fsm_agent.engine.children import rouse
from fsm_agent.engine.decisions import VERBS
from fsm_agent.engine.expiry import DEADLINE
from fsm_agent.engine.resume import load
from fsm_agent.errors import NotAllowed, UsageError
from fsm_agent.run import signal
from fsm_agent.run.content import canonical_json, clean_text
from fsm_agent.run.delta import Consented, Verb
from fsm_agent.run.person import identity
from fsm_agent.run.signal import Consent, Decided, Revoke
from fsm_agent.tools.arguments import Refused, parsed
from fsm_agent.waiting import Request as Request
from fsm_agent.waiting import Waiting

# Of all that is said at once, in UTF-8. The entry with a decision holds it twice, beside up to a
# hundred comments, and has to stay below the store's cap: nobody could go on with the run.
MAX_WORDS_BYTES = 150_000
MAX_COMMENT_BYTES = 5_000


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A consent to later calls of a tool in one run."""

    consent_id: str
    tool: str
    rule: str  # only where this rule asks; '': whichever does
    by: str
    reason: str = ""
    is_taken_up: bool = True  # False: it waits in the mailbox until somebody works on the run


class People(Waiting, Audit):
    """Decisions and consents, beside what they are about and the record of them."""

    async def decide(
        self,
        run_id: str,
        ask_id: str,
        verb: Verb,
        *,
        by: str,
        reason: str = "",
        arguments: str | Mapping[str, Any] | None = None,
        answer: str | None = None,
        digest: str | None = None,
        decision_id: str | None = None,
        agent: Agent | None = None,
        is_standing: bool = False,
        channel: str = "api",
        auth: str = "claimed",
    ) -> Ruling:
        """Record a person's decision; the first one counts. Any worker takes it up.

        `run_id` is that of the request, or of a run above it. `digest` is that of what the person
        was shown (default: of what is asked now), and tells apart the requests of several runs
        under one id: without it they are refused. `arguments` is the JSON of `edit`, or what it
        says, checked against the tool where `agent` is given; `answer` is the text of `answer` and
        `happened`. A repeat with the same `decision_id` is the same decision.
        Where several people must agree, the ruling says how many are `missing`. `is_standing` with
        'approve' is also a consent to later calls that the same rule asks about. `channel` and
        `auth` go on record: where it was decided, and how it is known that `by` is who they say.

        Raises DecisionRefused (already decided, stale, expired, locked, unknown request),
        NotAllowed for a person who may not decide this, RunNotFound, RunClosed, or UsageError for
        a verb that does not fit the request or what is given with it, and for an id that does not
        say which request is meant.
        """
        request = await self._meant(run_id, ask_id, digest, may_repeat=decision_id is not None)
        _check_verb(request, verb, is_standing=is_standing)
        _check_words(verb, has_arguments=arguments is not None, answer=answer)
        if isinstance(arguments, Mapping):
            arguments = canonical_json(dict(arguments))
        _check_person(request, verb, by)
        check_length(reason=reason, arguments=arguments or "", answer=answer or "", name=by)
        if verb == "edit":
            arguments = _checked_arguments(request, arguments, agent)
        decided = Decided(
            ask_id=ask_id,
            verb=verb,
            by=clean_text(by),
            reason=clean_text(reason),
            arguments=arguments,
            answer=clean_text(answer) if answer is not None else None,
            channel=clean_text(channel),
            auth=clean_text(auth),
            is_standing=is_standing,
        )
        decided = self._deps.clean(decided)
        decision = Decision(
            decision_id=decision_id or self._deps.new_id(),
            verb=verb,
            by=decided.by,
            digest=digest or request.digest,
            body=signal.encode(decided),
            needs_unlock=verb == "rerun",
            voter=identity(decided.by),
            is_veto=verb != "approve",
        )
        ruling = await self._deps.store.decide(RunId(request.run_id), ask_id, decision)
        if request.question.parent:
            # The parent drives its child; a wake-up that is lost here is made up for by a worker.
            occasion = decision.decision_id
            await rouse(self._deps.store, request.question.parent, request.run_id, occasion)
        return ruling

    async def comment(
        self, run_id: str, ask_id: str, text: str, *, by: str, digest: str | None = None
    ) -> None:
        """Say something about an open request, such as a question back. It decides nothing.

        `digest` tells requests apart, as for `decide`. Raises DecisionRefused, RunNotFound,
        RunClosed, or UsageError for an empty text.
        """
        if not (text := self._deps.clean_words(clean_text(text))).strip():
            raise UsageError("the comment is empty. Say something.")
        check_length(MAX_COMMENT_BYTES, comment=text, name=by)
        asking = await self._asking(run_id, ask_id, digest)
        await self._deps.store.comment(asking, ask_id, by=clean_text(by), text=text)

    async def claim(self, run_id: str, ask_id: str, *, by: str, digest: str | None = None) -> None:
        """Say that you look at a request: shown to others, who may still decide it.

        Raises AskClaimed where somebody else did, and what `comment` raises.
        """
        by = clean_text(by)
        check_length(MAX_COMMENT_BYTES, name=by)
        asking = await self._asking(run_id, ask_id, digest)
        await self._deps.store.claim_ask(asking, ask_id, by=by, voter=identity(by))

    async def release(
        self, run_id: str, ask_id: str, *, by: str, digest: str | None = None
    ) -> None:
        """Take your claim back. Raises what `claim` raises."""
        by = clean_text(by)
        asking = await self._asking(run_id, ask_id, digest)
        await self._deps.store.release_ask(asking, ask_id, by=by, voter=identity(by))

    async def _asking(self, run_id: str, ask_id: str, digest: str | None) -> RunId:
        """The run that asks: this one, or one that works for it."""
        return RunId((await self.request(run_id, ask_id, digest=digest)).run_id)

    # -- standing consents --------------------------------------------------------------------

    async def consent(
        self,
        run_id: str,
        tool: str,
        *,
        by: str,
        rule: str = "",
        reason: str = "",
        channel: str = "api",
        auth: str = "claimed",
    ) -> str:
        """Agree to later calls of `tool` in this run, and return the consent's id.

        With `rule`, only where the approval rule of that name asks. It never holds for another
        run, for a call that needs several people, or where the rule itself failed; and not for a
        tool whose rule keeps `by` from deciding. Raises RunNotFound, RunClosed or NotAllowed.
        """
        if not identity(by):
            raise NotAllowed("a consent needs a name. Say who agrees.")
        check_length(tool=tool, rule=rule, name=by, reason=reason)
        said = Consent(tool, rule, *map(clean_text, (by, reason, channel, auth)))
        said = self._deps.clean(said)
        consent_id = self._deps.new_id()[:12]
        await self._deps.store.signal(
            RunId(run_id), signal_id=f"consent:{consent_id}", body=signal.encode(said)
        )
        return consent_id

    async def revoke(self, run_id: str, consent_id: str, *, by: str, reason: str = "") -> None:
        """End a standing consent. A call that starts at this moment may still have used it.

        Raises UsageError for an id that does not hold, with those that do; RunClosed, RunNotFound.
        """
        check_length(name=by, reason=reason)
        known = [each.consent_id for each in await self.consents(run_id)]
        if consent_id not in known:
            listed = ", ".join(known) or "none"
            raise UsageError(f"run {run_id!r} has no consent {consent_id!r}. It has: {listed}.")
        said = Revoke(consent_id, clean_text(by), clean_text(reason))
        await self._deps.store.signal(
            RunId(run_id), signal_id=f"revoke:{consent_id}", body=signal.encode(said)
        )

    async def consents(self, run_id: str) -> Sequence[Standing]:
        """The standing consents of a run, oldest first, with those that nobody took up yet."""
        run, _ = await load(RunId(run_id), self._deps)
        found = {c.consent_id: _standing(c) for c in run.consents}
        for mail in await self._deps.store.mailbox(RunId(run_id)):
            said, consent_id = signal.decode_signal(mail.body), mail.signal_id.partition(":")[2]
            if isinstance(said, Consent):
                found[consent_id] = Standing(
                    consent_id=consent_id,
                    tool=said.tool,
                    rule=said.rule,
                    by=said.by,
                    reason=said.reason,
                    is_taken_up=False,
                )
            elif isinstance(said, Revoke):
                found.pop(said.consent_id, None)
        return list(found.values())


def _standing(consented: Consented) -> Standing:
    return Standing(
        consent_id=consented.consent_id,
        tool=consented.tool,
        rule=consented.rule,
        by=consented.by,
        reason=consented.reason,
    )


def check_length(most_bytes: int = MAX_WORDS_BYTES, /, **texts: str) -> None:
    """Refuse here what the run could never put on record. Raises UsageError."""
    sizes = {what: len(clean_text(text).encode()) for what, text in texts.items() if text}
    if (size := sum(sizes.values())) > most_bytes:
        raise UsageError(
            f"the {' and the '.join(sizes)} come to {size:,} bytes, {most_bytes:,} are possible. "
            "Shorten what is long."
        )


def verbs_of(request: Request) -> tuple[Verb, ...]:
    """What a person may decide of a request. Time expires one, no person does."""
    question = request.question
    verbs = tuple(v for v in VERBS[question.kind] if v != "expire")
    if question.quorum > 1:
        verbs = tuple(v for v in verbs if v != "edit")  # nobody else agreed to the new arguments
    return verbs


def _check_verb(request: Request, verb: Verb, *, is_standing: bool) -> None:
    question, verbs = request.question, verbs_of(request)
    if verb not in verbs:
        offered = ", ".join(verbs)
        needs = f" and needs {question.quorum} people" if question.quorum > 1 else ""
        raise UsageError(
            f"{verb!r} does not fit request {request.ask_id!r}, which is a "
            f"{question.kind.replace('_', ' ')} request{needs}. Use one of: {offered}."
        )
    if not is_standing:
        return
    if verb != "approve" or question.kind != "approval" or question.quorum > 1:
        raise UsageError(
            f"request {request.ask_id!r} cannot be agreed to for later calls as well: that is for"
            " 'approve', where one person is enough."
        )


def _check_words(verb: Verb, *, has_arguments: bool, answer: str | None) -> None:
    """Refuse what the verb has no use for: whoever gave it expects something else to happen."""
    if has_arguments and verb != "edit":
        raise UsageError(f"{verb} takes no arguments. Use edit, or leave them out.")
    if answer is not None and verb not in ("answer", "happened"):
        raise UsageError(f"{verb} takes no answer. Use a verb that does, or leave it out.")
    if verb == "answer" and not (answer or "").strip():
        raise UsageError("answer needs a text. Give what the model should be told.")


def _check_person(request: Request, verb: Verb, by: str) -> None:
    """Raises NotAllowed. Who started the run may say no to it, as anybody may."""
    question, who = request.question, identity(by)
    if who == identity(DEADLINE):
        raise NotAllowed(f"{by!r} is what time decides as, and no person. Give your name.")
    if not (question.not_requester or question.quorum > 1):
        return
    if not who:
        raise NotAllowed(f"request {request.ask_id!r} is not for somebody without a name.")
    is_letting = verb in ("approve", "edit", "answer")
    if question.not_requester and is_letting and who == identity(question.requester):
        raise NotAllowed(
            f"{by!r} started run {request.run_id!r} and may not decide request"
            f" {request.ask_id!r} of {question.tool}: somebody else has to."
        )


def _checked_arguments(request: Request, arguments: str | None, agent: Agent | None) -> str:
    """The canonical JSON of edited arguments. Raises UsageError if they are no arguments."""
    if arguments is None or not arguments.strip():
        raise UsageError("edit needs arguments: a JSON object.")
    if agent is not None and request.question.tool in agent.registry.names:
        bound = agent.registry.get(request.question.tool).bind(arguments)
        if isinstance(bound, Refused):
            raise UsageError(f"{request.question.tool}: {bound.problem}")
        return bound.arguments
    value = parsed(arguments)
    if isinstance(value, Refused):
        raise UsageError(f"{request.question.tool}: {value.problem}")
    return canonical_json(value)
