"""What the provider sees of a request that was ruled on: tools taken away or described otherwise, the gateway's own tools added.

Decides how `tool_mediation` changes the tools, which server tools a target gets, and what the receipt says about both. Reads the
ruling and nothing else of policy; carries it out before anything an operator configured here, so nothing here can undo it. Pure:
changes only the body it is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from wardwright.catalog import Catalog, compile_glob, fold
from wardwright.config import Node, Problems
from wardwright.errors import ToolNameCollision, WireError
from wardwright.policy.arbitrate import transformed
from wardwright.policy.rules import CallRuling, Ruling
from wardwright.wire import edit
from wardwright.wire.body import Object, write
from wardwright.wire.edit import Edits, ToolSpec
from wardwright.wire.schema import examine
from wardwright.wire.turn import DeclaredTool, Turn, WireName

MediationMode: TypeAlias = Literal["observe", "patch"]
"""observe: what the rules would do is recorded, and nothing is done
patch: it is done"""

MediationAction: TypeAlias = Literal["hide", "augment", "replace"]
"""hide: the provider does not see the tool, and a call to it is denied
augment: its description gets more words, its parameters more properties
replace: another description, another schema, under the same name"""

AdvertisementMode: TypeAlias = Literal["intersection", "conditional_union"]
"""intersection: only what every target can use is promised
conditional_union: what some targets can use is promised too, and such requests go to those"""

MAX_LISTED: Final = 256
"""Tools listed on one receipt."""

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "hide": (),
    "augment": ("description_append", "parameters"),
    "replace": ("tool",),
}


@dataclass(frozen=True, slots=True)
class MediationRule:
    """What is done to the tools of some names, the caller's and the gateway's alike."""

    id: str
    action: MediationAction
    names: tuple[str, ...]
    """Globs of raw names."""
    description_append: str = ""
    parameters: Mapping[str, Any] | None = None
    """augment: properties that are added; replace: the schema."""
    description: str | None = None
    """replace: instead of the tool's own."""
    fits: Callable[[str], bool] = field(default=lambda _name: False, compare=False, repr=False)
    """Whether a folded name is meant."""


