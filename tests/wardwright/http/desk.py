"""An operator at a gateway that runs: the admin application over a real store, with everything else as small as it can be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from wardwright import receipts
from wardwright.config import parse_config
from wardwright.errors import WireError
from wardwright.gateway import govern
from wardwright.history import EMPTY_SCOPE, Registers, scope_key
from wardwright.http.admin import AdminApp
from wardwright.mediation import Advertisement
from wardwright.overlay import Overlay
from wardwright.policy.compile import Plan, compile_plan
from wardwright.receipts import Judged, Outcome
from wardwright.store import PlanEpoch, SqliteStore
from wardwright.wire.refusal import Refusal
from wardwright.wire.turn import Caller, CallItem, TextItem, Turn

from ..fake_keyring import FakeKeyring

PLAN = """\
model_id: coding
targets: [{model: big, context_window: 1000, tools: true}, {model: small, tools: false}]
state_machine: {initial_state: active, states: [active, {id: reviewing}]}
governance:
  - {id: review, kind: tool_sequence, transition_to: reviewing, after: {tool: {namespace: browser}}}
  - {id: no-shell, kind: tool_selector, action: deny_call, tool: {namespace: shell}, message: No shell here.}
  - {id: loops, kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {name: '*'}}
"""
NOW = 1_700_000_000_000
ROLES = ("viewer", "approver", "operator")


@dataclass(frozen=True)
class Operator:
    id: str
    role: str


class Tokens:
    """Tokens are the names of roles; `NAME:ROLE` is an operator of that name."""

    def admin(self, headers: Mapping[str, str], peer: str, needs: str = "viewer") -> Any:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        name, _, role = token.rpartition(":")
        if role not in ROLES:
            return Refusal(401, "authentication_error", "invalid_admin_token", "This token is not known here.")
        if ROLES.index(role) < ROLES.index(needs):
            return Refusal(403, "permission_error", "role_too_low", f"This needs the role {needs}.")
        return Operator(name or role, role)


@dataclass(frozen=True)
class Limits:
    timeout_ms: int = 2000
    output_chars: int = 100


@dataclass(frozen=True)
class Tool:
    name: str
    engine: str = "snippet"
    source_class: str = "inline"
    description: str = "Looks things up."
    parameters: Mapping[str, Any] | None = None
    input: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limits: Limits = field(default_factory=Limits)
    source: str = "secret_source()"


@dataclass(frozen=True)
class Mediation:
    mode: str = "patch"
    rules: Sequence[Any] = ("one",)


@dataclass(frozen=True)
class Settings:
    server_tools: Sequence[Tool]
    mediation: Mediation = field(default_factory=Mediation)
    advertisement: Advertisement = field(default_factory=Advertisement)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


@cache
def _compiled(source: bytes) -> Plan:
    """A plan never changes, and most tests have the same one."""
    return compile_plan(parse_config(source.decode(), "plan"))


class Desk:
    """The gateway's side, and an operator's."""

    def __init__(self, folder: Path, source: str = PLAN) -> None:
        self.path = folder / "store.db"
        self.store = SqliteStore(self.path, upkeep=False)
        self.keyring = FakeKeyring()
        self.authenticator = Tokens()
        self.clock = NOW
        self.source = source.encode()
        self.plan = self.compile(self.source)
        self.overlay = Overlay(self.store, now_ms=self.now_ms, on_plan=self._follow)
        tool = Tool("lookup", parameters={"properties": {"word": {}}}, input={"limit": 3})
        self.models = {name: Settings((tool,)) for name in (*self.plan.models, "added")}
        self.app = AdminApp(self)
        self.closed = ""
        """Why no plan opens; empty: every one does."""

    def now_ms(self) -> int:
        self.clock += 1
        return self.clock

    def compile(self, source: bytes) -> Plan:
        return _compiled(source)

    def opens(self, source: bytes) -> None:
        if self.closed:
            raise WireError(self.closed)

    async def _follow(self, epoch: PlanEpoch) -> None:
        self.plan, self.source = self.compile(epoch.source), epoch.source

    def close(self) -> None:
        self.app.close()
        self.store.close()

    def __call__(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        role: str = "operator",
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        sent = {"authorization": f"Bearer {role}", "content-type": "application/json", **(headers or {})}
        body = orjson.dumps(json) if raw is None and json is not None else raw or b""
        return asyncio.run(call(self.app, method, path, body, sent, urlencode(query, doseq=True)))

    def get(self, path: str, **query: Any) -> Any:
        answer = self("GET", path, **query)
        assert answer.status == 200, answer.body
        return answer.json

    def post(self, path: str, json: Any) -> Any:
        answer = self("POST", path, json)
        assert answer.status == 200, answer.body
        return answer.json

    def exchange(self, *names: str, session: str = "s1", tenant: str = "acme", status: Any = "released") -> str:
        """A request and a reply with these calls, judged and committed as live serving does; the receipt's id."""
        caller = Caller(tenant=tenant, session_id=session, principal="key-1")
        scope = scope_key("session_id", caller)
        key = self.keyring.session_key(scope)
        receipt_id = receipts.receipt_id(self.now_ms(), self.clock.to_bytes(10))
        items = [CallItem(f"{receipt_id[-6:]}-{index}", name, "{}") for index, name in enumerate(names)]
        judged: list[Judged] = []
        turns = (
            Turn("request", "chat_completions", "coding", [TextItem("user", f"go {self.clock}")], caller=caller),
            Turn("reply", "chat_completions", "coding", items, caller=caller),
        )
        for turn in turns:
            state = self.store.load([scope], lambda head: [f"c:{item.id}" for item in items])
            ruling, delta = govern(
                self.plan, Registers({scope: state.get(scope, EMPTY_SCOPE)}, key), turn, self.now_ms()
            )
            judged.append(Judged(turn, ruling, self.clock, 7))
            row = None
            if turn is turns[-1]:
                rules = receipts.rules_of(self.plan.models["coding"])
                row = receipts.record(receipts.build(receipt_id, judged, Outcome(status), rules, key))
            self.store.commit(delta, row)
        return receipt_id


async def call(
    app: Any, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, query: str = ""
) -> Answer:
    """One request to an ASGI application, without a network."""
    sent = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), *sent],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.1",
    }
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0
    found: dict[str, str] = {}
    pieces: list[bytes] = []
    done = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop()
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            found.update({name.decode(): value.decode() for name, value in message["headers"]})
        else:
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                done.set()

    await app(scope, receive, send)
    return Answer(status, found, b"".join(pieces))
