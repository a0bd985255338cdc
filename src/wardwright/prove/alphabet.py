"""The events that a plan can tell apart: one representative each of tools, arguments, results, words and times.

Representatives are found by asking the plan's own catalog and matchers, never by a second reading of them. Where a representative
cannot be found, or something is left out on purpose, that is said (`doubts`): then a search that finds nothing has proved nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, Final, cast

import orjson

from wardwright.catalog import PLACEHOLDER, Identity, compile_glob, fold, parse_pointer, result_status
from wardwright.facts import VISIBILITY, ToolFact
from wardwright.policy.compile import ModelPlan
from wardwright.policy.matching import arguments_fit, fits, still_fits
from wardwright.policy.rules import (
    AllowedTools,
    ArgumentSchema,
    Budget,
    HistoryThreshold,
    LoopThreshold,
    Matcher,
    Rule,
    TextRule,
    ToolSelector,
    ToolSequence,
    Window,
)
from wardwright.prove.question import Question
from wardwright.wire.linear import BadPattern, compile_pattern

NEUTRAL: Final = "x"
"""A word that no rule means."""
HARMLESS: Final = frozenset({"alert_async", "annotate", "inject_reminder", "transform", "set_controls"})
"""Actions after which everything goes on as without them."""
DENYING: Final = frozenset({"block", "deny_call", "require_approval"})
MAX_NAMES: Final = 4000
MAX_ARGUMENTS: Final = 256
MAX_MARKS: Final = 64
"""Borders of time within the longest window; with more, only the windows themselves are looked at."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One kind of call that the plan tells from others."""

    raw_name: str
    arguments: str = "{}"
    hosted: str = ""
    """Kind of a provider's own tool: it runs with the reply."""
    fresh_name: bool = False
    """Every call of it is another tool …"""
    fresh_arguments: bool = False
    """… or has other arguments, so that nothing counts it as the same."""

    def name(self, number: int) -> str:
        return f"{self.raw_name}{number}" if self.fresh_name else self.raw_name

    def text(self, number: int) -> str:
        if not self.fresh_arguments:
            return self.arguments
        try:
            value = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return f"{self.arguments} {number}"
        return orjson.dumps({**value, "_": number}).decode()


@dataclass(slots=True)
class Alphabet:
    """What can happen, as far as this plan and this question care."""

    letters: tuple[Letter, ...] = ()
    results: Mapping[str, tuple[tuple[bool | None, str], ...]] = field(
        default_factory=dict[str, "tuple[tuple[bool | None, str], ...]"]
    )
    """Raw name → the answers that differ: error flag and content."""
    heeded: frozenset[tuple[str, bool | None, str]] = frozenset()
    """Answers that some matcher may fit: raw name, error flag and content. All others are one to the plan."""
    phases: bool = False
    """Whether the phase of a request matters to its reply."""
    words: tuple[str, ...] = ("",)
    """What the user may say: nothing special first."""
    says: tuple[str, ...] = ("",)
    """What the model may say beside its calls."""
    heard: bool = False
    """Whether it matters that the user speaks."""
    turns: bool = False
    """Whether it matters that turns pass."""
    unit_ms: int = 0
    """The measure of all times that matter; 0: time does not."""
    tools: tuple[str, ...] = ()
    """Raw names that every request declares."""
    doubts: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()


def active_rules(part: ModelPlan) -> tuple[Rule, ...]:
    """The plan's rules, and those of bundles that some rule attaches."""
    rules = list(part.rules.rules)
    named: set[str] = set()
    for rule in rules:  # grows while it is read: a bundle may attach another
        bundle = rule.action.bundle
        if bundle and bundle not in named and bundle in part.bundles:
            named.add(bundle)
            rules.extend(part.bundles[bundle].rules)
    return tuple(rules)


def harmless(rule: Rule) -> bool:
    """Whether a rule that acts changes nothing about what may happen next."""
    action = rule.action
    return rule.mode == "observe" or (action.name in HARMLESS and not action.transition_to and not action.bundle)