@dataclass(frozen=True, slots=True)
class Mediation:
    mode: MediationMode = "observe"
    rules: tuple[MediationRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Advertisement:
    mode: AdvertisementMode = "intersection"


@dataclass(frozen=True, slots=True)
class Advertised:
    """Which server tools a caller of the model can count on, whatever target answers."""

    mode: AdvertisementMode
    guaranteed: tuple[str, ...]
    conditional: tuple[str, ...]

    def record(self) -> Mapping[str, Any]:
        return {"mode": self.mode, "guaranteed": len(self.guaranteed), "conditional": len(self.conditional)}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request for one target."""

    body: Object
    injected: frozenset[str]
    """Server tools that the provider sees."""
    hidden: frozenset[str]
    """Raw names a call to which is denied: hidden ones, and server tools that were not injected."""
    record: Mapping[str, Any]
    """`wardwright_tool_mediation` of the receipt; empty when there was nothing to do."""
    shown: frozenset[str] = frozenset()
    """Raw names of the tools that the provider sees; empty when nothing was mediated."""


# Config


def compile_mediation(node: Node | None, problems: Problems) -> Mediation:
    """`tool_mediation` of a model."""
    if node is None:
        return Mediation()
    given = problems.mapping(node, (), ("mode", "rules"))
    mode = problems.choice(given["mode"], get_args(MediationMode)) if "mode" in given else "observe"
    rules: list[MediationRule] = []
    seen: dict[str, Node] = {}
    for child in problems.sequence(given["rules"]) if "rules" in given else ():
        rule = _rule(child, problems, seen)
        if rule is None:
            continue
        above = next((one for one in rules if one.action == "hide" and _covers(one, rule)), None)
        if above is not None:
            problems.warn(child, f"can never apply: rule '{above.id}' hides what it is about")
        rules.append(rule)
    return Mediation(cast("MediationMode", mode), tuple(rules))


def compile_advertisement(node: Node | None, problems: Problems) -> Advertisement:
    """`tool_advertisement` of a model."""
    if node is None:
        return Advertisement()
    given = problems.mapping(node, (), ("mode",))
    if "mode" not in given:
        return Advertisement()
    return Advertisement(cast("AdvertisementMode", problems.choice(given["mode"], get_args(AdvertisementMode))))


def _rule(node: Node, problems: Problems, seen: dict[str, Node]) -> MediationRule | None:
    given = problems.mapping(node, ("id", "action", "match"), ("description_append", "parameters", "tool"))
    if not all(key in given for key in ("id", "action", "match")):
        return None
    rule_id = problems.name(given["id"])
    if rule_id in seen:
        problems.error(given["id"], f"id '{rule_id}' is already used at line {seen[rule_id].line}")
    seen.setdefault(rule_id, given["id"])
    action = cast("MediationAction", problems.choice(given["action"], get_args(MediationAction)))
    wanted = _FIELDS[action]
    for key in ("description_append", "parameters", "tool"):
        if key in given and key not in wanted:
            problems.error(given[key], f"is not for action '{action}'")
    matched = problems.mapping(given["match"], ("name",), ())
    names = problems.texts(matched["name"]) if "name" in matched else ()
    globs = [compile_glob(name) for name in names]
    rule = MediationRule(rule_id, action, names, fits=lambda name: any(fits(name) for fits in globs))
    if action == "augment":
        if not any(key in given for key in wanted):
            problems.error(node, "augment needs 'description_append' or 'parameters'")
        append = problems.text(given["description_append"]) if "description_append" in given else ""
        return replace(rule, description_append=append, parameters=_schema(given.get("parameters"), problems))
    if action == "replace":
        if "tool" not in given:
            problems.error(node, "replace needs 'tool'")
            return rule
        return _replacement(rule, given["tool"], problems)
    return rule


def _covers(hiding: MediationRule, later: MediationRule) -> bool:
    """Whether all that the later rule is about is hidden already."""
    return bool(later.names) and all(
        name in hiding.names or (not {"*", "?"} & set(name) and hiding.fits(fold(name))) for name in later.names
    )


def _replacement(rule: MediationRule, node: Node, problems: Problems) -> MediationRule:
    tool = problems.mapping(node, (), ("name", "description", "parameters"))
    if "name" in tool and problems.text(tool["name"]) not in ("", *rule.names):
        problems.error(tool["name"], "must be the name in 'match': the caller knows the tool by no other")
    if isinstance(node.value, dict) and not {"description", "parameters"} & tool.keys():
        problems.error(node, "needs 'description' or 'parameters'")
    return replace(
        rule,
        description=problems.text(tool["description"]) if "description" in tool else None,
        parameters=_schema(tool.get("parameters"), problems),
    )


def _schema(node: Node | None, problems: Problems) -> Mapping[str, Any] | None:
    if node is None:
        return None
    if not isinstance(node.value, dict):
        problems.mapping(node, (), ())
        return None
    schema = cast("dict[str, Any]", node.plain())
    for keys, message in examine(schema):
        place = node
        for key in keys:
            place = place.items().get(key, place)
        problems.error(place, message)
    if schema.get("type", "object") != "object":
        problems.error(node.items()["type"], "parameters are an object: the type must be 'object'")
    return schema


# What a caller can count on


def advertise(advertisement: Advertisement, names: Sequence[str], targets: Sequence[bool]) -> Advertised:
    """`targets`: of each target whether it can use tools. Without a target that can, nothing is promised at all."""
    if not targets or not any(targets):
        return Advertised(advertisement.mode, (), ())
    if all(targets):
        return Advertised(advertisement.mode, tuple(names), ())
    return Advertised(advertisement.mode, (), tuple(names))


# One request


def prepare(
    body: Object,
    wire: WireName,
    turn: Turn,
    ruling: Ruling,
    *,
    mediation: Mediation,
    tools_ok: bool,
    server_tools: Sequence[ToolSpec],
    off: Collection[str],
    remote: Collection[str] = (),
    unavailable: Mapping[str, str] | None = None,
    advertised: Advertised | None = None,
) -> Prepared:
    """Makes of a request that was ruled on what one target gets. `body` is the one that `turn` was read from, and the caller's own.

    `off`: server tools that an operator switched off; `remote`: those that run on an MCP server; `unavailable`: MCP servers that
    are configured and not there, and why.
    """
    if not (
        mediation.rules or server_tools or ruling.stripped or ruling.controls or ruling.transforms or ruling.reminders
    ):
        return Prepared(body, frozenset(), frozenset(), {})
    edits = edit.of(wire)
    before = _tools_hash(body) if mediation.rules or server_tools or ruling.stripped or ruling.controls else ""
    # Texts first: the numbers of their items are those of the request as it was judged.
    if ruling.transforms:
        edits.rewrite(body, lambda item, text: transformed(ruling, item, text))
    edits.drop_tools(body, ruling.stripped)
    edits.set_controls(body, ruling.controls)
    edits.remind(body, ruling.reminders)
    if not mediation.rules and not server_tools:
        record = {"original_hash": before, "final_hash": _tools_hash(body)} if before else {}
        return Prepared(body, frozenset(), frozenset(), record)
    work = _Work(body, edits, turn, frozenset(ruling.stripped), mediation)
    work.caller_tools()
    injected = work.server_tools(server_tools, ruling, off=off, tools_ok=tools_ok)
    work.hide()
    if injected and _choices(body) > 1:
        raise WireError("`n` above 1 cannot be used with server tools: ask for one choice - at `$.n`")
    edits.add_tools(body, injected)
    record: dict[str, Any] = {
        "mode": mediation.mode,
        "rules": [work.applied[rule.id] for rule in mediation.rules if rule.id in work.applied],
        "original_hash": before,
        "final_hash": _tools_hash(body),
        "tools": work.listed(server_tools, injected, remote),
    }
    if work.not_injected:
        record["not_injected"] = work.not_injected
    if unavailable:
        record["unavailable"] = dict(unavailable)
    if advertised is not None:
        record["advertisement"] = advertised.record()
    hidden = frozenset((*work.hidden, *work.not_injected))
    return Prepared(body, frozenset(one.name for one in injected), hidden, record, frozenset(work.shown))


class _Work:
    """The tools of one request on their way to a provider."""

    def __init__(self, body: Object, edits: Edits, turn: Turn, stripped: frozenset[str], mediation: Mediation) -> None:
        self.body = body
        self.edits = edits
        self.tools = {raw_name(tool): tool for tool in turn.tools}
        self.stripped = stripped
        self.rules = mediation.rules
        self.patches = mediation.mode == "patch"
        self.applied: dict[str, dict[str, Any]] = {}
        """By the rule's id: what it did, or would have done."""
        self.hidden: dict[str, str] = {}
        """Raw name → rule."""
        self.not_injected: dict[str, str] = {}
        """Server tool → why."""
        self.shown: set[str] = set()

    def caller_tools(self) -> None:
        self.shown.update(self.tools.keys() - self.stripped)
        for name, tool in self.tools.items() if self.rules else ():
            meant = self._meant(name)
            if not meant or name in self.stripped:
                continue
            found = ToolSpec(tool.name, tool.description, tool.schema or {})
            changed = self._mediated(name, found, meant, tool)
            if changed is None:
                self.shown.discard(name)
                continue
            if changed is found:
                continue
            before, after = found.description, changed.description
            parameters = None if changed.parameters is found.parameters else changed.parameters
            if not before or after == before or after.startswith(f"{before}\n"):
                # Only what is new is written: whatever else the definition says (examples, strictness, cache marks) stays.
                append = after[len(before) :].removeprefix("\n")
                self.edits.describe_tool(self.body, tool.name, append, parameters)
            else:
                self.edits.replace_tool(self.body, tool.name, changed)

    def server_tools(
        self, specs: Sequence[ToolSpec], ruling: Ruling, *, off: Collection[str], tools_ok: bool
    ) -> list[ToolSpec]:
        """Those that the provider gets, as it gets them."""
        declared = {fold(tool.name): tool.name for tool in self.tools.values()}
        injected: list[ToolSpec] = []
        for spec in specs:
            if fold(spec.name) in declared:
                raise ToolNameCollision(
                    f"the tool name {declared[fold(spec.name)]!r} belongs to a tool that the gateway itself runs for this "
                    "model; give yours another name - at `$.tools`"
                )
            if spec.name in off:
                self.not_injected[spec.name] = "switched off"
            elif spec.name in ruling.withheld_server_tools or spec.name in ruling.stripped:
                self.not_injected[spec.name] = "withheld by policy"
            elif not tools_ok:
                self.not_injected[spec.name] = "the target cannot use tools"
            else:
                changed = self._mediated(spec.name, spec, self._meant(spec.name), None)
                if changed is None:
                    rule_id = self.hidden.pop(spec.name)
                    self.not_injected[spec.name] = f"hidden by rule '{rule_id}'"
                else:
                    injected.append(changed)
                    self.shown.add(spec.name)
        return injected

    def hide(self) -> None:
        if self.hidden:
            self.edits.drop_tools(self.body, self.hidden)

    def _meant(self, name: str) -> list[MediationRule]:
        """The rules that are about a tool."""
        folded = fold(name)
        return [rule for rule in self.rules if rule.fits(folded)]

    def _mediated(
        self, name: str, found: ToolSpec, rules: Sequence[MediationRule], tool: DeclaredTool | None
    ) -> ToolSpec | None:
        """The tool after all rules that mean it; None: hidden."""
        changed = found
        for rule in rules:
            fixed = "" if rule.action == "hide" or tool is None else _fixed(rule, tool)
            if fixed:
                self._note(rule, name, fixed)
                continue
            self._note(rule, name)
            if not self.patches:
                continue
            if rule.action == "hide":
                self.hidden[name] = rule.id
                return None
            changed = _changed(rule, changed)
        return changed

    def _note(self, rule: MediationRule, name: str, skipped: str = "") -> None:
        note = self.applied.setdefault(rule.id, {"id": rule.id, "action": rule.action, "tools": []})
        if skipped:
            note.setdefault("skipped", {})[name] = skipped
        elif len(note["tools"]) < MAX_LISTED:
            note["tools"].append(name)

    def listed(
        self, specs: Sequence[ToolSpec], injected: Sequence[ToolSpec], remote: Collection[str]
    ) -> list[Mapping[str, Any]]:
        """Who declared the tools, who runs them, and who sees them: those alike together."""
        groups: dict[tuple[str, str, bool, bool], list[str]] = {}
        shown = self.shown
        for name, tool in self.tools.items():
            key = ("caller", "client" if tool.hosted is None else "provider", name in shown, True)
            groups.setdefault(key, []).append(name)
        names = {one.name for one in injected}
        for spec in specs:
            key = ("wardwright", "remote_mcp" if spec.name in remote else "wardwright", spec.name in names, False)
            groups.setdefault(key, []).append(spec.name)
        return [
            {
                "names": members[:MAX_LISTED],
                "declared_by": declared_by,
                "executed_by": executed_by,
                "visible_to_provider": to_provider,
                "visible_to_agent": to_agent,
            }
            for (declared_by, executed_by, to_provider, to_agent), members in groups.items()
        ]


def raw_name(tool: DeclaredTool) -> str:
    """What a tool is called in rulings: tools of a provider-side MCP server with the server's label."""
    return tool.name if tool.server is None else f"{tool.name}:{tool.server}"


def _fixed(rule: MediationRule, tool: DeclaredTool) -> str:
    """Why a caller's tool cannot be described otherwise; empty when it can."""
    if tool.hosted is not None:
        return "the provider describes it"
    if tool.schema is None and (rule.action == "replace" or rule.parameters is not None or not tool.description):
        return "it declares no parameters"
    return ""


def _changed(rule: MediationRule, tool: ToolSpec) -> ToolSpec:
    if rule.action == "replace":
        description = tool.description if rule.description is None else rule.description
        return replace(tool, description=description, parameters=rule.parameters or tool.parameters)
    description = tool.description
    if rule.description_append:
        description = f"{description}\n{rule.description_append}" if description else rule.description_append
    parameters = tool.parameters if rule.parameters is None else _merged(tool.parameters, rule.parameters)
    return replace(tool, description=description, parameters=parameters)


def _merged(schema: Mapping[str, Any], more: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with further properties; what both say is as the operator says it."""
    merged = {**schema, **more}
    for key in ("properties", "$defs"):
        mine, theirs = schema.get(key), more.get(key)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            merged[key] = {**cast("Mapping[str, Any]", mine), **cast("Mapping[str, Any]", theirs)}
    mine, theirs = schema.get("required"), more.get("required")
    if isinstance(mine, list) and isinstance(theirs, list):
        merged["required"] = list(dict.fromkeys([*cast("list[str]", mine), *cast("list[str]", theirs)]))
    return merged


def _choices(body: Object) -> int:
    number = body.get("n")
    return number if isinstance(number, int) and not isinstance(number, bool) else 1


def _tools_hash(body: Object) -> str:
    """Of all that a request declares as tools, as it is written."""
    return hashlib.sha256(write([body.get(key) for key in ("tools", "functions", "web_search_options")])).hexdigest()


# What comes back


def deny_hidden(
    calls: tuple[CallRuling, ...],
    hidden: Collection[str],
    *,
    catalog: Catalog | None = None,
    shown: Collection[str] = (),
    mediation: Mediation | None = None,
) -> tuple[CallRuling, ...]:
    """The same calls, those to hidden tools denied: a model may know a name from elsewhere.

    With the catalog, also those under another name of a hidden tool, unless the provider was shown that very name. With the
    mediation, also those to tools that it would have hidden, had the request declared them.
    """
    hiding: tuple[MediationRule, ...] = ()
    if mediation is not None and mediation.rules and mediation.mode == "patch":
        hiding = tuple(rule for rule in mediation.rules if rule.action == "hide")
    if not calls or not (hidden or hiding):
        return calls
    names = {fold(name) for name in hidden}
    identities: set[tuple[str, str]] = set()
    if catalog is not None:
        found = [catalog.resolve(name) for name in hidden]
        identities = {(fold(one.namespace), fold(one.name)) for one in found}
    visible = {fold(name) for name in shown}

    def is_hidden(name: str) -> bool:
        folded = fold(name)
        if folded in names or any(rule.fits(folded) for rule in hiding):
            return True
        if catalog is None or folded in visible:
            return False
        one = catalog.resolve(name)
        identity = (fold(one.namespace), fold(one.name))
        if identity in identities:
            return True
        bare = catalog.resolve(one.name)
        # A wrapper around a name that means the same tool without it.
        alone = (fold(bare.namespace), fold(bare.name)) == identity
        return alone and any(rule.fits(fold(one.name)) for rule in hiding)

    return tuple(
        [
            replace(
                call,
                status="deny_call",
                message=f"Tool '{call.name}' is not available here. Use another tool.",
                rules=(*call.rules, "tool_mediation"),
                approval="",
            )
            if (call.status in ("allow", "require_approval") or call.approval) and is_hidden(call.name)
            else call
            for call in calls
        ]
    )
