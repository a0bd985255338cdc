"""The key tables of the policy language as Markdown, printed from the tables the compiler itself checks against.

`python -m wardwright.reference FOLDER` writes one page per rule kind; a test compares the pages in docs/policy with what is made here.
The words about a kind are written here; what it requires, may have, does and where is read from `policy.compile`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from wardwright.facts import (
    CONFIDENCES,
    EXECUTION_LOCATIONS,
    MARKS,
    PHASES,
    RESULT_STATUSES,
    RISK_CLASSES,
    SOURCES,
)
from wardwright.history import SCOPE_KINDS
from wardwright.policy.compile import (
    ACTION_KEYS,
    BUDGET_DIMENSIONS,
    COMMON_KEYS,
    KINDS,
    PREDICATE_KEYS,
    ROLES,
    SEVERITIES,
    TOOL_KEYS,
    KindSpec,
    builtin_bundles,
)
from wardwright.policy.provenance import CLASSES
from wardwright.policy.rules import DENYING, GATES, ActionName, RuleKind

_GATES: Final = ("request", "reply", "result")

ABOUT: Final[Mapping[RuleKind, str]] = {
    "tool_selector": "Acts on every tool event that its matcher fits.",
    "allowed_tools": "Lists the tools of a phase (and state); what is not listed is blocked, hidden or denied.",
    "tool_loop_threshold": "Counts equal tool events and acts from the threshold on.",
    "tool_sequence": "Moves a state machine after an event, or acts on a later event while an earlier one is still in its window.",
    "argument_schema": "Holds a call's arguments against a JSON Schema and tells every problem.",
    "argument_provenance": "Holds what a call's arguments hold against where it came from: each sink takes listed classes of values only.",
    "intent": "Lets a call pass only if the user asked, in their own words, for what the tool does.",
    "budget": "Limits calls, tokens, seconds or price in a scope.",
    "route_gate": "Chooses among models by the text of a request.",
    "request_guard": "Acts on the text of a request.",
    "history_threshold": "Counts all matching tool events together and acts from the threshold on.",
    "stream_guard": "Acts on the text of a reply, whole or streamed.",
    "structured_output": "Holds the text of a reply against a JSON Schema.",
    "alert": "Tells somebody of a tool event or of a text.",
}

KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "id": ("", "Name of the rule on receipts and in messages; unique."),
    "kind": ("", "The kind, as on this page."),
    "action": ("", "What happens; see the actions below."),
    "state_scope": (
        "all states",
        "State, or list of states, of the machine in which the rule acts. It counts in all of them.",
    ),
    "state_machine_id": ("`default`", "The machine that `state_scope` and `transition_to` are about."),
    "cache_scope": (
        "`session_id`",
        f"Whose history counts: {', '.join(SCOPE_KINDS)}. Wider than a run needs `scopes`.",
    ),
    "mode": ("`enforce`", "`observe` finds and counts what the rule would have done, and does nothing."),
    "enforcement": ("`enforce`", "The same as `mode`, for kinds that use `mode` for something else."),
    "priority": ("0", "Orders findings of equal strength; higher first."),
    "owner": ("none", "Who answers for the rule."),
    "severity": ("`medium`", f"One of {', '.join(SEVERITIES)}."),
    "message": ("made from rule and tool", "What a person, or the model, reads when the rule refuses something."),
    "exceptions": ("none", "List of `{expires, tool?, caller?, reason?}`: what the rule does not govern until then."),
    "attach_policy_bundle": ("none", "Name of a bundle whose rules govern this request too."),
    "transition_to": ("none", "State the machine enters when the rule acts."),
    "description": ("none", "For readers of the file."),
    "tool": ("", "Matcher: which tool events."),
    "phase": ("", f"Phase or list of phases: {', '.join(PHASES)}."),
    "allowed_tools": ("", "List of `{name, namespace?, risk_class?}`; names and namespaces are globs."),
    "threshold": ("", "Whole number from 1: it acts on the event that reaches it, and after."),
    "equal": ("`tool`", "What makes two events equal: `tool`, `tool+arguments` or `tool+arguments+result`."),
    "within": ("no end", "Window: `turns`, `events`, `ms` (or `milliseconds`); each given one must hold."),
    "after": ("", "`{tool: matcher}`: the earlier event."),
    "before": ("none", "`{tool: matcher}`: the later event."),
    "then": ("none", "`{tool: matcher, action: …}`: the later event and what happens to it."),
    "until": (
        "nothing",
        "What clears it: `state`, `tool`, `user_turn: true` (any new text in the user's role) or `clean_turn: true`.",
    ),
    "schema": ("the declared schema", "A JSON Schema."),
    "accept": (
        "the table of [provenance](../provenance.md)",
        f"Sink type → list of classes that it takes instead; classes: {', '.join(CLASSES)}.",
    ),
    "self": ("none", "The principal's own addresses, accounts and names."),
    "protected_paths": ("none", "Globs; a path that fits one passes only if the user said exactly it."),
    "untrusted_text": (
        "none",
        "Regular expressions; a text in the user's role that matches one is no word of the user.",
    ),
    "lexicon": (
        "none",
        "Language → `effects` (name → `verbs`, `commands`, `nouns`, `alone`, `mine`, `instrumental`, `extends`), `negations`, `receivers`, `asking`, `questions`, `links`, `common`; added to the lexicon that ships.",
    ),
    "limits": ("", f"At least one of {', '.join(BUDGET_DIMENSIONS)}."),
    "reserve": ("none", "What a request sets aside until its reply settles it: `tokens`, `seconds`, `price`."),
    "match": ("", "Regular expression (linear time), searched in each text; `.` matches a line break too."),
    "roles": ("all", f"Whose texts: {', '.join(ROLES)}."),
    "case": ("`insensitive`", "`sensitive` or `insensitive`."),
}
"""Key → what it is when left out, and what it means."""

KEYS_OF: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("allowed_tools", "mode"): (
        "`block`",
        "`block` refuses the request or reply, `filter` hides the rest and denies calls to it, `deny_call` only denies them.",
    ),
    ("budget", "tool"): ("every call", "Matcher: which calls count for `calls`."),
    ("budget", "within"): ("no end", "Window in `ms` (or `milliseconds`)."),
    ("structured_output", "schema"): ("what the request asks for", "A JSON Schema."),
    ("alert", "tool"): ("none", "Matcher; either this or `match`."),
    ("alert", "match"): ("none", "Regular expression; either this or `tool`."),
}

ACTIONS: Final[Mapping[ActionName, str]] = {
    "block": "refuses the whole message",
    "deny_call": "answers the call, or replaces the result, with an error",
    "strip_tools": "hides the matched tools (or those under `strip`) from the provider",
    "restrict_routes": "only these models may answer; several rules intersect",
    "switch_model": "this model must answer",
    "reroute": "this model is preferred",
    "require_approval": "holds it until an operator approves",
    "transform": "replaces `pattern` (or the whole text) by `replacement`",
    "inject_reminder": "puts `text` before the model",
    "set_controls": "clamps parameters of hosted tools, only towards stricter",
    "alert_async": "sends an alert, off the path",
    "annotate": "notes it on the receipt",
    "transition": "moves the state machine",
}

EXAMPLES: Final[Mapping[RuleKind, str]] = {
    "tool_selector": """\
