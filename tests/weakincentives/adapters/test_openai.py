"""Claims about the adapter itself: which client is used where, what goes with a request, what errors mean to a run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from weakincentives.adapters import Answered, OpenAIAdapter, Retry, TextDelta
from weakincentives.clock import FakeClock
from weakincentives.errors import PromptEvaluationError, ThrottledError
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, tool
from weakincentives.runtime import Session, ToolCall, ToolInvoked, workers
from weakincentives.testing.adapter_kit import ScriptTurn, desk, writes

from .loopback.openai_server import STREAM, OpenAIServer, Raw, Stage, event

openai = pytest.importorskip("openai")

Make = Callable[..., tuple[OpenAIAdapter, Stage]]


def plain() -> Prompt[None]:
    return Prompt(PromptTemplate(sections=[MarkdownSection(title="Task", template="Say something.")]))


def error_page(status: int, headers: dict[str, str] | None = None, **error: Any) -> Raw:
    return Raw(json.dumps({"error": {"message": "Wrong.", **error}}).encode(), status, headers or {})


# --- the package and its clients --------------------------------------------------------------------------------------


def test_the_client_library_is_not_loaded_before_use() -> None:
    """Whoever uses another model does not pay for this one."""
    code = "import sys, weakincentives.adapters as a; a.OpenAIAdapter('m', api_key='k'); print('openai' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "False"


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says what to install."""
    monkeypatch.setitem(sys.modules, "openai", None)

    with pytest.raises(PromptEvaluationError) as caught:
        OpenAIAdapter("m", api_key="k").evaluate(plain(), Session())

    assert str(caught.value) == (
        "OpenAIAdapter needs the package openai. Install it: pip install 'weakincentives[openai]'."
    )


def test_a_missing_key_is_told() -> None:
    """OpenAI itself cannot be asked without one."""
    with pytest.raises(PromptEvaluationError) as caught:
        OpenAIAdapter("m").evaluate(plain(), Session())

    assert str(caught.value) == (
        "There is no key for OpenAI. Pass api_key or set OPENAI_API_KEY; for a server of your own pass base_url."
    )


def test_a_server_of_ones_own_needs_no_key(make: Make) -> None:
    """Ollama and its like are asked with a key that says that there is none."""
    adapter, stage = make(ScriptTurn("Hello."), api_key=None)

    assert adapter.evaluate(plain(), Session()).text == "Hello."
    assert stage.headers[0]["authorization"] == "Bearer none"


def test_a_client_of_ones_own_is_used_and_left_open(make: Make, server: OpenAIServer) -> None:
    """In blocking and in async runs; but nothing is tried again behind the loop's back."""
    stage = server.stage([ScriptTurn(status=429), ScriptTurn("Hello.")])
    with openai.OpenAI(base_url=stage.base_url, api_key="mine") as client:
        adapter, _ = make(client=client, retry=Retry(attempts=0))
        with pytest.raises(ThrottledError):
            adapter.evaluate(plain(), Session())
        assert asyncio.run(adapter.aevaluate(plain(), Session())).text == "Hello."
        adapter.close()
        assert not client.is_closed()

    assert [headers["authorization"] for headers in stage.headers] == ["Bearer mine"] * 2


def test_an_async_client_of_ones_own_is_used_and_left_open(make: Make, server: OpenAIServer) -> None:
    """The same on an event loop."""
    stage = server.stage([ScriptTurn(status=429), ScriptTurn("Hello.")])

    async def run() -> str:
        async with openai.AsyncOpenAI(base_url=stage.base_url, api_key="mine") as client:
            adapter, _ = make(client=client, retry=Retry(attempts=0))
            with pytest.raises(ThrottledError):
                await adapter.aevaluate(plain(), Session())
            said = await adapter.aevaluate(plain(), Session())
            await adapter.aclose()
            assert not client.is_closed()
            return said.text

    assert asyncio.run(run()) == "Hello."
    assert [headers["authorization"] for headers in stage.headers] == ["Bearer mine"] * 2


