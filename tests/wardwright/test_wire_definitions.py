"""What a definition says is all of it: whatever the model reads of a tool is kept with it, on every wire (G4, G6)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from wardwright import compile_plan, govern, load_config
from wardwright.errors import WireError
from wardwright.history import Registers, apply
from wardwright.policy.compile import Plan
from wardwright.wire import Caller, DeclaredTool, Turn, anthropic, chat_completions, mcp, responses

PLAN = "governance:\n  - {id: rug, kind: tool_selector, action: block, tool: {mark: definition_changed}}\n"


def listing(tool: dict[str, Any]) -> Turn:
    message = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [tool]}}
    turn = mcp.parse_messages(message, {1: mcp.Asked("tools/list")})[0].turn
    assert turn is not None
    return turn


def chat(tool: dict[str, Any]) -> Turn:
    return chat_completions.parse_request({"model": "m", "messages": [], "tools": [tool]})


def items(tool: dict[str, Any]) -> Turn:
    return responses.parse_request({"model": "m", "input": "", "tools": [tool]})


def messages(tool: dict[str, Any], **fields: Any) -> Turn:
    return anthropic.parse_request({"model": "m", "messages": [], "tools": [tool], **fields})


def found(tool: dict[str, Any]) -> Turn:
    given = [{"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": [tool]}]
    return responses.parse_request({"model": "m", "input": given})


def shown(tool: dict[str, Any]) -> Turn:
    block = {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": [tool]}
    return anthropic.parse_request({"model": "m", "messages": [{"role": "user", "content": [block]}]})


FUNCTION = {"type": "function", "name": "t", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "ns", "tools": [FUNCTION]}
TOOL = {"name": "t", "input_schema": {"type": "object"}}
MCP = {"name": "t", "inputSchema": {"type": "object"}}

CHANGES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "anthropic input_examples": (messages, TOOL, {"input_examples": [{"x": "and then send mail"}]}),
    "anthropic allowed_callers": (messages, TOOL, {"allowed_callers": ["code_execution_20250825"]}),
    "anthropic client tool": (messages, {"type": "bash_20250124", "name": "bash"}, {"description": "more"}),
    "anthropic toolset": (messages, {"type": "browser_toolset_20260101"}, {"configs": {"find": {"note": "x"}}}),
    "anthropic listed": (shown, TOOL, {"annotations": {"title": "x"}}),
    "chat format": (chat, {"type": "custom", "custom": {"name": "t"}}, {"custom": {"name": "t", "format": {"x": 1}}}),
    "responses format": (items, {"type": "custom", "name": "t"}, {"format": {"type": "grammar", "definition": "x"}}),
    "responses output_schema": (items, FUNCTION, {"output_schema": {"description": "x"}}),
    "responses namespace": (items, NAMESPACE, {"description": "x"}),
    "responses local shell": (items, {"type": "shell"}, {"environment": {"type": "local", "skills": [{"name": "x"}]}}),
    "responses tool_search": (items, {"type": "tool_search"}, {"anything": "x"}),
    "responses listed": (found, TOOL, {"annotations": {"title": "x"}}),
    "mcp title": (listing, MCP, {"title": "x"}),
    "mcp annotations": (listing, MCP, {"annotations": {"readOnlyHint": True}}),
    "mcp outputSchema": (listing, MCP, {"outputSchema": {"description": "x"}}),
    "mcp unknown": (listing, MCP, {"anything": "x"}),
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(load_config(PLAN))


def second(plan: Plan, one: Turn, two: Turn) -> str:
    """The decision on `two` after `one`, in one session."""
    registers = Registers(key=b"k")
    decision = ""
    for turn in (one, two):
        turn.model, turn.caller = "m", Caller(session_id="s")
        ruling, delta = govern(plan, registers, turn, 1_000_000)
        registers, decision = apply(registers, delta), ruling.decision
    return decision


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_anything_the_model_reads_is_a_changed_definition(plan: Plan, name: str) -> None:
    """Examples, grammars, titles and descriptions of namespaces are part of the definition: a change of them is a change."""
    parse, tool, change = CHANGES[name]
    assert second(plan, parse(tool), parse(deepcopy(tool))) == "allow"
    assert second(plan, parse(tool), parse({**tool, **change})) == "block"


@pytest.mark.parametrize(
    ("parse", "tool", "change"),
    [
        (messages, TOOL, {"cache_control": {"type": "ephemeral"}}),
        (messages, TOOL, {"defer_loading": True}),
        (items, FUNCTION, {"strict": False}),
        (items, FUNCTION, {"output_schema": None}),
    ],
)
def test_what_the_model_does_not_read_is_no_change(plan: Plan, parse: Any, tool: dict[str, Any], change: Any) -> None:
    """Marks for caches, loading and decoding move between requests of honest clients, and an empty field says nothing."""
    assert second(plan, parse(tool), parse({**tool, **change})) == "allow"


def test_the_same_tool_is_the_same_definition_on_every_wire() -> None:
    """A name, a description and a schema leave nothing further, however the wire writes them."""
    schema = {"type": "object"}
    turns = [
        chat({"type": "function", "function": {"name": "t", "description": "d", "parameters": schema}}),
        items({"type": "function", "name": "t", "description": "d", "parameters": schema, "strict": True}),
        messages({"name": "t", "description": "d", "input_schema": schema}),
        listing({"name": "t", "description": "d", "inputSchema": schema}),
    ]
    assert [list(turn.tools) for turn in turns] == [[DeclaredTool("t", "d", schema)]] * 4


def test_two_servers_of_one_name_are_refused() -> None:
    """Nobody could tell which of two provider-side MCP servers a rule judged."""
    servers = [{"type": "url", "name": "a", "url": f"https://{host}.test"} for host in ("evil", "good")]
    with pytest.raises(WireError) as caught:
        anthropic.parse_request({"model": "m", "messages": [], "mcp_servers": servers})
    assert str(caught.value) == "two MCP servers have the name 'a' - at `$.mcp_servers[1]`"


@pytest.mark.parametrize(
    ("parse", "tool"),
    [
        (chat, {"type": "function", "function": {"name": "t", "description": "d", "parameters": {"type": "object"}}}),
        (items, FUNCTION),
        (messages, TOOL),
    ],
)
def test_the_same_list_of_tools_is_read_once(parse: Any, tool: dict[str, Any]) -> None:
    """An agent sends its tools with every request: equal lists give the very same tools, on every wire."""
    assert parse(deepcopy(tool)).tools is parse(deepcopy(tool)).tools


def test_tools_of_a_server_are_read_with_the_server() -> None:
    """A set of tools says nothing without its server, so two servers behind one list are not mixed up."""
    tool = {"type": "mcp_toolset", "mcp_server_name": "a"}
    urls = ["https://one.test", "https://two.test"]
    turns = [messages(tool, mcp_servers=[{"type": "url", "name": "a", "url": url}]) for url in urls]
    assert [turn.tools[0].controls for turn in turns] == [{"url": url} for url in urls]


def test_tools_that_an_item_brings_follow_the_declared_ones() -> None:
    """A tool that is declared already, word for word, is no second declaration; another one is."""
    given = [{"type": "additional_tools", "tools": [FUNCTION, {**FUNCTION, "name": "u"}]}]
    turn = responses.parse_request({"model": "m", "input": given, "tools": [FUNCTION]})
    assert [tool.name for tool in turn.tools] == ["t", "u"]
    assert [tool.name for tool in items(FUNCTION).tools] == ["t"]


def test_a_body_that_is_changed_later_changes_nothing_known() -> None:
    """The tools of one request are known by what was said, so a body that is patched on its way out teaches nothing wrong."""
    tool = {"type": "function", "name": "patched", "parameters": {"type": "object"}}
    said = deepcopy(tool)
    items(tool)
    tool["parameters"]["type"] = "string"  # pyright: ignore[reportIndexIssue]
    assert items(said).tools[0].schema == {"type": "object"}


NESTED = '{"type": "function", "function": {"name": …, "parameters": {…}}}'
NAMED = '{"name": …, "input_schema": {…}}'
FLAT = '{"type": "function", "name": …, "parameters": {…}}'
MAY_NOT = "is not known here, so it may not pass"
OF_WIRE: dict[str, dict[str, Any]] = {
    "chat_completions": {"type": "function", "function": {"name": "f", "parameters": {}}},
    "anthropic": {"name": "f", "input_schema": {}},
    "responses": {"type": "function", "name": "f", "parameters": {}},
}


@pytest.mark.parametrize(
    ("wire", "of", "message"),
    [
        ("chat_completions", "responses", f"field 'name' {MAY_NOT}; a tool is {NESTED} here - at `$.tools[0]`"),
        ("chat_completions", "anthropic", f"field 'name' {MAY_NOT}; a tool is {NESTED} here - at `$.tools[0]`"),
        (
            "anthropic",
            "chat_completions",
            f"kind of tool 'function' {MAY_NOT}; a tool is {NAMED} here - at `$.tools[0].type`",
        ),
        (
            "anthropic",
            "responses",
            f"kind of tool 'function' {MAY_NOT}; a tool is {NAMED} here - at `$.tools[0].type`",
        ),
        ("responses", "chat_completions", f"field 'function' {MAY_NOT}; a tool is {FLAT} here - at `$.tools[0]`"),
        ("responses", "anthropic", f"a tool is {FLAT} here; this one has no type - at `$.tools[0]`"),
    ],
)
def test_a_tool_in_the_shape_of_another_wire_is_told_its_own(wire: str, of: str, message: str) -> None:
    """The commonest slip of somebody who changes clients: the error shows what is written here."""
    asked: dict[str, dict[str, Any]] = {
        "chat_completions": {"messages": []},
        "anthropic": {"messages": [], "max_tokens": 1},
        "responses": {"input": "u"},
    }
    parse = {"chat_completions": chat_completions, "anthropic": anthropic, "responses": responses}[wire].parse_request

    with pytest.raises(WireError) as caught:
        parse({"model": "m", **asked[wire], "tools": [OF_WIRE[of]]})

    assert str(caught.value) == message
