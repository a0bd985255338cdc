"""What a session is remembered by, in words: counters and open windows of its rules, as they stand at a moment.

Pure: reads registers as the engine keeps them, counts nothing itself. What has left its window is not there any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wardwright.policy.evaluate import META, OVERFLOW, TRIPPED, spent
from wardwright.policy.rules import Budget, HistoryThreshold, LoopThreshold, Rule, ToolSequence, Window
from wardwright.policy.windows import Position, count, within
from wardwright.ui import duration, plural
from wardwright.ui.words import Tone

_SEPARATOR: Final = "\x1f"


@dataclass(frozen=True, slots=True)
class Kept:
    """One counter, or one open window."""

    rule_id: str
    kind: str
    of: str
    """The tool, or what is spent."""
    says: str
    tone: Tone = ""


def remembered(
    rules: Mapping[str, Rule], rule_ids: Sequence[str], of: str, value: Sequence[Any], at: Position
) -> Iterator[Kept]:
    """One register, for each of the rules that keep it. `rules`: of the model, by id."""
    for rule_id in rule_ids:
        rule = rules.get(rule_id)
        found = None if rule is None or of == META else _kept(rule, of, tuple(value), at)
        if found is not None:
            yield found


def _kept(rule: Rule, of: str, value: tuple[Any, ...], at: Position) -> Kept | None:
    match rule:
        case LoopThreshold() if of == TRIPPED:
            return Kept(rule.id, rule.kind, "", "its threshold was reached: it binds what follows", "bad")
        case LoopThreshold() | HistoryThreshold():
            seen = count(value, rule.window, at)
            if not seen:
                return None
            tone: Tone = "bad" if seen >= rule.threshold else "warn" if seen == rule.threshold - 1 else ""
            return Kept(rule.id, rule.kind, _tool(of), f"{seen} of {rule.threshold}{_within(rule.window)}", tone)
        case ToolSequence() if len(value) >= 3:
            start = Position(*value[:3])
            clean = rule.until is not None and rule.until.clean_turn
            if not within(rule.window, start, at) or (clean and at.turn - start.turn > 1):
                return None
            ago = plural(max(0, at.turn - start.turn), "turn")
            return Kept(rule.id, rule.kind, "", f"open since {ago}{_within(rule.window)}{_until(rule)}", "warn")
        case Budget() if of in rule.limits:
            used, limit = spent(value, rule, at.ms), rule.limits[of]
            tone = "bad" if used >= limit else "warn" if used >= 0.8 * limit else ""
            return Kept(rule.id, rule.kind, of, f"{used:g} of {limit:g}{_within(rule.window)}", tone)
        case _:
            return None


def _tool(of: str) -> str:
    if of == OVERFLOW:
        return "all further tools"
    namespace, _, rest = of.partition(_SEPARATOR)
    name, *digests = rest.split(_SEPARATOR)
    tool = f"{namespace}.{name}" if namespace and name else namespace or name
    return f"{tool} with equal {('arguments', 'arguments and results')[len(digests) > 1]}" if digests else tool


def _within(window: Window | None) -> str:
    if window is None:
        return ""
    sizes = [
        plural(size, word) for size, word in ((window.turns, "turn"), (window.events, "event")) if size is not None
    ]
    sizes += [duration(window.ms)] if window.ms is not None else []
    return f" within {' and '.join(sizes)}" if sizes else ""


def _until(rule: ToolSequence) -> str:
    until = rule.until
    if until is None:
        return ""
    said = [f"state {until.state}"] if until.state else []
    said += ["a tool that clears it"] if until.tool is not None else []
    said += ["the user speaks"] if until.user_turn else []
    said += ["a clean turn"] if until.clean_turn else []
    return f", until {' or '.join(said)}" if said else ""
