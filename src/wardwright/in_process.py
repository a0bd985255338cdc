"""The plan of the gateway as a policy of the tool runtime: same facts, same ruling, inside the process.

A call is a reply of one call; what became of earlier calls, read from their `ToolInvoked`, and what the user said are the request
before it. Both go through `govern`. What is counted lies in the session's registers, row by row: no rollback undoes it, a durable
session keeps it. What cannot be done from here (routing, changing what a provider sees) is refused when the plan is loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from wardwright.config import load_config
from wardwright.errors import ConfigError, Problem, WardwrightError
from wardwright.facts import digest
from wardwright.gateway import govern, passes
from wardwright.history import Delta, Head, LedgerEntry, Registers, RegisterValue, ScopeState, dump_head, load_head
from wardwright.history import scope_key as scope_key_of
from wardwright.policy.compile import ROUTING, ModelPlan, Plan, compile_plan
from wardwright.policy.rules import (
    AllowedTools,
    ArgumentSchema,
    Budget,
    Matcher,
    Rule,
    Ruling,
    StructuredOutput,
    ToolSequence,
)
from wardwright.wire.turn import Caller, CallItem, DeclaredTool, Gate, Item, ResultItem, SecretCall, TextItem, Turn
from weakincentives import serde
from weakincentives.prompt import PolicyDecision, ToolContext, ToolInvoked, ToolResult, render_text
from weakincentives.prompt.policies import ALLOW, APPROVALS, approval_register
from weakincentives.session import Registers as SessionRegisters
from weakincentives.session import Session

T = TypeVar("T")

_BEFORE: Final = TextItem("system", "")
"""Stands for everything earlier requests carried; a session has no transcript, so this is all its requests begin with."""
_MANY: Final = 256
"""Events that may wait for the next question before they are taken in without one."""
_MEDIATION: Final = frozenset({"strip_tools", "set_controls", "inject_reminder", "transform"})
_REFUSING: Final = frozenset({"block", "deny_call", "require_approval"})


class ResultWithheld(WardwrightError, PermissionError):
    """A tool ran, but its result may not be seen: the call is rolled back and the model reads why."""


@dataclass(frozen=True, slots=True)
class Governed:
    """Announced for every ruling: subscribe on `session.dispatcher` to hear of alerts, notes and shadow findings."""

    tool_name: str
    call_id: str
    ruling: Ruling


class GovernancePolicy:
    """A compiled plan as a `ToolPolicy`. Holds no state of a session; may serve any number of them.

    `name` is the key of its memory in a session: two different plans in one prompt need different names.
    `key` makes digests of arguments that only its holder can compare with a guess. Without one a random key lies in the
    session itself, where whoever can read a stored session can read both.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        model: str = "",
        name: str = "governance",
        caller: Caller | None = None,
        key: bytes | None = None,
    ) -> None:
        part = plan.model(model)
        if part is None:
            raise ValueError(f"the plan has no model '{model}'; choose one of {', '.join(plan.models)}")
        self.plan = plan
        self.name = name
        self._part = part
        self._caller = caller or Caller()
        self._key = None if key is None else hashlib.blake2b(key, digest_size=32).digest()
        rules = [rule for rules in (part.rules, *part.bundles.values()) for rule in rules.rules]
        self._reads_surface = any(_reads_surface(rule) for rule in rules)
        refusing = [rule for rule in rules if rule.action.name in _REFUSING or isinstance(rule, AllowedTools)]
        self._judges_requests = any("request" in rule.gates for rule in refusing)
        self._judges_results = any("result" in rule.gates and "request" not in rule.gates for rule in refusing)
        self._feeds: WeakKeyDictionary[SessionRegisters, _Feed] = WeakKeyDictionary()
        self._declared: dict[str, tuple[Any, DeclaredTool]] = {}

    @classmethod
    def from_yaml(
        cls,
        source: str | PathLike[str],
        *,
        model: str = "",
        name: str = "governance",
        caller: Caller | None = None,
        key: bytes | None = None,
    ) -> GovernancePolicy:
        """The policy of a config file, or of YAML text. ConfigError for what is wrong with it or cannot be done in process."""
        config = load_config(source)
        plan = compile_plan(config)
        part = plan.model(model)
        if part is not None:
            problems = tuple(_out_of_place(part, config.file))
            if problems:
                raise ConfigError(problems)
        return cls(plan, model=model, name=name, caller=caller, key=key)

    # what the runtime calls

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:
        """Rules on one call, after everything that happened before it."""
        return self._with(context.session, context, lambda run: run.check(tool, params, context))

    def on_result(self, tool: Any, params: Any, result: ToolResult[Any], *, context: ToolContext) -> None:
        """Withholds a result that the plan would not let pass; what passes is counted with the next request."""
        feed = self._feeds.get(context.session.registers)
        if self._judges_requests or self._judges_results or (feed is not None and feed.crowded):
            self._with(context.session, context, lambda run: run.result(tool, params, result, context))

    def user_turn(self, text: str, *, session: Session) -> PolicyDecision:
        """What the user says now, for rules that read text or wait for the user. Refused, it stands in the way of every
        call until the user says something else."""
        return self._with(session, None, lambda run: run.user_turn(text))

    # inside

    def _with(self, session: Session, context: ToolContext | None, work: Callable[[_Turns], T]) -> T:
        """Does the work while nobody else rules on this session, then announces what was ruled."""
        registers = session.registers
        feed = self._feeds.get(registers)
        if feed is None:
            feed = self._feeds[registers] = _Feed(session)
        run = _Turns(self, session, feed, context)
        try:
            return registers.update(f"{self.name}:turn", lambda kept: (kept, work(run)))
        finally:
            for governed in run.rulings:
                session.announce(governed)

    def declared(self, context: ToolContext | None, feed: _Feed) -> tuple[DeclaredTool, ...]:
        """The tools the model sees now; nothing when no rule looks at them."""
        if not self._reads_surface:
            return ()
        prompt = None if context is None else context.prompt
        if prompt is None or context is None:
            return feed.tools
        tools: list[DeclaredTool] = []
        for name in prompt.tool_names(context.session):
            binding = prompt.find_tool(name, context.session)
            known = self._declared.get(name)
            if known is None or known[0] is not binding.tool:
                tool = binding.tool
                known = self._declared[name] = (tool, DeclaredTool(name, tool.description, tool.schema()))
            tools.append(known[1])
        return tuple(tools)

    def digest_key(self, session: Session) -> bytes:
        """The key of a session's digests: of the policy's own if it has one, else a random one the session keeps."""
        if self._key is not None:
            return hashlib.blake2b(session.session_id.encode(), digest_size=32, key=self._key).digest()
        kept = session.registers.get(f"{self.name}:key")
        if kept is None:
            kept = session.registers.update(f"{self.name}:key", _made_once)
        return bytes.fromhex(kept)


