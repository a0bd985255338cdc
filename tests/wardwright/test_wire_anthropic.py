"""Claims about Anthropic Messages: what blocks, tools and events lower to, and what is refused (G3, G4)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.wire import (
    CallItem,
    DeclaredTool,
    HostedCallItem,
    HostedResultItem,
    Item,
    ResultItem,
    TextItem,
    ToolChoice,
    Usage,
    anthropic,
)
from wardwright.wire.anthropic import StreamAssembler, parse_reply, parse_request


def request(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "messages": list(messages), **fields}


def said(*blocks: dict[str, Any], role: str = "assistant") -> list[Item]:
    return list(parse_request(request({"role": role, "content": list(blocks)})).items)


def tools(*given: dict[str, Any], **fields: Any) -> list[DeclaredTool]:
    return list(parse_request(request(tools=list(given), **fields)).tools)


def refusal(body: dict[str, Any]) -> str:
    with pytest.raises(WireError) as caught:
        parse_request(body)
    return str(caught.value)


def stream(*events: dict[str, Any]) -> StreamAssembler:
    assembler = StreamAssembler()
    for event in events:
        assembler.feed(b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n")
    assembler.close()
    return assembler


START = {"type": "message_start", "message": {"model": "m", "content": [], "usage": {"input_tokens": 5}}}
STOP = {"type": "message_stop"}


def begin(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def grow(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def end(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_the_system_prompt_comes_first() -> None:
    """A system string or its blocks are one text before the transcript."""
    turn = parse_request(request({"role": "user", "content": "u"}, system="s"))
    assert list(turn.items) == [TextItem("system", "s"), TextItem("user", "u")]
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert list(parse_request(request(system=blocks)).items) == [TextItem("system", "a\nb")]


def test_calls_and_results() -> None:
    """tool_use is the client's call, its input as JSON text; tool_result carries the error flag."""
    assert said(
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": [1]}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
    ) == [TextItem("assistant", "a\nb"), CallItem("1", "f", '{"x":[1]}'), CallItem("2", "g", "{}")]
    assert said(
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}, {"type": "image"}]},
        {"type": "tool_result", "tool_use_id": "2", "content": "no", "is_error": True},
        {"type": "tool_result", "tool_use_id": "3"},
        {"type": "text", "text": "go on"},
        role="user",
    ) == [
        ResultItem("1", "r", False),
        ResultItem("2", "no", True),
        ResultItem("3", "", False),
        TextItem("user", "go on"),
    ]


def test_documents_and_search_results_are_read() -> None:
    """Text that the caller brings in documents is text; a PDF has only its title."""
    assert said(
        {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "d"}},
        {"type": "document", "title": "p", "source": {"type": "base64", "data": "JVBERi0="}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "c"}]}},
        {"type": "search_result", "title": "s", "source": "u", "content": [{"type": "text", "text": "x"}]},
        {"type": "image", "source": {}},
        role="user",
    ) == [TextItem("user", "t\nd\np\nc\ns\nx")]


def test_thinking_is_read_in_a_request_and_no_answer_in_a_reply() -> None:
    """Thinking that a caller sends is text; in a reply it is not the answer; sealed thinking is nothing."""
    thought = {"type": "thinking", "thinking": "why", "signature": "s"}
    sealed = {"type": "redacted_thinking", "data": "x"}
    text = {"type": "text", "text": "a"}
    assert said(thought, sealed, text) == [TextItem("assistant", "why"), TextItem("assistant", "a")]
    assert list(parse_reply({"content": [thought, sealed, text]}).items) == [TextItem("assistant", "a")]