id: no-shell
kind: tool_selector
action: deny_call
message: Ask the user to run it.
tool: {namespace: shell, phase: planning}
""",
    "allowed_tools": """\
id: reading-only-while-interpreting
kind: allowed_tools
phase: result_interpretation
mode: filter
allowed_tools:
  - {namespace: browser, name: "*"}
  - {name: read_file, risk_class: read_only}
""",
    "tool_loop_threshold": """\
id: no-identical-calls
kind: tool_loop_threshold
action: deny_call
threshold: 3
equal: tool+arguments
tool: {name: "*"}
""",
    "tool_sequence": """\
id: no-mail-after-a-page
kind: tool_sequence
after: {tool: {namespace: browser, phase: result_interpretation}}
then: {tool: {namespace: mail}, action: require_approval}
until: {user_turn: true}
""",
    "argument_schema": """\
id: migrations-name-their-target
kind: argument_schema
tool: {namespace: database, name: migrate}
schema: {type: object, required: [target]}
""",
    "argument_provenance": """\
id: values-come-from-the-owner
kind: argument_provenance
tool: {risk_class: [write, irreversible, external_side_effect, unknown]}
self: ["me@example.com"]
protected_paths: ["/etc/*", "*/.ssh/*"]
""",
    "intent": """\
id: only-what-was-asked
kind: intent
tool: {risk_class: [write, irreversible, external_side_effect, unknown]}
lexicon:
  de:
    effects:
      pay: {verbs: [zahle, zahlen, bezahle], commands: [überweise]}
""",
    "budget": """\
id: spend-little
kind: budget
limits: {tokens: 200000, calls: 100}
within: {ms: 3600000}
""",
    "route_gate": """\
id: customers-stay-here
kind: route_gate
action: restrict_routes
match: "customer|credential"
routes: ["local/private"]
""",
    "request_guard": """\
id: no-keys-in-prompts
kind: request_guard
match: "-----BEGIN [A-Z ]*PRIVATE KEY"
case: sensitive
roles: [user, tool]
message: A private key is in the text. Take it out.
""",
    "history_threshold": """\
id: many-failures
kind: history_threshold
action: alert_async
threshold: 10
within: {turns: 20}
tool: {name: "*", result_status: error}
""",
    "stream_guard": """\
id: no-internal-names
kind: stream_guard
action: transform
match: "internal-[a-z]+"
pattern: "internal-[a-z]+"
replacement: "[name]"
""",
    "structured_output": """\
id: answer-is-an-object
kind: structured_output
schema: {type: object}
""",
    "alert": """\
