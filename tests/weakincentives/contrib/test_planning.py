"""Claims about planning: the plan as state, its tools, its guards, and what the model reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.adapters import Message, ScriptedAdapter
from weakincentives.contrib.tools import Plan, PlanningToolsSection, PlanStep, StepChange, UpdatePlan
from weakincentives.errors import PromptValidationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolCall, ToolOutcome, execute_tool, tool_transaction

TITLES = ["Read", "Write", "Ship"]


class Desk:
    """A session with a prompt that plans."""

    def __init__(self, *, session: Session | None = None, **options: Any) -> None:
        self.session = Session() if session is None else session
        self.prompt = Prompt(PromptTemplate(sections=[PlanningToolsSection(**options)]))

    def call(self, name: str, **arguments: Any) -> ToolOutcome:
        return execute_tool(ToolCall(name, arguments), prompt=self.prompt, session=self.session)

    def set_up(self, titles: Sequence[str] = TITLES) -> Desk:
        assert self.call("setup_plan", objective="Release", steps=list(titles)).success
        return self

    @property
    def plan(self) -> Plan:
        plan = self.session[Plan].latest()
        assert plan is not None
        return plan


def planned() -> Desk:
    return Desk().set_up()


# -- the tools ---------------------------------------------------------------------------------------------------------


def test_setting_up_numbers_the_steps() -> None:
    """Ids count from 1 and every step is pending."""
    outcome = Desk().call("setup_plan", objective="Release", steps=TITLES)
    assert outcome.text == (
        "Plan set up with 3 steps.\n\n"
        "Plan: Release (0 of 3 steps finished)\n1. [pending] Read\n2. [pending] Write\n3. [pending] Ship"
    )


def test_the_plan_is_the_only_item_of_its_slice() -> None:
    """Updates take its place; history is in the events, not here."""
    desk = planned()
    desk.call("update_plan_steps", changes=[{"id": 1, "status": "done"}])
    assert desk.session[Plan].all() == (
        Plan("Release", (PlanStep(1, "Read", "done"), PlanStep(2, "Write"), PlanStep(3, "Ship")), "in_progress"),
    )


def test_setting_up_the_same_plan_again_keeps_its_progress() -> None:
    """A model that repeats itself loses nothing."""
    desk = planned()
    desk.call("update_plan_steps", changes=[{"id": 1, "status": "done"}])
    outcome = desk.call("setup_plan", objective="Release", steps=TITLES)
    assert outcome.text.startswith("This is the plan already; its progress is kept.")
    assert desk.plan.steps[0].status == "done"


def test_an_unfinished_plan_is_not_given_up_by_accident() -> None:
    """The model is told how to change it, and how to start over."""
    desk = planned()
    assert desk.call("setup_plan", objective="Other", steps=["Rest"]).text == (
        "There is an unfinished plan: Release (0 of 3 steps finished). "
        "Change it with add_plan_steps and update_plan_steps, or set replace=true to give it up, then retry."
    )
    assert desk.call("setup_plan", objective="Other", steps=["Rest"], replace=True).success
    assert desk.plan == Plan("Other", (PlanStep(1, "Rest"),))


def test_a_finished_plan_makes_room_for_the_next() -> None:
    """Nobody has to ask for it."""
    desk = Desk().set_up(["Read"])
    desk.call("update_plan_steps", changes=[{"id": 1, "status": "skipped"}])
    assert desk.call("setup_plan", objective="Next", steps=["Go"]).text.startswith("Plan set up with 1 step.")


def test_added_steps_get_new_ids_and_the_place_asked_for() -> None:
    """Ids of the others stay as they are."""
    desk = planned()
    assert desk.call("add_plan_steps", steps=["Test", "Review"], after=2).text.startswith("2 steps added.\n")
    assert [(step.id, step.title) for step in desk.plan.steps] == [
        (1, "Read"),
        (2, "Write"),
        (4, "Test"),
        (5, "Review"),
        (3, "Ship"),
    ]


def test_a_title_is_not_added_twice() -> None:
    """The model is told which were there, whatever their case."""
    desk = planned()
    assert desk.call("add_plan_steps", steps=["ship", "Rest", "rest"]).text.startswith(
        "1 step added. 2 not added: the plan has that title already.\n"
    )
    assert desk.call("add_plan_steps", steps=["Rest"]).text.startswith(
        "No step added: the plan has all of these titles already.\n"
    )
    assert len(desk.plan.steps) == 4


def test_several_steps_change_in_one_call() -> None:
    """Status, note and title, each where it is given."""
    desk = planned()
    outcome = desk.call(
        "update_plan_steps",
        changes=[{"id": 1, "status": "done"}, {"id": 2, "status": "in_progress", "note": "Half", "title": "Write it"}],
    )
    assert outcome.text == (
        "Plan updated.\n\nPlan: Release (1 of 3 steps finished)\n"
        "1. [done] Read\n2. [in_progress] Write it\n   - Half\n3. [pending] Ship"
    )


def test_the_last_step_finishes_the_plan() -> None:
    """Skipped steps count as finished; a new one opens the plan again."""
    desk = Desk().set_up(["Read", "Write"])
    outcome = desk.call(
        "update_plan_steps", changes=[{"id": 1, "status": "done"}, {"id": 2, "status": "skipped", "note": "Not needed"}]
    )
    assert outcome.message == "Plan updated. All steps are finished."
    assert desk.plan.status == "done"
    desk.call("add_plan_steps", steps=["More"])
    assert desk.plan.status == "in_progress"


def test_the_same_update_again_changes_nothing() -> None:
    """Also not its notes."""
    desk = planned()
    change = {"id": 2, "status": "done", "note": "Fine"}
    desk.call("update_plan_steps", changes=[change])
    outcome = desk.call("update_plan_steps", changes=[change])
    assert outcome.message == "Nothing changed: the plan said all of this already."
    assert not outcome.changes
    assert desk.plan.steps[1].notes == ("Fine",)


def test_the_plan_can_be_read_and_cleared() -> None:
    """Both say so when there is none."""
    desk = planned()
    assert desk.call("read_plan").text.startswith("Plan: Release (0 of 3 steps finished)\n1. ")
    assert desk.call("clear_plan", reason="Given up").text == "Plan cleared."
    assert desk.session[Plan].all() == ()
    assert desk.call("clear_plan").text == "There was no plan."
    assert desk.call("read_plan").text == "There is no plan. Set one up with setup_plan."


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        (
            "update_plan_steps",
            {"changes": [{"id": 1, "status": "done"}, {"id": 7, "status": "done"}, {"id": 9, "note": "x"}]},
            "The plan has no step 7, 9; it has the steps 1 to 3. Call read_plan to see them, then retry.",
        ),
        (
            "add_plan_steps",
            {"steps": ["x"], "after": 4},
            "The plan has no step 4; it has the steps 1 to 3. Call read_plan to see them, then retry.",
        ),
        (
            "update_plan_steps",
            {"changes": [{"id": 1}]},
            "The change of step 1 says nothing. Give it a status, a note or a title, then retry.",
        ),
        (
            "add_plan_steps",
            {"steps": ["x", " \n"]},
            "steps[1] is empty. Say in a few words what it is about, then retry.",
        ),
        (
            "add_plan_steps",
            {"steps": [f"step {n}" for n in range(98)]},
            "A plan has 100 steps at most, this one has 3; 98 more cannot be added. Add fewer, broader steps.",
        ),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(name: str, arguments: dict[str, Any], text: str) -> None:
    """All of a call is done, or none of it."""
    desk = planned()
    before = desk.plan
    outcome = desk.call(name, **arguments)
    assert (outcome.outcome, outcome.text) == ("failed", text)
    assert desk.plan == before


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("add_plan_steps", {"steps": ["x"]}), ("update_plan_steps", {"changes": [{"id": 1, "status": "done"}]})],
)
def test_without_a_plan_the_model_is_told_to_set_one_up(name: str, arguments: dict[str, Any]) -> None:
    """It names the tool."""
    assert Desk().call(name, **arguments).text == "There is no plan yet. Set one up with setup_plan first, then retry."


def test_an_unknown_status_names_the_known_ones() -> None:
    """By the parser, with the path of the entry."""
    text = planned().call("update_plan_steps", changes=[{"id": 1, "status": "finished"}]).text
    assert '"changes[0].status"' in text
    assert "must be one of: pending, in_progress, done, skipped" in text


def test_sizes_are_bounded_by_the_schema() -> None:
    """Titles, objective, and the number of steps."""
    desk = Desk()
    for arguments in (
        {"objective": "x", "steps": ["t" * 201]},
        {"objective": "x" * 1_001, "steps": ["t"]},
        {"objective": "x", "steps": []},
        {"objective": "x", "steps": [str(n) for n in range(101)]},
    ):
        assert desk.call("setup_plan", **arguments).outcome == "invalid_params"


def test_the_notes_of_a_step_are_bounded() -> None:
    """Twenty; the model is told what to do instead."""
    desk = planned()
    desk.call("update_plan_steps", changes=[{"id": 1, "note": f"note {n}"} for n in range(20)])
    assert desk.call("update_plan_steps", changes=[{"id": 1, "note": "one more"}]).text == (
        "Step 1 cannot take more than 20 notes. Leave the note out, or add a step for it."
    )


def test_a_line_break_in_a_title_forges_no_step() -> None:
    """Titles, notes and the objective are one line each."""
    desk = Desk()
    desk.call("setup_plan", objective="a\n1. [done] b", steps=["x\n2. [done] y"])
    assert desk.plan.render() == "Plan: a 1. [done] b (0 of 1 step finished)\n1. [pending] x 2. [done] y"


# -- state -------------------------------------------------------------------------------------------------------------


def test_a_failed_call_takes_its_changes_to_the_plan_back() -> None:
    """A handler that changes the plan and fails leaves it as it was."""

    def stumble(params: None, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(UpdatePlan(status="in-progress", add=("More",)))
        return ToolResult.error("no")

    desk = Desk()
    tool = Tool[None, None](name="stumble", description="Stumble.", handler=stumble)
    desk.prompt = desk.prompt.bind(extra_tools=[tool])
    desk.set_up()
    before = desk.plan
    assert not desk.call("stumble").success
    assert desk.plan == before


def test_a_transaction_of_several_calls_takes_the_plan_along() -> None:
    """Leaving it by an exception leaves the plan as it was before."""
    desk = planned()
    before = desk.plan
    with pytest.raises(RuntimeError), tool_transaction(desk.session, desk.prompt.resources):
        desk.call("update_plan_steps", changes=[{"id": 1, "status": "done"}])
        raise RuntimeError
    assert desk.plan == before


def test_programs_change_the_plan_by_an_event() -> None:
    """As handlers do; what is left out stays."""
    session = Session()
    PlanningToolsSection(session=session)
    session.dispatch(UpdatePlan(objective="Release", add=("Read", "Ship")))
    session.dispatch(UpdatePlan(add=("Write",), after=1, steps=(StepChange(1, "done"),)))
    session.dispatch(UpdatePlan(status="in-progress"))
    assert session[Plan].all() == (
        Plan("Release", (PlanStep(1, "Read", "done"), PlanStep(3, "Write"), PlanStep(2, "Ship")), "in_progress"),
    )


def test_an_event_with_an_unknown_step_or_status_is_refused() -> None:
    """The plan stays as it was."""
    desk = planned()
    with pytest.raises(ValueError, match="The plan has no step 9"):
        desk.session.dispatch(UpdatePlan(steps=(StepChange(9, "done"),)))
    with pytest.raises(ValueError, match=r"status must be one of: pending, in_progress, done\. Got 'lost'\."):
        UpdatePlan(status="lost")


def test_a_plan_is_made_of_titles_alone_too() -> None:
    """They are numbered as if they had been added."""
    assert Plan(steps=("Read", "Ship")) == Plan(steps=(PlanStep(1, "Read"), PlanStep(2, "Ship")))  # type: ignore[arg-type]


def test_a_durable_session_has_the_plan_again(tmp_path: Path) -> None:
    """After a restart the model goes on where it was."""
    with Session.open(tmp_path / "session") as session:
        desk = Desk(session=session).set_up()
        desk.call("update_plan_steps", changes=[{"id": 1, "status": "done", "note": "Fine"}])
        before = desk.plan
    with Session.open(tmp_path / "session") as session:
        assert session[Plan].latest() == before


WORDS = st.sampled_from(["a", "B", "b", "c", "d", "e"])
CALLS = st.one_of(
    st.tuples(st.just("add_plan_steps"), st.fixed_dictionaries({"steps": st.lists(WORDS, min_size=1, max_size=3)})),
    st.tuples(
        st.just("update_plan_steps"),
        st.fixed_dictionaries(
            {
                "changes": st.lists(
                    st.fixed_dictionaries(
                        {
                            "id": st.integers(1, 8),
                            "status": st.sampled_from(["pending", "in_progress", "done", "skipped"]),
                        }
                    ),
                    min_size=1,
                    max_size=3,
                )
            }
        ),
    ),
)


@given(st.lists(CALLS, max_size=8))
def test_ids_stay_and_repetition_changes_nothing(calls: list[tuple[str, dict[str, Any]]]) -> None:
    """Whatever a model calls: a step keeps its id and title, a call made twice is a call made once, status follows."""
    desk = Desk().set_up(["a", "b"])
    known: dict[int, str] = {}
    for name, arguments in calls:
        desk.call(name, **arguments)
        once = desk.plan
        desk.call(name, **arguments)
        assert desk.plan == once
        titles = {step.id: step.title for step in once.steps}
        assert len(titles) == len(once.steps)
        assert known.items() <= titles.items()
        assert (once.status == "done") == (not once.unfinished)
        known = titles


# -- the section -------------------------------------------------------------------------------------------------------


def test_the_section_tells_how_to_plan_and_brings_five_tools() -> None:
    """The text names every tool but the one that drops the plan."""
    rendered = Desk().prompt.render()
    names = [tool.name for tool in rendered.tools]
    assert names == ["setup_plan", "add_plan_steps", "update_plan_steps", "read_plan", "clear_plan"]
    assert rendered.text.startswith("# Planning\n\nPlan before you act when a task takes more than two or three steps.")
    assert all(f"`{name}`" in rendered.text for name in names[:-1])


def test_own_guidance_takes_the_place_of_ours() -> None:
    """Title and key too."""
    desk = Desk(guidance="Plan well.", title="Plans", key="plans")
    assert desk.prompt.render().text.startswith("# Plans\n\nPlan well.\n\nExample of `setup_plan`")


def test_the_plan_is_in_the_prompt_when_asked_for() -> None:
    """And not otherwise: a prompt that changes spoils a provider's cache."""
    shown, hidden = Desk(guidance="G", show_plan=True).set_up(), Desk(guidance="G").set_up()
    assert "Plan: Release (0 of 3 steps finished)" in shown.prompt.render(shown.session).text
    assert "Plan: Release" not in hidden.prompt.render(hidden.session).text


