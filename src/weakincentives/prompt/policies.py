"""Policies: who may call which tool now. Checked before the handler, told of successes after it.

A policy object holds no state and may serve many sessions. What it must remember lies in the session, under the place
the policy stands at in its prompt: in the `PolicyState` slice, rolled back with the call, or, for what counts calls,
in the session's registers, which no rollback undoes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from immutables import Map

from .. import serde
from ..errors import FilesystemError, PromptValidationError
from ..filesystem import Filesystem
from ..filesystem.paths import normalize
from ..session import Session, keyed_slice
from .tool_context import ToolContext
from .tool_result import ToolResult


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """What a policy answers."""

    allowed: bool
    reason: str | None = None
    """Read by the model, word for word, when the call is denied."""
    approval_id: str = ""
    """Set when the call is neither allowed nor denied yet: somebody must approve it."""

    @staticmethod
    def allow() -> PolicyDecision:
        return ALLOW

    @staticmethod
    def deny(reason: str) -> PolicyDecision:
        return PolicyDecision(False, reason)


ALLOW: Final = PolicyDecision(True)


class ToolPolicy(Protocol):
    """A rule about tool calls. Only `check` is required.

    `check` may also return None (allow) or a string (deny); its first parameter gets the tool's name instead of the
    tool when it is called `tool_name`. Optional: `name`, `on_result(tool, params, result, *, context)`,
    `release(tool, params, *, context)` (a call this policy allowed never started) and
    `validate(tool_names, place)` (the prompt is being bound).
    """

    def check(
        self, tool: Any, params: Any, /, *, context: ToolContext
    ) -> PolicyDecision | str | Awaitable[PolicyDecision | str | None] | None: ...


class PlacedPolicy:
    """A policy at its place in a prompt, with the differences between the accepted forms removed."""

    __slots__ = ("ask", "checks", "listens", "name", "place", "policy", "release", "wants_name")

    def __init__(self, place: str, policy: Any) -> None:
        check = getattr(policy, "check", None)
        if not callable(check):
            raise PromptValidationError(
                f"{type(policy).__qualname__} at {place} is not a policy: it has no check(tool, params, *, context) method"
            )
        self.place = place
        self.policy = policy
        name: object = getattr(policy, "name", None)
        self.name = name if isinstance(name, str) and name else policy.__class__.__name__
        self.checks: Callable[..., object] = check
        self.wants_name = _first_parameter(check) == "tool_name"
        """Whether `check` and `on_result` get the tool's name instead of the tool."""
        self.listens: Callable[..., object] | None = getattr(policy, "on_result", None)
        self.release: Callable[..., object] | None = getattr(policy, "release", None)
        self.ask: Callable[..., object] | None = getattr(policy, "ask", None) if hasattr(policy, "heard") else None

    def decision(self, answer: object) -> PolicyDecision:
        """The answer of `check`, in the one form the pipeline reads; anything unknown denies."""
        if answer is None:
            return ALLOW
        if isinstance(answer, PolicyDecision) and isinstance(answer.allowed, bool):
            if answer.allowed or (isinstance(answer.reason, str) and answer.reason):
                return answer
            return PolicyDecision(False, self.unexplained, answer.approval_id)
        if isinstance(answer, str):
            return PolicyDecision(False, answer or self.unexplained)
        kind = repr(answer) if isinstance(answer, PolicyDecision) else type(answer).__name__
        return PolicyDecision(
            False,
            f"Policy '{self.name}' gave no usable decision: expected PolicyDecision, str or None, got {kind}. "
            "The call was denied and cannot succeed until the policy is fixed.",
        )

    def raised(self, error: Exception) -> PolicyDecision:
        """A policy that raises denies, and names itself."""
        try:
            detail = str(error) or type(error).__name__
        except Exception:  # noqa: BLE001  INVARIANT: a policy whose error cannot be told denies all the same
            detail = type(error).__name__
        return PolicyDecision(
            False,
            f"Policy '{self.name}' failed: {detail.rstrip('.')}. The call was denied and cannot succeed until the policy is fixed.",
        )

    @property
    def unexplained(self) -> str:
        return f"Policy '{self.name}' denied the call without a reason."


def _first_parameter(check: Callable[..., object]) -> str:
    try:
        return next(iter(inspect.signature(check).parameters), "")
    except (TypeError, ValueError):
        return ""


