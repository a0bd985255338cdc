"""Claims about Responses: what items, tools and events lower to, and what is refused (G3, G4)."""

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
    responses,
)
from wardwright.wire.responses import StreamAssembler, parse_reply, parse_request


def items(*given: dict[str, Any]) -> list[Item]:
    return list(parse_request({"model": "m", "input": list(given)}).items)


def tools(*given: dict[str, Any]) -> list[DeclaredTool]:
    return list(parse_request({"model": "m", "input": "", "tools": list(given)}).tools)


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


def completed(*output: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"model": "m", "status": "completed", "output": list(output)}}


CALL = {"type": "function_call", "id": "fc", "call_id": "a", "name": "f", "arguments": "{}"}


def test_a_string_is_the_users_text() -> None:
    """Instructions come first as system text; a string input is the user's."""
    turn = parse_request({"model": "m", "instructions": "i", "input": "u"})
    assert list(turn.items) == [TextItem("system", "i"), TextItem("user", "u")]


def test_messages_may_leave_their_type_out() -> None:
    """An item with a role is a message; parts are joined, pictures and files left out."""
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "https://example.test", "detail": "auto"},
        {"type": "input_file", "file_id": "f"},
        {"type": "input_text", "text": "b"},
    ]
    answer = {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "refusal", "refusal": "no"}]}
    assert items({"role": "user", "content": parts}, answer) == [TextItem("user", "a\nb"), TextItem("assistant", "no")]


def test_calls_and_results() -> None:
    """Function and custom calls, with their results, become client calls."""
    assert items(
        CALL,
        {"type": "custom_tool_call", "call_id": "b", "name": "c", "input": "ls"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "r"}]},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "s"},
    ) == [CallItem("a", "f", "{}"), CallItem("b", "c", "ls"), ResultItem("a", "r"), ResultItem("b", "s")]


def test_a_namespace_is_part_of_the_name() -> None:
    """A tool in a namespace is declared, called and answered under one qualified name."""
    declared = tools(
        {"type": "namespace", "name": "crm", "description": "d", "tools": [{"type": "function", "name": "find"}]}
    )
    assert declared == [DeclaredTool("crm.find", further={"namespace": {"description": "d"}})]
    assert items(
        {**CALL, "namespace": "crm", "name": "find"},
        {"type": "function_call_output", "call_id": "a", "namespace": "crm", "name": "find", "output": "r"},
    ) == [CallItem("a", "crm.find", "{}"), ResultItem("a", "r", None, "crm.find")]


def test_tools_the_client_runs_are_its_calls() -> None:
    """Computer, shells and patches are only described by the provider: the client runs them."""
    assert items(
        {"type": "computer_call", "id": "x", "call_id": "a", "action": {"type": "wait"}, "pending_safety_checks": []},
        {"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot", "image_url": "u"}},
        {"type": "local_shell_call", "id": "x", "call_id": "b", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "b", "output": "o"},
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}, "environment": {"type": "local"}},
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "o", "stderr": "e", "outcome": {"type": "exit", "exit_code": 1}}],
        },
        {"type": "apply_patch_call", "call_id": "d", "operation": {"type": "delete_file", "path": "p"}},
        {"type": "apply_patch_call_output", "call_id": "d", "status": "completed", "output": "ok"},
    ) == [
        CallItem("a", "computer", '{"type":"wait"}'),
        ResultItem("a", ""),
        CallItem("b", "local_shell", '{"type":"exec","command":["ls"]}'),
        ResultItem("b", "o"),
        CallItem("c", "shell", '{"commands":["ls"]}'),
        ResultItem("c", "o\ne", True),
        CallItem("d", "apply_patch", '{"type":"delete_file","path":"p"}'),
        ResultItem("d", "ok", False),
    ]


def test_a_shell_in_a_container_is_hosted() -> None:
    """Where the provider's container runs the shell, call and output are the provider's events."""
    assert items(
        {
            "type": "shell_call",
            "call_id": "c",
            "action": {"commands": ["ls"]},
            "environment": {"type": "container_reference", "container_id": "k"},
        },
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "o", "outcome": {"type": "timeout"}}]},
    ) == [HostedCallItem("c", "shell", '{"commands":["ls"]}'), HostedResultItem("c", "shell", "o", True)]


