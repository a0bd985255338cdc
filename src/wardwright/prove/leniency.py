"""A plan without the rules that can only refuse: what cannot happen under it cannot happen with them either.

What such rules find (where a value came from, what the user asked for, tokens) is not searched. Leaving one out is sound only where
a refusal changes nothing but what is refused: no state moves, nothing ends a sequence, no window is measured in what happens. Where
that is in doubt, nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from wardwright.policy.compile import ModelPlan, Plan, RuleSet
from wardwright.policy.rules import (
    AllowedTools,
    ArgumentProvenance,
    ArgumentSchema,
    Budget,
    HistoryThreshold,
    Intent,
    LoopThreshold,
    Rule,
    StructuredOutput,
    TextRule,
    ToolSequence,
    Window,
)
from wardwright.prove.alphabet import active_rules, harmless, matchers_of
from wardwright.prove.question import Question

REFUSING: Final = frozenset({"block", "deny_call", "require_approval"})
KEEPING: Final = frozenset({*REFUSING, "strip_tools", "set_controls", "transform", "inject_reminder"})
"""What the other rules may do: each only takes something away, or changes a text."""


def lenient(plan: Plan, part: ModelPlan, question: Question) -> Iterator[tuple[Plan, ModelPlan, tuple[str, ...]]]:
    """The plan without such rules, as few as can be first (that is soon searched), and the ids of those left out; nothing where more
    could depend on a refusal.

    INVARIANT: take away the refused calls and messages from any story of the plan, and it is a story of the lenient one: counts can
    only be lower, times are the same, and nothing else remembers a refusal.
    """
    if question.after is not None and question.after.phase != ("result_interpretation",):
        return
    rules = [rule for rule in active_rules(part) if not harmless(rule)]
    refusing = [rule for rule in rules if rule.action.name in REFUSING and not _moves(rule)]
    tried: list[Rule] = []
    for doubtful in (_intricate, _unread):
        left_out = [rule for rule in refusing if doubtful(rule)]
        if left_out in ([], tried) or not all(_forgets(rule) for rule in rules if rule not in left_out):
            continue
        tried = left_out
        ids = frozenset(rule.id for rule in left_out)
        bundles = {name: _without(bundle, ids) for name, bundle in part.bundles.items()}
        easier = replace(part, rules=_without(part.rules, ids), bundles=bundles)
        models = {**plan.models, part.model_id: easier}
        yield replace(plan, models=models), easier, tuple(rule.id for rule in left_out)


def _unread(rule: Rule) -> bool:
    """Rules about what the search does not have: values, words, tokens."""
    return isinstance(rule, (ArgumentProvenance, Intent, ArgumentSchema, StructuredOutput, TextRule)) or (
        isinstance(rule, Budget) and set(rule.limits) != {"calls"}
    )


def _intricate(rule: Rule) -> bool:
    """Those, and rules about arguments, counts and dates, for which an example may not be found."""
    return (
        _unread(rule)
        or bool(rule.exceptions)
        or isinstance(rule, (LoopThreshold, HistoryThreshold, Budget))
        or any(one.arguments or (one.negated is not None and one.negated.arguments) for one in matchers_of(rule))
    )


def _forgets(rule: Rule) -> bool:
    """Whether a kept rule judges the rest of a story no stricter when refused parts of it are taken away."""
    window: object = getattr(rule, "window", None)
    measured = isinstance(window, Window) and (window.turns is not None or window.events is not None)
    ended = isinstance(rule, ToolSequence) and rule.until is not None
    return not (_moves(rule) or measured or ended or isinstance(rule, AllowedTools) or rule.action.name not in KEEPING)


def _moves(rule: Rule) -> bool:
    return bool(rule.action.transition_to or rule.action.bundle) or rule.action.name == "transition"


def _without(rules: RuleSet, ids: frozenset[str]) -> RuleSet:
    kept: Sequence[Rule] = [rule for rule in rules.rules if rule.id not in ids]
    return RuleSet(tuple(kept))
