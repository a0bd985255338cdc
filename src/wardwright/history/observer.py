"""A turn, seen through catalog and ledger: which facts in it are current, which are new, and what the ledger should learn.

New: the ledger does not hold it. Current: new, or after the last assistant item, or refused when it was first seen. Rules judge
current facts, so a retry meets the same ruling; only new ones count. Never believes what a caller says of its own tools.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, cast

import orjson

from wardwright.catalog import MEMO_LENGTH, MEMO_LIMIT, Catalog, Identity, fold, result_status
from wardwright.errors import ToolNameCollision, TurnTooLarge
from wardwright.facts import (
    PHASES,
    RISK_CLASSES,
    STORED_FIELDS,
    VISIBILITY,
    ExecutionLocation,
    Mark,
    Phase,
    ResultStatus,
    RiskClass,
    Source,
    ToolFact,
    canonical,
    digest,
    text_digest,
)
from wardwright.history.ledger import Head, LedgerEntry, LedgerStatus, RegisterKey, RegisterValue, ScopeState
from wardwright.history.requests import EVERY_TOOL, REQUESTS, RequestRecord, answered, find
from wardwright.wire.schema import SchemaUnsupported, Work, check_text
from wardwright.wire.turn import (
    CallItem,
    DeclaredTool,
    HostedCallItem,
    HostedResultItem,
    Item,
    ResultItem,
    TextItem,
    Turn,
)

SURFACE: Final = "surface"
"""Rule key of the registers that pin tool definitions."""
MAX_PINNED: Final = 512
"""Definitions pinned per session. A tool beyond them counts as changed: the cap errs towards denying."""
MAX_SURFACE_BYTES: Final = 200_000
MAX_SURFACES_BYTES: Final = 4_000_000
"""How big a remembered surface may be, and all of them together: callers choose them."""
MAX_ID: Final = 256
"""Length of an id, or of a name, that is kept as it is. A longer one is kept as a digest."""
MAX_ITEMS: Final = 50_000
"""Items of a transcript …"""
MAX_EVENTS: Final = 1_000
"""… and calls, results and hosted events of one reply that are judged. What has more is refused."""
MAX_SHARED: Final = 64
"""Surfaces known by identity."""
MAX_SAID: Final = 500
"""Letters of arguments that are remembered of a reply until the next request: what is parsed of them may be twenty times as big."""


_SHAPE: Final = STORED_FIELDS[:14]
"""The fields of a fact that its tool and its source decide, but for the id and the status."""
SAYS: Final[re.Pattern[str]] = re.compile(
    "[^\\s\\x00-\\x1f\\x7f-\\x9f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e"
    "\\u2060-\\u206f\\u2800\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a"
    "\\U000e0000-\\U000e0fff]"
)
"""Something that can be seen. A text without it is no word of the user."""
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
"""How a word usually begins."""
_SHAPED: Final[tuple[Source, ...]] = ("assistant_tool_call", "tool_result", "tool_choice", "inferred")
_sha256 = hashlib.sha256
_FORGED: Final[tuple[Mark, ...]] = ("forged",)
_UNDECLARED: Final[tuple[Mark, ...]] = ("undeclared",)
_NO_PINS: Final[Mapping[RegisterKey, RegisterValue | None]] = {}
_NONE_STRIPPED: Final[Mapping[str, str]] = {}

_entry: Callable[[type[LedgerEntry], tuple[LedgerStatus, str, str, int, bool, bool]], LedgerEntry] = cast(
    "Any", tuple
).__new__
"""Makes an entry in a third of the time; a transcript makes many."""


@dataclass(slots=True)
class Surface:
    """The declared tools of a request, named. Memoised by digest, because the same surface comes with every request."""

    digest: str
    facts: tuple[ToolFact, ...]
    by_name: Mapping[str, DeclaredTool]
    kept: Mapping[str, str] = field(default_factory=dict[str, str])
    """Raw name → the name under which its definition is pinned: folded, without wrappers, of bounded length."""
    names: frozenset[str] = frozenset()
    """All of those."""
    pins: dict[RegisterKey, RegisterValue | None] = field(default_factory=dict[RegisterKey, RegisterValue | None])
    """What a session that sees its first surface pins."""
    judged: dict[str, Any] = field(default_factory=dict[str, Any])
    """Scratch for the evaluator: what it found out about this surface under one plan."""
    quiet: Any = None
    """The rules that it found to be about none of these tools."""


class Observed:
    """One turn, seen through catalog and ledger."""

    __slots__ = (
        "answers",
        "before",
        "bundles",
        "changed",
        "facts",
        "key",
        "known",
        "ledger",
        "news_from",
        "news_turn",
        "notes",
        "phase",
        "phases",
        "pins",
        "repairing",
        "retry",
        "stripped",
        "surface",
        "surface_changed",
        "transcript_digest",
        "turn",
        "user_turns",
        "words_from",
        "work",
    )

    facts: list[ToolFact]
    """Current events in wire order; declared tools are in `surface`."""
    surface: Surface
    known: int
    """Items at the start that the last released request already carried, unchanged."""
    transcript_digest: str
    turn: Turn | None
    key: bytes
    ledger: dict[str, LedgerEntry]
    """Entries to write if the gate passes; `refused` is set by the gate."""
    pins: Mapping[RegisterKey, RegisterValue | None]
    """Definitions to pin if the gate passes."""
    notes: tuple[str, ...]
    stripped: Mapping[str, str]
    """Tools that the provider was not shown: raw name (or EVERY_TOOL) → id of the rule that took it away."""
    changed: tuple[ToolFact, ...]
    """Declared tools whose definition differs from the pinned one (with their mark)."""
    surface_changed: bool
    phase: Phase
    user_turns: tuple[int, ...]
    """For every new user text, the number of facts before it."""
    repairing: tuple[str, ...]
    """Raw names of tools whose failed call this turn shows."""
    work: Work | None
    """What checking the arguments of failed calls may still cost, all of them together."""
    retry: bool
    """The same transcript as last time."""
    news_from: int
    """Request: where the items begin that no released reply has answered …"""
    news_turn: int
    """… and the turn since which they have come."""
    words_from: int
    """Request: where the items begin whose words no released reply has answered."""
    answers: tuple[RequestRecord, ...]
    """Reply and result: the requests it may answer, the likeliest last."""
    phases: tuple[str, ...]
    """Their phases."""
    bundles: tuple[str, ...]
    """Bundles attached to them."""
    before: RequestRecord | None
    """Request: what is kept of the same transcript, when it came before."""

    def __init__(
        self,
        facts: list[ToolFact],
        surface: Surface,
        known: int = 0,
        transcript_digest: str = "",
        turn: Turn | None = None,
        key: bytes = b"",
    ) -> None:
        self.facts = facts
        self.surface = surface
        self.known = known
        self.transcript_digest = transcript_digest
        self.turn = turn
        self.key = key
        self.ledger = {}
        self.pins = _NO_PINS
        self.stripped = _NONE_STRIPPED
        self.surface_changed = self.retry = False
        self.phase = "planning"
        self.notes = self.changed = self.user_turns = self.repairing = self.answers = self.phases = self.bundles = ()
        self.work = self.before = None
        self.news_from = self.news_turn = self.words_from = 0

    def with_items(self, turn: Turn, items: Sequence[Item]) -> Observed:
        """The same, as if the turn had had these items."""
        other = replace(turn, items=items, repeated=None)
        return Observed(self.facts, self.surface, self.known, self.transcript_digest, other, self.key)

    @property
    def content_digest(self) -> str:
        """What an approval of the whole gate is bound to: everything the turn says. Not made before it is asked for."""
        turn = self.turn
        if turn is None:
            return self.transcript_digest
        whole = self.transcript_digest or _digests(_walk(turn.items, None)[0], 0, self.key)[1]
        choice = turn.tool_choice
        forced = "" if choice is None else _sized(choice.mode, *choice.names)
        wanted = "" if turn.response_format is None else _dumped(turn.response_format).hex()
        return text_digest(self.key, _sized(turn.gate, whole, self.surface.digest, forced, wanted, turn.model))


def _dumped(value: Any) -> bytes:
    """Canonical JSON, whatever order the keys came in. What a fast writer cannot write is written slowly, and marked."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return b"\x00" + json.dumps(value, sort_keys=True, default=repr).encode()


