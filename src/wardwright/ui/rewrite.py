"""Turns a `tool_selector` that always acts into one that acts after something happened: a state pair or a sequence.

Edits the text where it must and leaves the rest, comments too, as it is. What comes out is read again and must say exactly what was
meant, else nothing is given; whether it may rule is decided by `compile_plan`, as for every plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import yaml

from wardwright.config import parse_config
from wardwright.errors import WardwrightError
from wardwright.policy.compile import KINDS, compile_plan

Into: TypeAlias = Literal["state", "sequence"]
"""state: one rule enters a state, the selector acts in that state
sequence: one rule that waits for the one event and acts on the other"""

BEGINS: Final = "clear"
HOLDS: Final = "watching"
UNTRUSTED: Final[Mapping[str, Any]] = {"trust": "untrusted", "phase": "result_interpretation"}
"""What it waits for when nobody says otherwise: a result that the catalog does not call trusted."""


class CannotRewrite(WardwrightError, ValueError):
    """The rule cannot be turned into that, or not in this text; the message says why and what to do."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "cannot_rewrite"


@dataclass(frozen=True, slots=True)
class Wish:
    """Which rule, into what, and what it shall wait for."""

    model_id: str
    rule_id: str
    into: Into
    after: Mapping[str, Any] = field(default_factory=lambda: dict(UNTRUSTED))
    """Matcher of the earlier event, as YAML has it."""
    until: Mapping[str, Any] = field(default_factory=lambda: {"user_turn": True})
    """What ends it; empty: nothing does, for the rest of the session."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The whole text with the pair in it, and the pair by itself."""

    source: str
    fragment: str
    rules: tuple[str, ...]
    notes: tuple[str, ...]


