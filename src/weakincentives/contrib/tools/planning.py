"""Planning: an objective and numbered steps that the model writes down, keeps up to date and finishes before it ends.

Decides what a plan is, how it may change, and what the model reads of it. The plan is a STATE slice: a call that fails
takes its changes to the plan back. Ids never change and are never given twice. Never decides what a step means.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, MaxLen, MinLen

from ...errors import PromptValidationError, ToolValidationError
from ...frozen import frozen
from ...prompt import Feedback, GuardContext, Section, Tool, ToolContext, ToolExample, ToolResult
from ...session import Clear, ReducerContext, Replace, Session, SliceView

StepStatus = Literal[
    "pending",  # nobody has begun it
    "in_progress",  # it is being worked on
    "done",  # it is finished
    "skipped",  # it turned out not to be needed, or not to be possible
]
PlanStatus = Literal["pending", "in_progress", "done"]

MAX_STEPS: Final = 100
MAX_NOTES: Final = 20
_SHOWN_UNFINISHED: Final = 10

Objective = Annotated[str, MinLen(1), MaxLen(1_000)]
Title = Annotated[str, MinLen(1), MaxLen(200)]
Note = Annotated[str, MinLen(1), MaxLen(1_000)]
StepId = Annotated[int, Ge(1)]


# -- the slice ---------------------------------------------------------------------------------------------------------


@frozen
class PlanStep:
    """One step of a plan."""

    id: int
    """Counted from 1 in the order of adding; stays the same whatever else changes."""
    title: str
    status: StepStatus = "pending"
    notes: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        return self.status in ("done", "skipped")

    def render(self) -> str:
        notes = "".join(f"\n   - {note}" for note in self.notes)
        return f"{self.id}. [{self.status}] {self.title}{notes}"


@frozen
class Plan:
    """What the model set out to do, and how far it is. At most one in a session; `session[Plan].latest()`."""

    objective: str = ""
    steps: tuple[PlanStep, ...] = ()
    """In the order in which they are meant to be done. Titles alone may be given; they are numbered then."""
    status: PlanStatus = "pending"
    """Follows from the steps whenever one of them changes."""

    def __post_init__(self) -> None:
        given: Sequence[object] = self.steps
        if not all(isinstance(step, PlanStep) for step in given):
            fresh = itertools.count(max((step.id for step in given if isinstance(step, PlanStep)), default=0) + 1)
            numbered = (step if isinstance(step, PlanStep) else PlanStep(next(fresh), str(step)) for step in given)
            object.__setattr__(self, "steps", tuple(numbered))

    @property
    def unfinished(self) -> tuple[PlanStep, ...]:
        return tuple(step for step in self.steps if not step.is_finished)

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        return f"{len(self.steps) - len(self.unfinished)} of {_counted(len(self.steps), 'step')} finished"

    def render(self) -> str:
        return "\n".join((f"Plan: {self.objective} ({self.progress})", *(step.render() for step in self.steps)))

    def step(self, step_id: int) -> PlanStep | None:
        return next((step for step in self.steps if step.id == step_id), None)

    def with_steps(self, steps: Iterable[PlanStep]) -> Plan:
        """The plan with these steps and the status that follows from them."""
        steps = tuple(steps)
        status: PlanStatus = "pending"
        if steps and all(step.is_finished for step in steps):
            status = "done"
        elif any(step.status != "pending" for step in steps):
            status = "in_progress"
        return replace(self, steps=steps, status=status)

    def adding(self, titles: Sequence[str], after: int | None = None) -> Plan:
        """The plan with these steps behind step `after`, or at the end; a title that it has already is not added."""
        known = {_same(step.title) for step in self.steps}
        number = max((step.id for step in self.steps), default=0)
        fresh: list[PlanStep] = []
        for title in titles:
            if _same(title) not in known:
                known.add(_same(title))
                number += 1
                fresh.append(PlanStep(number, title))
        if not fresh:
            return self
        ids = [step.id for step in self.steps]
        at = len(ids) if after is None else ids.index(after) + 1
        return self.with_steps((*self.steps[:at], *fresh, *self.steps[at:]))

    def updating(self, changes: Sequence[StepChange]) -> Plan:
        """The plan with these changes made one after the other; the same change again changes nothing."""
        steps = {step.id: step for step in self.steps}
        for change in changes:
            step = steps[change.id]
            status = step.status if change.status is None else change.status
            notes = step.notes if change.note is None or change.note in step.notes else (*step.notes, change.note)
            steps[step.id] = PlanStep(step.id, change.title or step.title, status, notes)
        return self.with_steps(steps.values())


@frozen
class StepChange:
    """What to change about one step; what is left out stays as it is."""

    id: StepId
    """Number of the step."""
    status: StepStatus | None = None
    """Its new status."""
    note: Note | None = None
    """Something to remember about it: what was found, decided, or is in the way."""
    title: Title | None = None
    """A better title."""


@frozen
class UpdatePlan:
    """Change the plan of a session; what is left out stays as it is. For handlers and programs: `session.dispatch`."""

    objective: str | None = None
    status: str | None = None
    """Overrules the status until a step changes: pending, in_progress, done."""
    add: tuple[str, ...] = ()
    """Titles of steps to add, at the end or behind the step `after`."""
    after: int | None = None
    steps: tuple[StepChange, ...] = ()

    def __post_init__(self) -> None:
        if self.status is not None:
            object.__setattr__(self, "status", self.status.replace("-", "_"))
            if self.status not in ("pending", "in_progress", "done"):
                raise ValueError(f"status must be one of: pending, in_progress, done. Got '{self.status}'.")


@frozen
class SetPlan:
    """Put this plan in place of the one there is; None: have none."""

    plan: Plan | None


def _set(view: SliceView[Plan], event: SetPlan, *, context: ReducerContext) -> Replace[Plan] | Clear:  # noqa: ARG001
    return Clear() if event.plan is None else Replace((event.plan,))


def _update(view: SliceView[Plan], event: UpdatePlan, *, context: ReducerContext) -> Replace[Plan]:  # noqa: ARG001
    plan = view.latest() or Plan()
    if event.objective is not None:
        plan = replace(plan, objective=event.objective)
    _refuse_unknown(plan, [change.id for change in event.steps])
    if event.after is not None:
        _refuse_unknown(plan, [event.after])
    if event.add:
        plan = plan.adding(event.add, event.after)
    if event.steps:
        plan = plan.updating(event.steps)
    if event.status is not None:
        plan = Plan(plan.objective, plan.steps, _PLAN_STATUS[event.status])
    return Replace((plan,))


_PLAN_STATUS: Final[dict[str, PlanStatus]] = {"pending": "pending", "in_progress": "in_progress", "done": "done"}


# -- the tools ---------------------------------------------------------------------------------------------------------


@frozen
class SetupPlan:
    """A new plan."""

    objective: Objective
    """What is to be achieved, in one sentence."""
    steps: Annotated[tuple[Title, ...], MinLen(1), MaxLen(MAX_STEPS)]
    """Titles of the steps, in the order in which they should be done. Each says what is there when it is done."""
    replace: bool = False
    """Set to true to give up an unfinished plan and start over."""


@frozen
class AddPlanSteps:
    """Further steps."""

    steps: Annotated[tuple[Title, ...], MinLen(1), MaxLen(MAX_STEPS)]
    """Titles of the new steps, in order. Titles that the plan has already are not added again."""
    after: StepId | None = None
    """Number of the step behind which they belong; left out: at the end."""


@frozen
class UpdatePlanSteps:
    """Changes to steps."""

    changes: Annotated[tuple[StepChange, ...], MinLen(1), MaxLen(MAX_STEPS)]
    """One entry for each step to change; all are made, or none."""


@frozen
class ClearPlan:
    """Why the plan is dropped."""

    reason: str = ""
    """Why it is not needed any more."""


def _setup_plan(params: SetupPlan, *, context: ToolContext) -> ToolResult[Plan]:
    objective, titles = _line(params.objective, "objective"), _titles(params.steps)
    plan = Plan(objective).adding(titles)
    there = context.session[Plan].latest()
    if there is not None and not params.replace:
        if (there.objective, [_same(s.title) for s in there.steps]) == (
            objective,
            [_same(s.title) for s in plan.steps],
        ):
            return ToolResult.ok(there, "This is the plan already; its progress is kept.")
        if there.unfinished:
            raise ToolValidationError(
                f"There is an unfinished plan: {there.objective} ({there.progress}). "
                "Change it with add_plan_steps and update_plan_steps, or set replace=true to give it up, then retry."
            )
    context.session.dispatch(SetPlan(plan))
    return ToolResult.ok(plan, f"Plan set up with {_counted(len(plan.steps), 'step')}.")


def _add_plan_steps(params: AddPlanSteps, *, context: ToolContext) -> ToolResult[Plan]:
    plan, titles = _present(context.session), _titles(params.steps)
    if params.after is not None:
        _refuse_unknown(plan, [params.after])
    added = len(plan.adding(titles, params.after).steps) - len(plan.steps)
    if len(plan.steps) + added > MAX_STEPS:
        raise ToolValidationError(
            f"A plan has {MAX_STEPS} steps at most, this one has {len(plan.steps)}; {added} more cannot be added. "
            "Add fewer, broader steps."
        )
    if not added:
        return ToolResult.ok(plan, "No step added: the plan has all of these titles already.")
    context.session.dispatch(UpdatePlan(add=titles, after=params.after))
    known = "" if added == len(titles) else f" {len(titles) - added} not added: the plan has that title already."
    return ToolResult.ok(_present(context.session), f"{_counted(added, 'step')} added.{known}")


def _update_plan_steps(params: UpdatePlanSteps, *, context: ToolContext) -> ToolResult[Plan]:
    plan = _present(context.session)
    _refuse_unknown(plan, [change.id for change in params.changes])
    changes: list[StepChange] = []
    for change in params.changes:
        if change.status is None and change.note is None and change.title is None:
            raise ToolValidationError(
                f"The change of step {change.id} says nothing. Give it a status, a note or a title, then retry."
            )
        title = None if change.title is None else _line(change.title, "title")
        note = None if change.note is None else _line(change.note, "note")
        changes.append(StepChange(change.id, change.status, note, title))
    after = plan.updating(changes)
    for step in after.steps:
        if len(step.notes) > MAX_NOTES:
            raise ToolValidationError(
                f"Step {step.id} cannot take more than {MAX_NOTES} notes. Leave the note out, or add a step for it."
            )
    if after == plan:
        return ToolResult.ok(plan, "Nothing changed: the plan said all of this already.")
    context.session.dispatch(UpdatePlan(steps=tuple(changes)))
    ended = " All steps are finished." if after.status == "done" else ""
    return ToolResult.ok(after, f"Plan updated.{ended}")


def _read_plan(params: None, *, context: ToolContext) -> ToolResult[Plan | None]:  # noqa: ARG001
    plan = context.session[Plan].latest()
    return ToolResult.ok(plan, "" if plan is not None else "There is no plan. Set one up with setup_plan.")


def _clear_plan(params: ClearPlan, *, context: ToolContext) -> ToolResult[None]:  # noqa: ARG001
    if context.session[Plan].latest() is None:
        return ToolResult.ok(None, "There was no plan.")
    context.session.dispatch(SetPlan(None))
    return ToolResult.ok(None, "Plan cleared.")


@cache
def _tools() -> tuple[Tool[Any, Any], ...]:
    """The same for every section. WHY NOT a constant: checking their types loads pydantic."""
    example = Plan("Fix the failing login test").adding(("Reproduce the failure", "Fix the cause", "Run all tests"))
    return (
        Tool[SetupPlan, Plan](
            name="setup_plan",
            description="Write down a plan for a task of several steps: the objective and the steps, in order.",
            handler=_setup_plan,
            examples=(
                ToolExample[SetupPlan, Plan](
                    description="Plan before starting on a task.",
                    input=SetupPlan(example.objective, tuple(step.title for step in example.steps)),
                    output=example,
                ),
            ),
        ),
        Tool[AddPlanSteps, Plan](
            name="add_plan_steps",
            description="Add steps to the plan when it turns out that more is to be done.",
            handler=_add_plan_steps,
        ),
        Tool[UpdatePlanSteps, Plan](
            name="update_plan_steps",
            description="Keep the plan up to date: set the status of steps as you begin and finish them, and note what matters.",
            handler=_update_plan_steps,
            examples=(
                ToolExample[UpdatePlanSteps, Plan](
                    description="Finish one step and begin the next.",
                    input=UpdatePlanSteps((StepChange(1, "done"), StepChange(2, "in_progress"))),
                    output=example.updating((StepChange(1, "done"), StepChange(2, "in_progress"))),
                ),
            ),
        ),
        Tool[None, Plan | None](
            name="read_plan",
            description="Read the plan: objective, steps, status and notes.",
            handler=_read_plan,
            effects="none",
        ),
        Tool[ClearPlan, None](
            name="clear_plan",
            description="Drop the plan because the task has changed or was given up.",
            handler=_clear_plan,
        ),
    )


# -- the guards --------------------------------------------------------------------------------------------------------


def unfinished_plan(context: GuardContext) -> str | None:
    """Completion check: a plan with unfinished steps. Content when there is no plan."""
    plan = context.session[Plan].latest()
    if plan is None or plan.status == "done" or not plan.unfinished:
        return None
    listed = _listed(plan.unfinished)
    return (
        f"The plan has unfinished steps: {listed}. Finish them, "
        "or use update_plan_steps to mark those that are done or need not be done."
    )


def plan_reminder(context: GuardContext) -> str | None:
    """Feedback: where the plan stands, as long as it is unfinished."""
    plan = context.session[Plan].latest()
    if plan is None or plan.status == "done" or not plan.unfinished:
        return None
    return (
        f"The plan '{plan.objective}' has {plan.progress}. Still open: {_listed(plan.unfinished)}. "
        "Keep it up to date with update_plan_steps."
    )


# -- the section -------------------------------------------------------------------------------------------------------

_GUIDANCE: Final = """\
Plan before you act when a task takes more than two or three steps.