def matchers_of(rule: Rule) -> Iterator[Matcher]:
    """Everything a rule asks of tools."""
    yield from rule.action.strip
    yield from (one.tool for one in rule.exceptions if one.tool is not None)
    if isinstance(rule, (ToolSelector, LoopThreshold, HistoryThreshold, ArgumentSchema)):
        yield rule.tool
    elif isinstance(rule, Budget):
        if rule.tool is not None:
            yield rule.tool
    elif isinstance(rule, ToolSequence):
        yield rule.after
        if rule.then is not None:
            yield rule.then
        if rule.until is not None and rule.until.tool is not None:
            yield rule.until.tool
    elif isinstance(rule, AllowedTools):
        for tool in rule.allowed:
            yield Matcher(
                (tool.namespace,) if tool.namespace else (),
                (tool.name,),
                (tool.risk_class,) if tool.risk_class else (),
            )


def make_alphabet(part: ModelPlan, question: Question) -> Alphabet:
    """What a search about this question has to try."""
    rules = active_rules(part)
    asked = [one for one in (question.run, question.after, question.without) if one is not None]
    matchers = [*asked, *(matcher for rule in rules for matcher in matchers_of(rule))]
    matchers.extend([one.negated for one in matchers if one.negated is not None])
    doubts = list(dict.fromkeys(_doubts(part, rules)))
    alphabet = Alphabet()
    names = _names(part, matchers, doubts)
    alphabet.letters = tuple(_letters(part, rules, matchers, names, doubts))
    alphabet.results = {raw: _results(part, raw, matchers, doubts) for raw, hosted in names if not hosted}
    alphabet.heeded = frozenset(
        (raw, flag, content)
        for raw, answers in alphabet.results.items()
        for flag, content in answers
        if any(still_fits(one, _result_fact(part, raw, flag, content), inner=True) is not False for one in matchers)
    )
    alphabet.phases = any(isinstance(rule, AllowedTools) for rule in rules)
    texts = [rule for rule in rules if isinstance(rule, TextRule) and not harmless(rule)]
    _texts(alphabet, texts, doubts)
    untils = [rule.until for rule in rules if isinstance(rule, ToolSequence) and rule.until is not None]
    alphabet.heard = question.without_user or any(until.user_turn for until in untils) or len(alphabet.words) > 1
    windows = [question.within, *(getattr(rule, "window", None) for rule in rules)]
    alphabet.turns = (
        alphabet.heard
        or any(until.clean_turn for until in untils)
        or any(isinstance(window, Window) and window.turns is not None for window in windows)
    )
    alphabet.unit_ms = _unit(part, rules, question, doubts)
    alphabet.tools, surface = _surface(rules, question, names)
    if alphabet.tools and any(letter.fresh_name for letter in alphabet.letters):
        doubts.append("tools that are counted one by one cannot all be declared")
    alphabet.assumes = (
        "one session, and a client that sends what it was given and every result",
        f"at most {question.calls} calls in one reply",
        surface,
        "providers run no tools of their own but those that the plan speaks of",
        "nobody approves what waits for an approval",
    )
    alphabet.doubts = tuple(doubts)
    return alphabet


# what cannot be said


def _doubts(part: ModelPlan, rules: Sequence[Rule]) -> Iterator[str]:
    known = (
        ToolSelector,
        AllowedTools,
        LoopThreshold,
        ToolSequence,
        HistoryThreshold,
        Budget,
        TextRule,
    )
    for rule in rules:
        if harmless(rule):
            continue
        if not isinstance(rule, known):
            yield f"rule '{rule.id}': what a {rule.kind} finds is not searched"
        if rule.exceptions:
            yield f"rule '{rule.id}': exceptions end at dates of their own"
        if isinstance(rule, Budget):
            left_out = sorted(set(rule.limits) - {"calls"})
            if left_out:
                yield f"rule '{rule.id}': how much a reply uses ({', '.join(left_out)}) is not searched"
            if rule.window is not None:
                yield f"rule '{rule.id}': a budget's window is kept in parts"
        if rule.scope not in ("session_id", "run_id"):
            yield f"rule '{rule.id}': other sessions share the scope '{rule.scope}'"
        for matcher in matchers_of(rule):
            if "argument_repair" in matcher.phase and "planning" not in matcher.phase:
                yield f"rule '{rule.id}': calls that repair arguments are not searched"
        if isinstance(rule, AllowedTools) and "argument_repair" in rule.phases and "planning" not in rule.phases:
            yield f"rule '{rule.id}': calls that repair arguments are not searched"
    for machine in part.machines.values():
        if machine.scope not in ("session_id", "run_id") and len(machine.states) > 1:
            yield f"machine '{machine.id}': other sessions share the scope '{machine.scope}'"