@pytest.mark.parametrize(
    ("name", "kind", "block", "content", "failed"),
    [
        ("web_search", "web_search", [{"type": "web_search_result", "title": "t", "url": "u"}], "t\nu", False),
        ("web_search", "web_search", {"type": "web_search_tool_result_error", "error_code": "x"}, "x", True),
        (
            "web_fetch",
            "web_fetch",
            {
                "type": "web_fetch_result",
                "url": "u",
                "content": {"type": "document", "source": {"type": "text", "data": "d"}},
            },
            "u\nd",
            False,
        ),
        (
            "code_execution",
            "code_execution",
            {"type": "code_execution_result", "stdout": "o", "stderr": "e", "return_code": 1, "content": []},
            "o\ne",
            True,
        ),
        (
            "bash_code_execution",
            "code_execution",
            {"type": "bash_code_execution_result", "stdout": "o", "stderr": "", "return_code": 0, "content": []},
            "o",
            False,
        ),
        (
            "tool_search_tool_bm25",
            "tool_search",
            {
                "type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": "n"}],
            },
            "n",
            False,
        ),
        ("advisor", "advisor", {"type": "advisor_result", "text": "t"}, "t", False),
        ("moon_probe_20270101", "moon_probe", {"type": "moon_probe_result", "text": "t"}, "t", False),
    ],
)
def test_what_the_provider_ran_is_a_hosted_call_and_result(
    name: str, kind: str, block: Any, content: str, failed: bool
) -> None:
    """A server tool gives one call and one result under its kind, even one that is new to us."""
    result_type = {"tool_search_tool_bm25": "tool_search_tool_result"}.get(name, f"{kind_type(name)}_tool_result")
    assert said(
        {"type": "server_tool_use", "id": "h", "name": name, "input": {"q": 1}},
        {"type": result_type, "tool_use_id": "h", "content": block},
    ) == [HostedCallItem("h", kind, '{"q":1}'), HostedResultItem("h", kind, content, failed)]


def kind_type(name: str) -> str:
    return name.removesuffix("_20270101")


def test_provider_side_servers_have_names() -> None:
    """Calls on a provider-side MCP server say which server and tool; the result is found by its call."""
    assert said(
        {"type": "mcp_tool_use", "id": "h", "name": "n", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "h", "is_error": True, "content": [{"type": "text", "text": "t"}]},
    ) == [HostedCallItem("h", "mcp", "{}", "s", "n"), HostedResultItem("h", "mcp", "t", True, "s", "n")]


def test_a_compaction_is_seen_and_read() -> None:
    """A summary of history is an event and text, and the tools it declares are declared."""
    definition = {"type": "tool_definition", "definition": {"name": "f", "input_schema": {"type": "object"}}}
    block = {"type": "compaction", "content": "so far", "tool_changes": [{"type": "tool_addition", "tool": definition}]}
    turn = parse_request(request({"role": "assistant", "content": [block]}))
    assert list(turn.items) == [HostedCallItem("", "compaction"), TextItem("assistant", "so far")]
    assert list(turn.tools) == [DeclaredTool("f", "", {"type": "object"})]


def test_tools_added_in_the_middle_are_declared() -> None:
    """A system message that adds a tool declares it; one it merely names was declared before."""
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "late"}}}
    named = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}}
    turn = parse_request(request({"role": "system", "content": [added, added, named, {"type": "text", "text": "t"}]}))
    assert (list(turn.tools), list(turn.items)) == ([DeclaredTool("late")], [TextItem("system", "t")])


@pytest.mark.parametrize(
    ("tool", "declared"),
    [
        (
            {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True},
            DeclaredTool("f", "d", {"type": "object"}),
        ),
        ({"type": "custom", "name": "f", "input_schema": {}}, DeclaredTool("f", "", {})),
        (
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3, "cache_control": {}},
            DeclaredTool("web_search", hosted="web_search", controls={"max_uses": 3}),
        ),
        (
            {"type": "web_fetch_20260318", "name": "web_fetch"},
            DeclaredTool("web_fetch", hosted="web_fetch", controls={}),
        ),
        (
            {"type": "code_execution_20250825", "name": "code_execution"},
            DeclaredTool("code_execution", hosted="code_execution", controls={}),
        ),
        (
            {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
            DeclaredTool("tool_search", hosted="tool_search", controls={}),
        ),
        ({"type": "bash_20250124", "name": "bash"}, DeclaredTool("bash")),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            DeclaredTool("str_replace_based_edit_tool"),
        ),
        (
            {"type": "computer_20251124", "name": "computer", "display_width_px": 1},
            DeclaredTool("computer", further={"display_width_px": 1}),
        ),
        ({"type": "memory_20250818", "name": "memory"}, DeclaredTool("memory")),
    ],
)
def test_declared_tools(tool: dict[str, Any], declared: DeclaredTool) -> None:
    """A tool is the client's, or hosted under its kind without version, with its controls."""
    assert tools(tool) == [declared]