def _made_once(kept: str | None) -> tuple[str, str]:
    key = kept or os.urandom(32).hex()
    return key, key


class _Feed:
    """What happened in one session since this process first looked; lives as long as the session's registers."""

    def __init__(self, session: Session) -> None:
        self.events: deque[ToolInvoked] = deque()
        self.tools: tuple[DeclaredTool, ...] = ()
        """As of the last request."""
        self.passed: dict[str, int] = {}
        """Calls that passed and have not ended, with what had happened by then."""
        self.version = 0
        """Rises with everything that is ruled and kept."""
        self.heads: dict[str, tuple[Any, Head]] = {}
        """The head of each scope beside the row it was read from."""
        self.before: tuple[bytes, str] = (b"", "")
        """Digest of the stand-in for what earlier requests carried, beside the key it was made with."""
        self.clear: dict[str, str] = {}
        """Arguments that hold secrets, by call, for as long as a request may show them: judged, and kept nowhere else."""
        self.keys: dict[str, dict[tuple[str, str], None]] = {}
        """The keys of each scope's registers, as far as somebody had to walk over them."""
        _listen(session, ref(self))
        # What was recorded before is read once; what is then heard of twice is known by its call's id.
        self.events.extend(session[ToolInvoked])

    @property
    def crowded(self) -> bool:
        return len(self.events) > _MANY

    def take(self) -> ToolInvoked | None:
        return self.events.popleft() if self.events else None


