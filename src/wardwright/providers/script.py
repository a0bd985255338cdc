"""What a scripted provider says: lines from config, and a default script that shows what the gateway does without any model.

Decides by the request alone, so that equal requests get equal answers. Knows no wire; `scripted` writes what is said here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from wardwright.config import Node, Problems, kind_of
from wardwright.wire.turn import CallItem, HostedCallItem, HostedResultItem, Item, ResultItem, TextItem, Turn

SHOWN: Final = 500
"""Characters of a user's text or of a result that the default script repeats."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    name: str
    arguments: str
    """JSON text, or whatever else a script wants to try."""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """One scripted reply; an error when `status` is given."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    status: int = 200


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a script. All that is given must hold."""

    said: Said
    contains: str = ""
    """In what the user said since the last reply, whatever the case."""
    result: str | None = None
    """In a tool's result since the last reply; empty: any result."""
    turn: int | None = None
    """Which reply of the conversation this is, from 1."""


def compile_script(node: Node, problems: Problems) -> tuple[Line, ...]:
    """`script: [{when: {contains, tool_result, turn}, reply: {text, tool_calls} | {status, message}}]`."""
    return tuple(_line(child, problems) for child in problems.sequence(node))


def _line(node: Node, problems: Problems) -> Line:
    given = problems.mapping(node, ("reply",), ("when",))
    contains, result, turn = "", None, None
    if "when" in given:
        when = problems.mapping(given["when"], (), ("contains", "tool_result", "turn"))
        if "contains" in when:
            contains = problems.text(when["contains"])
        if "tool_result" in when:
            node = when["tool_result"]
            if node.value is True:
                result = ""
            elif isinstance(node.value, str):
                result = problems.text(node)
            else:
                problems.error(node, f"expected true, or text that the result contains, got {kind_of(node)}")
        if "turn" in when:
            turn = problems.integer(when["turn"], 1)
    return Line(_said(given["reply"], problems) if "reply" in given else Said(), contains, result, turn)


def _said(node: Node, problems: Problems) -> Said:
    given = problems.mapping(node, (), ("text", "tool_calls", "status", "message"))
    if "status" in given or "message" in given:
        if "text" in given or "tool_calls" in given:
            problems.error(node, "a reply is an error (status, message) or an answer (text, tool_calls), not both")
        status = problems.integer(given["status"], 400) if "status" in given else 500
        if status > 599:
            problems.error(given["status"], f"the status of an error is 400 to 599, got {status}")
        return Said(problems.text(given["message"]) if "message" in given else f"scripted error {status}", (), status)
    text = problems.text(given["text"], empty=True) if "text" in given else ""
    calls: list[ScriptedCall] = []
    for child in problems.sequence(given["tool_calls"]) if "tool_calls" in given else ():
        one = problems.mapping(child, ("name",), ("arguments", "id"))
        arguments = "{}"
        if "arguments" in one:
            node = one["arguments"]
            if isinstance(node.value, str):
                arguments = node.value
            elif isinstance(node.value, dict):
                arguments = orjson.dumps(node.plain()).decode()
            else:
                problems.error(node, f"expected a mapping, or text as the model writes it, got {kind_of(node)}")
        if "name" in one:
            call_id = problems.text(one["id"]) if "id" in one else ""
            calls.append(ScriptedCall(problems.text(one["name"]), arguments, call_id))
    if not text and not calls and isinstance(node.value, dict) and not given:
        problems.error(node, "must not be empty: text, tool_calls, or status and message")
    return Said(text, tuple(calls))


class _Since:
    """What came since the model's last reply."""

    __slots__ = ("names", "results", "turn", "user")

    def __init__(self, items: Sequence[Item]) -> None:
        self.turn = 1
        self.results: list[ResultItem] = []
        self.names: dict[str, str] = {}
        texts: list[str] = []
        replying = False
        for item in items:
            model = isinstance(item, CallItem | HostedCallItem | HostedResultItem) or (
                isinstance(item, TextItem) and item.role == "assistant"
            )
            if model and not replying:
                self.turn += 1
                self.results.clear()
                texts.clear()
            replying = model
            if isinstance(item, CallItem):
                self.names[item.id] = item.name
            elif isinstance(item, ResultItem):
                self.results.append(item)
            elif isinstance(item, TextItem) and item.role == "user":
                texts.append(item.text)
        self.user = "\n".join(texts)


def speak(script: Sequence[Line], turn: Turn) -> Said:
    """The first line that fits; the default script when none does."""
    since = _Since(turn.items)
    for line in script:
        if line.turn is not None and line.turn != since.turn:
            continue
        if line.contains and line.contains.casefold() not in since.user.casefold():
            continue
        if line.result is not None and not any(line.result in one.content for one in since.results):
            continue
        return line.said
    return _default(turn, since)


_CALL: Final = re.compile(r"\bcall\s+([^\s{]{1,200})\s*(?=(\{)?)", re.IGNORECASE)


def _default(turn: Turn, since: _Since) -> Said:
    tools = [tool.name for tool in turn.tools if tool.hosted is None]
    choice = turn.tool_choice
    if choice is not None and choice.mode == "none":
        tools = []
    elif choice is not None and choice.mode == "tool":
        tools = [name for name in tools if name in choice.names]
    calls, missing = _asked(since.user, tools)
    if not calls and tools and choice is not None and choice.mode in ("required", "tool"):
        calls = [ScriptedCall(tools[0], _object_in(since.user))]
    if calls:
        return Said("", tuple(calls))
    if missing:
        have = f"The tools I have: {', '.join(tools)}." if tools else "I have no tools."
        return Said(f"I cannot call {missing}: it is not among the tools of this request. {have}")
    if since.results:
        told = [
            f"{since.names.get(one.call_id) or one.name or 'The tool'} answered: {_short(one.content)}"
            for one in since.results
        ]
        return Said("\n".join(told))
    hint = f" To see me use a tool, say: call {tools[0]} {{}}" if tools else ""
    said = f"You said: {_short(since.user)}" if since.user else "You said nothing."
    return Said(f"{said}\n\nI am the scripted provider, no model is asked.{hint}")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _asked(text: str, tools: Sequence[str]) -> tuple[list[ScriptedCall], str]:
    """The calls that the user asks for, and the first that cannot be made."""
    calls: list[ScriptedCall] = []
    missing = ""
    for match in _CALL.finditer(text):
        name = match[1]
        arguments = _object_at(text, match.end()) if match[2] else None
        known = name if name in tools else name.rstrip(".,;:!?`'\"")
        if known in tools:
            calls.append(ScriptedCall(known, arguments or "{}"))
        elif arguments is not None:
            missing = missing or name
    return calls, missing


_DECODER: Final = json.JSONDecoder()


def _object_at(text: str, start: int) -> str | None:
    """The JSON object that starts there, written in one way; what is no JSON up to the end of its line, as it stands."""
    try:
        value = _DECODER.raw_decode(text, start)[0]
        return orjson.dumps(value).decode()
    except (
        ValueError,
        TypeError,
        RecursionError,
    ):  # no JSON, or none that can be written: huge numbers, half characters
        return text[start:].partition("\n")[0]


def _object_in(text: str) -> str:
    start = text.find("{")
    found = _object_at(text, start) if start >= 0 else None
    return found or "{}"
