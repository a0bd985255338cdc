"""The official `openai` and `anthropic` clients, unmodified, over real sockets: what they send, what they read, what they raise."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from anthropic.types import ToolParam
from pydantic import BaseModel

from wardwright.keys import hash_key

from ..http.gateway_fixture import said
from .loopback import Said, Served, served, streamed

KEY, SLOW_KEY, PROVIDER_KEY = "client-key-1", "client-key-2", "sk-provider-secret"

Wire = Literal["chat", "responses", "messages"]
WIRES: tuple[Wire, ...] = ("chat", "responses", "messages")

GOVERNED = """
    governance:
      - {id: no-wipe, kind: tool_selector, action: deny_call, message: No wiping here., tool: {name: wipe, source: assistant_tool_call}}
      - {id: no-bomb, kind: tool_selector, action: block, message: Never., tool: {name: bomb, source: assistant_tool_call}}
      - {id: ask-first, kind: tool_selector, action: require_approval, tool: {name: deploy, source: assistant_tool_call}}
      - {id: no-secrets, kind: request_guard, action: block, match: "top secret"}
"""


def config(port: int) -> str:
    return f"""
auth:
  keys:
    - {{id: fast, hash: "{hash_key(KEY)}"}}
    - {{id: slow, hash: "{hash_key(SLOW_KEY)}", concurrency: 1}}
providers:
  double: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", api_key_env: PROVIDER_KEY, retries: 0, wires: [chat_completions, responses, anthropic], breaker: {{failures: 1000}}}}
  gone: {{kind: openai, base_url: "http://127.0.0.1:9/v1", retries: 0, breaker: {{failures: 1000}}}}
models:
  - model_id: m
    targets: [{{model: upstream-m, provider: double, context_window: 100000}}]
{GOVERNED}
  - model_id: nobody
    targets: [{{model: gone, provider: gone, context_window: 100000}}]
  - model_id: tiny
    targets: [{{model: tiny, provider: double, context_window: 1}}]
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("clients"), config, {"PROVIDER_KEY": PROVIDER_KEY}) as running:
        yield running


