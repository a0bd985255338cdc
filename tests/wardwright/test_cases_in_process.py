"""G50: the stories of tests/cases, told again by an agent inside the process: the same rules let the same calls pass.

A story can be told there when it consists of what the user says, of calls and of their results. Rules that only a gateway can keep
are taken out of the plan on both sides, and names that a tool of the runtime cannot have are written another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from wardwright import compile_plan, load_config
from wardwright.cases import START_MS, Case, load_cases, play
from wardwright.errors import ConfigError
from wardwright.in_process import GovernancePolicy
from wardwright.wire import Caller
from weakincentives.clock import FakeClock
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolCall, execute_tool

ROOT = Path(__file__).parent.parent / "cases"
KEYS = {"transcript", "reply", "tools", "steps", "at", "caller", "target"}
ANY = {"type": "object"}
DIFFERS = {
    "G16 events, two later is inside": "in process the result of a call comes before the next call, and is an event"
}
OUTCOMES = {"allow": "ran", "deny_call": "denied", "block": "denied", "require_approval": "pending"}
NAME = re.compile(r"[a-z0-9_-]{1,64}")
WIDE = re.compile(r"^(?:governance|policy_bundles\.(?P<bundle>[^\[]+))\[(?P<index>\d+)\]")


@cache
def kept_in_process(path: Path) -> str:
    """The plan as YAML, without the rules that only a gateway can keep."""
    plan: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    plan["catalog"] = [*plan.get("catalog", ()), {"match": "{namespace}-dot-{name}"}]
    while True:
        text = yaml.safe_dump(plan)
        try:
            GovernancePolicy.from_yaml(text)
        except ConfigError as error:
            places = {
                (found["bundle"], int(found["index"])) for one in error.problems if (found := WIDE.match(one.path))
            }
            if not places:
                raise
            for bundle, index in sorted(places, key=lambda place: -place[1]):
                del (plan["policy_bundles"][bundle] if bundle else plan["governance"])[index]
            continue
        return text


def renamed(value: Any) -> Any:
    """Tool names without dots, wherever a story has them."""
    if isinstance(value, list):
        return [renamed(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    found = {key: renamed(entry) for key, entry in value.items()}
    if isinstance(found.get("name"), str):
        found["name"] = found["name"].replace(".", "-dot-")
    if "tools" in found:
        found["tools"] = [one.replace(".", "-dot-") if isinstance(one, str) else one for one in found["tools"]]
    return found


class Story:
    """What happens in a case, as an agent would live it; `told` is None when it cannot."""

    def __init__(self, case: Case) -> None:
        self.results: dict[str, tuple[str, bool]] = {}
        self.schemas: dict[str, Any] = {}
        self.events: list[tuple[Any, ...]] = []
        self.told = self._tell(case.given)

    def _tell(self, given: Any) -> bool:
        steps = given.get("steps") or [given]
        if "steps" in given and ("transcript" in given or "reply" in given):
            return False
        before: list[Any] = []
        waiting: list[str] = []
        for own in steps:
            step = {**given, **own}
            caller = step.get("caller") or {}
            if step.keys() - KEYS or caller.keys() - {"user"}:
                return False
            for tool in step.get("tools") or ():
                tool = {"name": tool} if isinstance(tool, str) else tool
                if tool.keys() - {"name", "parameters"} or self.schemas.setdefault(
                    tool["name"], tool.get("parameters", ANY)
                ) != tool.get("parameters", ANY):
                    return False
            self.events.append(("at", step.get("at") or 0))
            transcript = own.get("transcript")
            if transcript is not None:
                if transcript[: len(before)] != before:
                    return False
                for message in transcript[len(before) :]:
                    if message["role"] == "user":
                        self.events.append(("user", message["content"]))
                    elif message["role"] == "tool":
                        if not message.get("tool_call_id"):
                            return False
                        self.results[message["tool_call_id"]] = (str(message["content"]), bool(message.get("is_error")))
                        waiting = [one for one in waiting if one != message["tool_call_id"]]
                    elif message["role"] != "assistant" or message.keys() - {"role", "content", "tool_calls"}:
                        return False
                    else:
                        for call in message.get("tool_calls", ()):
                            if not call.get("id"):
                                return False
                            if ("call", call) not in self.events:
                                self.events.append(("call", call))
                                waiting.append(call["id"])
                before = list(transcript)
            reply = own.get("reply")
            if reply is not None:
                calls = reply.get("tool_calls", [])
                # Only calls come to a policy: not what a model merely says, nor arguments the runtime cannot read.
                if waiting or reply.keys() - {"content", "tool_calls"} or not calls:
                    return False
                if any(isinstance(call.get("arguments", {}), str) for call in calls):
                    return False
                ids = {call.get("id") for call in calls} | {
                    event[1]["id"] for event in self.events if event[0] == "call"
                }
                if len(ids) != len(calls) + sum(event[0] == "call" for event in self.events) or None in ids:
                    return False
                for call in calls:
                    self.events.append(("call", call))
                    self.schemas.setdefault(call["name"], ANY)
                waiting = [call["id"] for call in calls]
        names = [event[1]["name"] for event in self.events if event[0] == "call"]
        return bool(names) and all(NAME.fullmatch(name) for name in (*names, *self.schemas))


def told(case: Case, text: str) -> list[tuple[str, str]]:
    """Calls of the last reply and what became of them, lived by an agent."""
    story = Story(case)
    names = dict.fromkeys(event[1]["name"] for event in story.events if event[0] == "call")

    def answer(params: Any, *, context: ToolContext) -> ToolResult[Any]:
        content, failed = story.results.get(context.call_id, ("done", False))
        return ToolResult.error(content) if failed else ToolResult.ok(content)

    tools = [
        Tool.from_json_schema(name=name, description="A tool.", schema=story.schemas.get(name, ANY), handler=answer)
        for name in dict.fromkeys((*story.schemas, *names))
    ]
    policy = GovernancePolicy.from_yaml(text, caller=Caller(**case.given.get("caller", {})))
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(key="s", tools=tools)], policies=[policy]))
    clock = FakeClock(START_MS / 1000)
    session = Session(clock=clock, session_id="case")
    ended: dict[str, str] = {}
    for kind, *rest in story.events:
        if kind == "at":
            clock.advance((START_MS + rest[0]) / 1000 - clock.now())
        elif kind == "user":
            policy.user_turn(rest[0], session=session)
        else:
            call = rest[0]
            arguments = call.get("arguments", {})
            outcome = execute_tool(ToolCall(call["name"], arguments, call["id"]), prompt=prompt, session=session)
            ended[call["id"]] = outcome.outcome if outcome.outcome in ("denied", "pending") else "ran"
    return sorted(ended.items())


def stories() -> Iterator[Any]:
    for path in sorted(ROOT.rglob("*.yaml")):
        if path.name.endswith(".plan.yaml"):
            continue
        for case in (replace(one, given=renamed(one.given)) for one in load_cases(path)):
            if case.name not in DIFFERS and Story(case).told:
                yield pytest.param(path, case, id=f"{path.relative_to(ROOT).with_suffix('')}: {case.name}")


STORIES = list(stories())


@pytest.mark.parametrize(("path", "case"), STORIES)
def test_a_story_ends_the_same_in_process(path: Path, case: Case) -> None:
    """G50: every call of the story passes, is denied or waits, as it does on the wire."""
    text = kept_in_process(path.with_suffix(".plan.yaml"))
    outcome = play(compile_plan(load_config(text)), case)
    on_the_wire = {
        call.call_id: OUTCOMES[call.status]
        for judged in outcome.judged
        if judged.turn.gate == "reply"
        for call in judged.ruling.calls
    }

    in_process = dict(told(case, text))

    assert {call_id: in_process[call_id] for call_id in on_the_wire} == on_the_wire


def test_most_kinds_of_stories_can_be_told_in_process() -> None:
    """G50: the comparison is worth something only while it covers the seed's containment, loops, surfaces and approvals."""
    files = {str(param.values[0].relative_to(ROOT)) for param in STORIES}

    assert files >= {
        "seed/sequence.yaml",
        "loops.yaml",
        "allowed.yaml",
        "arbitration.yaml",
        "matchers.yaml",
        "states.yaml",
    }
    assert len(STORIES) >= 60