@keyed_slice(lambda state: cast("PolicyState", state).policy_name)
@dataclass(frozen=True, slots=True)
class PolicyState:
    """What one policy remembers in one session. Keyed by the policy's place.

    Built with `tools` and `keys`, whose values a policy may need; `invoked_tools` and `invoked_keys` are their keys.
    """

    policy_name: str
    """The policy's place in its prompt: `section/path/name#index`."""
    tools: Mapping[str, None] = field(default_factory=Map[str, None])
    keys: Mapping[tuple[str, str], str] = field(default_factory=Map[tuple[str, str], str])
    """(tool, key) to a mark of what was known then, such as a file's digest."""

    @property
    def invoked_tools(self) -> frozenset[str]:
        return frozenset(self.tools)

    @property
    def invoked_keys(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.keys)

    @classmethod
    def patched(cls, old: PolicyState | None, key: str, delta: tuple[str, str | None, str]) -> PolicyState:
        tool, subject, mark = delta
        state = cls(key) if old is None else old
        if subject is None:
            return cls(key, _map(state.tools).set(tool, None), state.keys)
        return cls(key, state.tools, _map(state.keys).set((tool, subject), mark))


def _map(mapping: Mapping[Any, Any]) -> Map[Any, Any]:
    return mapping if isinstance(mapping, Map) else Map(mapping)


def _state(context: ToolContext, policy: object) -> tuple[str, PolicyState | None]:
    place = context.policy_place or type(policy).__name__
    return place, context.session.item(PolicyState, place)


def _remember(session: Session, place: str, tool: str, subject: str | None = None, mark: str = "") -> None:
    session[PolicyState].update(place, (tool, subject, mark))


def _names(tools: Iterable[str] | None) -> frozenset[str] | None:
    if isinstance(tools, str):
        raise PromptValidationError(f"tools must be a collection of tool names, got the string {tools!r}")
    return None if tools is None else frozenset(tools)


class SequentialDependencyPolicy:
    """A tool may run only after others have succeeded in this session."""

    name = "sequential_dependency"

    def __init__(self, dependencies: Mapping[str, Iterable[str]]) -> None:
        self.dependencies = {tool: cast("frozenset[str]", _names(needed)) for tool, needed in dependencies.items()}
        self._mentioned: frozenset[str] = frozenset[str]().union(*self.dependencies.values())
        cycle = _cycle(self.dependencies)
        if cycle:
            raise PromptValidationError(f"SequentialDependencyPolicy has a cycle: {' -> '.join(cycle)}")

    def validate(self, tool_names: frozenset[str], place: str) -> None:
        """Refuse a prompt in which a required tool can never be called."""
        missing = sorted(
            required
            for tool, needed in self.dependencies.items()
            if tool in tool_names
            for required in needed
            if required not in tool_names
        )
        if missing:
            raise PromptValidationError(
                f"SequentialDependencyPolicy at {place} requires tools the prompt does not have: {', '.join(missing)}"
            )

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:  # noqa: ARG002
        needed = self.dependencies.get(tool.name)
        if not needed:
            return ALLOW
        _, state = _state(context, self)
        missing = sorted(needed if state is None else needed.difference(state.tools))
        if not missing:
            return ALLOW
        return PolicyDecision(
            False,
            f"Cannot call '{tool.name}' - missing required tools: {', '.join(missing)}\n"
            f"Call these tools first, then retry {tool.name}.",
        )

    def on_result(self, tool: Any, params: Any, result: ToolResult[Any], *, context: ToolContext) -> None:  # noqa: ARG002
        if tool.name in self._mentioned:
            place, state = _state(context, self)
            if state is None or tool.name not in state.tools:
                _remember(context.session, place, tool.name)


def _cycle(graph: Mapping[str, frozenset[str]]) -> list[str]:
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for following in sorted(graph.get(node, ())):
            found = visit(following, [*path, node])
            if found:
                return found
        done.add(node)
        return []

    for start in graph:
        found = visit(start, [])
        if found:
            return found
    return []


_READ_TOOLS: Final = ("read_file",)
_WRITE_TOOLS: Final = ("write_file", "edit_file", "append_file", "delete_file", "move_file", "copy_file")
_PATH_FIELDS: Final = ("dst", "destination", "target", "to", "path", "file_path", "filename", "file")
_SOURCE_FIELDS: Final = ("src", "source")


def _argument(params: object, name: str) -> object:
    if isinstance(params, Mapping):
        return cast("Mapping[str, object]", params).get(name)
    return getattr(params, name, None)


