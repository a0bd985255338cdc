"""Claims about the `wink` command: what it runs, where it prints, its exit codes, and that bad input is one line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weakincentives.cli import main
from weakincentives.runtime import Session, ToolCall, ToolInvoked
from weakincentives.testing.adapter_kit import ScriptTurn

from .adapters.loopback.openai_server import OpenAIServer

AGENT = '''
from dataclasses import dataclass

from weakincentives.adapters import ModelReply, ScriptedAdapter
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, tool
from weakincentives.runtime import MainLoop, ToolCall


@dataclass(frozen=True)
class Order:
    text: str


@dataclass(frozen=True)
class Price:
    cents: int


@tool(effects="none")
def price(name: str) -> int:
    """What an item costs."""
    if not name:
        raise ValueError("Which item? Name one, then retry.")
    return len(name)


TEMPLATE = PromptTemplate[Price](sections=[MarkdownSection[Order](title="Shop", template="${text}", tools=[price])])


class Shop(MainLoop[Order, Price]):
    def prepare(self, request: Order) -> Prompt[Price]:
        return Prompt(TEMPLATE).bind(request)
'''
LOOP = """
script = [ToolCall("price", {"name": ""}, "c1"), ToolCall("price", {"name": "fig"}, "c2"), '{"cents": 3}']
loop = Shop(adapter=ScriptedAdapter(script))
"""


class Shell:
    """Runs the command inside this process, in a folder of its own."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture

    def file(self, content: str, name: str = "shop.py") -> str:
        (self.folder / name).write_text(content, encoding="utf-8")
        return name

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = self._capture.readouterr()
        return int(caught.value.code or 0), out, err

    def json(self, *arguments: str) -> Any:
        code, out, err = self(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return Shell(tmp_path, capsys)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    server = OpenAIServer()
    yield server
    server.close()


# run


def test_run_prints_the_answer_and_tells_the_calls_beside_it(shell: Shell) -> None:
    """The answer can be piped; what happened meanwhile is on standard error."""
    file = shell.file(AGENT + LOOP)

    assert shell("run", file, "--request", "How much is a fig?") == (
        0,
        '{"cents":3}\n',
        "✗ price: Which item? Name one, then retry.\n✓ price: 3\n",
    )


def test_run_says_everything_as_json(shell: Shell) -> None:
    """Answer, usage, and every call with its outcome."""
    told = shell.json("run", shell.file(AGENT + LOOP), "--request", "How much is a fig?")

    assert [(call["tool"], call["call_id"], call["outcome"]) for call in told.pop("calls")] == [
        ("price", "c1", "failed"),
        ("price", "c2", "ok"),
    ]
    assert told.pop("session_id")
    assert told == {
        "text": '{"cents": 3}',
        "output": {"cents": 3},
        "stop_reason": "end_turn",
        "turns": 3,
        "usage": {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0},
        "unfinished": [],
        "pending": [],
    }


def test_run_takes_a_request_as_json_too(shell: Shell) -> None:
    """As the type that the loop takes."""
    file = shell.file(AGENT + LOOP)

    assert shell("run", file, "-q", "-r", '{"text": "A fig?"}') == (0, '{"cents":3}\n', "")


def test_run_reads_the_request_from_standard_input(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """For those that are too long for a command line."""
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"text": "A fig?"}'))

    assert shell("run", shell.file(AGENT + LOOP), "-q", "-r", "-")[0] == 0


def test_run_keeps_a_session_and_goes_on_with_it(shell: Shell) -> None:
    """The calls of both runs are in one file; each run tells its own."""
    file = shell.file(AGENT + LOOP)
    for _ in range(2):
        assert len(shell.json("run", file, "-r", "x", "--session", "a.session")["calls"]) == 2

    with Session.open(shell.folder / "a.session") as session:
        assert len(session[ToolInvoked]) == 4


def test_run_asks_the_model_it_is_told_to(shell: Shell, server: OpenAIServer) -> None:
    """With the real client, at any server that speaks the protocol; the class of the file is made with it."""
    stage = server.stage([ScriptTurn(calls=[ToolCall("price", {"name": "plum"})]), ScriptTurn('{"cents": 4}')])
    file = shell.file(AGENT)

    told = shell.json("run", file, "-r", "A plum?", "--model", "small-1", "--base-url", stage.base_url)

    assert (told["output"], told["usage"]["input_tokens"]) == ({"cents": 4}, 20)
    assert [request["model"] for request in stage.requests] == ["small-1", "small-1"]


def test_run_takes_a_prompt_by_itself(shell: Shell, server: OpenAIServer) -> None:
    """A template with nothing to bind needs neither a loop nor a request."""
    stage = server.stage([ScriptTurn("Hello.")])
    file = shell.file(
        "from weakincentives.prompt import MarkdownSection, PromptTemplate\n"
        "greeting = PromptTemplate(sections=[MarkdownSection(title='Greet', template='Say hello.')])\n"
    )

    assert shell("run", file, "--model", "m", "--base-url", stage.base_url) == (0, "Hello.\n", "")


def test_run_ends_with_1_when_there_is_no_answer(shell: Shell) -> None:
    """A refusal is printed, and is no success."""
    refusing = AGENT + "loop = Shop(adapter=ScriptedAdapter([ModelReply('I will not.', stop_reason='refusal')]))\n"

    assert shell("run", shell.file(refusing), "-r", "x") == (1, "I will not.\n", "")


def test_run_ends_with_1_and_one_line_when_the_run_fails(shell: Shell) -> None:
    """What ended the run is told, not how it was found out."""
    file = shell.file(AGENT + LOOP)

    code, out, err = shell("run", file, "-r", "x", "--timeout", "0")
    assert (code, out) == (1, "")
    assert err.startswith("wink: Deadline exceeded: ")
    assert err.count("\n") == 1


# tools, schema


def test_tools_lists_what_a_model_sees(shell: Shell) -> None:
    """Of a loop, without a request and without a model."""
    assert shell("tools", shell.file(AGENT)) == (0, "price  none      What an item costs.\n", "")


def test_tools_of_a_file_without_an_agent_are_those_it_defines(shell: Shell) -> None:
    """A file of tools can be looked at too."""
    file = shell.file(
        "from weakincentives.prompt import tool\n\n@tool\ndef build() -> str:\n    '''Build it.'''\n    return ''\n"
    )

    assert shell("tools", file) == (0, "build  local     Build it.\n", "")


def test_tools_and_schema_are_what_a_provider_is_told(shell: Shell) -> None:
    """The same specification, in a list and by itself."""
    file = shell.file(AGENT)
    (listed,) = shell.json("tools", file)

    assert listed.pop("effects") == "none"
    assert shell.json("schema", file, "price") == listed
    assert listed["parameters"]["required"] == ["name"]


def test_tools_can_be_looked_at_for_a_request(shell: Shell) -> None:
    """Where what a model may call depends on what it is asked."""
    file = shell.file(
        AGENT
        + "class Picky(Shop):\n"
        + "    def prepare(self, request: Order) -> Prompt[Price]:\n"
        + "        return {'fig': Prompt(TEMPLATE).bind(request)}[request.text]\n"
    )

    assert shell("tools", f"{file}:Picky", "-r", "fig") == (0, "price  none      What an item costs.\n", "")
    assert shell("tools", f"{file}:Picky") == (
        2,
        "",
        "wink: shop.py:Picky cannot be prepared: KeyError: ''. Pass a request: --request.\n",
    )


def test_schema_names_the_tools_there_are(shell: Shell) -> None:
    """When the one asked for is not among them."""
    assert shell("schema", shell.file(AGENT), "prize") == (2, "", "wink: shop.py has no tool 'prize'. It has: price.\n")


# bad input


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("", ["nowhere.py"], "There is no file nowhere.py."),
        ("import nothing_like_it\n", ["shop.py"], "shop.py cannot be run: ModuleNotFoundError: No module named"),
        ("x = 1\n", ["shop.py"], "shop.py has no MainLoop, Prompt or PromptTemplate to run."),
        ("x = 1\n", ["shop.py:y"], "shop.py has nothing called 'y'."),
        ("x = 1\n", ["shop.py:x"], "Cannot run int. Name a MainLoop, a Prompt or a PromptTemplate."),
        (
            AGENT + LOOP + "other = Shop(adapter=ScriptedAdapter([]))\n",
            ["shop.py"],
            "shop.py has several to choose from: loop, other. Name one: shop.py:loop",
        ),
        (
            AGENT,
            ["shop.py", "-r", "x"],
            "shop.py names no model. Say which to ask: --model NAME, with --base-url for a server of yours.",
        ),
        (AGENT + LOOP, ["shop.py", "--base-url", "http://x"], "--base-url needs --model: which of the server's models"),
        (AGENT + LOOP, ["shop.py"], "A request is needed: --request with JSON for Order (text)."),
        (
            AGENT + LOOP,
            ["shop.py", "-r", '{"text": 1, "to": 2}'],
            "The request is no Order: text: Expected type string, got integer 1; to: Unknown field; known fields: text",
        ),
        (
            AGENT + "class Own(Shop):\n    def __init__(self, files, **rest): ...\n",
            ["shop.py:Own", "-m", "x"],
            "Own cannot be made with an adapter and a bus alone:",
        ),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(
    shell: Shell, content: str, arguments: list[str], message: str
) -> None:
    """Exit code 2, nothing on standard output."""
    shell.file(content)

    code, out, err = shell("run", *arguments)

    assert (code, out) == (2, "")
    assert err.startswith(f"wink: {message}")
    assert err.count("\n") == 1


def test_every_command_tells_what_it_is_for_with_an_example(shell: Shell) -> None:
    """And the exit codes stand with them."""
    for name in ("run", "inspect", "replay", "fork", "tools", "schema", "serve-mcp"):
        code, out, _ = shell(name, "--help")
        assert (code, "Examples:\n" in out, f"    wink {name} shop" in out) == (0, True, True)
    assert "  3  done, and somebody must look: something differs, or waits for approval" in shell("--help")[1]


def test_the_command_works_as_a_program(shell: Shell) -> None:
    """As it is installed, with warnings as errors."""
    file = shell.file(AGENT + LOOP)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "weakincentives.cli", "run", file, "-q", "-r", "A fig?"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, '{"cents":3}\n', "")
