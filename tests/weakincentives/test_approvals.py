"""Claims about calls that wait for approval (S36): suspended, decided, resumed, across restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from weakincentives import serde
from weakincentives.clock import FakeClock
from weakincentives.errors import ApprovalError
from weakincentives.prompt import ApprovalPolicy, Prompt, PromptTemplate, QuotaPolicy, Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    ApprovalDecided,
    PendingApproval,
    Session,
    ToolCall,
    ToolInvoked,
    ToolOutcome,
    aexecute_tool,
    aresume,
    decide,
    execute_tool,
    pending_approvals,
    resume,
)
from weakincentives.serde import Secret


@dataclass(frozen=True)
class Deploy:
    target: str
    force: bool = False


@dataclass(frozen=True)
class Login:
    user: str
    password: Annotated[str, Secret]


@dataclass(frozen=True)
class Deployed:
    target: str


def _deploy(params: Deploy, *, context: ToolContext) -> ToolResult[str]:
    context.session[Deployed].append(Deployed(params.target))
    if params.target == "nowhere":
        raise ValueError("No such target")
    return ToolResult.ok(f"deployed to {params.target}")


def _login(params: Login, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(f"{params.user} is in")


def _status(params: None, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok("fine")


TOOLS: tuple[Tool[Any, Any], ...] = (
    Tool[Deploy, str](name="deploy", description="Deploy.", handler=_deploy),
    Tool[Login, str](name="login", description="Log in.", handler=_login),
    Tool[None, str](name="status", description="Ask for the status.", handler=_status),
)


def prompt_of(*policies: Any) -> Prompt[Any]:
    return Prompt(PromptTemplate(policies=policies)).bind(extra_tools=TOOLS)


PROMPT = prompt_of(ApprovalPolicy())
CALL = ToolCall("deploy", {"target": "prod"}, "c1")


def run(session: Session, call: ToolCall = CALL, prompt: Prompt[Any] = PROMPT) -> ToolOutcome:
    return execute_tool(call, prompt=prompt, session=session)


@pytest.fixture
def session() -> Session:
    return Session(clock=FakeClock(start=100.0), session_id="s1")


# -- suspended ---------------------------------------------------------------------------------------------------------


def test_a_call_that_needs_approval_is_suspended(session: Session) -> None:
    """Its handler does not run; the model reads that it must wait, and under which id."""
    outcome = run(session)

    assert (outcome.outcome, outcome.success, session[Deployed].all()) == ("pending", False, ())
    assert outcome.approval_id
    assert outcome.text == (
        f"'deploy' needs approval before it can run (approval id {outcome.approval_id}).\n"
        "The call did not run. Wait for a decision, then retry with the same arguments."
    )
    [event] = session[ToolInvoked].all()
    assert (event.outcome, event.call_id, event.policy) == ("pending", "c1", "approval")


def test_what_waits_can_be_listed_and_sent_anywhere(session: Session) -> None:
    """A pending approval is plain data that survives a trip through JSON."""
    outcome = run(session)

    [pending] = pending_approvals(session)
    assert pending == PendingApproval(outcome.approval_id, "deploy", {"target": "prod", "force": False}, "c1")
    assert serde.parse_json(PendingApproval, serde.dump_json(pending)) == pending


def test_asking_twice_waits_once(session: Session) -> None:
    """The same call again is the same question, now asked by the newer call."""
    run(session)
    run(session, replace(CALL, call_id="c2"))

    assert [pending.call_id for pending in pending_approvals(session)] == ["c2"]


def test_only_the_tools_named_need_approval(session: Session) -> None:
    """Others pass."""
    prompt = prompt_of(ApprovalPolicy(tools=["deploy"]))

    assert run(session, ToolCall("status"), prompt).outcome == "ok"
    assert run(session, CALL, prompt).outcome == "pending"


def test_a_tool_without_parameters_can_wait_too(session: Session) -> None:
    """Its arguments are an empty object."""
    outcome = run(session, ToolCall("status"))

    assert pending_approvals(session)[0].arguments == {}
    assert resume(outcome, prompt=PROMPT, session=session).text == "fine"


def test_a_suspended_call_takes_no_seat_of_a_quota(session: Session) -> None:
    """Only calls whose handler started count."""
    prompt = prompt_of(QuotaPolicy(1), ApprovalPolicy())
    outcome = run(session, CALL, prompt)
    run(session, CALL, prompt)

    assert resume(outcome, prompt=prompt, session=session).outcome == "ok"


# -- decided -----------------------------------------------------------------------------------------------------------


def test_an_approved_call_runs_when_it_is_made_again(session: Session) -> None:
    """The model retries with the same arguments and gets through."""
    decide(session, run(session).approval_id, approved=True)

    assert run(session, replace(CALL, call_id="c2")).text == "deployed to prod"


def test_a_refused_call_is_denied_with_the_reason(session: Session) -> None:
    """The model reads why; asking once more is a new question."""
    decide(session, run(session).approval_id, approved=False, reason="Not on a Friday.")
    outcome = run(session)

    assert (outcome.outcome, outcome.text) == (
        "denied",
        "Cannot call 'deploy': approval was refused. Not on a Friday.",
    )
    assert run(session).outcome == "pending"


def test_a_refusal_needs_no_reason(session: Session) -> None:
    """Then the text ends where the reason would begin."""
    decide(session, run(session).approval_id, approved=False)

    assert run(session).text == "Cannot call 'deploy': approval was refused."


def test_an_approval_serves_one_call(session: Session) -> None:
    """The next one waits again, also when the approved one failed."""
    for target in ("prod", "nowhere"):
        call = ToolCall("deploy", {"target": target})
        decide(session, run(session, call).approval_id, approved=True)

        assert run(session, call).outcome in ("ok", "failed")
        assert run(session, call).outcome == "pending"


def test_an_approval_serves_the_same_arguments_alone(session: Session) -> None:
    """What was approved is this tool with these arguments."""
    decide(session, run(session).approval_id, approved=True)

    assert run(session, ToolCall("deploy", {"target": "prod", "force": True})).outcome == "pending"
    assert run(session, ToolCall("deploy", '{"force": false, "target": "prod"}')).outcome == "ok"


def test_an_approval_is_kept_for_a_call_that_another_policy_denied(session: Session) -> None:
    """A call that never started used nothing up."""
    prompt = prompt_of(ApprovalPolicy(), QuotaPolicy(0))
    decide(session, run(session, CALL, prompt).approval_id, approved=True)
    assert run(session, CALL, prompt).text == "Quota exceeded: 0/0 calls used"

    assert run(session).outcome == "ok"


def test_a_decision_is_recorded(session: Session) -> None:
    """Who decided what about which call, and when."""
    approval_id = run(session).approval_id
    decide(session, approval_id, approved=False, reason="No.", by="ann")

    assert session[ApprovalDecided].all() == (
        ApprovalDecided(approval_id, "deploy", "c1", False, "No.", "ann", 100.0, "s1"),
    )


def test_nothing_is_left_of_an_approval_that_was_used(session: Session) -> None:
    """A session does not grow with the approvals of its past."""
    resume(run(session), prompt=PROMPT, session=session)
    resume(run(session), approved=False, prompt=PROMPT, session=session)

    assert (pending_approvals(session), session.registers.copy()) == ((), {})


def test_a_decision_about_nothing_is_refused(session: Session) -> None:
    """The message says what waits instead."""
    with pytest.raises(ApprovalError) as refused:
        decide(session, "nothing", approved=True)
    assert str(refused.value) == "No call waits for approval 'nothing'. None is waiting."
    approval_id = run(session).approval_id
    with pytest.raises(ApprovalError) as refused:
        decide(session, "nothing", approved=True)
    assert str(refused.value) == f"No call waits for approval 'nothing'. Waiting: {approval_id}."


def test_a_decision_is_made_once(session: Session) -> None:
    """Approving twice does not approve two calls."""
    approval_id = run(session).approval_id
    decide(session, approval_id, approved=True)

    with pytest.raises(ApprovalError):
        decide(session, approval_id, approved=True)


def test_two_policies_ask_twice(session: Session) -> None:
    """Each policy wants an approval of its own before the call runs."""
    prompt = prompt_of(ApprovalPolicy(), ApprovalPolicy(tools=["deploy"]))
    for _ in range(2):
        decide(session, run(session, CALL, prompt).approval_id, approved=True)

    assert run(session, CALL, prompt).outcome == "ok"
    assert session.registers.copy() == {}


# -- resumed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["outcome", "call", "pending"])
def test_a_call_is_resumed_in_every_form(session: Session, form: str) -> None:
    """The outcome, the call, or what was listed: each goes on as the call it was."""
    outcome = run(session)
    waiting: Any = {"outcome": outcome, "call": CALL, "pending": pending_approvals(session)[0]}[form]
    resumed = resume(waiting, prompt=PROMPT, session=session, by="ann")

    assert (resumed.text, resumed.call_id) == ("deployed to prod", "c1")
    assert [event.outcome for event in session[ToolInvoked].all()] == ["pending", "ok"]
    assert [decision.by for decision in session[ApprovalDecided].all()] == ["ann"]


def test_a_resumed_call_can_be_refused(session: Session) -> None:
    """The run goes on with a denied call."""
    resumed = resume(run(session), approved=False, reason="No.", prompt=PROMPT, session=session)

    assert (resumed.outcome, resumed.text) == ("denied", "Cannot call 'deploy': approval was refused. No.")


def test_a_call_resumes_on_an_event_loop() -> None:
    """`aresume` is the async twin."""

    async def main() -> ToolOutcome:
        session = Session()
        outcome = await aexecute_tool(CALL, prompt=PROMPT, session=session)
        return await aresume(outcome, prompt=PROMPT, session=session)

    assert asyncio.run(main()).text == "deployed to prod"


def test_resuming_keeps_an_earlier_decision(session: Session) -> None:
    """What was decided elsewhere counts; resume only goes on."""
    for approved, outcome in ((True, "ok"), (False, "denied")):
        pending = run(session)
        decide(session, pending.approval_id, approved=approved)

        assert resume(pending, prompt=PROMPT, session=session).outcome == outcome


def test_an_approved_call_cannot_be_refused_by_resuming(session: Session) -> None:
    """Two people who disagree are told so."""
    pending = run(session)
    decide(session, pending.approval_id, approved=True)
    with pytest.raises(ApprovalError) as refused:
        resume(pending, approved=False, prompt=PROMPT, session=session)

    assert str(refused.value) == "Cannot resume 'deploy': it was approved already."


def test_a_call_that_never_asked_cannot_be_resumed(session: Session) -> None:
    """Resuming approves what waits and nothing else."""
    run(session)
    with pytest.raises(ApprovalError) as refused:
        resume(ToolCall("deploy", {"target": "elsewhere"}), prompt=PROMPT, session=session)

    assert str(refused.value) == "Cannot resume 'deploy': no call with these arguments waits for approval."
    assert session[Deployed].all() == ()


def test_an_outcome_resumes_once(session: Session) -> None:
    """The approval was used up by the first time."""
    pending = run(session)
    resume(pending, prompt=PROMPT, session=session)
    with pytest.raises(ApprovalError, match="no call with these arguments waits"):
        resume(pending, prompt=PROMPT, session=session)


def test_an_outcome_that_is_not_pending_cannot_be_resumed(session: Session) -> None:
    """There is nothing to go on with."""
    outcome = run(session, ToolCall("unknown"))
    with pytest.raises(ApprovalError) as refused:
        resume(outcome, prompt=PROMPT, session=session)

    assert str(refused.value) == "Cannot resume 'unknown': its outcome is 'unknown_tool', not 'pending'."


def test_a_call_that_does_not_fit_the_prompt_cannot_be_resumed(session: Session) -> None:
    """The tool must be there and take the arguments, or nobody knows what was approved."""
    with pytest.raises(ApprovalError) as refused:
        resume(ToolCall("gone"), prompt=PROMPT, session=session)
    assert str(refused.value) == "Cannot resume 'gone': the prompt has no such tool now."
    with pytest.raises(ApprovalError, match="Cannot resume 'deploy': its arguments do not fit the tool: "):
        resume(ToolCall("deploy", {}), prompt=PROMPT, session=session)


def test_changed_arguments_are_refused(session: Session) -> None:
    """What comes back must be what was sent out."""
    run(session)
    forged = replace(pending_approvals(session)[0], arguments={"target": "prod", "force": True})
    with pytest.raises(ApprovalError) as refused:
        resume(forged, prompt=PROMPT, session=session)

    assert str(refused.value) == (
        "Cannot resume 'deploy' from what was stored: secret arguments are not stored, or the arguments were changed. "
        "Pass the original ToolCall."
    )
    assert session[Deployed].all() == ()


def test_secrets_are_redacted_and_the_original_call_is_needed(session: Session) -> None:
    """Nothing that waits shows a secret; the caller who still has it can go on."""
    call = ToolCall("login", {"user": "ann", "password": "hunter2"})
    run(session, call)
    [pending] = pending_approvals(session)
    assert pending.arguments == {"user": "ann", "password": "[redacted]"}
    assert "hunter2" not in repr(session.registers.copy())
    with pytest.raises(ApprovalError, match="secret arguments are not stored"):
        resume(pending, prompt=PROMPT, session=session)

    assert resume(call, prompt=PROMPT, session=session).text == "ann is in"


# -- across restarts -----------------------------------------------------------------------------------------------------


def test_what_waits_survives_a_restart(tmp_path: Path) -> None:
    """A durable session asks in one process, decides in the next and goes on in a third."""
    path = tmp_path / "session"
    with Session.open(path) as session:
        run(session)
    with Session.open(path) as session:
        [pending] = pending_approvals(session)
        decide(session, pending.approval_id, approved=True)
    with Session.open(path) as session:
        assert pending_approvals(session) == ()
        assert resume(pending, prompt=PROMPT, session=session).text == "deployed to prod"
    with Session.open(path) as session:
        assert run(session).outcome == "pending"


def test_a_secret_that_waits_is_not_in_the_file(tmp_path: Path) -> None:
    """S59 holds for the registers of a durable session."""
    path = tmp_path / "session"
    with Session.open(path) as session:
        run(session, ToolCall("login", {"user": "ann", "password": "hunter2"}))

    stored = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert b"ann" in stored
    assert b"hunter2" not in stored


# -- asked at once -------------------------------------------------------------------------------------------------------


def asking(answer: object) -> Prompt[Any]:
    return prompt_of(ApprovalPolicy(ask=lambda tool, params, context: answer))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("answer", "outcome", "text"),
    [
        (True, "ok", "deployed to prod"),
        (False, "denied", "Cannot call 'deploy': approval was refused. It was rejected."),
        ("Too late.", "denied", "Cannot call 'deploy': approval was refused. Too late."),
        ("", "denied", "Cannot call 'deploy': approval was refused. It was rejected."),
        (1, "denied", "Cannot call 'deploy': approval was refused. It was rejected."),
    ],
)
def test_a_function_can_decide_at_once(session: Session, answer: object, outcome: str, text: str) -> None:
    """True approves, and nothing else does."""
    result = run(session, CALL, asking(answer))

    assert (result.outcome, result.text) == (outcome, text)
    assert session.registers.copy() == {}


def test_a_function_can_leave_it_open(session: Session) -> None:
    """None suspends the call like a policy that asks nobody."""
    outcome = run(session, CALL, asking(None))

    assert outcome.outcome == "pending"
    assert resume(outcome, prompt=asking(False), session=session).outcome == "ok"


def test_an_async_function_can_decide(session: Session) -> None:
    """Asking may take its time, from sync code and on a loop."""

    async def ask(tool: Any, params: Deploy, context: ToolContext) -> bool:
        await asyncio.sleep(0)
        return params.target == "prod"

    prompt = prompt_of(ApprovalPolicy(ask=ask))

    assert run(session, CALL, prompt).outcome == "ok"
    assert asyncio.run(aexecute_tool(CALL, prompt=prompt, session=session)).outcome == "ok"
    assert run(session, ToolCall("deploy", {"target": "test"}), prompt).outcome == "denied"


def test_the_session_is_free_while_somebody_is_asked(session: Session) -> None:
    """S6: approvals are asked outside of the lock, so another call may run meanwhile."""
    seen: list[str] = []

    def ask(tool: Any, params: Any, context: ToolContext) -> bool:
        if tool.name == "deploy":
            seen.append(run(session, ToolCall("status"), prompt_of()).text)
        return True

    run(session, CALL, prompt_of(ApprovalPolicy(ask=ask)))

    assert seen == ["fine"]


def test_nobody_is_asked_what_another_policy_denies(session: Session) -> None:
    """Policies before the approval are consulted first, and give their seats back."""
    asked: list[str] = []

    def ask(tool: Any, params: Any, context: ToolContext) -> bool:
        asked.append(tool.name)
        return True

    prompt = prompt_of(QuotaPolicy(1), ApprovalPolicy(ask=ask))

    assert [run(session, CALL, prompt).outcome for _ in range(2)] == ["ok", "denied"]
    assert asked == ["deploy"]


def test_a_function_that_raises_denies(session: Session) -> None:
    """S14: fail closed, and say which policy."""

    def ask(tool: Any, params: Any, context: ToolContext) -> bool:
        raise OSError("no line")

    outcome = run(session, CALL, prompt_of(ApprovalPolicy(ask=ask)))

    assert (outcome.outcome, outcome.text) == (
        "denied",
        "Policy 'approval' failed: no line. The call was denied and cannot succeed until the policy is fixed.",
    )


def test_only_governed_tools_are_asked_about(session: Session) -> None:
    """The function hears of the tools it was set up for."""
    asked: list[str] = []

    def ask(tool: Any, params: Any, context: ToolContext) -> Callable[..., object] | bool:
        asked.append(tool.name)
        return True

    prompt = prompt_of(ApprovalPolicy(["deploy"], ask))  # type: ignore[arg-type]
    run(session, ToolCall("status"), prompt)
    run(session, CALL, prompt)

    assert asked == ["deploy"]