def _listen(session: Session, feed: ref[_Feed]) -> None:
    """Hears of every call for as long as somebody holds the feed."""

    def heard(event: ToolInvoked) -> None:
        alive = feed()
        if alive is None:
            stop()
        else:
            alive.events.append(event)

    stop = session.dispatcher.subscribe(ToolInvoked, heard)


class _Rows:
    """The registers of one scope, read from the session's own, one row each."""

    __slots__ = ("_keys", "_prefix", "_scope", "_values")

    def __init__(
        self, values: SessionRegisters, prefix: str, scope: str, keys: dict[str, dict[tuple[str, str], None]]
    ) -> None:
        self._values = values
        self._prefix = prefix
        self._scope = scope
        self._keys = keys

    def row(self, key: tuple[str, str]) -> str:
        return f"{self._prefix}{key[0]}\x1f{key[1]}"

    def get(self, key: tuple[str, str], default: RegisterValue | None = None) -> RegisterValue | None:
        kept = self._values.get(self.row(key))
        return default if kept is None else tuple(kept)

    def items(self) -> Iterator[tuple[tuple[str, str], RegisterValue]]:
        """All of them. The session's rows are gone through once; from then on `_Turns._apply` knows the scope's keys."""
        keys = self._keys.get(self._scope)
        if keys is None:
            start = len(self._prefix)
            rows = (row[start:].partition("\x1f") for row in self._values.copy() if row.startswith(self._prefix))
            keys = self._keys[self._scope] = dict.fromkeys((rule, sub) for rule, _, sub in rows)
        for key in keys:
            value = self.get(key)
            if value is not None:
                yield key, value

    def __contains__(self, key: tuple[str, str]) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: tuple[str, str]) -> RegisterValue:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found


class _Ledger:
    """The ledger of the session, read the same way."""

    __slots__ = ("_overlay", "_prefix", "_values")

    def __init__(self, values: SessionRegisters, prefix: str, overlay: Mapping[str, LedgerEntry]) -> None:
        self._values = values
        self._prefix = prefix
        self._overlay = overlay

    def row(self, key: str) -> str:
        return f"{self._prefix}{key}"

    def get(self, key: str, default: LedgerEntry | None = None) -> LedgerEntry | None:
        if key in self._overlay:
            return self._overlay[key]
        kept = self._values.get(self.row(key))
        return default if kept is None else LedgerEntry(*kept)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: str) -> LedgerEntry:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found


