"""Which target is asked, and which next if it fails: the ruling's route first, then what fits, in the order of the file.

Pure. Sees the route of a ruling and nothing else of policy (A6), so a fallback never leaves what the ruling allows. A target that is
left out is always named with its reason: nothing is made to fit by dropping tools or text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from wardwright.policy.compile import Target
from wardwright.policy.rules import Route

SkipReason: TypeAlias = Literal["route", "context_window", "tools", "breaker_open"]
"""route: the ruling does not allow it
context_window: the request is longer than it can read
tools: it cannot use tools, and the request has some
breaker_open: its provider failed too often and is given a rest"""

BYTES_PER_TOKEN: Final = 4


class Selection:
    """Targets to ask, in turn, and those left out."""

    __slots__ = ("order", "skipped")

    def __init__(self, order: tuple[Target, ...], skipped: tuple[Mapping[str, str], ...]) -> None:
        self.order = order
        self.skipped = skipped
        """`model` and `reason` of each, for the receipt."""

    @property
    def resting(self) -> bool:
        """No target is left, and at least one would be there again soon: 503, not 400."""
        return not self.order and any(one["reason"] == "breaker_open" for one in self.skipped)


def estimate(body_bytes: int) -> int:
    """About how many tokens a body of this length has. JSON counts with it, so it is rather too many than too few."""
    return body_bytes // BYTES_PER_TOKEN


def choose(
    targets: Sequence[Target],
    route: Route,
    needs_tools: bool,
    tokens: int,
    open: Callable[[Target], bool],
) -> Selection:
    """The targets that the route allows and that fit, preferred ones first. `open` says whose breaker is open."""
    allowed, only = route.allowed, route.model
    order: list[Target] = []
    skipped: list[Mapping[str, str]] = []
    for target in _ordered(targets, route.prefer) if route.prefer else targets:
        reason: SkipReason
        if (only and target.model != only) or (allowed is not None and target.model not in allowed):
            reason = "route"
        elif needs_tools and not target.tools:
            reason = "tools"
        elif target.context_window is not None and tokens > target.context_window:
            reason = "context_window"
        elif open(target):
            reason = "breaker_open"
        else:
            order.append(target)
            continue
        skipped.append({"model": target.model, "reason": reason})
    return Selection(tuple(order), tuple(skipped))


def narrowed(before: Route, by: Route) -> Route | None:
    """What both allow; the later one's preference counts. None: nothing is left (G18: then it is a block)."""
    model = by.model or before.model
    if before.model and model != before.model:
        return None
    allowed = before.allowed if by.allowed is None else by.allowed
    if before.allowed is not None and by.allowed is not None:
        allowed = tuple(one for one in by.allowed if one in before.allowed)
    if allowed is not None and (not allowed or (model and model not in allowed)):
        return None
    return Route(allowed, model, by.prefer or before.prefer)


def _ordered(targets: Sequence[Target], prefer: Sequence[str]) -> Sequence[Target]:
    """Preferred models first; else, also within an allow-list, the order of the file is the order of fallback."""
    ranks = {model: rank for rank, model in enumerate(prefer)}
    return sorted(targets, key=lambda target: ranks.get(target.model, len(ranks)))
