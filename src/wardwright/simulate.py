"""What a plan would rule on a recorded conversation: the same gates as live, on an overlay of history.

Runs no server tool, sends no alert, uses no approval and leaves no trace: all it calls is `govern`. The recorded client goes on
with what it would have been given, so calls that were refused, and the results that answer them, are missing from what it
sends next; `as_recorded` keeps them. Decides nothing about tools itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

from wardwright import receipts
from wardwright.errors import WireError
from wardwright.gateway import govern, model_plan, passes
from wardwright.history import Registers, apply
from wardwright.policy.compile import ModelPlan, Plan, RuleSet
from wardwright.policy.rules import AllowedTools, Rule, Ruling
from wardwright.receipts import Judged, Outcome, Receipt
from wardwright.wire import anthropic, chat_completions, mcp, responses
from wardwright.wire.body import write
from wardwright.wire.turn import (
    Caller,
    CallItem,
    DeclaredTool,
    Gate,
    HostedCallItem,
    HostedResultItem,
    Item,
    ResultItem,
    TextItem,
    Turn,
    WireName,
)

Surface: TypeAlias = Literal["all", "phase"]
"""all: every declared tool is there; rules that narrow the surface are left out
phase: the model is shown only what `allowed_tools` lists for the phase and state, and a call to anything else is denied"""

WIRES: Final[tuple[WireName, ...]] = ("chat_completions", "responses", "anthropic", "mcp")
_ANTHROPIC_BLOCKS: Final = frozenset(
    {"tool_use", "tool_result", "server_tool_use", "web_search_tool_result", "thinking"}
)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A recorded conversation: one request that holds all of it, or (MCP) one turn per message."""

    turns: tuple[Turn, ...]
    answers: Mapping[int, int] = field(default_factory=dict[int, int])
    """MCP: index of a result → index of the call it answers."""


@dataclass(frozen=True, slots=True)
class Step:
    """One gate of the simulation."""

    number: int
    gate: Gate
    at_ms: int
    turn: Turn
    ruling: Ruling


@dataclass(frozen=True, slots=True)
class BlockedCall:
    """A recorded call that would not have reached the client."""

    step: int
    call_id: str
    name: str
    status: str
    rules: tuple[str, ...]
    message: str
    approval: str = ""
    """Where the model would have been told that it waits: a handle, which is nobody's."""