def _definition(tool: DeclaredTool) -> tuple[Any, ...]:
    said = tool.name, tool.description, tool.schema, tool.hosted, tool.controls, tool.server
    return said if tool.further is None else (*said, tool.further)


def _sized(*parts: str) -> str:
    """The parts behind their lengths: no content of one can pass for the border of another."""
    return "".join([f"{len(part)}:{part}" for part in parts])


Word: TypeAlias = tuple[Any, ...]
"""An item as plain values. CAUTION: two different items must never give one, or a caller could hide new items in a known prefix:
the first says which kind it is, and each kind has its own number of values."""


def _written(words: Sequence[Word]) -> bytes:
    """The words as JSON, one by one: what a word gives does not depend on those beside it."""
    try:
        return orjson.dumps(words)[1:-1]
    except TypeError:  # a lone surrogate
        return b",".join([_written_slowly(word) for word in words])


def _written_slowly(word: Word) -> bytes:
    try:
        return orjson.dumps(word)
    except TypeError:
        return json.dumps(word, separators=(",", ":")).encode()


def _digests(words: Sequence[Word], length: int, key: bytes) -> tuple[str, str]:
    """Digest of the first `length` items, and of all of them."""
    if not 0 < length <= len(words):
        try:
            written = orjson.dumps(words)[1:-1]  # as `_written` does, without the call
        except TypeError:
            written = _written(words)
        return "", _sha256(key + written).hexdigest()[:32]
    hasher = _sha256(key + _written(words[:length]))
    first = hasher.hexdigest()[:32]
    if length < len(words):
        hasher.update(b"," + _written(words[length:]))
    return first, hasher.hexdigest()[:32]


def _hosted_word(item: Item) -> Word:
    if isinstance(item, HostedCallItem):
        return "hosted", item.id, item.kind, item.server, item.name, item.arguments
    if isinstance(item, HostedResultItem):
        return "shown", item.is_error, item.call_id, item.kind, item.server, item.name, item.content
    raise TypeError(f"unknown item {type(item).__name__}")


def _walk(items: Sequence[Item], met: set[str] | None) -> tuple[list[Word], set[str] | None]:
    """All items as words; and the ids of their calls beside those `met` before, if they can be names: each has one of its own,
    and none is long. Else None."""
    words: list[Word] = []
    for item in items:
        # By `is`, where a transcript has many: an `isinstance` that says no takes ten times as long.
        if type(item) is TextItem:
            # The same words cut otherwise read otherwise.
            words.append((item.role, item.parts or item.text))
        elif type(item) is ResultItem:
            words.append(("result", item.is_error, item.call_id, item.name, item.parts or item.content))
        elif isinstance(item, CallItem):
            call_id = item.id
            words.append(("call", call_id, item.name, item.arguments))
            if met is not None:
                if call_id and call_id not in met and len(call_id) <= MAX_ID:
                    met.add(call_id)
                else:
                    met = None
        else:
            words.append(_hosted_word(item))
    return words, met


def _read(turn: Turn, length: int, key: bytes) -> tuple[Any, bool, str, str]:
    """A hasher that has read the key; whether the ids of calls can be their names; the digest of the first `length` items, if
    there are so many, and of all."""
    items, before = turn.items, turn.repeated
    if before is None:
        words, ids = _walk(items, set())
        return _sha256(key), ids is not None, *_digests(words, length, key)
    if 0 < before.length == length <= len(items) and before.key == key:
        # The very items that were digested before: only what follows them is new.
        words, ids = _walk(items[length:], before.ids)
        first, hasher = before.digest, before.hasher
        if words:
            hasher = hasher.copy()
            try:
                written = orjson.dumps(words)[1:-1]  # as `_written` does, without the call
            except TypeError:
                written = _written(words)
            hasher.update(b"," + written)
    else:
        words, ids = _walk(items, set())
        before.key, before.keyed, before.said = key, _sha256(key), {}
        first, hasher = "", before.keyed.copy()
        if 0 < length <= len(words):
            hasher.update(_written(words[:length]))
            first = hasher.hexdigest()[:32]
            if length < len(words):
                hasher.update(b"," + _written(words[length:]))
        else:
            hasher.update(_written(words))
    whole = before.digest = hasher.hexdigest()[:32]
    before.length, before.hasher, before.ids = len(items), hasher, ids
    return before.keyed, ids is not None, first, whole


def _tail(items: Sequence[Item], tail: int) -> int:
    """Where the items after the last assistant item begin: what the model is asked to read now. `tail`: their number."""
    while tail:
        item = items[tail - 1]
        if type(item) is not ResultItem and (type(item) is not TextItem or item.role == "assistant"):
            break
        tail -= 1
    return tail


def _start(known: int, tail: int, again: bool, news_from: int) -> int:
    """The first item that needs a look: what stands before it was judged, and answered, as it is.

    `again`: the same request, or nothing was released since. What was news then is still what the model is asked to read.
    """
    start = known if known < tail else tail
    return news_from if again and news_from < start else start


