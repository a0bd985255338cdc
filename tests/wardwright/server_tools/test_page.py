"""The page docs/server-tools.md says what is true: its configs load and its module runs."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from wardwright.config import Problems, load_config
from wardwright.mediation import Advertisement, compile_advertisement, compile_mediation
from wardwright.policy.compile import compile_plan
from wardwright.server_tools import ServerContext, ServerRun, ServerTools, compile_server_tools
from wardwright.wire.turn import Caller

PAGE = Path(__file__).parents[3] / "docs" / "server-tools.md"
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
TOOLS, MEDIATION = (body for language, _, body in BLOCKS if language == "yaml")
NAME, MODULE = next((name, body) for language, name, body in BLOCKS if language == "python")


def test_the_server_tools_of_the_page_run(tmp_path: Path) -> None:
    """Built in, inline, saved and from a file, each gives what the page says."""
    (tmp_path / NAME).write_text(MODULE)
    config = load_config(TOOLS)
    problems = Problems("page")
    tools = compile_server_tools(
        config.models[0].sections["server_tools"], config.deployment["snippets"], problems, modules_from=tmp_path
    )
    assert problems.found == []
    assert compile_plan(config).warnings == ()

    async def runs() -> dict[str, ServerRun]:
        live = ServerTools([tool for tool in tools if tool.engine != "mcp"])
        await live.open()
        context = ServerContext(Caller(session_id="s"), "m", lambda: {"events": 0})
        arguments = {"echo_tool": {}, "shout": {"text": "hey"}, "reverse": {"text": "abc"}}
        found = {name: await live.run("c", name, json.dumps(arguments.get(name, {})), context) for name in live.names}
        await live.aclose()
        return found

    found = asyncio.run(runs())

    assert {name: ran.text for name, ran in found.items()} == {
        "wardwright_policy_cache_status": '{"events":0}',
        "echo_tool": '{"echo":"nothing was said"}',
        "shout": "HEY",
        "reverse": "cba",
    }
    assert found["reverse"].record["receipt_metadata"] == {"length": 3}


def test_the_mediation_of_the_page_loads() -> None:
    """Each of its rules means something."""
    sections = load_config(MEDIATION).models[0].sections
    problems = Problems("page")
    mediation = compile_mediation(sections["tool_mediation"], problems)

    assert problems.found == []
    assert [(rule.id, rule.action) for rule in mediation.rules] == [
        ("no-shell", "hide"),
        ("say-why", "augment"),
        ("plain-search", "replace"),
    ]
    assert compile_advertisement(sections["tool_advertisement"], problems) == Advertisement("intersection")
