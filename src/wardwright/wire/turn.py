"""The wire-neutral form of a request, a model's reply or a tool result.

A wire module makes one `Turn` per message; the policy engine reads it and never sees provider JSON. Values here are what the
wire *said*: nothing is believed, resolved through the catalog or deduplicated yet. Plain slotted classes, because one request
makes dozens of them. Treat them as read-only once made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

Gate: TypeAlias = Literal["request", "reply", "result"]
"""Where policy looks: `request` before routing, `reply` before the caller sees it, `result` of one tool that we ran or proxied."""

WireName: TypeAlias = Literal["chat_completions", "responses", "anthropic", "mcp", "in_process"]

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]

ToolChoiceMode: TypeAlias = Literal["auto", "none", "required", "tool"]
"""`tool`: the caller forces one named tool; `required`: any tool, but one."""


@dataclass(slots=True)
class DeclaredTool:
    """One tool the request offers to the model."""

    name: str
    """Raw name as on the wire; the hosted kind when the provider runs it."""
    description: str = ""
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the arguments; None when the wire carries none."""
    hosted: str | None = None
    """Kind of a provider-hosted tool with version suffixes removed (`web_search`, `code_interpreter`); None for a caller's tool."""
    controls: Mapping[str, Any] | None = None
    """Hosted only: the parameters set beside the type (`max_uses`, `allowed_domains` …)."""
    server: str | None = None
    """Hosted `mcp` only: the label of the provider-side MCP server."""
    further: Mapping[str, Any] | None = None
    """Whatever else the definition says (examples, grammars, titles, who may call it …): the model reads it, so it is pinned."""


@dataclass(slots=True)
class ToolChoice:
    mode: ToolChoiceMode = "auto"
    names: tuple[str, ...] = ()
    """The forced tool for `tool`; the permitted subset when the wire can carry one."""


@dataclass(slots=True)
class TextItem:
    """Text of one message. Parts of one message are joined by a line break; non-text parts are left out."""

    role: Role
    text: str
    parts: tuple[str, ...] = field(default=(), compare=False)
    """What `text` was joined from when it was more than one part, else empty. Models and clients read parts on end, without the
    line breaks, so a rule on text must look at `"".join(parts)` as well. Not compared: wires cut the same words differently."""


@dataclass(slots=True)
class CallItem:
    """A tool call by the model, for the client (or the gateway) to run."""

    id: str
    """Provider id; empty when the wire carried none."""
    name: str
    arguments: str
    """Argument text exactly as the model wrote it; may be no JSON at all. Object arguments are dumped by the wire module."""


class SecretCall(CallItem):
    """In process: a call whose arguments hold secrets. Judged whole, kept and announced without them."""

    __slots__ = ()


@dataclass(slots=True)
class ResultItem:
    """What a tool answered."""

    call_id: str
    content: str
    is_error: bool | None = None
    """The wire's error flag; None where the wire has no such flag."""
    name: str = ""
    """Raw tool name where the wire repeats it (legacy functions, MCP, in process); else empty and found by `call_id`."""
    parts: tuple[str, ...] = field(default=(), compare=False)
    """As in `TextItem`."""


@dataclass(slots=True)
class HostedCallItem:
    """A provider says it ran a hosted tool."""

    id: str
    kind: str
    """As in `DeclaredTool.hosted`."""
    arguments: str = ""
    server: str | None = None
    name: str = ""
    """Tool name on a provider-side MCP server; else empty."""


@dataclass(slots=True)
class HostedResultItem:
    """A provider shows what its hosted tool returned."""

    call_id: str
    kind: str
    content: str = ""
    is_error: bool | None = None
    server: str | None = None
    name: str = ""


Item: TypeAlias = TextItem | CallItem | ResultItem | HostedCallItem | HostedResultItem


@dataclass(slots=True)
class Usage:
    """What one reply used. Whole or not at all: a wire module makes none of counts it cannot read, and none of nothing."""

    input_tokens: int = 0
    output_tokens: int = 0
    price: float = 0.0
    """In the deployment's currency; filled by the gateway from the target's price, never by a wire module."""