# tools


def _named(matcher: Matcher, identity: Identity) -> bool:
    """Whether a matcher may mean a tool of that name; confidence is asked of all."""
    return bool(matcher.confidence) or _identity_fits(Matcher(matcher.namespace, matcher.name), identity, "client")


def _identity_fits(matcher: Matcher, identity: Identity, location: str) -> bool:
    """What a matcher asks of the tool itself; the rest depends on the event."""
    namespace, name = fold(identity.namespace), fold(identity.name)
    return (
        (not matcher.namespace or any(compile_glob(glob)(namespace) for glob in matcher.namespace))
        and (not matcher.name or any(compile_glob(glob)(name) for glob in matcher.name))
        and (not matcher.risk_class or identity.risk_class in matcher.risk_class)
        and (not matcher.confidence or identity.confidence in matcher.confidence)
        and (not matcher.execution_location or (identity.execution_location or location) in matcher.execution_location)
        and (not matcher.trust or identity.trust in matcher.trust)
    )


def _resolve(part: ModelPlan, raw: str, hosted: str) -> Identity:
    return part.catalog.resolve_hosted(hosted) if hosted else part.catalog.resolve(raw)


def _signature(part: ModelPlan, matchers: Sequence[Matcher], raw: str, hosted: str) -> tuple[object, ...]:
    identity = _resolve(part, raw, hosted)
    location = "provider" if hosted else "client"
    return (bool(hosted), *(_identity_fits(matcher, identity, location) for matcher in matchers))


def _instances(glob: str) -> Iterator[str]:
    yield glob.replace("*", NEUTRAL).replace("?", NEUTRAL)
    if "*" in glob and len(glob) > 1:
        yield glob.replace("*", "").replace("?", NEUTRAL)


def _words(globs: Iterable[str], doubts: list[str]) -> Iterator[str]:
    """Words that each of the globs fits, and each two of them that can fit one."""
    wild: list[str] = []
    for glob in globs:
        yield from _instances(glob)
        if glob.strip("*") and ("*" in glob or "?" in glob):
            wild.append(fold(glob))
    for left, right in itertools.combinations(wild, 2):
        tried = [
            *_instances(left),
            *_instances(right),
            left.replace("*", right.strip("*")).replace("*", "").replace("?", NEUTRAL),
            right.replace("*", left.strip("*")).replace("*", "").replace("?", NEUTRAL),
            (left.rstrip("*") + right.lstrip("*")).replace("*", "").replace("?", NEUTRAL),
            (right.rstrip("*") + left.lstrip("*")).replace("*", "").replace("?", NEUTRAL),
        ]
        both = [one for one in tried if compile_glob(left)(one) and compile_glob(right)(one)]
        if both:
            yield both[0]
        elif not _apart(left, right):
            doubts.append(f"no name was found that fits both '{left}' and '{right}'")


def _apart(left: str, right: str) -> bool:
    """Whether two globs begin or end in ways that no word can share."""
    heads = [re.split(r"[*?]", one)[0] for one in (left, right)]
    tails = [re.split(r"[*?]", one)[-1] for one in (left, right)]
    return not (heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])) or not (
        tails[0].endswith(tails[1]) or tails[1].endswith(tails[0])
    )


