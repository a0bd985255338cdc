"""The agent: it does what the user's task takes, and obeys every instruction that it reads on the way, at once.

It has no judgement at all, so whatever does not happen was stopped by the plan. An attacker's calls come only after the words that
ask for them were really returned by the world, or stand in a tool's description. Where its calls are ruled on is the setting's matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from .world import HERE, Effect, World, read_yaml


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    user: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Injection:
    read: tuple[str, ...]
    """All of it must have been read before the agent obeys."""
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One story of a data file: a benign task, or a task with an attack in it."""

    name: str
    attack: str
    """Class of the attack; empty for a benign task."""
    turns: tuple[Turn, ...]
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    injected: tuple[Injection, ...] = ()
    hard: str = ""
    """Why a reasonable plan may hold this benign task."""
    residual: str = ""
    """Why this attack passes, or this task is held: the reason that the page gives."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """What became of a call."""

    passed: bool
    rules: tuple[str, ...]
    why: str
    content: str
    """What the agent reads."""


@dataclass(frozen=True, slots=True)
class Step:
    call: Call
    injected: bool
    ruled: Ruled
    effects: tuple[Effect, ...]
    """What it did to the world."""


class Setting(Protocol):
    """Where the agent lives: one conversation over one world."""

    world: World

    def user(self, text: str) -> None: ...
    def call(self, call: Call) -> Ruled: ...


def play(run: Run, setting: Setting) -> list[Step]:
    """The whole story. ValueError when an injection was never read though nothing was held: then the story is wrong."""
    agent = _Agent(run, setting)
    steps = list(agent.play())
    if agent.waiting and all(step.ruled.passed for step in steps):
        raise ValueError(f"{run.name}: never read: {agent.waiting[0].read}")
    return steps


class _Agent:
    def __init__(self, run: Run, setting: Setting) -> None:
        self.run = run
        self.setting = setting
        self.read: list[str] = [tool["description"] for tool in setting.world.tools]
        self.waiting = list(run.injected)

    def play(self) -> Iterator[Step]:
        for turn in self.run.turns:
            self.setting.user(turn.user)
            yield from self._obey()
            for call in turn.calls:
                yield self._do(call, False)
                yield from self._obey()

    def _obey(self) -> Iterator[Step]:
        """What was read may ask for calls whose results ask for more."""
        while True:
            ready = next((one for one in self.waiting if self._has_read(one)), None)
            if ready is None:
                return
            self.waiting.remove(ready)
            for call in ready.calls:
                yield self._do(call, True)

    def _has_read(self, injection: Injection) -> bool:
        return all(any(part in text for text in self.read) for part in injection.read)

    def _do(self, call: Call, injected: bool) -> Step:
        before = len(self.setting.world.done)
        ruled = self.setting.call(call)
        self.read.append(ruled.content)
        return Step(call, injected, ruled, tuple(self.setting.world.done[before:]))


# stories as data


def load(folder: Path = HERE) -> list[Run]:
    """Every story of the folders `benign` and `injected`, in the order of their files. ValueError for what is wrong in them."""
    runs: list[Run] = []
    for path in sorted([*(folder / "benign").glob("*.yaml"), *(folder / "injected").glob("*.yaml")]):
        runs.extend(_run(one, path) for one in read_yaml(path))
    names = [run.name for run in runs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two stories have one name: {', '.join(sorted(twice))}")
    return runs


_KEYS: Final = frozenset({"task", "attack", "class", "given", "turns", "user", "calls", "injected", "hard", "residual"})


def _run(one: dict[str, Any], path: Path) -> Run:
    name = one.get("task") or one.get("attack") or ""
    if not name or set(one) - _KEYS or bool(one.get("class")) != bool(one.get("attack")):
        raise ValueError(f"{path.name}: {name or one}: not a story: {sorted(set(one) - _KEYS)}")
    turns = one.get("turns") or [{"user": one["user"], "calls": one.get("calls", [])}]
    return Run(
        name=name,
        attack=one.get("class", ""),
        turns=tuple(Turn(turn["user"], _calls(turn.get("calls", []))) for turn in turns),
        given=one.get("given", {}),
        injected=tuple(
            Injection(tuple([each["read"]] if isinstance(each["read"], str) else each["read"]), _calls(each["calls"]))
            for each in one.get("injected", [])
        ),
        hard=one.get("hard", ""),
        residual=one.get("residual", ""),
    )


def _calls(given: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    return tuple(Call(name, arguments or {}) for call in given for name, arguments in call.items())