def test_an_async_client_serves_a_blocking_run(make: Make, server: OpenAIServer) -> None:
    """The run waits on a kept event loop."""
    stage = server.stage([ScriptTurn(calls=[writes("a")]), ScriptTurn("Done.")])
    client = openai.AsyncOpenAI(base_url=stage.base_url, api_key="mine")
    adapter, _ = make(client=client)
    at = desk()

    assert adapter.evaluate(at.prompt, at.session).text == "Done."
    assert at.files.read("a") == "hello"
    workers.wait_for(client.close())


def test_one_adapter_serves_one_event_loop_after_the_other(make: Make) -> None:
    """Each loop has connections of its own; those of a closed loop are forgotten."""
    adapter, stage = make(*[ScriptTurn("Hello.")] * 4)

    async def run() -> str:
        async with adapter:
            first = await adapter.aevaluate(plain(), Session())
            second = await adapter.aevaluate(plain(), Session())
        return first.text + second.text

    assert [asyncio.run(run()) for _ in range(2)] == ["Hello.Hello."] * 2
    assert len(stage.requests) == 4


def test_one_adapter_serves_many_runs_at_once(make: Make) -> None:
    """On threads and on an event loop; no run sees another's conversation."""
    adapter, stage = make(*[ScriptTurn("Hello.")] * 16)

    def block() -> str:
        return adapter.evaluate(plain(), Session()).text

    async def run() -> list[str]:
        async with adapter:
            blocking = [asyncio.to_thread(block) for _ in range(8)]
            waiting = [adapter.aevaluate(plain(), Session()) for _ in range(8)]
            texts, responses = await asyncio.gather(asyncio.gather(*blocking), asyncio.gather(*waiting))
            return [*texts, *(response.text for response in responses)]

    assert asyncio.run(run()) == ["Hello."] * 16
    assert [len(body["messages"]) for body in stage.requests] == [1] * 16