def _names(part: ModelPlan, matchers: Sequence[Matcher], doubts: list[str]) -> list[tuple[str, str]]:
    """A raw name (and the hosted kind) of every tool that some matcher tells from the others, the shortest there is."""
    entries = part.catalog.entries
    spaces = dict.fromkeys(one for matcher in matchers for one in matcher.namespace)
    named = dict.fromkeys(one for matcher in matchers for one in matcher.name)
    attributes = any(one.risk_class or one.trust or one.execution_location or one.result_status for one in matchers)
    for entry in entries:
        if entry.pattern is None and attributes:
            spaces.setdefault(entry.namespace or "*")
            named.setdefault(entry.name or "*")
    namespaces = dict.fromkeys([NEUTRAL, *_words(spaces, doubts)])
    tools = dict.fromkeys([NEUTRAL, *_words(named, doubts)])
    candidates: dict[tuple[str, str], int] = {}
    """With the number of the entry that gave it: the operator's own come first."""
    tried: set[str] = set()
    for number, entry in enumerate(entries):
        if entry.match is None or entry.unwrap:
            continue
        means = (entry.namespace, entry.name, *sorted(entry.attributes.items(), key=repr))
        if PLACEHOLDER.search(entry.match) and repr(means) in tried:
            continue  # another spelling of the same tools
        tried.add(repr(means))
        plain = Identity(entry.namespace, entry.name or entry.match)
        if not PLACEHOLDER.search(entry.match) and not any(_named(one, plain) for one in matchers):
            continue  # nobody asks about it
        pools: dict[str, Iterable[str]] = {"namespace": namespaces, "name": tools}
        holders = PLACEHOLDER.findall(entry.match)
        for holder in holders:
            # `mcp.{server}` names its servers by the namespaces that rules speak of.
            before, _, after = entry.namespace.partition(f"{{{holder}}}")
            pools.setdefault(
                holder,
                dict.fromkeys(
                    [
                        NEUTRAL,
                        *(
                            one[len(before) : len(one) - len(after)]
                            for one in namespaces
                            if one.startswith(before) and one.endswith(after) and len(one) > len(before) + len(after)
                        ),
                    ]
                ),
            )
        for values in itertools.product(*(pools[holder] for holder in holders)):
            filled = dict(zip(holders, values, strict=True))
            raw = PLACEHOLDER.sub(lambda found, words=filled: words[found[1]], entry.match)
            for one in _instances(raw):
                candidates.setdefault((one, ""), number)
            if len(candidates) > MAX_NAMES:
                break
    for namespace in namespaces:
        if namespace.startswith("provider.") and len(namespace) > len("provider."):
            candidates[namespace[len("provider.") :], namespace[len("provider.") :]] = len(entries)
    candidates.setdefault((f"{NEUTRAL}{NEUTRAL}", ""), len(entries))
    if len(candidates) > MAX_NAMES:
        doubts.append("more tools can be named than were tried")
    found: dict[tuple[object, ...], tuple[str, str]] = {}
    for raw, hosted in sorted(candidates, key=lambda one: (candidates[one], len(one[0]), one)):
        signature = _signature(part, matchers, raw, hosted)
        if not hosted or any(signature[1:]):  # a provider's own tool that nobody asks about is left out
            found.setdefault(signature, (raw, hosted))
    return sorted(found.values())


def _letters(
    part: ModelPlan,
    rules: Sequence[Rule],
    matchers: Sequence[Matcher],
    names: Sequence[tuple[str, str]],
    doubts: list[str],
) -> Iterator[Letter]:
    loops = [rule for rule in rules if isinstance(rule, LoopThreshold) and not harmless(rule)]
    asking = [one for one in matchers if one.arguments]
    for raw, hosted in names:
        identity = _resolve(part, raw, hosted)
        location = "provider" if hosted else "client"
        counted = [loop for loop in loops if _identity_fits(loop.tool, identity, location)]
        other = not hosted and _signature(part, matchers, f"{raw}1", "") == _signature(part, matchers, raw, "")
        fresh_name = other and bool(counted)
        fresh_arguments = not other and any(loop.equal != "tool" for loop in counted)
        # To be counted as the same again only ever refuses, unless a loop does more than that: then it is tried too.
        moving = [loop for loop in counted if loop.action.name not in DENYING or loop.action.transition_to]
        mine = [one for one in asking if _identity_fits(one, identity, location)]
        for text in _arguments(mine, raw, doubts):
            yield Letter(raw, text, hosted, fresh_name, fresh_arguments)
            if moving and (fresh_name or fresh_arguments):
                yield Letter(raw, text, hosted)
                doubts.append(f"rule '{moving[0].id}': of tools or arguments that it counts one by one, few are tried")


