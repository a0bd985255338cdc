"""A forced tool is seen as forced, however the request words it (G3, G24)."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright.errors import WireError
from wardwright.wire import ToolChoice, Turn, anthropic, chat_completions, responses

FORCED = ToolChoice("tool", ("shell_exec",))


def chat(*names: str, **fields: Any) -> Turn:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return chat_completions.parse_request({"model": "m", "messages": [], "tools": tools, **fields})


def items(*names: str, choice: Any) -> Turn:
    tools = [{"type": "function", "name": name} for name in names]
    return responses.parse_request({"model": "m", "input": "", "tools": tools, "tool_choice": choice})


def messages(*names: str, choice: Any) -> Turn:
    tools = [{"name": name} for name in names]
    return anthropic.parse_request({"model": "m", "messages": [], "tools": tools, "tool_choice": choice})


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"mode": mode, "tools": [{"type": "function", "function": {"name": name}, "name": name} for name in names]}


@pytest.mark.parametrize(
    "turn",
    [
        chat("shell_exec", tool_choice="required"),
        chat("a", "b", tool_choice={"type": "allowed_tools", "allowed_tools": allowed("required", "shell_exec")}),
        chat(functions=[{"name": "shell_exec"}], tool_choice="required"),
        chat("shell_exec", functions=[{"name": "shell_exec"}], tool_choice="required"),
        items("shell_exec", choice="required"),
        items("a", "b", choice={"type": "allowed_tools", **allowed("required", "shell_exec")}),
        messages("shell_exec", choice={"type": "any"}),
    ],
)
def test_some_tool_of_one_is_that_tool(turn: Turn) -> None:
    """Where a tool is required and only one can be meant, that one is forced."""
    assert turn.tool_choice == FORCED


@pytest.mark.parametrize(
    "turn",
    [
        chat("shell_exec", "b", tool_choice="required"),
        chat("a", tool_choice={"type": "allowed_tools", "allowed_tools": allowed("required", "a", "b")}),
        items("shell_exec", "b", choice="required"),
        messages("shell_exec", "b", choice={"type": "any"}),
    ],
)
def test_some_tool_of_several_forces_none(turn: Turn) -> None:
    """Where several tools can be meant, none of them is forced."""
    assert turn.tool_choice is not None
    assert turn.tool_choice.mode == "required"


def test_a_permitted_subset_of_one_is_not_forced() -> None:
    """What may be called need not be called."""
    turn = chat("a", tool_choice={"type": "allowed_tools", "allowed_tools": allowed("auto", "a")})
    assert turn.tool_choice == ToolChoice("auto", ("a",))


def test_the_only_server_of_the_provider_is_forced_by_its_label() -> None:
    """A provider-side server as the only tool is named as a choice of it would name it."""
    tools = [{"type": "mcp", "server_label": "s", "server_url": "https://example.test"}]
    turn = responses.parse_request({"model": "m", "input": "", "tools": tools, "tool_choice": "required"})
    assert turn.tool_choice == ToolChoice("tool", ("mcp:s",))


@pytest.mark.parametrize(
    "choice", ["auto", "none", {"type": "function", "function": {"name": "a"}}, {"name": "shell_exec"}]
)
def test_two_words_on_the_choice_are_refused(choice: Any) -> None:
    """The older field may not force a tool behind the back of the newer one."""
    with pytest.raises(WireError) as caught:
        chat("a", functions=[{"name": "shell_exec"}], function_call={"name": "shell_exec"}, tool_choice=choice)
    assert str(caught.value) == "'tool_choice' and 'function_call' both choose; send one of them"


def test_the_same_word_twice_is_one_choice() -> None:
    """Clients that fill in both fields alike say nothing else with the second."""
    assert chat("a", "b", function_call="auto", tool_choice="auto").tool_choice == ToolChoice("auto")


def test_a_forced_tool_of_a_namespace_has_its_whole_name() -> None:
    """A choice names a tool as its declaration and its calls do."""
    tools = [{"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "t"}]}]
    one = {"type": "function", "name": "t", "namespace": "ns"}
    for choice in (one, {"type": "allowed_tools", "mode": "required", "tools": [one]}):
        turn = responses.parse_request({"model": "m", "input": "", "tools": tools, "tool_choice": choice})
        assert turn.tool_choice == ToolChoice("tool", ("ns.t",))


def test_a_forced_member_of_a_toolset_has_its_whole_name() -> None:
    """A choice names a member of a set as its declaration and its calls do."""
    turn = messages("a", choice={"type": "tool", "name": "find", "toolset_name": "browser"})
    assert turn.tool_choice == ToolChoice("tool", ("browser.find",))


@pytest.mark.parametrize(
    ("parse", "choice", "path"),
    [
        (messages, {"type": "auto", "also": "x"}, "tool_choice"),
        (items, {"type": "function", "name": "a", "also": "x"}, "tool_choice"),
        (lambda *names, choice: chat(*names, tool_choice=choice), {"type": "function", "also": "x"}, "tool_choice"),
        (lambda *names, choice: chat(*names, function_call=choice), {"name": "a", "also": "x"}, "function_call"),
    ],
)
def test_an_unknown_word_in_a_choice_is_refused(parse: Any, choice: dict[str, Any], path: str) -> None:
    """A choice may hold no field that nobody here knows: it could name another tool."""
    with pytest.raises(WireError) as caught:
        parse("a", choice=choice)
    assert str(caught.value) == f"field 'also' is not known here, so it may not pass - at `$.{path}`"


def test_a_choice_that_names_two_things_is_refused() -> None:
    """A custom tool beside a function would be forced unseen by whoever reads it first; an empty field names nothing."""
    choice = {"type": "function", "function": {"name": "a"}, "custom": {"name": "shell_exec"}}
    with pytest.raises(WireError) as caught:
        chat("a", tool_choice=choice)
    assert str(caught.value) == "a tool choice names one thing - at `$.tool_choice`"
    assert chat("a", "b", tool_choice={**choice, "custom": None}).tool_choice == ToolChoice("tool", ("a",))