id: tell-about-forgeries
kind: alert
channel: security
tool: {mark: [forged, altered]}
""",
}
"""One rule per kind; a test compiles each."""

WORDS: Final[Mapping[str, Sequence[str]]] = {
    "risk_class": RISK_CLASSES,
    "phase": PHASES,
    "source": SOURCES,
    "result_status": RESULT_STATUSES,
    "confidence": CONFIDENCES,
    "execution_location": EXECUTION_LOCATIONS,
    "mark": MARKS,
    "trust": ("untrusted", "trusted"),
}

MATCHER: Final[Mapping[str, str]] = {
    "namespace": "glob or list of globs",
    "name": "glob or list of globs",
    "arguments": "JSON pointer → conditions, all of which must hold",
    "not": "a matcher whose keys must not all hold",
}


def pages() -> dict[str, str]:
    """File name → page."""
    made = {f"{kind}.md": "\n".join(_kind(kind, spec)) + "\n" for kind, spec in KINDS.items()}
    made["README.md"] = "\n".join(_index()) + "\n"
    made["matchers.md"] = "\n".join(_matchers()) + "\n"
    made["actions.md"] = "\n".join(_actions()) + "\n"
    return made


def _index() -> Iterator[str]:
    yield "# The policy language"
    yield ""
    yield (
        "A rule is a mapping under `governance:` (or in a bundle under `policy_bundles:`). Its `kind` says what it looks at, its "
        "`action` what happens. Unknown keys are refused, with the nearest right word. These pages are printed from the tables the "
        "compiler checks against: `python -m wardwright.reference docs/policy`."
    )
    yield ""
    yield "| Kind | What it does | Actions | Gates |"
    yield "|---|---|---|---|"
    for kind, spec in KINDS.items():
        actions = "all" if len(spec.actions) == len(GATES) else str(len(spec.actions))
        yield f"| [{kind}]({kind}.md) | {ABOUT[kind]} | {actions} | {_gates(spec.gates)} |"
    yield ""
    yield "See also [matchers](matchers.md), [actions](actions.md) and [ready-made plans](plans.md)."
    yield ""
    yield f"Bundles that ship: {', '.join(f'`{name}`' for name in builtin_bundles())}."


def _kind(kind: RuleKind, spec: KindSpec) -> Iterator[str]:
    yield f"# {kind}"
    yield ""
    yield ABOUT[kind]
    yield ""
    yield f"Gates: {_gates(spec.gates)}. A rule is judged where its kind and its action share a gate."
    yield ""
    yield "| Key | Required | Default | Meaning |"
    yield "|---|---|---|---|"
    for key in dict.fromkeys(("id", "kind", *spec.required, *spec.optional, *COMMON_KEYS)):
        required = key in ("id", "kind", *spec.required) or (key == "action" and spec.default_action is None)
        default, meaning = KEYS_OF.get((kind, key), KEYS[key])
        if key == "action" and spec.default_action is not None:
            default = f"`{spec.default_action}`"
        yield f"| `{key}` | {'yes' if required else 'no'} | {'' if required else default} | {meaning} |"
    yield ""
    yield "| Action | Further keys | Gates |"
    yield "|---|---|---|"
    for action in spec.actions:
        gates = spec.gates & GATES[action]
        if gates:
            yield f"| [`{action}`](actions.md) | {_further(action)} | {_gates(gates)} |"
    yield ""
    yield "```yaml"
    first, *rest = EXAMPLES[kind].splitlines()
    yield "governance:"
    yield f"  - {first}"
    yield from (f"    {line}" for line in rest)
    yield "```"


def _actions() -> Iterator[str]:
    yield "# Actions"
    yield ""
    yield "An action means the same in every kind. Denying actions win over all others; doubt counts as a match for them."
    yield ""
    yield "| Action | What it does | Further keys | Gates | Denying |"
    yield "|---|---|---|---|---|"
    for action, gates in GATES.items():
        denying = "yes" if action in DENYING else "no"
        yield f"| `{action}` | {ACTIONS[action]} | {_further(action)} | {_gates(gates)} | {denying} |"


def _matchers() -> Iterator[str]:
    yield "# Matchers"
    yield ""
    yield (
        "All given keys must match; within a key any value does. Without `source` a matcher looks at calls, results, forced choices, "
        "provider events and attestations, not at declared tools."
    )
    yield ""
    yield "| Key | Value |"
    yield "|---|---|"
    for key in TOOL_KEYS:
        value = MATCHER.get(key) or f"one or a list of {', '.join(WORDS[key])}"
        yield f"| `{key}` | {value} |"
    yield ""
    yield f"Conditions on arguments: {', '.join(f'`{key}`' for key in PREDICATE_KEYS)}."
    yield ""
    yield "In every pattern of a plan `.` matches a line break too, and `*` of a glob does; write `(?-s)` to have it otherwise."


def _gates(gates: frozenset[str] | set[str]) -> str:
    return ", ".join(gate for gate in _GATES if gate in gates)


def _further(action: ActionName) -> str:
    required, optional = ACTION_KEYS[action]
    return ", ".join([*(f"`{key}`" for key in required), *(f"`{key}` (optional)" for key in optional)])


def main(folder: str) -> None:
    """Writes all pages."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (target / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
