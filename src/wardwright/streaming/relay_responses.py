"""OpenAI Responses streams on their way to the client.

Items have an order that means something, so they pass as long as all before them passed: the first that must wait holds back those
behind it. Reasoning passes with the item it led to, for a provider refuses it without. The client's numbers (`output_index`, `sequence_number`) have no gaps, over all rounds, and the final response repeats
exactly the items that the client was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wardwright.errors import WireError
from wardwright.streaming.relay import Relay, copied, written
from wardwright.wire import responses
from wardwright.wire.bare import RESPONSE
from wardwright.wire.body import Json, Object
from wardwright.wire.edits import objects
from wardwright.wire.turn import Turn

_OPENING: Final = frozenset({"response.created", "response.in_progress", "response.queued"})
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_HOSTED: Final = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
"""Items that tell what the provider ran. Those that only say at their end who runs them are not among them."""
_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "message": frozenset({"content", "id", "phase", "role", "status", "type"}),
    "reasoning": frozenset({"content", "encrypted_content", "id", "status", "summary", "type"}),
}
_PART: Final = frozenset({"annotations", "logprobs", "refusal", "text", "type"})
"""Fields of items of words, and of their parts."""


_AT: Final = frozenset(
    {"type", "sequence_number", "output_index", "item_id", "content_index", "summary_index", "obfuscation"}
)
"""Fields of any event of an item."""
_RUNNING: Final = _AT | {
    "background", "code", "delta", "output_format", "partial_image_b64", "partial_image_index", "quality", "size",
}  # fmt: skip
"""Fields of events that tell how a tool of the provider goes on."""


def _events(**says: str) -> Mapping[str, frozenset[str]]:
    """Events of an item, with all their fields."""
    return {f"response.{name.replace('__', '.')}": _AT.union(fields.split()) for name, fields in says.items()}


_SAYS: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "message": _events(
        output_item__added="item",
        output_item__done="item",
        content_part__added="part",
        content_part__done="part",
        output_text__delta="delta logprobs",
        output_text__done="text logprobs",
        output_text__annotation__added="annotation annotation_index",
        refusal__delta="delta",
        refusal__done="refusal",
    ),
    "reasoning": _events(
        output_item__added="item",
        output_item__done="item",
        content_part__added="part",
        content_part__done="part",
        reasoning_summary_part__added="part",
        reasoning_summary_part__done="part",
        reasoning_summary_text__delta="delta",
        reasoning_summary_text__done="text",
        reasoning_text__delta="delta",
        reasoning_text__done="text",
    ),
}
"""Events that belong to an item of words. Some clients act on an event of a call whatever item it stands at."""


class ResponsesRelay(Relay):
    """As `Relay`."""

    __slots__ = ("_begun", "_end", "_ids", "_kinds", "_numbers", "_opening", "_output", "_passed", "_renamed", "_same",
                 "_seen", "_sequence", "_waiting", "_waits")  # fmt: skip

    wire = "responses"

    def _begin(self) -> None:
        self._opening: list[Object] = []
        """Events that begin the response, until the first item follows them."""
        self._begun = False
        """The first round is over, or said how the response begins."""
        self._same: Object = {}
        """What stays the same over all rounds."""
        self._sequence = 0
        self._output: list[Json] = []
        """Items the client was given in earlier rounds, and in this one those told from the judged reply."""
        self._ids: set[str] = set()
        self._renamed: dict[int, str] = {}
        self._numbers: dict[int, int] = {}
        """Items of the current reply that passed: the provider's number -> the client's. Always the first ones."""
        self._waits: list[Object] = []
        """Reasoning behind those items that waits for what follows it."""
        self._waiting: list[tuple[int, Object, int]] = []
        """Its events: number of the item, what is said, size."""
        self._kinds: list[Json] = []
        """Of those items, the types."""
        self._seen: set[int] = set()
        self._passed: list[Object] = []
        self._end = "response.completed"

    def _assemble(self) -> responses.StreamAssembler:
        return responses.StreamAssembler(passing=self._passing)

    def _parsed(self, body: Object) -> Turn:
        return responses.parse_reply(body, passing=self._passing)

    def _pass(self, said: Object) -> bool:
        index = said.get("output_index")
        kind = str(said["type"])
        if isinstance(index, int):
            if kind == "response.output_item.added":
                self._open(index, said.get("item"))
            if index in self._numbers:
                self._go(index, self._fitting(said, self._kinds[index]))
                return True
            if index < len(self._numbers) + len(self._waits):
                self._waiting.append((index, self._fitting(said, "reasoning"), self._size))
            return False
        if kind in _OPENING:
            if not self._begun:
                self._learn(said.get("response"))
                self._opening.append(said)
            return True
        if kind in _ENDS:
            self._end = kind
            return False
        return True

    def _open(self, index: int, item: Json) -> None:
        """Decides whether an item passes before the ruling."""
        self._seen.add(index)
        if self._kept or index != len(self._numbers) + len(self._waits) or not isinstance(item, dict):
            return
        kind = item.get("type")
        if kind == "reasoning":
            self._waits.append(item)
            if not self._hold_thoughts:
                self._let_go()
        elif not self._hold_text if kind == "message" else not self._hold_hosted and kind in _HOSTED:
            self._waits.append(item)
            self._let_go()

    def _fitting(self, said: Object, item: Json) -> Object:
        """An event of an item that passes, with the fields that it may have."""
        event = str(said["type"])
        if item in _SAYS:
            known = _SAYS[str(item)].get(event)
            if known is not None:
                return said if known.issuperset(said) else self._only(said, known)
        elif event in _SAYS["message"] and event.startswith("response.output_item."):
            return self._only(said, _SAYS["message"][event])
        elif event.startswith(f"response.{item}"):
            return self._only(said, _RUNNING | {"arguments"} if item == "mcp_call" else _RUNNING)
        if event in self._passing:
            return said
        self._broken = True
        raise WireError(f"an event {event!r} does not belong to an item {item!r}")

    def _let_go(self) -> None:
        """What waited passes."""
        for item in self._waits:
            index = len(self._numbers)
            name = self._name(item)
            if name != item.get("id"):
                self._renamed[index] = name
            self._numbers[index] = len(self._output) + index
            self._kinds.append(item.get("type"))
        self._waits = []
        waiting, self._waiting = self._waiting, []
        for index, said, size in waiting:
            self.held_bytes -= size
            self._go(index, said)

    def _go(self, index: int, said: Object) -> None:
        said["output_index"] = self._numbers[index]
        item = said.get("item")
        if isinstance(item, dict):
            item = said["item"] = self._clean(item)
        part = said.get("part")
        if isinstance(part, dict):
            said["part"] = self._only(part, _PART)
        name = self._renamed.get(index)
        if name is not None:
            if "item_id" in said:
                said["item_id"] = name
            if isinstance(item, dict):
                said["item"] = {**item, "id": name}
        self._emit(said)

    def _clean(self, item: Object) -> Object:
        """An item of words without the fields that no such item has."""
        known = _WORDS.get(str(item.get("type")))
        if known is None:
            return item
        clean = self._only(item, known)
        content = clean.get("content")
        if isinstance(content, list):
            clean["content"] = [self._only(part, _PART) for part in objects(content)]
        return clean

    def _only(self, fields: Object, known: frozenset[str]) -> Object:
        return {key: value for key, value in fields.items() if key in known or key in self._passing}

    def _name(self, item: Object) -> str:
        """An id that no other item of the answer has: some providers give every reply the same ones."""
        given = item.get("id")
        name = given if isinstance(given, str) and given else str(item.get("call_id") or "item")
        unique, number = name, 1
        while unique in self._ids:
            number += 1
            unique = f"{name}_{number}"
        self._ids.add(unique)
        return unique

    def _emit(self, event: Object) -> None:
        if self._opening:
            self._begun = True
            opening, self._opening = self._opening, []
            for one in opening:
                self._write({"type": one["type"], "response": self._response(one.get("response"))})
        self._write(event)

    def _write(self, event: Object) -> None:
        event["sequence_number"] = self._sequence
        self._sequence += 1
        self._out.append(written(str(event["type"]), event))

    def _learn(self, response: Json) -> None:
        if isinstance(response, dict) and not self._same:
            self._same = {key: response[key] for key in ("id", "created_at", "model") if key in response}

    def _response(self, response: Json) -> Object:
        given: Object = {}
        if isinstance(response, dict):
            given = {key: response[key] for key in response if key in RESPONSE or key in self._passing}
        return {**given, **self._same, **self._head}

    def _held(self, body: Object) -> Object:
        output = objects(body.get("output"))
        passed = len(self._numbers)
        # The final response may leave items out that no rule reads; then nobody can say which of them the client has.
        if passed and (len(output) != len(self._seen) or [item.get("type") for item in output[:passed]] != self._kinds):
            raise WireError("the streamed items and the final response disagree")
        self._passed = [dict(self._clean(item)) for item in output[:passed]]
        for index, name in self._renamed.items():
            self._passed[index]["id"] = name
        return {**body, "output": copied(list(output[passed:]))}

    def _go_on(self, body: Object) -> None:
        self._items(body)

    def _again(self) -> None:
        self._numbers, self._kinds, self._renamed, self._seen = {}, [], {}, set()
        self._waits, self._waiting = [], []

    def _items(self, body: Object) -> None:
        self._output += self._passed
        self._passed = []
        if not self._begun and not self._opening:
            self._learn(body)
            self._opening = begun(body)
        self._begun = True
        for given in objects(body.get("output")):
            item: Object = {**self._clean(given), "id": self._name(given)}
            self._item(item)
            self._output.append(item)

    def _finish(self, body: Object) -> None:
        self._items(body)
        response: Object = {**body, "output": self._output}
        if self._usage is not None:
            response["usage"] = self._usage
        self._emit({"type": self._end, "response": self._response(response)})

    def _item(self, item: Object) -> None:
        """A whole item, as the events that bring it."""
        number = len(self._output)
        kind = item.get("type")
        at: Object = {"item_id": item["id"], "output_index": number}
        begun = {**item, "status": "in_progress"} if "status" in item else dict(item)
        pieces: list[Object] = []
        if kind == "message":
            begun["content"] = []
            for place, part in enumerate(objects(item.get("content"))):
                pieces += part_events({**at, "content_index": place}, part)
        elif kind == "function_call" or kind == "custom_tool_call":
            field, event = (
                ("arguments", "function_call_arguments")
                if kind == "function_call"
                else ("input", "custom_tool_call_input")
            )
            text = item.get(field)
            if isinstance(text, str):
                begun[field] = ""
                pieces.append({"type": f"response.{event}.delta", **at, "delta": text})
                done: Object = {"type": f"response.{event}.done", **at, field: text}
                if kind == "function_call":
                    done["name"] = item.get("name")
                pieces.append(done)
        elif kind == "reasoning":
            begun["summary"] = []
            for place, part in enumerate(objects(item.get("summary"))):
                pieces += _summary_events({**at, "summary_index": place}, part)
        self._emit({"type": "response.output_item.added", "output_index": number, "item": begun})
        for piece in pieces:
            self._emit(piece)
        self._emit({"type": "response.output_item.done", "output_index": number, "item": item})

    def _tell(self, body: Object) -> None:
        status = body.get("status")
        self._end = f"response.{status}" if status in ("incomplete", "failed") else "response.completed"
        self._finish({**body, "output": copied(body.get("output"))})

    def _refused(self, error: Object) -> bytes:
        # Beside the fields of the event stands the error itself, without which the official client would not raise.
        inner = error.get("error")
        told = inner if isinstance(inner, dict) else {}
        event: Object = {
            "type": "error",
            "sequence_number": self._sequence,
            "code": told.get("code"),
            "message": told.get("message"),
            "param": None,
            "error": told,
        }
        return written("error", event)


def begun(body: Object) -> list[Object]:
    """The events that begin a response which was told whole, or never told its beginning."""
    response: Object = {**body, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    if "completed_at" in response:
        response["completed_at"] = None
    return [{"type": kind, "response": response} for kind in ("response.created", "response.in_progress")]


def part_events(at: Object, part: Object) -> list[Object]:
    field = "refusal" if part.get("type") == "refusal" else "text"
    event = "refusal" if field == "refusal" else "output_text"
    text = part.get(field)
    begun = dict(part)
    pieces: list[Object] = []
    if isinstance(text, str):
        begun[field] = ""
        more: Object = {}
        if event == "output_text":
            begun["annotations"] = []
            more["logprobs"] = part.get("logprobs") or []
        pieces.append({"type": f"response.{event}.delta", **at, "delta": text, **more})
        for place, note in enumerate(objects(part.get("annotations"))):
            pieces.append(
                {
                    "type": "response.output_text.annotation.added",
                    **at,
                    "annotation_index": place,
                    "annotation": note,
                }
            )
        pieces.append({"type": f"response.{event}.done", **at, field: text, **more})
    return [
        {"type": "response.content_part.added", **at, "part": begun},
        *pieces,
        {"type": "response.content_part.done", **at, "part": part},
    ]


def _summary_events(at: Object, part: Object) -> list[Object]:
    text = part.get("text")
    return [
        {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}},
        {"type": "response.reasoning_summary_text.delta", **at, "delta": text},
        {"type": "response.reasoning_summary_text.done", **at, "text": text},
        {"type": "response.reasoning_summary_part.done", **at, "part": part},
    ]
