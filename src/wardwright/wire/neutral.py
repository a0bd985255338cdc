"""What Chat Completions, Responses and Messages can all say, in words of none of them: the middle of every translation.

Each wire reads a body into it and writes one from it. A field goes one of three ways, by a published list: it is carried, it is
left out because it means nothing to another provider, or it is refused by name. Nothing that carries meaning is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from wardwright.errors import WireError
from wardwright.wire.body import Json, Object

CARRIED: Final = "carried"
LEFT_OUT: Final = "left out"
REFUSED: Final = "refused"

MAX_USER: Final = 64
"""Characters of a user's name that OpenAI's wires take."""


@dataclass(slots=True)
class Words:
    text: str
    refusal: bool = False
    """The model's own refusal to answer."""


@dataclass(slots=True)
class Thought:
    """Reasoning that the model shows. Only in replies: providers take back their own alone."""

    text: str


@dataclass(slots=True)
class Picture:
    url: str
    """An address, or the picture itself as a data URL."""
    detail: str = ""


@dataclass(slots=True)
class Document:
    data: str
    """The file itself, as a data URL."""
    name: str = ""


@dataclass(slots=True)
class Call:
    id: str
    name: str
    arguments: str
    free: bool = False
    """The arguments are free text, not JSON."""


Shown: TypeAlias = Words | Picture | Document


@dataclass(slots=True)
class Result:
    call_id: str
    content: str | list[Shown]
    """A text that was no list of parts stays none."""
    is_error: bool = False
    free: bool = False
    """It answers a call with free text."""


Part: TypeAlias = Shown | Call | Result
Speaker: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(slots=True)
class Message:
    role: Speaker
    parts: list[Part]
    plain: bool = False
    """Its one text was no list of parts."""


@dataclass(slots=True)
class Tool:
    name: str
    description: str | None
    schema: Mapping[str, Any] | None
    strict: bool | None = None
    free: Json = None
    """The format of free text, `{}` if there is none; None: its arguments are JSON."""


@dataclass(frozen=True, slots=True)
class Choice:
    mode: Literal["auto", "none", "required", "tool", "allowed"]
    names: tuple[str, ...] = ()
    required: bool = False
    """`allowed`: one of them must be called."""


MODES: Final[Mapping[str, Choice]] = {"auto": Choice("auto"), "none": Choice("none"), "required": Choice("required")}
"""What both wires of OpenAI say by one word."""


@dataclass(slots=True)
class Output:
    """The structured output that was asked for. Without a schema: any JSON object."""

    schema: Mapping[str, Any] | None
    name: str = "output"
    strict: bool | None = None
    description: str | None = None


@dataclass(slots=True)
class Asked:
    """A request."""

    model: str
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list[Tool])
    choice: Choice | None = None
    parallel: bool | None = None
    output: Output | None = None
    stream: Json = None
    max_tokens: Json = None
    temperature: Json = None
    top_p: Json = None
    top_k: Json = None
    stop: list[str] = field(default_factory=list[str])
    effort: str = ""
    verbosity: str = ""
    user: str = ""


@dataclass(slots=True)
class Used:
    input: int
    output: int
    cached: int = 0
    """Of the input, read from a cache."""
    kept: int = 0
    """Of the input, written to a cache."""
    reasoning: int = 0


Finish: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(slots=True)
class Answer:
    """A reply."""

    id: str
    model: str
    parts: list[Words | Thought | Call]
    finish: Finish
    created: int = 0
    used: Used | None = None


def lost(what: str, to: str, path: str = "") -> WireError:
    """Something that another wire cannot say."""
    at = f" - at `$.{path}`" if path else ""
    return WireError(f"{what} cannot be carried to {to}, which the chosen model is asked in{at}")


def check(fields: Object, fates: Mapping[str, str], wire: str) -> None:
    """Refuses the first field that is refused by the list, or on no list, unless its value asks for nothing."""
    for name, value in fields.items():
        fate = fates.get(name, REFUSED)
        if fate.startswith(REFUSED) and value not in (None, False, 0, [], {}) and (name, value) not in _USUAL:
            raise WireError(
                f"{name!r} can be said in {wire} only, and the chosen model is asked in another wire format - at `$.{name}`"
            )


_USUAL: Final[Sequence[tuple[str, Json]]] = (("n", 1), ("truncation", "disabled"), ("repetition_penalty", 1))
"""Values that say what would be without them."""


def number(usage: Json, *path: str) -> int:
    """A count in an account of usage; 0 when there is none."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return int(usage) if isinstance(usage, (int, float)) and not isinstance(usage, bool) else 0


def texts(parts: Sequence[Part | Thought]) -> list[str]:
    return [part.text for part in parts if isinstance(part, Words) and part.text]
