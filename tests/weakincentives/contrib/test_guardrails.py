"""Claims about the ready-made guards: what they look at, what they say, and when they are silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from weakincentives.adapters import Message, ModelReply, ScriptedAdapter
from weakincentives.clock import FakeClock
from weakincentives.contrib.guardrails import BudgetNear, DeadlineNear, RepeatedFailures, RequiredFiles, Stalled
from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget, BudgetTracker, Deadline, TokenUsage
from weakincentives.prompt import (
    Guard,
    GuardContext,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import Session, ToolCall


def context_of(*, idle_calls: int = 0, failed_calls: int = 0, **surroundings: Any) -> GuardContext:
    context = GuardContext(**surroundings)
    context.idle_calls, context.failed_calls = idle_calls, failed_calls
    return context


# -- deadline and budget -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (301, None),
        (300, "Less than 5 minutes are left before this run must end."),
        (61, "Less than 5 minutes are left before this run must end."),
        (60, "Less than 1 minute is left before this run must end."),
        (0, "Less than 1 minute is left before this run must end."),
    ],
)
def test_a_deadline_is_told_in_steps(left: float, said: str | None) -> None:
    """The same words as long as the same step holds."""
    text = DeadlineNear()(context_of(deadline=Deadline.after(left, FakeClock())))
    rest = " Finish what matters most, leave the rest, and give your final answer in time."
    assert text == (None if said is None else said + rest)


def test_spans_in_seconds_are_told_in_seconds() -> None:
    """Whatever was asked for."""
    text = DeadlineNear([30])(context_of(deadline=Deadline.after(5, FakeClock())))
    assert text is not None
    assert text.startswith("Less than 30 seconds are left before")


def test_a_run_without_limits_hears_nothing() -> None:
    """Neither of time nor of tokens."""
    assert DeadlineNear()(context_of()) is None
    assert BudgetNear()(context_of()) is None
    assert BudgetNear()(context_of(budget_tracker=BudgetTracker(Budget()))) is None


@pytest.mark.parametrize(("tokens", "part"), [(749, None), (750, "75%"), (899, "75%"), (900, "90%")])
def test_a_budget_is_told_in_steps(tokens: int, part: str | None) -> None:
    """The limit that is nearest counts."""
    tracker = BudgetTracker(Budget(max_total_tokens=1_000, max_input_tokens=100_000))
    tracker.add(input_tokens=tokens)
    said = (
        f"More than {part} of the tokens of this run are used up. Finish what matters most, read only what you need, "
        "and give your final answer in time."
    )
    assert BudgetNear()(context_of(budget_tracker=tracker)) == (None if part is None else said)


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_that_are_missing_or_empty_are_named() -> None:
    """A folder of that name is no file."""
    fs = InMemoryFilesystem({"a.md": "x", "empty.md": "", "docs/x": "x"})
    guard = RequiredFiles("/a.md", "b.md", "docs", "./empty.md")
    assert guard(context_of(filesystem=fs)) == (
        "Required files are missing: b.md, docs. Write them. Required files are empty: empty.md. Fill them."
    )


def test_empty_files_may_be_allowed() -> None:
    """Then being there is enough."""
    fs = InMemoryFilesystem({"empty.md": ""})
    assert RequiredFiles("empty.md", allow_empty=True)(context_of(filesystem=fs)) is None


def test_a_run_ends_when_the_required_file_is_there() -> None:
    """As completion check."""

    def write(params: None, *, context: ToolContext) -> ToolResult[None]:
        assert context.filesystem is not None
        context.filesystem.write("report.md", "All fine.")
        return ToolResult.ok(None, "written")

    tool = Tool[None, None](name="report", description="Write the report.", handler=write)
    template = PromptTemplate(
        sections=[MarkdownSection(title="Work", tools=[tool])], completion=[RequiredFiles("report.md")]
    )
    prompt = Prompt(template).bind(resources={Filesystem: InMemoryFilesystem()})
    with ScriptedAdapter(["early", ToolCall("report", {}), "done"]) as adapter:
        response = adapter.evaluate(prompt, Session())
    assert (response.text, response.unfinished) == ("done", ())


def test_without_files_the_check_cannot_tell() -> None:
    """The response says so; the model could do nothing about it."""
    prompt = Prompt(PromptTemplate(completion=[RequiredFiles("report.md")]))
    assert ScriptedAdapter(["done"]).evaluate(prompt, Session()).unfinished == (
        "Completion check RequiredFiles#0 raised LookupError: RequiredFiles needs a Filesystem: bind one to the prompt.",
    )


# -- going in circles --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("idle", "said"), [(11, None), (12, 12), (23, 12), (24, 24)])
def test_calls_that_change_nothing_are_told_from_time_to_time(idle: int, said: int | None) -> None:
    """Every so many, not at each one more."""
    text = (
        f"The last {said} calls changed nothing. If you know enough, act on it; "
        "if you cannot go on, say so in your final answer."
    )
    assert Stalled()(context_of(idle_calls=idle)) == (None if said is None else text)


@pytest.mark.parametrize(("failed", "said"), [(2, None), (3, 3), (5, 3), (6, 6)])
def test_failures_in_a_row_are_told_from_time_to_time(failed: int, said: int | None) -> None:
    """Every so many, not at each one more."""
    text = f"The last {said} calls failed. Do not repeat them: read what the errors say, and try another way."
    assert RepeatedFailures()(context_of(failed_calls=failed)) == (None if said is None else text)


def test_the_ready_made_ones_work_together_in_a_run() -> None:
    """Time and tokens run out, calls fail; each is told once."""
    clock = FakeClock()

    def fail(messages: Sequence[Message]) -> ModelReply:
        clock.advance(100)
        return ModelReply(tool_calls=[ToolCall("nothing", {})], usage=TokenUsage(200, 0))

    guards: list[Guard] = [DeadlineNear(), BudgetNear(), RepeatedFailures(), Stalled(2)]
    prompt = Prompt(PromptTemplate(feedback=guards))
    with ScriptedAdapter([fail, fail, fail, fail, "done"]) as adapter:
        response = adapter.evaluate(
            prompt,
            Session(clock=clock),
            deadline=Deadline.after(500, clock),
            budget=Budget(max_total_tokens=1_000),
        )
    told = [[line.split(".")[0] for line in m.text.split("\n\n")[1:]] for m in response.messages if m.role == "user"]
    assert told == [
        ["Less than 5 minutes are left before this run must end", "The last 2 calls changed nothing"],
        ["The last 3 calls failed"],
        ["More than 75% of the tokens of this run are used up", "The last 4 calls changed nothing"],
    ]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: DeadlineNear([0]), "DeadlineNear takes spans above 0 seconds, got (0,)."),
        (lambda: DeadlineNear([]), "DeadlineNear takes spans above 0 seconds, got ()."),
        (lambda: BudgetNear([1.5]), "BudgetNear takes parts between 0 and 1, got (1.5,)."),
        (lambda: RequiredFiles(), "RequiredFiles takes at least one path."),
        (lambda: Stalled(1), "Stalled takes a number of calls of 2 or more, got 1."),
        (lambda: RepeatedFailures(True), "RepeatedFailures takes a number of calls of 2 or more, got True."),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Any, why: str) -> None:
    """When the guard is made."""
    with pytest.raises(PromptValidationError) as caught:
        make()
    assert str(caught.value) == why
