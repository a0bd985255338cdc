"""The scripted provider: what it says, in every wire, whole and streamed, and always the same."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wardwright.config import Problems, parse_yaml
from wardwright.errors import ProviderFailed
from wardwright.providers.scripted import Scripted
from wardwright.providers.settings import WIRES, compile_providers
from wardwright.wire import CallItem, TextItem, Turn, anthropic, chat_completions, responses
from wardwright.wire.turn import WireName

MODULES: dict[str, ModuleType] = {
    "chat_completions": chat_completions,
    "responses": responses,
    "anthropic": anthropic,
}


def scripted(script: str = "[]") -> Scripted:
    problems = Problems("test.yaml")
    found = compile_providers(parse_yaml(f"s: {{kind: scripted, script: {script}}}\n", problems), problems)
    assert not problems.found
    return Scripted(found["s"])


def request(wire: WireName, text: str, tools: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """A user's text in a wire's own form."""
    body: dict[str, Any] = {"model": "m", **more}
    if wire == "chat_completions":
        body["messages"] = [{"role": "user", "content": text}]
        declared: Any = [{"type": "function", "function": {"name": name}} for name in tools]
    elif wire == "responses":
        body["input"] = text
        declared = [{"type": "function", "name": name, "parameters": {}} for name in tools]
    else:
        body |= {"messages": [{"role": "user", "content": text}], "max_tokens": 100}
        declared = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
    if tools:
        body["tools"] = declared
    return body


def answered(provider: Scripted, wire: WireName, body: dict[str, Any], *, stream: bool) -> Turn:
    """The reply as the gateway reads it."""

    async def run() -> Turn:
        response = await provider.send(wire, orjson.dumps(body), stream=stream, model="m")
        assert (response.status, response.streamed) == (200, stream)
        if not stream:
            return MODULES[wire].parse_reply(await response.read(1_000_000))
        assembler = MODULES[wire].StreamAssembler()
        async for piece in response.chunks():
            assembler.feed(piece)
        assembler.close()
        assert assembler.complete
        assert assembler.errors == []
        return assembler.turn()

    return asyncio.run(run())


def said(body: dict[str, Any], script: str = "[]", wire: WireName = "chat_completions") -> str:
    [item] = answered(scripted(script), wire, body, stream=False).items
    assert isinstance(item, TextItem)
    return item.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("script", "items"),
    [
        ("[{reply: {text: 'Hi  there,\\nyou  '}}]", [TextItem("assistant", "Hi  there,\\nyou  ")]),
        ("[{reply: {text: ''}}]", []),
        (
            "[{reply: {tool_calls: [{name: a, arguments: {x: [1]}, id: one}, {name: b, id: two}]}}]",
            [CallItem("one", "a", '{"x":[1]}'), CallItem("two", "b", "{}")],
        ),
        (
            "[{reply: {text: now, tool_calls: [{name: a, id: one}]}}]",
            [TextItem("assistant", "now"), CallItem("one", "a", "{}")],
        ),
    ],
)
def test_a_script_is_said_in_every_wire(wire: WireName, stream: bool, script: str, items: list[Any]) -> None:
    """Text and calls reach the gateway as the script has them, whole or as a stream."""
    turn = answered(scripted(script), wire, request(wire, "hello", ("a", "b")), stream=stream)
    assert list(turn.items) == items
    assert turn.model == "m"


@settings(max_examples=60)
@given(st.text(max_size=60), st.sampled_from(WIRES), st.booleans())
def test_any_text_is_the_same_whole_and_streamed(text: str, wire: WireName, tool: bool) -> None:
    """Whatever a user says, the stream tells the same as the whole reply."""
    body = request(wire, text.encode("utf-8", "replace").decode(), ("a",) if tool else ())
    whole = answered(scripted(), wire, body, stream=False)
    streamed = answered(scripted(), wire, body, stream=True)
    assert list(whole.items) == list(streamed.items)


@pytest.mark.parametrize("wire", WIRES)
def test_equal_requests_get_equal_bytes(wire: WireName) -> None:
    """Nothing in an answer depends on time or chance; another request gets other ids."""

    async def run() -> None:
        provider = scripted()
        bodies = [orjson.dumps(request(wire, text, ("a",))) for text in ("call a {}", "call a {}", "now call a {}")]
        for stream in (False, True):
            first, second, other = [
                await (await provider.send(wire, body, stream=stream, model="m")).read(100_000) for body in bodies
            ]
            assert first == second != other

    asyncio.run(run())


@pytest.mark.parametrize("wire", WIRES)
def test_usage_is_told(wire: WireName) -> None:
    """Budgets can be tried out: what is said costs tokens, streamed too."""
    more = {"stream_options": {"include_usage": True}} if wire == "chat_completions" else {}
    whole = answered(scripted(), wire, request(wire, "hello", **more), stream=False).usage
    streamed = answered(scripted(), wire, request(wire, "hello", **more), stream=True).usage
    assert whole is not None
    assert whole == streamed
    assert whole.input_tokens > 5
    assert whole.output_tokens > 5


def test_as_many_choices_are_given_as_were_asked_for() -> None:
    """`n` answers, all the same."""
    body = request("chat_completions", "hello", n=3)
    whole = answered(scripted("[{reply: {text: hi}}]"), "chat_completions", body, stream=False)
    streamed = answered(scripted("[{reply: {text: hi}}]"), "chat_completions", body, stream=True)
    assert [item.text for item in whole.items if isinstance(item, TextItem)] == ["hi"] * 3
    assert list(whole.items) == list(streamed.items)


@pytest.mark.parametrize("stream", [False, True])
def test_functions_are_called_in_the_old_form(stream: bool) -> None:
    """A request with `functions` gets a `function_call`."""
    body = request("chat_completions", 'call a {"x": 1}', functions=[{"name": "a"}])
    turn = answered(scripted(), "chat_completions", body, stream=stream)
    assert list(turn.items) == [CallItem("", "a", '{"x":1}')]


SCRIPT = """[
  {when: {contains: Weather, turn: 1}, reply: {text: first}},
  {when: {contains: weather}, reply: {text: again}},
  {when: {tool_result: "42"}, reply: {text: the answer}},
  {when: {tool_result: true}, reply: {text: some result}},
  {when: {turn: 2}, reply: {text: second turn}},
]"""
CALLS: list[Any] = [{"id": "c", "type": "function", "function": {"name": "a", "arguments": "{}"}}]
CALL: dict[str, Any] = {"role": "assistant", "tool_calls": CALLS}


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([("user", "the WEATHER please")], "first"),
        ([("user", "hello"), ("assistant", "hi"), ("user", "weather")], "again"),
        ([("user", "weather"), ("assistant", "first"), ("user", "hello")], "second turn"),
        ([("user", "weather"), "call", ("tool", "it is 42 now")], "the answer"),
        ([("user", "weather"), "call", ("tool", "it is 41")], "some result"),
        ([("user", "x"), "call", ("tool", "42"), ("assistant", "ok"), ("user", "thanks")], None),
        ([("user", "x"), ("assistant", "a"), ("user", "y"), ("assistant", "b"), ("user", "z")], None),
    ],
)
def test_the_first_line_that_fits_is_said(messages: list[Any], wanted: str | None) -> None:
    """Lines look at what came since the last reply, and at which reply it is; when none fits the default script speaks."""
    body = {
        "model": "m",
        "messages": [
            CALL
            if one == "call"
            else {"role": one[0], "content": one[1], **({"tool_call_id": "c"} if one[0] == "tool" else {})}
            for one in messages
        ],
    }
    text = said(body, SCRIPT)
    assert text == wanted if wanted is not None else text.startswith("You said: ")


def test_a_script_can_fail() -> None:
    """Fallback and retries can be tried out: an error of the script is the provider's."""

    async def run() -> None:
        provider = scripted("[{when: {contains: a}, reply: {status: 503, message: busy}}, {reply: {status: 400}}]")
        for text, status, message, retryable in (("a", 503, "busy", True), ("b", 400, "scripted error 400", False)):
            body = orjson.dumps(request("chat_completions", text))
            with pytest.raises(ProviderFailed) as failed:
                await provider.send("chat_completions", body, stream=True, model="m")
            assert (failed.value.kind, failed.value.status, str(failed.value)) == ("status", status, message)
            assert failed.value.retryable is retryable

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "tools", "wanted"),
    [
        ("hello", (), "You said: hello\n\nI am the scripted provider, no model is asked."),
        (
            "hello",
            ("shell", "b"),
            "You said: hello\n\nI am the scripted provider, no model is asked. To see me use a tool, say: call shell {}",
        ),
        ("", (), "You said nothing.\n\nI am the scripted provider, no model is asked."),
        ("x" * 600, (), f"You said: {'x' * 500}…\n\nI am the scripted provider, no model is asked."),
        (
            "call nope {}",
            ("shell", "b"),
            "I cannot call nope: it is not among the tools of this request. The tools I have: shell, b.",
        ),
        ("call nope {}", (), "I cannot call nope: it is not among the tools of this request. I have no tools."),
        (
            "please call me",
            (),
            "You said: please call me\n\nI am the scripted provider, no model is asked.",
        ),
    ],
)
def test_the_default_script_helps(text: str, tools: tuple[str, ...], wanted: str) -> None:
    """Whoever tries the gateway without a model is told what to do next."""
    assert said(request("chat_completions", text, tools)) == wanted


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('call shell {"cmd": "ls"}', [("shell", '{"cmd":"ls"}')]),
        (
            'Please Call shell {"cmd": {"a": "}"}} and then call mail.send.',
            [("shell", '{"cmd":{"a":"}"}}'), ("mail.send", "{}")],
        ),
        ("call shell", [("shell", "{}")]),
        ("call shell {broken\nnext line", [("shell", "{broken")]),
        ("call shell{}", [("shell", "{}")]),
        ('call shell {"x": 99999999999999999999999}', [("shell", '{"x": 99999999999999999999999}')]),
        ('call shell {"x": "\\ud800"}', [("shell", '{"x": "\\ud800"}')]),
    ],
)
def test_the_default_script_calls_what_it_is_told_to(text: str, calls: list[tuple[str, str]]) -> None:
    """`call <tool> {json}` becomes a call of a declared tool, several become parallel calls."""
    body = request("chat_completions", text, ("shell", "mail.send"))
    items = answered(scripted(), "chat_completions", body, stream=True).items
    assert [(one.name, one.arguments) for one in items if isinstance(one, CallItem)] == calls
    assert len({one.id for one in items if isinstance(one, CallItem)}) == len(items) == len(calls)