def test_a_closed_adapter_opens_again(make: Make) -> None:
    """Closing ends connections, not the adapter."""
    adapter, _ = make(ScriptTurn("One."), ScriptTurn("Two."))
    with adapter:
        assert adapter.evaluate(plain(), Session()).text == "One."

    assert adapter.evaluate(plain(), Session()).text == "Two."


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"api": "completions"}, "api must be one of: chat, responses, got 'completions'."),
        ({"structured_output": "xml"}, "structured_output must be one of: schema, json, text, got 'xml'."),
        ({"prompt_role": "tool"}, "prompt_role must be one of: system, developer, user, got 'tool'."),
        ({"messages": []}, "OpenAIAdapter sets messages by itself. Leave it out."),
        ({"tools": [], "n": 2}, "OpenAIAdapter sets n, tools by itself. Leave them out."),
        ({"extra_body": {"tools": []}}, "OpenAIAdapter sets tools by itself. Leave it out."),
        (
            {"api": "responses", "previous_response_id": "x"},
            "OpenAIAdapter sets previous_response_id by itself. Leave it out.",
        ),
        (
            {"client": object(), "base_url": "http://x"},
            "OpenAIAdapter takes either a client, or base_url and api_key to make one from.",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_once(settings: dict[str, Any], text: str) -> None:
    """Before any model is asked."""
    with pytest.raises(ValueError) as caught:
        OpenAIAdapter("m", **settings)

    assert str(caught.value) == text


def test_something_that_is_no_client_is_refused() -> None:
    """A key or an address given as client is told apart at once."""
    with pytest.raises(TypeError, match=r"^client must be an OpenAI or AsyncOpenAI client, got str\.$"):
        OpenAIAdapter("m", client="sk-1")


def test_it_says_which_model_it_is() -> None:
    """For logs and debuggers."""
    assert repr(OpenAIAdapter("gpt-5", api="responses")) == "<OpenAIAdapter: gpt-5, responses>"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_further_options_go_with_every_request(make: Make, api: str) -> None:
    """As they are; what only makes sense with tools stays away without them."""
    at = desk()
    options = {"temperature": 0.5, "tool_choice": "auto", "parallel_tool_calls": False}
    more = {"extra_headers": {"X-Run": "7"}, "extra_body": {"top_k": 3}}
    script = [ScriptTurn(calls=[writes("a")]), ScriptTurn("Done."), ScriptTurn("Hm.")]
    adapter, stage = make(*script, api=api, **options, **more)

    adapter.evaluate(at.prompt, at.session)
    adapter.evaluate(plain(), Session())

    assert [(body["temperature"], body["top_k"]) for body in stage.requests] == [(0.5, 3)] * 3
    assert [body.get("tool_choice") for body in stage.requests] == ["auto", "auto", None]
    assert [body.get("parallel_tool_calls") for body in stage.requests] == [False, False, None]
    assert [headers["x-run"] for headers in stage.headers] == ["7"] * 3


class RecordingClient:
    """Takes down what it is asked with, and answers with one word."""

    timeout = None

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.chat = self.completions = self.responses = self

    def with_options(self, **options: Any) -> RecordingClient:
        return self

    def create(self, **arguments: Any) -> RecordingClient:
        self.asked.append(arguments)
        return self

    def to_dict(self, **how: Any) -> dict[str, Any]:
        words = {"type": "output_text", "text": "Hello."}
        return {
            "choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}],
            "output": [{"type": "message", "content": [words]}],
        }


@pytest.mark.parametrize(("api", "long"), [("chat", "messages"), ("responses", "input")])
def test_what_grows_is_not_held_against_the_clients_types(api: Any, long: str) -> None:
    """The client walks its arguments at every turn; the body it is given beside them it sends as it is."""
    client = RecordingClient()

    assert OpenAIAdapter("m", client=client, api=api).evaluate(desk().prompt, Session()).text == "Hello."

    (asked,) = client.asked
    assert not asked.get(long)
    assert "tools" not in asked
    assert len(asked["extra_body"][long]) == 1
    assert len(asked["extra_body"]["tools"]) == 3


@pytest.mark.parametrize(("timeout", "asked"), [(None, 61.0), (5, 5.0), (100, 61.0)])
def test_a_request_waits_little_longer_than_the_run(make: Make, timeout: float | None, asked: float) -> None:
    """The run ends at its deadline; the request it left behind ends soon after. A shorter limit of one's own counts."""
    adapter, stage = make(ScriptTurn("Hello."), **({} if timeout is None else {"timeout": timeout}))

    adapter.evaluate(plain(), Session(), deadline=Deadline.after(60, FakeClock()))

    assert float(stage.headers[0]["x-stainless-read-timeout"]) == asked


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_wait_in_milliseconds_is_kept(make: Make) -> None:
    """The finer of the two headers counts."""
    clock = FakeClock()
    headers = {"retry-after-ms": "2500", "Retry-After": "90"}
    adapter, _ = make(error_page(429, headers), ScriptTurn("Hello."), clock=clock, retry=Retry(first=0.1))

    adapter.evaluate(plain(), Session())

    assert clock.monotonic() == 2.5


def test_a_wait_that_is_no_number_is_left_to_the_loop(make: Make) -> None:
    """Its own waits hold then."""
    clock = FakeClock()
    page = error_page(503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})
    adapter, _ = make(page, ScriptTurn("Hello."), clock=clock, retry=Retry(first=4))

    adapter.evaluate(plain(), Session())

    assert 2 <= clock.monotonic() <= 4


@pytest.mark.parametrize(
    "page",
    [error_page(429, code="insufficient_quota"), error_page(503, {"x-should-retry": "false"})],
    ids=["quota", "should-retry"],
)
def test_a_busy_answer_that_will_not_pass_is_final(make: Make, page: Raw) -> None:
    """An empty account, and a provider that says so, are not asked again."""
    adapter, stage = make(page, clock=FakeClock())

    with pytest.raises(PromptEvaluationError, match="refused the request"):
        adapter.evaluate(plain(), Session())

    assert len(stage.requests) == 1


def test_a_server_that_is_not_there_is_named(make: Make) -> None:
    """It is asked again like a busy one, and then whoever runs the prompt reads which address it was."""
    adapter = OpenAIAdapter("m", base_url="http://127.0.0.1:9/v1", retry=Retry(attempts=1), clock=FakeClock())

    with adapter, pytest.raises(ThrottledError) as caught:
        adapter.evaluate(plain(), Session())

    text = str(caught.value)
    assert text.startswith("The model's provider cannot be reached at http://127.0.0.1:9/v1: ")
    assert text.endswith(". Check base_url and the network, or retry later.")


