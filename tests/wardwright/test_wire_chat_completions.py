"""Claims about Chat Completions: what a body or a stream lowers to, and what is refused (G3, G4)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.wire import CallItem, DeclaredTool, ResultItem, TextItem, ToolChoice, Usage, chat_completions
from wardwright.wire.chat_completions import StreamAssembler, parse_reply, parse_request


def request(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


def refusal(body: dict[str, Any], **options: Any) -> str:
    with pytest.raises(WireError) as caught:
        parse_request(body, **options)
    return str(caught.value)


def reply(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **fields}


def stream(*chunks: dict[str, Any], done: bool = True) -> StreamAssembler:
    assembler = StreamAssembler()
    for chunk in chunks:
        assembler.feed(b"data: " + orjson.dumps(chunk) + b"\n\n")
    if done:
        assembler.feed(b"data: [DONE]\n\n")
    assembler.close()
    return assembler


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def test_a_transcript_keeps_its_order() -> None:
    """Text, calls and results become items in wire order, text before the calls of the same message."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    turn = parse_request(
        request(
            {"role": "system", "content": "s"},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "u", "name": "eve"},
            {"role": "assistant", "content": "thinking aloud", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        )
    )
    assert turn.gate == "request"
    assert list(turn.items) == [
        TextItem("system", "s"),
        TextItem("developer", "d"),
        TextItem("user", "u"),
        TextItem("assistant", "thinking aloud"),
        CallItem("a", "f", '{"x": 1}'),
        ResultItem("a", "r", None),
    ]


def test_parallel_calls_are_one_item_each() -> None:
    """Every call of a message is seen, in wire order."""
    calls = [{"id": str(n), "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(3)]
    turn = parse_request(request({"role": "assistant", "content": None, "tool_calls": calls}))
    assert [item.id for item in turn.items if isinstance(item, CallItem)] == ["0", "1", "2"]


def test_text_parts_are_joined_and_others_left_out() -> None:
    """Parts of one message are one text; pictures, sound and files hold nothing to read."""
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "https://example.test"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "text", "text": "b"},
    ]
    assert list(parse_request(request({"role": "user", "content": parts})).items) == [TextItem("user", "a\nb")]


def test_empty_text_makes_no_item() -> None:
    """A message without text and calls leaves nothing; an empty result is still a result."""
    turn = parse_request(
        request(
            {"role": "user", "content": ""}, {"role": "assistant"}, {"role": "tool", "tool_call_id": "a", "content": ""}
        )
    )
    assert list(turn.items) == [ResultItem("a", "")]


def test_legacy_functions_are_tools() -> None:
    """Functions, function_call and function messages lower like tools, without ids."""
    turn = parse_request(
        request(
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "r"},
            functions=[{"name": "f", "description": "d", "parameters": {"type": "object"}}],
            function_call={"name": "f"},
        )
    )
    assert list(turn.items) == [CallItem("", "f", "{}"), ResultItem("", "r", None, "f")]
    assert list(turn.tools) == [DeclaredTool("f", "d", {"type": "object"})]
    assert turn.tool_choice == ToolChoice("tool", ("f",))


def test_custom_tools_have_text_for_arguments() -> None:
    """A custom tool is declared without a schema; its call's input is the argument text."""
    turn = parse_request(
        request(
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "c", "input": "ls"}}],
            },
            tools=[{"type": "custom", "custom": {"name": "c", "description": "d", "format": {"type": "text"}}}],
        )
    )
    assert list(turn.items) == [CallItem("a", "c", "ls")]
    assert list(turn.tools) == [DeclaredTool("c", "d", None, further={"format": {"type": "text"}})]


def test_search_options_declare_a_hosted_tool() -> None:
    """web_search_options is the provider's web search, with its controls."""
    turn = parse_request(request(web_search_options={"search_context_size": "low"}))
    assert list(turn.tools) == [
        DeclaredTool("web_search", hosted="web_search", controls={"search_context_size": "low"})
    ]


@pytest.mark.parametrize(
    ("choice", "lowered"),
    [
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("tool", ("f",))),
        ({"type": "custom", "custom": {"name": "f"}}, ToolChoice("tool", ("f",))),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [
                        {"type": "function", "function": {"name": "f"}},
                        {"type": "custom", "custom": {"name": "g"}},
                    ],
                },
            },
            ToolChoice("required", ("f", "g")),
        ),
        (None, None),
    ],
)
def test_tool_choice_has_one_form(choice: Any, lowered: ToolChoice | None) -> None:
    """Every way to choose a tool becomes a mode and names."""
    assert parse_request(request(tool_choice=choice)).tool_choice == lowered


