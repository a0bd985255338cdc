"""Whatever a model sends, the answer is an outcome and one record: never an exception (S2, S3)."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Annotated, Any, Literal

import annotated_types as at
import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolInvoked, ToolResult
from weakincentives.runtime import Session, ToolCall, execute_tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def _record(fields: list[Any]) -> type:
    named = [(f"field_{index}", hint) for index, hint in enumerate(fields)]
    return dataclasses.make_dataclass("Params", named, frozen=True)


leaves = st.sampled_from(
    [
        str,
        int,
        float,
        bool,
        Literal["a", "b", 3],
        Colour,
        datetime.datetime,
        datetime.date,
        uuid.UUID,
        decimal.Decimal,
        Annotated[int, at.Ge(0), at.Le(10)],
        Annotated[str, at.MinLen(1), at.MaxLen(4)],
        Any,
    ]
)
hints = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lambda hint: list[hint]),
        inner.map(lambda hint: tuple[hint, ...]),
        inner.map(lambda hint: dict[str, hint]),
        inner.map(lambda hint: hint | None if hint is not Any else Any),
        st.lists(inner, min_size=1, max_size=2).map(_record),
    ),
    max_leaves=4,
)


params_types = st.lists(hints, min_size=0, max_size=3).map(_record)
# No integral floats: JSON Schema calls 1.0 an integer, and so do we, but numbers beyond 2**63 are a world of their own.
keys = st.sampled_from(["field_0", "field_1", "field_2"])
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.text())
known = st.sampled_from(["a", "red", "2024-02-29", "2024-02-29T10:00:00Z", str(uuid.UUID(int=7)), "1.5", "field_0", ""])
values = st.recursive(
    scalars | known,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | keys, inner, max_size=3),
    max_leaves=6,
)
bodies = st.one_of(
    st.dictionaries(keys, values, max_size=3),
    values.map(json.dumps),
    st.text(),
    st.binary(),
    st.none(),
    st.dictionaries(keys, values, max_size=3).map(json.dumps),
)


def _prompt(params_type: type) -> Prompt[Any]:
    def handle(params: Any, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult.ok("ran")

    tool = Tool[params_type, str](name="probe", description="Takes anything.", handler=handle)  # type: ignore[valid-type]
    return Prompt(PromptTemplate(sections=[MarkdownSection(title="Probe", template="", tools=[tool])]))


@given(params_types, bodies, st.sampled_from(["probe"]) | st.text())
def test_any_arguments_for_any_schema_give_one_outcome_and_one_record(params_type: type, body: Any, name: str) -> None:
    """Random schemas, random names and random bodies end in an outcome that is recorded once."""
    session = Session()
    outcome = execute_tool(ToolCall(name, body), prompt=_prompt(params_type), session=session)
    assert outcome.outcome in {"ok", "invalid_params", "unknown_tool"}
    assert [event.outcome for event in session[ToolInvoked].all()] == [outcome.outcome]
    if outcome.outcome == "invalid_params":
        answer = json.loads(outcome.text)
        assert answer["error"] == "Invalid parameters for tool 'probe'"
        assert answer["details"]


@given(params_types, st.dictionaries(keys, values, max_size=3))
def test_the_advertised_schema_accepts_what_the_pipeline_accepts(params_type: type, body: dict[str, Any]) -> None:
    """An independent validator and the pipeline agree on every body."""
    prompt = _prompt(params_type)
    binding = prompt.find_tool("probe")
    assert binding is not None
    validator = jsonschema_rs.Draft202012Validator(binding.tool.schema(), validate_formats=True)
    outcome = execute_tool(ToolCall("probe", json.dumps(body)), prompt=prompt, session=Session())
    assert validator.is_valid(body) == (outcome.outcome == "ok"), outcome.text
