"""The two places where an agent's calls are ruled on: inside its process, and on the wire through the gateway. One plan for both.

Neither approves anything: a call that is held did not happen, and the agent goes on with the next one.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from wardwright.config import load_config
from wardwright.http.front import Front
from wardwright.http.service import Service
from wardwright.http.start import front
from wardwright.in_process import GovernancePolicy, Governed
from wardwright.providers.script import Line, Said, ScriptedCall
from wardwright.providers.scripted import Scripted
from weakincentives.clock import FakeClock
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolCall, execute_tool

from .agent import Call, Ruled
from .world import EFFECTS, HERE, ToolFailed, World

PLAN: Final = HERE / "plan.yaml"


# in process


class InProcess:
    """The tool runtime with the plan as its policy. Opens one conversation after the other."""

    def __init__(self, plan: Path = PLAN) -> None:
        self.policy = GovernancePolicy.from_yaml(plan, key=b"the attacks")
        self.world = World()
        self.prompt = self._prompt()
        self.count = 0

    def open(self, world: World) -> _Conversation:
        self.world = world
        self.count += 1
        return _Conversation(self, Session(clock=FakeClock(), session_id=f"run-{self.count}"))

    def _prompt(self) -> Prompt[Any]:
        def does(name: str) -> Callable[..., ToolResult[Any]]:
            def handler(params: dict[str, Any], *, context: ToolContext) -> ToolResult[Any]:
                try:
                    return ToolResult.ok(self.world.call(name, params))
                except ToolFailed as error:
                    return ToolResult.error(str(error))

            return handler

        tools = [
            Tool.from_json_schema(
                name=tool["name"],
                description=tool["description"],
                schema=tool["inputSchema"],
                handler=does(tool["name"]),
                effects="external" if tool["name"] in EFFECTS else "none",
            )
            for tool in self.world.tools
        ]
        return Prompt(PromptTemplate(sections=[MarkdownSection(key="tools", tools=tools)], policies=[self.policy]))


class _Conversation:
    def __init__(self, home: InProcess, session: Session) -> None:
        self.home = home
        self.session = session
        self.world = home.world
        self.count = 0
        self.heard: list[Governed] = []
        session.dispatcher.subscribe(Governed, self.heard.append)

    def user(self, text: str) -> None:
        self.home.policy.user_turn(text, session=self.session)

    def call(self, call: Call) -> Ruled:
        self.count += 1
        self.heard.clear()
        outcome = execute_tool(
            ToolCall(call.name, dict(call.arguments), f"call-{self.count}"),
            prompt=self.home.prompt,
            session=self.session,
        )
        ruling = next((one.ruling for one in self.heard if one.ruling.calls), None)
        if ruling is None:
            raise ValueError(f"{call.name}: not ruled on: {outcome.result.message}")
        rules = tuple(sorted({one.rule_id for one in ruling.findings if one.enforced}))
        said = str(outcome.result.value) if outcome.result.success else outcome.result.message
        return Ruled(ruling.calls[0].status == "allow", rules, ruling.calls[0].message or ruling.message, said)


# on the wire


class OnTheWire:
    """The gateway as an application, spoken to as a server would, over its scripted provider."""

    def __init__(self, service: Service, application: Front, runner: asyncio.Runner, wire: str) -> None:
        self.service = service
        self.front = application
        self.runner = runner
        self.wire = wire
        live = service.gateway.live
        provider = live.providers["scripted"]
        if not isinstance(provider, Scripted):
            raise ValueError("the plan's provider is not scripted")
        self.model = _Model(provider)
        service.gateway.live = replace(live, providers={**live.providers, "scripted": self.model})
        self.count = 0

    def open(self, world: World) -> _Wire:
        self.count += 1
        return _Wire(self, world, f"run-{self.count}")

    async def post(self, path: str, body: Any, session: str) -> tuple[int, Any]:
        """One request, and the answer to it."""
        raw = orjson.dumps(body)
        status = 0
        pieces: list[bytes] = []
        headers = {"host": "127.0.0.1:8787", "content-type": "application/json", "x-wardwright-session-id": session}
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": raw}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            pieces.append(message.get("body", b""))

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8787),
            "scheme": "http",
            "root_path": "",
            "http_version": "1.1",
        }
        await self.front(scope, receive, send)
        return status, orjson.loads(b"".join(pieces))


class _Model(Scripted):
    """The scripted provider, told before each request what to say."""

    def __init__(self, before: Scripted) -> None:
        super().__init__(before.config)

    def says(self, call: Call) -> None:
        said = Said("", (ScriptedCall(call.name, json.dumps(call.arguments, ensure_ascii=False)),))
        self.config = replace(self.config, script=(Line(said),))


@contextmanager
def gateway(plan: Path = PLAN, wire: str = "chat_completions") -> Generator[OnTheWire, None, None]:
    """A gateway over a store that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        service = Service(load_config(plan), str(Path(folder) / "gateway.db"), "127.0.0.1")
        application = front(service)
        runner.run(application.open())
        try:
            yield OnTheWire(service, application, runner, wire)
        finally:
            runner.run(application.close())