@pytest.fixture(scope="module")
def ai(gateway: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(gateway: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        yield client


Ask = Callable[..., Any]


@pytest.fixture
def ask(ai: openai.OpenAI, claude: anthropic.Anthropic) -> Ask:
    """Sends one request by the client of a wire and reads the answer to its end."""

    def asked(wire: Wire, stream: bool, *, model: str = "m", messages: Any = HI, key: str = KEY, **more: Any) -> Any:
        if wire == "messages":
            create = claude.with_options(api_key=key).messages.create
            made = create(model=model, max_tokens=100, messages=messages, stream=stream, **more)
        elif wire == "chat":
            create = ai.with_options(api_key=key).chat.completions.create
            made = create(model=model, messages=messages, stream=stream, **more)
        else:
            made = ai.with_options(api_key=key).responses.create(model=model, input=messages, stream=stream, **more)
        return list(made) if stream else made

    return asked


def function(name: str) -> Any:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def flat(name: str) -> Any:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    return {"type": "function", "name": name, "parameters": schema, "strict": False}


def tool(name: str) -> ToolParam:
    return {"name": name, "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}


PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
HI: Any = [{"role": "user", "content": "hi"}]
SECRET: Any = [{"role": "user", "content": "this is top secret"}]


# Chat Completions


def test_chat(gateway: Served, ai: openai.OpenAI) -> None:
    """Words, finish reason and usage arrive; the provider gets its own key and model name, and nothing of the client's."""
    gateway.double.says(said("chat_completions", "Hello."))
    made = ai.chat.completions.with_raw_response.create(model="m", messages=HI)
    completion = made.parse()
    assert completion.choices[0].message.content == "Hello."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None and completion.usage.total_tokens == 15
    assert made.headers["x-wardwright-receipt-id"] and made.headers["x-wardwright-selected-model"] == "upstream-m"
    assert gateway.double.sent[0]["model"] == "upstream-m"
    assert gateway.double.headers[0]["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert not any(KEY in value or name.startswith("x-wardwright") for name, value in gateway.double.headers[0].items())


def test_chat_streamed(gateway: Served, ai: openai.OpenAI) -> None:
    """Pieces, one end and the usage that was asked for."""
    gateway.double.says(said("chat_completions", "Hello there."))
    chunks = list(
        ai.chat.completions.create(model="m", messages=HI, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "Hello there."
    assert [one.choices[0].finish_reason for one in chunks if one.choices and one.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 15


def test_chat_streams_no_usage_that_was_not_asked_for(gateway: Served, ai: openai.OpenAI) -> None:
    """A client that does not expect a chunk without choices gets none."""
    gateway.double.says(said("chat_completions", "Hello there."))
    assert all(one.choices for one in ai.chat.completions.create(model="m", messages=HI, stream=True))


@pytest.mark.parametrize("stream", [False, True])
def test_chat_tools_in_parallel(gateway: Served, ai: openai.OpenAI, stream: bool) -> None:
    """Allowed calls arrive whole, renumbered without the denied one between them; the conversation goes on with their results."""
    calls = ("c1", "look", {"x": "1"}), ("c2", "wipe", {"x": "everything"}), ("c3", "look", {"x": "3"})
    gateway.double.says(said("chat_completions", "Looking.", *calls), said("chat_completions", "Done."))
    tools = [function("look"), function("wipe")]
    if stream:
        with ai.chat.completions.stream(model="m", messages=HI, tools=tools) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = ai.chat.completions.create(model="m", messages=HI, tools=tools).choices[0].message
    assert message.content == "Looking."
    made = [
        (one.id, one.function.name, one.function.arguments)
        for one in message.tool_calls or ()
        if one.type == "function"
    ]
    assert made == [("c1", "look", '{"x": "1"}'), ("c3", "look", '{"x": "3"}')]
    history: Any = [*HI, message.model_dump(exclude_none=True, exclude={"parsed"})]
    for call in history[-1]["tool_calls"]:
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    history += [{"role": "tool", "tool_call_id": one, "content": f"seen {one}"} for one in ("c1", "c3")]
    after = ai.chat.completions.create(model="m", messages=history, tools=tools)
    assert after.choices[0].message.content == "Done."
    assert "No wiping here." in json.dumps(gateway.double.sent[1])


def test_chat_structured_output(gateway: Served, ai: openai.OpenAI) -> None:
    """`parse` sends its schema through and reads the model that comes back."""

    class Answer(BaseModel):
        number: int

    gateway.double.says(said("chat_completions", '{"number": 7}'))
    completion = ai.chat.completions.parse(model="m", messages=HI, response_format=Answer)
    assert completion.choices[0].message.parsed == Answer(number=7)
    assert gateway.double.sent[0]["response_format"]["json_schema"]["schema"]["required"] == ["number"]


# Responses


def test_responses(gateway: Served, ai: openai.OpenAI) -> None:
    """Words and usage arrive."""
    gateway.double.says(said("responses", "Hello."))
    response = ai.responses.create(model="m", input="hi")
    assert response.output_text == "Hello."
    assert response.usage is not None and response.usage.total_tokens == 15


@pytest.mark.parametrize("stream", [False, True])
def test_responses_tools_in_parallel(gateway: Served, ai: openai.OpenAI, stream: bool) -> None:
    """The allowed calls arrive in whole items, in order; streamed, what came in pieces is what the end repeats."""
    calls = ("c1", "look", {"x": "1"}), ("c2", "wipe", {"x": "everything"}), ("c3", "look", {"x": "3"})
    gateway.double.says(said("responses", "Looking.", *calls), said("responses", "Done."))
    tools = [flat("look"), flat("wipe")]
    if stream:
        with ai.responses.stream(model="m", input=HI, tools=tools) as events:
            response = None
            numbers = list[int]()
            for event in events:
                numbers.append(event.sequence_number)
                if event.type == "response.output_item.added":
                    assert event.output_index < 3
            assert numbers == list(range(len(numbers)))
            response = events.get_final_response()
    else:
        response = ai.responses.create(model="m", input=HI, tools=tools)
    assert response.output_text == "Looking."
    made = [(one.call_id, one.name, one.arguments) for one in response.output if one.type == "function_call"]
    assert made == [("c1", "look", '{"x": "1"}'), ("c3", "look", '{"x": "3"}')]
    history: Any = [*HI]
    for item in response.output:
        kept = item.model_dump(exclude_none=True)
        kept.pop("parsed_arguments", None)
        for part in kept.get("content", ()):
            part.pop("parsed", None)
        history.append(kept)
    history += [{"type": "function_call_output", "call_id": one, "output": "seen"} for one in ("c1", "c3")]
    after = ai.responses.create(model="m", input=history, tools=tools)
    assert after.output_text == "Done."
    assert "No wiping here." in json.dumps(gateway.double.sent[1])


def test_responses_structured_output(gateway: Served, ai: openai.OpenAI) -> None:
    """`parse` works on this wire too."""

    class Answer(BaseModel):
        number: int

    gateway.double.says(said("responses", '{"number": 7}'))
    assert ai.responses.parse(model="m", input=HI, text_format=Answer).output_parsed == Answer(number=7)


# Messages


def test_messages(gateway: Served, claude: anthropic.Anthropic) -> None:
    """Words and usage arrive; the client's key does not go on."""
    gateway.double.says(said("anthropic", "Hello."))
    message = claude.messages.create(model="m", max_tokens=100, messages=HI)
    assert message.content[0].type == "text" and message.content[0].text == "Hello."
    assert (message.usage.input_tokens, message.usage.output_tokens) == (10, 5)
    assert not any(KEY in value for value in gateway.double.headers[0].values())


def thoughtful() -> dict[str, Any]:
    reply = said(
        "anthropic", "Looking.", ("c1", "look", {"x": "1"}), ("c2", "wipe", {"x": "all"}), ("c3", "look", {"x": "3"})
    )
    thought = {"type": "thinking", "thinking": "Let me think.", "signature": "c2lnbmVk"}
    reply["content"] = [thought, {"type": "redacted_thinking", "data": "b3BhcXVl"}, *reply["content"]]
    return reply


@pytest.mark.parametrize("stream", [False, True])
def test_messages_with_thinking_and_parallel_tools(gateway: Served, claude: anthropic.Anthropic, stream: bool) -> None:
    """G2: thinking passes with its signature, allowed calls in order; both go back to the provider untouched with the next request."""
    gateway.double.says(thoughtful(), said("anthropic", "Done."))
    given: dict[str, Any] = {
        "model": "m",
        "max_tokens": 4000,
        "tools": [tool("look"), tool("wipe")],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
    }
    if stream:
        with claude.messages.stream(messages=HI, **given) as events:
            assert [event.index for event in events if event.type == "content_block_start"] == [0, 1, 2, 3, 4]
            message = events.get_final_message()
    else:
        message = claude.messages.create(messages=HI, **given)
    thought = message.content[0]
    assert thought.type == "thinking" and (thought.thinking, thought.signature) == ("Let me think.", "c2lnbmVk")
    assert [(one.id, one.input) for one in message.content if one.type == "tool_use"] == [
        ("c1", {"x": "1"}),
        ("c3", {"x": "3"}),
    ]
    assert message.stop_reason == "tool_use" and message.usage.output_tokens == 5
    results = [{"type": "tool_result", "tool_use_id": one, "content": "seen"} for one in ("c1", "c3")]
    told = [block.model_dump(exclude_none=True, exclude={"caller", "parsed_output"}) for block in message.content]
    history: Any = [*HI, {"role": "assistant", "content": told}, {"role": "user", "content": results}]
    after = claude.messages.create(messages=history, **given)
    assert after.content[0].type == "text" and after.content[0].text == "Done."
    sent = gateway.double.sent[1]["messages"][1]["content"]
    assert sent[0] == {"type": "thinking", "thinking": "Let me think.", "signature": "c2lnbmVk"}
    assert "No wiping here." in json.dumps(gateway.double.sent[1])


# Errors


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return request.param


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return request.param


def client_of(wire: Wire) -> Any:
    return anthropic if wire == "messages" else openai


def name_of(wire: Wire) -> Any:
    return {"chat": "chat_completions", "responses": "responses", "messages": "anthropic"}[wire]


def error_of(raised: Any) -> dict[str, Any]:
    """What the client kept of the error's body."""
    body = raised.body
    return body.get("error", body)


def test_a_request_that_policy_refuses_raises(gateway: Served, ask: Ask, wire: Wire, stream: bool) -> None:
    """G34: 403 is PermissionDeniedError, with rule and receipt in its body; the provider was not asked."""
    gateway.double.says()
    with pytest.raises(client_of(wire).PermissionDeniedError) as raised:
        ask(wire, stream, messages=SECRET)
    error = error_of(raised.value)
    assert error["rule_id"] == "no-secrets"
    assert error["receipt_id"] == raised.value.response.headers["x-wardwright-receipt-id"]
    assert gateway.double.sent == []


def test_a_reply_that_policy_refuses_raises(gateway: Served, ask: Ask, wire: Wire, stream: bool) -> None:
    """Before anything was given out it is the same error, streamed or not."""
    gateway.double.says(said(name_of(wire), "", ("c1", "bomb", {"x": "boom"})))
    with pytest.raises(client_of(wire).PermissionDeniedError) as raised:
        ask(wire, stream)
    assert error_of(raised.value)["rule_id"] == "no-bomb"
    assert "boom" not in str(raised.value)


def test_a_stream_that_is_refused_after_words_raises(gateway: Served, ask: Ask, wire: Wire) -> None:
    """G34: the clients raise while they read, after the words that passed; none of them takes it for a whole answer."""
    gateway.double.says(said(name_of(wire), "Let me see.", ("c1", "bomb", {"x": "boom"})))
    with pytest.raises(client_of(wire).APIError) as raised:
        ask(wire, True)
    assert error_of(raised.value)["rule_id"] == "no-bomb"
    assert "boom" not in str(raised.value)


@pytest.mark.parametrize("way", ["chat", "responses", "messages"])
def test_the_streaming_helpers_raise_too(
    gateway: Served, ai: openai.OpenAI, claude: anthropic.Anthropic, way: Wire
) -> None:
    """`.stream(...)` of the clients, which put the answer together themselves, ends in the same error."""
    gateway.double.says(said(name_of(way), "Let me see.", ("c1", "bomb", {"x": "boom"})))
    with pytest.raises(client_of(way).APIError, match="Never"):
        if way == "chat":
            with ai.chat.completions.stream(model="m", messages=HI) as chat:
                chat.until_done()
        elif way == "responses":
            with ai.responses.stream(model="m", input=HI) as response:
                response.until_done()
        else:
            with claude.messages.stream(model="m", max_tokens=100, messages=HI) as message:
                message.until_done()


def test_a_reply_that_needs_an_approval_raises_with_its_handle(
    gateway: Served, ask: Ask, wire: Wire, stream: bool
) -> None:
    """G23: what a person can do is in the error."""
    gateway.double.says(said(name_of(wire), "", ("c1", "deploy", {"x": "prod"})))
    with pytest.raises(client_of(wire).PermissionDeniedError) as raised:
        ask(wire, stream)
    error = error_of(raised.value)
    assert error["code"] == "approval_required" and error["approval"].startswith("apr_")


def test_a_bad_request_raises(gateway: Served, ask: Ask, wire: Wire, stream: bool) -> None:
    """400: a field nobody knows here."""
    gateway.double.says()
    with pytest.raises(client_of(wire).BadRequestError, match="not known here"):
        ask(wire, stream, extra_body={"run_this": "too"})
    assert gateway.double.sent == []


def test_an_unknown_key_raises(gateway: Served, ask: Ask, wire: Wire, stream: bool) -> None:
    """401."""
    with pytest.raises(client_of(wire).AuthenticationError, match="not known here"):
        ask(wire, stream, key="somebody-else")


def test_an_unknown_model_raises(gateway: Served, ask: Ask, wire: Wire, stream: bool) -> None:
    """404, naming those that are there."""
    with pytest.raises(client_of(wire).NotFoundError, match="Known: m, nobody, tiny"):
        ask(wire, stream, model="gpt-9")


def test_too_many_requests_at_once_raise(gateway: Served, ask: Ask, wire: Wire, stream: bool) -> None:
    """G64: 429 for a key that has as many under way as it may; the one under way comes to its end."""
    gate = threading.Event()
    gateway.double.says(Said(said("anthropic", "Slowly."), gate=gate))
    with (
        anthropic.Anthropic(base_url=gateway.url, api_key=SLOW_KEY, max_retries=0) as slow,
        slow.messages.stream(model="m", max_tokens=100, messages=HI) as under_way,
    ):
        next(iter(under_way))
        try:
            with pytest.raises(client_of(wire).RateLimitError):
                ask(wire, stream, key=SLOW_KEY)
        finally:
            gate.set()
        assert under_way.get_final_text() == "Slowly."


def test_a_provider_that_is_not_there_raises(gateway: Served, ask: Ask, wire: Wire, stream: bool) -> None:
    """502."""
    with pytest.raises(client_of(wire).InternalServerError) as raised:
        ask(wire, stream, model="nobody")
    assert raised.value.status_code == 502


def test_no_target_that_fits_raises(gateway: Served, ask: Ask, wire: Wire, stream: bool) -> None:
    """G42: 503, saying why none does."""
    with pytest.raises(client_of(wire).InternalServerError, match="window") as raised:
        ask(wire, stream, model="tiny")
    assert raised.value.status_code == 503


@pytest.mark.parametrize(("status", "told"), [(400, 400), (422, 422), (401, 502), (429, 502), (500, 502), (529, 502)])
def test_an_error_of_the_provider_raises(
    gateway: Served, ask: Ask, wire: Wire, stream: bool, status: int, told: int
) -> None:
    """The caller's mistake is the caller's to mend; a provider's own trouble is a bad gateway. No key of ours is repeated."""
    words = {"error": {"message": f"Bad key {PROVIDER_KEY}.", "type": "x"}}
    gateway.double.says(Said(words, status))
    with pytest.raises(client_of(wire).APIStatusError, match=r"Bad key \[secret\]") as raised:
        ask(wire, stream)
    assert raised.value.status_code == told
    assert PROVIDER_KEY not in str(raised.value)


def test_an_error_inside_the_providers_stream_raises(gateway: Served, ask: Ask, wire: Wire) -> None:
    """An overload in the middle of the words ends them with an error of the same wire."""
    overloaded = {"type": "server_error", "code": "server_error", "message": "Overloaded"}
    error = {
        "chat": b"data: " + json.dumps({"error": overloaded}).encode(),
        "messages": b"event: error\ndata: " + json.dumps({"type": "error", "error": overloaded}).encode(),
        "responses": b"event: error\ndata: " + json.dumps({**overloaded, "type": "error"}).encode(),
    }[wire]
    pieces = list(streamed(PATHS[wire], said(name_of(wire), "Well then"), {}))
    gateway.double.says(Said(pieces=[*pieces[: len(pieces) - 3], error + b"\n\n"]))
    with pytest.raises(client_of(wire).APIError, match="Overloaded"):
        ask(wire, True)


def test_a_connection_that_the_provider_cuts_raises(gateway: Served, ask: Ask, wire: Wire) -> None:
    """A stream that breaks off is an error, not a short answer."""
    pieces = list(streamed(PATHS[wire], said(name_of(wire), "Some words."), {}))
    gateway.double.says(Said(pieces=pieces[: len(pieces) - 2], cut=True))
    with pytest.raises(client_of(wire).APIError):
        ask(wire, True)


def test_the_models_are_listed(ai: openai.OpenAI) -> None:
    """By their public names."""
    assert [one.id for one in ai.models.list()] == ["m", "nobody", "tiny"]
