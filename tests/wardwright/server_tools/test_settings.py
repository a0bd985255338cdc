"""The sections `server_tools` and `snippets`: what loads, and what is told about the rest, with its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wardwright.config import Problems, load_config
from wardwright.policy.compile import compile_plan
from wardwright.server_tools import ServerTool, compile_server_tools


def read(text: str, *, modules_from: Path | None = None) -> tuple[tuple[ServerTool, ...], list[str]]:
    config = load_config(text + "\n")
    problems = Problems("f")
    tools = compile_server_tools(
        config.models[0].sections.get("server_tools"),
        config.deployment.get("snippets"),
        problems,
        modules_from=modules_from,
    )
    return tools, [str(problem) for problem in problems.found]


def test_the_first_built_in_tool_needs_only_its_name() -> None:
    """`server_tools: [{name: wardwright_policy_cache_status}]` is complete."""
    (tool,), problems = read("server_tools:\n  - name: wardwright_policy_cache_status")

    assert problems == []
    assert (tool.name, tool.engine, tool.source_class) == ("wardwright_policy_cache_status", "builtin", "built-in")


def test_an_inline_function_by_its_old_name() -> None:
    """G40: `engine: dune` is the engine `snippet`, with Python for a source."""
    (tool,), problems = read("""
server_tools:
  - engine: dune
    name: dune_echo_tool
    description: Echo a value through a trusted local function.
    source: |
      {"echo": input["value"]}
    parameters:
      type: object
      additionalProperties: false
      properties:
        value:
          type: string
""")

    assert problems == []
    assert (tool.name, tool.engine, tool.source_class) == ("dune_echo_tool", "snippet", "inline")
    assert tool.parameters is not None
    assert list(tool.parameters["properties"]) == ["value"]


@pytest.mark.parametrize("engine", ["module", "beam_module", "elixir_module"])
def test_a_module_by_each_of_its_names(engine: str, tmp_path: Path) -> None:
    """G40: a Python file loads under the new name of its engine and under both old ones."""
    (tmp_path / "reverse_tool.py").write_text("raise RuntimeError('never imported by a check')\n")
    (tool,), problems = read(
        f"server_tools:\n  - engine: {engine}\n    module: MyApp.WardwrightTools.ReverseTool\n"
        f"    path: {tmp_path}/reverse_tool.py\n",
        modules_from=tmp_path,
    )

    assert problems == []
    assert (tool.engine, tool.module) == ("module", "MyApp.WardwrightTools.ReverseTool")


def test_a_saved_snippet_brings_what_the_tool_does_not_say() -> None:
    """What stands beside a saved snippet's source counts unless the tool says something else."""
    (tool,), problems = read("""
snippets:
  shout:
    source: input["value"].upper()
    description: Say it louder.
    input: {value: nothing}
    limits: {timeout: 500ms}
server_tools:
  - {engine: snippet, name: shout, snippet_id: shout, input: {value: hello}}
""")

    assert problems == []
    assert (tool.description, dict(tool.input), tool.limits.timeout_ms) == ("Say it louder.", {"value": "hello"}, 500)
    assert tool.source_class == "saved snippet"


def test_neither_source_nor_path_is_shown() -> None:
    """What a tool is made from stays out of logs."""
    (tool,), _ = read('server_tools: [{engine: snippet, name: a, source: "[\\"hush-hush\\"]"}]')

    assert "hush-hush" not in repr(tool)


def test_an_mcp_server_by_address() -> None:
    """One entry brings the tools of a whole server; its credentials are named, not written."""
    (tool,), problems = read("""
server_tools:
  - engine: mcp
    name: tickets
    url: https://mcp.example.test/mcp
    headers_env: {Authorization: TICKETS_TOKEN}
    tools: [find, close]
    limits: {timeout: 20s, connect_timeout: 3s}
""")

    assert problems == []
    assert tool.remote is not None
    assert (tool.remote.tools, tool.limits.timeout_ms, tool.source_class) == (("find", "close"), 20_000, "remote")


def test_the_policy_engine_accepts_what_loads_here() -> None:
    """The sections stay legal in a plan."""
    plan = compile_plan(load_config("server_tools:\n  - {engine: dune, name: a, source: '1'}\nsnippets: {b: '2'}\n"))

    assert plan.warnings == ()


