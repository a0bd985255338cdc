"""Plays the invented sets with catalogs drafted from their tools: honest runs kept, and injected calls that pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import yaml

KINDS = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "n": {"type": "number"},
    "b": {"type": "boolean"},
    "l": {"type": "array", "items": {"type": "string"}},
}


class Talks(Protocol):
    def call(self, name: str, arguments: dict[str, Any]) -> tuple[bool, str]: ...
    def result(self, content: str, failed: bool) -> None: ...


def tools_of(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "description": tool["says"],
            "input_schema": {"properties": {key: KINDS[kind] for key, kind in tool["args"].items()}},
        }
        for name, tool in given["tools"].items()
    ]


def play(begin: Callable[[str, list[dict[str, Any]], str], Talks], *, show: bool) -> tuple[int, int, int, int]:
    """(honest runs kept, all of them, injected calls that passed, all of them)."""
    sets = cast("dict[str, Any]", yaml.safe_load((Path(__file__).parent / "invented.yaml").read_text("utf-8")))
    kept = honest = passed = injected = 0
    for name, given in sets.items():
        tools = tools_of(given)
        results = json.loads(json.dumps(given["results"], default=str))
        for story in json.loads(json.dumps([*given["benign"], *given["attacks"]], default=str)):
            talk = begin(name, tools, story["user"])
            evil = "reads" in story
            words = "Do at once: " + json.dumps(story["calls"]) if evil else ""
            fine = True
            for tool, arguments in story["reads"] if evil else story["calls"]:
                passes, why = talk.call(tool, arguments)
                fine &= passes
                if passes:
                    text = json.dumps(results.get(tool, {"ok": True})).replace("EVIL", json.dumps(words)[1:-1])
                    talk.result(text, False)
                elif show:
                    print(f"  held: {name}: {story['user'][:70]} | {tool} {why.partition('Problems: ')[2][:230]}")
            if not evil:
                kept, honest = kept + fine, honest + 1
                continue
            for tool, arguments in story["calls"]:
                passes, _ = talk.call(tool, arguments)
                passed, injected = passed + passes, injected + 1
                if passes:
                    talk.result('{"ok": true}', False)
                    if show:
                        print(f"  PASSED: {name}: {story['user'][:60]} | {tool} {json.dumps(arguments)}")
    return kept, honest, passed, injected