# arguments


def _arguments(matchers: Sequence[Matcher], raw: str, doubts: list[str]) -> Iterator[str]:
    """Arguments that the predicates tell apart."""
    if not matchers:
        yield "{}"
        return
    choices: dict[str, list[Any]] = {}
    for matcher in matchers:
        described: Mapping[str, Any] = matcher.described.get("arguments") or {}
        for pointer, conditions in described.items():
            values = choices.setdefault(pointer, [_ABSENT, "zzz", 0])
            values.extend(_values(cast("Mapping[str, Any]", conditions)))
    found: dict[tuple[object, ...], str] = {}
    for tried, values in enumerate(itertools.product(*choices.values())):
        if tried >= MAX_ARGUMENTS:
            doubts.append(f"arguments of '{raw}': more combinations than were tried")
            break
        document: dict[str, Any] = {}
        for pointer, value in zip(choices, values, strict=True):
            if value is not _ABSENT:
                _put(document, parse_pointer(pointer) or (), value)
        _try(orjson.dumps(document).decode(), matchers, raw, found)
    _try("no JSON", matchers, raw, found)
    for number, matcher in enumerate(matchers):
        verdicts = {signature[number] for signature in found}
        if not {True, False} <= verdicts:
            doubts.append(f"arguments of '{raw}': none were found that fit {orjson.dumps(matcher.described).decode()}")
    yield from found.values()


_ABSENT: Final = object()


def _try(text: str, matchers: Sequence[Matcher], raw: str, found: dict[tuple[object, ...], str]) -> None:
    fact = ToolFact("", "", raw, "unknown", "planning", "assistant_tool_call")
    fact.arguments = text
    found.setdefault(tuple(arguments_fit(matcher, fact) for matcher in matchers), text)


def _values(conditions: Mapping[str, Any]) -> Iterator[Any]:
    for word, value in conditions.items():
        if word == "equals":
            yield value
        elif word == "one_of":
            yield from value
        elif word == "glob":
            yield from _instances(str(value))
        elif word == "regex":
            witness = witness_of(str(value))
            if witness is not None:
                yield witness
        elif word in ("minimum", "maximum"):
            yield from (value, value - 1, value + 1)
        elif word in ("min_length", "max_length"):
            yield from (NEUTRAL * length for length in (value - 1, value, value + 1) if length >= 0)


