"""One conversation with Claude Code: its process, what it says, and what its hooks ask.

Decides how frames of the SDK become turns, calls and answers of an `Evaluation`, and when the run has ended. Runs calls
through the one pipeline only; never asks the model by itself, Claude Code does.

INVARIANTS (tests cite the numbers)
 1. No tool runs before the reply that asks for it was read to its end and its tokens were counted.
 2. Every call of a reply has its outcome before the model is asked again, also those that Claude Code answers itself.
 3. What ends a run ends the process first; only then is taken back what native tools had begun.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, cast

from ..errors import PromptEvaluationError, ThrottledError
from ..frozen import frozen
from ..limits import TokenUsage
from ..prompt import Tool, ToolResult
from ..prompt.rendering import OutputT
from ..prompt.tool_result import ImageBlock, TextBlock, content_blocks
from ..runtime import ToolCall, ToolOutcome, aexecute_tool
from ..session import log_slice
from .claude_native import LOOKERS, READERS, NativeTools, named_tool
from .core import ASYNC, Evaluation, Message, ModelReply, PromptResponse, StopReason
from .streaming import StreamEvent, ToolCalled, ToolFinished

_logger = logging.getLogger(__name__)

SERVER = "wink"
_PREFIX = f"mcp__{SERVER}__"
_UNPARSED = "__unparsedToolInput"
_BUSY = frozenset({429, 500, 502, 503, 504, 529})
_LONGEST_HOOK = 7 * 24 * 3600.0
"""Seconds a hook may take: a call waits there for its turn, and for somebody's approval."""
_LONGEST_INTERRUPT = 5.0
_NEXT_INTERRUPT = 0.5
_LONGEST_KEPT = 10_000
_LONGEST_RESULT = 500_000
_OVER = "The run has ended."
_TAKEN_BACK = "The call failed, so what it changed in the workspace was taken back."

Hook = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@log_slice
@frozen
class ClaudeSession:
    """A conversation that Claude Code has kept; `resume` of the SDK's options goes on with it."""

    claude_session_id: str
    cost_usd: float | None
    """What Claude Code says the conversation has cost so far."""
    timestamp: float
    session_id: str


class _Reply:
    """What the model says in one turn, as far as it was heard."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.message_id = message.get("id")
        self.words: list[str] = []
        self.call_ids: list[str] = []
        self.figures: dict[str, int] = {}
        self.stop_reason = ""
        self.count(message.get("usage"))

    @property
    def text(self) -> str:
        return "".join(self.words)

    def count(self, usage: Mapping[str, Any] | None) -> None:
        """Take the provider's figures; later ones replace earlier ones."""
        self.figures.update({name: value for name, value in (usage or {}).items() if isinstance(value, int)})

    @property
    def usage(self) -> TokenUsage:
        get = self.figures.get
        cached = get("cache_read_input_tokens", 0)
        whole = get("input_tokens", 0) + cached + get("cache_creation_input_tokens", 0)
        return TokenUsage(whole, get("output_tokens", 0), cached)