def test_structured_output_is_its_schema() -> None:
    """response_format gives the schema that the caller asked for."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}
    assert parse_request(request(response_format=form)).response_format == {"type": "array"}
    assert parse_request(request(response_format={"type": "json_object"})).response_format == {"type": "object"}
    assert parse_request(request(response_format={"type": "text"})).response_format is None


def test_claims_are_taken_as_said() -> None:
    """metadata.tool_context is kept as a claim, whether it is an object or JSON text."""
    assert parse_request(request(metadata={"tool_context": {"name": "x"}})).claims == {"name": "x"}
    assert parse_request(request(metadata={"tool_context": '{"name": "x"}'})).claims == {"name": "x"}
    assert parse_request(request(metadata={"team": "a"})).claims is None


def test_predicted_output_is_read_by_rules() -> None:
    """The text of a prediction goes to the provider, so it is an item, before the transcript."""
    turn = parse_request(
        request(
            {"role": "user", "content": "u"}, prediction={"type": "content", "content": [{"type": "text", "text": "p"}]}
        )
    )
    assert list(turn.items) == [TextItem("developer", "p"), TextItem("user", "u")]


def test_reasoning_is_read_in_a_request_and_no_answer_in_a_reply() -> None:
    """Reasoning that a caller sends back is text on its way to the provider; reasoning in a reply is not the answer."""
    message = {"role": "assistant", "content": "c", "reasoning_content": "why"}
    assert list(parse_request(request(message)).items) == [TextItem("assistant", "why"), TextItem("assistant", "c")]
    assert list(parse_reply(reply(message)).items) == [TextItem("assistant", "c")]


def test_a_refusal_is_the_models_text() -> None:
    """A refusal is what the model said."""
    assert list(parse_reply(reply({"role": "assistant", "content": None, "refusal": "no"})).items) == [
        TextItem("assistant", "no")
    ]


def test_all_choices_of_a_reply_are_seen() -> None:
    """With several choices every call of each is an item, in the order of their index."""
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "tool_calls": [{"id": str(index), "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        }
        for index in (1, 0)
    ]
    turn = parse_reply({"model": "m", "choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    assert list(turn.items) == [CallItem("0", "f", "{}"), CallItem("1", "f", "{}")]
    assert turn.usage == Usage(3, 4)


def test_what_a_provider_adds_beside_the_message_is_not_judged() -> None:
    """Fields of a reply that nobody acts on do not stop it."""
    body = reply({"role": "assistant", "content": "c"}, citations=["x"], x_groq={})
    body["choices"][0]["content_filter_results"] = {}
    assert list(parse_reply(body).items) == [TextItem("assistant", "c")]


def test_object_arguments_are_written_as_text() -> None:
    """Servers that send arguments as an object mean their JSON text."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert list(parse_reply(reply({"role": "assistant", "tool_calls": [call]})).items) == [
        CallItem("a", "f", '{"x":1}')
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (request(foo=1), "field 'foo' is not known here, so it may not pass"),
        (
            request(plugins=[{"id": "web"}]),
            "'plugins' is refused: the provider would run tools that nobody here sees; declare them as tools",
        ),
        (
            request({"role": "user", "content": "u", "tool_calls": []}),
            "field 'tool_calls' is not known here, so it may not pass - at `$.messages[0]`",
        ),
        (
            request({"role": "critic", "content": "u"}),
            "role 'critic' is not known here, so it may not pass - at `$.messages[0].role`",
        ),
        (
            request({"role": "user", "content": [{"type": "video", "video": {}}]}),
            "content part 'video' is not known here, so it may not pass - at `$.messages[0].content[0].type`",
        ),
        (
            request({"role": "user", "content": [{"type": "text", "text": "a", "more": "b"}]}),
            "field 'more' is not known here, so it may not pass - at `$.messages[0].content[0]`",
        ),
        (
            request({"role": "assistant", "tool_calls": [{"id": "a", "type": "webhook"}]}),
            "kind of tool call 'webhook' is not known here, so it may not pass - at `$.messages[0].tool_calls[0].type`",
        ),
        (
            request(tools=[{"type": "web_search"}]),
            "kind of tool 'web_search' is not known here, so it may not pass - at `$.tools[0].type`",
        ),
        (request(tools=[{"type": "function"}]), "expected an object, got null - at `$.tools[0].function`"),
        (
            request(tool_choice="maybe"),
            "tool choice 'maybe' is not known here, so it may not pass - at `$.tool_choice`",
        ),
        (
            request(response_format={"type": "grammar"}),
            "output format 'grammar' is not known here, so it may not pass - at `$.response_format.type`",
        ),
        (
            request(metadata={"tool_context": "x"}),
            "expected an object or its JSON text, got a string - at `$.metadata.tool_context`",
        ),
        ({"model": "m"}, "expected a list, got null - at `$.messages`"),
    ],
)
def test_what_is_not_understood_is_refused(body: dict[str, Any], message: str) -> None:
    """A field, part, role or kind on no list, or on the refused list, is a 400 that names it."""
    assert refusal(body) == message


