"""The server tools of one model, alive: what they are called, and running one call of one of them.

Decides nothing about policy: whoever asks has had the call judged. Every call goes through the tool runtime (arguments checked,
timed, rolled back when it fails, recorded once) in a session of its own, so calls never wait for each other and nothing is kept.
Nothing here blocks the event loop, and nothing a tool does raises out of `run`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from wardwright.catalog import fold
from wardwright.errors import ConfigError, Problem
from wardwright.facts import digest, text_digest
from wardwright.server_tools import module as modules
from wardwright.server_tools.answer import Answer, answer_of, cut
from wardwright.server_tools.module import Loaded, ModuleContext, ModuleRefused, module_tool
from wardwright.server_tools.remote import RemoteUnavailable, connect
from wardwright.server_tools.settings import NO_PARAMETERS, Engine, ServerTool, limits_shown
from wardwright.server_tools.snippet import snippet_tool
from wardwright.wire.edit import ToolSpec
from wardwright.wire.turn import Caller
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import DeadlineExceededError, WinkError
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Section, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolCall, ToolOutcome, aexecute_tool
from weakincentives.runtime.workers import run_aside

AT_ONCE: Final = 8
"""Calls of one model's server tools that run at the same time, unless told; others wait for their turn."""

ASK_AGAIN: Final = 30.0
"""Seconds after which a request has an MCP server asked again that could not be reached, unless told."""

_ERROR_CHARS: Final = 2_000
"""Characters of an error that the model gets, however short results must be."""

_LONGEST: Final = 200
"""Characters of a description that the tool runtime takes; the model gets all of it."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """For whom a call is run."""

    caller: Caller
    model: str
    report: Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
    """What the policy remembers of the caller's own scope, for `wardwright_policy_cache_status`; holds no prompt text."""
    key: bytes = b""
    """The session's key for digests."""
    seconds: float | None = None
    """What is left of the exchange's time; None: no bound but the tool's own."""


@dataclass(frozen=True, slots=True)
class ServerRun:
    """How a call ended."""

    text: str
    """What the model reads, and the result gate judges."""
    is_error: bool
    record: Mapping[str, Any]
    """For `wardwright_server_tools` on the receipt; holds digests, no arguments and no result."""


@dataclass(frozen=True, slots=True)
class _Live:
    """A tool that can be called."""

    spec: ToolSpec
    tool: ServerTool
    prompt: Prompt[Any]
    source_hash: str = ""


@dataclass(slots=True)
class _Held:
    """What was opened and must be closed."""

    modules: list[Loaded] = field(default_factory=list[Loaded])
    prompts: list[Prompt[Any]] = field(default_factory=list[Prompt[Any]])