@pytest.mark.parametrize(
    ("item", "call", "result"),
    [
        (
            {"type": "web_search_call", "action": {"type": "search", "query": "q", "sources": [{"url": "u"}]}},
            HostedCallItem("h", "web_search", '{"query":"q"}'),
            HostedResultItem("h", "web_search", "u", False),
        ),
        (
            {"type": "web_search_call", "action": {"type": "open_page", "url": "u"}},
            HostedCallItem("h", "web_search", '{"type":"open_page","url":"u"}'),
            HostedResultItem("h", "web_search", "", False),
        ),
        (
            {"type": "file_search_call", "queries": ["q"], "results": [{"text": "t", "file_id": "f"}]},
            HostedCallItem("h", "file_search", '{"queries":["q"]}'),
            HostedResultItem("h", "file_search", "t", False),
        ),
        (
            {
                "type": "code_interpreter_call",
                "code": "1",
                "container_id": "k",
                "outputs": [{"type": "logs", "logs": "l"}],
            },
            HostedCallItem("h", "code_interpreter", '{"code":"1"}'),
            HostedResultItem("h", "code_interpreter", "l", False),
        ),
        (
            {"type": "image_generation_call", "revised_prompt": "p", "result": "base64"},
            HostedCallItem("h", "image_generation", '{"prompt":"p"}'),
            HostedResultItem("h", "image_generation", "", False),
        ),
        (
            {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "output": "o"},
            HostedCallItem("h", "mcp", "{}", "s", "n"),
            HostedResultItem("h", "mcp", "o", False, "s", "n"),
        ),
        (
            {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "error": "broken"},
            HostedCallItem("h", "mcp", "{}", "s", "n"),
            HostedResultItem("h", "mcp", "broken", True, "s", "n"),
        ),
    ],
)
def test_a_hosted_item_is_a_call_and_a_result(item: dict[str, Any], call: Item, result: Item) -> None:
    """What the provider ran by itself gives one call and one result, attested by the provider."""
    assert items({"id": "h", "status": "completed", **item}) == [call, result]


def test_a_hosted_item_that_still_runs_has_no_result() -> None:
    """Without an end there is only the call; a failed end is an error."""
    item = {"type": "web_search_call", "id": "h", "action": {"type": "search", "query": "q"}}
    assert len(items({**item, "status": "searching"})) == 1
    assert items({**item, "status": "failed"})[1] == HostedResultItem("h", "web_search", "", True)


def test_an_approval_request_is_the_call_before_it_runs() -> None:
    """The question, and the call that follows it, are one call with one id; a refusal is its failed result."""
    question = {"type": "mcp_approval_request", "id": "q", "server_label": "s", "name": "n", "arguments": "{}"}
    assert list(parse_reply({"output": [question]}).items) == [HostedCallItem("q", "mcp", "{}", "s", "n")]
    refused = {"type": "mcp_approval_response", "approval_request_id": "q", "approve": False, "reason": "no"}
    assert items(question, refused)[1] == HostedResultItem("q", "mcp", "no", True, "s", "n")
    allowed = {**refused, "approve": True}
    ran = {
        "type": "mcp_call",
        "id": "c",
        "approval_request_id": "q",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
    }
    assert items(question, allowed, ran)[1] == HostedCallItem("q", "mcp", "{}", "s", "n")