def test_a_refused_field_without_a_value_is_harmless() -> None:
    """Clients that send null for what they do not use are served."""
    assert list(parse_request(request(plugins=None)).items) == []


def test_an_operator_can_let_a_field_pass() -> None:
    """Names given as passing are neither read nor refused."""
    assert list(parse_request(request(foo=1, plugins=[1]), passing={"foo", "plugins"}).items) == []


def test_no_field_is_on_two_lists() -> None:
    """A field is read, passed or refused."""
    lists = (chat_completions.READ, chat_completions.PASSED, frozenset(chat_completions.REFUSED))
    assert len(frozenset.union(*lists)) == sum(map(len, lists))


# Streams


def test_pieces_of_a_call_are_put_together() -> None:
    """Id and name come first, arguments in pieces; a repeated name is not doubled, a name in pieces is joined."""
    pieces = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "shell_", "arguments": ""}},
        {"index": 0, "function": {"name": "exec", "arguments": '{"x"'}},
        {"index": 0, "id": "a", "function": {"name": "shell_exec", "arguments": ":1}"}},
    ]
    assembler = stream(*(chunk({"tool_calls": [piece]}) for piece in pieces), chunk({}, "tool_calls"))
    assert assembler.complete
    assert list(assembler.turn().items) == [CallItem("a", "shell_exec", '{"x":1}')]


def test_a_name_does_not_grow_for_ever() -> None:
    """A tool name that comes in more and more pieces is refused."""
    piece = {"index": 0, "id": "a", "function": {"name": "x" * 3_000}}
    more = {"index": 0, "function": {"name": "y" * 3_000}}
    with pytest.raises(WireError) as caught:
        stream(chunk({"tool_calls": [piece]}), chunk({"tool_calls": [more]}))
    path = "choices[0].delta.tool_calls[0].function.name"
    assert str(caught.value) == f"a tool name has more than 4096 characters - at `$.{path}`"


def test_calls_are_ordered_by_index() -> None:
    """Indexes that come out of order say the order that was meant."""
    deltas = [
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]},
    ]
    assembler = stream(*(chunk(delta) for delta in deltas), chunk({}, "tool_calls"))
    assert list(assembler.turn().items) == [CallItem("a", "f", "{}"), CallItem("b", "g", "{}")]


@pytest.mark.parametrize("index", [{}, {"index": 0}])
def test_another_id_is_another_call(index: dict[str, int]) -> None:
    """Providers that leave the index out, or number every call 0, still make two calls of two ids."""
    deltas = [
        {"tool_calls": [{**index, "id": name, "function": {"name": "f", "arguments": "{}"}}]} for name in ("a", "b")
    ]
    assembler = stream(*(chunk(delta) for delta in deltas), chunk({}, "tool_calls"))
    assert list(assembler.turn().items) == [CallItem("a", "f", "{}"), CallItem("b", "f", "{}")]


def test_choices_may_be_mixed_in_a_stream() -> None:
    """Pieces of two choices do not run into each other."""
    assembler = stream(
        chunk({"content": "a"}),
        chunk({"content": "x"}, index=1),
        chunk({"content": "b"}, "stop"),
        chunk({"content": "y"}, "stop", index=1),
    )
    assert assembler.complete
    assert list(assembler.turn().items) == [TextItem("assistant", "ab"), TextItem("assistant", "xy")]