class _Turns:
    """One visit to the engine, while the session's registers are held."""

    def __init__(self, policy: GovernancePolicy, session: Session, feed: _Feed, context: ToolContext | None) -> None:
        self.policy = policy
        self.session = session
        self.registers = session.registers
        self.feed = feed
        self.context = context
        run = None if context is None else context.run_context
        self.caller = replace(
            policy._caller, session_id=session.session_id, run_id="" if run is None else run.run_id or run.request_id
        )
        self.key = policy.digest_key(session)
        self.now = int(session.clock.now() * 1000)
        self.rulings: list[Governed] = []
        self.overlay: dict[str, LedgerEntry] = {}

    # the runtime's questions

    def check(self, tool: Any, params: Any, context: ToolContext) -> PolicyDecision:
        self.catch_up()
        call = self._call(tool, params, context)
        register = approval_register(tool.name, params)
        decided = _Approval(register, self.registers)
        tools = self.policy.declared(context, self.feed)
        if self.pending or not self.head.prefix_length or tools != self.feed.tools or self._get("refused"):
            ruling = self._ask_approved(self._request(tools, self.pending), decided)
            self.feed.tools = tools
            if not passes(ruling):
                return self._answer(ruling, ruling.message, tool, params, decided)
        entry = self._ledger().get(f"c:{call.id}")
        again = entry is not None and self._unanswered(entry, call)
        if entry is not None and again:
            # The runtime asks about a call that passed before, because somebody else had to be asked in between. If
            # nothing happened meanwhile the answer stands; else it is judged once more, and counted only if refused.
            if self.feed.passed.get(call.id) == self.feed.version:
                return ALLOW
            self.overlay[f"c:{call.id}"] = entry._replace(status="held")
        turn = self._turn("reply", [call], tools)
        ruling = self._ask_approved(turn, decided, keep=not again)
        self.overlay.clear()
        judged = ruling.calls[0]
        if passes(ruling) and judged.status == "allow":
            if decided.needed:
                lifted = dict.fromkeys(one.rule_id for one in ruling.findings if one.lifted == "approval")
                self._put(f"approved:{call.id}", list(lifted))
            decided.use()
            self.feed.passed[call.id] = self.feed.version
            return ALLOW
        return self._answer(ruling, judged.message or ruling.message, tool, params, decided)

    def result(self, tool: Any, params: Any, result: ToolResult[Any], context: ToolContext) -> None:
        self.catch_up()
        items: list[Item] = [
            self._call(tool, params, context),
            ResultItem(context.call_id, render_text(result), False, tool.name),
        ]
        tools = self.policy.declared(context, self.feed)
        if self.policy._judges_requests:
            turn = self._request(tools, [*self.pending, *items])
            ruling, delta = self._govern(turn)
            if not passes(ruling):
                alone, _ = self._govern(self._request(tools, self.pending))
                if passes(alone):
                    self._withhold(turn, ruling, delta)
        if self.policy._judges_results:
            turn = self._turn("result", items, tools)
            ruling, delta = self._govern(turn)
            if ruling.decision != "allow":
                self._withhold(turn, ruling, delta)

    def _withhold(self, turn: Turn, ruling: Ruling, delta: Delta) -> None:
        self._apply(delta)
        self._announce(turn, ruling)
        raise ResultWithheld(ruling.message)

    def _announce(self, turn: Turn, ruling: Ruling) -> None:
        secret = {item.id for item in turn.items if isinstance(item, SecretCall)}
        for fact in ruling.facts if secret else ():
            if fact.tool_call_id in secret:
                fact.arguments = fact.parsed = None
        call = next((item for item in reversed(turn.items) if isinstance(item, CallItem)), None)
        name, call_id = ("", "") if call is None else (call.name, call.id)
        self.rulings.append(Governed(name, call_id, ruling))

    def user_turn(self, text: str) -> PolicyDecision:
        self.catch_up()
        # What was refused before is said no more.
        self.pending = [item for item in self.pending if not isinstance(item, TextItem)] + [TextItem("user", text)]
        ruling = self._ask(self._request(self.policy.declared(None, self.feed), self.pending))
        return ALLOW if passes(ruling) else PolicyDecision.deny(ruling.message)

    # what happened before

    def catch_up(self) -> None:
        """Takes in what became of calls since the last time: each is known by its id, so nothing counts twice."""
        pending = self.pending
        waiting = {item.call_id for item in pending if isinstance(item, ResultItem)}
        added = False
        while (event := self.feed.take()) is not None:
            call_id = event.call_id
            if event.outcome != "pending":
                self.feed.passed.pop(call_id, None)
            ours = event.outcome == "denied" and event.policy == self.policy.name
            if call_id in waiting or event.outcome == "pending":
                continue
            secret = self.feed.clear.pop(call_id, None)
            if ours:
                continue
            if secret is None:
                call = CallItem(call_id, event.tool_name, _json(event.params))
            else:
                call = SecretCall(call_id, event.tool_name, secret)
            ledger = self._ledger()
            entry = ledger.get(f"c:{call_id}")
            if entry is None:
                # It never came to us: unknown, unreadable, or refused by somebody before us.
                ruling = self._ask(self._turn("reply", [call], self.feed.tools))
                if not passes(ruling) or ruling.calls[0].status != "allow":
                    continue
                entry = self._entry(call)
            elif entry.status == "denied" or ledger.get(f"r:{call_id}") is not None:
                continue
            if entry.digest == digest(self.key, call.arguments):
                pending.append(call)
                if secret is not None:
                    self.feed.clear[call_id] = secret
            pending.append(ResultItem(call_id, event.rendered_output, not event.success, event.tool_name))
            waiting.add(call_id)
            added = True
        if added:
            self.pending = pending

    def _call(self, tool: Any, params: Any, context: ToolContext) -> CallItem:
        """The call as it is judged: with its secrets, which are held back from everything that is kept or announced."""
        arguments = _json(params)
        if params is None or not serde.has_secrets(type(params)):
            return CallItem(context.call_id, tool.name, arguments)
        self.feed.clear[context.call_id] = arguments
        return SecretCall(context.call_id, tool.name, arguments)

    def _unanswered(self, entry: LedgerEntry, call: CallItem) -> bool:
        same = entry.raw_name == call.name and entry.digest == digest(self.key, call.arguments)
        return same and entry.status == "passed" and self._ledger().get(f"r:{call.id}") is None

    def _entry(self, call: CallItem) -> LedgerEntry:
        found = self._ledger().get(f"c:{call.id}")
        return found or LedgerEntry("observed", call.name, digest(self.key, call.arguments), self.head.turn)

    # through the gate

    def _request(self, tools: tuple[DeclaredTool, ...], items: Sequence[Item]) -> Turn:
        return self._turn("request", [_BEFORE, *self.carried, *items], tools)

    def _turn(self, gate: Gate, items: Sequence[Item], tools: tuple[DeclaredTool, ...]) -> Turn:
        return Turn(gate, "in_process", self.policy._part.model_id, items, list(tools), caller=self.caller)

    def _govern(self, turn: Turn) -> tuple[Ruling, Delta]:
        """Who approved a call has approved of its result: the same rules do not hold it again."""
        ruling, delta = govern(self.policy.plan, self._load(), turn, self.now)
        if turn.gate != "reply" and not turn.approvals:
            keys = tuple(
                one.key
                for one in ruling.findings
                if one.key
                and one.facts
                and all(one.rule_id in self._approved(ruling.facts[place].tool_call_id) for place in one.facts)
            )
            if keys:
                turn.approvals = keys
                ruling, delta = govern(self.policy.plan, self._load(), turn, self.now)
        return ruling, delta

    def _approved(self, call_id: str) -> Sequence[str]:
        return self._get(f"approved:{call_id}") or ()

    def _ask(self, turn: Turn) -> Ruling:
        """Rules and keeps what changed."""
        ruling, delta = self._govern(turn)
        self._kept(turn, ruling, delta, keep=True)
        return ruling

    def _ask_approved(self, turn: Turn, decided: _Approval, *, keep: bool = True) -> Ruling:
        """The same for a call that somebody may have approved."""
        ruling, delta = self._govern(turn)
        keys = tuple(one.key for one in ruling.findings if one.key and one.enforced and not one.lifted)
        if keys and decided.granted:
            turn.approvals = (*turn.approvals, *keys)
            ruling, delta = self._govern(turn)
            decided.needed = True
        self._kept(turn, ruling, delta, keep=keep)
        return ruling

    def _kept(self, turn: Turn, ruling: Ruling, delta: Delta, *, keep: bool) -> None:
        through = passes(ruling)
        if keep or not through:
            self._apply(delta)
        self._announce(turn, ruling)
        if turn.gate == "request":
            self._put("refused", None if through else True)
            if through:
                self.carried, self.pending = turn.items[1:], ()
        elif through and keep and ruling.calls and ruling.calls[0].status == "allow":
            self._answered()

    def _answered(self) -> None:
        """The model went on: what it has read is behind us, and the stand-in alone is where the next request begins."""
        self.carried = ()
        feed = self.feed
        if feed.before[0] != self.key:
            seen = self.policy._part.observer.observe(self._turn("request", [_BEFORE], ()), ScopeState(), self.key)
            feed.before = (self.key, seen.transcript_digest)
        if feed.clear:
            held = {item.call_id for item in self.pending if isinstance(item, ResultItem)} | feed.passed.keys()
            feed.clear = {call_id: text for call_id, text in feed.clear.items() if call_id in held}
        head = self.head._replace(prefix_length=1, prefix_digest=feed.before[1], last_digest="")
        self._put_head(self._session_scope(), head)

    def _answer(self, ruling: Ruling, message: str, tool: Any, params: Any, decided: _Approval) -> PolicyDecision:
        waits = ruling.decision == "require_approval" or any(call.status == "require_approval" for call in ruling.calls)
        if not waits:
            return PolicyDecision.deny(message)
        reason = decided.refusal()
        if reason is not None:
            return PolicyDecision.deny(
                f"Cannot call '{tool.name}': approval was refused.{' ' + reason if reason else ''}"
            )
        call_id = "" if self.context is None else self.context.call_id
        decided.wait(tool.name, serde.redact(params), call_id)
        return PolicyDecision(False, f"{message} (approval id {decided.approval_id})", decided.approval_id)

    # rows

    def _session_scope(self) -> str:
        return scope_key_of("session_id", self.caller)

    @property
    def head(self) -> Head:
        return self._head(self._session_scope())

    def _head(self, scope: str) -> Head:
        kept = self._get(f"head:{scope}")
        known = self.feed.heads.get(scope)
        if known is None or known[0] is not kept:
            known = self.feed.heads[scope] = (kept, Head() if kept is None else load_head(kept))
        return known[1]

    def _put_head(self, scope: str, head: Head) -> None:
        kept: dict[str, Any] = {
            name: list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
            for name, value in dump_head(head).items()
        }
        self.feed.heads[scope] = (kept, head)
        self._put(f"head:{scope}", kept)

    @property
    def pending(self) -> list[Item]:
        """What no request has carried through yet."""
        return _loaded(self._get("pending"), self.feed.clear)

    @pending.setter
    def pending(self, items: Sequence[Item]) -> None:
        self._put("pending", _dumped(items))

    @property
    def carried(self) -> list[Item]:
        """What requests have carried since the model last went on: it is still what the next reply answers."""
        return _loaded(self._get("carried"), self.feed.clear)

    @carried.setter
    def carried(self, items: Sequence[Item]) -> None:
        self._put("carried", _dumped(items))

    def _get(self, name: str) -> Any:
        return self.registers.get(f"{self.policy.name}:{name}")

    def _put(self, name: str, value: Any) -> None:
        self.registers.update(f"{self.policy.name}:{name}", lambda _: (value, None))

    def _ledger(self) -> _Ledger:
        return _Ledger(self.registers, f"{self.policy.name}:ledger:", self.overlay)

    def _load(self) -> Registers:
        scopes: dict[str, ScopeState] = {}
        for kind in self.policy._part.scopes:
            key = scope_key_of(kind, self.caller)
            head = self._head(key)
            rows: Any = _Rows(self.registers, f"{self.policy.name}:row:{key}\x1e", key, self.feed.keys)
            ledger: Any = self._ledger() if kind == "session_id" else {}
            scopes[key] = ScopeState(0, head, rows, ledger)
        return Registers(scopes, self.key)

    def _apply(self, delta: Delta) -> None:
        self.feed.version += 1
        for change in delta.scopes:
            known = self.feed.keys.get(change.scope)
            for key, value in change.registers.items():
                row = f"row:{change.scope}\x1e{key[0]}\x1f{key[1]}"
                self._put(row, None if value is None else list(value))
                if known is not None:
                    known.pop(key, None) if value is None else known.setdefault(key)
            for name, entry in change.ledger.items():
                self._put(f"ledger:{name}", list(entry))
            self._put_head(change.scope, change.head)


