"""What is asked about a plan: can this tool run after that one, without a third, within a window?

A question is a small pattern over events, written in one line or in YAML; its matchers are those of the rules. It never looks at
a plan. `A has happened` means its result is there, and `B runs` means a call of it is released, unless a matcher says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from wardwright.config import Node, Problems, load_config, parse_yaml
from wardwright.errors import ConfigError, Problem
from wardwright.policy.compile import TOOL_KEYS, ModelPlan, compile_plan
from wardwright.policy.rules import Matcher, ToolSelector, ToolSequence, Until, Window

KEYS: Final = ("after", "without", "within", "calls", "declares", "expect")
REFUSING: Final = frozenset({"block", "deny_call", "require_approval"})
UNITS: Final[Mapping[str, tuple[str, int]]] = {
    "turn": ("turns", 1),
    "turns": ("turns", 1),
    "event": ("events", 1),
    "events": ("events", 1),
    "ms": ("ms", 1),
    "milliseconds": ("ms", 1),
    "s": ("ms", 1000),
    "seconds": ("ms", 1000),
    "min": ("ms", 60_000),
    "minutes": ("ms", 60_000),
}
_LINE: Final = re.compile(
    r"\s*(?:can\s+)?(?P<run>\S+?)(?:\s+run)?(?:\s+after\s+(?P<after>\S+?))?(?:\s+without\s+(?P<without>\S+?))?"
    r"(?:\s+within\s+(?P<count>\d+)\s*(?P<unit>[a-z]+))?\s*\??\s*"
)
HINT: Final = (
    "ask as 'can TOOL run after TOOL without TOOL within 30 s?'; all but the first TOOL may be left out, and a TOOL is "
    "NAMESPACE, NAMESPACE/NAME or KEY=VALUE,KEY=VALUE"
)


@dataclass(frozen=True, slots=True)
class Question:
    """Can `run` be released after `after`, with nothing of `without` in between, within a window?"""

    text: str
    run: Matcher
    after: Matcher | None = None
    """None: from the very beginning."""
    without: Matcher | None = None
    without_user: bool = False
    """Without a word of the user in between."""
    within: Window | None = None
    calls: int = 2
    """Calls that one reply may hold."""
    declares: tuple[str, ...] | None = None
    """Raw names of the tools every request declares; None: what the plan needs to be judged by."""
    expect: Literal["holds", "counter_example"] = "holds"
    """What `check` wants to hear."""
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


def parse_question(line: str) -> Question:
    """A question in one line. ConfigError when it is none."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ConfigError([Problem("<question>", 1, 1, "$", f"cannot be read: {HINT}")])
    given: dict[str, Any] = {"question": " ".join(line.split()), "run": _term(found["run"])}
    if found["after"]:
        given["after"] = _term(found["after"])
    if found["without"]:
        given["without"] = {"user_turn": True} if found["without"] == "user" else {"tool": _term(found["without"])}
    if found["count"]:
        unit = UNITS.get(found["unit"])
        if unit is None:
            raise ConfigError([Problem("<question>", 1, 1, "within", f"unknown unit; choose {', '.join(UNITS)}")])
        given["within"] = {unit[0]: int(found["count"]) * unit[1]}
    return make_question(given)


