"""What LiteLLM's options and errors mean to a run; the scenarios every adapter passes are in test_kit_litellm."""

from __future__ import annotations

from typing import Any

import litellm
import pytest

from weakincentives.adapters import Answered, LiteLLMAdapter, Retry
from weakincentives.clock import FakeClock
from weakincentives.errors import PromptEvaluationError, ThrottledError
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Session
from weakincentives.testing.adapter_kit import ScriptTurn

from ...weakincentives.adapters.loopback.openai_server import OpenAIServer, Raw

pytestmark = [
    pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class 'ChatCompletionReasoningItem'"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_.*' attribute on the instance"),
]


def asked(adapter: LiteLLMAdapter, **limits: Any) -> str:
    adapter.clock, adapter.retry = FakeClock(), Retry(attempts=0)
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="A", template="Say hello.")]))
    return adapter.evaluate(prompt, Session(), **limits).text


def test_options_go_with_every_request(server: OpenAIServer) -> None:
    """As they are; the prompt is a user's message unless told otherwise."""
    stage = server.stage([ScriptTurn("Hello.")] * 2)
    place: dict[str, Any] = {"base_url": stage.base_url, "api_key": "key"}

    asked(LiteLLMAdapter("openai/gpt-4o", temperature=0.5, seed=7, **place))
    asked(LiteLLMAdapter("openai/gpt-4o", prompt_role="system", **place))

    first, second = stage.requests
    assert (first["model"], first["temperature"], first["seed"]) == ("gpt-4o", 0.5, 7)
    assert [message["role"] for message in first["messages"]] == ["user"]
    assert [message["role"] for message in second["messages"]] == ["system"]


def test_a_router_is_asked_instead(server: OpenAIServer) -> None:
    """Keys, places and models are then its business."""
    stage = server.stage([ScriptTurn("Hello.")])
    place = {"model": "openai/gpt-4o", "api_base": stage.base_url, "api_key": "key"}
    router = litellm.Router(model_list=[{"model_name": "good", "litellm_params": place}], num_retries=0)

    assert asked(LiteLLMAdapter("good", router=router)) == "Hello."
    assert stage.requests[0]["model"] == "gpt-4o"


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (400, PromptEvaluationError, "The model's provider refused the request (400): No."),
        (401, PromptEvaluationError, "The model's provider refused the request (401): No. Check the API key."),
        (
            404,
            PromptEvaluationError,
            "The model's provider refused the request (404): No. Check model, base_url and api.",
        ),
        (429, ThrottledError, "The model's provider cannot answer now (429): No. Retry later."),
        (503, ThrottledError, "The model's provider cannot answer now (503): No. Retry later."),
    ],
)
def test_a_fault_is_told_in_the_providers_words(
    server: OpenAIServer, status: int, error: type[Exception], said: str
) -> None:
    """Without LiteLLM's names for it, and with what to do."""
    stage = server.stage([ScriptTurn("No.", status=status)])

    with pytest.raises(error) as caught:
        asked(LiteLLMAdapter("openai/gpt-4o", base_url=stage.base_url, api_key="key"))

    assert str(caught.value) == said


def test_a_conversation_that_became_too_long_says_so(server: OpenAIServer) -> None:
    """LiteLLM knows it by the words of many providers."""
    stage = server.stage([ScriptTurn("This model's maximum context length is 8 tokens.", status=400)])

    with pytest.raises(PromptEvaluationError, match="too long for the model; start a new run with less in it"):
        asked(LiteLLMAdapter("openai/gpt-4o", base_url=stage.base_url, api_key="key"))


def test_a_provider_that_is_not_there_may_be_later() -> None:
    """Nobody listens at this port."""
    with pytest.raises(ThrottledError) as caught:
        asked(LiteLLMAdapter("openai/gpt-4o", base_url="http://127.0.0.1:1/v1", api_key="key"))
    assert str(caught.value) == "The model's provider cannot answer now (500): Connection error. Retry later."


def test_a_provider_that_litellm_does_not_know_is_a_fault() -> None:
    """The run ends with LiteLLM's own words on it."""
    with pytest.raises(PromptEvaluationError, match="LLM Provider NOT provided"):
        asked(LiteLLMAdapter("nobody-knows-this-model"))


def test_a_request_takes_no_longer_than_the_run_may(server: OpenAIServer) -> None:
    """The deadline is the request's timeout, unless the user's is shorter."""
    taken: list[Any] = []

    class Recorder:
        def completion(self, **request: Any) -> Any:
            taken.append(request.get("timeout"))
            return litellm.completion(**request, mock_response="Hello.")

    for options in ({}, {"timeout": 2}):
        asked(LiteLLMAdapter("openai/gpt-4o", router=Recorder(), **options), deadline=Deadline.after(50))

    assert 40 < taken[0] < 52
    assert taken[1] == 2


def test_a_stream_that_breaks_off_is_no_answer(server: OpenAIServer) -> None:
    """Half a reply is not taken for a whole one."""
    chunk = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Once"},"finish_reason":null}]}\n\n'
    stage = server.stage([Raw(chunk, content_type="text/event-stream", breaks=True)])
    adapter = LiteLLMAdapter("openai/gpt-4o", base_url=stage.base_url, api_key="key")
    adapter.clock = FakeClock()
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="A", template="Say hello.")]))

    with pytest.raises(ThrottledError):
        list(adapter.stream(prompt, Session()))


def test_a_listener_that_leaves_ends_the_stream(server: OpenAIServer) -> None:
    """Closing the generator closes the connection below."""
    stage = server.stage([ScriptTurn("One two three four five.")])
    adapter = LiteLLMAdapter("openai/gpt-4o", base_url=stage.base_url, api_key="key")
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="A", template="Say hello.")]))

    events = adapter.stream(prompt, Session())
    first = next(events)
    events.close()

    assert not isinstance(first, Answered)


def test_no_error_holds_the_key(server: OpenAIServer) -> None:
    """Some providers repeat a key they do not take."""
    stage = server.stage([ScriptTurn("No: sk-very-secret-key is unknown.", status=401)])

    with pytest.raises(PromptEvaluationError) as caught:
        asked(LiteLLMAdapter("openai/gpt-4o", base_url=stage.base_url, api_key="sk-very-secret-key"))

    assert "No: [the API key] is unknown." in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_stream_is_closed_when_its_turn_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left for the garbage collector to close, which may run where closing waits for itself."""

    class Lines:
        closed = False

        def close(self) -> None:
            self.closed = True

    class Stream:
        def __init__(self, lines: Lines) -> None:
            self.streaming_response = lines

    class Answer:
        def __init__(self, lines: Lines) -> None:
            self.completion_stream = Stream(lines)

        def __iter__(self) -> Any:
            return iter(())

    lines = Lines()
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="A", template="Say hello.")]))
    monkeypatch.setattr(litellm, "completion", lambda **_: Answer(lines))

    with pytest.raises(PromptEvaluationError):
        list(LiteLLMAdapter("openai/gpt-4o", api_key="key").stream(prompt, Session()))

    assert lines.closed