class _Approval:
    """What somebody decided about one call; the registers are those of the runtime's own approvals."""

    def __init__(self, register: str, registers: SessionRegisters) -> None:
        self.register = register
        self.registers = registers
        self.needed = False

    @property
    def approval_id(self) -> str:
        return self.register.removeprefix(APPROVALS)

    @property
    def granted(self) -> bool:
        entry: dict[str, Any] = self.registers.get(self.register, {})
        return bool(entry.get("granted"))

    def use(self) -> None:
        if self.needed:
            self.registers.update(self.register, _used)

    def refusal(self) -> str | None:
        return self.registers.update(self.register, _refused)

    def wait(self, tool_name: str, arguments: Any, call_id: str) -> None:
        asked = {"tool": tool_name, "arguments": arguments, "call_id": call_id, "waiting": True}

        def add(kept: dict[str, Any] | None) -> tuple[dict[str, Any], None]:
            return {**(kept or {}), **asked}, None

        self.registers.update(self.register, add)


def _used(kept: dict[str, Any] | None) -> tuple[dict[str, Any] | None, None]:
    left = dict(kept or {})
    seats = int(left.pop("granted", 0))
    if seats > 1:
        left["granted"] = seats - 1
    return _unless_used_up(left), None


def _refused(kept: dict[str, Any] | None) -> tuple[dict[str, Any] | None, str | None]:
    if kept is None or "refused" not in kept:
        return kept, None
    left = dict(kept)
    reason = str(left.pop("refused"))
    return _unless_used_up(left), reason


