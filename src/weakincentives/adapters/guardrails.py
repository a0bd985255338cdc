"""Asking the guards of one run: feedback after tool calls, completion checks when the model wants to end.

Decides who is asked when, what the model is told of it, and how often it is sent back to work. A guard only looks: it
gets read-only views, and one that raises is logged and leaves the run as it is. Made only for prompts that have guards.

INVARIANTS (tests cite the numbers)
 1. Asking costs the same however long the run is.
 2. No guard writes, and none ends a run: the answer that the model has given is never lost to a check.
 3. What the model was told is recorded, once, and no rollback takes it away.
 4. The model is sent back to work `max_reminders` times at most.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from ..prompt import CompletionChecked, Feedback, FeedbackGiven, GuardContext, Prompt
from ..prompt.completion import reminder
from ..prompt.guard import Guard, name_of
from ..prompt.prompt import PlacedGuard
from ..runtime import Session, ToolOutcome
from ..transaction import Scope, current_scope

_logger = logging.getLogger(__name__)

_LONGEST = 4_000
_HEAD = "Feedback on the work so far (from the runtime, not from the user):"

Settle = Callable[[Awaitable[Any]], Awaitable[Any]]
"""How to wait for a guard that is async."""


class _Asked:
    """When a guard was last asked in this run, and what it said."""

    __slots__ = ("at", "calls", "text")

    def __init__(self, at: float) -> None:
        self.at = at
        self.calls = 0
        self.text = ""


class Guardrails:
    """The guards of one run and what they need to know of it. Made with the evaluation, lives as long."""

    def __init__(self, prompt: Prompt[Any], session: Session) -> None:
        self._prompt = prompt
        self._session = session
        self._began = session.clock.monotonic()
        self._asked: dict[str, _Asked] = {}
        self._calls = 0
        self._idle_calls = 0
        self._failed_calls = 0
        self._outcomes: Sequence[ToolOutcome] = ()
        self._is_fresh = False
        self.reminders_left = prompt.template.max_reminders
        """How often the model may still be sent back to work."""

    def note(self, outcomes: Sequence[ToolOutcome]) -> None:
        """Count the calls of a turn; the guards may then have something to say."""
        for outcome in outcomes:
            self._calls += 1
            self._idle_calls = 0 if outcome.changes else self._idle_calls + 1
            self._failed_calls = 0 if outcome.success else self._failed_calls + 1
        self._outcomes = tuple(outcomes)
        self._is_fresh = True

    async def feedback(self, turns: int, surroundings: dict[str, Any], settle: Settle) -> str:
        """What the guards have to say about the calls noted last, as one text for the model; empty when nothing."""
        if not self._is_fresh:
            return ""
        self._is_fresh = False
        now = self._session.clock.monotonic()
        due = [placed for placed in self._prompt.feedback(self._session) if self._take_turn(placed, now)]
        if not due:
            return ""
        said: list[str] = []
        context = self._context(turns, surroundings)
        for placed in due:
            asked = self._asked[placed.place]
            try:
                text = await self._ask(placed.guard.guard, context, settle)
            except Exception:
                # INVARIANT 2: a guard that raises has nothing to say; the run goes on as if it was not there.
                _logger.exception("Feedback %s failed", placed.place)
                continue
            is_new = bool(text) and (placed.guard.repeats or text != asked.text)
            asked.text = text
            if is_new:
                said.append(text)
                self._record(
                    FeedbackGiven(placed.place, text, turns, self._session.clock.now(), self._session.session_id)
                )
        return "\n\n".join((_HEAD, *said)) if said else ""

    async def missing(
        self, answer: str, output: object, turns: int, surroundings: dict[str, Any], settle: Settle, *, last: bool
    ) -> tuple[str, tuple[str, ...]]:
        """What is missing although the model wants to end: the text that sends it back to work, empty when its answer
        is taken, and every objection. `last`: the run cannot go on, whatever the checks say."""
        checks = self._prompt.completion(self._session)
        if not checks:
            return "", ()
        context = self._context(turns, surroundings)
        context.answer, context.output = answer, output
        found: list[str] = []
        failures: list[str] = []
        for placed in checks:
            try:
                text = await self._ask(placed.guard, context, settle)
            except Exception as error:
                # INVARIANT 2: whoever runs the prompt is told; the model could do nothing about it.
                _logger.exception("Completion check %s failed", placed.place)
                failures.append(f"Completion check {placed.place} raised {type(error).__name__}: {error}")
                continue
            if text:
                found.append(text)
        told = bool(found) and not last and self.reminders_left > 0
        if told:
            self.reminders_left -= 1
        self._record(
            CompletionChecked(
                not found and not failures,
                tuple(found),
                tuple(failures),
                told,
                turns,
                self._session.clock.now(),
                self._session.session_id,
            )
        )
        return reminder(found) if told else "", (*found, *failures)

    def _take_turn(self, placed: PlacedGuard[Feedback], now: float) -> bool:
        """Whether to ask this guard now; if so, its intervals begin anew."""
        asked = self._asked.get(placed.place)
        if asked is None:
            asked = self._asked[placed.place] = _Asked(self._began)
        if not placed.guard.is_due(self._calls - asked.calls, now - asked.at):
            return False
        asked.calls, asked.at = self._calls, now
        return True

    def _context(self, turns: int, surroundings: dict[str, Any]) -> GuardContext:
        context = GuardContext(**surroundings)
        context.turns = turns
        context.calls = self._calls
        context.idle_calls = self._idle_calls
        context.failed_calls = self._failed_calls
        context.elapsed = self._session.clock.monotonic() - self._began
        context.outcomes = self._outcomes
        return context

    async def _ask(self, guard: Guard, context: GuardContext, settle: Settle) -> str:
        """What one guard says, in a scope that refuses its writes."""
        scope = Scope(current_scope() or self._session.binding, readonly=True)
        context.session = self._session.bound(scope)
        token = scope.activate()
        try:
            said: object = guard(context)
            if inspect.isawaitable(said):
                said = await settle(cast("Awaitable[Any]", said))
        finally:
            Scope.deactivate(token)
            scope.rollback()
            scope.leave()
        if said is None:
            return ""
        if not isinstance(said, str):
            raise TypeError(f"{name_of(guard)} must return text or None, got {type(said).__name__}")
        text = said.strip()
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} [cut: {_LONGEST} of {len(text)} characters]"

    def _record(self, event: object) -> None:
        self._session._core.record(event)