@pytest.mark.parametrize(
    ("choice", "calls"),
    [
        ("required", [("a", '{"x":1}')]),
        ({"type": "function", "function": {"name": "b"}}, [("b", '{"x":1}')]),
        ("none", []),
        ("auto", []),
    ],
)
def test_the_default_script_does_what_tool_choice_says(choice: Any, calls: list[tuple[str, str]]) -> None:
    """A forced tool is called, a forbidden one is not."""
    body = request("chat_completions", 'with {"x": 1}', ("a", "b"), tool_choice=choice)
    items = answered(scripted(), "chat_completions", body, stream=False).items
    assert [(one.name, one.arguments) for one in items if isinstance(one, CallItem)] == calls


def test_the_default_script_repeats_results() -> None:
    """After a call the results are told, by the names of the tools that gave them."""
    call = {"id": "d", "type": "function", "function": {"name": "b", "arguments": "{}"}}
    body: dict[str, Any] = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "call a {} call b {}"},
            {"role": "assistant", "tool_calls": [*CALLS, call]},
            {"role": "tool", "tool_call_id": "c", "content": "sunny"},
            {"role": "tool", "tool_call_id": "d", "content": "rain"},
        ],
    }
    assert said(body) == "a answered: sunny\nb answered: rain"


def test_a_request_that_cannot_be_read_is_refused_as_a_provider_would() -> None:
    """A broken body is the caller's fault and not tried elsewhere."""

    async def run() -> None:
        for body in (b"{", b"[]", b'{"model": "m", "messages": 3}'):
            with pytest.raises(ProviderFailed) as failed:
                await scripted().send("chat_completions", body, stream=False, model="m")
            assert (failed.value.status, failed.value.retryable) == (400, False)

    asyncio.run(run())


def test_it_speaks_every_wire_and_takes_every_id() -> None:
    """Nothing is translated and nothing renamed for it."""
    provider = scripted()
    assert [provider.wire_for(wire) for wire in WIRES] == list(WIRES)
    assert provider.ids(["a b", "x" * 500, ""]) == {}
    assert not provider.blocked("m")


def test_an_answer_is_read_once_and_within_its_limit() -> None:
    """A scripted answer keeps to the same promises as one from the network."""

    async def run() -> None:
        body = orjson.dumps(request("chat_completions", "hello"))
        response = await scripted().send("chat_completions", body, stream=False, model="m")
        with pytest.raises(ProviderFailed, match=r"at most 10 are read$"):
            await response.read(10)
        closed = await scripted().send("chat_completions", body, stream=True, model="m")
        closed.close()
        assert [piece async for piece in closed.chunks()] == []

    asyncio.run(run())