def test_a_toolset_declares_its_members() -> None:
    """One declaration stands for many tools; each has the qualified name that its calls get."""
    declared = tools({"type": "browser_toolset_20260801", "configs": {"javascript_exec": {"enabled": False}}})
    names = [tool.name for tool in declared]
    assert "browser.navigate" in names
    assert "browser.javascript_exec" not in names
    assert len(names) == len(anthropic.TOOLSETS["browser"]) - 1
    call = {"type": "tool_use", "id": "1", "name": "navigate", "toolset_name": "browser", "input": {}}
    assert said(call) == [CallItem("1", "browser.navigate", "{}")]


def test_provider_side_servers_are_declared_without_their_secrets() -> None:
    """A server is declared once, by its toolset if it has one; tokens are not kept; listed tools are declared."""
    servers = [
        {"type": "url", "name": "a", "url": "https://a.test", "authorization_token": "token"},
        {"type": "url", "name": "b", "url": "https://b.test"},
    ]
    toolset = {
        "type": "mcp_toolset",
        "mcp_server_name": "a",
        "default_config": {"enabled": False},
        "tools": [{"name": "n", "description": "d", "input_schema": {}}],
    }
    assert tools(toolset, mcp_servers=servers) == [
        DeclaredTool("mcp", "", None, "mcp", {"url": "https://a.test", "default_config": {"enabled": False}}, "a"),
        DeclaredTool("n", "d", {}, "mcp", None, "a"),
        DeclaredTool("mcp", "", None, "mcp", {"url": "https://b.test"}, "b"),
    ]


def test_skills_in_a_container_are_a_hosted_tool() -> None:
    """Skills run at the provider, so they are declared; a container id alone is none."""
    skills = [{"type": "custom", "skill_id": "x"}]
    assert list(parse_request(request(container={"skills": skills})).tools) == [
        DeclaredTool("skills", hosted="skills", controls={"skills": skills})
    ]
    assert list(parse_request(request(container="id")).tools) == []


@pytest.mark.parametrize(
    ("choice", "lowered"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice("auto")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "tool", "name": "f"}, ToolChoice("tool", ("f",))),
    ],
)
def test_tool_choice_has_one_form(choice: Any, lowered: ToolChoice) -> None:
    """Every way to choose a tool becomes a mode and names."""
    assert parse_request(request(tool_choice=choice)).tool_choice == lowered


def test_structured_output_is_its_schema() -> None:
    """output_config.format, and the older output_format, give the schema."""
    form = {"type": "json_schema", "schema": {"type": "array"}}
    assert parse_request(request(output_config={"format": form})).response_format == {"type": "array"}
    assert parse_request(request(output_format=form)).response_format == {"type": "array"}
    assert parse_request(request(output_config={"effort": "low"})).response_format is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            request(thread={"type": "continue", "previous_message_id": "x"}),
            "'thread' is refused: the transcript would stay with the provider, unseen; send the messages themselves",
        ),
        (
            request(fallbacks="default"),
            "'fallbacks' is refused: the provider would choose another model; routes are chosen here",
        ),
        (request(prompt="x"), "field 'prompt' is not known here, so it may not pass"),
        (
            request({"role": "user", "content": [{"type": "robot"}]}),
            "block 'robot' is not known here, so it may not pass - at `$.messages[0].content[0].type`",
        ),
        (
            request({"role": "user", "content": [{"type": "text", "text": "a", "more": 1}]}),
            "field 'more' is not known here, so it may not pass - at `$.messages[0].content[0]`",
        ),
        (
            request({"role": "tool", "content": "a"}),
            "role 'tool' is not known here, so it may not pass - at `$.messages[0].role`",
        ),
        (
            request(tools=[{"type": "robot_20250101", "name": "robot"}]),
            "kind of tool 'robot_20250101' is not known here, so it may not pass - at `$.tools[0].type`",
        ),
        (
            request(tool_choice={"type": "maybe"}),
            "tool choice 'maybe' is not known here, so it may not pass - at `$.tool_choice.type`",
        ),
    ],
)
def test_what_is_not_understood_is_refused(body: dict[str, Any], message: str) -> None:
    """A field, block, role or kind on no list, or on the refused list, is a 400 that names it."""
    assert refusal(body) == message