def rewrite(source: str, wish: Wish) -> Rewrite:
    """The text with the rule turned. CannotRewrite says why not; ConfigError when the text is no plan to begin with."""
    config = parse_config(source)
    compile_plan(config)
    root = cast("yaml.Node", yaml.compose(source, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    place = _find(root, wish)
    wanted: Any = config.root.plain()
    edits: list[_Edit] = []
    model = _model_of(wanted, wish.model_id)
    rules: list[dict[str, Any]] = model["governance"]
    number = next(index for index, rule in enumerate(rules) if rule.get("id") == wish.rule_id)
    if wish.into == "state":
        fragment, made = _to_state(source, place, wish, model, number, edits)
    else:
        fragment, made = _to_sequence(source, place, wish, rules, number, edits)
    text = source
    # From the end, so that places stay right; of two at one place the one made first comes first.
    for _, _, edit in sorted(((one.start, number, one) for number, one in enumerate(edits)), reverse=True):
        text = f"{text[: edit.start]}{edit.text}{text[edit.end :]}"
    if parse_config(text).root.plain() != wanted:
        raise CannotRewrite(
            f"The text around '{wish.rule_id}' cannot be edited without changing something else (an alias, or an unusual layout). "
            "Write this yourself:\n" + fragment
        )
    return Rewrite(text, fragment, made, _notes(wish, place))


# where it stands


@dataclass(frozen=True, slots=True, order=True)
class _Edit:
    """What takes the place of a part of the text; an empty part is an insertion."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class _Place:
    model: yaml.MappingNode
    rules: yaml.SequenceNode
    rule: yaml.MappingNode
    keys: Mapping[str, tuple[yaml.Node, yaml.Node]]
    sections: Mapping[str, tuple[yaml.Node, yaml.Node]]


def _find(root: yaml.Node, wish: Wish) -> _Place:
    models: list[yaml.Node] = [root]
    top = _pairs(root)
    if "models" in top:
        models = _entries(top["models"][1])
    for model in models:
        sections = _pairs(model)
        named = sections.get("model_id")
        if named is not None and named[1].value != wish.model_id and len(models) > 1:
            continue
        rules = sections.get("governance")
        for rule in _entries(rules[1]) if rules is not None else ():
            keys = _pairs(rule)
            if "id" not in keys or keys["id"][1].value != wish.rule_id:
                continue
            kind = keys["kind"][1].value if "kind" in keys else ""
            if kind != "tool_selector" or "tool" not in keys:
                raise CannotRewrite(f"'{wish.rule_id}' is of kind {kind}; only a tool_selector can be turned.")
            if wish.into == "state" and keys.keys() & {"state_scope", "state_machine_id", "transition_to"}:
                raise CannotRewrite(
                    f"'{wish.rule_id}' already has to do with a state, and a rule knows one machine only: turn it into a sequence."
                )
            action = keys["action"][1].value if "action" in keys else ""
            if wish.into == "sequence" and action not in KINDS["tool_sequence"].actions:
                raise CannotRewrite(f"A tool_sequence cannot {action}: turn '{wish.rule_id}' into a state pair.")
            listed = cast("yaml.SequenceNode", sections["governance"][1])
            return _Place(cast("yaml.MappingNode", model), listed, cast("yaml.MappingNode", rule), keys, sections)
    raise CannotRewrite(f"There is no rule '{wish.rule_id}' under governance of model '{wish.model_id}'.")


def _pairs(node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
    return {str(key.value): (key, value) for key, value in pairs if isinstance(key, yaml.ScalarNode)}


def _entries(node: yaml.Node) -> list[yaml.Node]:
    return cast("list[yaml.Node]", node.value) if isinstance(node, yaml.SequenceNode) else []


def _model_of(root: dict[str, Any], model_id: str) -> dict[str, Any]:
    models: list[dict[str, Any]] = root.get("models", [root])
    return next((one for one in models if one.get("model_id", "default") == model_id), models[0])


def _start(node: yaml.Node) -> int:
    mark: Any = node.start_mark
    return int(mark.index)


def _column(node: yaml.Node) -> int:
    mark: Any = node.start_mark
    return int(mark.column)


def _end(node: yaml.Node) -> int:
    """Where its last letter is. A block ends with its last child, not with the comments behind it."""
    mark: Any = node.end_mark
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return max(_end(child) for pair in cast("list[tuple[yaml.Node, yaml.Node]]", node.value) for child in pair)
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return max(_end(child) for child in cast("list[yaml.Node]", node.value))
    return int(mark.index)


def _line_end(text: str, at: int) -> int:
    """The end of the line that ends what stands before `at`, a comment behind it included."""
    at = len(text[:at].rstrip("\n"))
    found = text.find("\n", at)
    return len(text) if found < 0 else found


# into a state pair


def _to_state(
    text: str, place: _Place, wish: Wish, model: dict[str, Any], number: int, edits: list[_Edit]
) -> tuple[str, tuple[str, ...]]:
    rules: list[dict[str, Any]] = model["governance"]
    machines: list[dict[str, Any]] = model.get("state_machines", [])
    taken = {one.get("id") for one in machines} | {"default", model.get("state_machine", {}).get("id")}
    machine_id = _free(wish.rule_id, taken)
    machine = {"id": machine_id, "initial_state": BEGINS, "states": [BEGINS, HOLDS]}
    begins: dict[str, Any] = {
        "id": _free(f"{wish.rule_id}-begins", {rule.get("id") for rule in rules}),
        "kind": "tool_sequence",
        "after": {"tool": dict(wish.after)},
        "transition_to": HOLDS,
        **({"until": dict(wish.until)} if wish.until else {}),
        "state_machine_id": machine_id,
    }
    scoped = {"state_machine_id": machine_id, "state_scope": HOLDS}
    old = rules[number]
    new = {"id": old["id"], **scoped, **{key: value for key, value in old.items() if key != "id"}}
    rules[number] = new
    rules.insert(number + 1, begins)
    model["state_machines"] = [*machines, machine]

    edits.append(_more_keys(text, place.rule, place.keys["id"][1], scoped))
    edits.append(_more_items(text, place.rules, place.rule, begins))
    section = place.sections.get("state_machines")
    if section is not None and _entries(section[1]):
        listed = section[1]
        edits.append(_more_items(text, listed, _entries(listed)[-1], machine))
    else:
        key, rules_node = place.sections["governance"]
        edits.append(_more_keys(text, place.model, rules_node, {"state_machines": [machine]}, at=_column(key)))
    return f"{_block('state_machines', [machine])}{_block('governance', [new, begins])}", (begins["id"], wish.rule_id)


def _free(name: str, taken: set[Any]) -> str:
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


# into a sequence


def _to_sequence(
    text: str, place: _Place, wish: Wish, rules: list[dict[str, Any]], number: int, edits: list[_Edit]
) -> tuple[str, tuple[str, ...]]:
    old = rules[number]
    added = {"after": {"tool": dict(wish.after)}, "then": {"tool": old["tool"]}}
    if wish.until:
        added["until"] = dict(wish.until)
    new: dict[str, Any] = {}
    for key, value in old.items():
        if key == "kind":
            new[key] = "tool_sequence"
        elif key == "tool":
            new.update(added)
        else:
            new[key] = value
    rules[number] = new

    kind = place.keys["kind"][1]
    edits.append(_Edit(_start(kind), _end(kind), "tool_sequence"))
    key, tool = place.keys["tool"]
    between = ", " if place.rule.flow_style else f"\n{' ' * _column(place.rule)}"
    end = len(text[: _end(tool)].rstrip())
    edits.append(_Edit(_start(key), end, between.join(f"{name}: {_flow(value)}" for name, value in added.items())))
    return _block("governance", [new]), (wish.rule_id,)


# writing YAML


def _more_keys(
    text: str, mapping: yaml.MappingNode, behind: yaml.Node, keys: Mapping[str, Any], at: int | None = None
) -> _Edit:
    """Further keys of a mapping, behind the value of one that it has."""
    if mapping.flow_style:
        end = _end(behind)
        return _Edit(end, end, "".join(f", {name}: {_flow(value)}" for name, value in keys.items()))
    indent = " " * (_column(mapping) if at is None else at)
    end = _line_end(text, _end(behind))
    return _Edit(end, end, "".join(f"\n{line}" for name, value in keys.items() for line in _lines(name, value, indent)))


def _lines(name: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, list) and value and isinstance(cast("list[Any]", value)[0], dict):
        items = cast("list[dict[str, Any]]", value)
        return [f"{indent}{name}:", *(f"{indent}  - {_flow(one)}" for one in items)]
    return [f"{indent}{name}: {_flow(value)}"]


def _more_items(text: str, listed: yaml.Node, behind: yaml.Node, item: Mapping[str, Any]) -> _Edit:
    """One more entry of a list, behind one that it has."""
    if cast("yaml.SequenceNode", listed).flow_style:
        end = _end(behind)
        return _Edit(end, end, f", {_flow(item)}")
    indent = " " * _column(listed)
    end = _line_end(text, _end(behind))
    return _Edit(end, end, "".join(f"\n{line}" for line in _item(item, indent)))


def _item(item: Mapping[str, Any], indent: str) -> list[str]:
    return [
        f"{indent}{'- ' if number == 0 else '  '}{name}: {_flow(value)}"
        for number, (name, value) in enumerate(item.items())
    ]


def _block(name: str, items: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join([f"{name}:", *(line for item in items for line in _item(item, "  "))]) + "\n"


def _flow(value: Any) -> str:
    """A value in one line."""
    dumped = yaml.safe_dump(  # pyright: ignore[reportUnknownMemberType]
        [value], default_flow_style=True, width=1_000_000, allow_unicode=True, sort_keys=False
    )
    return str(cast("object", dumped)).strip()[1:-1]


def _notes(wish: Wish, place: _Place) -> tuple[str, ...]:
    told = [
        f"Until now '{wish.rule_id}' acted whenever its matcher fitted. Now it acts only after what it waits for: what comes before "
        "that passes. Compare the plans over stored traffic to see what changes."
    ]
    if not wish.until:
        told.append("Nothing ends it: once begun it holds for the rest of the session.")
    if wish.into == "state":
        told.append("The state stands in a machine of its own, so that entering it ends no other state.")
    if wish.into == "sequence" and not place.rule.flow_style and not cast("Any", place.keys["tool"][1]).flow_style:
        told.append("The matcher is written in one line now; comments inside it are gone.")
    return tuple(told)
