"""What a tool event *is*, once the catalog has named it: `ToolFact`, and the closed word lists it uses.

A fact never holds prompt text. `arguments`, `content` and `schema` are transient: a rule may read them while the gate is
open, nothing stores them. What is kept of them is a keyed digest over canonical JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, get_args

import orjson

from wardwright.catalog import RESULT_STATUSES, RISK_CLASSES, ResultStatus, RiskClass, Trust

Phase: TypeAlias = Literal["planning", "argument_repair", "result_interpretation", "loop_governance", "unknown"]
"""planning: tools are declared, forced or called
argument_repair: a call after a failed call of the same tool with invalid arguments; a rule on planning governs it too
result_interpretation: a result is there for the model to read
loop_governance: repeated equal facts are being counted (only a loop rule can ask for it)
unknown: something tool-like that fits none; matches every phase for denying actions"""

Source: TypeAlias = Literal[
    "declared_tool",
    "tool_choice",
    "assistant_tool_call",
    "tool_result",
    "caller_metadata",
    "inferred",
    "provider_event",
]
"""declared_tool: the request offers it
tool_choice: the request forces it
assistant_tool_call: the model calls it
tool_result: its answer
caller_metadata: a caller on a trusted path attests it
inferred: we concluded it (a failed call that will now be repaired)
provider_event: the provider says it ran it"""

Confidence: TypeAlias = Literal["exact", "declared", "inferred", "ambiguous"]
"""exact: a catalog entry names this tool
declared: an attestation or the wire names it
inferred: a pattern of the catalog, or our own conclusion
ambiguous: nothing names it, or sources contradict each other"""

ExecutionLocation: TypeAlias = Literal["client", "wardwright", "provider", "remote_mcp", "unknown"]
"""client: the caller runs it
wardwright: the gateway runs it
provider: the model's provider runs it
remote_mcp: a remote MCP server runs it through us
unknown: nobody can say"""

Visibility: TypeAlias = Literal["remote_observed", "local_verified", "provider_attested", "opaque"]
"""remote_observed: we saw call and result pass
local_verified: we ran it
provider_attested: the provider reported it
opaque: nothing was reported"""

Mark: TypeAlias = Literal[
    "definition_changed",
    "altered",
    "forged",
    "result_for_denied_call",
    "session_rotated",
    "claim_contradicted",
    "undeclared",
]
"""definition_changed: description or schema differ from what was pinned
altered: a known call or result came back with other content
forged: a call or hosted event that never passed here, after things that did; or its result; or a result that no call has
result_for_denied_call: an answer to a call we denied
session_rotated: the transcript belongs to another session than the header says
claim_contradicted: a caller's attestation says less than we observed
undeclared: a reply calls it though the request declared other tools and not this one"""

PHASES: Final[tuple[str, ...]] = get_args(Phase)
SOURCES: Final[tuple[str, ...]] = get_args(Source)
CONFIDENCES: Final[tuple[str, ...]] = get_args(Confidence)
EXECUTION_LOCATIONS: Final[tuple[str, ...]] = get_args(ExecutionLocation)
MARKS: Final[tuple[str, ...]] = get_args(Mark)

_sha256 = hashlib.sha256
_loads, _dumps, _SORTED = orjson.loads, orjson.dumps, orjson.OPT_SORT_KEYS

VISIBILITY: Final[Mapping[str, Visibility]] = {
    "client": "remote_observed",
    "wardwright": "local_verified",
    "provider": "provider_attested",
    "remote_mcp": "remote_observed",
    "unknown": "opaque",
}


__all__ = [
    "CONFIDENCES",
    "EXECUTION_LOCATIONS",
    "MARKS",
    "PHASES",
    "RESULT_STATUSES",
    "RISK_CLASSES",
    "SOURCES",
    "STORED_FIELDS",
    "VISIBILITY",
    "Confidence",
    "ExecutionLocation",
    "Mark",
    "Phase",
    "ResultStatus",
    "RiskClass",
    "Source",
    "ToolFact",
    "Trust",
    "Visibility",
    "canonical",
    "digest",
    "keyed",
    "stored",
    "text_digest",
    "tool_context",
]


@dataclass(slots=True)
class ToolFact:
    """One tool event, named by the catalog. Made by `history.observe`; lives as long as one gate."""

    # Stored: these reach receipts and history.
    namespace: str
    name: str
    raw_name: str
    risk_class: RiskClass
    phase: Phase
    source: Source
    tool_call_id: str = ""
    """The id the caller will see (minted when the provider's was missing or repeated)."""
    result_status: ResultStatus = "unknown"
    confidence: Confidence = "exact"
    execution_location: ExecutionLocation = "client"
    visibility_level: Visibility = "remote_observed"
    marks: tuple[Mark, ...] = ()
    trust: Trust = "untrusted"
    """Of the result; meaningful for tool_result facts."""
    effects: tuple[str, ...] = ()
    arguments_digest: str = ""
    """Keyed digest over canonical JSON; empty when the event carries no arguments. A result repeats its call's."""
    result_digest: str = ""
    definition_hash: str = ""
    """Hash of description and schema; declared_tool facts only."""
    repeat: bool = False
    """Seen before and still current (a retry): rules judge it again, nothing counts it again."""
    ordinal: int = 0
    """Event number in the session; 0 for a repeat."""

    # Transient: never stored.
    item: int = -1
    """Index in `Turn.items`; -1 when the fact comes from elsewhere."""
    arguments: str | None = None
    content: str | None = None
    schema: Mapping[str, Any] | None = None
    parsed: Any = None
    """Memo of the parsed arguments."""
    invalid_arguments: bool = False
    """The failed call's arguments were unreadable or broke the declared schema (argument_repair follows)."""
    kind: Any = field(default=None, init=False, repr=False, compare=False)
    """Facts of one kind are the same to every matcher, but for their arguments. None: nobody has said. CAUTION: whoever changes
    what a matcher can ask sets it back to None; a fact that is made anew, or replaced, has none."""


STORED_FIELDS: Final[tuple[str, ...]] = (
    "namespace",
    "name",
    "raw_name",
    "risk_class",
    "phase",
    "source",
    "tool_call_id",
    "result_status",
    "confidence",
    "execution_location",
    "visibility_level",
    "marks",
    "trust",
    "effects",
    "arguments_digest",
    "result_digest",
    "definition_hash",
    "repeat",
    "ordinal",
)


def stored(fact: ToolFact) -> dict[str, Any]:
    """The part of a fact that may be kept, as plain JSON values."""
    values: dict[str, Any] = {name: getattr(fact, name) for name in STORED_FIELDS}
    values["marks"] = list(fact.marks)
    values["effects"] = list(fact.effects)
    return values


def canonical(text: str) -> tuple[bytes, Any]:
    """Canonical JSON of `text`: keys sorted, no white space; different values never share one form. And the value, where `text`
    is nothing but a way to write it (else None, and it is left to the reader).

    What a fast parser would blur (a key given twice, numbers beyond its range) is kept apart; what is no JSON is the text itself, marked.
    """
    raw = text.encode("utf-8", "surrogatepass")
    try:
        value = _loads(text)
        form = _dumps(value, None, _SORTED)
        if form == raw:
            return form, value
        tight = raw.replace(b'": ', b'":').replace(b', "', b',"')
        if form == tight or (plain := _dumps(value)) == raw or plain == tight:
            return form, value
        return _exact(text), None
    except (ValueError, TypeError, RecursionError, ArithmeticError):
        return b"\x00" + raw, None


def _exact(text: str) -> bytes:
    # Numbers that a fast parser would round are written out as numbers: no text can pass for one.
    def whole(digits: str) -> Any:
        number = int(digits)
        return number if -(2**63) <= number < 2**64 else orjson.Fragment(str(number))

    def fraction(digits: str) -> Any:
        number = float(digits)
        exact = Decimal(digits)
        return number if exact == Decimal(repr(number)) else orjson.Fragment(str(exact.normalize()))

    def pairs(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(entries)
        if len(found) != len(entries):
            raise ValueError("a key occurs twice")
        return found

    value = json.loads(
        text, object_pairs_hook=pairs, parse_int=whole, parse_float=fraction, parse_constant=_no_constant
    )
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def keyed(key: bytes, data: bytes) -> str:
    """128 bits of SHA-256 over the key's block and the data: half the state is never shown, so nothing can be appended to it."""
    return _sha256(key.ljust(64, b"\0") + data).hexdigest()[:32]


def digest(key: bytes, text: str) -> str:
    """Keyed digest over canonical JSON: equal content, equal digest; without the key it says nothing."""
    return _sha256(key.ljust(64, b"\0") + canonical(text)[0]).hexdigest()[:32]


def text_digest(key: bytes, text: str) -> str:
    """Keyed digest of plain text."""
    return _sha256(key.ljust(64, b"\0") + text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def tool_context(facts: Sequence[ToolFact], phase: Phase) -> dict[str, Any]:
    """The receipt's `tool_context`: the latest fact as primary tool, the declared surface, and every fact of the gate."""
    events = [fact for fact in facts if fact.source != "declared_tool"]
    surface = [fact for fact in facts if fact.source == "declared_tool"]
    primary = events[-1] if events else None
    return {
        "phase": phase,
        "primary_tool": None if primary is None else stored(primary),
        "available_tools": [
            {
                "namespace": fact.namespace,
                "name": fact.name,
                "risk_class": fact.risk_class,
                # What a replay under another catalog needs.
                "raw_name": fact.raw_name,
            }
            for fact in surface
        ],
        "facts": [stored(fact) for fact in events],
    }
