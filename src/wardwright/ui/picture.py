"""A compiled plan as a picture: its state machines drawn, its rules by phase and state, what each reads, writes and does.

Made from `project` and the rules themselves, never from YAML, so that nothing is shown which the engine does not have. Every
drawing has its text beside it: nothing is said by a line or a colour alone. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from markupsafe import Markup

from wardwright.facts import PHASES
from wardwright.policy.compile import ModelPlan, Plan
from wardwright.policy.rules import (
    AllowedTools,
    Budget,
    HistoryThreshold,
    LoopThreshold,
    Machine,
    Rule,
    TextRule,
    ToolSequence,
    Until,
    Window,
)
from wardwright.policy.states import successor
from wardwright.projection import Node, PossibleConflict, Region, project_model
from wardwright.ui import visible

How: TypeAlias = Literal["rule", "until", "expiry"]
"""rule: a rule enters the state
until: what a rule waited for ends the state
expiry: the state runs out"""

Strength: TypeAlias = Literal["refuses", "holds", "routes", "changes", "notes"]
"""What an action amounts to, strongest first; the order of arbitration."""

STRENGTH: Final[Mapping[str, Strength]] = {
    "block": "refuses",
    "deny_call": "refuses",
    "require_approval": "holds",
    "restrict_routes": "routes",
    "switch_model": "routes",
    "reroute": "routes",
    "strip_tools": "changes",
    "transform": "changes",
    "inject_reminder": "changes",
    "set_controls": "changes",
    "transition": "changes",
    "alert_async": "notes",
    "annotate": "notes",
}
ANY: Final = ""
"""Stands for every state, or every phase."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """One way from a state to another."""

    source: str
    """Empty: from every other state."""
    target: str
    how: How
    rules: tuple[str, ...]
    """Who causes it; none for a state that runs out by itself."""
    words: str


@dataclass(frozen=True, slots=True)
class MachinePicture:
    """One state machine, drawn and in words."""

    id: str
    scope: str
    initial_state: str
    states: tuple[str, ...]
    arrows: tuple[Arrow, ...]
    svg: Markup
    summary: str
    """The same as the drawing, in one sentence."""
    read_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RulePicture:
    """One rule in words."""

    id: str
    anchor: str
    kind: str
    line: int
    bundle: str
    mode: str
    action: str
    strength: Strength
    severity: str
    owner: str
    priority: int
    scope: str
    machine: str
    states: tuple[str, ...]
    phases: tuple[str, ...]
    gates: tuple[str, ...]
    sentence: str
    parts: tuple[tuple[str, str], ...]
    """Part of the rule and what must hold there, in words."""
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    effects: tuple[tuple[str, tuple[str, ...]], ...]
    """Gate → what it can ask for there."""
    conflicts: tuple[str, ...]

    @property
    def observes(self) -> bool:
        return self.mode == "observe"


@dataclass(frozen=True, slots=True)
class Column:
    """One state of the grid; `machine` and `state` empty: every state."""

    machine: str
    state: str
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """One phase of the grid and, per column, the rules that act there."""

    phase: str
    title: str
    cells: tuple[tuple[RulePicture, ...], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Rules by phase (down) and state (across)."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """Something that rules write and others read."""

    name: str
    words: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelPicture:
    """One model's plan."""

    model_id: str
    plan_hash: str
    targets: tuple[str, ...]
    machines: tuple[MachinePicture, ...]
    grid: Grid
    rules: tuple[RulePicture, ...]
    shared: tuple[Shared, ...]
    flow: Markup
    """Who writes what others read, drawn; empty when nobody does."""
    conflicts: tuple[PossibleConflict, ...]
    regions: tuple[Region, ...]
    anchors: Mapping[str, str] = field(default_factory=dict[str, str])
    """Rule → its place on the page."""


def picture(plan: Plan) -> tuple[ModelPicture, ...]:
    """Every model of a plan, in the order of the file."""
    return tuple(picture_model(part, number) for number, part in enumerate(plan.models.values()))


