"""Edits of what only one wire can say, and of what stands beside the words that change."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright.wire import CallItem, ResultItem, TextItem, ToolChoice, anthropic, chat_completions, edit, responses
from wardwright.wire.edit import Splice, SplicedCall, ToolAnswer, ToolSpec

from .test_wire_edit import Judged

CHAT, RESPONSES, MESSAGES = edit.of("chat_completions"), edit.of("responses"), edit.of("anthropic")
SPEC = ToolSpec("ours", "Ours.", {"type": "object"})


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def gone(_: int, text: str) -> str:
    return "gone"


# Tools


def test_legacy_functions_are_dropped_and_the_call_of_one_mended() -> None:
    """The old list of functions, and the old way to force one, follow the same rules."""
    body: Any = {"messages": [], "functions": [{"name": "a"}, {"name": "b"}], "function_call": {"name": "a"}}
    CHAT.drop_tools(body, ["a"])
    assert body == {"messages": [], "functions": [{"name": "b"}], "function_call": "auto"}
    CHAT.drop_tools(body, ["b"])
    assert body == {"messages": []}


def test_ours_are_declared_as_functions_to_whoever_declares_functions() -> None:
    """A server that knows the old list only would not look at another."""
    body: Any = {"messages": [], "functions": [{"name": "a"}]}
    CHAT.add_tools(body, [SPEC])
    assert [tool["name"] for tool in body["functions"]] == ["a", "ours"]
    assert "tools" not in body


@pytest.mark.parametrize(
    ("edits", "body", "left"),
    [
        (
            CHAT,
            {
                "messages": [],
                "tools": [function("a"), function("b"), function("c")],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("a"), function("b")]}},
            },
            [ToolChoice("tool", ("b",)), ToolChoice("none")],
        ),
        (
            RESPONSES,
            {
                "tools": [{"type": "function", "name": name} for name in "abc"],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "a"}, {"type": "function", "name": "b"}],
                },
            },
            [ToolChoice("tool", ("b",)), ToolChoice("none")],
        ),
    ],
    ids=["chat_completions", "responses"],
)  # fmt: skip
def test_a_permitted_subset_shrinks_with_its_tools(edits: edit.Edits, body: Any, left: list[ToolChoice]) -> None:
    """Of the permitted tools the rest stays permitted; when none is left, none may be called, not all."""
    parse = chat_completions.parse_request if edits is CHAT else responses.parse_request
    choices: list[Any] = []
    for name in ("a", "b"):
        edits.drop_tools(body, [name])
        choices.append(parse(body).tool_choice)
    assert choices == left


def test_a_tool_of_a_namespace_is_dropped_alone() -> None:
    """The others of the namespace stay; without any it goes."""
    members: Any = [{"type": "function", "name": "a"}, {"type": "function", "name": "b"}]
    body: Any = {"tools": [{"type": "namespace", "name": "ns", "tools": members}]}
    RESPONSES.drop_tools(body, ["ns.a"])
    assert [tool.name for tool in responses.parse_request(body).tools] == ["ns.b"]
    RESPONSES.drop_tools(body, ["ns.b"])
    assert body == {}


def test_a_listed_tool_of_a_server_is_taken_from_what_the_server_may_do() -> None:
    """Responses: the server may use the rest of what it listed, and is gone when nothing is left."""
    listing: Any = {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t"}, {"name": "u"}]}
    body: Any = {"input": [listing], "tools": [{"type": "mcp", "server_label": "s", "server_url": "x"}]}
    RESPONSES.drop_tools(body, ["t:s"])
    assert body["tools"][0]["allowed_tools"] == ["u"]
    RESPONSES.drop_tools(body, ["u:s"])
    assert "tools" not in body


def test_a_server_is_dropped_by_its_label() -> None:
    """Both wires with provider-side servers: declaration and server are gone."""
    one: Any = {"tools": [{"type": "mcp", "server_label": "s", "server_url": "x"}, {"type": "local_shell"}]}
    other: Any = {
        "messages": [],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}, {"name": "a"}],
        "mcp_servers": [{"type": "url", "name": "s", "url": "x"}],
    }
    RESPONSES.drop_tools(one, ["mcp:s"])
    MESSAGES.drop_tools(other, ["mcp:s"])
    assert [one, other] == [{"tools": [{"type": "local_shell"}]}, {"messages": [], "tools": [{"name": "a"}]}]


def test_a_member_of_a_toolset_is_switched_off() -> None:
    """Messages: one declaration stands for many tools, and each can be taken away."""
    body: Any = {"messages": [], "tools": [{"type": "browser_toolset_20260801", "name": "browser"}]}
    before = {tool.name for tool in anthropic.parse_request(body).tools}
    MESSAGES.drop_tools(body, ["browser.javascript_exec", "browser.file_upload"])
    after = {tool.name for tool in anthropic.parse_request(body).tools}
    assert before - after == {"browser.javascript_exec", "browser.file_upload"}
    MESSAGES.drop_tools(body, after)
    assert "tools" not in body


def test_tools_that_messages_bring_are_dropped_too() -> None:
    """A tool cannot hide in the middle of a conversation."""
    definition: Any = {"name": "late", "input_schema": {"type": "object"}}
    added: Any = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}
    one: Any = {"messages": [{"role": "system", "content": [added]}, {"role": "user", "content": "Hi"}]}
    other: Any = {"input": [{"type": "additional_tools", "tools": [{"type": "function", "name": "late"}]}]}
    MESSAGES.drop_tools(one, ["late"])
    RESPONSES.drop_tools(other, ["late"])
    assert one == {"messages": [{"role": "user", "content": "Hi"}]}
    assert not responses.parse_request(other).tools


def test_limits_of_a_server_stand_where_each_belongs() -> None:
    """Messages: what a set of tools may do stands on the set, the rest on the server; no secret is touched."""
    body: Any = {
        "messages": [],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}],
        "mcp_servers": [{"type": "url", "name": "s", "url": "x", "authorization_token": "t"}],
    }
    MESSAGES.set_controls(body, {"mcp:s": {"url": "x", "default_config": {"enabled": False}}})
    assert body["tools"][0]["default_config"] == {"enabled": False}
    assert body["mcp_servers"] == [{"type": "url", "name": "s", "url": "x", "authorization_token": "t"}]


# What stands beside changed words


def test_log_probabilities_go_with_the_words() -> None:
    """They repeat the old words, token by token."""
    said: Any = {
        "index": 0,
        "message": {"role": "assistant", "content": "secret"},
        "logprobs": {"content": [{"token": "secret"}]},
    }
    part: Any = {
        "type": "output_text",
        "text": "secret",
        "logprobs": [{"token": "secret"}],
        "annotations": [{"title": "secret"}],
    }
    chat: Any = {"choices": [said]}
    other: Any = {"output": [{"type": "message", "role": "assistant", "content": [part]}]}
    CHAT.rewrite(chat, gone)
    RESPONSES.rewrite(other, gone)
    assert "secret" not in str(chat) + str(other)


def test_speech_goes_with_the_words() -> None:
    """A recording cannot be changed, so what it says is said in words."""
    body: Any = {
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "content": None,
                    "audio": {"id": "a", "data": "AA", "transcript": "secret"},
                }
            }
        ]
    }
    CHAT.rewrite(body, gone)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "gone"}


def test_signed_thinking_whose_words_change_is_left_out() -> None:
    """Its signature is over the old words, and what is sealed beside a summary says them still."""
    thinking: Any = {"type": "thinking", "thinking": "secret", "signature": "s"}
    one: Any = {"messages": [{"role": "assistant", "content": [thinking, {"type": "text", "text": "x"}]}]}
    sealed: Any = {
        "type": "reasoning",
        "id": "r",
        "summary": [{"type": "summary_text", "text": "secret"}],
        "encrypted_content": "e",
    }
    other: Any = {"input": [sealed, {"role": "user", "content": "x"}]}
    for edits, body in ((MESSAGES, one), (RESPONSES, other)):
        edits.rewrite(body, lambda _, text: text.replace("secret", "word"))
    assert one == {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]}
    assert other == {"input": [{"role": "user", "content": "x"}]}


def test_a_document_whose_words_change_becomes_a_text() -> None:
    """Title, context and data are one text to rules, and one text after the change; the cache mark stays."""
    document: Any = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "data": "secret"},
        "cache_control": {"type": "ephemeral"},
    }
    body: Any = {"messages": [{"role": "user", "content": [document, {"type": "text", "text": "Sum it up."}]}]}
    MESSAGES.rewrite(body, lambda _, text: text.replace("secret", "word"))
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "T\nword\nSum it up.", "cache_control": {"type": "ephemeral"}}
    ]


def test_pictures_beside_a_changed_result_stay() -> None:
    """Only the words of a result change."""
    picture: Any = {"type": "image", "source": {"type": "url", "url": "u"}}
    block: Any = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "secret"}, picture]}
    body: Any = {"messages": [{"role": "user", "content": [block]}]}
    MESSAGES.rewrite(body, gone)
    assert block["content"] == [{"type": "text", "text": "gone"}, picture]


# Calls


def test_calls_of_every_choice_are_judged_by_their_place() -> None:
    """Choices count in the order of their index, whatever order they stand in."""
    calls: Any = [
        {"index": index, "message": {"content": None, "tool_calls": [{"id": f"c{index}", "type": "function", "function": {"name": "n", "arguments": ""}}]}, "finish_reason": "tool_calls"}
        for index in (1, 0)
    ]  # fmt: skip
    body: Any = {"choices": calls}
    CHAT.keep_calls(body, [Judged(0, "c0", "c0", "deny_call"), Judged(1, "c1", "c1")])
    assert [
        (one["index"], one["finish_reason"], len(one["message"].get("tool_calls", ()))) for one in body["choices"]
    ] == [
        (1, "tool_calls", 1),
        (0, "stop", 0),
    ]


def test_a_legacy_call_is_taken_out_and_answered_by_its_name() -> None:
    """It has no id, so its name is all that a result can name."""
    message: Any = {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}}
    body: Any = {"choices": [{"index": 0, "message": message, "finish_reason": "function_call"}]}
    written = CHAT.answered({"messages": []}, body, {0: ToolAnswer("", "no")})
    assert chat_completions.parse_request(written).items == [
        CallItem("", "old", "{}"),
        ResultItem("", "no", name="old"),
    ]
    CHAT.keep_calls(body, [])
    assert body["choices"][0] == {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}


def test_reasoning_goes_with_the_only_call_it_led_to() -> None:
    """Responses refuses reasoning without what followed it; reasoning that led to something else stays."""
    thought: Any = [{"type": "reasoning", "id": f"r{number}", "summary": []} for number in range(3)]
    call: Any = [
        {"type": "function_call", "call_id": f"c{number}", "name": "n", "arguments": ""} for number in range(3)
    ]
    said: Any = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    body: Any = {"output": [thought[0], call[0], thought[1], said, thought[2], call[1], call[2]]}
    RESPONSES.keep_calls(
        body, [Judged(0, "c0", "c0", "deny_call"), Judged(2, "c1", "c1", "deny_call"), Judged(3, "c2", "c2")]
    )
    assert body["output"] == [thought[1], said, thought[2], call[2]]


ANSWERS: dict[str, dict[str, Any]] = {
    "function_call": {"type": "function_call_output", "call_id": "c", "output": "no"},
    "custom_tool_call": {"type": "custom_tool_call_output", "call_id": "c", "output": "no"},
    "local_shell_call": {"type": "local_shell_call_output", "id": "c", "output": "no"},
    "shell_call": {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 1}}],
    },
    "apply_patch_call": {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no"},
}


@pytest.mark.parametrize("kind", sorted(ANSWERS))
def test_every_kind_of_call_is_answered_in_kind(kind: str) -> None:
    """Responses: each described tool has its own shape of result."""
    call: Any = {"type": kind, "call_id": "x", "name": "n", "action": {}, "operation": {}}
    written: Any = RESPONSES.answered({"input": "Hi"}, {"output": [call]}, {0: ToolAnswer("c", "no", True)})
    assert written["input"] == [{"role": "user", "content": "Hi"}, {**call, "call_id": "c"}, ANSWERS[kind]]


def test_a_call_that_only_a_picture_answers_is_answered_in_words() -> None:
    """Responses: a denied computer call leaves the transcript, and the model is told why."""
    thought: Any = {"type": "reasoning", "id": "r", "summary": []}
    call: Any = {"type": "computer_call", "call_id": "x", "action": {"type": "click"}}
    written: Any = RESPONSES.answered(
        {"input": []}, {"output": [thought, call]}, {0: ToolAnswer("c", "Not here.", True)}
    )
    assert written["input"] == [{"role": "developer", "content": "Not here."}]


def test_input_that_was_no_json_is_told_back_as_an_object() -> None:
    """Messages: a cut stream leaves text, which the provider would not take back as it is."""
    call: Any = {"type": "tool_use", "id": "c", "name": "n", "input": '{"cut": '}
    written: Any = MESSAGES.answered({"messages": []}, {"content": [call]}, {0: ToolAnswer("c", "no")})
    assert written["messages"][0]["content"][0]["input"] == {"arguments": '{"cut": '}


def test_a_custom_call_is_spliced_as_one() -> None:
    """OpenAI's wires: free text goes back as free text, under the kind that the request declares."""
    splice = Splice(("a",), (SplicedCall("s", "free", "some words", "no"),))
    sibling: Any = {"id": "a", "type": "function", "function": {"name": "n", "arguments": ""}}
    chat: Any = {
        "messages": [{"role": "assistant", "content": None, "tool_calls": [sibling]}],
        "tools": [{"type": "custom", "custom": {"name": "free"}}],
    }
    other: Any = {
        "input": [{"type": "function_call", "call_id": "a", "name": "n", "arguments": ""}],
        "tools": [{"type": "custom", "name": "free"}],
    }
    CHAT.splice(chat, [splice])
    RESPONSES.splice(other, [splice])
    assert chat["messages"][0]["tool_calls"][1] == {
        "id": "s",
        "type": "custom",
        "custom": {"name": "free", "input": "some words"},
    }
    assert [entry["type"] for entry in other["input"]] == [
        "function_call",
        "custom_tool_call",
        "custom_tool_call_output",
    ]


