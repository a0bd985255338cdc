"""Policy cases: small stories in YAML with the ruling they must end in. Operators write them; our own tests are written in them.

A case is played through `govern` exactly as live traffic would be, on an empty history; unknown keys are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, cast

import orjson

from wardwright.config import Node, Problems, kind_of, parse_yaml
from wardwright.errors import ConfigError, Problem, WardwrightError
from wardwright.facts import (
    CONFIDENCES,
    EXECUTION_LOCATIONS,
    MARKS,
    PHASES,
    RESULT_STATUSES,
    RISK_CLASSES,
    SOURCES,
    STORED_FIELDS,
    ToolFact,
    stored,
)
from wardwright.gateway import govern, judge, model_plan, passes
from wardwright.history import Registers, ScopeState, apply, scope_key
from wardwright.policy.compile import ACTION_KEYS, Plan
from wardwright.policy.rules import Ruling
from wardwright.policy.states import enter
from wardwright.policy.windows import Position
from wardwright.receipts import Judged
from wardwright.wire import anthropic, chat_completions, mcp, responses
from wardwright.wire.turn import (
    Caller,
    CallItem,
    DeclaredTool,
    HostedCallItem,
    HostedResultItem,
    Item,
    ResultItem,
    TextItem,
    ToolChoice,
    Turn,
    Usage,
)

START_MS: Final = 1_000_000_000_000
"""When a case begins unless it says `at`, which counts from here."""

_NOTHING: Final[Mapping[str, Any]] = {}
CASE_KEYS: Final = ("description",)
GIVEN_KEYS: Final = (
    "transcript",
    "tools",
    "tool_choice",
    "reply",
    "result",
    "facts",
    "state",
    "at",
    "caller",
    "claims",
    "claims_trusted",
    "usage",
    "elapsed_ms",
    "target",
    "released",
    "server_tools",
    "response_format",
    "approve",
    "model",
    "wire",
    "body",
    "reply_body",
    "steps",
)
STEP_KEYS: Final = tuple(key for key in GIVEN_KEYS if key not in ("steps", "state", "model"))
HAPPENS: Final = ("transcript", "body", "reply", "reply_body", "result", "facts")
"""Keys that bring something to a gate; of `tools` alone a request is made. A step has its own of them, not the case's."""
RULINGS: Final = ("allow", *ACTION_KEYS)
WIRE_FORMS: Final = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
"""Wires in whose own form a request (`body`) and its reply (`reply_body`) may be given; for `mcp` a `body` is a list of messages."""
EXPECT_KEYS: Final = (
    "rules",
    "state",
    "calls",
    "allowed_routes",
    "model",
    "prefer",
    "stripped",
    "withheld_server_tools",
    "facts",
    "notes",
    "conflicts",
    "observed",
    "lifted",
    "message",
    "phase",
    "bundles",
    "reminders",
    "controls",
    "alerts",
    "transforms",
    "blocked_tools",
    "reask",
    "evidence",
    "error",
)
MESSAGE_KEYS: Final = (
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "is_error",
    "name",
    "hosted",
    "hosted_results",
)
CALLER_KEYS: Final = (
    "tenant",
    "application",
    "agent",
    "user",
    "session_id",
    "run_id",
    "principal",
    "claimed_session_id",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One story: what happened, and what must come out."""

    name: str
    file: str
    line: int
    given: Mapping[str, Any]
    expect: Mapping[str, Any]


@dataclass(slots=True)
class Outcome:
    """What playing a case gave. `failures` is empty when it held."""

    case: Case
    ruling: Ruling | None = None
    registers: Registers = field(default_factory=Registers)
    failures: list[str] = field(default_factory=list[str])
    judged: list[Judged] = field(default_factory=list[Judged])
    """Every gate in order, as a receipt takes them; what was approved on the way stands once, as it ended."""


def load_cases(source: str | PathLike[str]) -> tuple[Case, ...]:
    """Cases of a file, or of YAML text (any string with a line break). ConfigError with every problem."""
    if isinstance(source, str) and "\n" in source:
        text, file = source, "<text>"
    else:
        file = str(source)
        try:
            text = Path(source).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([Problem(file, 1, 1, "$", f"cannot be read: {error}")]) from error
    problems = Problems(file)
    root = parse_yaml(text, problems)
    cases: list[Case] = []
    for node in problems.sequence(root):
        given = problems.mapping(node, ("case", "given", "expect"), CASE_KEYS)
        if len(given) < 3:
            continue
        _check_given(given["given"], problems, GIVEN_KEYS)
        _check_expect(given["expect"], problems)
        name = problems.text(given["case"])
        cases.append(Case(name, file, node.line, given["given"].plain() or {}, given["expect"].plain() or {}))
    if problems.errors:
        raise ConfigError(problems.errors)
    return tuple(cases)


def _check_given(node: Node, problems: Problems, keys: Sequence[str]) -> None:
    given = {key: child for key, child in problems.mapping(node, (), keys).items() if child.value is not None}
    known = isinstance(node.value, dict) and node.value.keys() <= set(keys)
    if known and not given.keys() & {*HAPPENS, "tools", "steps"}:
        problems.error(node, f"nothing happens: give one of {', '.join((*HAPPENS, 'tools'))}")
    if "steps" in given:
        steps = problems.sequence(given["steps"])
        if not steps and isinstance(given["steps"].value, tuple):
            problems.error(given["steps"], "must not be an empty list")
        for step in steps:
            _check_given(step, problems, STEP_KEYS)
    for message in problems.sequence(given["transcript"]) if "transcript" in given else ():
        fields = problems.mapping(message, ("role",), MESSAGE_KEYS)
        if "role" in fields:
            problems.choice(fields["role"], ("system", "developer", "user", "assistant", "tool"))
        _check_calls(fields, problems)
    if "reply" in given:
        _check_calls(
            problems.mapping(given["reply"], (), ("content", "tool_calls", "hosted", "hosted_results")), problems
        )
    if "result" in given:
        _check_fields(
            problems.mapping(given["result"], ("tool_call_id", "content"), ("is_error", "name", "arguments")), problems
        )
    for tool in problems.sequence(given["tools"]) if "tools" in given else ():
        if not isinstance(tool.value, str):
            fields = problems.mapping(tool, (), ("name", "description", "parameters", "hosted", "controls"))
            if isinstance(tool.value, dict) and not fields.keys() & {"name", "hosted"}:
                problems.error(tool, "missing key 'name' (or 'hosted')")
            _check_fields(fields, problems)
    for fact in problems.sequence(given["facts"]) if "facts" in given else ():
        _check_fact(
            problems.mapping(fact, ("namespace", "name"), (*STORED_FIELDS[2:], "arguments", "content")), problems
        )
    for child in problems.mapping(given["caller"], (), CALLER_KEYS).values() if "caller" in given else ():
        _check_name(child, problems)
    if "usage" in given:
        usage = problems.mapping(given["usage"], (), ("input_tokens", "output_tokens", "price"))
        for key, child in usage.items():
            problems.number(child, 0) if key == "price" else problems.integer(child)
    for key in ("at", "elapsed_ms"):
        if key in given:
            problems.integer(given[key], 0)
    for key in ("claims_trusted", "released"):
        if key in given:
            problems.boolean(given[key])
    for key in ("model", "target", "tool_choice"):
        if key in given:
            problems.text(given[key])
    for key in ("approve", "server_tools"):
        if key in given:
            problems.texts(given[key], empty=True)
    for key in ("reply_body", "response_format", "claims"):
        if key in given and not isinstance(given[key].value, dict):
            problems.error(given[key], f"expected a mapping, got {kind_of(given[key])}")
    wire = problems.choice(given["wire"], (*WIRE_FORMS, "mcp")) if "wire" in given else ""
    if "body" in given and not isinstance(given["body"].value, (dict, tuple) if wire == "mcp" else dict):
        problems.error(given["body"], f"expected a mapping, got {kind_of(given['body'])}")
    if "body" in given and "transcript" in given:
        problems.error(given["body"], "a request is either a 'transcript' or a 'body'")
    if "reply_body" in given and "reply" in given:
        problems.error(given["reply_body"], "a reply is either a 'reply' or a 'reply_body'")


def _check_calls(fields: Mapping[str, Node], problems: Problems) -> None:
    """What an assistant message may hold beside its text, and a tool message beside its content."""
    _check_fields(fields, problems)
    for call in problems.sequence(fields["tool_calls"]) if "tool_calls" in fields else ():
        if isinstance(call.value, dict) and "function" in call.value:
            outer = problems.mapping(call, ("function",), ("id", "type"))
            _check_fields(problems.mapping(outer["function"], ("name",), ("arguments",)), problems)
        else:
            _check_fields(problems.mapping(call, ("name",), ("id", "arguments")), problems)
    for call in problems.sequence(fields["hosted"]) if "hosted" in fields else ():
        _check_fields(problems.mapping(call, ("kind",), ("id", "arguments")), problems)
    for result in problems.sequence(fields["hosted_results"]) if "hosted_results" in fields else ():
        _check_fields(problems.mapping(result, ("kind",), ("id", "content", "is_error")), problems)


def _check_fields(fields: Mapping[str, Node], problems: Problems) -> None:
    for key in ("id", "name", "kind", "hosted", "tool_call_id"):
        if key in fields and not isinstance(fields[key].value, tuple):
            _check_name(fields[key], problems)
    if "is_error" in fields and fields["is_error"].value is not None:
        problems.boolean(fields["is_error"])


def _check_name(node: Node, problems: Problems) -> None:
    """A number may stand for a name; what YAML reads as true, false or nothing is a trap."""
    if node.value is None or isinstance(node.value, (bool, dict, tuple)):
        hint = "; quote it" if isinstance(node.value, bool) else ""
        problems.error(node, f"expected text, got {kind_of(node)}{hint}")


_FACT_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "risk_class": RISK_CLASSES,
    "phase": PHASES,
    "source": SOURCES,
    "result_status": RESULT_STATUSES,
    "confidence": CONFIDENCES,
    "execution_location": EXECUTION_LOCATIONS,
    "trust": ("untrusted", "trusted"),
}


def _check_fact(fields: Mapping[str, Node], problems: Problems) -> None:
    for key, words in _FACT_WORDS.items():
        if key in fields:
            problems.choice(fields[key], words)
    if "marks" in fields:
        for mark in problems.sequence(fields["marks"]):
            problems.choice(mark, MARKS)
    if "effects" in fields:
        problems.sequence(fields["effects"])


def _check_expect(node: Node, problems: Problems) -> None:
    expect = problems.mapping(node, (), ("ruling", *EXPECT_KEYS))
    if "ruling" in expect:
        problems.choice(expect["ruling"], RULINGS)
    elif "error" not in expect and isinstance(node.value, dict):
        problems.error(node, "missing key 'ruling'")
    for key in ("rules", "stripped", "notes", "observed", "lifted", "bundles", "reminders", "alerts", "conflicts"):
        if key in expect:
            problems.sequence(expect[key])
    for key in ("calls", "evidence", "controls"):
        if key in expect and not isinstance(expect[key].value, dict):
            problems.error(expect[key], f"expected a mapping, got {kind_of(expect[key])}")
    for rule in (
        expect["evidence"].value.values() if "evidence" in expect and isinstance(expect["evidence"].value, dict) else ()
    ):
        if not isinstance(rule.value, dict):
            problems.error(rule, f"expected a mapping, got {kind_of(rule)}")
    for fact in problems.sequence(expect["facts"]) if "facts" in expect else ():
        _check_fact(problems.mapping(fact, (), STORED_FIELDS), problems)
    for key in ("message", "error"):
        if key in expect:
            problems.text(expect[key])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else orjson.dumps(value).decode()


def _calls(entries: Sequence[Mapping[str, Any]]) -> list[Item]:
    items: list[Item] = []
    for entry in entries:
        function: Mapping[str, Any] = entry.get("function", entry)
        items.append(CallItem(str(entry.get("id", "")), str(function["name"]), _text(function.get("arguments", {}))))
    return items


def _assistant(message: Mapping[str, Any]) -> list[Item]:
    items: list[Item] = []
    if message.get("content"):
        items.append(TextItem("assistant", _text(message["content"])))
    items.extend(_calls(message.get("tool_calls", ())))
    items.extend(
        HostedCallItem(str(one.get("id", "")), str(one["kind"]), _text(one.get("arguments", "")))
        for one in message.get("hosted", ())
    )
    items.extend(
        HostedResultItem(str(one.get("id", "")), str(one["kind"]), _text(one.get("content", "")), one.get("is_error"))
        for one in message.get("hosted_results", ())
    )
    return items


def transcript_items(messages: Sequence[Mapping[str, Any]]) -> list[Item]:
    """Chat messages as a case writes them, as items."""
    items: list[Item] = []
    for message in messages:
        role = message["role"]
        if role == "assistant":
            items.extend(_assistant(message))
        elif role == "tool":
            items.append(
                ResultItem(
                    str(message.get("tool_call_id", "")),
                    _text(message.get("content", "")),
                    message.get("is_error"),
                    str(message.get("name", "")),
                )
            )
        else:
            items.append(TextItem(role, _text(message.get("content", ""))))
    return items


def _tools(entries: Sequence[Any]) -> list[DeclaredTool]:
    tools: list[DeclaredTool] = []
    for entry in entries:
        if isinstance(entry, str):
            tools.append(DeclaredTool(entry))
            continue
        given = cast("Mapping[str, Any]", entry)
        hosted = given.get("hosted")
        tools.append(
            DeclaredTool(
                str(given.get("name", hosted)),
                str(given.get("description", "")),
                given.get("parameters"),
                None if hosted is None else str(hosted),
                given.get("controls"),
            )
        )
    return tools


def _choice(value: Any) -> ToolChoice | None:
    if value is None:
        return None
    if value in ("auto", "none", "required"):
        return ToolChoice(value)
    return ToolChoice("tool", (str(value),))


def _facts(entries: Sequence[Mapping[str, Any]]) -> list[ToolFact]:
    facts: list[ToolFact] = []
    for entry in entries:
        values: dict[str, Any] = {
            "raw_name": f"{entry['namespace']}.{entry['name']}",
            "risk_class": "unknown",
            "phase": "planning",
            "source": "assistant_tool_call",
            **entry,
        }
        for key in ("marks", "effects"):
            values[key] = tuple(values.get(key, ()))
        if "arguments" in values:
            values["arguments"] = _text(values["arguments"])
        if values["source"] == "tool_result" and "phase" not in entry:
            values["phase"] = "result_interpretation"
        facts.append(ToolFact(**values))
    return facts


def play(plan: Plan, case: Case) -> Outcome:
    """Plays a case and compares. Never raises for a case that does not hold."""
    outcome = Outcome(case, registers=Registers(key=b"case"))
    given = case.given
    try:
        _begin(plan, outcome, given)
        outcome.failures.extend(_unknown_approvals(plan, given))
        steps: Sequence[Mapping[str, Any]] = given.get("steps", ())
        for step in steps:
            _step(plan, outcome, {**given, **dict.fromkeys(HAPPENS), **step})
        if any(given.get(key) is not None for key in HAPPENS) or not steps:
            _step(plan, outcome, given)
    except WardwrightError as error:
        if case.expect.get("error") != error.code:
            outcome.failures.append(f"raised {error.code}: {error}")
        return outcome
    if "error" in case.expect:
        outcome.failures.append(f"expected error {case.expect['error']}, got a ruling")
    elif outcome.ruling is not None:
        outcome.failures.extend(compare(outcome.ruling, case.expect))
    return outcome


def _unknown_approvals(plan: Plan, given: Mapping[str, Any]) -> list[str]:
    part = model_plan(plan, _turn("request", given, _caller(given)))
    known = {rule.id for rules in (part.rules, *part.bundles.values()) for rule in rules.rules}
    steps: Sequence[Mapping[str, Any]] = given.get("steps") or ()
    wanted: list[str] = [rule_id for one in (given, *steps) for rule_id in one.get("approve") or ()]
    return [f"approve: the plan has no rule '{rule_id}'" for rule_id in wanted if rule_id not in known]


def _caller(given: Mapping[str, Any]) -> Caller:
    named: Mapping[str, Any] = given.get("caller") or _NOTHING
    return Caller(**{"session_id": "case", **{key: str(value) for key, value in named.items()}})


def _begin(plan: Plan, outcome: Outcome, given: Mapping[str, Any]) -> None:
    """Puts machines into the states the case starts from."""
    states: Any = given.get("state")
    if states is None:
        return
    wanted: Mapping[str, str] = {"default": states} if isinstance(states, str) else states
    caller = _caller(given)
    part = model_plan(plan, _turn("request", given, caller))
    scopes = dict(outcome.registers.scopes)
    for machine_id, state in wanted.items():
        machine = part.machines.get(machine_id)
        if machine is None or state not in machine.states:
            raise ConfigError(
                [
                    Problem(
                        outcome.case.file,
                        outcome.case.line,
                        1,
                        "given.state",
                        f"unknown state '{state}' of machine '{machine_id}'",
                    )
                ]
            )
        key = scope_key(machine.scope, caller)
        old = scopes.get(key, ScopeState())
        value = enter(machine, state, Position(0, 0, START_MS + int(given.get("at") or 0)))
        scopes[key] = old._replace(registers=old.registers.set((f"state:{machine_id}", ""), value))
    outcome.registers = replace(outcome.registers, scopes=scopes)


def _turn(gate: Any, given: Mapping[str, Any], caller: Caller) -> Turn:
    usage = given.get("usage")
    return Turn(
        gate,
        given.get("wire", "chat_completions"),
        str(given.get("model", "default")),
        tools=_tools(given.get("tools") or ()),
        caller=caller,
        usage=None if usage is None else Usage(**usage),
        elapsed_ms=int(given.get("elapsed_ms") or 0),
        target=str(given.get("target", "")),
        released=bool(given.get("released", False)),
        server_tools=frozenset(given.get("server_tools") or ()),
        response_format=given.get("response_format"),
    )


def _step(plan: Plan, outcome: Outcome, given: Mapping[str, Any]) -> None:
    now = START_MS + int(given.get("at") or 0)
    caller = _caller(given)
    if given.get("facts") is not None:
        facts = _facts(given["facts"])
        calls = bool(facts) and all(fact.source == "assistant_tool_call" for fact in facts)
        turn = _turn("reply" if calls else "request", given, caller)
        outcome.ruling, delta = judge(plan, outcome.registers, turn, facts, now)
        outcome.registers = apply(outcome.registers, delta)
        outcome.judged.append(Judged(turn, outcome.ruling, now))
        return
    if given.get("body") is not None and given.get("wire") == "mcp":
        _messages(plan, outcome, given, caller, now)
        return
    alone = given.get("tools") is not None and all(given.get(key) is None for key in HAPPENS)
    tools: Sequence[DeclaredTool] | None = None
    if given.get("body") is not None or given.get("transcript") is not None or alone:
        turn = _turn("request", given, caller)
        if given.get("body") is not None:
            read = _wire(given).parse_request({"model": turn.model, **given["body"]})
            turn = replace(
                read, caller=caller, server_tools=turn.server_tools, tools=[*read.tools, *turn.tools], model=turn.model
            )
            tools = turn.tools
        else:
            turn.items = transcript_items(given.get("transcript") or ())
            turn.tool_choice = _choice(given.get("tool_choice"))
            turn.claims = given.get("claims")
        turn.claims_trusted = bool(given.get("claims_trusted", False))
        if not _gate(plan, outcome, turn, now, given):
            return
    if given.get("reply") is not None or given.get("reply_body") is not None:
        turn = _turn("reply", given, caller)
        if given.get("reply_body") is not None:
            read = _wire(given).parse_reply(given["reply_body"])
            turn.items, turn.usage = read.items, turn.usage or read.usage
        else:
            turn.items = _assistant(given["reply"])
        if tools is not None:
            turn.tools = tools
        if not _gate(plan, outcome, turn, now, given):
            return
    if given.get("result") is not None:
        result = given["result"]
        turn = _turn("result", given, caller)
        call_id, name = str(result["tool_call_id"]), str(result.get("name", ""))
        turn.items = [ResultItem(call_id, _text(result["content"]), result.get("is_error"), name)]
        if "arguments" in result:
            turn.items = [CallItem(call_id, name, _text(result["arguments"])), *turn.items]
        _gate(plan, outcome, turn, now, given)


def _wire(given: Mapping[str, Any]) -> Any:
    return WIRE_FORMS[given.get("wire") or "chat_completions"]


def _messages(plan: Plan, outcome: Outcome, given: Mapping[str, Any], caller: Caller, now: int) -> None:
    """JSON-RPC messages of both sides, in order; an answer to a call that did not pass never comes."""
    asked: dict[str | int, mcp.Asked] = {}
    refused: set[str | int] = set()
    body: Any = given["body"]
    for entry in cast("list[Any]", body) if isinstance(body, list) else [body]:
        for message in mcp.parse_messages(entry, asked):
            if message.kind in ("answer", "error") and message.id in refused:
                continue
            call_id, name, arguments = "", "", None
            turn = message.turn
            if turn is not None:
                turn = replace(turn, caller=caller, model=str(given.get("model", "default")))
                passed = _gate(plan, outcome, turn, now, given)
                if message.kind == "request" and message.id is not None and not passed:
                    refused.add(message.id)
                called = turn.items[0] if turn.items else None
                if isinstance(called, CallItem) and outcome.ruling is not None and outcome.ruling.calls:
                    call_id, name, arguments = outcome.ruling.calls[0].call_id, called.name, called.arguments
            if message.kind == "request" and message.id is not None:
                asked[message.id] = mcp.Asked(message.method, name, call_id, arguments)


def _gate(plan: Plan, outcome: Outcome, turn: Turn, now: int, given: Mapping[str, Any]) -> bool:
    ruling, delta = govern(plan, outcome.registers, turn, now)
    outcome.registers = apply(outcome.registers, delta)
    wanted: Sequence[str] = given.get("approve") or ()
    keys = tuple(finding.key for finding in ruling.findings if finding.key and finding.rule_id in wanted)
    if keys:
        turn.approvals = keys
        ruling, delta = govern(plan, outcome.registers, turn, now)
        outcome.registers = apply(outcome.registers, delta)
    outcome.ruling = ruling
    outcome.judged.append(Judged(turn, ruling, now))
    return passes(ruling)


def compare(ruling: Ruling, expect: Mapping[str, Any]) -> list[str]:
    """How a ruling differs from what was expected."""
    failures: list[str] = []

    def differ(name: str, wanted: Any, got: Any) -> None:
        if wanted != got:
            failures.append(f"{name}: expected {wanted!r}, got {got!r}")

    live = [finding for finding in ruling.findings if finding.enforced and not finding.lifted]
    strongest = live[0].effect if live else "allow"
    wanted = expect["ruling"]
    if wanted != ruling.decision and not (ruling.decision == "allow" and wanted == strongest):
        failures.append(f"ruling: expected {wanted!r}, got {ruling.decision!r} ({strongest}; {ruling.message})")
    fired = sorted({finding.rule_id for finding in live})
    if "rules" in expect:
        deciding = sorted({finding.rule_id for finding in live if finding.effect == strongest})
        if sorted(expect["rules"]) not in (fired, deciding):
            differ("rules", sorted(expect["rules"]), fired)
    if "state" in expect:
        state: Any = expect["state"]
        if isinstance(state, str):
            differ("state", state, ruling.states.get("default"))
        else:
            differ("state", state, {name: ruling.states.get(name) for name in state})
    if "calls" in expect:
        differ("calls", expect["calls"], {call.call_id: call.status for call in ruling.calls})
    plain: dict[str, Any] = {
        "allowed_routes": None if ruling.route.allowed is None else sorted(ruling.route.allowed),
        "model": ruling.route.model,
        "prefer": list(ruling.route.prefer),
        "stripped": sorted(ruling.stripped),
        "withheld_server_tools": sorted(ruling.withheld_server_tools),
        "notes": sorted(ruling.notes),
        "conflicts": sorted(sorted(conflict.rules) for conflict in ruling.conflicts),
        "observed": sorted({finding.rule_id for finding in ruling.findings if not finding.enforced}),
        "lifted": sorted({finding.rule_id for finding in ruling.findings if finding.lifted}),
        "phase": ruling.phase,
        "bundles": list(ruling.bundles),
        "reminders": list(ruling.reminders),
        "controls": {name: dict(value) for name, value in ruling.controls.items()},
        "alerts": sorted({finding.rule_id for finding in ruling.alerts}),
        "transforms": sorted({finding.rule_id for finding in ruling.transforms}),
        "blocked_tools": sorted(ruling.blocked_tools),
        "reask": ruling.reask,
    }
    for name, got in plain.items():
        if name in expect:
            value: Any = expect[name]
            if name == "conflicts":
                value = sorted(sorted(one) for one in value)
            elif isinstance(value, list) and name not in ("prefer", "bundles", "reminders"):
                value = sorted(cast("list[str]", value))
            differ(name, value, got)
    if "message" in expect and expect["message"] not in ruling.message:
        failures.append(f"message: expected {expect['message']!r} in {ruling.message!r}")
    if "facts" in expect:
        failures.extend(_facts_differ(ruling, expect["facts"]))
    evidence: Mapping[str, Mapping[str, Any]] = expect.get("evidence") or _NOTHING
    for rule_id, values in evidence.items():
        got_evidence = next((finding.evidence for finding in ruling.findings if finding.rule_id == rule_id), None)
        if got_evidence is None:
            failures.append(f"evidence: no finding of rule '{rule_id}'")
            continue
        for key, value in values.items():
            differ(f"evidence of {rule_id}.{key}", value, got_evidence.get(key))
    return failures


def _facts_differ(ruling: Ruling, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
    events = [stored(fact) for fact in ruling.facts if fact.source != "declared_tool" or fact.marks]
    if len(events) != len(wanted):
        return [f"facts: expected {len(wanted)}, got {len(events)}: {[(one['source'], one['name']) for one in events]}"]
    return [
        f"facts[{index}].{key}: expected {value!r}, got {got[key]!r}"
        for index, (want, got) in enumerate(zip(wanted, events, strict=True))
        for key, value in want.items()
        if got[key] != value
    ]