def picture_model(part: ModelPlan, number: int = 0) -> ModelPicture:
    """`number` keeps the names of places apart where several models stand on one page."""
    found = project_model(part)
    rules = [rule for ruleset in (part.rules, *part.bundles.values()) for rule in ruleset.rules]
    drawn = tuple(
        _rule(rule, node, f"rule-{number}-{place}")
        for place, (rule, node) in enumerate(zip(rules, found.nodes, strict=True))
    )
    readers = {machine.id: machine.read_by for machine in found.machines}
    machines = tuple(
        _machine(machine, rules, readers.get(machine.id, ()), f"machine-{number}-{place}")
        for place, machine in enumerate(part.machines.values())
    )
    shared = tuple(_shared(found.nodes))
    return ModelPicture(
        found.model_id,
        found.plan_hash,
        found.targets,
        machines,
        _grid(part, drawn),
        drawn,
        shared,
        _draw_flow(shared, f"flow-{number}") if shared else Markup(""),
        found.conflicts,
        found.regions,
        {rule.id: rule.anchor for rule in reversed(drawn)},
    )


# rules in words


def _rule(rule: Rule, node: Node, anchor: str) -> RulePicture:
    action = rule.surface if isinstance(rule, AllowedTools) and rule.surface != "filter" else rule.action.name
    return RulePicture(
        rule.id,
        anchor,
        rule.kind,
        rule.line,
        rule.bundle,
        rule.mode,
        action,
        STRENGTH[action],
        rule.severity,
        rule.owner,
        rule.priority,
        rule.scope,
        rule.machine,
        rule.state_scope,
        node.phases,
        node.gates,
        sentence(rule, node),
        tuple((name, matcher_words(matcher)) for name, matcher in node.matchers.items()),
        tuple(resource_words(one) for one in node.reads),
        tuple(resource_words(one) for one in node.writes),
        tuple(node.effects.items()),
        node.conflicts,
    )


def sentence(rule: Rule, node: Node) -> str:
    """What a rule does, in one sentence."""
    parts = {name: matcher_words(matcher) for name, matcher in node.matchers.items()}
    where = f"In {_listed(rule.state_scope)}: " if rule.state_scope else ""
    does = _does(rule)
    if isinstance(rule, ToolSequence):
        until = until_words(rule.until)
        window = window_words(rule.window)
        begun = f"after {parts['after']}"
        if rule.then is not None:
            begun = f"{begun}, when {parts['then']}"
        told = f"{begun}{f' within {window}' if window else ''}{f', until {until}' if until else ''}: {does}"
    elif isinstance(rule, AllowedTools):
        told = f"only the listed tools in {_listed(rule.phases) or 'every phase'}, else {does}"
    elif isinstance(rule, LoopThreshold):
        told = f"{_ordinal(rule.threshold)} equal fact ({rule.equal}) of {parts['tool']}{_in(rule.window)}: {does}"
    elif isinstance(rule, HistoryThreshold):
        told = f"{_ordinal(rule.threshold)} fact of {parts['tool']}{_in(rule.window)}: {does}"
    elif isinstance(rule, Budget):
        limits = _listed([f"{limit:g} {name}" for name, limit in rule.limits.items()])
        told = f"more than {limits} per {rule.scope}{_in(rule.window)}: {does}"
    elif isinstance(rule, TextRule):
        told = f"text of {_listed(rule.roles)} that matches “{rule.match}”: {does}"
    elif "tool" in parts:
        doubt = {
            "argument_schema": " with arguments that break the schema",
            "argument_provenance": " with arguments from where they may not come",
            "intent": " that the user did not ask for",
        }.get(rule.kind, "")
        told = f"when {parts['tool']}{doubt}: {does}"
    else:
        told = does
    told = f"{where}{told}."
    return f"{told[0].upper()}{told[1:]}"


def _does(rule: Rule) -> str:
    action = rule.action
    name = rule.surface if isinstance(rule, AllowedTools) else action.name
    if action.name == "restrict_routes":
        name = f"restrict_routes to {_listed(action.routes)}"
    elif action.name in ("switch_model", "reroute"):
        name = f"{action.name} to {action.target_model}"
    told = [] if name == "transition" else [name]
    if action.transition_to:
        told.append(f"{rule.machine} enters {action.transition_to}")
    if action.bundle:
        told.append(f"attach {action.bundle}")
    words = " and ".join(told)
    return f"observe only, would {words}" if rule.mode == "observe" else words


def matcher_words(matcher: Mapping[str, Any]) -> str:
    """A compiled matcher (or what else a part of a rule holds) in words."""
    told: list[str] = []
    for key, value in matcher.items():
        if key == "not":
            told.append(f"but not ({matcher_words(cast('Mapping[str, Any]', value))})")
        elif key == "tools":
            told.append(_listed([_tool_words(one) for one in value]))
        elif key == "expires_at_ms":
            told.append(f"until {value} ms")
        elif isinstance(value, Mapping):
            inner = cast("Mapping[str, Any]", value)
            if inner:
                told.append(f"{key} {matcher_words(inner)}")
        elif isinstance(value, (list, tuple)):
            told.append(f"{key} {_listed([str(one) for one in cast('Sequence[Any]', value)])}")
        elif isinstance(value, bool):
            told.append(f"{key} {'true' if value else 'false'}")
        else:
            told.append(f"{key} {value}")
    return ", ".join(told) or "any tool"


