"""Server tools alive: each engine runs its calls through the tool runtime, off the event loop, and says what came of them."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from wardwright.config import Problems, load_config
from wardwright.errors import ConfigError
from wardwright.facts import digest, text_digest
from wardwright.server_tools import ServerContext, ServerRun, ServerTools, compile_server_tools
from wardwright.wire.turn import Caller

KEY = b"key of the session"
CALLER = Caller(tenant="t", session_id="s-1")


def report() -> Mapping[str, Any]:
    return {"session_id": "s-1", "events": 3}


CONTEXT = ServerContext(CALLER, "coding", report, KEY)


def tools_of(text: str, *, modules_from: Path | None = None, at_once: int = 8) -> ServerTools:
    config = load_config(text + "\n")
    problems = Problems("f")
    tools = compile_server_tools(
        config.models[0].sections["server_tools"],
        config.deployment.get("snippets"),
        problems,
        modules_from=modules_from,
    )
    assert problems.found == []
    return ServerTools(tools, at_once=at_once)


def using(tools: ServerTools, work: Callable[[ServerTools], Awaitable[Any]]) -> Any:
    """What the work gives while the tools are open."""

    async def whole() -> Any:
        await tools.open()
        try:
            return await work(tools)
        finally:
            await tools.aclose()

    return asyncio.run(whole())


def run(tools: ServerTools, name: str, arguments: str = "{}", context: ServerContext = CONTEXT) -> ServerRun:
    return using(tools, lambda live: live.run("call-1", name, arguments, context))


def snippet(source: str, *more: str) -> ServerTools:
    lines = "".join(f"    {line}\n" for line in more)
    return tools_of(f"server_tools:\n  - engine: snippet\n    name: x\n    source: {json.dumps(source)}\n{lines}")


def module(folder: Path, text: str, *more: str) -> ServerTools:
    (folder / "tool.py").write_text(text)
    lines = "".join(f"    {line}\n" for line in more)
    return tools_of(f"server_tools:\n  - engine: module\n    path: tool.py\n{lines}", modules_from=folder)


SPEC = """
def spec():
    return {"name": "x", "description": "Do it.", "parameters": {"type": "object"}}
"""

# --- what is recorded ------------------------------------------------------------------------------------------------


def test_the_built_in_tool_reports_the_callers_scope() -> None:
    """G40: what the policy remembers of the one who asks is the whole answer."""
    ran = run(tools_of("server_tools: [{name: wardwright_policy_cache_status}]"), "wardwright_policy_cache_status")

    assert (json.loads(ran.text), ran.is_error) == ({"session_id": "s-1", "events": 3}, False)


def test_the_report_may_take_its_time() -> None:
    """A report that must be waited for is waited for."""

    async def slow() -> Mapping[str, Any]:
        return {"events": 4}

    context = ServerContext(CALLER, "coding", slow, KEY)
    tools = tools_of("server_tools: [{name: wardwright_policy_cache_status}]")

    assert run(tools, "wardwright_policy_cache_status", context=context).text == '{"events":4}'


def test_the_record_holds_digests_and_no_content() -> None:
    """G40, G8: what ran, where, how long and with which digests; neither arguments nor result."""
    ran = run(snippet('"secret " + input["word"]', "input: {word: plain}"), "x", "{}")
    record = dict(ran.record)

    assert ran.text == "secret plain"
    assert isinstance(record.pop("elapsed_ms"), int)
    assert len(record.pop("source_hash")) == 64
    assert record == {
        "call_id": "call-1",
        "name": "x",
        "engine": "snippet",
        "execution_location": "wardwright",
        "visibility_level": "local_verified",
        "status": "completed",
        "outcome": "ok",
        "arguments_digest": digest(KEY, "{}"),
        "result_digest": text_digest(KEY, "secret plain"),
    }


def test_only_the_metadata_of_a_result_is_kept() -> None:
    """G40: a pair of a result and a mapping is a result for the model and metadata for the receipt."""
    ran = run(snippet('({"rows": 2}, {"table": "users"})'), "x")

    assert ran.text == '{"rows":2}'
    assert ran.record["receipt_metadata"] == {"table": "users"}


def test_much_metadata_is_only_counted() -> None:
    """A receipt is no place for a result."""
    ran = run(snippet('(1, {"all": "x" * 5000})'), "x")

    assert ran.record["receipt_metadata"] == {"omitted": "5010 bytes; at most 4096 are kept"}


def test_an_unknown_name_is_an_error_for_the_model() -> None:
    """Nothing is run for it, and the record says so."""
    ran = run(snippet("1"), "y")

    assert (ran.text, ran.is_error) == ("There is no server tool 'y' here. Use another tool.", True)
    assert (ran.record["status"], ran.record["outcome"]) == ("error", "unknown_tool")


def test_arguments_are_checked_by_the_schema() -> None:
    """G40: every problem is told to the model, and the tool is not run."""
    tools = snippet("1 / 0", "parameters: {type: object, properties: {n: {type: integer}}, required: [n, m]}")
    ran = run(tools, "x", '{"n": "1"}')

    assert ran.record["outcome"] == "invalid_params"
    assert json.loads(ran.text) == {
        "error": "Invalid parameters for tool 'x'",
        "details": {"n": "Expected type integer, got string '1'", "m": "Missing required field"},
    }


@pytest.mark.parametrize("arguments", ["", "[1]", "{", "\ud800", '{"a": NaN}'])
def test_no_arguments_of_a_model_raise(arguments: str) -> None:
    """What is no object is an error that the model reads."""
    tools = snippet("1", "parameters: {type: object, required: [a]}")

    assert run(tools, "x", arguments).record["outcome"] == "invalid_params"


def test_a_request_whose_time_is_over_runs_nothing() -> None:
    """The tool's own time is bounded by the exchange's."""
    ran = run(snippet("1"), "x", context=ServerContext(CALLER, "coding", report, KEY, seconds=0.0))

    assert (ran.text, ran.is_error) == ("Tool 'x' was not run: the time for this request is over.", True)
    assert ran.record["outcome"] == "deadline"


# --- snippets ----------------------------------------------------------------------------------------------------------


def test_arguments_stand_over_the_configured_input() -> None:
    """G40: `input` holds the defaults; the model's arguments win."""
    tools = snippet("input", "input: {a: 1, b: 2}", "parameters: {type: object}")

    assert json.loads(run(tools, "x", '{"b": 3, "c": "ü\'\\"\\\\"}').text) == {"a": 1, "b": 3, "c": "ü'\"\\"}