def test_elixir_is_refused_with_the_python_form() -> None:
    """G40: a function in Elixir is told in Python, word for word where it is one map."""
    _, problems = read("""
server_tools:
  - engine: dune
    name: dune_echo_tool
    source: |
      %{"echo" => input["value"]}
""")

    assert problems == [
        "f:5:5: server_tools[0].source: looks like Elixir; snippets are Python. The last line is an expression, its value "
        'the result: {"echo": input["value"]}'
    ]


def test_longer_elixir_is_refused_with_an_example() -> None:
    """What is more than a map is answered with the form that a snippet has."""
    _, problems = read("""
snippets:
  a: |
    input["value"] |> String.upcase()
""")

    assert problems == [
        "f:3:3: snippets.a: looks like Elixir; snippets are Python. The last line is an expression, its value the result: "
        '{"echo": input["value"]}'
    ]


def test_a_module_of_another_language_is_refused_with_the_python_form() -> None:
    """G40: a path that is no Python file is answered with a whole module."""
    _, problems = read("""
server_tools:
  - engine: beam_module
    module: MyApp.WardwrightTools.ReverseTool
    path: /opt/wardwright/tools/reverse_tool.exs
""")

    assert problems == [
        "f:5:5: server_tools[0].path: 'reverse_tool.exs' is no Python file. A module is a .py file with two functions:\n"
        "    def spec():\n"
        '        return {"name": "reverse", "description": "Reverse a text.",\n'
        '                "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}\n'
        "\n"
        "    def run(arguments, context):\n"
        '        return arguments["text"][::-1]'
    ]


def test_modules_and_programs_come_only_from_a_config_on_disk() -> None:
    """G40: what runs unconfined cannot be configured from elsewhere."""
    _, problems = read("""
server_tools:
  - {engine: module, path: a.py}
  - {engine: mcp, name: b, command: [python, -m, server]}
""")

    assert problems == [
        "f:3:22: server_tools[0].path: modules run inside the gateway: they are taken only from a config on disk, and from "
        "its folder",
        "f:4:28: server_tools[1].command: programs are started only by a config on disk; use 'url' here",
    ]


