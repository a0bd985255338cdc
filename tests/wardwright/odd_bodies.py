"""Bodies with everything a wire can say, put together from a seed: shapes that few clients write and some attackers would.

The same number always gives the same body; every body has a turn.
"""

from __future__ import annotations

import random
from typing import Any

import orjson

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}

# Chat Completions

CHAT_CALLS: list[dict[str, Any]] = [
    {"id": "c1", "type": "function", "function": {"name": "one", "arguments": "{}"}},
    {"id": "c1", "type": "function", "function": {"name": "two", "arguments": '{"q": 1}'}},
    {"id": "", "type": "function", "function": {"name": "one", "arguments": "not json"}},
    {"type": "function", "function": {"name": "two", "arguments": {"q": "object"}}},
    {"id": "c5", "type": "custom", "custom": {"name": "free", "input": "words"}},
    {"id": "c6", "type": "function", "index": 0, "function": {"name": "one"}},
]
CHAT_CONTENTS: list[Any] = [
    None,
    "",
    "plain",
    ["bare", {"type": "text", "text": "part"}],
    [{"type": "text", "text": ""}],
    [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "text", "text": "b"},
    ],
    [{"type": "refusal", "refusal": "I will not"}],
    [{"type": "file", "file": {"file_id": "f"}}],
    [],
]
CHAT_MESSAGES: list[dict[str, Any]] = [
    *({"role": role, "content": content} for role in ("user", "system", "developer") for content in CHAT_CONTENTS),
    *({"role": "tool", "tool_call_id": "c1", "content": content} for content in CHAT_CONTENTS),
    {"role": "tool", "tool_call_id": "c5", "content": "x", "name": "free"},
    {"role": "function", "name": "old", "content": "result"},
    {"role": "function", "name": "old", "content": None},
    {"role": "user", "content": "named", "name": "ada"},
]
CHAT_EXTRAS: list[dict[str, Any]] = [
    {},
    {"refusal": "no"},
    {"reasoning_content": "hm"},
    {"reasoning": "hm", "reasoning_content": "hm"},
    {
        "reasoning_details": [
            {"type": "reasoning.text", "text": "deep", "signature": "s"},
            {"summary": "deep"},
            {"data": "x"},
        ]
    },
    {"audio": {"id": "au", "transcript": "spoken", "data": "AAAA"}},
    {"audio": {"id": "au"}},
    {"annotations": [{"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 2, "url": "u"}}]},
    {"function_call": {"name": "old", "arguments": "{}"}},
    {"tool_calls": None},
    {"tool_calls": []},
]
CHAT_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "one", "description": "One.", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "two"}},
    {"type": "custom", "custom": {"name": "free", "format": {"type": "text"}}},
]
CHAT_CHOICES: list[Any] = [
    None,
    "auto",
    "none",
    "required",
    {"type": "function", "function": {"name": "one"}},
    {"type": "custom", "custom": {"name": "free"}},
    {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [
                {"type": "function", "function": {"name": "one"}},
                {"type": "custom", "custom": {"name": "free"}},
            ],
        },
    },
]


def _chat_message(dice: random.Random) -> dict[str, Any]:
    message = {"role": "assistant", "content": dice.choice(CHAT_CONTENTS)}
    for extra in dice.sample(CHAT_EXTRAS, dice.choice((0, 0, 1, 2))):
        message.update(extra)
    if dice.random() < 0.6:
        message["tool_calls"] = dice.sample(CHAT_CALLS, dice.randint(1, 3))
    if dice.random() < 0.1:
        del message["content"]
    return message


def _chat_request(dice: random.Random) -> dict[str, Any]:
    messages = [
        dice.choice(CHAT_MESSAGES) if dice.random() < 0.6 else _chat_message(dice) for _ in range(dice.randint(0, 6))
    ]
    body: dict[str, Any] = {"model": "m", "messages": messages}
    _maybe(body, dice, "tools", dice.sample(CHAT_TOOLS, dice.randint(0, 3)))
    _maybe(body, dice, "functions", [{"name": "old", "parameters": SCHEMA}])
    _maybe(body, dice, "web_search_options", {"search_context_size": "low"})
    _maybe(body, dice, "prediction", {"type": "content", "content": dice.choice(CHAT_CONTENTS[1:])})
    _maybe(body, dice, "parallel_tool_calls", False)
    _maybe(body, dice, "metadata", {"tool_context": "{}", "other": "x"})
    if dice.random() < 0.2:
        body["function_call"] = dice.choice(("auto", "none", {"name": "old"}))
    else:
        _maybe(body, dice, "tool_choice", dice.choice(CHAT_CHOICES))
    return body


