"""The calls of a recorded session made again, each in the state in which it was recorded, and what differs.

A call is judged by itself: whatever it does now, the next one starts from what is stored. It runs in a copy of the session
with the stored files, inside a transaction that is always taken back, so nothing of it stays, on disk neither. What cannot
be done again as it was is left out and says why; tools with effects outside are left out unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import orjson

from .. import serde
from ..errors import (
    DeadlineExceededError,
    FilesystemError,
    PromptEvaluationError,
    SessionStorageError,
    VisibilityExpansionRequired,
)
from ..filesystem import Filesystem, InMemoryFilesystem
from ..frozen import frozen
from ..prompt import Prompt
from ..prompt.events import ToolInvoked
from ..prompt.policies import PolicyState
from ..runtime import Session, ToolCall, execute_tool
from ..serde.codec import CodecError, Opaque, decode, encode
from ..session.session import Core
from ..session.slices import Append, Extend, Replace, SliceOp, SliceWrite, Update, items_of
from .comparison import Line, compare
from .plain import key_text, plain, shown
from .recording import Recording
from .step import Row

_Files = Mapping[str, bytes | None]
"""Contents by path; None where there is no file."""
_REDACTED = orjson.dumps(serde.REDACTED).decode()


@frozen
class Difference:
    """One thing that is not as it was recorded."""

    what: str
    """outcome, text, or the name of a slice or file."""
    lines: tuple[Line, ...]


@frozen
class Again:
    """One call, made again."""

    row: Row
    outcome: str
    """How it ended now; empty when it was not made."""
    text: str
    differences: tuple[Difference, ...]
    left_out: str = ""
    """Why it was not made again."""

    @property
    def verdict(self) -> str:
        return "left_out" if self.left_out else "differs" if self.differences else "same"

    def as_json(self) -> dict[str, Any]:
        return {
            "call": self.row.call,
            "position": self.row.position,
            "tool": self.row.tool,
            "verdict": self.verdict,
            "left_out": self.left_out or None,
            "recorded": {"outcome": self.row.outcome},
            "now": None if self.left_out else {"outcome": self.outcome, "text": self.text},
            "differences": [{"what": one.what, "diff": [str(line) for line in one.lines]} for one in self.differences],
        }


class Rerun:
    """Goes through a recording once, from its beginning; the prompt's resources are open meanwhile."""

    def __init__(self, recording: Recording, prompt: Prompt[Any], *, external: bool = False) -> None:
        self._recording = recording
        self._external = external
        self._session = Session(session_id=recording.session_id)
        self._core: Core = self._session._core
        self._files = {name: InMemoryFilesystem() for name in recording.attached()}
        self._done = 0
        """Operations that were applied."""
        if self._files:
            first = next(iter(self._files.values()))
            prompt = prompt.bind(resources={Filesystem: first})
        self._prompt = prompt

    def calls(self, first: int = 1, last: int | None = None) -> Iterator[Again]:
        """Make the calls of these numbers again, in order."""
        recording = self._recording
        with self._prompt.resources:
            for number in range(first, min(recording.calls, last or recording.calls) + 1):
                yield self._call(recording.row(recording.position_of_call(number)))

    def _call(self, row: Row) -> Again:
        recording = self._recording
        # What a policy counted for this very call is recorded before it, and must not be counted twice.
        self._advance(recording.neighbours(row.position)[0] or 0)
        event = self._event(row.position)
        why = self._why_not(row, event)
        if why:
            self._advance(row.position)
            return Again(row, "", "", (), why)
        before = self._core.state.committed
        outcome, text, state, files = self._made(row, event)
        self._advance(row.position)
        found = [*_compared("outcome", row.outcome, outcome), *_compared("text", event.rendered_output, text)]
        stored = self._core.state.committed
        for cls in {**dict.fromkeys(state), **dict.fromkeys(stored)}:
            if cls is PolicyState:  # what policies note for themselves; what they decide is the outcome
                continue
            now, then = items_of(state, cls), items_of(stored, cls)
            if now is not then and (now is not items_of(before, cls) or then is not items_of(before, cls)):
                found += _compared_items(cls.__qualname__, tuple(then), tuple(now))
        for name, tree in files.items():
            found += _compared_files({path: _content(self._files[name], path) for path in tree}, tree)
        return Again(row, outcome, text, tuple(found))

    def _why_not(self, row: Row, event: Any) -> str:
        if not isinstance(event, ToolInvoked):
            return f"what was recorded of it cannot be read: {event.reason}"
        if row.taken_back_by:
            return f"it was taken back with others at step {row.taken_back_by}, and what it ran in is not stored"
        later = self._recording.kept_with(row)
        if later:
            return f"it is part of a larger transaction, kept at step {later}"
        binding = self._prompt.find_tool(event.tool_name, self._session)
        if binding is not None and binding.tool.effects == "external" and not self._external:
            return "the tool has effects outside; --external makes the call again all the same"
        if _REDACTED in key_text(_arguments(event)):
            return "its arguments hold secrets, which are not stored"
        return ""

    def _made(self, row: Row, event: ToolInvoked) -> tuple[str, str, Any, Mapping[str, _Files]]:
        """Make the call; how it ended, what the model would read, and what slices and files hold afterwards."""
        twin = self._session.clone(session_id=self._session.session_id)
        call = ToolCall(event.tool_name, _arguments(event), row.call_id)
        touched: tuple[str, ...] = ()
        with twin.transaction() as block:
            block.rollback()
            try:
                ended = execute_tool(call, prompt=self._prompt, session=twin)
                outcome, text, touched = ended.outcome, ended.text, ended.changes.files
            except DeadlineExceededError as error:
                outcome, text = "deadline", str(error)
            except (PromptEvaluationError, VisibilityExpansionRequired) as error:
                outcome, text = "interrupted", str(error)
            state = twin._core.state.view(twin.scope)
            files = {
                name: {path: _content(each, path) for path in {*touched, *self._recording.paths(name, row.position)}}
                for name, each in self._files.items()
            }
        return outcome, text, state, files

    # -- the state as it was recorded ------------------------------------------------------------------------------

    def _event(self, position: int) -> Any:
        """The recorded event, of today's class; an `Opaque` if it is not to be had."""
        _, logged = self._recording.record(position)
        return next(value for value in (self._logged(line) for _, line in logged) if _is_event(value))

    def _logged(self, line: bytes) -> Any:
        return decode(self._recording.shapes.unpack(orjson.loads(line)))

    def _advance(self, position: int) -> None:
        while self._done < position:
            self._done += 1
            head, logged = self._recording.record(self._done)
            self._apply(head, logged)

    def _apply(self, head: dict[str, Any], logged: Sequence[tuple[str, bytes]]) -> None:
        core = self._core
        if "z" in head:
            self._session.reset()
        for number, *op in head.get("w", ()):
            cls = _class(self._recording.shapes.entry(number)[1])
            core.state.apply(SliceWrite(cls, self._slice_op(cls, op)), None)
        for name, ops in head.get("f", ()):
            files = self._files[name]
            for op in ops:
                files.store.apply(files.decode_op(op), None)
        for key, value in head.get("r", ()):
            core.registers.update(key, lambda _, new=value: (None if new is None else decode(new), None))
        for _, line in logged:
            item = self._logged(line)
            if not isinstance(item, Opaque):
                core.keep_in_memory(item)

    def _slice_op(self, cls: type, op: list[Any]) -> SliceOp[Any]:
        match op:
            case [0, item]:
                return Append(self._value(item))
            case [1, items]:
                return Extend([self._value(item) for item in items])
            case [2, parts]:
                before = tuple(items_of(self._core.state.committed, cls))
                made: list[Any] = []
                for part in parts:
                    made += before[part[0] : part[0] + part[1]] if len(part) == 2 else [self._value(part[0])]
                return Replace(made)
            case _:
                return Update(self._value(op[1]), self._value(op[2]))

    def _value(self, raw: Any) -> Any:
        value = decode(self._recording.shapes.unpack(raw))
        if isinstance(value, Opaque):
            raise SessionStorageError(
                f"Cannot go back to the state of {self._recording.path}: a stored {value.type_name} cannot be read: "
                f"{value.reason}. Name the file that has its class: --module FILE."
            )
        return value