def test_programs_and_tool_searches_are_hosted() -> None:
    """Code that calls tools, and a search for tools, run at the provider; found tools are declared."""
    found = {"type": "function", "name": "late", "parameters": {"type": "object"}}
    turn = parse_request(
        {
            "model": "m",
            "input": [
                {"type": "program", "id": "p", "call_id": "p", "code": "go()", "fingerprint": "x"},
                {"type": "program_output", "id": "o", "call_id": "p", "result": "r", "status": "completed"},
                {"type": "tool_search_call", "id": "t", "call_id": "t", "execution": "server", "arguments": {"q": 1}},
                {
                    "type": "tool_search_output",
                    "call_id": "t",
                    "execution": "server",
                    "status": "completed",
                    "tools": [found],
                },
            ],
        }
    )
    assert list(turn.items) == [
        HostedCallItem("p", "programmatic_tool_calling", '{"code":"go()"}'),
        HostedResultItem("p", "programmatic_tool_calling", "r", False),
        HostedCallItem("t", "tool_search", '{"q":1}'),
        HostedResultItem("t", "tool_search", "late", False),
    ]
    assert list(turn.tools) == [DeclaredTool("late", "", {"type": "object"})]


def test_a_tool_found_again_is_declared_once() -> None:
    """A search that finds a tool word for word as it was declared adds nothing."""
    tool = {"type": "function", "name": "f"}
    turn = parse_request(
        {"model": "m", "tools": [tool], "input": [{"type": "additional_tools", "role": "developer", "tools": [tool]}]}
    )
    assert list(turn.tools) == [DeclaredTool("f")]


def test_a_servers_list_declares_its_tools() -> None:
    """mcp_list_tools shows what a provider-side server offers, in a request and in a reply."""
    listing = {
        "type": "mcp_list_tools",
        "id": "l",
        "server_label": "s",
        "tools": [{"name": "n", "description": "d", "input_schema": {"type": "object"}}],
    }
    tool = DeclaredTool("n", "d", {"type": "object"}, "mcp", None, "s")
    assert list(parse_request({"model": "m", "input": [listing]}).tools) == [tool]
    assert list(parse_reply({"output": [listing]}).tools) == [tool]
    assert list(parse_request({"model": "m", "input": [listing, listing]}).tools) == [tool]
    choice = {"type": "mcp", "server_label": "s", "name": "n"}
    chosen = parse_request({"model": "m", "input": [listing], "tool_choice": choice}).tool_choice
    assert chosen == ToolChoice("tool", ("n:s",))


def test_many_tools_that_appear_later_cost_no_more_each() -> None:
    """Twenty thousand found tools are read in one go, and a changed definition is kept beside the first."""
    found = [{"type": "function", "name": f"f{number}"} for number in range(20_000)]
    items = [{"type": "additional_tools", "tools": [tool]} for tool in found]
    changed = {"type": "additional_tools", "tools": [{"type": "function", "name": "f0", "description": "other"}]}
    assert len(parse_request({"model": "m", "input": [*items, *items, changed]}).tools) == 20_001


def test_reasoning_is_read_in_a_request_and_no_answer_in_a_reply() -> None:
    """Readable reasoning that a caller sends is text; in a reply it is not the answer; sealed reasoning is nothing."""
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "why"}]}
    assert items(thought) == [TextItem("assistant", "why")]
    assert items({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}) == []
    assert list(parse_reply({"output": [thought]}).items) == []


def test_a_compaction_is_an_event_that_rules_can_match() -> None:
    """Sealed history cannot be read, so it is at least seen."""
    assert items({"type": "compaction", "id": "c", "encrypted_content": "x"}) == [HostedCallItem("c", "compaction")]


@pytest.mark.parametrize(
    ("tool", "declared"),
    [
        (
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            DeclaredTool("f", "d", {"type": "object"}),
        ),
        (
            {"type": "custom", "name": "c", "format": {"type": "text"}},
            DeclaredTool("c", further={"format": {"type": "text"}}),
        ),
        (
            {"type": "web_search_preview_2025_03_11", "search_context_size": "low"},
            DeclaredTool("web_search", hosted="web_search", controls={"search_context_size": "low"}),
        ),
        ({"type": "web_search_2025_08_26"}, DeclaredTool("web_search", hosted="web_search", controls={})),
        (
            {"type": "file_search", "vector_store_ids": ["v"]},
            DeclaredTool("file_search", hosted="file_search", controls={"vector_store_ids": ["v"]}),
        ),
        (
            {"type": "code_interpreter", "container": {"type": "auto"}},
            DeclaredTool("code_interpreter", hosted="code_interpreter", controls={"container": {"type": "auto"}}),
        ),
        ({"type": "image_generation"}, DeclaredTool("image_generation", hosted="image_generation", controls={})),
        ({"type": "computer_use_preview", "display_width": 1}, DeclaredTool("computer", further={"display_width": 1})),
        ({"type": "local_shell"}, DeclaredTool("local_shell")),
        ({"type": "apply_patch"}, DeclaredTool("apply_patch")),
        ({"type": "shell"}, DeclaredTool("shell")),
        (
            {"type": "shell", "environment": {"type": "container_auto"}},
            DeclaredTool("shell", hosted="shell", controls={"environment": {"type": "container_auto"}}),
        ),
        ({"type": "tool_search"}, DeclaredTool("tool_search", hosted="tool_search", controls={})),
    ],
)
def test_declared_tools(tool: dict[str, Any], declared: DeclaredTool) -> None:
    """A tool is the caller's, or hosted under its kind without version, with its controls."""
    assert tools(tool) == [declared]