class ReadBeforeWritePolicy:
    """An existing file must have been read, as it is now, before it may be overwritten, changed or removed.

    Tool names map to the parameter that holds the path; given as plain names, the parameter is found by its usual
    names, a destination before a path. `resolve` turns a path as the model writes it into one of the filesystem, for
    tools that show it another root. A move passes on what is known of its source, so nothing unread is lost by way of it.
    """

    name = "read_before_write"

    def __init__(
        self,
        *,
        read_tools: Iterable[str] | Mapping[str, str] = _READ_TOOLS,
        write_tools: Iterable[str] | Mapping[str, str] = _WRITE_TOOLS,
        resolve: Callable[[str], str] | None = None,
    ) -> None:
        self.read_tools = _path_fields(read_tools)
        self.write_tools = _path_fields(write_tools)
        self.resolve = resolve

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:
        if tool.name not in self.write_tools:
            return ALLOW
        path = self._path(self.write_tools[tool.name], params)
        if path is None:
            return PolicyDecision(
                False,
                f"Cannot tell which file '{tool.name}' would write, so it cannot be checked against what was read.",
            )
        fs = context.filesystem
        if fs is None:
            return PolicyDecision(
                False,
                f"Cannot write to {path}: no filesystem is bound, so it cannot be known whether the file was read.",
            )
        try:
            return self._judge(fs, path, context)
        except FilesystemError as error:
            return PolicyDecision(False, str(error))

    def on_result(self, tool: Any, params: Any, result: ToolResult[Any], *, context: ToolContext) -> None:  # noqa: ARG002
        parameter = self.read_tools.get(tool.name)
        if parameter is None:
            parameter = self.write_tools.get(tool.name)
        if parameter is None:
            return
        path, fs = self._path(parameter, params), context.filesystem
        if path is None or fs is None:
            return
        path = self._resolved(path)
        if not fs.exists(path) or fs.is_dir(path):
            return
        place, state = _state(context, self)
        key, mark = ("file", normalize(path)), fs.digest(path)
        if tool.name in self.write_tools and self._moved_unread(fs, params, state, mark):
            return
        if state is None or state.keys.get(key) != mark:
            _remember(context.session, place, *key, mark)

    def _moved_unread(self, fs: Filesystem, params: object, state: PolicyState | None, mark: str) -> bool:
        """Whether the file came from a path that is gone now, and was not known there."""
        for name in _SOURCE_FIELDS:
            source = _argument(params, name)
            if isinstance(source, str):
                source = self._resolved(source)
                known = None if state is None else state.keys.get(("file", normalize(source)))
                return known != mark and not fs.exists(source)
        return False

    def _judge(self, fs: Filesystem, path: str, context: ToolContext) -> PolicyDecision:
        place = self._resolved(path)
        if not fs.exists(place):
            return ALLOW
        _, state = _state(context, self)
        if not fs.is_dir(place):
            return self._known(fs, place, path, state)
        for below in fs.glob("**/*", place):
            if not fs.is_dir(below):
                decision = self._known(fs, below, below, state)
                if not decision.allowed:
                    return decision
        return ALLOW

    def _known(self, fs: Filesystem, path: str, shown: str, state: PolicyState | None) -> PolicyDecision:
        known = None if state is None else state.keys.get(("file", normalize(path)))
        if known is None:
            return PolicyDecision(False, f"Cannot write to {shown} without reading it first")
        if known != fs.digest(path):
            return PolicyDecision(
                False,
                f"Cannot write to {shown} without reading it first\nIt has changed since you last read it; read it again, then retry.",
            )
        return ALLOW

    def _resolved(self, path: str) -> str:
        return path if self.resolve is None else self.resolve(path)

    def _path(self, parameter: str, params: object) -> str | None:
        for name in (parameter,) if parameter else _PATH_FIELDS:
            value = _argument(params, name)
            if value is not None:
                # Several paths in one argument are not one path: better no answer than a file nobody has.
                return os.fspath(cast("str", value)) if isinstance(value, str | os.PathLike) else None
        return None