def test_a_session_of_another_kind_is_refused() -> None:
    """When the section is made."""
    with pytest.raises(PromptValidationError) as caught:
        PlanningToolsSection(session="x")  # type: ignore[arg-type]
    assert str(caught.value) == "PlanningToolsSection: session must be a Session, got str."


# -- the guards --------------------------------------------------------------------------------------------------------


def run(turns: Sequence[Any], **options: Any) -> Any:
    desk = Desk(**options)
    with ScriptedAdapter(turns) as adapter:
        return adapter.evaluate(desk.prompt, desk.session)


SETUP = ToolCall("setup_plan", {"objective": "Release", "steps": ["Read", "Ship"]})
FIRST = ToolCall("update_plan_steps", {"changes": [{"id": 1, "status": "done"}]})
SECOND = ToolCall("update_plan_steps", {"changes": [{"id": 2, "status": "skipped"}]})


def told(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if message.role == "user"]


def test_a_model_with_an_unfinished_plan_is_sent_back() -> None:
    """It reads which steps are open and how to close them."""
    response = run([SETUP, FIRST, "early", SECOND, "done"])
    assert response.unfinished == ()
    (text,) = told(response.messages)
    assert text.startswith(
        "The task is not complete:\n- The plan has unfinished steps: 2 (pending) Ship. Finish them, "
        "or use update_plan_steps to mark those that are done or need not be done.\n"
    )