def test_a_provider_side_server_is_declared_without_its_secrets() -> None:
    """Address and permissions of an MCP server are controls; tokens and headers are not kept."""
    tool = {
        "type": "mcp",
        "server_label": "s",
        "server_url": "https://example.test",
        "authorization": "token",
        "headers": {"x": "token"},
        "require_approval": "never",
    }
    controls = {"server_url": "https://example.test", "require_approval": "never"}
    assert tools(tool) == [DeclaredTool("mcp", "", None, "mcp", controls, "s")]


@pytest.mark.parametrize(
    ("choice", "lowered"),
    [
        ("auto", ToolChoice("auto")),
        ({"type": "function", "name": "f"}, ToolChoice("tool", ("f",))),
        ({"type": "custom", "name": "f"}, ToolChoice("tool", ("f",))),
        ({"type": "web_search_preview"}, ToolChoice("tool", ("web_search",))),
        ({"type": "mcp", "server_label": "s", "name": "n"}, ToolChoice("tool", ("mcp:s",))),
        ({"type": "shell"}, ToolChoice("tool", ("shell",))),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [
                    {"type": "function", "name": "f"},
                    {"type": "mcp", "server_label": "s"},
                    {"type": "web_search"},
                ],
            },
            ToolChoice("auto", ("f", "mcp:s", "web_search")),
        ),
    ],
)
def test_tool_choice_has_one_form(choice: Any, lowered: ToolChoice) -> None:
    """Every way to choose a tool becomes a mode and names."""
    assert parse_request({"model": "m", "input": "", "tool_choice": choice}).tool_choice == lowered


def test_structured_output_is_its_schema() -> None:
    """text.format gives the schema; a configuration_update in the input overrides it."""
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "array"}}}
    body: dict[str, Any] = {"model": "m", "input": [], "text": form}
    assert parse_request(body).response_format == {"type": "array"}
    later = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "string"}}}
    body["input"] = [{"type": "configuration_update", "text": later}]
    assert parse_request(body).response_format == {"type": "string"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"previous_response_id": "resp_1"},
            "'previous_response_id' is refused: the transcript would stay with the provider, unseen; "
            "send the items themselves",
        ),
        (
            {"conversation": "c"},
            "'conversation' is refused: the transcript would stay with the provider, unseen; send the items themselves",
        ),
        (
            {"prompt": {"id": "p"}},
            "'prompt' is refused: a stored prompt stays with the provider, unseen; "
            "send its text as instructions and input",
        ),
        (
            {"background": True},
            "'background' is refused: the answer would be fetched past this gate; ask without it, or stream",
        ),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "'item_reference' is refused: the item stays with the provider, unseen; send the item itself - at `$.input[0]`",
        ),
        (
            {"input": [{"id": "x"}]},
            "'an item without type or role' is refused: the item stays with the provider, unseen; "
            "send the item itself - at `$.input[0]`",
        ),
        ({"verbose": 1}, "field 'verbose' is not known here, so it may not pass"),
        (
            {"input": [{"type": "robot_call", "id": "x"}]},
            "item 'robot_call' is not known here, so it may not pass - at `$.input[0].type`",
        ),
        (
            {"input": [{"role": "user", "content": "u", "extra": 1}]},
            "field 'extra' is not known here, so it may not pass - at `$.input[0]`",
        ),
        (
            {"tools": [{"type": "robot"}]},
            "kind of tool 'robot' is not known here, so it may not pass - at `$.tools[0].type`",
        ),
        (
            {"input": [{"role": "critic", "content": "u"}]},
            "role 'critic' is not known here, so it may not pass - at `$.input[0].role`",
        ),
    ],
)
def test_what_stays_unseen_is_refused(body: dict[str, Any], message: str) -> None:
    """Stored transcripts, stored prompts, background answers and unknown things are a 400 that says what to do."""
    assert refusal({"model": "m", **body}) == message