def _path_fields(tools: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(tools, Mapping):
        return dict(cast("Mapping[str, str]", tools))
    return dict.fromkeys(cast("frozenset[str]", _names(tools)), "")


class KeyedDependencyPolicy:
    """A tool may be called for a key only after another one has succeeded for the same key."""

    name = "keyed_dependency"

    def __init__(self, *, requires: Mapping[str, str], key: str) -> None:
        self.requires = dict(requires)
        self.key = key
        self._needed = frozenset(self.requires.values())

    def validate(self, tool_names: frozenset[str], place: str) -> None:
        missing = sorted(
            needed for tool, needed in self.requires.items() if tool in tool_names and needed not in tool_names
        )
        if missing:
            raise PromptValidationError(
                f"KeyedDependencyPolicy at {place} requires tools the prompt does not have: {', '.join(missing)}"
            )

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:
        needed = self.requires.get(tool.name)
        if needed is None:
            return ALLOW
        value = _argument(params, self.key)
        _, state = _state(context, self)
        if state is not None and (needed, _key_text(value)) in state.keys:
            return ALLOW
        return PolicyDecision(
            False,
            f"Cannot call '{tool.name}' with {self.key}={value!r} before '{needed}' succeeded for it\n"
            f"Call {needed} with the same {self.key} first, then retry {tool.name}.",
        )

    def on_result(self, tool: Any, params: Any, result: ToolResult[Any], *, context: ToolContext) -> None:  # noqa: ARG002
        if tool.name in self._needed:
            place, state = _state(context, self)
            subject = _key_text(_argument(params, self.key))
            if state is None or (tool.name, subject) not in state.keys:
                _remember(context.session, place, tool.name, subject)


def _key_text(value: object) -> str:
    return json.dumps(serde.dump(value), sort_keys=True, ensure_ascii=False)


class QuotaPolicy:
    """At most so many calls in a session. A seat is taken when the call is checked, and kept once its handler starts."""

    name = "quota"

    def __init__(self, max_calls: int, tools: Iterable[str] | None = None) -> None:
        if max_calls < 0:
            raise PromptValidationError(f"QuotaPolicy max_calls must be 0 or more, got {max_calls}")
        self.max_calls = max_calls
        self.tools = _names(tools)

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:  # noqa: ARG002
        if self.tools is not None and tool.name not in self.tools:
            return ALLOW
        used = context.session.registers.take(self._register(context), self.max_calls)
        if used < 0:
            return ALLOW
        return PolicyDecision(False, f"Quota exceeded: {used}/{self.max_calls} calls used")

    def release(self, tool: Any, params: Any, *, context: ToolContext) -> None:  # noqa: ARG002
        if self.tools is None or tool.name in self.tools:
            context.session.registers.update(self._register(context), lambda used: (max(0, (used or 0) - 1), None))

    def _register(self, context: ToolContext) -> str:
        return f"quota:{context.policy_place or self.name}"


class RateLimitPolicy:
    """At most so many calls of one tool within any minute."""

    name = "rate_limit"

    def __init__(self, max_calls_per_minute: int, tools: Iterable[str] | None = None) -> None:
        if max_calls_per_minute < 1:
            raise PromptValidationError(
                f"RateLimitPolicy max_calls_per_minute must be 1 or more, got {max_calls_per_minute}"
            )
        self.max_calls_per_minute = max_calls_per_minute
        self.tools = _names(tools)

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:  # noqa: ARG002
        if self.tools is not None and tool.name not in self.tools:
            return ALLOW
        now = context.session.clock.now()

        def take(times: list[float] | None) -> tuple[list[float], int]:
            recent = [at for at in times or () if at > now - 60]
            if len(recent) >= self.max_calls_per_minute:
                return recent, len(recent)
            return [*recent, now], -1

        used = context.session.registers.update(self._register(tool, context), take)
        if used < 0:
            return ALLOW
        return PolicyDecision(
            False,
            f"Rate limit exceeded: {used} calls to {tool.name} in last minute\n"
            f"Maximum: {self.max_calls_per_minute} calls per minute\n"
            "Wait 60 seconds before retrying",
        )

    def release(self, tool: Any, params: Any, *, context: ToolContext) -> None:  # noqa: ARG002
        if self.tools is None or tool.name in self.tools:
            context.session.registers.update(self._register(tool, context), _without_last)

    def _register(self, tool: Any, context: ToolContext) -> str:
        return f"rate:{context.policy_place or self.name}:{tool.name}"


def _without_last(times: list[float] | None) -> tuple[list[float], None]:
    return (times or [])[:-1], None


Answer = bool | str | None
Ask = Callable[[Any, Any, ToolContext], Answer | Awaitable[Answer]]
ApprovalEntry = dict[str, Any]
"""What a session's register holds of one approval: `tool`, `arguments` (redacted) and `call_id` of the call that asked,
whether it is `waiting` for a decision, for how many calls it is `granted`, and why it was `refused`."""


class ApprovalPolicy:
    """Somebody must approve each call of these tools.

    With `ask`, that function decides, outside of any lock: True approves, False or a reason refuses, None leaves it
    open. What is open suspends the call: its outcome is `pending`, and `runtime.resume` goes on once it was decided. An
    approval is bound to the tool and its arguments, survives a restart of a durable session, and serves one call.
    """

    name = "approval"

    def __init__(self, tools: Iterable[str] | None = None, ask: Ask | None = None) -> None:
        self.tools = _names(tools)
        self._asker = ask
        self.ask: Callable[..., Any] | None = None if ask is None else self._ask
        """Called by the pipeline before the call takes its turn; `heard` gets the answer."""

    def _ask(self, tool: Any, params: Any, *, context: ToolContext) -> Answer | Awaitable[Answer]:
        if self._asker is None or not self._governs(tool):
            return None
        entry: ApprovalEntry = context.session.registers.get(approval_register(tool.name, params), {})
        return None if "granted" in entry or "refused" in entry else self._asker(tool, params, context)

    def heard(self, answer: object, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision | None:  # noqa: ARG002
        """Take the answer down: an approval, for this call alone, that `check` finds; a refusal at once."""
        if answer is None:
            return None
        if answer is True:
            context.approved_at = context.approved_at | {context.policy_place}
            return None
        return _refusal(tool, answer if isinstance(answer, str) and answer else "It was rejected.")

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:
        if not self._governs(tool) or context.policy_place in context.approved_at:
            return ALLOW
        call = {"tool": tool.name, "arguments": serde.redact(params), "call_id": context.call_id, "waiting": True}

        def use(entry: ApprovalEntry | None) -> tuple[ApprovalEntry | None, PolicyDecision | None]:
            left: ApprovalEntry = {} if entry is None else dict(entry)
            seats: int = left.pop("granted", 0)
            if seats > 1:
                left["granted"] = seats - 1
            if seats:
                return _unless_used_up(left), ALLOW
            if "refused" in left:
                refusal = _refusal(tool, left.pop("refused"))
                return _unless_used_up(left), refusal
            return {**left, **call}, None

        register = approval_register(tool.name, params)
        decision = context.session.registers.update(register, use)
        if decision is not None:
            return decision
        approval_id = register.removeprefix(APPROVALS)
        return PolicyDecision(
            False,
            f"'{tool.name}' needs approval before it can run (approval id {approval_id}).\n"
            "The call did not run. Wait for a decision, then retry with the same arguments.",
            approval_id=approval_id,
        )

    def release(self, tool: Any, params: Any, *, context: ToolContext) -> None:
        if self._governs(tool) and context.policy_place not in context.approved_at:
            context.session.registers.update(approval_register(tool.name, params), _given_back)

    def _governs(self, tool: Any) -> bool:
        return self.tools is None or tool.name in self.tools


APPROVALS: Final = "approval:"
"""How the names of registers begin that hold approvals."""


def approval_register(tool_name: str, params: object) -> str:
    """Where an approval of this tool with exactly these arguments is kept."""
    text = json.dumps([tool_name, serde.dump(params)], sort_keys=True, ensure_ascii=False)
    return APPROVALS + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def granted(entry: ApprovalEntry | None) -> tuple[ApprovalEntry, None]:
    """The entry after somebody approved one call."""
    left = {key: value for key, value in (entry or {}).items() if key != "waiting"}
    return {**left, "granted": left.get("granted", 0) + 1}, None


def refused(entry: ApprovalEntry | None, reason: str) -> ApprovalEntry:
    """The entry after somebody refused the next call."""
    left = {key: value for key, value in (entry or {}).items() if key != "waiting"}
    return {**left, "refused": reason}


def _unless_used_up(entry: ApprovalEntry) -> ApprovalEntry | None:
    return entry if entry.keys() & {"waiting", "granted", "refused"} else None


def _given_back(entry: ApprovalEntry | None) -> tuple[ApprovalEntry, None]:
    left = entry or {}
    return {**left, "granted": left.get("granted", 0) + 1}, None


def _refusal(tool: Any, reason: str) -> PolicyDecision:
    return PolicyDecision(False, f"Cannot call '{tool.name}': approval was refused.{' ' + reason if reason else ''}")
