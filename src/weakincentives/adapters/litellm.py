"""Every provider that LiteLLM knows, through LiteLLM.

The conversation is written in the form of Chat Completions, which LiteLLM translates. Decides what its options and errors
mean to a run; its own retries are off, because the loop asks again. LiteLLM is imported when a model is first asked: that
takes seconds.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, cast

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import PromptEvaluationError, ThrottledError
from ..runtime import workers
from .core import ModelReply, ProviderAdapter, Turn
from .openai_chat import ChatWire
from .openai_parts import SHORTEST_KEY, PromptRole, StructuredOutput, fault, not_understood, object_of
from .retries import Retry

_OURS: Final = frozenset({"num_retries", "max_retries", "fallbacks", "stream_timeout"})
_NOISE: Final = re.compile(r"^(?:(?:litellm\.)?\w+Error: |\w*Exception - |Error code: \d+ - )+")


class LiteLLMAdapter(ProviderAdapter):
    """A model by LiteLLM's name for it: `anthropic/claude-…`, `bedrock/…`, `gemini/…`, `ollama/…`, `openai/gpt-…`.

    Keys come from the environment, as LiteLLM documents them, or as `api_key`; `base_url` is for servers of one's own.
    `router` is a `litellm.Router` or anything else with `completion` and `acompletion`. Further options
    (`temperature=…`, `reasoning_effort=…`, `drop_params=True`) go with every request as they are.
    """

    sends_output_schema: ClassVar[bool] = True

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        router: Any = None,
        structured_output: StructuredOutput = "schema",
        prompt_role: PromptRole = "user",
        media: bool = True,
        max_turns: int | None = 100,
        max_output_retries: int = 2,
        retry: Retry | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Any,
    ) -> None:
        """`structured_output`: how the answer's form is asked for; "json" or "text" for models that take no schema.
        `prompt_role`: "system" for providers that take a conversation without a user's message, as OpenAI does and most
        others do not. `media`: False sends no pictures and files."""
        super().__init__(max_turns=max_turns, max_output_retries=max_output_retries, retry=retry, clock=clock)
        if router is not None and (base_url is not None or api_key is not None):
            raise ValueError("LiteLLMAdapter takes either a router, or base_url and api_key.")
        self._wire = ChatWire(prompt_role=prompt_role, structured_output=structured_output, media=media)
        taken = sorted(self._wire.reserved.union(_OURS).intersection(options))
        if taken:
            raise ValueError(
                f"LiteLLMAdapter sets {', '.join(taken)} by itself. Leave {'it' if len(taken) == 1 else 'them'} out."
            )
        self.model = model
        self.options = self._wire.defaults(model, options)
        self._router = router
        self._place = {"base_url": base_url, "api_key": api_key}

    def __repr__(self) -> str:
        return f"<LiteLLMAdapter: {self.model}>"

    def send(self, turn: Turn) -> ModelReply:
        with _told(self.model, self._place["api_key"]):
            answer = self._client().completion(**self._request(turn))
            if turn.say is None:
                return self._wire.reply(_json(answer))
            reader, refused = self._wire.reader(), _overheard(answer)
            try:
                for chunk in answer:
                    turn.say(reader.take(_json(chunk)))
            finally:
                _close(answer)
            return self._wire.reply(_with_refusal(reader.body(), refused, turn))

    async def asend(self, turn: Turn) -> ModelReply:
        if "litellm" not in sys.modules:
            await workers.run_aside(_package)  # seconds, in which the event loop goes on
        with _told(self.model, self._place["api_key"]):
            answer = await self._client().acompletion(**self._request(turn))
            if turn.say is None:
                return self._wire.reply(_json(answer))
            reader, refused = self._wire.reader(), _overheard(answer)
            try:
                async for chunk in answer:
                    turn.say(reader.take(_json(chunk)))
            finally:
                await answer.aclose()
            return self._wire.reply(_with_refusal(reader.body(), refused, turn))

    def _client(self) -> Any:
        return _package() if self._router is None else self._router

    def _request(self, turn: Turn) -> dict[str, Any]:
        request = self._wire.request(turn, self.options)
        request["model"] = self.model
        if self._router is None:
            request |= {name: value for name, value in self._place.items() if value is not None}
            request |= {"num_retries": 0, "max_retries": 0}
        if turn.deadline is not None:
            left = max(turn.deadline.remaining_seconds, 0.0) + 1.0
            allowed: object = request.get("timeout")
            if not isinstance(allowed, int | float) or left < allowed:
                request["timeout"] = left
        return request


def _package() -> Any:
    # Without this, importing it asks a server for prices, and waits for the answer.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise PromptEvaluationError(
            "LiteLLMAdapter needs the package litellm. Install it: pip install 'weakincentives[litellm]'."
        ) from error
    litellm.suppress_debug_info = True  # else it prints advice to standard output at every error
    return litellm


def _json(answer: Any) -> dict[str, Any]:
    """A reply in the form of Chat Completions."""
    if not hasattr(answer, "model_dump"):
        raise not_understood(answer)
    body: dict[str, Any] = answer.model_dump(mode="json", exclude_none=True)
    for choice in cast("list[dict[str, Any]]", body.get("choices") or []):
        for message in (object_of(choice, "message"), object_of(choice, "delta")):
            extras = object_of(message, "provider_specific_fields")
            if isinstance(extras.get("refusal"), str):  # where LiteLLM keeps what it has no field for
                message.setdefault("refusal", extras["refusal"])
    return body


# --- refusals in streams ----------------------------------------------------------------------------------------------


class _Overheard:
    """The stream below LiteLLM's, passed through piece by piece; LiteLLM drops a streamed refusal, so it is kept here."""

    def __init__(self, stream: Any, refused: list[str]) -> None:
        self._stream = stream
        self._refused = refused

    def __iter__(self) -> _Overheard:
        return self

    def __next__(self) -> Any:
        return self._heard(next(self._stream))

    def __aiter__(self) -> _Overheard:
        return self

    async def __anext__(self) -> Any:
        return self._heard(await anext(self._stream))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _heard(self, chunk: Any) -> Any:
        for choice in getattr(chunk, "choices", None) or ():
            said = getattr(getattr(choice, "delta", None), "refusal", None)
            if isinstance(said, str):
                self._refused.append(said)
        return chunk