def test_background_false_is_no_background() -> None:
    """A refused field that is switched off is harmless."""
    assert list(parse_request({"model": "m", "input": "u", "background": False}).items) == [TextItem("user", "u")]


def test_a_gateway_that_knows_the_transcript_can_let_it_pass() -> None:
    """previous_response_id passes where the operator says so."""
    body = {"model": "m", "input": "u", "previous_response_id": "resp_1"}
    assert list(parse_request(body, passing={"previous_response_id"}).items) == [TextItem("user", "u")]


def test_every_item_has_a_lowering() -> None:
    """What the published list calls an item is accepted as one, and nothing else is."""
    for kind, fate in responses.ITEMS.items():
        item: dict[str, Any] = {"type": kind, "role": "user", "name": "n"}
        if kind == "computer_call_output":
            item["output"] = {"type": "computer_screenshot"}
        body = {"model": "m", "input": [item]}
        if fate.startswith("refused"):
            assert fate.removeprefix("refused: ") in refusal(body)
        else:
            assert parse_request(body).gate == "request"


def test_no_field_is_on_two_lists() -> None:
    """A field is read, passed or refused."""
    lists = (responses.READ, responses.PASSED, frozenset(responses.REFUSED))
    assert len(frozenset.union(*lists)) == sum(map(len, lists))


# Replies and streams


def test_a_reply_has_usage_and_items() -> None:
    """A reply is what the model answered, with the tokens it took."""
    turn = parse_reply({"model": "m", "output": [CALL], "usage": {"input_tokens": 3, "output_tokens": 4}})
    assert (list(turn.items), turn.usage) == ([CallItem("a", "f", "{}")], Usage(3, 4))


def test_unknown_output_is_refused() -> None:
    """An output item nobody knows could be a call nobody sees."""
    with pytest.raises(WireError):
        parse_reply({"output": [{"type": "robot_call"}]})