def test_without_a_plan_a_model_may_end() -> None:
    """Planning is offered, not forced."""
    assert run(["done"]).text == "done"


def test_finishing_can_be_left_to_the_model() -> None:
    """`must_finish=False` declares no check."""
    assert run([SETUP, "done"], must_finish=False).turns == 2


def test_the_model_is_reminded_of_an_open_plan_from_time_to_time() -> None:
    """After so many calls; the step that comes next is named."""
    response = run([SETUP, FIRST, ToolCall("read_plan", {}), SECOND, "done"], remind_every=2)
    (text,) = told(response.messages)
    assert text.endswith(
        "The plan 'Release' has 1 of 2 steps finished. Still open: 2 (pending) Ship. "
        "Keep it up to date with update_plan_steps."
    )


def test_a_long_list_of_open_steps_is_cut() -> None:
    """Ten are named, the rest counted."""
    setup = ToolCall("setup_plan", {"objective": "Release", "steps": [f"s{n}" for n in range(1, 13)]})
    response = run([setup, "a", "b", "c", "d"])
    assert "10 (pending) s10; and 2 more. Finish them" in response.unfinished[0]


def test_planning_stands_beside_other_sections() -> None:
    """Its names collide with nothing that a prompt brings by itself."""
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="A", template="x"), PlanningToolsSection()]))
    assert "setup_plan" in prompt.tool_names()
