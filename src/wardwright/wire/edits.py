"""What may be done to a body that was read: one set of edits, which every wire makes in its own shape.

An edit takes a body its wire has parsed before, so it complains of nothing; it may change the body in place, because whoever
asks owns it. It reads no plan and decides nothing. Holds the words of that trade and what all wires share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import orjson

from wardwright.wire.body import Json, Object
from wardwright.wire.refusal import Refusal

Change: TypeAlias = Callable[[int, str], str]
"""Number of an item and its text -> what the text becomes."""

NO_RENAMES: Final[Mapping[str, str]] = {}


class _Everything(frozenset[str]):
    def __contains__(self, name: object) -> bool:
        return True

    def __len__(self) -> int:
        return 1


EVERYTHING: Final[Collection[str]] = _Everything()
"""`passing` for what was read before, so that no field is refused a second time."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the gateway declares it to a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What the model is told of one of its calls."""

    call_id: str
    """The id that call and result get in the next request; the provider's own, unless it gave none or gave it twice."""
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class SplicedCall:
    """A call that the caller never saw, with its result."""

    id: str
    name: str
    arguments: str
    result: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Splice:
    """What was taken out of one reply, and the ids of the calls that were left in it."""

    siblings: tuple[str, ...]
    calls: tuple[SplicedCall, ...]


class JudgedCall(Protocol):
    """What an edit reads of a ruling on one call."""

    @property
    def item(self) -> int: ...
    @property
    def call_id(self) -> str: ...
    @property
    def provider_id(self) -> str: ...
    @property
    def status(self) -> str: ...