1. Write the plan down with `setup_plan`: the objective in one sentence, then a few steps that each end in something \
that can be checked.
2. Set a step to `in_progress` with `update_plan_steps` when you begin it, and to `done` as soon as it is finished. \
Several changes fit into one call.
3. Note what you find out and decide; add steps with `add_plan_steps` when more turns out to be needed; set steps that \
are not needed to `skipped`, with a note that says why.
4. Call `read_plan` when you are not sure where you are.

Finish every step, or mark it `skipped`, before you give your final answer."""


class PlanningToolsSection(Section[None]):
    """Planning as a section: guidance, five tools, the `Plan` slice, a reminder and a completion check.

    `session` is optional: it only registers the slice's reducers earlier than the first run would.
    """

    def __init__(
        self,
        session: Session | None = None,
        *,
        guidance: str | None = None,
        show_plan: bool = False,
        must_finish: bool = True,
        remind_every: int | None = 15,
        title: str = "Planning",
        key: str = "planning",
        accepts_overrides: bool = True,
    ) -> None:
        """`guidance` takes the place of our text. `show_plan` puts the plan as it stands into the prompt; the prompt
        then changes with every update, which a provider's prompt cache does not like. `must_finish` sends a model back
        that wants to end with unfinished steps; `remind_every` says so many calls when it is reminded of them."""
        if session is not None and not isinstance(session, Session):
            raise PromptValidationError(
                f"PlanningToolsSection: session must be a Session, got {type(session).__name__}."
            )
        super().__init__(
            title=title,
            key=key,
            tools=_tools(),
            feedback=() if remind_every is None else (Feedback(plan_reminder, every_calls=remind_every),),
            completion=(unfinished_plan,) if must_finish else (),
            accepts_overrides=accepts_overrides,
        )
        self.template: str | None = (_GUIDANCE if guidance is None else guidance).strip()
        self.show_plan = show_plan
        if session is not None:
            self.install(session)

    def render_body(self, params: None, *, session: Session | None = None) -> str:
        text = super().render_body(params, session=session)
        plan = None if session is None or not self.show_plan else session[Plan].latest()
        return text if plan is None else f"{text}\n\n{plan.render()}"

    def install(self, session: Session) -> None:
        session[Plan].register(SetPlan, _set)
        session[Plan].register(UpdatePlan, _update)


# -- what they stand on ------------------------------------------------------------------------------------------------


def _present(session: Session) -> Plan:
    plan = session[Plan].latest()
    if plan is None:
        raise ToolValidationError("There is no plan yet. Set one up with setup_plan first, then retry.")
    return plan


def _refuse_unknown(plan: Plan, ids: Sequence[int]) -> None:
    known = {step.id for step in plan.steps}
    unknown = [str(step_id) for step_id in dict.fromkeys(ids) if step_id not in known]
    if unknown:
        there = f"it has the steps {_ranges(sorted(known))}" if known else "it has no steps"
        raise ToolValidationError(
            f"The plan has no step {', '.join(unknown)}; {there}. Call read_plan to see them, then retry."
        )


def _ranges(ids: Sequence[int]) -> str:
    """Ids in few words. They have no gaps, because none is ever removed; seeded plans may."""
    if len(ids) > 1 and ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]} to {ids[-1]}"
    return ", ".join(map(str, ids))


def _listed(steps: Sequence[PlanStep]) -> str:
    listed = "; ".join(f"{step.id} ({step.status}) {step.title}" for step in steps[:_SHOWN_UNFINISHED])
    more = len(steps) - _SHOWN_UNFINISHED
    return f"{listed}; and {more} more" if more > 0 else listed


def _titles(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(_line(title, f"steps[{index}]") for index, title in enumerate(given))


def _line(text: str, where: str) -> str:
    """Text on one line: a line break in a title would forge a step."""
    line = " ".join(text.split())
    if not line:
        raise ToolValidationError(f"{where} is empty. Say in a few words what it is about, then retry.")
    return line


def _same(title: str) -> str:
    return title.casefold()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