def test_results_are_spliced_into_a_message_of_plain_text() -> None:
    """Messages: a user who says something instead of answering still gets the results before the words."""
    call: Any = {"type": "tool_use", "id": "a", "name": "n", "input": {}}
    body: Any = {"messages": [{"role": "assistant", "content": [call]}, {"role": "user", "content": "Stop."}]}
    MESSAGES.splice(body, [Splice(("a",), (SplicedCall("s", "browser.zoom", "{}", "no", True),))])
    assert body["messages"][0]["content"][1] == {
        "type": "tool_use",
        "id": "s",
        "name": "zoom",
        "input": {},
        "toolset_name": "browser",
    }
    assert body["messages"][1]["content"] == [
        {"type": "tool_result", "tool_use_id": "s", "content": "no", "is_error": True},
        {"type": "text", "text": "Stop."},
    ]


def test_citations_move_with_the_text_they_are_in() -> None:
    """Chat Completions: places in the later round's text are places in the joined one."""
    note: Any = {"type": "url_citation", "url_citation": {"url": "u", "start_index": 0, "end_index": 2}}
    first: Any = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "12345"}}]}
    later: Any = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ab", "annotations": [note]}}]}
    message: Any = CHAT.join(first, later)["choices"]
    cited = message[0]["message"]["annotations"][0]["url_citation"]
    assert (message[0]["message"]["content"][cited["start_index"] : cited["end_index"]]) == "ab"