def _tool_words(tool: Mapping[str, str]) -> str:
    risk = f" ({tool['risk_class']})" if tool.get("risk_class", "*") != "*" else ""
    return f"{tool['namespace']}/{tool['name']}{risk}"


def until_words(until: Until | None) -> str:
    """What ends a sequence or a state; empty when nothing does."""
    if until is None:
        return ""
    told: list[str] = []
    if until.state:
        told.append(f"state {until.state}")
    if until.tool is not None:
        told.append(matcher_words(_plain_matcher(until.tool)))
    if until.user_turn:
        told.append("a word of the user")
    if until.clean_turn:
        told.append("a clean turn")
    return " or ".join(told)


def _plain_matcher(matcher: Any) -> dict[str, Any]:
    keys = ("namespace", "name", "risk_class", "phase", "source", "result_status", "mark", "trust")
    return {key: value for key in keys if (value := getattr(matcher, key))}


def window_words(window: Window | None) -> str:
    if window is None:
        return ""
    told = [
        f"{count} {unit if count != 1 else unit[:-1]}"
        for count, unit in ((window.turns, "turns"), (window.events, "events"))
        if count is not None
    ]
    if window.ms is not None:
        told.append(duration_words(window.ms))
    return " and ".join(told)


def duration_words(ms: int) -> str:
    """A length of time as a person says it, exact."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def _in(window: Window | None) -> str:
    words = window_words(window)
    return f" within {words}" if words else ""


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"the {number}{suffix}"


def _listed(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


_RESOURCES: Final[Mapping[str, str]] = {
    "clock": "the clock",
    "declared_tools": "the declared tools",
    "server_tools": "the server tools",
    "response_format": "the response format",
    "refusals": "what other rules refused",
    "approvals": "approvals",
    "target": "the model that answers",
    "results": "tool results",
    "phase": "the phase",
    "bind": "the route of the next request",
    "text_hits": "which texts matched",
}


def resource_words(name: str) -> str:
    """What a rule reads or writes, in words."""
    kind, _, rest = name.partition(":")
    if kind == "state":
        return f"the state of {rest}"
    if kind == "register":
        return "what it counted"
    if kind == "bundle":
        return f"bundle {rest}"
    if kind == "text":
        return f"text of {rest}"
    if kind == "arguments":
        return "the arguments" if rest == "/" else f"the argument {rest}"
    owner, _, key = name.partition(".")
    return f"{key} of the {owner}" if key else _RESOURCES.get(name, name)


# rules by phase and state


def _grid(part: ModelPlan, rules: Sequence[RulePicture]) -> Grid:
    columns = [Column(ANY, ANY, "every state")]
    several = len(part.machines) > 1
    for machine in part.machines.values():
        if len(machine.states) == 1 and not any(rule.states and rule.machine == machine.id for rule in rules):
            continue
        columns.extend(
            Column(machine.id, state, f"{machine.id}: {state}" if several else state) for state in machine.states
        )
    named = [phase for phase in PHASES if any(phase in rule.phases for rule in rules)]
    rows: list[Row] = []
    for phase in (ANY, *named):
        title = "every phase" if phase == ANY else phase
        if phase == "planning":
            title = "planning (argument_repair too)"
        cells = tuple(
            tuple(
                rule for rule in rules if _stands(rule, column) and (phase in rule.phases or not (phase or rule.phases))
            )
            for column in columns
        )
        if any(cells):
            rows.append(Row(phase, title, cells))
    return Grid(tuple(columns), tuple(rows))


def _stands(rule: RulePicture, column: Column) -> bool:
    if column.state == ANY:
        return not rule.states
    return rule.machine == column.machine and column.state in rule.states


# what rules share


def _shared(nodes: Sequence[Node]) -> Iterator[Shared]:
    """What one rule writes and another one reads; what a rule counts for itself is its own business."""
    writers: dict[str, dict[str, None]] = {}
    readers: dict[str, dict[str, None]] = {}
    for node in nodes:
        for found, names in ((writers, node.writes), (readers, node.reads)):
            for name in names:
                found.setdefault(name, {})[node.id] = None
        if node.bundle:
            readers.setdefault(f"bundle:{node.bundle}", {})[node.id] = None
    for name, wrote in writers.items():
        read = readers.get(name, {})
        if read and set(wrote) | set(read) != set(wrote) & set(read):
            yield Shared(name, resource_words(name), tuple(wrote), tuple(read))


# state machines


def _machine(machine: Machine, rules: Sequence[Rule], read_by: tuple[str, ...], name: str) -> MachinePicture:
    arrows = tuple(_arrows(machine, rules))
    states = tuple(machine.states)
    return MachinePicture(
        machine.id,
        machine.scope,
        machine.initial_state,
        states,
        arrows,
        _draw_machine(machine, arrows, name),
        _machine_words(machine, arrows),
        read_by,
    )


def _arrows(machine: Machine, rules: Sequence[Rule]) -> Iterator[Arrow]:
    for rule in rules:
        to = rule.action.transition_to
        if rule.machine != machine.id or not to:
            continue
        mode = " (observes only: does not move it)" if rule.mode == "observe" else ""
        if not mode:
            for source in rule.state_scope or (ANY,):
                if source != to:
                    yield Arrow(source, to, "rule", (rule.id,), f"{rule.id}{mode}")
        if isinstance(rule, ToolSequence) and rule.then is None:
            back = successor(machine, to)
            ends = [words for words in (until_words(rule.until), window_words(rule.window)) if words]
            if ends and not mode:
                words = " or ".join(
                    [f"until {until_words(rule.until)}"] * bool(until_words(rule.until))
                    + [f"after {window_words(rule.window)}"] * bool(window_words(rule.window))
                )
                yield Arrow(to, back, "until", (rule.id,), words)
    for state in machine.states.values():
        life = state.expires_ms
        if life is None and state.id != machine.initial_state:
            life = machine.expires_ms
        if life is not None:
            yield Arrow(state.id, successor(machine, state.id), "expiry", (), f"runs out after {duration_words(life)}")


def _machine_words(machine: Machine, arrows: Sequence[Arrow]) -> str:
    told = [f"Machine {machine.id} begins in {machine.initial_state} and has {_states(len(machine.states))}."]
    told.extend(f"From {arrow.source or 'every state'} to {arrow.target}: {arrow.words}." for arrow in arrows)
    if not arrows:
        told.append("Nothing moves it.")
    return " ".join(told)


def _states(count: int) -> str:
    return "1 state" if count == 1 else f"{count} states"


# drawing

_CHAR: Final = 7.4
"""Width of a letter, a little more than it is: nothing may stick out."""
_BOX: Final = 38
_LANE: Final = 34
_ROW: Final = 74
_LABEL: Final = 30
"""Letters of a label; the table below the drawing has the whole of it."""


@dataclass(slots=True)
class _Spot:
    """Where a state stands."""

    layer: int
    x: float
    y: float
    width: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def _draw_machine(machine: Machine, arrows: Sequence[Arrow], name: str) -> Markup:
    """Layers from left to right by the number of steps from the initial state; what goes further or back runs in lanes of its own."""
    merged = _merged(machine, arrows)
    layers = _layers(machine, merged)
    gaps = [_CHAR * 6] * len(layers)
    place = {state: index for index, layer in enumerate(layers) for state in layer}
    near = [one for one in merged if place[one[1]] == place[one[0]] + 1]
    for source, _, _, lines in near:
        gaps[place[source]] = max(gaps[place[source]], max(len(line) for line in lines) * _CHAR + 40)
    far = [one for one in merged if one not in near]
    above = [one for one in far if place[one[1]] > place[one[0]]]
    below = [one for one in far if place[one[1]] <= place[one[0]]]
    top = 16 + len(above) * _LANE
    spots: dict[str, _Spot] = {}
    x = 46.0
    tall = max(len(layer) for layer in layers)
    for index, layer in enumerate(layers):
        width = max(len(_cut(_title(state))) for state in layer) * _CHAR + 28
        shift = (tall - len(layer)) * _ROW / 2
        for row, state in enumerate(layer):
            spots[state] = _Spot(index, x, top + shift + row * _ROW, width)
        x += width + gaps[index]
    right = x - gaps[-1]
    bottom = top + (tall - 1) * _ROW + _BOX
    height = bottom + 14 + len(below) * _LANE
    pieces: list[Markup] = []
    widest = right
    taken: list[tuple[int, float]] = []
    for source, target, how, lines in near:
        a, b = spots[source], spots[target]
        y1, y2 = a.y + _BOX / 2, b.y + _BOX / 2
        half = (b.x - a.right) / 2
        path = f"M{a.right:.0f} {y1:.0f} C{a.right + half:.0f} {y1:.0f} {b.x - half:.0f} {y2:.0f} {b.x:.0f} {y2:.0f}"
        pieces.append(_path(path, how, name))
        y = (y1 + y2) / 2 - 6 - 15 * (len(lines) - 1)
        while any(layer == a.layer and abs(y - other) < 15 for layer, other in taken):
            y += 15
        taken.extend((a.layer, y + 15 * number) for number in range(len(lines)))
        pieces.extend(_text(a.right + half, y + 15 * number, line, "edge") for number, line in enumerate(lines))
    for lane, (source, target, how, lines) in enumerate(above):
        a, b = spots[source], spots[target]
        y = top - 10 - lane * _LANE
        pieces.append(_lane(a.middle + 8, a.y, b.middle - 8, b.y, y, how, name))
        pieces.append(_text((a.middle + b.middle) / 2, y - 5, " · ".join(lines), "edge"))
    for lane, (source, target, how, lines) in enumerate(below):
        a, b = spots[source], spots[target]
        y = bottom + 10 + lane * _LANE + 14
        # Lines to and from one state stand a little apart, within its width.
        shift = min(8 + 7 * lane, a.width / 2 - 6, b.width / 2 - 6)
        start, end = a.middle - shift, b.middle + shift
        pieces.append(_lane(start, a.y + _BOX, end, b.y + _BOX, y, how, name))
        words = " · ".join(lines)
        centre = max((a.middle + b.middle) / 2, len(words) * _CHAR / 2 + 4)
        widest = max(widest, centre + len(words) * _CHAR / 2)
        pieces.append(_text(centre, y - 5, words, "edge"))
    first = spots[machine.initial_state]
    y = first.y + _BOX / 2
    pieces.append(Markup('<circle class="start" cx="10" cy="{y}" r="6"/>').format(y=f"{y:.0f}"))
    pieces.append(_path(f"M18 {y:.0f} L{first.x:.0f} {y:.0f}", "rule", name))
    for state, spot in spots.items():
        kind = "any" if state == ANY else "initial" if state == machine.initial_state else "plain"
        pieces.append(
            Markup('<rect class="state {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="9"/>').format(
                kind=kind, x=f"{spot.x:.0f}", y=f"{spot.y:.0f}", width=f"{spot.width:.0f}", height=_BOX
            )
        )
        pieces.append(_text(spot.middle, spot.y + 24, _cut(_title(state)), "name"))
    return svg(
        name,
        widest + 16,
        height,
        f"State machine {machine.id}",
        _machine_words(machine, arrows),
        pieces,
    )


_Edge: TypeAlias = tuple[str, str, How, tuple[str, ...]]


def _merged(machine: Machine, arrows: Sequence[Arrow]) -> list[_Edge]:
    """One line per pair of states and cause. From every state: from each one while they are few, else from a box of their own."""
    few = len(machine.states) <= 3
    found: dict[tuple[str, str, How], dict[str, None]] = {}
    for arrow in arrows:
        sources: Iterable[str] = (arrow.source,)
        if arrow.source == ANY and few:
            sources = [state for state in machine.states if state != arrow.target]
        for source in sources:
            found.setdefault((source, arrow.target, arrow.how), {})[arrow.words] = None
    return [(source, target, how, _lines(tuple(words))) for (source, target, how), words in found.items()]


def _lines(words: Sequence[str]) -> tuple[str, ...]:
    if len(words) <= 2:
        return tuple(_cut(word) for word in words)
    return (_cut(words[0]), f"and {len(words) - 1} more")


def _layers(machine: Machine, edges: Sequence[_Edge]) -> list[list[str]]:
    """States by the number of steps from the initial one; those that nothing leads to come last."""
    layers: list[list[str]] = [[machine.initial_state]]
    if any(source == ANY for source, _, _, _ in edges):
        layers[0].append(ANY)
    seen = set(layers[0])
    while True:
        reached = {target: None for source, target, _, _ in edges if source in layers[-1] and target not in seen}
        if not reached:
            break
        layers.append([state for state in machine.states if state in reached])
        seen.update(reached)
    rest = [state for state in machine.states if state not in seen]
    return [*layers, rest] if rest else layers


def _title(state: str) -> str:
    return state or "every state"


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _path(path: str, how: str, name: str) -> Markup:
    return Markup('<path class="arrow {how}" d="{path}" marker-end="url(#{name}-head)"/>').format(
        how=how, path=path, name=name
    )


def _lane(x1: float, y1: float, x2: float, y2: float, y: float, how: str, name: str) -> Markup:
    path = f"M{x1:.0f} {y1:.0f} L{x1:.0f} {y:.0f} L{x2:.0f} {y:.0f} L{x2:.0f} {y2:.0f}"
    return _path(path, how, name)


def _text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> Markup:
    return Markup('<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>').format(
        kind=kind, x=f"{x:.0f}", y=f"{y:.0f}", anchor=anchor, words=visible(words)
    )


def svg(name: str, width: float, height: float, title: str, words: str, pieces: Iterable[Markup]) -> Markup:
    """A drawing with its name and its text for those who do not see it. No style in it: the page's stylesheet has the classes."""
    return Markup(
        '<svg class="drawing" role="img" aria-labelledby="{name}-title {name}-words" width="{width}" height="{height}" '
        'viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg"><title id="{name}-title">{title}</title>'
        '<desc id="{name}-words">{words}</desc><defs><marker id="{name}-head" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="8" markerHeight="8" orient="auto"><path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
        "{pieces}</svg>"
    ).format(
        name=name,
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        title=visible(title),
        words=visible(words),
        pieces=Markup("").join(pieces),
    )