def test_every_block_has_a_lowering() -> None:
    """What the published list calls a block is accepted as one."""
    for kind in anthropic.BLOCKS:
        change = {"type": "tool_reference", "name": "n"}
        block = {"type": kind.replace("*", "web_search"), "name": "n", "text": "", "tool": change}
        assert parse_request(request({"role": "assistant", "content": [block]})).gate == "request"


def test_no_field_is_on_two_lists() -> None:
    """A field is read, passed or refused."""
    lists = (anthropic.READ, anthropic.PASSED, frozenset(anthropic.REFUSED))
    assert len(frozenset.union(*lists)) == sum(map(len, lists))


# Replies and streams


def test_cached_tokens_are_input_tokens() -> None:
    """Tokens read from or written to a cache count as input, as on other wires."""
    usage = {"input_tokens": 1, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 4}
    assert parse_reply({"content": [], "usage": usage}).usage == Usage(6, 4)


def test_blocks_may_grow_out_of_order() -> None:
    """Blocks are ordered by index whatever order they came in; usage of the end adds to that of the start."""
    assembler = stream(
        START,
        begin(1, type="tool_use", id="a", name="f", input={}),
        begin(0, type="text", text=""),
        grow(1, type="input_json_delta", partial_json='{"x"'),
        grow(0, type="text_delta", text="hi"),
        {"type": "ping"},
        grow(1, type="input_json_delta", partial_json=":1}"),
        end(0),
        end(1),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        STOP,
    )
    assert assembler.complete
    assert list(assembler.turn().items) == [TextItem("assistant", "hi"), CallItem("a", "f", '{"x":1}')]
    assert assembler.turn().usage == Usage(5, 7)
    assert assembler.body()["stop_reason"] == "tool_use"


def test_arguments_that_were_cut_stay_as_they_are() -> None:
    """A call whose input never became JSON is still a call, with the text that came."""
    assembler = stream(
        START,
        begin(0, type="tool_use", id="a", name="f", input={}),
        grow(0, type="input_json_delta", partial_json='{"x'),
    )
    assert not assembler.complete
    assert list(assembler.turn().items) == [CallItem("a", "f", '{"x')]


def test_the_body_of_a_stream_keeps_signatures_and_citations() -> None:
    """What was streamed can be sent on in one piece, thinking signatures and citations with it."""
    assembler = stream(
        START,
        begin(0, type="thinking", thinking="", signature=""),
        grow(0, type="thinking_delta", thinking="why"),
        grow(0, type="signature_delta", signature="sig"),
        end(0),
        begin(1, type="text", text=""),
        grow(1, type="citations_delta", citation={"type": "char_location"}),
        grow(1, type="text_delta", text="a"),
        end(1),
        STOP,
    )
    assert assembler.body()["content"] == [
        {"type": "thinking", "thinking": "why", "signature": "sig"},
        {"type": "text", "text": "a", "citations": [{"type": "char_location"}]},
    ]