def ledger_keys(turn: Turn, key: bytes, head: Head) -> Iterable[str]:
    """The ledger entries that judging this turn may need; `Store.load` fetches them."""
    items = turn.items
    keys: list[str] = []
    key = key.ljust(64, b"\0")
    if turn.gate != "request":
        for item in items:
            if isinstance(item, CallItem):
                keys.append(
                    f"c:{short_id(item.id, key)}" if item.id else f"n:{_nameless(key, item.name, item.arguments)}"
                )
            elif isinstance(item, ResultItem):
                name = _answered_id(item, key)
                keys.extend((f"c:{name}", f"r:{name}", f"b:{name}"))
            elif isinstance(item, (HostedCallItem, HostedResultItem)):
                keys.extend(_hosted_names(item, _hosted_digest(key, item), key))
        return keys
    words, ids = _walk(items, set())
    names = None if ids is not None else _names(items, key)
    first, whole = _digests(words, head.prefix_length, key)
    known = head.prefix_length if first and first == head.prefix_digest else 0
    again = known == len(items) or head.asked_turn == head.turn
    start = _start(known, _tail(items, len(items)), again, head.news_from) if known else 0
    for index in range(start, len(items)):
        item = items[index]
        if isinstance(item, CallItem):
            name = item.id if names is None else names[index]
            keys.extend((f"c:{name}", f"a:{name}"))
            if not item.id:
                keys.append(f"n:{_nameless(key, item.name, item.arguments)}")
        elif isinstance(item, ResultItem):
            name = _answered_id(item, key) if names is None else names[index]
            keys.extend((f"c:{name}", f"r:{name}", f"b:{name}"))
        elif isinstance(item, TextItem):
            if item.role == "user":
                keys.append(f"u:{text_digest(key, item.text)}")
        else:
            keys.extend(_hosted_names(item, _hosted_digest(key, item), key))
    if turn.claims is not None and turn.claims_trusted:
        keys.append(f"c:{short_id(_claimed_id(turn.claims), key)}")
    if turn.tool_choice is not None and turn.tool_choice.mode == "tool":
        keys.extend(f"t:{whole}:{short_id(name, key)}" for name in turn.tool_choice.names)
    return keys


def kept_name(name: str) -> str:
    """A name of any length, as registers are keyed by it."""
    if len(name) <= MAX_ID:
        return name
    return f"~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def goes_on(items: Sequence[Item], head: Head, key: bytes) -> bool:
    """Whether a transcript begins with all that the last released request of a session carried."""
    length, key = head.prefix_length, key.ljust(64, b"\0")
    if not 0 < length <= len(items):
        return False
    return _digests(_walk(items[:length], None)[0], length, key)[0] == head.prefix_digest


def short_id(name: str, key: bytes) -> str:
    """An id of any length, as it is kept: heads, ledgers and registers hold none that is longer than MAX_ID."""
    return name if len(name) <= MAX_ID else f"call_{text_digest(key, name)[:24]}"


def _nameless(key: bytes, name: str, arguments: str) -> str:
    """What equal calls without an id have in common."""
    return text_digest(key, _sized(name, digest(key, arguments)))[:20]


def _names(items: Sequence[Item], key: bytes) -> Sequence[str]:
    """Per item the id of the call it is or answers, where ids cannot be taken as they are; texts and hosted events have none.

    The same transcript always gives the same ids. A call that carries none is named by what it says and how often that was
    said; an id met before is another call, and results answer the calls of one id in turn.
    """
    # Every id keeps its next number and a queue, so that the work stays in proportion however often an id is repeated.
    names: list[str] = []
    met: set[str] = set()
    done: set[str] = set()
    counts: dict[str, int] = {}
    repeated: dict[str, deque[str]] = {}
    nameless: dict[str, deque[str]] = {}
    for item in items:
        name = ""
        if isinstance(item, CallItem):
            name = item.id
            if not name:
                base = _nameless(key, item.name, item.arguments)
                count = counts.get(base, 0) + 1
                while (name := f"call_{base}_{count}") in met:
                    count += 1
                counts[base] = count
                nameless.setdefault(item.name, deque()).append(name)
            else:
                own = name = short_id(name, key)
                if own in met:
                    count = counts.get(own, 1) + 1
                    while (name := f"{own}#{count}") in met:
                        count += 1
                    counts[own] = count
                    repeated.setdefault(own, deque((own,))).append(name)
            met.add(name)
        elif isinstance(item, ResultItem):
            name = item.call_id
            if not name:
                waiting = nameless.get(item.name)
                name = waiting.popleft() if waiting else f"orphan_{_hosted_digest(key, item)}"
            else:
                name = short_id(name, key)
                if repeated and name in repeated:
                    same = repeated[name]
                    while len(same) > 1 and same[0] in done:
                        same.popleft()
                    name = same[0]
            done.add(name)
        names.append(name)
    return names


def _answered_id(item: ResultItem, key: bytes) -> str:
    """The id of the call that a single result answers; of one without an id, what it says."""
    return short_id(item.call_id, key) if item.call_id else f"orphan_{_hosted_digest(key, item)}"


def _hosted_digest(key: bytes, item: HostedCallItem | HostedResultItem | ResultItem) -> str:
    return digest(key, item.arguments) if isinstance(item, HostedCallItem) else text_digest(key, item.content)


def _shows(item: HostedCallItem | HostedResultItem) -> bool:
    """Whether the event shows what it is about. Providers and clients may leave that out: an omission alters nothing."""
    return bool(item.arguments if isinstance(item, HostedCallItem) else item.content)


def _hosted_names(item: HostedCallItem | HostedResultItem, content: str, key: bytes) -> tuple[str, ...]:
    """Ledger keys of a hosted event: by its id, then by id and content, for providers that give one id to many events."""
    kind, name = ("h", item.id) if isinstance(item, HostedCallItem) else ("s", item.call_id)
    name = short_id(name, key)
    return (f"{kind}:{name}", f"{kind}:{name}={content}") if name else (_unnamed(item, content),)


def _unnamed(item: HostedCallItem | HostedResultItem, content: str) -> str:
    """The ledger key of a hosted event without an id."""
    return f"{'h' if isinstance(item, HostedCallItem) else 's'}:={kept_name(item.kind)}={content}"


class _Shape:
    """What is the same for all facts of one tool and source, until something more is known of one."""

    __slots__ = ("identity", "values")

    def __init__(self, identity: Identity, values: tuple[Any, ...]) -> None:
        self.identity = identity
        self.values = values
        """Of the fields `_SHAPE`."""


def _place(turn: Turn, raw_name: str) -> str:
    """Where the gateway has one of its own tools run."""
    return "remote_mcp" if raw_name in turn.remote_tools else "wardwright"