@dataclass(slots=True)
class Caller:
    """Who asks, after authentication: what the key record pins, then what it lets the headers say. Made by the HTTP layer."""

    tenant: str = ""
    application: str = ""
    agent: str = ""
    user: str = ""
    session_id: str = ""
    """The session whose ledger is loaded. Always set for live traffic: joined by known ids, else the header, else minted."""
    run_id: str = ""
    principal: str = ""
    """Name of the key that authenticated; for receipts and exceptions, never part of a scope's key."""
    claimed_session_id: str = ""
    """What the header said when it differs from `session_id` (the transcript held ids of another session)."""


NOBODY: Final = Caller()
"""Before the HTTP layer has said who asks."""


class Repeated:
    """What was worked out of the items that the requests of one conversation repeat. Whoever reads requests hands it from one to
    the next; the items it covers are the very same objects in each of them. Written by the history alone."""

    __slots__ = ("digest", "hasher", "ids", "key", "keyed", "length", "said")

    def __init__(self) -> None:
        self.length = 0
        """How many of the first items it covers."""
        self.key = b""
        """The session's, by which they were digested …"""
        self.keyed: Any = None
        """… and a hasher that has read nothing but the key."""
        self.digest = ""
        self.hasher: Any = None
        self.ids: set[str] | None = None
        """Of their calls; None: some cannot be names."""
        self.said: dict[str, tuple[str, Any]] = {}
        """The arguments of the calls of the last reply, which the next request shows again: by their text, their digest and what was
        parsed of them. Few and short ones."""


@dataclass(slots=True)
class Turn:
    """One message at one gate. Made by a wire module (items, tools), completed by the gateway (caller, target, approvals)."""

    gate: Gate
    wire: WireName
    model: str
    items: Sequence[Item] = ()
    """In wire order. Request: the whole transcript. Reply: what the model answered. Result: the `ResultItem`, after the `CallItem` it answers."""
    tools: Sequence[DeclaredTool] = ()
    """Request: as declared. Reply and result: those of the request they answer (the gateway passes them on)."""
    tool_choice: ToolChoice | None = None
    caller: Caller = field(default_factory=lambda: NOBODY)
    usage: Usage | None = None
    """Reply only: settles token and price budgets. None: unknown, which is not nothing; then the reservation settles them."""
    elapsed_ms: int = 0
    """Reply and result: time the provider or the tool took; settles `seconds` budgets."""
    stream: bool = False
    target: str = ""
    """Reply only: the model of the route that answered."""
    released: bool = False
    """Reply only: something already reached the caller, so the reply cannot be asked again elsewhere."""
    claims: Mapping[str, Any] | None = None
    """Raw `metadata.tool_context`, if the caller sent one."""
    claims_trusted: bool = False
    """True only when the claim came over a trusted path; decided by the HTTP layer."""
    approvals: tuple[str, ...] = ()
    """Finding keys (`Finding.key`) that an operator approved for exactly this turn."""
    server_tools: frozenset[str] = frozenset()
    """Raw names the gateway itself runs."""
    remote_tools: frozenset[str] = frozenset()
    """Those of `server_tools` that the gateway has run on somebody else's MCP server."""
    response_format: Mapping[str, Any] | None = None
    """Request: the structured-output schema the caller asked for, if any."""
    request: str = ""
    """Reply and result: `Ruling.request` of the request they answer. Empty: whatever request still waits for a reply."""
    repeated: Repeated | None = field(default=None, compare=False, repr=False)
    """Where the conversation's reader remembers it: of a request, and of the reply to it."""


def again(turn: Turn, items: Sequence[Item]) -> Turn:
    """The same turn with other items. As `dataclasses.replace` does, in a tenth of the steps: every request and reply makes one."""
    made = Turn.__new__(Turn)
    made.gate = turn.gate
    made.wire = turn.wire
    made.model = turn.model
    made.items = items
    made.tools = turn.tools
    made.tool_choice = turn.tool_choice
    made.caller = turn.caller
    made.usage = turn.usage
    made.elapsed_ms = turn.elapsed_ms
    made.stream = turn.stream
    made.target = turn.target
    made.released = turn.released
    made.claims = turn.claims
    made.claims_trusted = turn.claims_trusted
    made.approvals = turn.approvals
    made.server_tools = turn.server_tools
    made.remote_tools = turn.remote_tools
    made.response_format = turn.response_format
    made.request = turn.request
    made.repeated = turn.repeated
    return made