def _put(document: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    for part in parts[:-1]:
        inner: Any = document.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        document = cast("dict[str, Any]", inner)
    if parts:
        document[parts[-1]] = value


# results and texts


def _results(
    part: ModelPlan, raw: str, matchers: Sequence[Matcher], doubts: list[str]
) -> tuple[tuple[bool | None, str], ...]:
    """Answers whose status some matcher tells apart."""
    asking = [one for one in matchers if one.result_status]
    if not asking:
        return ((False, "done"),)
    identity = part.catalog.resolve(raw)
    contents = ["done"]
    for test in identity.status_tests:
        document: dict[str, Any] = {}
        if test.pointer is not None:
            _put(document, test.pointer, test.equals)
        witness = orjson.dumps(document).decode() if test.pattern is None else None
        if witness is None or result_status(identity, witness)[0] != test.status:
            doubts.append(f"results of '{raw}': their status is read from the text")
        else:
            contents.append(witness)
    found: dict[tuple[bool, ...], tuple[bool | None, str]] = {}
    for flag, content in [(False, "done"), (True, "failed"), (None, "done"), *((None, one) for one in contents[1:])]:
        fact = _result_fact(part, raw, flag, content)
        found.setdefault(tuple(fits(one, fact, True, inner=True) for one in asking), (flag, content))
    return tuple(found.values())


def _result_fact(part: ModelPlan, raw: str, flag: bool | None, content: str) -> ToolFact:
    """The fact that an answer will be."""
    identity = part.catalog.resolve(raw)
    status = "unknown" if flag is None else "error" if flag else "success"
    if identity.status_tests:
        extracted = result_status(identity, content)[0]
        if status == "unknown" or (status == "success" and extracted != "unknown"):
            status = extracted
    where = cast("Any", identity.execution_location or "client")
    return ToolFact(
        identity.namespace,
        identity.name,
        raw,
        identity.risk_class,
        "result_interpretation",
        "tool_result",
        "",
        status,
        identity.confidence,
        where,
        VISIBILITY[where],
        (),
        identity.trust,
    )


def witness_of(pattern: str) -> str | None:
    """A text that a plain pattern finds; None where one would have to be thought of."""
    plain = re.sub(r"^\(\?[a-z]+\)|\\b|^\^|\$$", "", pattern).split("|")[0]
    plain = re.sub(r"\\s[+*]?", " ", plain)
    plain = (
        re.sub(r"\\([.\-/+*?()\[\]{}^$|\\])", r"\1", plain) if not re.search(r"(?<!\\)[.*+?()\[\]{}]", plain) else ""
    )
    try:
        return plain if plain and compile_pattern(pattern, ignore_case=True).search(plain) is not None else None
    except BadPattern:
        return None


def _texts(alphabet: Alphabet, rules: Sequence[TextRule], doubts: list[str]) -> None:
    """Words that text rules find, said by whom they listen to."""
    words: list[str] = []
    says: list[str] = []
    for rule in rules:
        witness = witness_of(rule.match)
        found_anyway = compile_pattern(f"(?s){rule.match}", ignore_case=True).search("Word 1. done failed") is not None
        listens = rule.kind == "stream_guard" or rule.roles == ("user",)
        if witness is None or found_anyway or not listens or len(rules) > 1:
            doubts.append(f"rule '{rule.id}': which texts it finds is not searched to the end")
        if witness is not None:
            (says if rule.kind == "stream_guard" else words).append(witness)
    alphabet.words = ("", *words)
    alphabet.says = ("", *says)


# times and surfaces


def _unit(part: ModelPlan, rules: Sequence[Rule], question: Question, doubts: list[str]) -> int:
    """The greatest common measure of all times, or 1 where all are short."""
    times: set[int] = set()
    for window in (question.within, *(getattr(rule, "window", None) for rule in rules)):
        if isinstance(window, Window) and window.ms is not None:
            times.add(window.ms)
    for machine in part.machines.values():
        lives = [machine.expires_ms, *(state.expires_ms for state in machine.states.values())]
        times.update(life for life in lives if life is not None)
    if not times:
        return 0
    if max(times) <= MAX_MARKS:
        return 1
    unit = gcd(*times)
    if max(times) // unit > MAX_MARKS:
        doubts.append(f"times without a common measure ({', '.join(str(one) for one in sorted(times))} ms)")
        return max(times)
    return unit


def _surface(
    rules: Sequence[Rule], question: Question, names: Sequence[tuple[str, str]]
) -> tuple[tuple[str, ...], str]:
    if question.declares is not None:
        return question.declares, f"every request declares {', '.join(question.declares) or 'no tools'}"
    reads = any(
        rule.action.name == "strip_tools"
        or isinstance(rule, ArgumentSchema)
        or (isinstance(rule, AllowedTools) and rule.surface == "filter")
        or any("undeclared" in matcher.mark or "declared_tool" in matcher.source for matcher in matchers_of(rule))
        for rule in rules
        if not harmless(rule)
    )
    if not reads:
        return (), "what requests declare is not asked about"
    return tuple(raw for raw, hosted in names if not hosted), "every request declares every tool that is called"