def _class(name: str) -> type:
    found = decode({"$": "type", "t": name})
    if isinstance(found, Opaque):
        raise SessionStorageError(
            f"Cannot go back to the stored state: the slice {name} cannot be read: {found.reason}. Name the file that "
            "has its class: --module FILE."
        )
    return found


def _is_event(value: Any) -> bool:
    return isinstance(value, ToolInvoked) or (isinstance(value, Opaque) and value.type_name.endswith(":ToolInvoked"))


def _arguments(event: ToolInvoked) -> Any:
    """What the tool was called with, as a model would send it."""
    params = event.params
    if params is None:
        return {}
    if isinstance(params, str | dict):
        return cast("Any", params)
    return plain(encode(params)) if _lost(params) else serde.dump(params)


def _lost(value: Any) -> bool:
    """Whether some part is of a class that is not to be had, as those made for a decorated function are not."""
    if isinstance(value, Opaque):
        return True
    if isinstance(value, dict):
        return any(map(_lost, cast("dict[Any, Any]", value).values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_lost, cast("Sequence[Any]", value)))
    return is_dataclass(value) and any(_lost(getattr(value, field.name, None)) for field in fields(value))


def _content(files: InMemoryFilesystem, path: str) -> bytes | None:
    try:
        return files.read_bytes(path)
    except FilesystemError:
        return None


def _compared(what: str, recorded: str, now: str) -> list[Difference]:
    return [] if recorded == now else [Difference(what, compare(recorded, now))]


def _compared_items(name: str, recorded: tuple[Any, ...], now: tuple[Any, ...]) -> list[Difference]:
    same = 0
    while same < min(len(recorded), len(now)) and (recorded[same] is now[same] or recorded[same] == now[same]):
        same += 1
    texts = ["\n".join(map(_told, items[same:])) for items in (recorded, now)]
    return _compared(f"slice {name}", *texts)


def _told(item: Any) -> str:
    try:
        return shown(plain(encode(item, redact=True)))
    except CodecError:  # what policies remember has a form of its own
        return repr(item)


def _compared_files(recorded: _Files, now: _Files) -> list[Difference]:
    found: list[Difference] = []
    for path in sorted(now):
        if now[path] != recorded[path]:
            texts = [(tree[path] or b"").decode("utf-8", "replace") for tree in (recorded, now)]
            found.append(Difference(f"file {path}", compare(*texts) or (Line("@", " another content, not text"),)))
    return found
