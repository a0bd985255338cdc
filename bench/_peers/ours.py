"""Our loop: `python ours.py TURNS` prints CPU seconds of a run with that many tool calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from time import process_time

from weakincentives.adapters import ScriptedAdapter
from weakincentives.adapters.scripted import ScriptedTurn
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolCall


@dataclass(frozen=True)
class Note:
    text: str


def run(turns: int) -> float:
    kept = 0

    def keep(params: Note, *, context: ToolContext) -> ToolResult[str]:
        """Keep a note."""
        nonlocal kept
        kept += 1
        return ToolResult.ok("kept", "kept")

    def script() -> Iterator[ScriptedTurn]:
        # As functions: like the others' models, ours makes its reply when it is asked.
        for number in range(turns):
            yield lambda _, number=number: ToolCall("keep", '{"text": "a note"}', f"c{number}")
        yield "done"

    section = MarkdownSection(title="Task", template="Keep notes.", tools=[Tool.wrap(keep)])
    prompt = Prompt(PromptTemplate(sections=[section]))
    adapter = ScriptedAdapter(script(), max_turns=None)
    started = process_time()
    response = adapter.evaluate(prompt, Session())
    spent = process_time() - started
    assert (response.text, kept) == ("done", turns)
    return spent


run(20)  # what is loaded and built once
wanted = int(sys.argv[1])
# A run of five milliseconds finds a quiet moment that a long one cannot find: short ones are repeated to the same length.
repeats = max(1, 10_000 // wanted)
print(json.dumps({"cpu": sum(run(wanted) for _ in range(repeats)) / repeats}))
