"""The oracle of `prove`: every sequence of events up to a small length, one by one, through `govern`; and random plans to ask about.

Knows nothing of states, windows or registers: it keeps no place twice in mind and tries all there is, the shortest first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from wardwright.gateway import govern, passes
from wardwright.history import Registers, apply
from wardwright.policy.compile import Plan
from wardwright.wire.turn import Caller, CallItem, Item, ResultItem, TextItem, Turn

TOOLS = ("tool_a", "tool_b", "tool_c", "tool_d")
CATALOG = "".join(f"  - {{match: {name}, namespace: {name[-1]}, name: x}}\n" for name in TOOLS)


@dataclass(frozen=True)
class Asked:
    """Can tool_b run after the result of tool_a, with nothing of this in between, within this window?"""

    without: str = ""
    """A raw name, or `user`."""
    window: tuple[str, int] | None = None

    def line(self) -> str:
        parts = ["can b/x run after a/x"]
        if self.without:
            parts.append(f"without {'user' if self.without == 'user' else f'{self.without[-1]}/x'}")
        if self.window is not None:
            parts.append(f"within {self.window[1]} {self.window[0]}")
        return " ".join(parts)


@dataclass(frozen=True)
class World:
    """What may happen."""

    words: bool
    errors: bool
    texts: bool
    waits: tuple[int, ...]
    calls: int
    fresh: bool
    tools: tuple[str, ...] = TOOLS


@dataclass(frozen=True)
class Story:
    registers: Registers
    items: tuple[Item, ...] = ()
    due: tuple[tuple[str, str], ...] = ()
    mode: str = "idle"
    request: str = ""
    now: int = 1_000_000_000_000
    waited: bool = False
    number: int = 0
    turn: int = 0
    event: int = 0
    told: frozenset[str] = frozenset()
    """Results that a request has carried which passed."""
    began: tuple[int, int, int] | None = None
    length: int = 0


def shortest(plan: Plan, asked: Asked, world: World, most: int) -> tuple[int | None, int]:
    """Length of the shortest story in which it happens, in gates and waits, if there is one up to the length that was tried,
    which is the other value: the longest for which no more than `most` stories had to be told."""
    stories = [Story(Registers(key=b"case"))]
    told, length = 0, 0
    while True:
        later: list[Story] = []
        for story in stories:
            for after, hit in _after(plan, asked, world, story):
                if hit:
                    return after.length, after.length
                told += 1
                if told > most:
                    return None, length
                later.append(after)
        stories, length = later, length + 1


def _after(plan: Plan, asked: Asked, world: World, story: Story) -> Iterator[tuple[Story, bool]]:
    story = replace(story, length=story.length + 1)
    if not story.waited:
        for wait in world.waits:
            yield replace(story, now=story.now + wait, waited=True), False
    story = replace(story, waited=False)
    if story.mode == "asked":
        if world.texts:
            yield _reply(plan, asked, story, [TextItem("assistant", "Well.")])
        for size in range(1, world.calls + 1):
            for names in itertools.product(world.tools, repeat=size):
                for arguments in ("{}", '{"n": %d}') if world.fresh else ("{}",):
                    calls: list[Item] = []
                    for offset, name in enumerate(names):
                        number = story.number + offset
                        text = arguments % number if "%" in arguments else arguments
                        calls.append(CallItem(f"c{number}", name, text))
                    yield _reply(plan, asked, replace(story, number=story.number + size), calls)
        return
    must = story.mode == "idle" and not story.due
    for flags in itertools.product((False, True) if world.errors else (False,), repeat=len(story.due)):
        for word in (True,) if must else (False, True) if world.words else (False,):
            new: list[Item] = [ResultItem(one, "r", flag) for (one, _), flag in zip(story.due, flags, strict=True)]
            if word:
                new.append(TextItem("user", f"Say {story.number}."))
            yield _request(plan, asked, replace(story, number=story.number + word), new, word)


def _gate(plan: Plan, story: Story, turn: Turn) -> tuple[Any, Registers]:
    ruling, delta = govern(plan, story.registers, replace(turn, caller=Caller(session_id="case")), story.now)
    return ruling, apply(story.registers, delta)


def _request(plan: Plan, asked: Asked, story: Story, new: list[Item], word: bool) -> tuple[Story, bool]:
    items = (*story.items, *new)
    ruling, registers = _gate(plan, story, Turn("request", "chat_completions", "m", items))
    fresh = sum(not fact.repeat for fact in ruling.facts)
    began = story.began
    event = story.event
    for fact in ruling.facts:
        event += not fact.repeat
        if passes(ruling) and fact.source == "tool_result" and fact.tool_call_id not in story.told:
            if fact.raw_name == asked.without:
                began = None
            if fact.raw_name == "tool_a":
                began = (story.turn, event, story.now)
    if passes(ruling):
        if asked.without == "user" and isinstance(items[-1], TextItem):
            began = None  # whatever began stands before the user's word
        told = {item.call_id for item in items if isinstance(item, ResultItem)}
        story = replace(story, told=frozenset(told))
    mode = "asked" if passes(ruling) else "refused"
    story = replace(story, items=items, due=(), mode=mode, registers=registers, began=began)
    return replace(story, request=ruling.request, event=story.event + fresh), False


def _reply(plan: Plan, asked: Asked, story: Story, reply: list[Item]) -> tuple[Story, bool]:
    turn = Turn("reply", "chat_completions", "m", reply, request=story.request, target="t")
    ruling, registers = _gate(plan, story, turn)
    story = replace(story, registers=registers)
    start, calls = story.event, len(ruling.facts)
    if not passes(ruling):
        waits = any(call.status == "require_approval" for call in ruling.calls)
        again = ruling.decision == "deny_call" and not waits
        return replace(story, mode="asked" if again else "refused", event=start + calls), False
    hit = False
    allowed = {call.item for call in ruling.calls if call.status == "allow"}
    for offset, item in enumerate(sorted(call.item for call in ruling.calls), 1):
        call = reply[item]
        if isinstance(call, CallItem) and call.name == "tool_b" and item in allowed and story.began is not None:
            turns, events, ms = story.turn, start + offset, story.now
            distance = dict(zip(("turns", "events", "ms"), (turns, events, ms), strict=True))
            begun = dict(zip(("turns", "events", "ms"), story.began, strict=True))
            hit |= asked.window is None or distance[asked.window[0]] - begun[asked.window[0]] <= asked.window[1]
    kept = tuple(one for index, one in enumerate(reply) if isinstance(one, TextItem) or index in allowed)
    due = tuple((one.id, one.name) for one in kept if isinstance(one, CallItem))
    story = replace(story, items=(*story.items, *kept), due=due, mode="idle", turn=story.turn + 1)
    return replace(story, event=start + calls), hit


# plans


def random_plan(random: Random) -> tuple[str, Asked, World]:
    """A small plan, a question, and all that can matter to both."""
    time = random.choice((None, None, None, "short", "long"))
    spans = {"short": (1, 2, 3), "long": (30_000, 60_000)}
    rules: list[str] = []
    used = {"user": False, "errors": False, "turns": False, "fresh": False}

    spoken_of = random.choice(("ab", "ab", "abc"))

    def tool() -> str:
        return random.choice(spoken_of)

    def window(kinds: tuple[str, ...] = ("turns", "events", "ms")) -> str:
        kind = random.choice(kinds if time else tuple(one for one in kinds if one != "ms"))
        size = random.choice(spans[str(time)]) if kind == "ms" else random.choice((1, 2))
        used["turns"] |= kind == "turns"
        return f"within: {{{kind}: {size}}}"

    def matcher(phase: str = "") -> str:
        if random.random() < 0.2:
            used["errors"] = True
            return f"{{namespace: {tool()}, name: x, result_status: [{random.choice(('error', 'success'))}]}}"
        return f"{{namespace: {tool()}, name: x{phase}}}"

    def until() -> str:
        kind = random.choice(("user_turn: true", "clean_turn: true", f"tool: {{namespace: {tool()}, name: x}}"))
        used["user"] |= kind.startswith("user")
        used["turns"] |= kind.startswith("clean")
        return f"until: {{{kind}}}"

    results = ", phase: result_interpretation"
    refuse = ("block", "deny_call", "deny_call", "require_approval")
    kinds = list(random.choice((("enter", "state"), ("enter", "list"), ("then",), ())))
    others = ("enter", "state", "then", "loop", "history", "leave", "budget", "list")
    kinds.extend(random.choice(others) for _ in range(random.randint(0 if kinds else 1, 2)))
    for number, kind in enumerate(kinds):
        if kind == "enter":
            extra = random.sample([window(), until()], random.randint(0, 2))
            after = matcher() if number and random.random() < 0.5 else f"{{namespace: a, name: x{results}}}"
            body = f"kind: tool_sequence, after: {{tool: {after}}}, transition_to: wary"
            body = ", ".join([body, *extra])
        elif kind == "state":
            body = f"kind: tool_selector, state_scope: wary, action: {random.choice(refuse)}"
            body += ", tool: {namespace: b, name: x, phase: planning}"
        elif kind == "leave":
            body = f"kind: tool_selector, action: transition, transition_to: calm, tool: {matcher()}"
        elif kind == "then":
            extra = random.sample([window(), until()], random.randint(0, 2))
            after = matcher() if number and random.random() < 0.5 else f"{{namespace: a, name: x{results}}}"
            body = f"kind: tool_sequence, action: {random.choice(refuse)}, after: {{tool: {after}}}"
            body = ", ".join([body, "then: {tool: {namespace: b, name: x, phase: planning}}", *extra])
        elif kind == "loop":
            equal = random.choice(("tool", "tool", "tool+arguments"))
            used["fresh"] |= equal != "tool"
            body = f"kind: tool_loop_threshold, action: {random.choice(refuse)}, equal: {equal}"
            body += f", threshold: {random.choice((1, 2))}, tool: {matcher()}"
            body += random.choice(("", ", " + window()))
        elif kind == "history":
            action = random.choice((*refuse, "transition, transition_to: wary"))
            body = f"kind: history_threshold, action: {action}, threshold: {random.choice((1, 2))}, tool: {matcher()}"
            body += random.choice(("", ", " + window()))
        elif kind == "budget":
            body = f"kind: budget, limits: {{calls: {random.choice((1, 2))}}}, action: {random.choice(refuse)}"
            body += ", tool: {namespace: b, name: x, phase: planning, source: assistant_tool_call}"
        else:
            body = "kind: allowed_tools, state_scope: wary, phase: [planning, result_interpretation], mode: deny_call"
            body += ", allowed_tools: [{namespace: a, name: x}, {namespace: c, name: x}]"
        rules.append(f"  - {{id: r{number}, {body}}}\n")
    expires = f", expires_ms: {random.choice(spans[time])}" if time and random.random() < 0.5 else ""
    text = (
        f"model_id: m\ntargets: [{{model: t, provider: scripted}}]\ncatalog:\n{CATALOG}"
        f"state_machine:\n  initial_state: calm\n  states:\n    - id: calm\n    - {{id: wary{expires}}}\n"
        f"governance:\n{''.join(rules)}"
    )
    asked = Asked(random.choice(("", "", "tool_c" if "c" in spoken_of else "", "user")))
    if random.random() < 0.3:
        kind = random.choice(("turns", "events", "ms")) if time else random.choice(("turns", "events"))
        asked = replace(
            asked, window=(kind, random.choice(spans[str(time)]) if kind == "ms" else random.choice((1, 2)))
        )
    heard = used["user"] or asked.without == "user"
    turns = heard or used["turns"] or (asked.window is not None and asked.window[0] == "turns")
    waits = {None: (), "short": (1, 2, 3, 4), "long": (15_000, 30_000, 30_001, 60_001)}[time]
    # One tool that nothing speaks of is as good as any.
    tools = TOOLS if "namespace: c" in text.split("governance:")[1] or asked.without == "tool_c" else TOOLS[:3]
    calls = 1 if random.random() < 0.8 else 2
    return text, asked, World(heard, used["errors"], turns, waits, calls, used["fresh"], tools)