def test_a_snippet_reaches_nothing() -> None:
    """G40: no file, and no module that would lead to one."""
    assert run(snippet('open("/etc/passwd").read()'), "x").text == (
        "Tool 'x' failed: PermissionError: There are no files here: no filesystem is bound to this prompt."
    )


def test_a_failing_snippet_shows_no_line_of_itself() -> None:
    """The model reads what went wrong, never the source."""
    ran = run(snippet('password = "hush-hush"\n1 / len(input)'), "x")

    assert (ran.text, ran.is_error) == ("Tool 'x' failed: ZeroDivisionError: division by zero", True)
    assert (ran.record["status"], ran.record["outcome"]) == ("error", "failed")


def test_a_snippet_that_does_not_end_is_ended() -> None:
    """G40: its time is its limit, and the event loop goes on meanwhile."""

    async def beside(live: ServerTools) -> tuple[ServerRun, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        ran = await live.run("c", "x", "{}", CONTEXT)
        ticking.cancel()
        return ran, ticks

    ran, ticks = using(snippet("while True: pass\n1", "limits: {timeout: 100ms}"), beside)

    assert ran.text == "Tool 'x' failed: The code ran longer than 0.1 seconds and was stopped."
    assert ticks > 100


def test_a_result_that_is_no_json_is_an_error() -> None:
    """Only JSON comes out of an interpreter."""
    assert run(snippet("{1, 2}"), "x").text == (
        "Tool 'x' failed: TypeError: Object of type set is not JSON serializable"
    )


def test_a_long_result_is_cut_with_a_note() -> None:
    """The model gets the beginning and learns how much there was."""
    assert run(snippet('"abcdef" * 10', "limits: {output_chars: 6}"), "x").text == (
        "abcdef\n[Cut: the first 6 of 60 characters are shown. Ask for less.]"
    )


def test_a_huge_result_is_refused() -> None:
    """What is far beyond the limit is not carried out of the interpreter."""
    ran = run(snippet('"x" * 1_000_000', "limits: {output_chars: 10}"), "x")

    assert ran.text == "Tool 'x' failed: its result is longer than 10 characters. Ask for less."


# --- modules -----------------------------------------------------------------------------------------------------------


def test_a_module_is_told_who_asks(tmp_path: Path) -> None:
    """The caller, the model and a key that stays the same when the call is run again."""
    text = (
        SPEC
        + "def run(arguments, context):\n    return [context.call_id, context.model, context.caller.session_id, context.idempotency_key]\n"
    )
    first, second = (json.loads(run(module(tmp_path, text), "x").text) for _ in range(2))

    assert first[:3] == ["call-1", "coding", "s-1"]
    assert first[3] == second[3]


@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_module_runs_and_leaves_metadata(how: str, tmp_path: Path) -> None:
    """G40: sync or async, it may return a pair."""
    text = f"{SPEC}\n{how} run(arguments, context):\n    return {{'n': arguments['n'] + 1}}, {{'seen': True}}\n"
    ran = run(module(tmp_path, text), "x", '{"n": 1}')

    assert (ran.text, ran.record["engine"], ran.record["receipt_metadata"]) == ('{"n":2}', "module", {"seen": True})


def test_a_sync_module_does_not_block_the_loop(tmp_path: Path) -> None:
    """It runs on a thread of its own."""
    text = SPEC + "import threading\ndef run(arguments, context):\n    return threading.current_thread().name\n"

    assert run(module(tmp_path, text), "x").text != threading.current_thread().name


@pytest.mark.parametrize(
    ("body", "text", "outcome"),
    [
        ("raise ValueError('Give a shorter word.')", "Give a shorter word.", "failed"),
        ("raise RuntimeError('lost')", "Internal error: lost", "failed"),
        ("return {1, 2}", "Tool 'x' raised TypeError: the result of a server tool must be JSON: Type is not JSON serializable: set", "failed"),
        ("return 1, {'a': {1}}", "Tool 'x' raised TypeError: the receipt_metadata of a server tool must be JSON: Type is not JSON serializable: set", "failed"),
        ("async def later(): return 1\n    return later()", "Tool 'x' raised TypeError: run() returned a coroutine: declare it with async def", "failed"),
        ("return None", "", "ok"),
    ],
)  # fmt: skip
def test_what_the_model_reads_of_a_module(body: str, text: str, outcome: str, tmp_path: Path) -> None:
    """Failures are told by the runtime's one set of words."""
    ran = run(module(tmp_path, f"{SPEC}\ndef run(arguments, context):\n    {body}\n"), "x")

    assert (ran.text, ran.record["outcome"]) == (text, outcome)


def test_a_long_error_is_cut(tmp_path: Path) -> None:
    """An error never floods the model."""
    ran = run(
        module(tmp_path, SPEC + "def run(a, c): raise ValueError('x' * 9000)\n", "limits: {output_chars: 10}"), "x"
    )

    assert ran.text == f"{'x' * 2000}\n[Cut: the first 2000 of 9000 characters are shown. Ask for less.]"


def test_a_module_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """Its thread is left behind, the model is told."""
    text = SPEC + "import threading\ndef run(arguments, context):\n    threading.Event().wait(2)\n"
    ran = run(module(tmp_path, text, "limits: {timeout: 50ms}"), "x")

    assert ran.record["outcome"] == "timeout"
    assert ran.is_error


def test_the_operator_names_the_tool(tmp_path: Path) -> None:
    """Name and description in the config stand over those of `spec()`, also in the form that providers use."""
    text = 'def spec():\n    return {"type": "function", "function": {"name": "y", "description": "Old."}}\ndef run(a, c): return 1\n'

    async def seen(live: ServerTools) -> Any:
        return [(spec.name, spec.description) for spec in live.specs()]

    assert using(module(tmp_path, text, "name: z", "description: New."), seen) == [("z", "New.")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 / 0\n", "it raised ZeroDivisionError: division by zero"),
        ("def spec(): return 1\ndef run(a, c): return 1\n", "spec() must return a mapping, got int"),
        ("def spec(): return {}\ndef run(a, c): return 1\n", "spec() names no tool: give it a 'name'"),
        ("def spec(): return {'name': 'a'}\ndef run(a, c): return 1\n", "spec() has no 'description'; the model chooses the tool by it"),
        ("def spec(): return {'name': 'a', 'description': 'b', 'parameters': 3}\ndef run(a, c): return 1\n", "'parameters' of spec() must be a mapping, got int"),
        ("def spec(): return {'name': 'a', 'description': 'b', 'parameters': {'type': 'array'}}\ndef run(a, c): return 1\n", "'parameters' of spec() cannot be used as a schema: the schema must describe an object: its type must be 'object'"),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_used_stops_the_start(text: str, problem: str, tmp_path: Path) -> None:
    """It is told with the place of its entry."""
    with pytest.raises(ConfigError) as caught:
        run(module(tmp_path, text), "x")

    assert str(caught.value) == f"f:2:5: server_tools[0]: the module tool cannot be used: {problem}"


def test_a_module_without_its_functions_is_shown_the_form(tmp_path: Path) -> None:
    """What is missing is shown whole."""
    with pytest.raises(
        ConfigError, match=r"it has no function spec and no run\. A module looks like this:\n    def spec"
    ):
        run(module(tmp_path, "x = 1\n"), "x")


def test_a_module_is_read_from_where_it_was_configured(tmp_path: Path) -> None:
    """A file that became a link out of the folder is refused when it is loaded."""
    folder = tmp_path / "tools"
    folder.mkdir()
    tools = module(folder, SPEC + "def run(a, c): return 1\n")
    (tmp_path / "other.py").write_text(SPEC + "def run(a, c): return 2\n")
    (folder / "tool.py").unlink()
    (folder / "tool.py").symlink_to(tmp_path / "other.py")

    with pytest.raises(ConfigError, match="it lies outside of the folder that modules may come from"):
        run(tools, "x")


def test_a_module_leaves_nothing_behind(tmp_path: Path) -> None:
    """No compiled file beside it, no module in the process after it was closed."""
    before = set(sys.modules)
    run(module(tmp_path, SPEC + "def run(a, c): return 1\n"), "x")

    assert [path.name for path in tmp_path.iterdir()] == ["tool.py"]
    assert {name for name in set(sys.modules) - before if name.startswith("wardwright_tool_")} == set()


def test_two_tools_of_one_name_stop_the_start(tmp_path: Path) -> None:
    """Also when the second name comes from a module."""
    (tmp_path / "tool.py").write_text(SPEC + "def run(a, c): return 1\n")
    tools = tools_of(
        "server_tools:\n  - {engine: snippet, name: x, source: '1'}\n  - {engine: module, path: tool.py}\n",
        modules_from=tmp_path,
    )
    with pytest.raises(ConfigError) as caught:
        asyncio.run(tools.open())

    assert str(caught.value) == "f:3:5: server_tools[1]: the name 'x' is already used"


# --- all of them -------------------------------------------------------------------------------------------------------


def test_calls_run_beside_each_other_up_to_a_bound(tmp_path: Path) -> None:
    """So many at once, the others wait for their turn."""
    text = SPEC + (
        "import threading\nnow = most = 0\nlock = threading.Lock()\nboth = threading.Barrier(2)\n"
        "def run(arguments, context):\n"
        "    global now, most\n"
        "    with lock:\n        now += 1\n        most = max(most, now)\n"
        "    both.wait(5)\n"
        "    with lock:\n        now -= 1\n"
        "    return most\n"
    )
    (tmp_path / "tool.py").write_text(text)
    tools = tools_of("server_tools:\n  - {engine: module, path: tool.py}\n", modules_from=tmp_path, at_once=2)

    async def six(live: ServerTools) -> list[ServerRun]:
        return await asyncio.gather(*(live.run(f"c{n}", "x", "{}", CONTEXT) for n in range(6)))

    assert {ran.text for ran in using(tools, six)} == {"2"}


def test_a_call_that_is_cancelled_ends() -> None:
    """A caller that went away leaves nothing running and no turn taken."""

    async def cancelled(live: ServerTools) -> ServerRun:
        task = asyncio.ensure_future(live.run("a", "x", '{"long": true}', CONTEXT))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await live.run("b", "x", "{}", CONTEXT)

    source = 'while "long" in input: pass\n"free"'
    text = (
        f"server_tools:\n  - {{engine: snippet, name: x, source: {json.dumps(source)}, parameters: {{type: object}}}}\n"
    )

    assert using(tools_of(text, at_once=1), cancelled).text == "free"


def test_what_a_page_may_show() -> None:
    """G44: names, engine, limits and keys; no source and no path."""

    async def described(live: ServerTools) -> Any:
        return live.describe()

    (shown,) = using(snippet("input", "input: {a: 1}", "parameters: {type: object, properties: {b: {}}}"), described)

    assert shown == {
        "name": "x",
        "engine": "snippet",
        "source": "inline",
        "execution_location": "wardwright",
        "limits": {"timeout_ms": 2000, "output_chars": 20000, "memory_bytes": 33554432, "recursion": 200},
        "parameters": ["b"],
        "input": ["a"],
        "available": True,
    }
