"""The published list of what each wire reads, passes and refuses is the one the code goes by (G4)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wardwright.wire import anthropic, chat_completions, mcp, responses

PAGE = Path(__file__).parents[2] / "docs" / "wire-fields.md"


def fields(module: Any) -> dict[str, str]:
    """Every field of a request and its fate."""
    fates = {**dict.fromkeys(module.READ, "read"), **dict.fromkeys(module.PASSED, "passed")}
    return {**fates, **{name: f"refused: {reason}" for name, reason in module.REFUSED.items()}}


LISTS: dict[str, Mapping[str, str]] = {
    "Chat Completions: fields of a request": fields(chat_completions),
    "Responses: fields of a request": fields(responses),
    "Responses: items of input and output": responses.ITEMS,
    "Anthropic Messages: fields of a request": fields(anthropic),
    "Anthropic Messages: blocks of a message": anthropic.BLOCKS,
    "MCP: methods": mcp.METHODS,
}


def published(lists: dict[str, Mapping[str, str]]) -> str:
    """The tables as the page has them."""
    parts: list[str] = []
    for title, fates in lists.items():
        rows = [f"| `{name}` | {fate} |" for name, fate in sorted(fates.items())]
        parts.append("\n".join([f"## {title}", "", "| Name | Fate |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def test_the_published_list_is_the_one_in_use() -> None:
    """Every field, item, block and method stands on the page with its fate, and nothing else does."""
    page = PAGE.read_text(encoding="utf-8")
    assert page[page.index("## ") :].strip() == published(LISTS)