class Edits(Protocol):
    """The edits of one wire. Names of tools are raw names, as in `DeclaredTool.name`, with `:server` behind them if it has one;
    numbers of items are those of the turn that the same body gives."""

    def refusal(self, refusal: Refusal) -> Object:
        """The body of a refusal, in the wire's own error shape."""
        ...

    def forget(self, body: Object) -> None:
        """Takes out of a request what only the gateway may read."""
        ...

    def set_model(self, body: Object, model: str) -> None:
        """Names another model."""
        ...

    def drop_tools(self, body: Object, names: Collection[str]) -> None:
        """Takes tools out of a request, wherever it declares them, and mends a choice that named one of them."""
        ...

    def set_controls(self, body: Object, controls: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets parameters of hosted tools that a request declares."""
        ...

    def add_tools(self, body: Object, tools: Sequence[ToolSpec]) -> None:
        """Declares further tools, behind the others."""
        ...

    def replace_tool(self, body: Object, name: str, tool: ToolSpec) -> None:
        """Puts another definition in the place of a declared tool; a choice of the one becomes a choice of the other."""
        ...

    def describe_tool(self, body: Object, name: str, append: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Adds to the description of a caller's tool; `parameters`, if given, become its schema."""
        ...

    def remind(self, body: Object, texts: Sequence[str]) -> None:
        """Adds instructions behind those that a request begins with."""
        ...

    def rewrite(self, body: Object, change: Change) -> None:
        """Changes the texts and the results of tools in a request or a reply; what comes back equal stays as it is.

        A text in several parts is changed as a whole and becomes one part. What is signed or sealed over other words, or says the
        old ones elsewhere (signed thinking, log probabilities, speech), goes with them.
        """
        ...

    def keep_calls(
        self,
        reply: Object,
        calls: Sequence[JudgedCall],
        more_rename: Mapping[str, str] = NO_RENAMES,
        change: Change | None = None,
    ) -> None:
        """Leaves in a reply the calls that may pass, under the ids that the caller sees; a call nobody judged is not left.

        `more_rename`: of an id that the caller would see, the one that it sees instead. `change`: of its texts, as in `rewrite`.
        CAUTION: both in one go, because each may take items out, and then the numbers of the other would be those of others.
        """
        ...

    def answered(self, request: Object, reply: Object, results: Mapping[int, ToolAnswer]) -> Object:
        """The next request: the same with `reply` as the model's turn, and behind it one result for every call, by item.

        Neither of the two is changed; the new one holds parts of both.
        """
        ...

    def relax(self, body: Object) -> None:
        """A tool that was forced is no longer: the model may choose."""
        ...

    def splice(self, request: Object, splices: Sequence[Splice]) -> None:
        """Puts calls that were taken out of a reply back where its other calls stand, and their results beside theirs."""
        ...

    def join(self, first: Object, later: Object) -> Object:
        """Two rounds of one answer as one reply: what both say, the calls and the end of the later one, the usage of both."""
        ...

    def echo(self, reply: Object, request: Object) -> None:
        """Where a reply repeats its request, it repeats the caller's own: no model, tool or instruction that was put in its place."""
        ...

    def rename_ids(self, body: Object, names: Mapping[str, str]) -> None:
        """Other ids for calls in a request, and for the results that answer them."""
        ...


class Slot(NamedTuple):
    """One place that holds text."""

    holder: Object
    key: str
    parts: list[Json] | None = None
    """The list that `holder` is a part of; a part that holds no more text leaves it."""

    @property
    def text(self) -> str:
        return cast("str", self.holder[self.key])

    def clear(self) -> None:
        if self.parts is None:
            self.holder[self.key] = ""
        else:
            without(self.parts, self.holder)


def without(parts: list[Json], part: Object) -> None:
    """Takes exactly this part out of its list."""
    parts[:] = [one for one in parts if one is not part]


def changed(texts: Sequence[str], item: int, change: Change) -> str | None:
    """What the text of one item becomes, that was joined from these; None: it stays.

    Parts are read with and without the line breaks that stand for the cuts. Where a change finds something only without them, as
    a word cut in two, that reading counts.
    """
    if len(texts) <= 1:
        text = texts[0] if texts else ""
        new = change(item, text)
        return None if new == text else new
    text, run_on = "\n".join(texts), "".join(texts)
    new, new_run_on = change(item, text), change(item, run_on)
    if new.replace("\n", "") != new_run_on.replace("\n", ""):
        return new_run_on
    return None if new == text else new


def put(slots: Sequence[Slot], text: str) -> None:
    """Makes `text` the whole of what the slots say: the first holds it, the others hold nothing."""
    first, *others = slots
    for slot in others:
        slot.clear()
    if text or first.parts is None:
        first.holder[first.key] = text
    else:
        first.clear()


def objects(value: Json) -> list[Object]:
    """The objects in a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def word(holder: Object, key: str) -> str:
    """A string field; empty when there is none."""
    value = holder.get(key)
    return value if isinstance(value, str) else ""


def renamed(holder: Object, key: str, names: Mapping[str, str]) -> None:
    """Another name in a field, if there is one for what stands there."""
    name = holder.get(key)
    if isinstance(name, str) and name in names:
        holder[key] = names[name]


def parsed_arguments(arguments: str) -> Object:
    """The arguments of a call as the object that some wires carry them in."""
    try:
        given = cast("Json", orjson.loads(arguments)) if arguments else {}
    except orjson.JSONDecodeError:
        given = arguments
    if given is None:  # how some models write that there are none
        return {}
    return given if isinstance(given, dict) else {"arguments": given}


def nothing_to_do(calls: Sequence[JudgedCall], more_rename: Mapping[str, str]) -> bool:
    """Whether all calls may pass as they are."""
    for call in calls:
        if call.status != "allow" or call.call_id != call.provider_id:
            return False
    return not more_rename


def kept_ids(calls: Sequence[JudgedCall], more_rename: Mapping[str, str]) -> dict[int, str]:
    """Of the calls that may pass, by item: the id that the caller sees."""
    return {call.item: more_rename.get(call.call_id, call.call_id) for call in calls if call.status == "allow"}


def forget(body: Object) -> None:
    """As `Edits.forget`; the same in every wire."""
    metadata = body.get("metadata")
    if isinstance(metadata, dict) and "tool_context" in metadata:
        rest = {key: value for key, value in metadata.items() if key != "tool_context"}
        if rest:
            body["metadata"] = rest
        else:
            del body["metadata"]


def set_model(body: Object, model: str) -> None:
    """As `Edits.set_model`; the same in every wire."""
    body["model"] = model


def told(refusal: Refusal) -> Object:
    """What a refusal says beside its type."""
    error: Object = {"code": refusal.code, "message": refusal.message}
    policy = refusal.kind in ("policy_violation", "approval_required")
    if refusal.rule_id or policy:
        error["rule_id"] = refusal.rule_id
    if refusal.receipt_id or policy:
        error["receipt_id"] = refusal.receipt_id
    if refusal.blocked_tools or policy:
        error["blocked_tools"] = list(refusal.blocked_tools)
    if refusal.approval:
        error["approval"] = refusal.approval
    return error


def openai_refusal(refusal: Refusal) -> Object:
    """As `Edits.refusal`, for both wires of OpenAI."""
    return {"error": {"type": refusal.kind, "param": None, **told(refusal)}}


def schema_for(parameters: Mapping[str, Any]) -> Object:
    """A schema of arguments, of which some providers demand that it says `object`."""
    return {"type": "object", "properties": {}, **parameters} if "type" not in parameters else dict(parameters)


def described(definition: Object, append: str, parameters: Mapping[str, Any] | None, schema: str) -> None:
    """Adds to the description in a definition; `schema`: its field for the schema of the arguments."""
    if append:
        before = definition.get("description")
        definition["description"] = f"{before}\n{append}" if isinstance(before, str) and before else append
    if parameters is not None:
        definition[schema] = schema_for(parameters)


def summed(first: Json, later: Json) -> Json:
    """Two accounts of usage as one. What is no count is the later's, if that says it."""
    if isinstance(first, dict) and isinstance(later, dict):
        return {key: summed(first.get(key), later.get(key)) for key in {**first, **later}}
    if _number(first) and _number(later):
        return cast("float", first) + cast("float", later)
    return first if later is None else later


def _number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