class ClaudeRun(Generic[OutputT]):
    """One process of Claude Code, from its start to the answer. Made for one evaluation; start over with a new one."""

    def __init__(
        self, sdk: Any, options: Any, evaluation: Evaluation[OutputT], native: NativeTools, *, allows: bool
    ) -> None:
        self._sdk = sdk
        self._evaluation = evaluation
        self._native = native
        self._allows = allows
        """Whether our policies alone decide about native tools; else Claude Code's permissions do, too."""
        self._complaints: deque[str] = deque(maxlen=20)
        self._client = sdk.ClaudeSDKClient(self._fitted(options))
        self._reader: asyncio.Task[None] | None = None
        self._result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._error: BaseException | None = None
        self._reply: _Reply | None = None
        self._is_open = False
        """Whether the reply is still being heard."""
        self._is_asked = True
        """Whether the turn of the next reply was counted already."""
        self._is_idle = True
        """Whether Claude Code has nothing to do: it ends by itself then."""
        self._is_cut = False
        """Whether the last reply became too long: it is the answer, whatever Claude Code does about it."""
        self._stopping: asyncio.Task[None] | None = None
        self._ends: dict[str, asyncio.Future[None]] = {}
        """By call: the end of the reply that asks for it."""
        self._of_agents: set[str] = set()
        """Calls of Claude's own sub-agents, whose replies are not shown to us."""
        self._known: frozenset[str] = frozenset()
        """The tools that Claude Code has, by the names it gives them."""
        self._outcomes: dict[str, ToolOutcome] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        """Calls of our tools that have not ended."""
        self._released = asyncio.Event()
        self._counted = TokenUsage()
        self._is_new = not (options.resume or options.continue_conversation)
        """Whether Claude Code's figures are of this run alone."""
        self.can_start_over = self._is_new and not options.session_id
        """Whether nothing would be lost or said twice: not once the model has replied, nor in a conversation of old."""

    # -- from question to answer -----------------------------------------------------------------------------------

    async def converse(self) -> PromptResponse[OutputT]:
        """Ask, and ask again until the answer has the form asked for and nothing is missing."""
        evaluation = self._evaluation
        messages = evaluation.conversation.messages
        try:
            await self._connect()
            text = messages[0].text
            while True:
                response = evaluation.hear(await self._ask(text))
                if response is not None and evaluation.guardrails is not None:
                    response = await evaluation.take_answer(response, ASYNC)
                if response is not None:
                    return response
                evaluation.next_turn()
                self._is_asked = True
                text = messages[-1].text
        finally:
            await _to_the_end(self._close())

    async def _connect(self) -> None:
        try:
            await self._client.connect()
        except self._sdk.ClaudeSDKError as error:
            raise self._broken(error) from error
        self._reader = asyncio.create_task(self._listen(self._client.receive_messages()))

    async def _ask(self, text: str) -> ModelReply:
        """Send one message and wait until Claude Code has nothing more to do."""
        if self._stopping is not None:
            await self._stopping  # or it would stop what is asked now
        if self._error is not None:
            raise self._error
        self._result = asyncio.get_running_loop().create_future()
        self._reply, self._is_cut, self._is_idle = None, False, False
        try:
            await self._client.query(text)
        except self._sdk.ClaudeSDKError as error:
            raise self._broken(error) from error
        result = await self._result
        self._is_idle = True
        self._count_all(result)
        self._note(result)
        return self._read(result)

    def _read(self, result: Any) -> ModelReply:
        """What came of a question, when Claude Code has nothing more to do about it."""
        reply = self._reply
        if reply is None:
            reply = _Reply({})
            reply.words.append(result.result or "")
        reason = reply.stop_reason
        if result.is_error and not self._is_cut and reason != "refusal":
            raise self._refused(result)
        stop: StopReason = "end_turn"
        if reason == "refusal" or reason == "max_tokens":
            stop = reason
        return ModelReply(reply.text, (), stop, raw=result)

    async def _close(self) -> None:
        """End the process, then what it had begun (INVARIANT 3)."""
        self._fail(PromptEvaluationError(_OVER))  # nothing is begun any more
        if self._result.done() and not self._result.cancelled():
            self._result.exception()  # it was raised where somebody waited, or nobody waits any more
        try:
            if self._reader is not None and not self._is_idle:
                await self._interrupt()
            await _end(*self._calls)
            self._released.set()
            await self._client.disconnect()
            await _end(self._stopping, self._reader)
        finally:
            await self._native.close()

    async def _interrupt(self) -> None:
        """Stop what the process is doing, so that it neither asks nor waits any more while it ends."""
        try:
            async with asyncio.timeout(_LONGEST_INTERRUPT):
                await self._client.interrupt()
        except Exception:  # INVARIANT: a close goes on; the process is ended in any case
            _logger.debug("Claude Code could not be interrupted", exc_info=True)

    async def _stop(self) -> None:
        """Keep Claude Code from going on by itself. One that comes between two requests does not count, so try again."""
        result = self._result
        while not result.done():
            await self._interrupt()
            await asyncio.wait((result,), timeout=_NEXT_INTERRUPT)

    def _fail(self, error: BaseException) -> None:
        """End the run with this error, unless it has one."""
        if self._error is None:
            self._error = error
            if not self._result.done():
                self._result.set_exception(error)

    def _broken(self, error: BaseException) -> PromptEvaluationError:
        said = "\n".join(self._complaints)
        detail = f"{error}\n{said}" if said else str(error)
        return PromptEvaluationError(
            f"Claude Code could not be run: {detail}\nThe run cannot go on; start a new one when that is mended."
        )

    def _refused(self, result: Any) -> PromptEvaluationError:
        """The error of a run that Claude Code gave up."""
        said = "; ".join(result.errors or ()) or result.result or result.subtype
        if result.api_error_status in _BUSY:
            return ThrottledError(f"Claude is too busy to answer: {said}")
        if result.subtype == "error_max_turns":
            return PromptEvaluationError(
                "The model did not come to an answer within the turns that the SDK's options allow. "
                "The run cannot go on; start a new one with a smaller task or a larger max_turns."
            )
        return PromptEvaluationError(f"Claude Code gave up: {said}\nThe run cannot go on.")

    # -- what it says ----------------------------------------------------------------------------------------------

    async def _listen(self, messages: AsyncIterator[Any]) -> None:
        """Hear everything, to the end of the process: one that is not listened to does not even stop when told."""
        try:
            async for message in messages:
                if self._error is None:
                    try:
                        await self._hear(message)
                    except asyncio.CancelledError:
                        raise
                    except BaseException as error:  # noqa: BLE001  INVARIANT: raised to whoever evaluates
                        self._fail(error)
            self._fail(self._broken(EOFError("it ended without an answer.")))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  INVARIANT: a run whose process is gone does not wait for it
            self._fail(self._broken(error))

    async def _hear(self, message: Any) -> None:
        sdk = self._sdk
        if isinstance(message, sdk.StreamEvent):
            if message.parent_tool_use_id is None:
                self._hear_event(message.event)
        elif isinstance(message, sdk.AssistantMessage):
            for block in message.content:
                # A reply that was not streamed is whole when it comes.
                if isinstance(block, sdk.ToolUseBlock) and not self._is_streaming(message):
                    self._announce_end(block.id)
        elif isinstance(message, sdk.UserMessage):
            content: Any = message.content
            for block in () if isinstance(content, str) else content:
                if isinstance(block, sdk.ToolResultBlock) and self._native.is_pending(block.tool_use_id):
                    # No hook told of its end: most often Claude Code's own rules kept it from running.
                    said = _plain(block.content)
                    ended = ToolResult.error(said) if block.is_error else ToolResult[Any].ok(None, said)
                    await self._end_native(block.tool_use_id, ended)
        elif isinstance(message, sdk.SystemMessage):
            if message.subtype == "init":
                self._known = frozenset(message.data.get("tools") or ())
            elif message.subtype == "api_retry":
                self._hear_busy(message.data)
        elif isinstance(message, sdk.ResultMessage):
            self._end_reply()
            if not self._result.done():
                self._result.set_result(message)

    def _is_streaming(self, message: Any) -> bool:
        return message.parent_tool_use_id is None and (
            self._reply is not None and self._reply.message_id == message.message_id
        )

    def _hear_event(self, event: Mapping[str, Any]) -> None:
        kind, reply = event.get("type"), self._reply
        if self._is_cut:
            return  # Claude Code asks for the rest by itself until it is stopped
        if kind == "message_start":
            self._end_reply()
            if not self._is_asked:
                self._evaluation.next_turn()
            self._is_asked, self._is_open, self.can_start_over = False, True, False
            self._reply = _Reply(event["message"])
        elif reply is None or not self._is_open:
            return
        elif kind == "content_block_start" and event["content_block"].get("type") == "tool_use":
            reply.call_ids.append(event["content_block"]["id"])
        elif kind == "content_block_delta" and event["delta"].get("type") == "text_delta":
            reply.words.append(event["delta"]["text"])
            if self._evaluation.emit is not None:
                self._evaluation.say(event["delta"]["text"])
        elif kind == "message_delta":
            reply.stop_reason = event["delta"].get("stop_reason") or reply.stop_reason
            reply.count(event.get("usage"))
        elif kind == "message_stop":
            self._end_reply()

    def _end_reply(self) -> None:
        """The reply is whole, or there is no more of it to come."""
        reply = self._reply
        if reply is None or not self._is_open:
            return
        self._is_open = False
        self._count(reply.usage)
        for call_id in reply.call_ids:
            self._announce_end(call_id)
        if reply.stop_reason == "max_tokens" and not reply.call_ids:
            self._is_cut = True
            self._stopping = asyncio.create_task(self._stop())

    def _end_of(self, call_id: str) -> asyncio.Future[None]:
        end = self._ends.get(call_id)
        if end is None:
            end = self._ends[call_id] = asyncio.get_running_loop().create_future()
        return end

    def _announce_end(self, call_id: str) -> None:
        end = self._end_of(call_id)
        if not end.done():
            end.set_result(None)

    async def _heard(self, call_id: str) -> None:
        """INVARIANT 1: wait for the end of the reply that asks for this call."""
        if call_id not in self._of_agents:
            await self._end_of(call_id)

    def _hear_busy(self, data: Mapping[str, Any]) -> None:
        """The provider is busy, or not reached, and Claude Code will ask again. Before the first reply we do that."""
        status = data.get("error_status")
        if status is not None and status not in _BUSY:
            return
        adapter, deadline = self._evaluation.adapter, self._evaluation.deadline
        pause = float(data.get("retry_delay_ms") or 0) / 1000
        late = deadline is not None and deadline.remaining_seconds <= pause
        if self.can_start_over or late or pause > adapter.retry.longest:
            what = "cannot be reached" if status is None else f"is too busy to answer: status {status}"
            self._fail(ThrottledError(f"Claude {what}.", pause))

    def _count(self, usage: TokenUsage) -> None:
        evaluation = self._evaluation
        evaluation.usage += usage
        self._counted += usage
        if evaluation.tracker is not None:
            evaluation.tracker.add(usage.input_tokens, usage.output_tokens, usage.cached_tokens)

    def _count_all(self, result: Any) -> None:
        """Add what was used where we could not listen: by Claude's sub-agents, and for its own purposes."""
        by_model: dict[str, dict[str, Any]] = result.model_usage or {} if self._is_new else {}
        models = by_model.values()

        def total(*names: str) -> int:
            return sum(int(model.get(name) or 0) for model in models for name in names)

        cached, output = total("cacheReadInputTokens"), total("outputTokens")
        whole = total("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
        rest = TokenUsage(
            max(0, whole - self._counted.input_tokens),
            max(0, output - self._counted.output_tokens),
            max(0, cached - self._counted.cached_tokens),
        )
        if rest.total_tokens:
            self._count(rest)

    def _note(self, result: Any) -> None:
        session = self._evaluation.session
        session._core.record(
            ClaudeSession(result.session_id, result.total_cost_usd, session.clock.now(), session.session_id)
        )

    # -- its hooks -------------------------------------------------------------------------------------------------

    async def _before(self, data: dict[str, Any]) -> dict[str, Any]:
        name, call_id = str(data["tool_name"]), str(data["tool_use_id"])
        if data.get("agent_id"):
            self._of_agents.add(call_id)
        if name.startswith(_PREFIX):
            return {}
        await self._heard(call_id)
        call = ToolCall(name, data["tool_input"], call_id, self._evaluation.prompt)
        self._emit(ToolCalled(call))
        outcome = await self._native.begin(call, self._evaluation.surroundings)
        if outcome is not None:
            self._finished(outcome)
            if not outcome.success:
                return _decision("deny", outcome.text)
        return _decision("allow") if self._allows and name not in LOOKERS else {}

    async def _after(self, data: dict[str, Any]) -> dict[str, Any]:
        outcome = await self._end_native(
            str(data["tool_use_id"]), ToolResult.ok(None, _plain(data.get("tool_response")))
        )
        if outcome is None or outcome.success:
            return {}
        return {"decision": "block", "reason": f"{outcome.text}\n{_TAKEN_BACK}"}

    async def _after_failure(self, data: dict[str, Any]) -> dict[str, Any]:
        outcome = await self._end_native(str(data["tool_use_id"]), ToolResult.error(str(data.get("error"))))
        if outcome is None or outcome.call.name in READERS:
            return {}
        return _context("PostToolUseFailure", _TAKEN_BACK)

    async def _end_native(self, call_id: str, result: ToolResult[Any]) -> ToolOutcome | None:
        outcome = await self._native.end(call_id, result)
        if outcome is not None:
            self._finished(outcome)
        return outcome

    async def _after_batch(self, data: dict[str, Any]) -> dict[str, Any]:
        """INVARIANT 2: all calls of a reply are answered and the model is about to be asked again."""
        evaluation = self._evaluation
        told: list[str] = []
        outcomes: list[ToolOutcome] = []
        for entry in data["tool_calls"]:
            call_id = str(entry["tool_use_id"])
            if data.get("agent_id"):
                self._of_agents.add(call_id)
            await self._heard(call_id)
            outcome = self._outcomes.pop(call_id, None)
            if outcome is None:
                outcome = await self._unasked(entry, told)
            outcomes.append(outcome)
            self._ends.pop(call_id, None)
            self._of_agents.discard(call_id)
        if data.get("agent_id"):
            return _context("PostToolBatch", "\n\n".join(told))
        messages = evaluation.conversation.messages
        words = "" if self._reply is None else self._reply.text
        messages.append(Message("assistant", words, tuple(outcome.call for outcome in outcomes)))
        evaluation.answer(outcomes)
        if evaluation.guardrails is not None:
            before = len(messages)
            await evaluation.take_feedback(ASYNC)
            told.extend(message.text for message in messages[before:])
        evaluation.next_turn()
        self._is_asked = True
        return _context("PostToolBatch", "\n\n".join(told))

    async def _unasked(self, entry: Mapping[str, Any], told: list[str]) -> ToolOutcome:
        """The outcome of a call that Claude Code has answered itself: it was not run, and must not be now. What the
        model should know beside that answer goes to `told`."""
        evaluation = self._evaluation
        wire_name = str(entry["tool_name"])
        arguments: Any = entry["tool_input"] or {}
        name = wire_name.removeprefix(_PREFIX)
        unparsed: dict[str, Any] | None = arguments.get(_UNPARSED)
        if unparsed is not None:
            arguments = str(unparsed.get("raw", ""))
        call = ToolCall(name, arguments, str(entry["tool_use_id"]), evaluation.prompt)
        self._emit(ToolCalled(call))
        is_ours = evaluation.prompt.find_tool(name, evaluation.session) is not None
        is_unknown = not is_ours and wire_name not in self._known
        if is_unknown or (is_ours and unparsed is not None and not _is_json(arguments)):
            outcome = await aexecute_tool(call, **evaluation.surroundings)
            told.append(outcome.text)
        else:
            said = _plain(entry.get("tool_response")) or f"Claude Code did not run '{name}'."
            if is_ours and wire_name not in self._known:
                said = f"The tool '{name}' is called '{_PREFIX}{name}' here. Retry with that name."
                told.append(said)

            async def tell(params: dict[str, Any], *, context: Any) -> ToolResult[Any]:  # noqa: ARG001
                return ToolResult.error(said)

            # No policy is asked about what does not run.
            stand_in: Any = named_tool(name, tell, "none")
            run = {**evaluation.surroundings, "prompt": None}
            ended = await aexecute_tool(ToolCall(name, stand_in, call.call_id, None, dict(call.params)), **run)
            outcome = replace(ended, call=call)
        self._emit(ToolFinished(outcome))
        return outcome

    def _finished(self, outcome: ToolOutcome) -> None:
        self._outcomes[outcome.call_id] = outcome
        self._emit(ToolFinished(outcome))

    def _emit(self, event: StreamEvent) -> None:
        if self._evaluation.emit is not None:
            self._evaluation.emit(event)

    # -- our tools, as an MCP server in this process -----------------------------------------------------------------

    async def _call(self, name: str, arguments: dict[str, Any], call_id: str) -> list[dict[str, Any]]:
        """Run a call of one of our tools. What ends the run is answered when the process does not listen any more."""
        work = asyncio.ensure_future(self._execute(ToolCall(name, arguments, call_id, self._evaluation.prompt)))
        self._calls.add(work)
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait((work,))
            raise
        finally:
            self._calls.discard(work)
        if not work.cancelled():
            error = work.exception()
            if error is None and self._error is None:
                return work.result()
            self._fail(error or PromptEvaluationError(_OVER))
        await self._released.wait()
        return []

    async def _execute(self, call: ToolCall) -> list[dict[str, Any]]:
        if not call.call_id:
            raise PromptEvaluationError(
                "This Claude Code does not say which call it makes, so its calls could be recorded twice. Update it."
            )
        await self._heard(call.call_id)
        self._emit(ToolCalled(call))
        outcome = await aexecute_tool(call, **self._evaluation.surroundings)
        self._finished(outcome)
        return _content(outcome)

    def _fitted(self, options: Any) -> Any:
        """The options of the SDK with our tools and hooks in them, beside those of the user."""
        sdk = self._sdk
        tools = self._evaluation.rendered.tools if self._evaluation.rendered is not None else ()
        theirs: dict[str, list[Any]] = options.hooks or {}
        hooks = {name: list(given) for name, given in theirs.items()}
        ours: dict[str, tuple[Hook, dict[str, Any]]] = {
            # Fail closed: a native tool does not run when the hook before it breaks.
            "PreToolUse": (self._before, {"on_failure": "block"}),
            "PostToolUse": (self._after, {}),
            "PostToolUseFailure": (self._after_failure, {}),
            "PostToolBatch": (self._after_batch, {}),
        }
        for name, (hook, how) in ours.items():
            matcher = sdk.HookMatcher(hooks=[self._hook(name, hook)], timeout=_LONGEST_HOOK, **how)
            hooks.setdefault(name, []).append(matcher)
        server = {"type": "sdk", "name": SERVER, "instance": _server(tools, self._call)}
        return replace(
            options,
            mcp_servers={**options.mcp_servers, SERVER: server} if tools else options.mcp_servers,
            allowed_tools=[*options.allowed_tools, *(f"{_PREFIX}{tool.name}" for tool in tools)],
            hooks=hooks,
            include_partial_messages=True,
            verbatim_prompts=True,
            stderr=options.stderr or self._complaints.append,
        )

    def _hook(self, name: str, hook: Hook) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def called(data: dict[str, Any], _tool_use_id: object, _context: object) -> dict[str, Any]:
            if self._error is None:
                try:
                    answer = await hook(data)
                except asyncio.CancelledError:
                    raise
                except BaseException as error:  # noqa: BLE001  INVARIANT: raised to whoever evaluates
                    self._fail(error)
                else:
                    if self._error is None:  # nothing ended the run while this call waited for its turn
                        return answer
            stop = _decision("deny", _OVER) if name == "PreToolUse" else {}
            return {"continue_": False, "stopReason": _OVER, **stop}

        return called


def _server(tools: Sequence[Tool[Any, Any]], call: Callable[..., Awaitable[list[dict[str, Any]]]]) -> Any:
    """An MCP server that hands every call on as it comes: the pipeline judges arguments, not the server."""
    import mcp.types as wire
    from mcp.server import Server

    listed: list[Any] = [
        wire.Tool.model_validate(
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": tool.schema(),
                "annotations": {"readOnlyHint": tool.effects == "none", "openWorldHint": tool.effects == "external"},
                "_meta": {"anthropic/maxResultSizeChars": _LONGEST_RESULT},
            }
        )
        for tool in tools
    ]

    async def answer(name: str, arguments: dict[str, Any] | None, meta: Any) -> Any:
        extra: Any = getattr(meta, "model_extra", meta) or {}  # a model in mcp 1, a dict in mcp 2
        content = await call(name, arguments or {}, str(extra.get("claudecode/toolUseId", "")))
        # A failed call is an answer like another (its text says so); an error is a fault of the protocol.
        return wire.CallToolResult.model_validate({"content": content, "isError": False})

    make: Any = Server
    if hasattr(Server, "call_tool"):  # mcp 1
        server = make(SERVER, version="1")

        async def list_tools() -> Any:
            return listed

        async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
            return await answer(name, arguments, server.request_context.meta)

        server.list_tools()(list_tools)
        server.call_tool(validate_input=False)(call_tool)
        return server

    async def on_list_tools(_context: object, _params: object) -> Any:
        return wire.ListToolsResult(tools=listed)

    async def on_call_tool(_context: object, params: Any) -> Any:
        return await answer(params.name, params.arguments, params.meta)

    return make(SERVER, version="1", on_list_tools=on_list_tools, on_call_tool=on_call_tool)


