"""Whether a fact fits a matcher: yes, no, or cannot be said.

All given keys must fit; within a key any value does. Doubt (an unknown phase, an unreadable argument) is neither yes nor no; the
rule's action decides: for a denying action doubt is a match, for every other it is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import orjson

from wardwright.catalog import compile_glob, fold
from wardwright.facts import ToolFact
from wardwright.policy.rules import Matcher

Verdict: TypeAlias = bool | None
"""None: cannot be said."""

DEFAULT_SOURCES: Final[frozenset[str]] = frozenset(
    {"assistant_tool_call", "tool_choice", "tool_result", "provider_event", "caller_metadata"}
)
"""What a matcher without `source` looks at. Declared tools and conclusions of our own must be asked for."""

WITHOUT_ARGUMENTS: Final[frozenset[str]] = frozenset({"declared_tool", "tool_choice", "inferred"})
"""Events that have no arguments yet: the call itself will be judged."""

UNREADABLE: Final = object()
MAX_LEVELS: Final = 254
"""Of arguments that are read: as deep as their canonical form goes. Said here, because how deep the interpreter itself can go depends
on who called, and on whether this is compiled."""


def both(left: Verdict, right: Verdict) -> Verdict:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def negate(verdict: Verdict) -> Verdict:
    return None if verdict is None else not verdict


def phase_fits(phases: tuple[str, ...], fact: ToolFact) -> Verdict:
    """argument_repair is part of planning; an unknown phase could be any."""
    phase = fact.phase
    if phase in phases:
        return True
    if phase == "unknown":
        return None
    return phase == "argument_repair" and "planning" in phases and fact.source != "inferred"


def source_fits(matcher: Matcher, fact: ToolFact) -> bool:
    if matcher.source:
        return fact.source in matcher.source
    if fact.source == "inferred":
        return bool(matcher.mark) or (fact.phase == "argument_repair" and "argument_repair" in matcher.phase)
    if fact.source == "declared_tool":
        return "definition_changed" in matcher.mark
    return fact.source in DEFAULT_SOURCES


def still_fits(matcher: Matcher, fact: ToolFact, *, inner: bool = False) -> Verdict:
    """Every key but the arguments."""
    if not inner and not source_fits(matcher, fact):
        return False
    if inner and matcher.source and fact.source not in matcher.source:
        return False
    if matcher.namespace:
        namespace = fold(fact.namespace)
        if not any(compile_glob(glob)(namespace) for glob in matcher.namespace):
            return False
    if matcher.name:
        name = fold(fact.name)
        if not any(compile_glob(glob)(name) for glob in matcher.name):
            return False
    if matcher.risk_class and fact.risk_class not in matcher.risk_class:
        return False
    if matcher.result_status and fact.result_status not in matcher.result_status:
        return False
    if matcher.confidence and fact.confidence not in matcher.confidence:
        return False
    if matcher.execution_location and fact.execution_location not in matcher.execution_location:
        return False
    if matcher.trust and fact.trust not in matcher.trust:
        return False
    if matcher.mark and not any(mark in matcher.mark for mark in fact.marks):
        return False
    verdict: Verdict = phase_fits(matcher.phase, fact) if matcher.phase else True
    negated = matcher.negated
    if verdict is not False and negated is not None and not negated.arguments:
        verdict = both(verdict, negate(still_fits(negated, fact, inner=True)))
    return verdict


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _keys(value: Any, levels: int) -> int:
    if isinstance(value, (dict, list)) and not levels:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        entries: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType] - no cast, which is a call
        return len(entries) + sum([_keys(one, levels - 1) for one in entries.values() if isinstance(one, (dict, list))])
    if isinstance(value, list):
        values: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return sum([_keys(one, levels - 1) for one in values])
    return 0


def _no_constants(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def arguments_of(fact: ToolFact) -> Any:
    """The parsed arguments, or UNREADABLE: not JSON, nested too deeply, or a key twice, where the tool might read the other one."""
    parsed: Any = fact.parsed
    if parsed is None:
        text = fact.arguments
        if text is None:
            return UNREADABLE
        try:
            parsed = orjson.loads(text) if text.strip() else {}
            if _keys(parsed, MAX_LEVELS) != text.count(":"):
                # Every key has a colon. More colons than keys: some are in strings, or a key stands twice.
                parsed = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
        except (ValueError, RecursionError):
            parsed = UNREADABLE
        fact.parsed = parsed
    return parsed


def equal(left: Any, right: Any) -> Verdict:
    """Whether a value is the one a rule names. Of another type it cannot be said: many tools take "true" or 1 for true."""
    if left is None or right is None:
        return left is right
    if _kind(left) != _kind(right):
        return None
    return bool(left == right)


def _kind(value: Any) -> str:
    for kind in (bool, str, list, dict):
        if isinstance(value, kind):
            return kind.__name__
    return "number"


def one_of(value: Any, options: Sequence[Any]) -> Verdict:
    verdicts = [equal(value, option) for option in options]
    return True if True in verdicts else None if None in verdicts else False


def at_pointer(parts: tuple[str, ...], tests: Sequence[Callable[[Any], Verdict]]) -> Callable[[Any], Verdict]:
    """All conditions on one place. A key that an object lacks fits nothing; what cannot be walked into, or has another type,
    cannot be said: the tool may read text as JSON, or a list as its first entry."""

    def read(document: Any) -> Verdict:
        for part in parts:
            if isinstance(document, dict):
                entries = cast("dict[str, Any]", document)
                if part not in entries:
                    return False
                document = entries[part]
            elif isinstance(document, list) and part.isdecimal():
                values = cast("list[Any]", document)
                if int(part) >= len(values):
                    return False
                document = values[int(part)]
            else:
                return None
        verdict: Verdict = True
        for test in tests:
            verdict = both(verdict, test(document))
        return verdict

    if len(parts) != 1 or len(tests) != 1:
        return read
    (part,), (only,) = parts, tests

    def read_key(document: Any) -> Verdict:
        # The usual form: one condition on one key of an object.
        if isinstance(document, dict):
            entries: dict[str, Any] = document  # pyright: ignore[reportUnknownVariableType] - no cast, which is a call
            return only(entries[part]) if part in entries else False
        return read(document)

    return read_key


def has_arguments(fact: ToolFact) -> bool:
    """Whether an event is of the kind that carries arguments; a provider's result does not repeat its call's."""
    if fact.source == "provider_event":
        return fact.phase != "result_interpretation"
    return fact.source not in WITHOUT_ARGUMENTS


def arguments_fit(matcher: Matcher, fact: ToolFact) -> Verdict:
    """The argument keys, and a negation that has some. An event without arguments fits neither."""
    if fact.source != "assistant_tool_call" and not has_arguments(fact):
        return False
    verdict: Verdict = True
    if matcher.arguments:
        value = arguments_of(fact)
        if value is UNREADABLE:
            verdict = None
        else:
            for predicate in matcher.arguments:
                verdict = both(verdict, predicate.test(value))
                if verdict is False:
                    return False
    negated = matcher.negated
    if negated is not None and negated.arguments:
        inner = both(still_fits(negated, fact, inner=True), arguments_fit(negated, fact))
        verdict = both(verdict, negate(inner))
    return verdict


def reads_arguments(matcher: Matcher) -> bool:
    return bool(matcher.arguments) or (matcher.negated is not None and bool(matcher.negated.arguments))


def fits(matcher: Matcher, fact: ToolFact, denying: bool, *, inner: bool = False) -> bool:
    """The whole matcher, doubt settled. `inner`: events of any source, unless it names some."""
    verdict = still_fits(matcher, fact, inner=inner)
    if verdict is not False and reads_arguments(matcher):
        verdict = both(verdict, arguments_fit(matcher, fact))
    return denying if verdict is None else verdict


def argument_test(matcher: Matcher, still: Verdict, denying: bool) -> Callable[[ToolFact], bool] | None:
    """What is left to test per fact when `still_fits` gave `still`; None when nothing is."""
    if not reads_arguments(matcher):
        return None

    def test(fact: ToolFact) -> bool:
        verdict = both(still, arguments_fit(matcher, fact))
        return denying if verdict is None else verdict

    negated = matcher.negated
    if still is False or len(matcher.arguments) != 1 or (negated is not None and negated.arguments):
        return test
    fits_one = matcher.arguments[0].test
    settled = denying if still is None else True

    def test_one(fact: ToolFact) -> bool:
        # The usual form, in half the steps: one place in the arguments.
        if fact.source != "assistant_tool_call" and not has_arguments(fact):
            return False
        value = arguments_of(fact)
        verdict = None if value is UNREADABLE else fits_one(value)
        if verdict is None:
            return denying
        return settled if verdict else False

    return test_one