def test_a_module_outside_of_its_folder_is_refused(tmp_path: Path) -> None:
    """G40: neither `..` nor a link nor an absolute path leads out of the folder of modules."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "out.py").write_text("")
    (inside / "link.py").symlink_to(tmp_path / "out.py")
    _, problems = read(
        f"server_tools:\n  - {{engine: module, path: ../out.py}}\n  - {{engine: module, path: link.py}}\n"
        f"  - {{engine: module, path: {tmp_path}/out.py}}\n  - {{engine: module, path: gone.py}}\n",
        modules_from=inside,
    )

    outside = "lies outside of the folder that modules may come from; put it there"
    assert problems == [
        f"f:2:22: server_tools[0].path: {outside}",
        f"f:3:22: server_tools[1].path: {outside}",
        f"f:4:22: server_tools[2].path: {outside}",
        "f:5:22: server_tools[3].path: there is no such file in the folder of modules",
    ]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{engine: snipet, name: a}", "engine: 'snipet' is not one of builtin, snippet, module, mcp, dune, beam_module, elixir_module (did you mean 'snippet'?)"),
        ("{name: wardwright_policy_cache}", "name: there is no built-in tool 'wardwright_policy_cache' (did you mean 'wardwright_policy_cache_status'?); built in: wardwright_policy_cache_status. Another tool needs 'engine': snippet, module, mcp"),
        ("{engine: builtin, name: nope}", "name: there is no built-in tool 'nope'; built in: wardwright_policy_cache_status. Another tool needs 'engine': snippet, module, mcp"),
        ("{description: x}", "missing key 'name' (a built-in tool) or 'engine'"),
        ("{engine: snippet, source: '1'}", "missing key 'name'"),
        ("{engine: snippet, name: a, sorce: '1', source: '1'}", "sorce: unknown key 'sorce' (did you mean 'source'?)"),
        ("{engine: snippet, name: a}", "give one of 'source' (Python) and 'snippet_id' (a name under snippets)"),
        ("{engine: snippet, name: a, snippet_id: b}", "snippet_id: there is no snippet 'b' under snippets"),
        ("{engine: snippet, name: Upper Case, source: '1'}", "name: 'Upper Case' cannot be its name: use 1 to 64 characters of a-z, 0-9, _ and -"),
        ("{engine: snippet, name: a, source: 'x ='}", "source: is not valid Python: invalid syntax (line 1 of the source)"),
        ("{engine: snippet, name: a, source: 'x = 1'}", 'source: has no result: its last line must be an expression, such as {"echo": input["value"]}'),
        ("{engine: snippet, name: a, source: '1', parameters: {type: text}}", "parameters: cannot be used as a schema: #/type must name JSON types: object, array, string, boolean, null, number, integer"),
        ("{engine: snippet, name: a, source: '1', parameters: {type: string}}", "parameters: cannot be used as a schema: the schema must describe an object: its type must be 'object'"),
        ("{engine: snippet, name: a, source: '1', parameters: []}", "parameters: expected a mapping, got a list"),
        ("{engine: snippet, name: a, source: '1', limits: {timeout: soon}}", "limits.timeout: expected a duration such as 30d, 12h, 15m, 10s or 250ms"),
        ("{engine: snippet, name: a, source: '1', limits: {steps: 1}}", "limits.steps: unknown key 'steps'"),
        ("{engine: mcp, name: a}", "give one of 'url' (a server that is running) and 'command' (a program to start)"),
        ("{engine: mcp, name: a, url: 'file:///etc/passwd'}", "url: must begin with https:// or http://"),
        ("{engine: mcp, name: a, url: 'https://me:pw@example.test/'}", "url: holds a password: put it into a header by 'headers_env'"),
        ("{engine: mcp, name: a, url: 'https://example.test/', headers_env: {Authorization: 'Bearer abc'}}", "headers_env.Authorization: expected the name of an environment variable; secrets are never in the file"),
        ("{engine: mcp, name: a, url: 'https://example.test/', env: [A]}", "env: is for a server with 'command'"),
        ("7", "expected a mapping, got number 7"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(entry: str, problem: str) -> None:
    """One mistake, one problem, at the key that makes it."""
    _, problems = read(f"server_tools:\n  - {entry}")

    assert len(problems) == 1
    place, _, told = problems[0].partition(" server_tools[0]")
    assert place.startswith("f:2:")
    assert told.removeprefix(": ").removeprefix(".") == problem


def test_a_name_is_given_once() -> None:
    """Two tools of one name are refused, saying where the first is."""
    _, problems = read(
        "server_tools:\n  - {engine: snippet, name: a, source: '1'}\n  - {engine: snippet, name: a, source: '2'}"
    )

    assert problems == ["f:3:23: server_tools[1].name: the name 'a' is already used at line 2"]


def test_saved_snippets_are_judged_although_nobody_uses_them() -> None:
    """A file with a broken snippet is not accepted."""
    _, problems = read("snippets:\n  a: 'x ='\n  b: {sauce: '1'}\n  c: 3\n")

    assert problems == [
        "f:2:3: snippets.a: is not valid Python: invalid syntax (line 1 of the source)",
        "f:3:7: snippets.b.sauce: unknown key 'sauce' (did you mean 'source'?)",
        "f:3:3: snippets.b: missing key 'source'",
        "f:4:3: snippets.c: expected text, got number 3",
    ]


@pytest.mark.parametrize(
    ("package", "entry", "problem"),
    [
        (
            "pydantic_monty",
            "{engine: dune, name: a, source: '1'}",
            "needs the package pydantic-monty. Install it: pip install 'weakincentives[asteval]'",
        ),
        (
            "mcp",
            "{engine: mcp, name: a, url: 'https://example.test/'}",
            "needs the package mcp. Install it: pip install 'weakincentives[mcp]'",
        ),
    ],
)
def test_a_missing_package_is_named(package: str, entry: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose extra is not installed is refused before anything runs, with the way to get it."""
    monkeypatch.setitem(sys.modules, package, None)
    _, problems = read(f"server_tools:\n  - {entry}")

    assert problems == [f"f:2:6: server_tools[0].engine: {problem}"]