def test_a_reply_repeats_the_callers_own_request() -> None:
    """G44: what we put into a request is not told to its caller."""
    asked: Any = {"model": "public", "input": "Hi", "tools": [{"type": "function", "name": "own"}]}
    reply: Any = {"model": "upstream", "instructions": "Ours.", "tools": [{"type": "function", "name": "ours"}], "tool_choice": "required", "metadata": {"x": "y"}, "output": []}  # fmt: skip
    RESPONSES.echo(reply, asked)
    assert reply == {
        "model": "public",
        "instructions": None,
        "tools": [{"type": "function", "name": "own"}],
        "tool_choice": "auto",
        "metadata": {},
        "output": [],
    }


@pytest.mark.parametrize("edits", [CHAT, MESSAGES], ids=["chat_completions", "anthropic"])
def test_a_reply_names_the_model_that_was_asked_for(edits: edit.Edits) -> None:
    """Which model answered is told in a header, not in the place of the name that the caller knows."""
    reply: Any = {"model": "upstream"}
    edits.echo(reply, {"model": "public"})
    assert reply == {"model": "public"}


def test_reminders_follow_the_role_that_the_caller_uses() -> None:
    """Behind instructions of a developer stands one of a developer; models that know one role may not know the other."""
    chat: Any = {"messages": [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]}
    other: Any = {"input": [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]}
    CHAT.remind(chat, ["c"])
    RESPONSES.remind(other, ["c"])
    expected = [TextItem("developer", "a"), TextItem("developer", "c"), TextItem("user", "b")]
    assert chat_completions.parse_request(chat).items == responses.parse_request(other).items == expected