class _Wire:
    """One conversation: the client's transcript grows, and every request carries all of it."""

    def __init__(self, home: OnTheWire, world: World, session: str) -> None:
        self.home = home
        self.world = world
        self.session = session
        self.form = _FORMS[home.wire](world.tools)

    def user(self, text: str) -> None:
        self.form.user(text)

    def call(self, call: Call) -> Ruled:
        home = self.home
        home.model.says(call)
        status, answer = home.runner.run(home.post(self.form.path, self.form.body(), self.session))
        if status == 200:
            call_id, name, arguments = self.form.called(answer)
            failed = False
            try:
                said = self.world.call(name, arguments)
            except ToolFailed as error:
                said, failed = str(error), True
            self.form.result(call_id, said, failed)
            return Ruled(True, (), "", said)
        error = answer["error"]
        if error["code"] != "approval_required":
            raise ValueError(f"{call.name}: {status} {error}")
        # The client tells the model, and lets it go on: an approval may come later, or never.
        self.form.held(call.name)
        return Ruled(
            False, tuple(sorted(error.get("rule_ids") or [error["rule_id"]])), error["message"], error["message"]
        )


class _Chat:
    path = "/v1/chat/completions"

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tools = [
            {
                "type": "function",
                "function": {"name": one["name"], "description": one["description"], "parameters": one["inputSchema"]},
            }
            for one in tools
        ]

    def body(self) -> dict[str, Any]:
        return {"model": "assistant", "messages": self.messages, "tools": self.tools}

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def called(self, answer: Any) -> tuple[str, str, dict[str, Any]]:
        message = answer["choices"][0]["message"]
        self.messages.append(message)
        call = message["tool_calls"][0]
        return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])

    def result(self, call_id: str, text: str, failed: bool) -> None:
        """The wire has no flag for an error, so clients say it in words, and the plan's catalog reads them."""
        content = f"Error: {text}" if failed else text
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def held(self, name: str) -> None:
        self.messages.append({"role": "assistant", "content": f"{name} waits for approval ({len(self.messages)})."})


class _Messages(_Chat):
    path = "/v1/messages"

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(tools)
        self.tools = [
            {"name": one["name"], "description": one["description"], "input_schema": one["inputSchema"]}
            for one in tools
        ]

    def body(self) -> dict[str, Any]:
        return {**super().body(), "max_tokens": 100}

    def called(self, answer: Any) -> tuple[str, str, dict[str, Any]]:
        self.messages.append({"role": "assistant", "content": answer["content"]})
        call = next(block for block in answer["content"] if block["type"] == "tool_use")
        return call["id"], call["name"], call["input"]

    def result(self, call_id: str, text: str, failed: bool) -> None:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": failed}
        self.messages.append({"role": "user", "content": [block]})


class _Responses(_Chat):
    path = "/v1/responses"

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(tools)
        self.tools = [
            {
                "type": "function",
                "name": one["name"],
                "description": one["description"],
                "parameters": one["inputSchema"],
            }
            for one in tools
        ]

    def body(self) -> dict[str, Any]:
        return {"model": "assistant", "input": self.messages, "tools": self.tools}

    def called(self, answer: Any) -> tuple[str, str, dict[str, Any]]:
        self.messages.extend(answer["output"])
        call = next(item for item in answer["output"] if item["type"] == "function_call")
        return call["call_id"], call["name"], json.loads(call["arguments"])

    def result(self, call_id: str, text: str, failed: bool) -> None:
        output = f"Error: {text}" if failed else text
        self.messages.append({"type": "function_call_output", "call_id": call_id, "output": output})


_FORMS: Final[Mapping[str, type[_Chat]]] = {
    "chat_completions": _Chat,
    "anthropic": _Messages,
    "responses": _Responses,
}
WIRES: Final = tuple(_FORMS)
