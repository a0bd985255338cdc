"""Calls that wait for somebody's approval: what waits, who decides, and how a decided call goes on.

The waiting calls lie in the session's registers, so a durable session still has them after a restart. An approval is
bound to the tool and a digest of its arguments and serves one call; nothing here can approve a call that never asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import serde
from ..errors import ApprovalError
from ..prompt.policies import APPROVALS, ApprovalEntry, approval_register, granted, refused
from ..prompt.prompt import Prompt
from ..session import Session, log_slice
from .call import UNPARSED, ToolCall, ToolOutcome
from .execute import aexecute_tool, execute_tool


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A call that waits for a decision. Plain data: send it anywhere, decide there, come back with its id."""

    approval_id: str
    tool_name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """As they would be sent as JSON; secret fields read `[redacted]`."""
    call_id: str = ""


@log_slice
@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """Somebody approved or refused a call."""

    approval_id: str
    tool_name: str
    call_id: str
    approved: bool
    reason: str
    by: str
    timestamp: float
    session_id: str


def pending_approvals(session: Session) -> tuple[PendingApproval, ...]:
    """The calls of this session that wait for a decision, the longest waiting first."""
    registers = session.registers.copy()
    return tuple(
        PendingApproval(
            register.removeprefix(APPROVALS), entry["tool"], dict(entry["arguments"] or ()), entry["call_id"]
        )
        for register, entry in registers.items()
        if register.startswith(APPROVALS) and entry.get("waiting")
    )


def decide(session: Session, approval_id: str, approved: bool, reason: str = "", by: str = "") -> None:
    """Approve or refuse the call that waits under this id; the next call of the same tool with the same arguments
    runs, or is denied with the reason. Recorded as `ApprovalDecided`."""

    def settle(entry: ApprovalEntry | None) -> tuple[ApprovalEntry | None, ApprovalEntry | None]:
        if entry is None or not entry.get("waiting"):
            return entry, None
        return granted(entry)[0] if approved else refused(entry, reason), entry

    entry = session.registers.update(APPROVALS + approval_id, settle)
    if entry is None:
        waiting = ", ".join(pending.approval_id for pending in pending_approvals(session))
        raise ApprovalError(
            f"No call waits for approval '{approval_id}'. "
            + (f"Waiting: {waiting}." if waiting else "None is waiting.")
        )
    core = session._core
    core.record(
        ApprovalDecided(
            approval_id, entry["tool"], entry["call_id"], approved, reason, by, core.clock.now(), core.session_id
        )
    )


def resume(
    waiting: ToolOutcome | ToolCall | PendingApproval,
    *,
    approved: bool = True,
    reason: str = "",
    by: str = "",
    session: Session,
    prompt: Prompt[Any] | None = None,
    **surroundings: Any,
) -> ToolOutcome:
    """Decide about a call that waits, unless `decide` did so before, and run it.

    The call alone, not the model's conversation: an `evaluate` that asked for it has ended. A model goes on when it
    retries the call, or by `stepwise()` with this outcome in place of the pending one. Refused, the outcome is
    `denied`. A `PendingApproval` can be resumed as long as its arguments hold no secrets: those were never stored, so
    the original call is needed.
    """
    call = _decided(waiting, approved, reason, by, session, prompt)
    return execute_tool(call, prompt=prompt, session=session, **surroundings)


async def aresume(
    waiting: ToolOutcome | ToolCall | PendingApproval,
    *,
    approved: bool = True,
    reason: str = "",
    by: str = "",
    session: Session,
    prompt: Prompt[Any] | None = None,
    **surroundings: Any,
) -> ToolOutcome:
    """The same on an event loop."""
    call = _decided(waiting, approved, reason, by, session, prompt)
    return await aexecute_tool(call, prompt=prompt, session=session, **surroundings)


def _decided(
    waiting: ToolOutcome | ToolCall | PendingApproval,
    approved: bool,
    reason: str,
    by: str,
    session: Session,
    prompt: Prompt[Any] | None,
) -> ToolCall:
    """The call to run, once its approval was decided one way or the other."""
    if isinstance(waiting, ToolOutcome):
        if waiting.outcome != "pending":
            raise ApprovalError(
                f"Cannot resume '{waiting.call.name}': its outcome is '{waiting.outcome}', not 'pending'."
            )
        call = replace(waiting.call, call_id=waiting.call_id)
        approval_id = waiting.approval_id
    elif isinstance(waiting, ToolCall):
        call = waiting
        approval_id = _approval_id(call, session, prompt)
    else:
        call = ToolCall(waiting.tool_name, waiting.arguments, waiting.call_id or None)
        approval_id = waiting.approval_id
        if _approval_id(call, session, prompt) != approval_id:
            raise ApprovalError(
                f"Cannot resume '{call.name}' from what was stored: secret arguments are not stored, "
                "or the arguments were changed. Pass the original ToolCall."
            )
    entry: ApprovalEntry = session.registers.get(APPROVALS + approval_id, {})
    if entry.get("waiting"):
        decide(session, approval_id, approved, reason, by)
    elif "refused" not in entry and not (approved and "granted" in entry):
        said = "it was approved already" if "granted" in entry else "no call with these arguments waits for approval"
        raise ApprovalError(f"Cannot resume '{call.name}': {said}.")
    return call


def _approval_id(call: ToolCall, session: Session, prompt: Prompt[Any] | None) -> str:
    """What the approval of exactly this call is called."""
    prompt = prompt if prompt is not None else call.prompt
    binding = None if prompt is None else prompt.find_tool(call.name, session)
    if binding is None:
        raise ApprovalError(f"Cannot resume '{call.name}': the prompt has no such tool now.")
    try:
        params = binding.tool.parse(call.arguments) if call.parsed is UNPARSED else call.parsed
    except serde.ParseError as error:
        raise ApprovalError(f"Cannot resume '{call.name}': its arguments do not fit the tool: {error}") from None
    return approval_register(call.name, params).removeprefix(APPROVALS)