def _overheard(answer: Any) -> list[str]:
    """Where the words of a refusal will be. Only the OpenAI client's own streams have them."""
    import openai

    refused: list[str] = []
    stream = getattr(answer, "completion_stream", None)
    kind: type[Any]
    for kind in (openai.Stream, openai.AsyncStream):
        if isinstance(stream, kind):
            answer.completion_stream = _Overheard(stream, refused)
    return refused


def _with_refusal(body: dict[str, Any], refused: list[str], turn: Turn) -> dict[str, Any]:
    if refused and turn.say is not None:
        words = "".join(refused)
        turn.say(words)
        body["choices"][0]["message"] = {**body["choices"][0]["message"], "refusal": words}
    return body


def _close(answer: Any) -> None:
    """End a stream that nobody reads to its end; LiteLLM has a way for async ones only.

    CAUTION: what is left open is closed by the garbage collector, wherever it runs: also inside the lock of the very connection
    pool that closing needs.
    """
    stream = getattr(answer, "completion_stream", None)
    for part in (stream, getattr(stream, "streaming_response", None)):
        close = getattr(part, "close", None)
        if close is not None:
            close()


# --- faults -----------------------------------------------------------------------------------------------------------


@contextmanager
def _told(model: str, key: str | None) -> Generator[None, None, None]:
    """Raise LiteLLM's errors as what they mean to a run; they are the OpenAI client's, whatever the provider. Some providers
    repeat a key they do not take; no error here does."""
    _package()
    import openai

    try:
        yield
    except openai.OpenAIError as error:
        told = _fault(error, model)
        if key is None or len(key) < SHORTEST_KEY or key not in f"{told} {error}":
            raise told from error
        told.args = (str(told).replace(key, "[the API key]"), *told.args[1:])
        raise told from None


def _fault(error: Any, model: str) -> PromptEvaluationError | ThrottledError:
    package = _package()
    said = _NOISE.sub("", str(getattr(error, "message", "") or error)).strip()
    if isinstance(error, package.APIConnectionError | package.Timeout):
        return ThrottledError(
            f"The provider of {model} cannot be reached: {said.rstrip('.')}. Check base_url and the network, or retry later."
        )
    status: object = getattr(error, "status_code", None)
    too_long = isinstance(error, package.ContextWindowExceededError)
    return fault(
        said,
        status=status if isinstance(status, int) else None,
        code="context_length_exceeded" if too_long else None,
        retry_after=_wait(error),
    )


def _wait(error: Any) -> float | None:
    """Seconds the provider asks for."""
    for headers in (getattr(error, "litellm_response_headers", None), getattr(error.response, "headers", None)):
        if isinstance(headers, Mapping):
            try:
                seconds = float(cast("Mapping[str, str]", headers)["retry-after"])
            except (KeyError, ValueError):
                continue
            if 0 <= seconds < float("inf"):
                return seconds
    return None