@dataclass(frozen=True, slots=True)
class SurfaceStep:
    """What the model could call at one request, with all tools and with the phase's, and what it then called."""

    step: int
    phase: str
    states: Mapping[str, str]
    all: tuple[str, ...]
    phase_scoped: tuple[str, ...]
    called: tuple[str, ...]
    blocked: tuple[str, ...]
    """Recorded calls that the narrow surface would have cost."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What came out. `registers` is the overlay after the last gate; the value given in is untouched."""

    plan_hash: str
    steps: tuple[Step, ...]
    registers: Registers
    receipts: tuple[Receipt, ...]
    """The receipts live serving would have written, but for attempts and timing."""
    surface: tuple[SurfaceStep, ...] = ()
    unreached: int = 0
    """Recorded replies that were never asked for, because the request before them was refused."""

    @property
    def blocked_calls(self) -> tuple[BlockedCall, ...]:
        return tuple(
            BlockedCall(step.number, call.call_id, call.name, call.status, call.rules, call.message, call.approval)
            for step in self.steps
            for call in step.ruling.calls
            if call.status != "allow"
        )

    @property
    def refused(self) -> bool:
        """Whether any gate did more than let everything pass."""
        return any(step.ruling.decision != "allow" for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        """Plain values: every gate as its receipt would hold it."""
        gates = [gate for receipt in self.receipts for gate in receipt["decision"]["gates"]]
        decisions: dict[str, int] = {}
        for step in self.steps:
            decisions[step.ruling.decision] = decisions.get(step.ruling.decision, 0) + 1
        told: dict[str, Any] = {
            "plan_hash": self.plan_hash,
            "decisions": decisions,
            "unreached": self.unreached,
            "blocked_calls": [
                {
                    "step": call.step,
                    "call_id": call.call_id,
                    "name": call.name,
                    "status": call.status,
                    "rules": list(call.rules),
                    "message": call.message,
                    **({"approval": call.approval} if call.approval else {}),
                }
                for call in self.blocked_calls
            ],
            "states": dict(self.steps[-1].ruling.states) if self.steps else {},
            "steps": [{"step": step.number, **gate} for step, gate in zip(self.steps, gates, strict=True)],
        }
        if self.surface:
            told["surface"] = [
                {
                    "step": row.step,
                    "phase": row.phase,
                    "states": dict(row.states),
                    "all": list(row.all),
                    "phase_scoped": list(row.phase_scoped),
                    "called": list(row.called),
                    "blocked": list(row.blocked),
                }
                for row in self.surface
            ]
        return told


# reading a conversation


def read_transcript(
    source: bytes | str | Sequence[Any] | Mapping[str, Any], wire: WireName | None = None
) -> Transcript:
    """A conversation in any wire's own form, or a bare list of chat messages. WireError when it is none."""
    value: Any = source
    if isinstance(source, (bytes, str)):
        try:
            value = orjson.loads(source)
        except orjson.JSONDecodeError as error:
            raise WireError(f"the transcript is not JSON: {error}") from None
    wire = wire or wire_of(value)
    if wire == "mcp":
        return _mcp(cast("list[Any]", value) if isinstance(value, list) else [value])
    body: dict[str, Any]
    if isinstance(value, list):
        body = {"input" if wire == "responses" else "messages": value}
    elif isinstance(value, dict):
        body = cast("dict[str, Any]", value)
    else:
        raise WireError("a transcript is a request body or a list of messages")
    if wire == "chat_completions":
        return Transcript((chat_completions.parse_request(_written_out(body)),))
    if wire == "responses":
        return Transcript((responses.parse_request(body),))
    if wire == "anthropic":
        return Transcript((anthropic.parse_request(body),))
    raise WireError(f"wire {wire!r} has no transcripts; choose {', '.join(WIRES)}")


def wire_of(value: Any) -> WireName:
    """Which wire a JSON document is written for; chat messages when nothing says otherwise."""
    entries: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    if entries and all(isinstance(entry, dict) and "jsonrpc" in entry for entry in entries):
        return "mcp"
    if not isinstance(value, dict):
        return "anthropic" if _has_blocks(entries) else "chat_completions"
    body = cast("dict[str, Any]", value)
    if "input" in body and "messages" not in body:
        return "responses"
    tools: Any = body.get("tools")
    described = isinstance(tools, list) and any(
        isinstance(tool, dict) and "input_schema" in tool for tool in cast("list[Any]", tools)
    )
    messages: Any = body.get("messages")
    if "system" in body or described or _has_blocks(cast("list[Any]", messages) if isinstance(messages, list) else []):
        return "anthropic"
    return "chat_completions"


def _has_blocks(messages: Sequence[Any]) -> bool:
    for message in messages:
        content: Any = cast("dict[str, Any]", message).get("content") if isinstance(message, dict) else None
        for block in cast("list[Any]", content) if isinstance(content, list) else ():
            if isinstance(block, dict) and cast("dict[str, Any]", block).get("type") in _ANTHROPIC_BLOCKS:
                return True
    return False


def _written_out(body: dict[str, Any]) -> dict[str, Any]:
    """The short forms of case files as the wire has them: `{id, name, arguments}` calls and `{name, …}` tools."""
    messages: Any = body.get("messages")
    if isinstance(messages, list):
        body = {**body, "messages": [_message(entry) for entry in cast("list[Any]", messages)]}
    tools: Any = body.get("tools")
    if isinstance(tools, list):
        body["tools"] = [_tool(entry) for entry in cast("list[Any]", tools)]
    return body


def _message(message: Any) -> Any:
    fields = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
    if not isinstance(fields.get("tool_calls"), list):
        return cast("Any", message)
    return {**fields, "tool_calls": [_call(entry) for entry in cast("list[Any]", fields["tool_calls"])]}


def _call(call: Any) -> Any:
    fields = cast("dict[str, Any]", call) if isinstance(call, dict) else {}
    if "name" not in fields or "function" in fields:
        return cast("Any", call)
    arguments: Any = fields.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = write(arguments).decode()
    return {
        "id": fields.get("id", ""),
        "type": "function",
        "function": {"name": fields["name"], "arguments": arguments},
    }


def _tool(tool: Any) -> Any:
    if isinstance(tool, str):
        return {"type": "function", "function": {"name": tool}}
    fields = cast("dict[str, Any]", tool) if isinstance(tool, dict) else {}
    return {"type": "function", "function": fields} if "name" in fields and "type" not in fields else cast("Any", tool)


def _mcp(messages: list[Any]) -> Transcript:
    turns: list[Turn] = []
    answers: dict[int, int] = {}
    asked: dict[str | int, mcp.Asked] = {}
    calls: dict[str | int, int] = {}
    for value in messages:
        for message in mcp.parse_messages(cast("dict[str, Any]", value), asked):
            if message.kind == "request" and message.id is not None:
                called = message.turn.items[0] if message.turn is not None and message.turn.items else None
                if isinstance(called, CallItem):
                    calls[message.id] = len(turns)
                    asked[message.id] = mcp.Asked(message.method, called.name, "", called.arguments)
                else:
                    asked[message.id] = mcp.Asked(message.method)
            elif message.id is not None and message.turn is not None and message.id in calls:
                answers[len(turns)] = calls[message.id]
            if message.turn is not None:
                turns.append(message.turn)
    return Transcript(tuple(turns), answers)


# the simulation


def simulate(
    plan: Plan,
    transcript: Transcript,
    *,
    registers: Registers | None = None,
    caller: Caller | None = None,
    model: str = "",
    now: int = 0,
    step_ms: int = 0,
    surface: Surface | None = None,
    as_recorded: bool = False,
) -> Simulation:
    """Plays a conversation through the gates. `step_ms` passes between two gates; `registers` is where it starts."""
    run = _Simulator(
        plan if surface is None else with_surface(plan, surface),
        registers or Registers(key=b"simulation"),
        caller or Caller(session_id="simulation"),
        model,
        now,
        step_ms,
        as_recorded,
    )
    run.play(transcript, declare_called=surface is not None)
    rows: tuple[SurfaceStep, ...] = ()
    if surface is not None:
        narrow = run
        if surface != "phase":
            narrow = _Simulator(
                with_surface(plan, "phase"),
                registers or Registers(key=b"simulation"),
                caller or Caller(session_id="simulation"),
                model,
                now,
                step_ms,
                as_recorded,
            )
            narrow.play(transcript, declare_called=True)
        rows = tuple(narrow.surfaces())
    return Simulation(run.plan.plan_hash, tuple(run.steps), run.registers, tuple(run.receipts()), rows, run.unreached)


def with_surface(plan: Plan, surface: Surface) -> Plan:
    """The plan with another idea of which tools are shown; everything else stays, registers included."""
    models = {
        name: replace(
            part,
            plan_hash=f"{part.plan_hash}+{surface}",
            rules=RuleSet(tuple(_resurfaced(part.rules.rules, surface))),
            bundles={key: RuleSet(tuple(_resurfaced(bundle.rules, surface))) for key, bundle in part.bundles.items()},
        )
        for name, part in plan.models.items()
    }
    return replace(plan, plan_hash=f"{plan.plan_hash}+{surface}", models=models)


def _resurfaced(rules: Sequence[Rule], surface: Surface) -> Iterator[Rule]:
    for rule in rules:
        if surface == "all" and (isinstance(rule, AllowedTools) or rule.action.name == "strip_tools"):
            continue
        if isinstance(rule, AllowedTools):
            yield replace(rule, surface="filter", action=replace(rule.action, name="deny_call"))
        else:
            yield rule


class _Simulator:
    """One conversation on its way through the gates."""

    def __init__(
        self,
        plan: Plan,
        registers: Registers,
        caller: Caller,
        model: str,
        now: int,
        step_ms: int,
        as_recorded: bool,
    ) -> None:
        self.plan = plan
        self.registers = registers
        self.caller = caller
        self.model = model
        self.now = now
        self.step_ms = step_ms
        self.as_recorded = as_recorded
        self.steps: list[Step] = []
        self.unreached = 0
        self.client = _Client()

    def play(self, transcript: Transcript, *, declare_called: bool) -> None:
        if len(transcript.turns) == 1 and transcript.turns[0].gate == "request" and not transcript.answers:
            whole = transcript.turns[0]
            if declare_called and not whole.tools:
                whole = replace(whole, tools=_called_tools(whole.items))
            self._conversation(whole)
            return
        minted: dict[int, str] = {}
        for index, turn in enumerate(transcript.turns):
            answered = transcript.answers.get(index)
            if answered is not None:
                if answered not in minted:
                    self.unreached += 1
                    continue
                turn = replace(turn, items=[_named(item, minted[answered]) for item in turn.items])
            ruling = self._gate(turn)
            if turn.gate == "reply" and ruling.calls and (passes(ruling) or self.as_recorded):
                minted[index] = ruling.calls[0].call_id

    def _conversation(self, whole: Turn) -> None:
        items = whole.items
        position, asked, route = 0, False, ""
        while position < len(items) or not self.steps:
            start = position
            while position < len(items) and not _is_reply(items[position]):
                position += 1
            new = self.client.send(items[start:position], keep=self.as_recorded)
            if new or not self.steps:
                request = self._gate(replace(whole, items=list(self.client.items)))
                asked = passes(request) or self.as_recorded
                route = self._target(request, whole)
            start = position
            while position < len(items) and _is_reply(items[position]):
                position += 1
            if start == position:
                continue
            reply = list(items[start:position])
            if not asked:
                self.unreached += 1
                self.client.miss(reply)
                continue
            ruling = self._gate(replace(whole, gate="reply", items=reply, tool_choice=None, claims=None, target=route))
            if self.as_recorded:
                self.client.receive(reply, ruling, whole=True)
            elif passes(ruling):
                self.client.receive(reply, ruling, whole=False)
            else:
                self.client.miss(reply)
                # All calls denied, or another target must answer: the gateway asks again by itself.
                asked = ruling.reask or ruling.decision == "deny_call"

    def _target(self, ruling: Ruling, turn: Turn) -> str:
        """The model that routing would have asked."""
        route = ruling.route
        if route.model:
            return route.model
        allowed = route.allowed
        for one in route.prefer:
            if allowed is None or one in allowed:
                return one
        targets = self._part(turn).targets
        known = [target.model for target in targets]
        if allowed is not None:
            return next((one for one in known if one in allowed), allowed[0] if allowed else "")
        return known[0] if known else ""

    def _part(self, turn: Turn) -> ModelPlan:
        return model_plan(self.plan, replace(turn, model=self.model or turn.model))

    def _gate(self, turn: Turn) -> Ruling:
        turn = replace(turn, caller=self.caller, model=self.model or turn.model, approvals=())
        ruling, delta = govern(self.plan, self.registers, turn, self.now)
        self.registers = apply(self.registers, delta)
        self.steps.append(Step(len(self.steps) + 1, turn.gate, self.now, turn, ruling))
        self.now += self.step_ms
        return ruling

    def receipts(self) -> Iterator[Receipt]:
        """One per exchange: a request with everything up to the next request."""
        exchange: list[Step] = []
        for step in self.steps:
            if step.gate == "request" and exchange:
                yield self._receipt(exchange)
                exchange = []
            exchange.append(step)
        if exchange:
            yield self._receipt(exchange)

    def _receipt(self, exchange: Sequence[Step]) -> Receipt:
        judged = [Judged(step.turn, step.ruling, step.at_ms) for step in exchange]
        last = exchange[-1]
        status: receipts.Status = "released" if last.gate != "request" else "open"
        if not passes(last.ruling):
            held = any(call.status == "require_approval" for call in last.ruling.calls)
            status = "held" if held or last.ruling.decision == "require_approval" else "blocked"
        outcome = Outcome(status, selected_model=last.turn.target)
        rules = receipts.rules_of(self._part(exchange[0].turn))
        return receipts.build(f"simulated_{exchange[0].number}", judged, outcome, rules, self.registers.key)

    def surfaces(self) -> Iterator[SurfaceStep]:
        """Per request: the tools there are, those that were left, and what the reply called."""
        narrowing = {
            rule_id
            for part in self.plan.models.values()
            for rule_id, rule in receipts.rules_of(part).items()
            if isinstance(rule, AllowedTools)
        }
        for index, step in enumerate(self.steps):
            if step.gate != "request":
                continue
            names = tuple(fact.raw_name for fact in step.ruling.facts if fact.source == "declared_tool")
            hidden = set(step.ruling.stripped)
            called: list[str] = []
            blocked: list[str] = []
            for later in self.steps[index + 1 :]:
                if later.gate == "request":
                    break
                for call in later.ruling.calls if later.gate == "reply" else ():
                    called.append(call.name)
                    if call.name in hidden or narrowing.intersection(call.rules):
                        blocked.append(call.name)
            yield SurfaceStep(
                step.number,
                step.ruling.phase,
                dict(step.ruling.states),
                names,
                tuple(name for name in names if name not in hidden),
                tuple(called),
                tuple(blocked),
            )


class _Client:
    """What the recorded client holds, given what it was allowed to receive."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._missing: dict[str, int] = {}
        """Call ids (or names, where calls have no ids) whose calls never arrived."""
        self._renamed: dict[str, list[str]] = {}

    def send(self, items: Sequence[Item], *, keep: bool) -> bool:
        """Adds what the client says by itself; whether that is anything."""
        before = len(self.items)
        for item in items:
            if isinstance(item, ResultItem):
                key = item.call_id or f"\x00{item.name}"
                if self._missing.get(key, 0) and not keep:
                    self._missing[key] -= 1
                    continue
                if self._renamed.get(item.call_id):
                    item = replace(item, call_id=self._renamed[item.call_id].pop(0))
            self.items.append(item)
        return len(self.items) > before

    def receive(self, items: Sequence[Item], ruling: Ruling, *, whole: bool) -> None:
        """Takes a reply, without the calls that were denied unless `whole`; ids as the gateway gave them."""
        rulings = {call.item: call for call in ruling.calls}
        for index, item in enumerate(items):
            call = rulings.get(index)
            if call is not None and isinstance(item, CallItem):
                if call.status != "allow" and not whole:
                    self.miss([item])
                    continue
                if item.id:
                    # Every call takes its place in line: a repeated id is answered in the order of the calls.
                    self._renamed.setdefault(item.id, []).append(call.call_id)
                    if call.call_id != item.id:
                        item = replace(item, id=call.call_id)
            self.items.append(item)

    def miss(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, CallItem):
                key = item.id or f"\x00{item.name}"
                self._missing[key] = self._missing.get(key, 0) + 1


def _is_reply(item: Item) -> bool:
    if isinstance(item, TextItem):
        return item.role == "assistant"
    return isinstance(item, (CallItem, HostedCallItem, HostedResultItem))


def _called_tools(items: Sequence[Item]) -> tuple[DeclaredTool, ...]:
    names = dict.fromkeys(item.name for item in items if isinstance(item, CallItem))
    return tuple(DeclaredTool(name) for name in names)


def _named(item: Item, call_id: str) -> Item:
    if isinstance(item, CallItem):
        return replace(item, id=call_id)
    return replace(item, call_id=call_id) if isinstance(item, ResultItem) else item