def test_a_cut_stream_keeps_what_came() -> None:
    """Without the final response the items are those that were streamed, and the reply is incomplete."""
    assembler = stream(
        {"type": "response.created", "response": {"model": "m", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**CALL, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"x'},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "hal"},
    )
    assert not assembler.complete
    assert list(assembler.turn().items) == [CallItem("a", "f", '{"x'), TextItem("assistant", "hal")]


def test_pieces_that_disagree_with_the_whole_are_refused() -> None:
    """A client may act on the pieces or on the whole, so they must say the same."""
    with pytest.raises(WireError) as caught:
        stream(
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{}"},
            {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"x":1}'},
        )
    assert str(caught.value) == "the pieces of 'arguments' and the whole of it disagree"


def test_items_that_disagree_with_the_final_response_are_refused() -> None:
    """A final response with other calls than were streamed is refused."""
    assembler = stream(
        {"type": "response.output_item.done", "output_index": 0, "item": CALL}, completed({**CALL, "name": "g"})
    )
    with pytest.raises(WireError) as caught:
        assembler.turn()
    assert str(caught.value) == "the streamed items and the final response disagree"


def test_a_failed_response_is_an_error() -> None:
    """response.failed and error events are recorded."""
    failed = {"type": "response.failed", "response": {"output": [], "error": {"code": "server_error"}}}
    assert stream(failed).errors == [{"code": "server_error"}]
    error = {"type": "error", "code": "x", "message": "m"}
    assert stream(error).errors == [error]
    assert not stream(failed).complete


def test_an_incomplete_response_is_a_whole_one() -> None:
    """A reply that stopped at a token limit came whole."""
    assert stream({"type": "response.incomplete", "response": {"model": "m", "output": [CALL]}}).complete


def test_an_unknown_event_is_refused() -> None:
    """An event on no list could release what nobody has judged."""
    with pytest.raises(WireError) as caught:
        stream({"type": "response.robot.started"})
    assert str(caught.value) == "event 'response.robot.started' is not known here, so it may not pass - at `$.type`"


def test_nothing_may_follow_the_end() -> None:
    """Events after the final response would pass unseen."""
    with pytest.raises(WireError):
        stream(completed(), {"type": "response.output_text.delta", "delta": "x"})


def test_a_final_response_that_cuts_the_text_otherwise_is_refused() -> None:
    """Two parts that clients read on end are not one part with a line break, though the joined text is the same."""
    two = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": t} for t in ("a", "b")]}
    one = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a\nb"}]}
    assembler = stream({"type": "response.output_item.done", "output_index": 0, "item": two}, completed(one))
    with pytest.raises(WireError) as caught:
        assembler.turn()
    assert str(caught.value) == "the streamed items and the final response disagree"


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


OTHER = {**CALL, "id": "fd", "call_id": "b", "name": "g"}
ENDED = "output item 0 went on after its end"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            [
                event("output_item.added", output_index=0, item=CALL),
                event("output_item.added", output_index=0, item=OTHER),
            ],
            "output item 0 began twice",
        ),
        (
            [
                event("output_item.done", output_index=0, item=CALL),
                event("output_item.done", output_index=0, item=OTHER),
            ],
            ENDED,
        ),
        ([event("output_item.done", item=CALL), event("output_item.done", item=OTHER)], ENDED),
        ([event("output_item.done", item=CALL), event("output_item.added", item=OTHER)], "output item 0 began twice"),
        (
            [
                event("output_item.done", output_index=0, item=CALL),
                event("output_item.added", output_index=1, item=OTHER),
                event("output_item.done", item=OTHER),
            ],
            "expected a number, got null - at `$.output_index`",
        ),
        (
            [
                event("output_item.done", output_index=0, item=CALL),
                event("function_call_arguments.delta", output_index=0, delta="x"),
            ],
            ENDED,
        ),
        (
            [
                event("output_item.done", output_index=0, item=CALL),
                event("function_call_arguments.done", output_index=0, arguments="{}"),
            ],
            ENDED,
        ),
        (
            [event("created", response={"model": "m", "output": [CALL]})],
            "'response.created' already holds output, which only items and the final response may bring",
        ),
    ],
)
def test_an_item_begins_once_and_ends_once(events: list[dict[str, Any]], message: str) -> None:
    """Clients act on finished items: none may take the place of another, and none may come outside them."""
    with pytest.raises(WireError) as caught:
        stream(*events)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "g"), ("call_id", "b"), ("namespace", "ns"), ("type", "custom_tool_call"), ("arguments", "1")],
)
def test_an_item_ends_as_it_began(key: str, value: str) -> None:
    """What an item says when it begins is what it says when it ends: clients show or run either."""
    with pytest.raises(WireError) as caught:
        stream(
            event("output_item.added", output_index=0, item={**CALL, key: value}),
            event("output_item.done", output_index=0, item=CALL),
        )
    assert str(caught.value) == f"output item 0 began with another {key!r} than it ended with"


@pytest.mark.parametrize("begun", [True, False])
def test_an_event_that_names_another_tool_is_refused(begun: bool) -> None:
    """G2: a client may act on the event that ends the arguments, so it must name the tool that the item names."""
    added = event("output_item.added", output_index=0, item={**CALL, "arguments": ""})
    with pytest.raises(WireError) as caught:
        stream(
            *([added] if begun else []),
            event("function_call_arguments.done", output_index=0, arguments="{}", name="g"),
            event("output_item.done", output_index=0, item=CALL),
        )
    assert str(caught.value) == "output item 0 has another 'name' than an event gives it"