_FLOW_SHOWN: Final = 40
"""Rules on one side of the drawing; the table has all of them."""


def _draw_flow(shared: Sequence[Shared], name: str) -> Markup:
    """Writers on the left, what they write in the middle, readers on the right."""
    writers = list(dict.fromkeys(rule for one in shared for rule in one.writers))[:_FLOW_SHOWN]
    readers = list(dict.fromkeys(rule for one in shared for rule in one.readers))[:_FLOW_SHOWN]
    things = [one.words for one in shared][:_FLOW_SHOWN]
    columns = (writers, things, readers)
    step, box = 40, 28
    tall = max(len(column) for column in columns)
    widths = [max(len(_cut(one)) for one in column) * _CHAR + 20 for column in columns]
    starts = [8.0, widths[0] + 78, widths[0] + widths[1] + 148]
    places: list[dict[str, tuple[float, float]]] = []
    pieces: list[Markup] = []
    for column, start, width, kind in zip(columns, starts, widths, ("rule", "thing", "rule"), strict=True):
        shift = (tall - len(column)) * step / 2 + 30
        found: dict[str, tuple[float, float]] = {}
        for row, words in enumerate(column):
            y = shift + row * step
            found[words] = (start, y + box / 2)
            pieces.append(
                Markup('<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>').format(
                    kind=kind, x=f"{start:.0f}", y=f"{y:.0f}", width=f"{width:.0f}", height=box
                )
            )
            pieces.append(_text(start + width / 2, y + 19, _cut(words), "name"))
        places.append(found)
    for title, start, width in zip(("writes", "", "reads"), starts, widths, strict=True):
        if title:
            pieces.append(_text(start + width / 2, 16, title, "edge"))
    for one in shared:
        if one.words not in places[1]:
            continue
        x, y = places[1][one.words]
        for side, rules in ((0, one.writers), (2, one.readers)):
            for rule in rules:
                if rule not in places[side]:
                    continue
                rx, ry = places[side][rule]
                a, b = ((rx + widths[0], ry), (x, y)) if side == 0 else ((x + widths[1], y), (rx, ry))
                half = (b[0] - a[0]) / 2
                path = (
                    f"M{a[0]:.0f} {a[1]:.0f} C{a[0] + half:.0f} {a[1]:.0f} {b[0] - half:.0f} {b[1]:.0f} "
                    f"{b[0]:.0f} {b[1]:.0f}"
                )
                pieces.append(_path(path, "rule", name))
    words = " ".join(
        f"{one.words}: written by {', '.join(one.writers)}; read by {', '.join(one.readers)}." for one in shared
    )
    return svg(name, starts[2] + widths[2] + 12, tall * step + 34, "What rules write that others read", words, pieces)


__all__ = [
    "Arrow",
    "Grid",
    "MachinePicture",
    "ModelPicture",
    "RulePicture",
    "Shared",
    "duration_words",
    "matcher_words",
    "picture",
    "picture_model",
    "svg",
    "until_words",
    "window_words",
]