def _unless_used_up(entry: dict[str, Any]) -> dict[str, Any] | None:
    return entry if entry.keys() & {"waiting", "granted", "refused"} else None


def _dumped(items: Sequence[Item]) -> list[list[Any]] | None:
    """Rows for the session's registers. Of a call with secrets only that it was made."""
    rows: list[list[Any]] = []
    for item in items:
        if isinstance(item, TextItem):
            rows.append(["text", item.role, item.text])
        elif isinstance(item, SecretCall):
            rows.append(["secret", item.id, item.name])
        elif isinstance(item, CallItem):
            rows.append(["call", item.id, item.name, item.arguments])
        elif isinstance(item, ResultItem):
            rows.append(["result", item.call_id, item.content, item.is_error, item.name])
    return rows or None


def _loaded(rows: Sequence[Sequence[Any]] | None, clear: Mapping[str, str]) -> list[Item]:
    """The items again. A call whose secrets went with its process is left out: its result names it, the ledger knows it."""
    items: list[Item] = []
    for kind, *fields in rows or ():
        if kind != "secret":
            items.append(_ITEMS[kind](*fields))
        elif fields[0] in clear:
            call_id, name = fields
            items.append(SecretCall(call_id, name, clear[call_id]))
    return items


_ITEMS: Final[Mapping[str, type[TextItem | CallItem | ResultItem]]] = {
    "text": TextItem,
    "call": CallItem,
    "result": ResultItem,
}