class Observer:
    """Turns into facts, for one catalog. Made once per plan; holds only bounded memos."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._surfaces: dict[bytes, Surface] = {}
        self._surface_bytes = 0
        self._shared: dict[int, tuple[Sequence[DeclaredTool], Surface]] = {}
        """By identity: a wire gives out the same tuple for the same declared tools."""
        self._shapes: dict[Source, dict[tuple[str, str], _Shape]] = {source: {} for source in _SHAPED}
        """Per source, by who runs the tool (`wardwright`, else whoever the wire says) and its raw name."""
        self._calls = self._shapes["assistant_tool_call"]
        self._results = self._shapes["tool_result"]
        self._nothing = Surface("", (), {})

    def surface(self, tools: Sequence[DeclaredTool]) -> Surface:
        """The named surface. Known again by its canonical form, so that equal surfaces are equal in every process."""
        if not tools:
            return self._nothing
        shared = self._shared.get(id(tools))
        if shared is not None and shared[0] is tools:
            return shared[1]
        dumped = _dumped([_definition(tool) for tool in tools])
        known = self._surfaces.get(dumped)
        if known is None:
            known = self._name_tools(hashlib.sha256(dumped).hexdigest()[:32], tools)
            if len(dumped) > MAX_SURFACE_BYTES:
                return known
            self._surface_bytes += len(dumped)
            if self._surface_bytes > MAX_SURFACES_BYTES:
                self._surfaces.clear()
                self._surface_bytes = len(dumped)
            self._surfaces[dumped] = known
        if isinstance(tools, tuple):  # nothing else goes on holding what it holds
            if len(self._shared) >= MAX_SHARED:
                self._shared.clear()
            self._shared[id(tools)] = (tools, known)
        return known

    def _name_tools(self, name: str, tools: Sequence[DeclaredTool]) -> Surface:
        facts: list[ToolFact] = []
        folded: dict[str, str] = {}
        by_name: dict[str, DeclaredTool] = {}
        for tool in tools:
            raw = tool.name if tool.server is None else f"{tool.name}:{tool.server}"
            if tool.hosted is None:
                identity = self.catalog.resolve(tool.name)
                location: ExecutionLocation = "client"
                plain = identity.plain
            else:
                identity = self.catalog.resolve_hosted(tool.hosted, tool.server, tool.name)
                location = "provider"
                plain = fold(raw)
            if plain in folded:
                other = folded[plain]
                if fold(other) == fold(raw):
                    raise ToolNameCollision(f"Tools '{other}' and '{raw}' have the same name after Unicode folding.")
                raise ToolNameCollision(f"'{other}' and '{raw}' are two names of one tool, '{plain}'. Declare it once.")
            folded[plain] = raw
            by_name[raw] = tool
            fact = self._fact(identity, raw, "declared_tool", "planning", location)
            if tool.hosted is not None:
                fact.visibility_level = "opaque"  # until the provider reports an event
            fact.definition_hash = hashlib.sha256(_dumped(_definition(tool))).hexdigest()[:32]
            fact.schema = tool.schema
            facts.append(fact)
        kept = {raw: kept_name(plain) for plain, raw in folded.items()}
        pins: dict[RegisterKey, RegisterValue | None] = {
            (SURFACE, f"d:{kept[fact.raw_name]}"): (fact.definition_hash,) for fact in facts
        }
        pins[(SURFACE, "")] = (len(facts),)
        return Surface(name, tuple(facts), by_name, kept, frozenset(kept.values()), pins)

    def _fact(
        self, identity: Identity, raw_name: str, source: Source, phase: Phase, location: ExecutionLocation
    ) -> ToolFact:
        where = identity.execution_location or location
        return ToolFact(
            identity.namespace,
            identity.name,
            raw_name,
            identity.risk_class,
            phase,
            source,
            "",
            "unknown",
            identity.confidence,
            where,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            VISIBILITY[where],
            (),
            identity.trust,
            identity.effects,
        )

    def _shape(self, turn: Turn, raw_name: str, source: Source, phase: Phase) -> _Shape:
        """As `_fact`, what is the same for all such facts, kept ready; bounded, because callers choose names."""
        shapes = self._shapes[source]
        place = turn.wire if raw_name not in turn.server_tools else _place(turn, raw_name)
        shape = shapes.get((place, raw_name))
        if shape is None:
            location: ExecutionLocation = "client"
            if place == "mcp" or place == "remote_mcp":
                location = "remote_mcp"
            elif place == "wardwright":
                location = "wardwright"
            identity = self.catalog.resolve(raw_name)
            fact = self._fact(identity, raw_name, source, phase, location)
            shape = _Shape(identity, tuple([getattr(fact, name) for name in _SHAPE]))
            if len(raw_name) <= MEMO_LENGTH:
                if len(shapes) >= MEMO_LIMIT:
                    shapes.clear()
                shapes[place, raw_name] = shape
        return shape

    def observe(self, turn: Turn, session: ScopeState, key: bytes) -> Observed:
        """The current facts of a turn. Pure: ledger and head are read, what changes is in the answer."""
        key = key.ljust(64, b"\0")
        if turn.gate == "request":
            return self._request(turn, session, key)
        return self._answer(turn, session, key)

    def _request(self, turn: Turn, session: ScopeState, key: bytes) -> Observed:
        _, head, registers, ledger = session
        # At once: a field that is read by its name costs as much as a dozen of these.
        (
            now, _, prefix_length, prefix_digest, _, _, surface_digest, _, _, last_ids, _, _, _, _,
            _, last_digest, last_news_from, last_news_turn, asked_turn, changed, _, unanswered,
        ) = head  # fmt: skip
        items = turn.items
        count = len(items)
        if count > MAX_ITEMS:
            raise TurnTooLarge(
                f"The request has {count:,} items; at most {MAX_ITEMS:,} are judged. Send a shorter transcript."
            )
        keyed, own, first, whole = _read(turn, prefix_length, key)
        names = None if own else _names(items, key)
        known = prefix_length if first and first == prefix_digest else 0
        tail = _tail(items, count)
        surface = self.surface(turn.tools)
        seen = Observed([], surface, known, whole, turn, key)
        if last_digest == whole:
            seen.retry = True
        if surface.digest != surface_digest or changed:
            self._pin(session, seen)
        # What came since the last released reply, or with this very request before, is still to be judged.
        waiting = asked_turn == now
        start = _start(known, tail, waiting or known == count, last_news_from) if known else 0
        news_turn = last_news_turn if waiting else now if not known else now + 1
        news_from = start
        requests = registers.get(REQUESTS)
        before = None if requests is None else find(requests, whole)
        if before is not None:
            seen.before = before
            news_turn = min(news_turn, before.news_turn)
            news_from = max(start, before.news_from)
        seen.news_from = news_from
        seen.news_turn = news_turn if news_turn < now else now
        # Words that no released reply has answered are said again with every retry.
        words_from = min(unanswered, known) if waiting else known
        seen.words_from = count
        calls: dict[str, CallItem] = {}
        digests: dict[str, tuple[str, Any]] = {}
        repeated = turn.repeated
        last_said = None if repeated is None else repeated.said
        every: dict[str, CallItem] | None = None
        user_turns: list[int] = []
        met_known = known > 0
        unseen = met_passed = False
        learnt, facts = seen.ledger, seen.facts
        repairing: dict[str, ToolFact | None] = {}
        for index in range(start if start < words_from else words_from, count):
            item = items[index]
            if type(item) is ResultItem:
                if index < start:
                    continue
                if names is not None:
                    call_id = names[index]
                elif not (call_id := item.call_id) or len(call_id) > MAX_ID:
                    call_id = _answered_id(item, key)
                call = calls.get(call_id)
                if call is None:
                    # Its call may stand in what is known, or behind it; whose result it is does not depend on that.
                    if every is None:
                        every = {
                            one.id if names is None else names[at]: one
                            for at, one in enumerate(items)
                            if isinstance(one, CallItem)
                        }
                    call = every.get(call_id)
                said = digests.get(call_id)
                since = news_turn if index >= news_from else now + 1
                self._result(
                    turn,
                    ledger,
                    now,
                    seen,
                    keyed.copy(),
                    item,
                    index,
                    call_id,
                    call,
                    said,
                    index >= tail,
                    repairing,
                    since,
                    met_known,
                )
            elif type(item) is TextItem:
                text = item.text
                if (
                    item.role == "user"
                    and index >= words_from
                    and (text[:1] in _PLAIN or SAYS.search(text) is not None)
                ):
                    # Resending old words in a cut transcript is no new word of the user; nor is the prompt of a transcript
                    # that shares nothing with this session: a model may have written it for a helper.
                    hasher = keyed.copy()
                    hasher.update(text.encode("utf-8", "surrogatepass"))
                    name = f"u:{hasher.hexdigest()[:32]}"
                    entry = ledger.get(name)
                    waits = entry is not None and entry.turn >= now
                    if index < known:
                        counts = waits
                    else:
                        counts = known > 0 or not prefix_length or (met_known and (waits or entry is None))
                    if entry is None or (counts and not waits):
                        learnt[name] = _entry(LedgerEntry, ("observed", "", "", now if counts else -1, False, False))
                    if counts:
                        if not user_turns:
                            seen.words_from = index
                        user_turns.append(len(facts))
            elif isinstance(item, CallItem):
                call_id = item.id if names is None else names[index]
                calls[call_id] = item
                if index < start:
                    continue
                name = f"c:{call_id}"
                entry = ledger.get(name)
                raw, arguments = item.name, item.arguments
                last = last_said.get(arguments) if last_said else None
                if last is None:
                    form, parsed = canonical(arguments)
                    hasher = keyed.copy()
                    hasher.update(form)
                    last = hasher.hexdigest()[:32], parsed
                digests[call_id] = last
                arguments_digest, parsed = last
                marks: tuple[Mark, ...] = ()
                repeat = False
                if entry is None:
                    forged = met_known and now > 0
                    if forged:
                        marks = _FORGED
                    else:
                        unseen = True
                    learnt[name] = _entry(LedgerEntry, ("observed", raw, arguments_digest, now, False, forged))
                    if not item.id:
                        self._numbered(session, seen, item, call_id, key)
                else:
                    status, called, said, since, refused, forged = entry
                    if not refused:
                        met_known = True
                    if status != "observed":
                        met_passed = True
                    elif met_passed and now and not forged:
                        # It came in by itself once, and now stands behind calls that did pass: as if it had been one of them.
                        forged, since = True, now
                        entry = learnt[name] = _entry(LedgerEntry, (status, called, said, since, refused, forged))
                    if said != arguments_digest or called != raw:
                        marks = ("altered",)
                        name = f"a:{call_id}"
                        altered = ledger.get(name)
                        repeat = altered is not None and altered[1:3] == (raw, arguments_digest)
                        if not repeat:
                            learnt[name] = _entry(LedgerEntry, ("observed", raw, arguments_digest, now, False, False))
                    elif refused or (status == "observed" and since >= news_turn and index >= news_from):
                        repeat = True
                        if refused:
                            learnt[name] = entry
                            unseen = unseen or (status == "observed" and not forged)
                        if forged:
                            marks = _FORGED
                    else:
                        continue
                fact = self._call(turn, raw, call_id, arguments, arguments_digest, parsed, index, surface)
                if marks:
                    fact.marks = marks
                    fact.kind = None
                if repeat:
                    fact.repeat = True
                facts.append(fact)
            elif isinstance(item, (HostedCallItem, HostedResultItem)):
                if index < start:
                    continue
                content = _hosted_digest(key, item)
                keys = _hosted_names(item, content, key)
                first_name, last_name = keys[0], keys[-1]
                own = ledger.get(first_name)
                entry, name = own, first_name
                called = isinstance(item, HostedCallItem)  # a result may stand without the call that says its kind
                renamed = called and own is not None and own.raw_name != item.kind
                if own is not None and (renamed or own.digest != content):
                    other = ledger.get(last_name)
                    if other is not None and not (called and other.raw_name != item.kind):
                        entry, name = other, last_name
                    elif renamed or (own.digest and _shows(item)):
                        entry = None
                if entry is None:
                    fact = self._hosted(item, index, content, key)
                    shown = content if _shows(item) else ""
                    forged = True
                    if own is not None:
                        fact.marks = ("altered",)  # another content under a known id
                    elif met_known and head.turn and (shown or len(keys) > 1):
                        # No provider said so here; one that tells nothing and has no id may be any.
                        fact.marks = _FORGED
                    else:
                        forged = False
                    name = last_name if own is not None or first_name in learnt else first_name
                    learnt[name] = _entry(LedgerEntry, ("observed", fact.raw_name, shown, head.turn, False, forged))
                else:
                    if entry.status != "observed":
                        met_passed = True
                    elif met_passed and head.turn and not entry.forged:
                        entry = learnt[name] = entry._replace(forged=True, turn=head.turn)
                    if not entry.refused and not (
                        entry.status == "observed" and entry.turn >= news_turn and index >= news_from
                    ):
                        continue
                    fact = self._hosted(item, index, content, key)
                    fact.repeat = True
                    if entry.refused:
                        learnt[name] = entry
                    if entry.forged:
                        fact.marks = _FORGED if name == first_name or own is None or own.forged else ("altered",)
                facts.append(fact)
            else:
                raise TypeError(f"unknown item {type(item).__name__}")
        if unseen:
            seen.notes += ("unseen_prefix",)
        if prefix_length and not known and items:
            missing = [call_id for call_id in last_ids if call_id not in calls]
            seen.notes += ("omitted" if missing else "branched",)
        if user_turns:
            seen.user_turns = tuple(user_turns)
        if repairing and any(repairing.values()):
            seen.repairing = tuple([raw for raw, failed in repairing.items() if failed is not None])
        if seen.repairing or turn.caller.claimed_session_id:
            self._inferred(turn, seen, repairing.values())
        if turn.tool_choice is not None:
            self._choice(turn, session, seen)
        if turn.claims is not None:
            self._claims(turn, session, seen)
        return seen

    def _numbered(self, session: ScopeState, seen: Observed, item: CallItem, call_id: str, key: bytes) -> None:
        """A call without an id: the next equal one of a reply gets the next number."""
        name = f"n:{_nameless(key, item.name, item.arguments)}"
        number = int(call_id.rpartition("_")[2])
        entry = seen.ledger.get(name) or session.ledger.get(name)
        if entry is None or entry.turn < number:
            seen.ledger[name] = LedgerEntry("passed", item.name, "", number)

    def _pin(self, session: ScopeState, seen: Observed) -> None:
        surface, head = seen.surface, session.head
        known = head.surface_digest
        if not known and surface.facts and len(surface.facts) <= MAX_PINNED and (SURFACE, "") not in session.registers:
            seen.surface_changed = True
            seen.pins = surface.pins
            return
        waiting, kept = frozenset(head.changed), surface.kept
        if EVERY_TOOL in waiting:
            waiting = surface.names
        if surface.digest == known:
            if waiting:
                marked = [fact for fact in surface.facts if kept[fact.raw_name] in waiting]
                seen.changed = tuple([replace(fact, marks=("definition_changed",)) for fact in marked])
            return
        seen.surface_changed = True
        changed: list[ToolFact] = []
        pins: dict[RegisterKey, RegisterValue | None] = {}
        pinned = cast("int", session.registers.get((SURFACE, ""), (0,))[0])
        for fact in surface.facts:
            register = (SURFACE, f"d:{kept[fact.raw_name]}")
            value = session.registers.get(register)
            if value is None:
                if pinned >= MAX_PINNED:
                    changed.append(replace(fact, marks=("definition_changed",)))
                else:
                    pinned += 1
                    pins[register] = (fact.definition_hash,)
            elif value[0] != fact.definition_hash:
                changed.append(replace(fact, marks=("definition_changed",)))
                pins[register] = (fact.definition_hash,)
            elif kept[fact.raw_name] in waiting:
                changed.append(replace(fact, marks=("definition_changed",)))
        pins[(SURFACE, "")] = (pinned,)
        seen.pins = pins
        seen.changed = tuple(changed)

    def _call(
        self,
        turn: Turn,
        raw: str,
        call_id: str,
        arguments: str,
        arguments_digest: str,
        parsed: Any,
        index: int,
        surface: Surface,
    ) -> ToolFact:
        # As `_shape` does, without the call: this is done for every fact.
        shape = self._calls.get((turn.wire if raw not in turn.server_tools else _place(turn, raw), raw))
        if shape is None:
            shape = self._shape(turn, raw, "assistant_tool_call", "planning")
        # As `ToolFact` makes one of all its values, without passing them on: this is a fifth of what a reply costs here.
        fact = ToolFact.__new__(ToolFact)
        (
            fact.namespace, fact.name, fact.raw_name, fact.risk_class, fact.phase, fact.source, _, fact.result_status,
            fact.confidence, fact.execution_location, fact.visibility_level, fact.marks, fact.trust, fact.effects,
        ) = shape.values  # fmt: skip
        fact.tool_call_id = call_id
        fact.arguments_digest = arguments_digest
        fact.result_digest = fact.definition_hash = ""
        fact.repeat = fact.invalid_arguments = False
        fact.ordinal = 0
        fact.item = index
        fact.arguments = arguments
        tool = surface.by_name.get(raw)
        fact.schema = None if tool is None else tool.schema
        fact.content = None
        fact.parsed = parsed
        fact.kind = shape
        return fact

    def _hosted(self, item: HostedCallItem | HostedResultItem, index: int, content_digest: str, key: bytes) -> ToolFact:
        identity = self.catalog.resolve_hosted(item.kind, item.server, item.name)
        called = isinstance(item, HostedCallItem)
        fact = self._fact(
            identity, item.kind, "provider_event", "planning" if called else "result_interpretation", "provider"
        )
        fact.item = index
        if isinstance(item, HostedCallItem):
            fact.tool_call_id = short_id(item.id, key)
            fact.arguments = item.arguments
            fact.arguments_digest = content_digest if item.arguments else ""
        elif isinstance(item, HostedResultItem):
            fact.tool_call_id = short_id(item.call_id, key)
            fact.content = item.content
            fact.result_digest = content_digest
            fact.result_status = _flagged(item.is_error) or result_status(identity, item.content)[0]
        return fact

    def _result(
        self,
        turn: Turn,
        ledger: Mapping[str, LedgerEntry],
        now: int,
        seen: Observed,
        hasher: Any,
        item: ResultItem,
        index: int,
        call_id: str,
        call: CallItem | None,
        said: tuple[str, Any] | None,
        in_tail: bool,
        repairing: dict[str, ToolFact | None],
        news_turn: int,
        met_known: bool,
    ) -> None:
        """`hasher` has read the key alone; `said`: the digest of its call's arguments, where that was made already, and what was parsed
        of them."""
        key, learnt, content = seen.key, seen.ledger, item.content
        hasher.update(content.encode("utf-8", "surrogatepass"))
        result_digest = hasher.hexdigest()[:32]
        name = f"c:{call_id}"
        called = learnt.get(name)
        if called is None:
            called = ledger.get(name)
            if (
                called is not None
                and call is not None
                and (digest(key, call.arguments) if said is None else said[0]) != called[2]
            ):
                call = None  # not the arguments it was called with
        name = f"r:{call_id}"
        entry = learnt.get(name) or ledger.get(name)
        marks: tuple[Mark, ...] = ()
        repeat = False
        if called is None:
            # Nobody's result is made up, also in a history that was brought along.
            if (now and met_known) or (call is None and (now or turn.gate == "request")):
                marks = _FORGED
            raw = call.name if call is not None else item.name
            arguments_digest = "" if call is None else digest(key, call.arguments) if said is None else said[0]
        else:
            # The ledger knows which tool was called; a transcript that renames the call launders nothing.
            ruled, raw, arguments_digest, _, _, forged = called
            if forged:
                marks = _FORGED
            elif ruled == "denied" or ruled == "held":
                marks = ("result_for_denied_call",)
        raw = raw or "unknown"
        if entry is None:
            learnt[name] = _entry(LedgerEntry, ("observed", raw, result_digest, now, False, False))
        elif entry.status == "denied" and entry.digest == result_digest:
            # What we put in its place, and this is the first we see of it.
            learnt[name] = entry._replace(status="observed")
            if not in_tail:
                return
            repeat = True
        elif entry.digest != result_digest:
            marks = (*marks, "altered")
            name = f"b:{call_id}"
            altered = learnt.get(name) or ledger.get(name)
            repeat = altered is not None and altered.digest == result_digest
            if not repeat:
                learnt[name] = _entry(LedgerEntry, ("observed", raw, result_digest, now, False, False))
        elif in_tail or entry.refused or entry.turn >= news_turn:
            repeat = True
            if entry.refused:
                learnt[name] = entry
        else:
            return
        shape = self._results.get((turn.wire if raw not in turn.server_tools else _place(turn, raw), raw))
        if shape is None:
            shape = self._shape(turn, raw, "tool_result", "result_interpretation")
        identity = shape.identity
        fact = ToolFact.__new__(ToolFact)
        (
            fact.namespace, fact.name, fact.raw_name, fact.risk_class, fact.phase, fact.source, _, fact.result_status,
            fact.confidence, fact.execution_location, fact.visibility_level, fact.marks, fact.trust, fact.effects,
        ) = shape.values  # fmt: skip
        if marks:
            fact.marks = marks
        fact.tool_call_id = call_id
        fact.arguments_digest = arguments_digest
        fact.result_digest = result_digest
        fact.definition_hash = ""
        fact.repeat = repeat
        fact.ordinal = 0
        fact.item = index
        fact.arguments = fact.parsed = fact.schema = fact.kind = None
        if call is not None:
            fact.arguments = call.arguments
            if said is not None:
                fact.parsed = said[1]
        fact.content = content
        fact.invalid_arguments = False
        invalid = False
        flagged = item.is_error
        status: ResultStatus = "unknown" if flagged is None else "error" if flagged else "success"
        if identity.status_tests:
            extracted, invalid = result_status(identity, content)
            if status == "unknown" or (status == "success" and extracted != "unknown"):
                status = extracted  # the operator's extractor knows better than a flag that says all is well
        if marks and "result_for_denied_call" in marks:
            status = "rejected"
        if status != "unknown":
            fact.result_status = status
        elif not marks:
            fact.kind = shape
        if status == "error" or status == "rejected":
            tool = seen.surface.by_name.get(raw)
            if not invalid and call is not None:
                seen.work = seen.work or Work()
                try:
                    invalid = bool(
                        check_text(call.arguments, tool.schema if tool and tool.schema is not None else True, seen.work)
                    )
                except SchemaUnsupported:
                    invalid = False
            fact.invalid_arguments = invalid
        if in_tail or turn.gate == "result":
            repairing[raw] = fact if fact.invalid_arguments else None
            seen.phase = "result_interpretation"
        seen.facts.append(fact)

    def _inferred(self, turn: Turn, seen: Observed, repairing: Iterable[ToolFact | None]) -> None:
        for failed in repairing:
            if failed is None:
                continue
            fact = ToolFact(*self._shape(turn, failed.raw_name, "inferred", "argument_repair").values)
            fact.confidence = "inferred"
            fact.tool_call_id = failed.tool_call_id
            fact.repeat = failed.repeat
            seen.facts.append(fact)
        if turn.caller.claimed_session_id:
            fact = ToolFact("wardwright", "session", "session", "read_only", "planning", "inferred")
            fact.confidence = "inferred"
            fact.marks = ("session_rotated",)
            fact.repeat = seen.retry
            seen.facts.append(fact)

    def _choice(self, turn: Turn, session: ScopeState, seen: Observed) -> None:
        choice = turn.tool_choice
        if choice is None or choice.mode != "tool":
            return
        for raw in choice.names:
            tool = seen.surface.by_name.get(raw)
            if tool is not None and tool.hosted is not None:
                identity = self.catalog.resolve_hosted(tool.hosted, tool.server, tool.name)
                fact = self._fact(identity, raw, "tool_choice", "planning", "provider")
            else:
                fact = ToolFact(*self._shape(turn, raw, "tool_choice", "planning").values)
            name = f"t:{seen.transcript_digest}:{short_id(raw, seen.key)}"
            entry = session.ledger.get(name)
            fact.repeat = entry is not None
            seen.ledger[name] = entry or LedgerEntry("observed", raw, "", session.head.turn)
            seen.facts.append(fact)

    def _claims(self, turn: Turn, session: ScopeState, seen: Observed) -> None:
        claims = turn.claims
        if claims is None:
            return
        if not turn.claims_trusted:
            seen.notes += ("claim_refused",)
            return
        # What a caller sends need not be what the type says.
        readable = isinstance(cast("Any", claims), Mapping)
        primary: Any = claims.get("primary_tool", claims) if readable else None
        if not isinstance(primary, Mapping):
            seen.notes += ("claim_unreadable",)
            return
        claim = cast("Mapping[str, Any]", primary)
        namespace, name = str(claim.get("namespace") or ""), str(claim.get("name") or "")
        if not name:
            seen.notes += ("claim_unreadable",)
            return
        raw = f"{namespace}.{name}" if namespace else name
        named = self.catalog.resolve(raw)
        identity = Identity(namespace or named.namespace, name, named.risk_class, named.effects)
        phase = claim.get("phase", claims.get("phase"))
        fact = self._fact(identity, raw, "caller_metadata", phase if phase in PHASES else "unknown", "client")
        fact.confidence = "declared"
        fact.tool_call_id = short_id(_claimed_id(claims), seen.key)
        risk = claim.get("risk_class")
        marks: tuple[Mark, ...] = ()
        if risk in RISK_CLASSES and risk != "unknown":
            if fact.risk_class == "unknown" or RISK_ORDER[risk] > RISK_ORDER[fact.risk_class]:
                fact.risk_class = cast("RiskClass", risk)
            elif RISK_ORDER[risk] < RISK_ORDER[fact.risk_class]:
                marks = ("claim_contradicted",)
        others: list[Identity | ToolFact] = [
            other for other in seen.facts if fact.tool_call_id and other.tool_call_id == fact.tool_call_id
        ]
        earlier = session.ledger.get(f"c:{fact.tool_call_id}")
        if earlier is not None:
            others.append(self.catalog.resolve(earlier.raw_name))
        for other in others:
            same = fold(other.namespace) == fold(fact.namespace) and fold(other.name) == fold(fact.name)
            if not same or RISK_ORDER[other.risk_class] > RISK_ORDER[fact.risk_class]:
                marks = ("claim_contradicted",)
        fact.marks = marks
        if marks:
            fact.confidence = "ambiguous"
        fact.repeat = seen.retry
        seen.facts.append(fact)

    def _answer(self, turn: Turn, session: ScopeState, key: bytes) -> Observed:
        items = turn.items
        if len(items) > MAX_EVENTS:
            events = sum(not isinstance(item, TextItem) for item in items)
            if events > MAX_EVENTS:
                raise TurnTooLarge(
                    f"The {turn.gate} has {events:,} tool events; at most {MAX_EVENTS:,} are judged, so nothing of it passes."
                )
        _, head, _, ledger = session
        facts: list[ToolFact] = []
        surface = self.surface(turn.tools)
        seen = Observed(facts, surface, 0, "", turn, key)
        self.asked(turn, session, seen)
        seen.phase = seen.phases[-1]  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
        failed: tuple[str, ...] = ()
        for record in seen.answers:
            failed += record.repairing
        failed = failed or head.repairing
        failed_before = frozenset(failed) if failed else failed
        now, of_result = head.turn, turn.gate == "result"
        declared = surface.by_name
        learnt = seen.ledger
        repairing: dict[str, ToolFact | None] = {}
        called: CallItem | None = None
        before = turn.repeated
        said: dict[str, tuple[str, Any]] | None = None
        if before is not None and before.key == key:
            said = before.said = {}
        room = MAX_SAID
        for index, item in enumerate(items):
            if type(item) is TextItem:
                continue
            if isinstance(item, CallItem):
                if of_result:
                    called = item
                    continue
                raw, arguments, call_id = item.name, item.arguments, item.id
                form, parsed = canonical(arguments)
                arguments_digest = _sha256(key + form).hexdigest()[:32]
                if said is not None and (room := room - len(arguments)) >= 0:
                    said[arguments] = arguments_digest, parsed
                name, held = f"c:{call_id}", False
                if not call_id or name in learnt or name in ledger or len(call_id) > MAX_ID:
                    call_id, held = self._call_id(turn, session, seen, item, arguments_digest, index, key)
                    name = f"c:{call_id}"
                learnt[name] = _entry(LedgerEntry, ("passed", raw, arguments_digest, now, False, False))
                fact = self._call(turn, raw, call_id, arguments, arguments_digest, parsed, index, surface)
                if failed_before and (raw in failed_before or EVERY_TOOL in failed_before):
                    fact.phase = "argument_repair"
                    fact.kind = None
                if declared and raw not in declared and raw not in turn.server_tools:
                    # Under another spelling it may be one of them.
                    plain = kept_name(self.catalog.resolve(raw).plain)
                    if plain not in surface.names:
                        fact.marks = _UNDECLARED
                        fact.kind = None
                if held:
                    fact.repeat = True
                facts.append(fact)
            elif isinstance(item, (HostedCallItem, HostedResultItem)):
                content = _hosted_digest(key, item)
                keys = _hosted_names(item, content, key)
                entries = [(name, session.ledger.get(name)) for name in keys if name not in seen.ledger]
                # Only a reply that waited for an approval comes twice; else an id that comes again is another event.
                shown = content if _shows(item) else ""
                held_name = next((n for n, e in entries if e and e.status == "held" and e.digest == shown), "")
                free = next((name for name, entry in entries if entry is None), keys[-1])
                fact = self._hosted(item, index, content, key)
                fact.repeat = bool(held_name)
                seen.ledger[held_name or free] = entry = LedgerEntry("passed", fact.raw_name, shown, head.turn)
                if len(keys) > 1 and shown:
                    # Clients that keep nothing with the provider send it back without its id.
                    seen.ledger[_unnamed(item, content)] = entry
                seen.facts.append(fact)
            elif isinstance(item, ResultItem):
                call_id = _answered_id(item, key)
                self._result(
                    turn,
                    ledger,
                    now,
                    seen,
                    _sha256(key),
                    item,
                    index,
                    call_id,
                    called,
                    None,
                    True,
                    repairing,
                    now,
                    False,
                )
                seen.phase = "result_interpretation"
            else:
                raise TypeError(f"unknown item {type(item).__name__}")
        if repairing and any(repairing.values()):
            seen.repairing = tuple([raw for raw, failed in repairing.items() if failed is not None])
        return seen

    def asked(self, turn: Turn, session: ScopeState, seen: Observed) -> None:
        """What the request said that this answers (or the requests, where nobody can say which)."""
        answers = seen.answers = answered(session, turn.request)
        if len(answers) == 1:  # as mostly
            _, _, _, _, _, _, _, phase, bundles, _, stripped = answers[0]
            seen.phases = (phase,)
            if bundles:
                seen.bundles = tuple(dict.fromkeys(bundles))
            if stripped:
                seen.stripped = dict(zip(stripped[::2], stripped[1::2], strict=True))
            return
        if not answers:
            head = session.head
            seen.phases, seen.bundles = (head.phase,), head.bundles
            return
        lost: dict[str, str] = {}
        for record in answers:
            lost.update(zip(record.stripped[::2], record.stripped[1::2], strict=True))
        seen.phases = tuple([record.phase for record in answers])
        seen.bundles = tuple(dict.fromkeys([bundle for record in answers for bundle in record.bundles]))
        seen.stripped = lost

    def _call_id(
        self,
        turn: Turn,
        session: ScopeState,
        seen: Observed,
        item: CallItem,
        arguments_digest: str,
        index: int,
        key: bytes,
    ) -> tuple[str, bool]:
        """The id of a call in a reply that has none, or one that is known; and whether it is a held one that comes again."""
        if not item.id:
            # Wires without ids show it as the next of its equals: it is named as their transcript will name it.
            base = _nameless(key, item.name, item.arguments)
            entry = seen.ledger.get(f"n:{base}") or session.ledger.get(f"n:{base}")
            number = 1 if entry is None else entry.turn + 1
            held = entry is not None and entry.status == "held"
            seen.ledger[f"n:{base}"] = LedgerEntry("passed", item.name, "", number)
            return f"call_{base}_{number}", held
        name = f"c:{item.id}"
        if len(item.id) <= MAX_ID and name not in seen.ledger:
            entry = session.ledger.get(name)
            if entry is not None and entry.status == "held" and entry[1:3] == (item.name, arguments_digest):
                return item.id, True
        return _mint(key, session.head, turn.caller.session_id, index), False


def _claimed_id(claims: Any) -> str:
    """The call that an attestation is about, if what it says can be read."""
    if not isinstance(claims, Mapping):
        return ""
    said = cast("Mapping[str, Any]", claims)
    primary = said.get("primary_tool", said)
    own = cast("Mapping[str, Any]", primary).get("tool_call_id") if isinstance(primary, Mapping) else None
    return str(own or said.get("tool_call_id") or "")


RISK_ORDER: Final[Mapping[str, int]] = {
    "unknown": 0,
    "read_only": 1,
    "write": 2,
    "external_side_effect": 3,
    "irreversible": 4,
}


def _flagged(is_error: bool | None) -> ResultStatus | None:
    return None if is_error is None else "error" if is_error else "success"


def _mint(key: bytes, head: Head, salt: str, index: int) -> str:
    """A fresh id: depends on the session's position, so it never repeats within it and is the same when govern runs again."""
    return f"call_{text_digest(key, f'{salt}:{head.turn}:{head.event}:{index}')[:24]}"
