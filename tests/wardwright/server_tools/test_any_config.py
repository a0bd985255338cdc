"""Whatever stands in the sections, reading them raises nothing: it gives tools, or problems with their places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wardwright.config import Problems, parse_yaml
from wardwright.mediation import compile_advertisement, compile_mediation
from wardwright.server_tools import compile_server_tools

WORDS = st.sampled_from(
    [
        "", "a", "hide", "augment", "replace", "patch", "snippet", "dune", "module", "mcp", "builtin", "1", "%{}", "x.py", "../x.py",
        "https://a.test/", "wardwright_policy_cache_status", "object", "é\u200b", "\x00", "10s", "*", "intersection", "[", "lambda: 0",
    ]
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "name", "engine", "source", "snippet_id", "input", "parameters", "limits", "path", "module", "url", "command", "headers_env",
        "env", "tools", "prefix", "description", "timeout", "output_chars", "mode", "rules", "id", "action", "match", "tool",
        "description_append", "type", "properties", "required", "odd", "a", "$ref", "pattern",
    ]
)  # fmt: skip
SCALARS = st.one_of(WORDS, st.integers(-5, 10**6), st.booleans(), st.none(), st.just(1.5))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=12,
)
ENTRIES = st.one_of(VALUES, st.lists(st.dictionaries(KEYS, VALUES, max_size=7), max_size=3))


@given(tools=ENTRIES, snippets=ENTRIES, mediation=VALUES, advertisement=VALUES, disk=st.booleans())
def test_no_config_raises(tools: Any, snippets: Any, mediation: Any, advertisement: Any, disk: bool) -> None:
    """Every problem has a place in the file, and what has none is a tool with a name or a file."""
    problems = Problems("f")
    root = parse_yaml(json.dumps({"t": tools, "s": snippets, "m": mediation, "a": advertisement}), problems)
    nodes = root.items()
    found = compile_server_tools(nodes["t"], nodes["s"], problems, modules_from=Path(__file__).parent if disk else None)
    compile_mediation(nodes["m"], problems)
    compile_advertisement(nodes["a"], problems)

    assert all(problem.line >= 1 and problem.column >= 1 for problem in problems.found)
    assert problems.errors or all(tool.name or tool.path for tool in found)