def _chat_reply(dice: random.Random) -> dict[str, Any]:
    choices = [
        {"index": index, "message": _chat_message(dice), "finish_reason": dice.choice(("stop", "tool_calls", "length"))}
        for index in dice.sample(range(4), dice.choice((1, 1, 2, 3)))
    ]
    for choice in choices:
        _maybe(choice, dice, "logprobs", {"content": [{"token": "plain"}]})
        if dice.random() < 0.1:
            del choice["index"]
    return {
        "id": "r",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": dice.choice((None, {"prompt_tokens": 1})),
    }


# Responses

ENTRIES: list[dict[str, Any]] = [
    {"role": "user", "content": "plain"},
    {"type": "message", "role": "user", "content": []},
    {"role": "system", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}, {"type": "input_text", "text": "see"}]},
    {"role": "developer", "content": ""},
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [
            {
                "type": "output_text",
                "text": "said",
                "annotations": [{"type": "url_citation"}],
                "logprobs": [{"token": "said"}],
            },
            {"type": "refusal", "refusal": "no"},
        ],
    },
    {
        "type": "reasoning",
        "id": "rs",
        "summary": [{"type": "summary_text", "text": "thought"}],
        "encrypted_content": "x",
    },
    {"type": "reasoning", "id": "rs2", "summary": [], "content": [{"type": "reasoning_text", "text": "deep"}]},
    {"type": "reasoning", "id": "rs3", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "one", "arguments": "{}"},
    {"type": "function_call", "call_id": "c1", "name": "two", "arguments": "x", "id": "fc"},
    {"type": "function_call", "call_id": "", "name": "two", "arguments": {"q": 1}, "namespace": "ns"},
    {"type": "custom_tool_call", "call_id": "c5", "name": "free", "input": "words"},
    {"type": "computer_call", "call_id": "c6", "action": {"type": "click"}, "id": "cu"},
    {"type": "local_shell_call", "call_id": "c7", "action": {"command": ["ls"]}, "id": "ls"},
    {"type": "shell_call", "call_id": "c8", "action": {"commands": ["ls"]}},
    {
        "type": "shell_call",
        "call_id": "c9",
        "action": {"commands": ["ls"]},
        "environment": {"type": "container_reference"},
    },
    {"type": "apply_patch_call", "call_id": "c10", "operation": {"type": "delete_file"}, "status": "completed"},
    {"type": "tool_search_call", "call_id": "c11", "arguments": {"q": "x"}, "execution": "client"},
    {"type": "tool_search_call", "call_id": "c12", "arguments": {"q": "x"}},
    {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "web_search_call", "id": "ws2", "status": "searching", "action": {"type": "open_page", "url": "u"}},
    {"type": "file_search_call", "id": "fs", "status": "completed", "queries": ["q"], "results": [{"text": "found"}]},
    {"type": "code_interpreter_call", "id": "ci", "status": "completed", "code": "1", "outputs": [{"logs": "1"}]},
    {"type": "image_generation_call", "id": "ig", "status": "completed", "result": "AAAA"},
    {"type": "mcp_call", "id": "mc", "server_label": "s", "name": "t", "arguments": "{}", "output": "out"},
    {"type": "mcp_call", "id": "mc2", "server_label": "s", "name": "t", "arguments": "{}", "error": "bad"},
    {
        "type": "mcp_list_tools",
        "server_label": "s",
        "tools": [{"name": "t", "input_schema": {}}, {"name": "u", "input_schema": {}}],
    },
    {"type": "mcp_approval_request", "id": "ar", "server_label": "s", "name": "t", "arguments": "{}"},
    {"type": "compaction", "id": "co", "encrypted_content": "x"},
    {"type": "program", "call_id": "p", "code": "x"},
    {"type": "program_output", "call_id": "p", "result": "y", "status": "completed"},
]
ASKING: list[dict[str, Any]] = [
    {"type": "function_call_output", "call_id": "c1", "output": "out"},
    {"type": "function_call_output", "call_id": "c1", "output": ""},
    {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}],
    },
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "image_url": "data:"}]},
    {"type": "function_call_output", "call_id": "c2", "output": "named", "name": "two"},
    {"type": "custom_tool_call_output", "call_id": "c5", "output": "free"},
    {"type": "computer_call_output", "call_id": "c6", "output": {"type": "computer_screenshot", "image_url": "data:"}},
    {"type": "local_shell_call_output", "id": "c7", "output": "files"},
    {
        "type": "shell_call_output",
        "call_id": "c8",
        "output": [{"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 1}}],
    },
    {
        "type": "shell_call_output",
        "call_id": "c9",
        "output": [{"stdout": "a", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    {"type": "apply_patch_call_output", "call_id": "c10", "status": "failed", "output": "bad"},
    {
        "type": "tool_search_output",
        "call_id": "c11",
        "execution": "client",
        "tools": [{"type": "function", "name": "found"}],
    },
    {"type": "tool_search_output", "call_id": "c12", "tools": [{"type": "function", "name": "found2"}]},
    {"type": "mcp_approval_response", "approval_request_id": "ar", "approve": False, "reason": "no"},
    {"type": "mcp_approval_response", "approval_request_id": "ar", "approve": True},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "brought"}]},
    {"type": "compaction_trigger"},
]
RESPONSES_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "one", "description": "One.", "parameters": SCHEMA, "strict": False},
    {"type": "function", "name": "two"},
    {"type": "custom", "name": "free"},
    {
        "type": "namespace",
        "name": "ns",
        "description": "N.",
        "tools": [{"type": "function", "name": "a"}, {"type": "function", "name": "b"}],
    },
    {"type": "web_search_preview_2025_03_11", "search_context_size": "low"},
    {"type": "file_search", "vector_store_ids": ["v"], "max_num_results": 9},
    {"type": "mcp", "server_label": "s", "server_url": "u", "authorization": "secret"},
    {"type": "mcp", "server_label": "w", "server_url": "u", "allowed_tools": ["x", "y"]},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "local_shell"},
    {"type": "apply_patch"},
    {"type": "computer_use_preview", "display_width": 1},
]
RESPONSES_CHOICES: list[Any] = [
    None,
    "auto",
    "none",
    "required",
    {"type": "function", "name": "one"},
    {"type": "custom", "name": "free"},
    {"type": "function", "name": "a", "namespace": "ns"},
    {"type": "web_search_preview"},
    {"type": "mcp", "server_label": "s"},
    {"type": "mcp", "server_label": "s", "name": "t"},
    {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "one"}, {"type": "mcp", "server_label": "w"}],
    },
]