def _json(params: object) -> str:
    """Arguments as JSON text, as they are; what a model sent that could not be read stays as it was."""
    if params is None:
        return "{}"
    if isinstance(params, str):
        return params
    if isinstance(params, bytes):
        return params.decode("utf-8", "replace")
    try:
        return serde.dump_json(params)
    except ValueError:
        return repr(params)


# what has no place here


def _reads_surface(rule: Rule) -> bool:
    if isinstance(rule, AllowedTools):
        return True
    if isinstance(rule, ArgumentSchema) and rule.schema is None:
        return True
    return any(
        "declared_tool" in matcher.source or "definition_changed" in matcher.mark or "argument_repair" in matcher.phase
        for matcher in _matchers(rule)
    )


def _matchers(rule: Rule) -> list[Matcher]:
    found = [getattr(rule, name, None) for name in ("tool", "after", "then")]
    if isinstance(rule, ToolSequence) and rule.until is not None:
        found.append(rule.until.tool)
    return [matcher for matcher in found if isinstance(matcher, Matcher)]


def _out_of_place(part: ModelPlan, file: str) -> list[Problem]:
    """Every rule that can only be kept by a gateway, at its place in the file."""
    problems: list[Problem] = []

    def refuse(rule: Rule, key: str, message: str) -> None:
        section = f"policy_bundles.{rule.bundle}" if rule.bundle else "governance"
        path = f"{section}[{rule.order}].{key}"
        problems.append(Problem(file, rule.line, rule.column, path, f"rule '{rule.id}': {message}"))

    for rules in (part.rules, *part.bundles.values()):
        for rule in rules.rules:
            action = rule.action.name
            if action in ROUTING:
                refuse(rule, "action", f"action '{action}' chooses a route, and in process there is none to choose")
            elif action in _MEDIATION:
                refuse(rule, "action", f"action '{action}' changes what a provider sees, which only the gateway can")
            if isinstance(rule, StructuredOutput) or rule.kind == "stream_guard":
                refuse(rule, "kind", f"kind '{rule.kind}' reads the model's answer, which only the gateway sees")
            if isinstance(rule, Budget) and set(rule.limits) - {"calls"}:
                words = ", ".join(sorted(set(rule.limits) - {"calls"}))
                refuse(rule, "limits", f"a budget of {words} is measured by the gateway only")
            if rule.scope not in ("session_id", "run_id"):
                refuse(
                    rule, "cache_scope", f"scope '{rule.scope}' is wider than a session, which only the gateway keeps"
                )
            machine = part.machines[rule.machine]
            if machine.scope not in ("session_id", "run_id") and (rule.state_scope or rule.action.transition_to):
                refuse(
                    rule,
                    "state_machine_id",
                    f"machine '{machine.id}' has scope '{machine.scope}', wider than a session, which only the gateway keeps",
                )
    return problems