def test_legacy_and_custom_calls_stream_too() -> None:
    """function_call and custom tools are put together like any call."""
    legacy = stream(
        chunk({"function_call": {"name": "f", "arguments": "{"}}),
        chunk({"function_call": {"arguments": "}"}}, "function_call"),
    )
    assert list(legacy.turn().items) == [CallItem("", "f", "{}")]
    custom = stream(
        chunk({"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "c", "input": "l"}}]}),
        chunk({"tool_calls": [{"index": 0, "custom": {"input": "s"}}]}, "tool_calls"),
    )
    assert list(custom.turn().items) == [CallItem("a", "c", "ls")]


def test_an_error_in_the_stream_is_kept() -> None:
    """An error chunk is recorded, and the reply is not complete."""
    assembler = stream(chunk({"content": "a"}), {"error": {"message": "overloaded"}})
    assert assembler.errors == [{"message": "overloaded"}]
    assert not assembler.complete


@pytest.mark.parametrize("done", [True, False])
def test_a_stream_without_its_end_is_incomplete(done: bool) -> None:
    """Without a finish_reason, or without [DONE], the reply may be half of one."""
    assembler = stream(chunk({"content": "a"}, None if done else "stop"), done=done)
    assert not assembler.complete
    assert list(assembler.turn().items) == [TextItem("assistant", "a")]


def test_nothing_may_follow_the_end() -> None:
    """Data after [DONE] would pass unseen, so it is refused."""
    assembler = stream(chunk({"content": "a"}, "stop"))
    with pytest.raises(WireError) as caught:
        assembler.feed(b"data: {}\n\n")
    assert str(caught.value) == "the stream went on after its end"


def test_an_unknown_delta_is_refused() -> None:
    """A delta field on no list may carry a call nobody sees."""
    with pytest.raises(WireError) as caught:
        stream(chunk({"commands": ["ls"]}))
    assert str(caught.value) == "field 'commands' is not known here, so it may not pass - at `$.choices[0].delta`"


def test_the_body_of_a_stream_is_the_whole_reply() -> None:
    """What was streamed can be sent on in one piece."""
    assembler = stream(
        {"id": "c1", "created": 5, **chunk({"role": "assistant", "content": "a"}, "stop")},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    )
    assert assembler.body() == {
        "id": "c1",
        "created": 5,
        "model": "m",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }


SHELL = {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "shell_exec", "arguments": "{}"}}]}


@pytest.mark.parametrize("beside", [{"message": SHELL}, {"text": "x"}, SHELL])
def test_an_answer_beside_the_delta_is_refused(beside: dict[str, Any]) -> None:
    """A chunk says what it adds in its delta; clients that look elsewhere would act on what nobody judged."""
    (name,) = beside
    with pytest.raises(WireError) as caught:
        stream({"choices": [{"index": 0, "delta": {}, **beside, "finish_reason": "tool_calls"}]})
    assert str(caught.value) == f"the answer stands in 'delta', so {name!r} may not stand beside it - at `$.choices[0]`"


def test_an_answer_beside_the_message_is_refused() -> None:
    """A whole reply says what it says in its message, and nowhere else."""
    body = {"model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "delta": SHELL}]}
    with pytest.raises(WireError) as caught:
        parse_reply(body)
    assert str(caught.value) == "the answer stands in 'message', so 'delta' may not stand beside it - at `$.choices[0]`"


def test_what_says_nothing_may_stand_beside_the_answer() -> None:
    """Empty places and what providers add (filters, log probabilities) are no answer."""
    choice = {"index": 0, "delta": {"content": "x"}, "message": None, "text": "", "logprobs": {"content": [1]}}
    assembler = stream({"choices": [{**choice, "content_filter_results": {"hate": 1}, "finish_reason": "stop"}]})
    assert list(assembler.turn().items) == [TextItem("assistant", "x")]


def test_a_name_that_comes_again_without_the_id_is_refused() -> None:
    """`pa` and `pa` is `papa` to some clients and `pa` to others."""
    pieces = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "pa", "arguments": "{}"}},
        {"index": 0, "function": {"name": "pa"}},
    ]
    with pytest.raises(WireError) as caught:
        stream(*(chunk({"tool_calls": [piece]}) for piece in pieces))
    assert str(caught.value) == (
        "the tool name 'pa' comes again without the call's id: repeated, or one more piece?"
        " - at `$.choices[0].delta.tool_calls[0].function.name`"
    )


def test_a_spoken_answer_is_read() -> None:
    """The words of an answer in sound are its text, whole and streamed."""
    whole = parse_reply(reply({"role": "assistant", "content": None, "audio": {"id": "x", "transcript": "secret"}}))
    pieces = [{"audio": {"id": "x", "transcript": "sec"}}, {"audio": {"transcript": "ret", "data": "AA"}}]
    streamed = stream(*(chunk(piece) for piece in pieces), chunk({"audio": {"data": "BB", "expires_at": 1}}, "stop"))
    assert list(whole.items) == list(streamed.turn().items) == [TextItem("assistant", "secret")]
    message = streamed.body()["choices"][0]["message"]
    assert message["audio"] == {"id": "x", "transcript": "secret", "data": "AABB", "expires_at": 1}


def test_a_declaration_of_two_tools_is_refused() -> None:
    """A second definition beside the one that the type names would be declared to nobody but the provider."""
    tool = {"type": "function", "function": {"name": "f"}, "custom": {"name": "shell_exec"}}
    assert refusal(request(tools=[tool])) == "a tool is a function or custom, not both - at `$.tools[0]`"