def _responses_request(dice: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "input": dice.choice(("text", "", None))}
    if dice.random() < 0.9:
        body["input"] = [dice.choice((*ENTRIES, *ASKING)) for _ in range(dice.randint(0, 8))]
    _maybe(body, dice, "instructions", dice.choice(("Be kind.", "", None)))
    _maybe(body, dice, "tools", dice.sample(RESPONSES_TOOLS, dice.randint(0, 5)))
    _maybe(body, dice, "tool_choice", dice.choice(RESPONSES_CHOICES))
    _maybe(body, dice, "parallel_tool_calls", True)
    return body


def _responses_reply(dice: random.Random) -> dict[str, Any]:
    output = [dice.choice(ENTRIES) for _ in range(dice.randint(0, 8))]
    return {"id": "r", "created_at": 1, "model": "m", "status": "completed", "output": output, "usage": None}


# Messages

BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "said"},
    {"type": "text", "text": "more", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "cited", "citations": [{"type": "char_location", "cited_text": "old"}]},
    {"type": "text", "text": ""},
    {"type": "image", "source": {"type": "url", "url": "u"}},
    {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "words", "media_type": "text/plain"}},
    {"type": "document", "source": {"type": "base64", "data": "AAAA"}},
    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inner"}]}},
    {"type": "search_result", "title": "S", "source": "u", "content": [{"type": "text", "text": "hit"}]},
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "thinking", "thinking": "", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "tool_use", "id": "c1", "name": "one", "input": {}},
    {"type": "tool_use", "id": "c1", "name": "two", "input": {"q": 1}},
    {"type": "tool_use", "id": "", "name": "one", "input": "not json"},
    {"type": "tool_use", "id": "c4", "name": "navigate", "input": {"url": "u"}, "toolset_name": "browser"},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "title": "t", "url": "u"}]},
    {"type": "mcp_tool_use", "id": "m1", "name": "t", "server_name": "s", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "m1", "content": [{"type": "text", "text": "x"}], "is_error": False},
    {"type": "compaction", "content": "summary"},
    {"type": "compaction", "content": None, "tool_changes": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "changed", "input_schema": {}}}}]},
    {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": [{"name": "t", "input_schema": {}}]},
    {"type": "container_upload", "file_id": "f"},
]  # fmt: skip
USER_BLOCKS: list[dict[str, Any]] = [
    {"type": "tool_result", "tool_use_id": "c1", "content": "out"},
    {"type": "tool_result", "tool_use_id": "c1", "content": "bad", "is_error": True},
    {"type": "tool_result", "tool_use_id": "c2"},
    {
        "type": "tool_result",
        "tool_use_id": "c2",
        "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
    },
    {
        "type": "tool_result",
        "tool_use_id": "c3",
        "content": [{"type": "image", "source": {}}, {"type": "text", "text": "seen"}],
    },
    {"type": "tool_result", "tool_use_id": "c4", "content": [{"type": "browser_state", "tabs": [{"title": "page"}]}]},
    {"type": "tool_result", "tool_use_id": "c4", "content": [{"type": "document", "title": "D", "source": {}}]},
    {
        "type": "tool_addition",
        "tool": {"type": "tool_definition", "definition": {"name": "brought", "input_schema": {}}},
    },
    {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "one"}},
]
MESSAGES_TOOLS: list[dict[str, Any]] = [
    {"name": "one", "description": "One.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
    {"type": "custom", "name": "two", "input_schema": SCHEMA},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 9},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    {"type": "browser_toolset_20260801", "configs": {"zoom": {"enabled": False}}},
    {"type": "mcp_toolset", "mcp_server_name": "s", "configs": {"u": {"enabled": True}}},
]
MESSAGES_CHOICES: list[Any] = [
    None,
    {"type": "auto"},
    {"type": "none"},
    {"type": "any", "disable_parallel_tool_use": True},
    {"type": "tool", "name": "one"},
    {"type": "tool", "name": "navigate", "toolset_name": "browser"},
]