def _term(text: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if equals:
            given[key] = value.split("|")
        else:
            namespace, slash, name = part.rpartition("/")
            given["namespace"] = namespace if slash else part
            if slash:
                given["name"] = name
    return given


def make_question(given: Mapping[str, Any]) -> Question:
    """A question of plain values, as YAML has them."""
    return load_questions(f"- {orjson.dumps(given).decode()}\n")[0]


def load_questions(source: str | PathLike[str]) -> tuple[Question, ...]:
    """Questions of a file, or of YAML text (any string with a line break). ConfigError with every problem."""
    if isinstance(source, str) and "\n" in source:
        text, file = source, "<question>"
    else:
        file = str(source)
        try:
            text = Path(source).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([Problem(file, 1, 1, "$", f"cannot be read: {error}")]) from error
    problems = Problems(file)
    root = parse_yaml(text, problems)
    questions = [_question(node, problems) for node in problems.sequence(root)]
    if problems.errors:
        raise ConfigError(problems.errors)
    return tuple(one for one in questions if one is not None)


def standard_questions(part: ModelPlan) -> tuple[Question, ...]:
    """What a plan's own sequences and states promise: that what they refuse cannot run until it is cleared. Of a rule with a
    window it is asked twice: within it, and ever."""
    questions: list[Question] = []
    refusing = [rule for rule in part.rules.rules if rule.mode == "enforce" and rule.action.name in REFUSING]
    for rule in part.rules.rules:
        if not isinstance(rule, ToolSequence) or rule.mode != "enforce":
            continue
        until = rule.until or Until()
        if until.clean_turn or until.state:
            continue  # a question cannot say that
        promised: list[tuple[str, Matcher]] = []
        if rule.then is not None and rule in refusing:
            promised.append((rule.id, rule.then))
        elif rule.then is None:
            promised.extend(
                (other.id, other.tool)
                for other in refusing
                if isinstance(other, ToolSelector)
                and other.machine == rule.machine
                and rule.action.transition_to in other.state_scope
                and "result_interpretation" not in other.tool.phase
            )
        for name, tool in promised:
            begun = f"after what '{rule.id}' waits for" if name != rule.id else "after what it waits for"
            cleared = " and before it is cleared" if rule.until is not None else ""
            run = tool if tool.source else replace(tool, source=("assistant_tool_call", "provider_event"))
            text = f"can what '{name}' refuses run {begun}{cleared}"
            windows = (None,) if rule.window is None else (rule.window, None)
            for window in windows:
                when = "" if len(windows) == 1 else ", within its window" if window is not None else ", ever"
                questions.append(Question(f"{text}{when}?", run, rule.after, until.tool, until.user_turn, window))
    return tuple(questions)


def _question(node: Node, problems: Problems) -> Question | None:
    given = problems.mapping(node, ("question", "run"), KEYS)
    if "question" not in given or "run" not in given:
        return None
    values: dict[str, Any] = {"text": problems.text(given["question"]), "file": problems.file, "line": node.line}
    run = _matcher(given["run"], problems)
    values["run"] = run if run.source else replace(run, source=("assistant_tool_call", "provider_event"))
    if "after" in given:
        values["after"] = _happened(_matcher(given["after"], problems))
    if "without" in given:
        cleared = problems.mapping(given["without"], (), ("tool", "user_turn"))
        if "tool" in cleared:
            values["without"] = _happened(_matcher(cleared["tool"], problems))
        if "user_turn" in cleared:
            values["without_user"] = problems.boolean(cleared["user_turn"])
        if not cleared and isinstance(given["without"].value, dict) and not given["without"].value:
            problems.error(given["without"], "says nothing: give 'tool' or 'user_turn'")
    if "within" in given:
        window = problems.mapping(given["within"], (), ("turns", "events", "ms", "milliseconds"))
        if not window and isinstance(given["within"].value, dict) and not given["within"].value:
            problems.error(given["within"], "an empty window; give turns, events or milliseconds")
        values["within"] = Window(
            **{"ms" if key == "milliseconds" else key: problems.integer(child, 1) for key, child in window.items()}
        )
    if "calls" in given:
        values["calls"] = problems.integer(given["calls"], 1)
    if "declares" in given:
        values["declares"] = problems.texts(given["declares"], empty=True)
    if "expect" in given:
        values["expect"] = problems.choice(given["expect"], ("holds", "counter_example"))
    return Question(**values)


def _happened(matcher: Matcher) -> Matcher:
    """That a tool was used is seen by its result, unless somebody asks for something else."""
    if matcher.phase or matcher.source:
        return matcher
    return replace(matcher, phase=("result_interpretation",))


def _matcher(node: Node, problems: Problems) -> Matcher:
    """Read by the compiler of rules, so that a matcher means here what it means there."""
    problems.mapping(node, (), TOOL_KEYS)
    if not isinstance(node.value, dict) or not node.value.keys() <= set(TOOL_KEYS):
        return Matcher()
    rule = {"id": "question", "kind": "tool_selector", "action": "annotate", "tool": node.plain()}
    text = orjson.dumps({"model_id": "question", "governance": [rule]}).decode()
    try:
        plan = compile_plan(load_config(f"{text}\n"))
    except ConfigError as error:
        for problem in error.problems:
            problems.error(node, problem.message)
        return Matcher()
    found: Sequence[Any] = plan.models["question"].rules.rules
    return found[0].tool if isinstance(found[0], ToolSelector) else Matcher()