def test_an_item_may_begin_empty() -> None:
    """Arguments come in pieces after an empty beginning, and one item needs no number."""
    assembler = stream(
        event("output_item.added", item={**CALL, "arguments": "", "status": "in_progress"}),
        event("function_call_arguments.delta", delta="{}"),
        event("function_call_arguments.done", arguments="{}"),
        event("output_item.done", item=CALL),
        completed(CALL),
    )
    assert assembler.complete
    assert list(assembler.turn().items) == [CallItem("a", "f", "{}")]


def message(*texts: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "m", "role": "assistant", "content": parts}


def part(kind: str, text: str) -> dict[str, Any]:
    said = {"type": "output_text", "text": text, "annotations": []}
    return event(f"content_part.{kind}", output_index=0, content_index=0, part=said)


@pytest.mark.parametrize(
    "told",
    [
        [part("done", "no")],
        [part("added", "n"), event("output_text.delta", output_index=0, content_index=0, delta="no")],
        [event("output_item.added", output_index=0, item=message("no"))],
    ],
)
def test_parts_agree_with_the_item(told: list[dict[str, Any]]) -> None:
    """Words that a part or an item begins with, or that a part is told with again, are the words the item ends with."""
    with pytest.raises(WireError) as caught:
        stream(*told, event("output_item.done", output_index=0, item=message("yes")))
    assert str(caught.value) == "the pieces of 'text' and the whole of it disagree"


def test_parts_that_agree_pass() -> None:
    """The usual order of events around a text is one text."""
    assembler = stream(
        event("output_item.added", output_index=0, item=message()),
        part("added", ""),
        event("output_text.delta", output_index=0, content_index=0, delta="yes"),
        event("output_text.done", output_index=0, content_index=0, text="yes"),
        part("done", "yes"),
        event("output_item.done", output_index=0, item=message("yes")),
        completed(message("yes")),
    )
    assert list(assembler.turn().items) == [TextItem("assistant", "yes")]


def test_an_unknown_part_in_a_stream_is_refused() -> None:
    """A part of a kind that nobody here reads may not pass between the others."""
    with pytest.raises(WireError) as caught:
        stream(event("content_part.added", output_index=0, content_index=0, part={"type": "output_audio"}))
    assert str(caught.value) == "content part 'output_audio' is not known here, so it may not pass - at `$.part.type`"


def test_a_spoken_stream_is_refused() -> None:
    """Words that are only spoken would be in no item, so nobody would read them."""
    with pytest.raises(WireError) as caught:
        stream(event("audio.transcript.delta", delta="secret"))
    assert (
        str(caught.value)
        == "event 'response.audio.transcript.delta' is not known here, so it may not pass - at `$.type`"
    )


def test_a_final_response_that_lists_other_tools_is_refused() -> None:
    """The tools of a server are those the stream showed, word for word."""
    shown = {"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": [{"name": "t", "description": "x"}]}
    final = {**shown, "tools": [{"name": "t", "description": "y"}]}
    assembler = stream(event("output_item.done", output_index=0, item=shown), completed(final))
    with pytest.raises(WireError) as caught:
        assembler.turn()
    assert str(caught.value) == "the streamed items and the final response disagree"


def test_text_adds_to_messages_only() -> None:
    """Clients that show every piece of text would show one that belongs to a call, which nobody would have read."""
    assembler = stream(
        event("output_item.added", output_index=0, item=CALL),
        event("output_text.delta", output_index=0, content_index=0, delta="x"),
        completed(CALL),
    )
    with pytest.raises(WireError) as caught:
        assembler.turn()
    assert str(caught.value) == "output item 0 is no message, so text may not add to it"


def test_an_event_is_what_its_name_says() -> None:
    """Clients go by the name of an event or by the type inside it, so these may not contradict each other."""
    assembler = StreamAssembler()
    with pytest.raises(WireError) as caught:
        assembler.feed(b"event: keepalive\ndata: " + orjson.dumps(completed(CALL)) + b"\n\n")
    assert str(caught.value) == "an event named 'keepalive' says that it is 'response.completed'"
