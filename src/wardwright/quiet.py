"""The receipt of an exchange in which no rule acted, as the row a store chains: most exchanges are like that.

`row` gives what `receipts.record(receipts.build(...))` gives, byte for byte; those two say what a receipt is, and whatever is not
quiet goes to them. What is the same from exchange to exchange is written once and remembered per model: what a kind of event says
of itself, who asked, the tools of a surface, the rules that looked. The last is learnt from a receipt that was built the long way.
Never a body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as quoted
from typing import Any, Final, TypeAlias

import orjson

from wardwright import receipts
from wardwright.catalog import Catalog
from wardwright.facts import ToolFact
from wardwright.history import ReceiptRow, scope_key
from wardwright.history.observer import MAX_SURFACE_BYTES, MAX_SURFACES_BYTES
from wardwright.policy.rules import Rule, Ruling
from wardwright.receipts import Judged, Outcome, Rules
from wardwright.wire.turn import Caller, Turn

_KINDS: Final = 1_024
_CALLERS: Final = 1_024
_FRAMES: Final = 256
_SURFACES: Final = 64
_LOOKS: Final = 256
_LONG: Final = 1_024
"""Callers choose names: one that makes more text than this is not remembered."""
_MANY: Final = 64
"""Likewise events of one exchange."""
_OWN: Final = frozenset({"arguments_digest", "ordinal", "result_digest", "tool_call_id"})
"""What every event has for itself, in the order of a receipt."""

_Tags: TypeAlias = dict[str, None]
"""Each as `name=value`, in the order they are met."""


class _Kind:
    """What events have in common that differ in what is their own alone."""

    __slots__ = ("answered", "parts", "tags")

    def __init__(self, fact: ToolFact) -> None:
        self.answered = bool(fact.result_digest)
        self.parts: list[str] = []
        """The text before, between and behind what is its own."""
        text, before = "", "{"
        for name, value in sorted(receipts.fact_kept(fact).items()):
            text += f'{before}"{name}":'
            before = ","
            if name in _OWN:
                self.parts.append(text)
                text = ""
            else:
                text += _written(value)
        self.parts.append(text + "}")
        tags = {
            "tool_namespace": fact.namespace,
            "tool_name": fact.name,
            "tool_phase": fact.phase,
            "tool_risk_class": fact.risk_class,
            "tool_source": fact.source,
        }
        self.tags: _Tags = {f"{name}={value}": None for name, value in tags.items() if value}


class _Asker:
    """What is told of one caller."""

    __slots__ = ("scope", "tags", "text")

    def __init__(self, caller: Caller, named: Mapping[str, str]) -> None:
        self.text = _written(named)
        self.scope = scope_key("session_id", caller)
        self.tags: _Tags = {"kind=exchange": None}
        for name in receipts.CALLER_TAGS:
            if name in named:
                self.tags[f"{name}={named[name]}"] = None


class _Frame:
    """What is told of exchanges that had the same model, plan, wire and outcome."""

    __slots__ = ("final", "request", "tags", "wire")

    def __init__(self, asked: Turn, outcome: Outcome, plan_hash: str) -> None:
        model, selected = asked.model, outcome.selected_model
        chosen = f',"selected_model":{quoted(selected)}' if selected else ""
        named = f'"model":{quoted(model)},' if model else ""
        stream = "true" if asked.stream else "false"
        self.final = f'"http_status":{outcome.http_status}{chosen},"status":"{outcome.status}"'
        self.request = f',"kind":"exchange","plan_hash":{quoted(plan_hash)},"request":{{{named}"stream":{stream},'
        self.wire = f',"wire":"{asked.wire}"}},"version":1}}'
        self.tags: _Tags = {}
        if model:
            self.tags[f"model={model}"] = None
        if selected:
            self.tags[f"selected_model={selected}"] = None
        self.tags[f"status={outcome.status}"] = None


class _Looked:
    """What is told of the rules that looked at the events of an exchange and found nothing."""

    __slots__ = ("candidates", "policy", "selectors")

    def __init__(self, receipt: Mapping[str, Any]) -> None:
        decision, final = receipt["decision"], receipt["final"]
        self.candidates = [_part("candidates", gate) for gate in decision["gates"]]
        self.selectors = _part("tool_policy_selectors", decision)
        self.policy = _part("tool_policy", final)


class Memo:
    """What the receipts of one model have said before. Each part is bounded, and forgotten whole when it is full."""

    __slots__ = ("callers", "frames", "kinds", "looks", "shapes", "surface_bytes", "surfaces")

    def __init__(self) -> None:
        self.callers: dict[tuple[str, ...], _Asker] = {}
        self.frames: dict[tuple[str | int, ...], _Frame] = {}
        self.kinds: dict[tuple[Any, ...], _Kind] = {}
        self.shapes: dict[object, _Kind] = {}
        """Those of them that the observer has made many facts of, by `ToolFact.kind`."""
        self.surfaces: dict[int, tuple[tuple[ToolFact, ...], str]] = {}
        """By the identity of the first tool, which is kept: no other one can have it."""
        self.surface_bytes = 0
        """What they hold: the text, and the schemas that came with the tools."""
        self.looks: dict[tuple[tuple[tuple[str, ...], ...], ...], _Looked] = {}


def row(
    receipt_id: str,
    judged: Sequence[Judged],
    outcome: Outcome,
    rules: Mapping[str, Rule],
    key: bytes,
    capture: bool = False,
    catalog: Catalog | None = None,
) -> ReceiptRow:
    """`receipts.record` of what `receipts.build` makes of these."""
    if not capture and isinstance(rules, Rules):
        try:
            written = _quiet(receipt_id, judged, outcome, rules, key)
        except (TypeError, UnicodeEncodeError):
            # Lone surrogates, integers beyond 64 bits: the long way knows them.
            written = None
        if written is not None:
            return written
    return receipts.record(receipts.build(receipt_id, judged, outcome, rules, key, capture=capture, catalog=catalog))


def _quiet(receipt_id: str, judged: Sequence[Judged], outcome: Outcome, rules: Rules, key: bytes) -> ReceiptRow | None:
    """None: something happened that only the long way tells."""
    asked, last = judged[0].turn, judged[-1]
    plan_hash = last.ruling.plan_hash
    if not plan_hash or outcome.error or outcome.server_tools or outcome.mediation or asked.claims is not None:
        return None
    for one in judged:
        if not _is_quiet(one):
            return None
    memo = rules.memo
    if not isinstance(memo, Memo):
        memo = rules.memo = Memo()
    asker = _asker(memo, asked.caller)
    if asker is None:
        return None
    looks = tuple([one.ruling.considered for one in judged])
    looked = memo.looks.get(looks)
    if looked is None:
        if not _is_ordered(judged):
            return None
        looked = _Looked(receipts.build(receipt_id, judged, outcome, rules, key))
        if len(memo.looks) >= _LOOKS:
            memo.looks.clear()
        memo.looks[looks] = looked
    frame = _frame(memo, asked, outcome, plan_hash)
    tags = asker.tags.copy()
    gates: list[str] = []
    at = asked_context = context = states = usage = ""
    told: Mapping[str, str] | None = None
    for one, candidates in zip(judged, looked.candidates, strict=True):
        turn, ruling = one.turn, one.ruling
        found = ruling.facts
        events: list[str] = []
        declared: tuple[ToolFact, ...] = ()
        for fact in found:
            if fact.source == "declared_tool":
                # They stand behind the events.
                declared = found[len(events) :]
                break
            events.append(_event(memo, fact, tags))
        if len(events) < len(ruling.considered):
            return None
        phase = f'"phase":"{ruling.phase}"'
        surface = facts = ""
        if declared:
            surface = _surface(memo, declared)
            if not surface:
                return None
        if events:
            facts = f',"facts":[{",".join(events)}]'
            context = f'{{{surface}{phase},"primary_tool":{events[-1]}}}'
        else:
            context = f"{{{surface}{phase}}}"
        asked_context = asked_context or context
        bundles = f',"bundles":{_written(ruling.bundles)}' if ruling.bundles else ""
        calls = _calls(ruling) if ruling.calls else ""
        notes = f',"notes":{_written(ruling.notes)}' if ruling.notes else ""
        if ruling.states != told:
            told = ruling.states
            states = f',"states":{_written(told)}' if told else ""
        target = f',"target":{quoted(turn.target)}' if turn.target else ""
        at = str(one.at_ms)
        gates.append(
            f'{{"at_ms":{at}{bundles}{calls}{candidates},"decision":"allow","elapsed_us":{one.elapsed_us}{facts},'
            f'"gate":"{ruling.gate}"{notes},{phase}{states}{target}}}'
        )
        used = turn.usage
        if used is not None:
            usage = ',"usage":' + _written(
                {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "price": used.price}
            )
    attempts = f'"attempts":{_written(outcome.attempts)},' if outcome.attempts else ""
    choice = asked.tool_choice
    chosen = "" if choice is None else f'"tool_choice":{_written(receipts.fields_kept(choice))},'
    body = (
        f'{{"at_ms":{at},"caller":{asker.text},"decision":{{"decision":"allow","gate":"{last.ruling.gate}",'
        f'"gates":[{",".join(gates)}],"tool_context":{context}{looked.selectors}}},"final":{{{attempts}{frame.final}'
        f'{looked.policy}{usage}}},"id":{quoted(receipt_id)}{frame.request}{chosen}"tool_context":{asked_context}{frame.wire}'
    ).encode()
    if looked.policy:
        tags["tool_policy_status=passed"] = None
    tags.update(frame.tags)
    return ReceiptRow(receipt_id, last.at_ms, asker.scope, body, None, [*tags])


def _asker(memo: Memo, caller: Caller) -> _Asker | None:
    """None: nothing is known of who asked."""
    names = (
        caller.tenant,
        caller.application,
        caller.agent,
        caller.user,
        caller.session_id,
        caller.run_id,
        caller.principal,
        caller.claimed_session_id,
    )
    asker = memo.callers.get(names)
    if asker is None:
        named = receipts.caller_kept(caller)
        if not named:
            return None
        asker = _Asker(caller, named)
        if len(asker.text) <= _LONG:
            if len(memo.callers) >= _CALLERS:
                memo.callers.clear()
            memo.callers[names] = asker
    return asker


def _frame(memo: Memo, asked: Turn, outcome: Outcome, plan_hash: str) -> _Frame:
    names = (
        plan_hash,
        asked.model,
        asked.stream,
        asked.wire,
        outcome.selected_model,
        outcome.status,
        outcome.http_status,
    )
    frame = memo.frames.get(names)
    if frame is None:
        frame = _Frame(asked, outcome, plan_hash)
        if len(frame.request) <= _LONG:
            if len(memo.frames) >= _FRAMES:
                memo.frames.clear()
            memo.frames[names] = frame
    return frame


def _is_quiet(judged: Judged) -> bool:
    """Whether nothing but events, calls, notes and states are to be told of it."""
    ruling = judged.ruling
    route = ruling.route
    return not (
        ruling.decision != "allow"
        or ruling.findings
        or ruling.rule_id
        or ruling.message
        or ruling.conflicts
        or ruling.blocked_tools
        or ruling.stripped
        or ruling.withheld_server_tools
        or ruling.controls
        or ruling.reask
        or ruling.binds_next
        or route.model
        or route.allowed
        or route.prefer
        or judged.turn.approvals
    )


def _is_ordered(judged: Sequence[Judged]) -> bool:
    """Whether events stand before declared tools, and are not many: only then the rules that looked say all about the looks."""
    number = 0
    for one in judged:
        facts, looks = one.ruling.facts, len(one.ruling.considered)
        number += looks
        if looks > len(facts) or any(fact.source == "declared_tool" for fact in facts[:looks]):
            return False
    return number <= _MANY


def _event(memo: Memo, fact: ToolFact, tags: _Tags) -> str:
    """What is kept of an event; its tags are added to the others."""
    digest, result, call_id = fact.arguments_digest, fact.result_digest, fact.tool_call_id
    # What the observer makes many facts of is the same in all of them, until something more is known of one.
    kind = memo.shapes.get(fact.kind)
    if kind is None or fact.repeat or fact.definition_hash or kind.answered != bool(result) or not (digest and call_id):
        kind = _kind(memo, fact)
    tags.update(kind.tags)
    if call_id:
        tags[f"tool_call_id={call_id}"] = None
        if digest:
            parts = kind.parts
            if result:
                return f"{parts[0]}{quoted(digest)}{parts[1]}{fact.ordinal}{parts[2]}{quoted(result)}{parts[3]}{quoted(call_id)}{parts[4]}"
            return f"{parts[0]}{quoted(digest)}{parts[1]}{fact.ordinal}{parts[2]}{quoted(call_id)}{parts[3]}"
    return _written(receipts.fact_kept(fact))


def _kind(memo: Memo, fact: ToolFact) -> _Kind:
    whole = bool(fact.arguments_digest and fact.tool_call_id)
    looks = (
        fact.name,
        fact.namespace,
        fact.raw_name,
        fact.phase,
        fact.source,
        fact.risk_class,
        fact.result_status,
        fact.confidence,
        fact.execution_location,
        fact.visibility_level,
        fact.trust,
        fact.repeat,
        fact.marks,
        fact.effects,
        fact.definition_hash,
        whole,
        not fact.result_digest,
    )
    kind = memo.kinds.get(looks)
    if kind is None:
        kind = _Kind(fact)
        if sum(map(len, kind.parts)) > _LONG:
            return kind
        if len(memo.kinds) >= _KINDS:
            memo.kinds.clear()
            memo.shapes.clear()
        memo.kinds[looks] = kind
    if whole and fact.kind is not None and not (fact.repeat or fact.definition_hash):
        if len(memo.shapes) >= _KINDS:
            memo.shapes.clear()
        memo.shapes[fact.kind] = kind
    return kind


def _surface(memo: Memo, declared: tuple[ToolFact, ...]) -> str:
    """The declared tools, as the beginning of a context. The observer gives out the same facts for the same tools."""
    known = memo.surfaces.get(id(declared[0]))
    if known is not None and known[0] == declared:
        return known[1]
    if any(fact.source != "declared_tool" for fact in declared):
        return ""
    text = f'"available_tools":{_written([receipts.tool_kept(fact) for fact in declared])},'
    size = len(text)
    for fact in declared:
        if fact.schema:
            size += len(receipts.canonical(fact.schema))
        if size > MAX_SURFACE_BYTES:
            return text  # nor is it the same one that the observer gives out the next time
    memo.surface_bytes += size
    if len(memo.surfaces) >= _SURFACES or memo.surface_bytes > MAX_SURFACES_BYTES:
        memo.surfaces.clear()
        memo.surface_bytes = size
    memo.surfaces[id(declared[0])] = (declared, text)
    return text


def _calls(ruling: Ruling) -> str:
    told: list[str] = []
    for call in ruling.calls:
        call_id, provider_id = call.call_id, call.provider_id
        if call_id and call.name and provider_id and not (call.rules or call.approval):
            shown = quoted(call_id)
            given = shown if provider_id == call_id else quoted(provider_id)
            told.append(
                f'{{"call_id":{shown},"name":{quoted(call.name)},"provider_id":{given},"status":"{call.status}"}}'
            )
        else:
            told.append(_written(receipts.call_kept(call)))
    return f',"calls":[{",".join(told)}]'


def _part(name: str, values: Mapping[str, Any]) -> str:
    """A part of a receipt that may be missing, to be written behind another one."""
    return f',"{name}":{_written(values[name])}' if name in values else ""


def _written(value: Any) -> str:
    return orjson.dumps(value, None, orjson.OPT_SORT_KEYS).decode()