@pytest.mark.parametrize(
    "page",
    [
        Raw(b"<html>Welcome</html>", content_type="text/html"),
        Raw(b'{"hello": "world"}'),
        Raw(b'["hello"]'),
        Raw(b'{"hello": '),
        Raw(b'{"hello": "\xff"}'),
        Raw(b'{"hello": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
    ids=["html", "json", "list", "broken", "not utf-8", "deep"],
)
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("mode", ["evaluate", "stream", "astream"])
def test_something_else_than_a_reply_is_told(make: Make, page: Raw, api: str, mode: str) -> None:
    """Mostly the address is wrong; a page in place of a stream reads like one that broke off."""
    adapter, stage = make(page, api=api, retry=Retry(attempts=0))
    said = (
        "broke off"
        if mode != "evaluate" and page.content_type == "text/html"
        else r"no model's reply: .*\. Check base_url"
    )

    with pytest.raises(PromptEvaluationError, match=said):
        if mode == "evaluate":
            adapter.evaluate(plain(), Session())
        else:
            run(adapter, mode)

    assert len(stage.requests) == 1


def test_a_body_with_an_error_is_a_fault(make: Make) -> None:
    """Some servers answer 200 with the error in the body."""
    adapter, _ = make(Raw(b'{"error": {"message": "No such model", "code": 404}}'))

    with pytest.raises(PromptEvaluationError) as caught:
        adapter.evaluate(plain(), Session())

    assert str(caught.value) == (
        "The model's provider refused the request (404): No such model. Check model, base_url and api."
    )


@pytest.mark.parametrize("status", [200, 401, 503])
def test_no_error_holds_the_key(make: Make, status: int) -> None:
    """S59: some servers repeat the key they were given; whoever logs our error does not log the key."""
    page = Raw(b'{"error": {"message": "Bad key sk-very-secret-1."}}', status)
    adapter, _ = make(page, api_key="sk-very-secret-1", retry=Retry(attempts=0))

    with pytest.raises(PromptEvaluationError, match=r"Bad key \[the API key\]\.") as caught:
        adapter.evaluate(plain(), Session())

    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_an_address_is_told_without_its_password() -> None:
    """S59: a password in base_url stays there."""
    adapter = OpenAIAdapter("m", base_url="http://me:hush@127.0.0.1:9/v1", retry=Retry(attempts=0))

    with adapter, pytest.raises(ThrottledError, match=r"cannot be reached at http://127\.0\.0\.1:9/v1: ") as caught:
        adapter.evaluate(plain(), Session())

    assert "hush" not in str(caught.value)


# --- streams ----------------------------------------------------------------------------------------------------------


def piece(**delta: Any) -> bytes:
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]})


def run(adapter: OpenAIAdapter, mode: str) -> list[Any]:
    async def listen() -> list[Any]:
        async with adapter:
            return [each async for each in adapter.astream(plain(), Session())]

    return asyncio.run(listen()) if mode == "astream" else list(adapter.stream(plain(), Session()))


@pytest.mark.parametrize("mode", ["stream", "astream"])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_stream_that_breaks_off_in_silence_is_asked_for_again(make: Make, mode: str, breaks: bool) -> None:
    """Nobody has heard a word of it yet."""
    broken = Raw(piece(role="assistant", content=""), content_type=STREAM, breaks=breaks)
    adapter, stage = make(broken, ScriptTurn("Hello there."), clock=FakeClock())

    *words, last = run(adapter, mode)

    assert "".join(word.text for word in words) == "Hello there."
    assert isinstance(last, Answered)
    assert len(stage.requests) == 2