def test_an_error_event_is_kept() -> None:
    """An error in the stream is recorded, and the reply is not complete."""
    assembler = stream(START, {"type": "error", "error": {"type": "overloaded_error"}}, STOP)
    assert assembler.errors == [{"type": "overloaded_error"}]
    assert not assembler.complete


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([START, grow(0, type="text_delta", text="a")], "block 0 is not open"),
        ([START, begin(0, type="text"), end(0), begin(0, type="tool_use")], "block 0 began twice"),
        ([START, begin(0, type="text"), end(0), grow(0, type="text_delta", text="a")], "block 0 is not open"),
        ([START, STOP, begin(0, type="text")], "the stream went on after its end"),
        ([{"type": "robot"}], "event 'robot' is not known here, so it may not pass - at `$.type`"),
        (
            [START, begin(0, type="text"), grow(0, type="robot_delta")],
            "delta 'robot_delta' is not known here, so it may not pass - at `$.delta.type`",
        ),
    ],
)
def test_a_stream_out_of_order_is_refused(events: list[dict[str, Any]], message: str) -> None:
    """Events that clients would read in different ways are refused."""
    with pytest.raises(WireError) as caught:
        stream(*events)
    assert str(caught.value) == message


def test_input_given_twice_must_agree() -> None:
    """A block that starts with one input and grows another is refused."""
    assembler = stream(
        START,
        begin(0, type="tool_use", id="a", name="f", input={"x": 1}),
        grow(0, type="input_json_delta", partial_json='{"x":2}'),
    )
    with pytest.raises(WireError) as caught:
        assembler.turn()
    assert str(caught.value) == "the pieces of 'input' and the whole of it disagree"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            [{"type": "message_start", "message": {"model": "m", "content": [{"type": "text", "text": "x"}]}}],
            "'message_start' already holds content, which only blocks may bring",
        ),
        (
            [START, {"type": "message_delta", "delta": {"content": [{"type": "text", "text": "x"}]}}],
            "'message_delta' already holds content, which only blocks may bring",
        ),
        ([START, START], "the message began twice"),
    ],
)
def test_content_outside_the_blocks_is_refused(events: list[dict[str, Any]], message: str) -> None:
    """Clients start from the message they are given: a call in it would be in no block, and nobody would judge it."""
    with pytest.raises(WireError) as caught:
        stream(*events)
    assert str(caught.value) == message


def form(name: str) -> dict[str, Any]:
    return {"type": "json_schema", "schema": {"title": name}}


def test_two_output_formats_are_refused() -> None:
    """Nobody could say which of two formats the answer must have; the same one twice is one."""
    fields = {"model": "m", "messages": [], "output_format": form("a")}
    assert parse_request({**fields, "output_config": {"format": form("a")}}).response_format == {"title": "a"}
    assert (
        refusal({**fields, "output_config": {"format": form("b")}})
        == "'output_format' and 'output_config' ask for different formats; send one of them"
    )


def test_a_message_may_ask_for_another_output_format() -> None:
    """The format of the last message that has one is the one the answer must have."""
    message = {"role": "user", "content": "x", "output_config": {"format": form("b")}}
    plain = {"role": "user", "content": "y", "output_config": {"effort": "low"}}
    body = {"model": "m", "messages": [message, plain], "output_config": {"format": form("a")}}
    assert parse_request(body).response_format == {"title": "b"}


@pytest.mark.parametrize(
    ("block", "delta"),
    [
        ({"type": "thinking", "thinking": ""}, {"type": "text_delta", "text": "x"}),
        ({"type": "tool_use", "id": "a", "name": "f", "input": {}}, {"type": "text_delta", "text": "x"}),
        ({"type": "text", "text": ""}, {"type": "input_json_delta", "partial_json": "{}"}),
        ({"type": "text", "text": ""}, {"type": "thinking_delta", "thinking": "x"}),
    ],
)
def test_a_piece_fits_its_block(block: dict[str, Any], delta: dict[str, Any]) -> None:
    """Clients that show every piece of text would show one that belongs to no text, which nobody would have read."""
    with pytest.raises(WireError) as caught:
        stream(
            START,
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
        )
    assert str(caught.value) == f"block 0 is {block['type']!r}, so {delta['type']!r} may not add to it"


def test_an_event_is_what_its_name_says() -> None:
    """Clients go by the name of an event or by the type inside it, so these may not contradict each other."""
    assembler = StreamAssembler()
    with pytest.raises(WireError) as caught:
        assembler.feed(b"event: ping\ndata: " + orjson.dumps(START) + b"\n\n")
    assert str(caught.value) == "an event named 'ping' says that it is 'message_start'"