def _messages_request(dice: random.Random) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for _ in range(dice.randint(0, 5)):
        role = dice.choice(("user", "assistant", "user", "system"))
        blocks = (*BLOCKS, *USER_BLOCKS) if role != "assistant" else BLOCKS
        content: Any = [dice.choice(blocks) for _ in range(dice.randint(0, 6))]
        messages.append({"role": role, "content": dice.choice(("plain", "")) if dice.random() < 0.2 else content})
    body: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": messages}
    _maybe(
        body,
        dice,
        "system",
        dice.choice(("Be kind.", "", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
    )
    _maybe(body, dice, "tools", dice.sample(MESSAGES_TOOLS, dice.randint(0, 5)))
    _maybe(body, dice, "tool_choice", dice.choice(MESSAGES_CHOICES))
    _maybe(body, dice, "mcp_servers", [{"type": "url", "name": "s", "url": "u", "authorization_token": "secret"}])
    _maybe(body, dice, "container", {"id": "x", "skills": [{"skill_id": "pdf"}]})
    return body


def _messages_reply(dice: random.Random) -> dict[str, Any]:
    content = [dice.choice(BLOCKS) for _ in range(dice.randint(0, 8))]
    stop = dice.choice(("tool_use", "end_turn", "max_tokens"))
    return {"id": "r", "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": stop}


def _maybe(body: dict[str, Any], dice: random.Random, name: str, value: Any) -> None:
    if dice.random() < 0.5:
        body[name] = value


_MAKERS = {
    ("chat_completions", "request"): _chat_request,
    ("chat_completions", "reply"): _chat_reply,
    ("responses", "request"): _responses_request,
    ("responses", "reply"): _responses_reply,
    ("anthropic", "request"): _messages_request,
    ("anthropic", "reply"): _messages_reply,
}


def odd_body(wire: str, gate: str, number: int) -> dict[str, Any]:
    """The body with this number: all its parts are its own."""
    return orjson.loads(orjson.dumps(_MAKERS[wire, gate](random.Random(number))))