class ServerTools:
    """Made per model when its config is activated; `open` before the first request, `aclose` when no call is under way any more."""

    def __init__(
        self,
        tools: Sequence[ServerTool],
        *,
        at_once: int = AT_ONCE,
        ask_again: float = ASK_AGAIN,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._tools = tuple(tools)
        self._clock = clock
        self._ask_again = ask_again
        self._asked_at = clock.monotonic()
        self._looking: asyncio.Task[bool] | None = None
        self._live: dict[str, _Live] = {}
        self._held = _Held()
        self._unavailable: dict[str, str] = {}
        self._waiting: list[ServerTool] = []
        self._turns = asyncio.Semaphore(at_once)
        self._asking: ContextVar[ServerContext] = ContextVar("asking")

    async def open(self) -> None:
        """Loads the modules and asks the MCP servers what they offer. Raises ConfigError with everything wrong with the modules; a
        server that does not answer is left out until `refresh` finds it."""
        problems: list[Problem] = []
        plain: list[tuple[ServerTool, ToolSpec, Tool[Any, Any], str]] = []
        for tool in self._tools:
            if tool.engine == "mcp":
                self._waiting.append(tool)
                continue
            try:
                made = await self._plain(tool)
            except (ModuleRefused, WinkError) as error:
                problems.append(replace(tool.place, message=f"the module {tool.module} cannot be used: {error}"))
                continue
            spec = made[0]
            if any(fold(spec.name) == fold(one[1].name) for one in plain):
                problems.append(replace(tool.place, message=f"the name '{spec.name}' is already used"))
                continue
            plain.append((tool, *made))
        if problems:
            await self.aclose()
            raise ConfigError(problems)
        if plain:
            prompt = _prompt(MarkdownSection(title="Server tools", tools=[one[2] for one in plain]))
            for tool, spec, _, source_hash in plain:
                self._live[spec.name] = _Live(spec, tool, prompt, source_hash)
        await self.refresh()

    async def refresh(self) -> bool:
        """Asks the MCP servers again that could not be reached. True: there are tools now that there were not before."""
        waiting, self._waiting = self._waiting, []
        self._asked_at = self._clock.monotonic()
        found = await asyncio.gather(*(self._ask(tool) for tool in waiting))
        if any(found):
            order = {id(tool): at for at, tool in enumerate(self._tools)}
            self._live = dict(sorted(self._live.items(), key=lambda one: order[id(one[1].tool)]))
        return any(found)

    async def aclose(self) -> None:
        """Ends the connections, and forgets the modules."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])
        self._waiting = []
        held, self._held = self._held, _Held()
        self._live = {}
        for loaded in held.modules:
            modules.unload(loaded)
        closing = (prompt.resources.aclose() for prompt in held.prompts)
        failed = [one for one in await asyncio.gather(*closing, return_exceptions=True) if one is not None]
        if failed:
            raise BaseExceptionGroup("server tools could not be closed", failed)

    @property
    def names(self) -> frozenset[str]:
        """Raw names of what can be called now: `Turn.server_tools`."""
        return frozenset(self._live)

    @property
    def unavailable(self) -> Mapping[str, str]:
        """MCP servers whose tools are not there now, and why."""
        return dict(self._unavailable)

    def specs(self) -> tuple[ToolSpec, ...]:
        """What a model is told of the tools, in the order of the config. Never waits; has a server that was not there asked again
        now and then, for the requests to come."""
        if self._waiting and self._clock.monotonic() - self._asked_at >= self._ask_again and not self._is_looking:
            self._looking = asyncio.get_running_loop().create_task(self.refresh())
        return tuple([live.spec for live in self._live.values()])

    @property
    def _is_looking(self) -> bool:
        return self._looking is not None and not self._looking.done()

    def location(self, name: str) -> str:
        """Where a tool runs: `wardwright`, or `remote_mcp`."""
        live = self._live.get(name)
        return "unknown" if live is None else _LOCATIONS[live.tool.engine][0]

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """The tools for an operator's page: no source, no path, no address."""
        shown = [_shown(live.tool, live.spec) for live in self._live.values()]
        for tool in self._tools:
            if tool.engine == "mcp" and tool.name in self._unavailable:
                absent = _shown(tool, ToolSpec(tool.name, "", NO_PARAMETERS))
                shown.append({**absent, "available": False, "reason": self._unavailable[tool.name]})
        return tuple(shown)

    async def run(self, call_id: str, name: str, arguments: str, context: ServerContext) -> ServerRun:
        """Runs one call. Whatever becomes of it is told in the answer."""
        started = self._clock.monotonic()
        live = self._live.get(name)
        metadata: Mapping[str, Any] = {}
        if live is None:
            text, word = f"There is no server tool '{name}' here. Use another tool.", "unknown_tool"
        else:
            deadline = None if context.seconds is None else Deadline.after(max(0.0, context.seconds))
            async with self._turns:
                token = self._asking.set(context)
                try:
                    outcome = await self._execute(live, ToolCall(name, arguments, call_id), context, deadline)
                finally:
                    self._asking.reset(token)
            if isinstance(outcome, ToolOutcome):
                text, word = outcome.text, outcome.outcome
                if isinstance(outcome.value, Answer):
                    metadata = outcome.value.metadata  # and its text is as long as it may be
                else:
                    most = live.tool.limits.output_chars
                    text = cut(text, most if word == "ok" else max(most, _ERROR_CHARS))
            else:
                text, word = outcome
        record: dict[str, Any] = {
            "call_id": call_id,
            "name": name,
            **_labels(live),
            "status": "completed" if word == "ok" else "error",
            "outcome": word,
            "elapsed_ms": round((self._clock.monotonic() - started) * 1000),
            "arguments_digest": digest(context.key, arguments),
            "result_digest": text_digest(context.key, text),
        }
        if metadata:
            record["receipt_metadata"] = dict(metadata)
        return ServerRun(text, word != "ok", record)

    async def _execute(
        self, live: _Live, call: ToolCall, context: ServerContext, deadline: Deadline | None
    ) -> ToolOutcome | tuple[str, str]:
        """The outcome; or what to say, and in which word, when the runtime itself gave up."""
        # A name for the pair of session and call: a handler's idempotency key comes from it.
        session = Session(session_id=text_digest(context.key, context.caller.session_id))
        try:
            return await aexecute_tool(call, prompt=live.prompt, session=session, deadline=deadline)
        except DeadlineExceededError:
            return f"Tool '{call.name}' was not run: the time for this request is over.", "deadline"
        except WinkError as error:
            return f"Tool '{call.name}' failed: {error}", "failed"

    async def _plain(self, tool: ServerTool) -> tuple[ToolSpec, Tool[Any, Any], str]:
        if tool.engine == "module":
            loaded = await run_aside(lambda: modules.load(tool))
            self._held.modules.append(loaded)
            short = _shortened(loaded.description)
            spec = ToolSpec(loaded.name, loaded.description, loaded.parameters)
            return spec, module_tool(tool, loaded, short, self._module_context), loaded.source_hash
        spec = ToolSpec(tool.name, tool.description, tool.parameters or NO_PARAMETERS)
        if tool.engine == "snippet":
            return (
                spec,
                snippet_tool(tool, _shortened(tool.description)),
                hashlib.sha256(tool.source.encode()).hexdigest(),
            )
        return spec, self._status_tool(tool), ""

    def _status_tool(self, tool: ServerTool) -> Tool[Any, Any]:
        async def report(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[Answer]:  # noqa: ARG001
            found = self._asking.get().report()
            return answer_of(await found if inspect.isawaitable(found) else found, tool.limits.output_chars)

        return Tool.from_json_schema(
            name=tool.name,
            description=_shortened(tool.description),
            schema=tool.parameters or NO_PARAMETERS,
            handler=report,
            result_type=Answer,
            effects="none",
            timeout=tool.limits.timeout_ms / 1000,
        )

    def _module_context(self, context: ToolContext) -> ModuleContext:
        asking = self._asking.get()
        return ModuleContext(context.call_id, context.idempotency_key, asking.model, replace(asking.caller), context)

    async def _ask(self, tool: ServerTool) -> bool:
        """Brings the tools of one MCP server to life, or remembers why not."""
        try:
            section = await run_aside(lambda: connect(tool))
        except RemoteUnavailable as error:
            self._unavailable[tool.name] = str(error)
            self._waiting.append(tool)
            return False
        folded = {fold(name) for name in self._live}
        clash = next((one.name for one in section.tools if fold(one.name) in folded), None)
        if clash is not None:
            self._unavailable[tool.name] = f"its tool '{clash}' has the name of another server tool; set 'prefix'"
            self._waiting.append(tool)
            return False
        self._unavailable.pop(tool.name, None)
        if not section.tools:
            return False
        prompt = _prompt(section)
        self._held.prompts.append(prompt)
        whole = section.long_descriptions
        for one in section.tools:
            spec = ToolSpec(one.name, whole.get(one.name, one.description), one.schema())
            self._live[one.name] = _Live(spec, tool, prompt)
        return True


def _prompt(section: Section[Any]) -> Prompt[Any]:
    return Prompt(PromptTemplate(sections=[section]))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_LOCATIONS: Final[Mapping[Engine, tuple[str, str]]] = {
    "builtin": ("wardwright", "local_verified"),
    "snippet": ("wardwright", "local_verified"),
    "module": ("wardwright", "local_verified"),
    "mcp": ("remote_mcp", "remote_observed"),
}


def _labels(live: _Live | None) -> Mapping[str, str]:
    """What a receipt says of the engine."""
    if live is None:
        return {"engine": "", "execution_location": "unknown", "visibility_level": "opaque"}
    location, visibility = _LOCATIONS[live.tool.engine]
    labels = {"engine": live.tool.engine, "execution_location": location, "visibility_level": visibility}
    return {**labels, "source_hash": live.source_hash} if live.source_hash else labels


def _shown(tool: ServerTool, spec: ToolSpec) -> dict[str, Any]:
    properties = spec.parameters.get("properties")
    return {
        "name": spec.name,
        "engine": tool.engine,
        "source": tool.source_class,
        "execution_location": _LOCATIONS[tool.engine][0],
        "limits": limits_shown(tool),
        "parameters": sorted(cast("Mapping[str, Any]", properties)) if isinstance(properties, Mapping) else [],
        "input": sorted(tool.input),
        "available": True,
    }