@pytest.mark.parametrize("mode", ["stream", "astream"])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_stream_that_breaks_off_after_words_ends_the_run(make: Make, mode: str, breaks: bool) -> None:
    """They cannot be taken back, so they are not said twice."""
    broken = Raw(piece(content="Hel"), content_type=STREAM, breaks=breaks)
    adapter, stage = make(broken, ScriptTurn("Hello."), clock=FakeClock())

    with pytest.raises(ThrottledError, match=r"broke off|cannot be reached"):
        run(adapter, mode)

    assert len(stage.requests) == 1


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_an_error_inside_a_stream_is_a_fault(make: Make, mode: str, api: str) -> None:
    """A provider that cannot go on says so where it stands."""
    said = {"type": "error", "error": {"message": "Overloaded", "type": "server_error", "code": "server_error"}}
    body = event(said, "error") if api == "responses" else event(said)
    adapter, stage = make(Raw(body, content_type=STREAM), ScriptTurn("Hello."), api=api, clock=FakeClock())

    *_, last = run(adapter, mode)

    assert last.response.text == "Hello."
    assert len(stage.requests) == 2


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_may_come_in_one_piece(make: Make, mode: str) -> None:
    """A server that does not stream answers as if nobody had asked for it."""
    message = {"role": "assistant", "content": "Hello there."}
    whole = Raw(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    adapter, _ = make(whole)

    words, last = run(adapter, mode)

    assert words == TextDelta("Hello there.")
    assert last.response.text == "Hello there."


@pytest.mark.parametrize("pieces", [b"data: {'a': 1}\n\n", b'data: {"a": "\xff"}\n\n'])
def test_a_stream_of_broken_pieces_is_told(make: Make, pieces: bytes) -> None:
    """What is no JSON is no piece of a reply."""
    adapter, _ = make(Raw(pieces, content_type=STREAM))

    with pytest.raises(PromptEvaluationError, match="no model's reply"):
        run(adapter, "stream")


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_halves_of_characters_do_not_end_a_run(make: Make, api: str) -> None:
    """JSON can write them, UTF-8 cannot: in words and in results they are replaced before they are sent."""

    @tool
    def halve() -> str:
        """Say something odd."""
        return "Half: \ud83d."

    at = desk(tools=[halve])
    adapter, stage = make(ScriptTurn("Well\ud800.", [ToolCall("halve", {})]), ScriptTurn("Done."), api=api)

    assert adapter.evaluate(at.prompt, at.session).text == "Done."

    sent = json.dumps(stage.requests[1])
    assert "Well?." in sent
    assert "Half: ?." in sent


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("mode", ["evaluate", "stream"])
def test_a_server_may_use_its_ids_again(make: Make, api: str, mode: str) -> None:
    """In one reply or the next: each call is known by an id of its own, here and in what is sent back."""
    at = desk()
    again = [replace(writes(path), call_id="call_0") for path in ("a", "b", "c")]
    adapter, stage = make(ScriptTurn(calls=again[:2]), ScriptTurn(calls=again[2:]), ScriptTurn("Done."), api=api)

    if mode == "evaluate":
        adapter.evaluate(at.prompt, at.session)
    else:
        list(adapter.stream(at.prompt, at.session))

    ids = [event.call_id for event in at.session[ToolInvoked]]
    assert ids[0] == "call_0"
    assert len(set(ids)) == 3
    sent = json.dumps(stage.requests[-1])
    assert all(sent.count(f'"{each}"') == 2 for each in ids)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_leaving_a_stream_stops_the_run(make: Make, api: str) -> None:
    """No further word is read, and the call that would have followed does not run."""
    at = desk()
    adapter, stage = make(ScriptTurn("Let me write that.", [writes("a")]), api=api)

    events = adapter.stream(at.prompt, at.session)
    assert next(events) == TextDelta("Let ")
    events.close()

    assert len(at.session[ToolInvoked]) == 0
    assert len(stage.requests) == 1


def test_leaving_an_async_stream_stops_the_run(make: Make) -> None:
    """The same on an event loop."""
    adapter, stage = make(ScriptTurn("One two three."), ScriptTurn("Four."))

    async def listen() -> object:
        async with adapter:
            events = adapter.astream(plain(), Session())
            first = await anext(events)
            await events.aclose()
            return first

    assert asyncio.run(listen()) == TextDelta("One ")
    assert len(stage.requests) == 1
