"""A turn, seen through catalog and ledger: which facts in it are current, which are new, and what the ledger should learn.

New: the ledger does not hold it. Current: new, or after the last assistant item, or refused when it was first seen. Rules judge
current facts, so a retry meets the same ruling; only new ones count. Never believes what a caller says of its own tools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import orjson

from wardwright.catalog import Catalog, Identity, fold, result_status
from wardwright.errors import ToolNameCollision
from wardwright.facts import (
    PHASES,
    RISK_CLASSES,
    VISIBILITY,
    ExecutionLocation,
    Mark,
    Phase,
    ResultStatus,
    RiskClass,
    Source,
    ToolFact,
    digest,
    text_digest,
)
from wardwright.history.ledger import Head, LedgerEntry, RegisterKey, RegisterValue, ScopeState
from wardwright.wire.schema import SchemaUnsupported, check_text
from wardwright.wire.turn import (
    CallItem,
    DeclaredTool,
    HostedCallItem,
    HostedResultItem,
    Item,
    ResultItem,
    TextItem,
    Turn,
)

SURFACE: Final = "surface"
"""Rule key of the registers that pin tool definitions."""
MAX_PINNED: Final = 512
"""Definitions pinned per session. A tool beyond them counts as changed: the cap errs towards denying."""
MAX_SURFACES: Final = 256
MAX_SURFACE_BYTES: Final = 200_000
"""Surfaces remembered, and how big each may be: callers choose them."""


@dataclass(slots=True)
class Surface:
    """The declared tools of a request, named. Memoised by digest, because the same surface comes with every request."""

    digest: str
    facts: tuple[ToolFact, ...]
    by_name: Mapping[str, DeclaredTool]
    pins: dict[RegisterKey, RegisterValue | None] = field(default_factory=dict[RegisterKey, RegisterValue | None])
    """What a session that sees its first surface pins."""
    content: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    """The definitions as they came, to know the surface again."""
    judged: dict[str, Any] = field(default_factory=dict[str, Any])
    """Scratch for the evaluator: what it found out about this surface under one plan."""


@dataclass(slots=True)
class Observed:
    """One turn, seen through catalog and ledger."""

    facts: list[ToolFact]
    """Current events in wire order; declared tools are in `surface`."""
    surface: Surface
    changed: tuple[ToolFact, ...] = ()
    """Declared tools whose definition differs from the pinned one (with their mark)."""
    surface_changed: bool = False
    phase: Phase = "planning"
    known: int = 0
    """Items at the start that the last released request already carried, unchanged."""
    transcript_digest: str = ""
    user_turns: tuple[int, ...] = ()
    """For every new user text, the number of facts before it."""
    ledger: dict[str, LedgerEntry] = field(default_factory=dict[str, LedgerEntry])
    """Entries to write if the gate passes; `refused` is set by the gate."""
    pins: dict[RegisterKey, RegisterValue | None] = field(default_factory=dict[RegisterKey, RegisterValue | None])
    """Definitions to pin if the gate passes."""
    notes: list[str] = field(default_factory=list[str])
    repairing: tuple[str, ...] = ()
    retry: bool = False
    """The same transcript as last time."""


def _sized(*parts: str) -> str:
    """The parts behind their lengths: no content of one can pass for the border of another."""
    return "".join([f"{len(part)}:{part}" for part in parts])


def _flatten(item: Item) -> str:
    # CAUTION: two different items must never give one text, or a caller could hide new items in a known prefix.
    if isinstance(item, TextItem):
        return f"t{len(item.role)}:{item.role}{len(item.text)}:{item.text}"
    if isinstance(item, CallItem):
        return f"c{_sized(item.id, item.name, item.arguments)}"
    if isinstance(item, ResultItem):
        return f"r{item.is_error}{_sized(item.call_id, item.name, item.content)}"
    if isinstance(item, HostedCallItem):
        return f"h{item.server is None}{_sized(item.id, item.kind, item.server or '', item.name, item.arguments)}"
    if isinstance(item, HostedResultItem):
        flags = f"{item.is_error}{item.server is None}"
        return f"s{flags}{_sized(item.call_id, item.kind, item.server or '', item.name, item.content)}"
    raise TypeError(f"unknown item {type(item).__name__}")


def _digests(items: Sequence[Item], length: int, key: bytes) -> tuple[str, str]:
    """Digest of the first `length` items, and of all of them."""
    texts = [_flatten(item) for item in items]
    hasher = hashlib.sha256(key.ljust(64, b"\0"))
    first = ""
    if 0 < length <= len(texts):
        hasher.update("".join(texts[:length]).encode("utf-8", "surrogatepass"))
        first = hasher.hexdigest()[:32]
        texts = texts[length:]
    hasher.update("".join(texts).encode("utf-8", "surrogatepass"))
    return first, hasher.hexdigest()[:32]


def _tail(items: Sequence[Item]) -> int:
    """Where the items after the last assistant item begin: what the model is asked to read now."""
    index = len(items)
    while index:
        item = items[index - 1]
        if isinstance(item, ResultItem) or (isinstance(item, TextItem) and item.role != "assistant"):
            index -= 1
        else:
            break
    return index


def ledger_keys(turn: Turn, key: bytes, head: Head) -> Iterable[str]:
    """The ledger entries that judging this turn may need; `Store.load` fetches them."""
    items = turn.items
    start = 0
    if turn.gate == "request" and 0 < head.prefix_length <= len(items):
        first, _ = _digests(items[: head.prefix_length], head.prefix_length, key)
        if first == head.prefix_digest:
            start = min(head.prefix_length, _tail(items))
    keys: list[str] = []
    occurrences: dict[str, int] = {}
    for index, item in enumerate(items):
        if isinstance(item, CallItem):
            call_id = item.id or _nameless_id(key, item.name, item.arguments, occurrences)
            if index >= start:
                keys.append(f"c:{call_id}")
        elif isinstance(item, TextItem):
            if item.role == "user" and index >= start and turn.gate == "request":
                keys.append(f"u:{text_digest(key, item.text)}")
        elif isinstance(item, HostedCallItem) and index >= start:
            keys.append(f"h:{item.id or index}")
        elif index >= start and isinstance(item, HostedResultItem):
            keys.append(f"s:{item.call_id or index}")
        elif index >= start and isinstance(item, ResultItem):
            call_id = item.call_id
            keys.extend((f"c:{call_id}", f"r:{call_id}"))
    if turn.gate == "request":
        if any(isinstance(item, ResultItem) and not item.call_id for item in items):
            keys.extend(f"{kind}:{call_id}" for call_id in _pair(turn, key).values() for kind in "cr")
        if turn.tool_choice is not None and turn.tool_choice.mode == "tool":
            _, whole = _digests(items, 0, key)
            keys.extend(f"t:{whole}:{name}" for name in turn.tool_choice.names)
    return keys


def _nameless_id(key: bytes, name: str, arguments: str, occurrences: dict[str, int]) -> str:
    """An id for a call that carries none: the same call at the same count gets the same id in every transcript."""
    base = text_digest(key, f"{name}\x1f{arguments}")
    occurrences[base] = count = occurrences.get(base, 0) + 1
    return f"call_{base[:20]}_{count}"


def _pair(turn: Turn, key: bytes) -> dict[int, str]:
    """For results without an id: item index → id of the nearest earlier unanswered call of that name."""
    occurrences: dict[str, int] = {}
    open_calls: dict[str, list[str]] = {}
    paired: dict[int, str] = {}
    for index, item in enumerate(turn.items):
        if isinstance(item, CallItem) and not item.id:
            open_calls.setdefault(item.name, []).append(_nameless_id(key, item.name, item.arguments, occurrences))
        elif isinstance(item, ResultItem) and not item.call_id:
            waiting = open_calls.get(item.name)
            paired[index] = waiting.pop(0) if waiting else f"orphan_{index}"
    return paired


class Observer:
    """Turns into facts, for one catalog. Made once per plan; holds only bounded memos."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._surfaces: dict[tuple[str, ...], Surface] = {}
        self._nothing = Surface("", (), {})

    def surface(self, tools: Sequence[DeclaredTool]) -> Surface:
        """The named surface. Found by the tools' names and compared whole: cheaper than a hash of every schema."""
        if not tools:
            return self._nothing
        names = tuple([tool.name for tool in tools])
        known = self._surfaces.get(names)
        content = [(tool.description, tool.schema, tool.hosted, tool.controls, tool.server) for tool in tools]
        if known is None or known.content != content:
            dumped = orjson.dumps(list(tools))
            known = self._name_tools(hashlib.sha256(dumped).hexdigest()[:32], tools)
            known.content = content
            if len(dumped) > MAX_SURFACE_BYTES:
                return known
            if len(self._surfaces) >= MAX_SURFACES:
                self._surfaces.clear()
            self._surfaces[names] = known
        return known

    def _name_tools(self, name: str, tools: Sequence[DeclaredTool]) -> Surface:
        facts: list[ToolFact] = []
        folded: dict[str, str] = {}
        by_name: dict[str, DeclaredTool] = {}
        for tool in tools:
            raw = tool.name if tool.server is None else f"{tool.name}:{tool.server}"
            plain = fold(raw)
            if plain in folded:
                raise ToolNameCollision(
                    f"Tools '{folded[plain]}' and '{raw}' have the same name after Unicode folding."
                )
            folded[plain] = raw
            by_name[raw] = tool
            if tool.hosted is None:
                identity = self.catalog.resolve(tool.name)
                location: ExecutionLocation = "client"
            else:
                identity = self.catalog.resolve_hosted(tool.hosted, tool.server)
                location = "provider"
            fact = self._fact(identity, raw, "declared_tool", "planning", location)
            if tool.hosted is not None:
                fact.visibility_level = "opaque"  # until the provider reports an event
            fact.definition_hash = hashlib.sha256(orjson.dumps(tool)).hexdigest()[:32]
            fact.schema = tool.schema
            facts.append(fact)
        pins: dict[RegisterKey, RegisterValue | None] = {
            (SURFACE, f"d:{fact.raw_name}"): (fact.definition_hash,) for fact in facts
        }
        pins[(SURFACE, "")] = (len(facts),)
        return Surface(name, tuple(facts), by_name, pins)

    def _fact(
        self, identity: Identity, raw_name: str, source: Source, phase: Phase, location: ExecutionLocation
    ) -> ToolFact:
        where = identity.execution_location or location
        return ToolFact(
            identity.namespace,
            identity.name,
            raw_name,
            identity.risk_class,
            phase,
            source,
            "",
            "unknown",
            identity.confidence,
            where,  # pyright: ignore[reportArgumentType]
            VISIBILITY[where],
            (),
            identity.trust,
            identity.effects,
        )

    def _location(self, turn: Turn, raw_name: str) -> ExecutionLocation:
        if turn.server_tools and raw_name in turn.server_tools:
            return "wardwright"
        return "remote_mcp" if turn.wire == "mcp" else "client"

    def observe(self, turn: Turn, session: ScopeState, key: bytes) -> Observed:
        """The current facts of a turn. Pure: ledger and head are read, what changes is in the answer."""
        key = key.ljust(64, b"\0")
        if turn.gate == "request":
            return self._request(turn, session, key)
        return self._answer(turn, session, key)

    def _request(self, turn: Turn, session: ScopeState, key: bytes) -> Observed:
        head, items = session.head, turn.items
        first, whole = _digests(items, head.prefix_length, key)
        known = head.prefix_length if first and first == head.prefix_digest else 0
        tail = _tail(items)
        seen = Observed([], self.surface(turn.tools), known=known, transcript_digest=whole)
        seen.retry = head.last_digest == whole
        self._pin(session, seen)
        start = min(known, tail)
        calls: dict[str, CallItem] = {}
        occurrences: dict[str, int] = {}
        user_turns: list[int] = []
        met_known = known > 0
        prefix_noted = False
        ledger = session.ledger
        paired: dict[int, str] | None = None
        facts = seen.facts
        repairing: dict[str, bool] = {}
        for index, item in enumerate(items):
            if isinstance(item, CallItem):
                call_id = item.id or _nameless_id(key, item.name, item.arguments, occurrences)
                calls[call_id] = item
                if index < start:
                    continue
                name = f"c:{call_id}"
                entry = seen.ledger.get(name) or ledger.get(name)
                arguments_digest = digest(key, item.arguments)
                marks: tuple[Mark, ...] = ()
                repeat = False
                if entry is None:
                    if head.turn and met_known:
                        marks = ("forged",)
                    elif not prefix_noted:
                        prefix_noted = True
                        seen.notes.append("unseen_prefix")
                    seen.ledger[name] = LedgerEntry("observed", item.name, arguments_digest, head.turn)
                else:
                    met_known = True
                    if entry.digest != arguments_digest or entry.raw_name != item.name:
                        marks = ("altered",)
                        name = f"a:{call_id}:{arguments_digest}"
                        repeat = name in seen.ledger or name in ledger
                        if not repeat:
                            seen.ledger[name] = LedgerEntry("observed", item.name, arguments_digest, head.turn)
                    elif entry.refused:
                        repeat = True
                        seen.ledger[name] = entry
                    else:
                        continue
                fact = self._call(turn, item.name, call_id, item.arguments, arguments_digest, index, seen.surface)
                fact.marks, fact.repeat = marks, repeat
                facts.append(fact)
            elif isinstance(item, ResultItem):
                if index < start:
                    continue
                call_id = item.call_id
                if not call_id:
                    paired = _pair(turn, key) if paired is None else paired
                    call_id = paired[index]
                self._result(
                    turn, session, seen, item, index, call_id, calls.get(call_id), index >= tail, key, repairing
                )
            elif isinstance(item, TextItem):
                if item.role == "user" and index >= known:
                    # Resending old words in a cut transcript is no new word of the user.
                    name = f"u:{text_digest(key, item.text)}"
                    entry = ledger.get(name)
                    if entry is None:
                        seen.ledger[name] = LedgerEntry("observed", "", "", head.turn)
                    if known or not head.prefix_length or entry is None:
                        user_turns.append(len(facts))
            elif index >= start:
                if isinstance(item, HostedCallItem):
                    name = f"h:{item.id or index}"
                    content = digest(key, item.arguments)
                elif isinstance(item, HostedResultItem):
                    name = f"s:{item.call_id or index}"
                    content = text_digest(key, item.content)
                else:
                    raise TypeError(f"unknown item {type(item).__name__}")
                entry = seen.ledger.get(name) or ledger.get(name)
                if entry is not None and not entry.refused:
                    continue
                fact = self._hosted(item, index, content)
                fact.repeat = entry is not None
                seen.ledger[name] = entry or LedgerEntry("observed", fact.raw_name, content, head.turn)
                facts.append(fact)
        if head.prefix_length and not known and items:
            missing = [call_id for call_id in head.last_ids if call_id not in calls]
            seen.notes.append("omitted" if missing else "branched")
        seen.user_turns = tuple(user_turns)
        if repairing:
            seen.repairing = tuple([raw for raw, failed in repairing.items() if failed])
        if seen.repairing or turn.caller.claimed_session_id:
            self._inferred(turn, seen)
        if turn.tool_choice is not None:
            self._choice(turn, session, seen)
        if turn.claims is not None:
            self._claims(turn, seen)
        return seen

    def _pin(self, session: ScopeState, seen: Observed) -> None:
        surface, head = seen.surface, session.head
        if surface.digest == head.surface_digest:
            return
        if not surface.facts and not head.surface_digest:
            return
        seen.surface_changed = True
        changed: list[ToolFact] = []
        if not head.surface_digest and len(surface.facts) <= MAX_PINNED and (SURFACE, "") not in session.registers:
            seen.pins = surface.pins.copy()
            return
        pinned = cast("int", session.registers.get((SURFACE, ""), (0,))[0])
        for fact in surface.facts:
            register = (SURFACE, f"d:{fact.raw_name}")
            value = session.registers.get(register)
            if value is None:
                if pinned >= MAX_PINNED:
                    changed.append(replace(fact, marks=("definition_changed",)))
                else:
                    pinned += 1
                    seen.pins[register] = (fact.definition_hash,)
            elif value[0] != fact.definition_hash:
                changed.append(replace(fact, marks=("definition_changed",)))
                seen.pins[register] = (fact.definition_hash,)
        seen.pins[(SURFACE, "")] = (pinned,)
        seen.changed = tuple(changed)

    def _call(
        self, turn: Turn, raw: str, call_id: str, arguments: str, arguments_digest: str, index: int, surface: Surface
    ) -> ToolFact:
        fact = self._fact(self.catalog.resolve(raw), raw, "assistant_tool_call", "planning", self._location(turn, raw))
        fact.tool_call_id = call_id
        fact.arguments = arguments
        fact.arguments_digest = arguments_digest
        fact.item = index
        tool = surface.by_name.get(raw)
        if tool is not None:
            fact.schema = tool.schema
        return fact

    def _hosted(self, item: HostedCallItem | HostedResultItem, index: int, content_digest: str) -> ToolFact:
        identity = self.catalog.resolve_hosted(item.kind, item.server, item.name)
        called = isinstance(item, HostedCallItem)
        fact = self._fact(
            identity, item.kind, "provider_event", "planning" if called else "result_interpretation", "provider"
        )
        fact.item = index
        if isinstance(item, HostedCallItem):
            fact.tool_call_id = item.id
            fact.arguments = item.arguments
            fact.arguments_digest = content_digest if item.arguments else ""
        elif isinstance(item, HostedResultItem):
            fact.tool_call_id = item.call_id
            fact.content = item.content
            fact.result_digest = content_digest
            fact.result_status = _flagged(item.is_error) or result_status(identity, item.content)[0]
        return fact

    def _result(
        self,
        turn: Turn,
        session: ScopeState,
        seen: Observed,
        item: ResultItem,
        index: int,
        call_id: str,
        call: CallItem | None,
        in_tail: bool,
        key: bytes,
        repairing: dict[str, bool],
    ) -> None:
        ledger, head = session.ledger, session.head
        result_digest = text_digest(key, item.content)
        name = f"c:{call_id}"
        called = seen.ledger.get(name) or ledger.get(name)
        name = f"r:{call_id}"
        entry = seen.ledger.get(name) or ledger.get(name)
        marks: list[Mark] = []
        repeat = False
        if called is None and call is None and head.turn:
            marks.append("forged")
        elif called is not None and called.status in ("denied", "held"):
            marks.append("result_for_denied_call")
        # The ledger knows which tool was called; a transcript that renames the call launders nothing.
        raw = called.raw_name if called is not None else call.name if call is not None else item.name
        raw = raw or "unknown"
        if called is not None and call is not None and digest(key, call.arguments) != called.digest:
            call = None  # not the arguments it was called with
        if entry is None:
            seen.ledger[name] = LedgerEntry("observed", raw, result_digest, head.turn)
        elif entry.digest != result_digest:
            marks.append("altered")
            name = f"b:{call_id}:{result_digest}"
            altered = seen.ledger.get(name) or ledger.get(name)
            repeat = altered is not None
            if altered is None:
                seen.ledger[name] = LedgerEntry("observed", raw, result_digest, head.turn)
        elif in_tail or entry.refused:
            repeat = True
            if entry.refused:
                seen.ledger[name] = entry
        else:
            return
        identity = self.catalog.resolve(raw)
        fact = self._fact(identity, raw, "tool_result", "result_interpretation", self._location(turn, raw))
        fact.tool_call_id = call_id
        fact.item = index
        fact.content = item.content
        fact.result_digest = result_digest
        fact.arguments_digest = (
            called.digest if called is not None else digest(key, call.arguments) if call is not None else ""
        )
        if marks:
            fact.marks = tuple(marks)
        fact.repeat = repeat
        extracted: ResultStatus = "unknown"
        invalid = False
        if identity.status_tests:
            extracted, invalid = result_status(identity, item.content)
        status: ResultStatus = _flagged(item.is_error) or extracted
        if status == "success" and extracted not in ("unknown", "success"):
            status = extracted  # the operator's extractor knows better than a flag that says all is well
        if "result_for_denied_call" in marks:
            status = "rejected"
        fact.result_status = status
        if call is not None:
            fact.arguments = call.arguments
        if status in ("error", "rejected"):
            tool = seen.surface.by_name.get(raw)
            if not invalid and call is not None:
                try:
                    invalid = bool(
                        check_text(call.arguments, tool.schema if tool and tool.schema is not None else True)
                    )
                except SchemaUnsupported:
                    invalid = False
            fact.invalid_arguments = invalid
        if in_tail or turn.gate == "result":
            repairing[raw] = fact.invalid_arguments
            seen.phase = "result_interpretation"
        seen.facts.append(fact)

    def _inferred(self, turn: Turn, seen: Observed) -> None:
        for raw in seen.repairing:
            failed = next(fact for fact in reversed(seen.facts) if fact.raw_name == raw and fact.invalid_arguments)
            fact = self._fact(self.catalog.resolve(raw), raw, "inferred", "argument_repair", self._location(turn, raw))
            fact.confidence = "inferred"
            fact.tool_call_id = failed.tool_call_id
            fact.repeat = failed.repeat
            seen.facts.append(fact)
        if turn.caller.claimed_session_id:
            fact = ToolFact("wardwright", "session", "session", "read_only", "planning", "inferred")
            fact.confidence = "inferred"
            fact.marks = ("session_rotated",)
            fact.repeat = seen.retry
            seen.facts.append(fact)

    def _choice(self, turn: Turn, session: ScopeState, seen: Observed) -> None:
        choice = turn.tool_choice
        if choice is None or choice.mode != "tool":
            return
        for raw in choice.names:
            tool = seen.surface.by_name.get(raw)
            if tool is not None and tool.hosted is not None:
                identity = self.catalog.resolve_hosted(tool.hosted, tool.server)
                fact = self._fact(identity, raw, "tool_choice", "planning", "provider")
            else:
                fact = self._fact(self.catalog.resolve(raw), raw, "tool_choice", "planning", self._location(turn, raw))
            name = f"t:{seen.transcript_digest}:{raw}"
            entry = session.ledger.get(name)
            fact.repeat = entry is not None
            seen.ledger[name] = entry or LedgerEntry("observed", raw, "", session.head.turn)
            seen.facts.append(fact)

    def _claims(self, turn: Turn, seen: Observed) -> None:
        claims = turn.claims
        if claims is None:
            return
        if not turn.claims_trusted:
            seen.notes.append("claim_refused")
            return
        primary: Any = claims.get("primary_tool", claims)
        if not isinstance(primary, Mapping):
            seen.notes.append("claim_unreadable")
            return
        claim = cast("Mapping[str, Any]", primary)
        namespace, name = str(claim.get("namespace") or ""), str(claim.get("name") or "")
        if not name:
            seen.notes.append("claim_unreadable")
            return
        raw = f"{namespace}.{name}" if namespace else name
        named = self.catalog.resolve(raw)
        identity = Identity(namespace or named.namespace, name, named.risk_class, named.effects)
        phase = claim.get("phase", claims.get("phase"))
        fact = self._fact(identity, raw, "caller_metadata", phase if phase in PHASES else "unknown", "client")
        fact.confidence = "declared"
        fact.tool_call_id = str(claim.get("tool_call_id") or claims.get("tool_call_id") or "")
        risk = claim.get("risk_class")
        marks: tuple[Mark, ...] = ()
        if risk in RISK_CLASSES and risk != "unknown":
            if fact.risk_class == "unknown" or RISK_ORDER[risk] > RISK_ORDER[fact.risk_class]:
                fact.risk_class = cast("RiskClass", risk)
            elif RISK_ORDER[risk] < RISK_ORDER[fact.risk_class]:
                marks = ("claim_contradicted",)
        for other in seen.facts:
            if fact.tool_call_id and other.tool_call_id == fact.tool_call_id:
                same = fold(other.namespace) == fold(fact.namespace) and fold(other.name) == fold(fact.name)
                if not same or RISK_ORDER[other.risk_class] > RISK_ORDER[fact.risk_class]:
                    marks = ("claim_contradicted",)
        fact.marks = marks
        if marks:
            fact.confidence = "ambiguous"
        fact.repeat = seen.retry
        seen.facts.append(fact)

    def _answer(self, turn: Turn, session: ScopeState, key: bytes) -> Observed:
        head = session.head
        seen = Observed([], self.surface(turn.tools), known=0)
        seen.phase = cast("Phase", head.phase)
        repairing: dict[str, bool] = {}
        answered: CallItem | None = None
        for index, item in enumerate(turn.items):
            if isinstance(item, CallItem):
                if turn.gate == "result":
                    answered = item
                    continue
                arguments_digest = digest(key, item.arguments)
                call_id, held = item.id, False
                entry = None
                if call_id:
                    entry = seen.ledger.get(f"c:{call_id}") or session.ledger.get(f"c:{call_id}")
                if entry is not None and entry.status == "held" and f"c:{call_id}" not in seen.ledger:
                    held = entry.raw_name == item.name and entry.digest == arguments_digest
                if not call_id or (entry is not None and not held):
                    call_id = _mint(key, head, turn.caller.session_id, index)
                seen.ledger[f"c:{call_id}"] = LedgerEntry("passed", item.name, arguments_digest, head.turn)
                fact = self._call(turn, item.name, call_id, item.arguments, arguments_digest, index, seen.surface)
                if item.name in head.repairing:
                    fact.phase = "argument_repair"
                fact.repeat = held
                seen.facts.append(fact)
            elif isinstance(item, (HostedCallItem, HostedResultItem)):
                if isinstance(item, HostedCallItem):
                    name, content = f"h:{item.id or _mint(key, head, 'hosted', index)}", digest(key, item.arguments)
                else:
                    name = f"s:{item.call_id or _mint(key, head, 'hosted', index)}"
                    content = text_digest(key, item.content)
                fact = self._hosted(item, index, content)
                fact.repeat = name in session.ledger
                seen.ledger[name] = LedgerEntry("observed", fact.raw_name, content, head.turn)
                seen.facts.append(fact)
            elif isinstance(item, ResultItem):
                call_id = item.call_id or f"orphan_{index}"
                self._result(turn, session, seen, item, index, call_id, answered, True, key, repairing)
                seen.phase = "result_interpretation"
            elif not isinstance(item, TextItem):
                raise TypeError(f"unknown item {type(item).__name__}")
        seen.repairing = tuple(raw for raw, failed in repairing.items() if failed)
        return seen


RISK_ORDER: Final[Mapping[str, int]] = {
    "unknown": 0,
    "read_only": 1,
    "write": 2,
    "external_side_effect": 3,
    "irreversible": 4,
}


def _flagged(is_error: bool | None) -> ResultStatus | None:
    return None if is_error is None else "error" if is_error else "success"


def _mint(key: bytes, head: Head, salt: str, index: int) -> str:
    """A fresh id: depends on the session's position, so it never repeats within it and is the same when govern runs again."""
    return f"call_{text_digest(key, f'{salt}:{head.turn}:{head.event}:{index}')[:24]}"