def _content(outcome: ToolOutcome) -> list[dict[str, Any]]:
    """What the model gets of a call: its text, and images as images."""
    value = outcome.value if outcome.success and not outcome.result.exclude_value_from_context else None
    blocks = content_blocks(value)
    if not any(isinstance(block, ImageBlock) and block.data is not None for block in blocks):
        return [{"type": "text", "text": outcome.text}]
    content: list[dict[str, Any]] = [{"type": "text", "text": outcome.message}] if outcome.message else []
    for block in blocks:
        if isinstance(block, ImageBlock) and block.data is not None:
            data = base64.b64encode(block.data).decode()
            content.append({"type": "image", "data": data, "mimeType": block.media_type})
        else:
            content.append({"type": "text", "text": block.text if isinstance(block, TextBlock) else block.render()})
    return content


def _decision(verdict: str, reason: str = "") -> dict[str, Any]:
    said = {"permissionDecisionReason": reason} if reason else {}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": verdict, **said}}


def _context(event: str, text: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}} if text else {}


def _plain(content: Any) -> str:
    """What a native tool has said, as text that can be kept: its beginning, in whichever form it comes."""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = "\n".join(str(block.get("text", "")) for block in cast("list[dict[str, Any]]", content))
    elif isinstance(content, dict) and "stdout" in content:
        said = cast("dict[str, Any]", content)
        text = "\n".join(str(said[name]) for name in ("stdout", "stderr") if said.get(name))
    else:
        text = "" if content is None else json.dumps(content, ensure_ascii=False, default=str)
    return (
        text
        if len(text) <= _LONGEST_KEPT
        else f"{text[:_LONGEST_KEPT]} [cut: {_LONGEST_KEPT} of {len(text)} characters]"
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


async def _end(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel what still works, and wait until it has ended."""
    for task in tasks:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))


async def _to_the_end(work: Awaitable[None]) -> None:
    """Finish the work also when we are cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
