"""Claims about `wink inspect`, `replay`, `fork` and `serve-mcp`: what they print, what they leave alone, their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weakincentives.cli import main
from weakincentives.cli.terminal import harmless
from weakincentives.runtime import Session, ToolInvoked

AGENT = '''
from dataclasses import dataclass

from weakincentives.adapters import ScriptedAdapter
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    ApprovalPolicy, MarkdownSection, Prompt, PromptTemplate, SequentialDependencyPolicy, ToolContext, tool,
)
from weakincentives.runtime import MainLoop, ToolCall, keyed_slice


@keyed_slice(lambda item: item.path)
@dataclass(frozen=True)
class Draft:
    path: str
    words: int


@tool
def write(path: str, text: str, *, context: ToolContext) -> str:
    """Write a file."""
    context.filesystem.write(path, text)
    context.session[Draft].append(Draft(path, len(text.split())))
    if "bad" in text:
        raise ValueError("Bad text. Send another, then retry.")
    return f"wrote {path}"


@tool
def publish() -> str:
    """Publish what was written."""
    return "published"


template = PromptTemplate(
    sections=[MarkdownSection(title="Write", template="Write.", tools=[write, publish])],
    policies=[SequentialDependencyPolicy({"publish": {"write"}})],
)


class Writer(MainLoop[object]):
    def prepare(self, request: object) -> Prompt:
        return Prompt(template).bind(resources={Filesystem: InMemoryFilesystem()})


script = [
    ToolCall("publish", {}, "c1"),
    ToolCall("write", {"path": "a.txt", "text": "bad"}, "c2"),
    ToolCall("write", {"path": "a.txt", "text": "one\\n"}, "c3"),
    ToolCall("write", {"path": "a.txt", "text": "one\\ntwo\\n"}, "c4"),
    "Done.",
]
loop = Writer(adapter=ScriptedAdapter(script))
'''


class Shell:
    """Runs the command inside this process, in a folder with an agent and a session of it."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = self._capture.readouterr()
        return int(caught.value.code or 0), out, err

    def json(self, *arguments: str, code: int = 0) -> Any:
        ended, out, err = self(*arguments, "--json")
        assert (ended, err) == (code, "")
        return json.loads(out)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a session that the agent worked in."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "writer.py").write_text(AGENT, "utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["run", str(folder / "writer.py"), "--json", "--session", str(folder / "a.session"), "--keep-files"])
    assert not ended.value.code
    return (folder / "a.session").read_bytes()


@pytest.fixture
def shell(
    tmp_path: Path, recorded: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "writer.py").write_text(AGENT, "utf-8")
    (tmp_path / "a.session").write_bytes(recorded)
    capsys.readouterr()
    return Shell(tmp_path, capsys)


# run


def test_run_can_keep_files_with_the_session(shell: Shell) -> None:
    """And a later run finds them again."""
    assert shell("inspect", "a.session", "--file", "a.txt") == (0, "one\ntwo\n", "")
    assert shell("run", "writer.py", "-q", "--session", "a.session", "--keep-files")[0] == 0
    assert shell.json("inspect", "a.session")["session"]["attached"] == ["files"]


def test_run_ends_with_3_when_a_call_waits_for_approval(shell: Shell) -> None:
    """There is an answer, and somebody must look."""
    waiting = AGENT.replace("policies=[", 'policies=[ApprovalPolicy(tools=["write"]), ').replace(
        "script = [", "script = ["
    )
    (shell.folder / "waits.py").write_text(waiting, "utf-8")

    code, out, err = shell("run", "waits.py", "-q")
    assert (code, out) == (3, "Done.\n")
    assert err.startswith("Waits for approval: write (")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "writer.py", "--keep-files"], "--keep-files needs --session: the file to keep them in."),
        (["inspect", "nowhere"], "Cannot open the session file nowhere: No such file or directory."),
        (["inspect", "writer.py"], "writer.py is not a session file. Choose another path."),
        (["inspect", "a.session", "--call", "9"], "There is no call 9 in a.session: it has calls 1 to 4."),
        (["inspect", "a.session", "--at", "99"], "There is no position 99: the session has positions 1 to 5."),
        (["inspect", "a.session", "--call", "1", "--at", "1"], "Say --call or --at, not both: each names one step."),
        (["inspect", "a.session", "--outcome", "fine"], "--outcome 'fine' is not one of ok, failed, invalid_params,"),
        (["inspect", "a.session", "--file", "x"], "There is no file x in files at position 5."),
        (["replay", "a.session", "--external"], "--external is for --module: without it nothing is run."),
        (["replay", "a.session", "--call", "9"], "There is no call 9 in a.session: it has calls 1 to 4."),
        (["replay", "a.session", "--module", "nowhere.py"], "There is no file nowhere.py."),
        (["fork", "a.session", "writer.py"], "Cannot fork into writer.py: the file exists. Choose another path."),
        (["serve-mcp", "writer.py", "--token-env", "T"], "The variable T is not set: put the token there, or leave"),
        (["serve-mcp", "writer.py", "--allowed-host", "x"], "--allowed-host is for --http; standard input and output"),
        (
            ["serve-mcp", "writer.py", "--http", "--host", "0.0.0.0"],
            "0.0.0.0 can be reached from other machines. Give",
        ),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(shell: Shell, arguments: list[str], message: str) -> None:
    """Exit code 2, nothing on standard output, and what to do instead."""
    code, out, err = shell(*arguments)

    assert (code, out) == (2, "")
    assert err.startswith(f"wink: {message}")
    assert err.count("\n") == 1


# inspect


def test_inspect_lists_the_calls_and_how_they_ended(shell: Shell) -> None:
    """Kept, rolled back and denied ones are told apart at a glance."""
    code, out, err = shell("inspect", "a.session")
    rows = [line.split()[:4] for line in out.splitlines()[5:]]

    assert (code, err) == (0, "")
    assert rows == [
        ["·", "1", "attach", "files"],
        ["⊘", "1", "2", "publish"],
        ["↶", "2", "3", "write"],
        ["✓", "3", "4", "write"],
        ["✓", "4", "5", "write"],
    ]


def test_inspect_shows_one_call_with_its_differences(shell: Shell) -> None:
    """Parameters, decision, text, slices and files; with the class at hand, which item was replaced."""
    code, out, _ = shell("inspect", "a.session", "--call", "4", "--module", "writer.py")

    assert code == 0
    assert [
        line.strip() for line in out.splitlines() if line.startswith(("  policies", "      ", "    file", "    slice"))
    ] == [
        "policies  allowed",
        '"path": "a.txt",',
        '"text": "one\\ntwo\\n"',
        "slice Draft (writer:Draft)",
        "changed",
        "@ 1-4 → 1-4",
        "{",
        '"path": "a.txt",',
        '-  "words": 1',
        '+  "words": 2',
        "}",
        "file a.txt changed, in files",
        "@ 1-1 → 1-2",
        "one",
        "+two",
    ]


def test_inspect_says_when_keyed_items_cannot_be_told_apart(shell: Shell) -> None:
    """Without the class, which is never loaded unasked."""
    told = shell.json("inspect", "a.session", "--call", "4")

    assert told["notes"] == [
        "Draft holds one item per key and its class is not loaded, so items that were replaced are not recognised."
    ]


def test_inspect_picks_steps(shell: Shell) -> None:
    """By outcome, by tool, the last ones, those before a position."""

    def calls(*options: str) -> list[int]:
        return [step.get("call", 0) for step in shell.json("inspect", "a.session", *options)["steps"]]

    assert calls("--outcome", "denied") == [1]
    assert calls("--outcome", "rolled_back") == [2]
    assert calls("--tool", "write", "--last", "2") == [3, 4]
    assert calls("--before", "3") == [0, 1]


def test_inspect_travels_in_time(shell: Shell) -> None:
    """State and files as they were after a call."""
    told = shell.json("inspect", "a.session", "--call", "3", "--state", "--module", "writer.py")
    drafts = next(one for one in told["state"]["slices"] if one["slice"] == "Draft")

    assert drafts["items"] == [{"path": "a.txt", "words": 1}]
    assert shell("inspect", "a.session", "--call", "3", "--file", "files:a.txt") == (0, "one\n", "")


def test_inspect_shows_all_differences_on_demand(shell: Shell) -> None:
    """In the list and as JSON."""
    assert "+two" in shell("inspect", "a.session", "--diff")[1]
    assert shell.json("inspect", "a.session", "--diff")["steps"][3]["changes"]["files"][0]["diff"] == ["+one"]


def test_inspect_works_while_an_agent_has_the_session(shell: Shell) -> None:
    """It takes no lock and writes nothing."""
    before = (shell.folder / "a.session").read_bytes()
    with Session.open("a.session"):
        assert shell("inspect", "a.session")[0] == 0

    assert (shell.folder / "a.session").read_bytes() == before


def test_inspect_ends_with_1_when_the_file_is_damaged(shell: Shell) -> None:
    """What comes before is shown all the same."""
    path = shell.folder / "a.session"
    data = bytearray(path.read_bytes())
    at = data.index(b'"bad"') + 1  # with its quotes: an id may hold the letters too
    data[at] = ord("d")
    path.write_bytes(data)
    code, out, err = shell("inspect", "a.session")

    assert code == 1
    assert "publish" in out
    assert err.startswith("wink: a.session: The record at byte ")


def test_characters_that_a_terminal_would_obey_are_shown() -> None:
    """What a model wrote cannot colour or clear the screen."""
    assert harmless("a\x1b[2Jb\tc") == "a\\x1b[2Jb    c"


# replay


def test_replay_rebuilds_the_state_up_to_a_call(shell: Shell) -> None:
    """From what is stored, without running or loading anything."""
    told = shell.json("replay", "a.session", "--call", "3")
    code, out, _ = shell("replay", "a.session")

    assert (told["position"], told["state"]["files"]) == (4, [{"files": "files", "paths": ["a.txt"], "count": 1}])
    assert (code, out.splitlines()[0]) == (0, "5 operations with 4 calls read and applied, every record whole")


def test_replay_makes_the_calls_again_with_the_tools_of_a_file(shell: Shell) -> None:
    """The same tools do the same."""
    assert shell("replay", "a.session", "--module", "writer.py:Writer") == (
        0,
        "4 calls: 4 the same, 0 differ, 0 left out\n",
        "",
    )


def test_replay_ends_with_3_and_shows_what_differs(shell: Shell) -> None:
    """Before a changed tool is let loose, what it would have done differently."""
    (shell.folder / "writer.py").write_text(AGENT.replace('f"wrote {path}"', 'f"saved {path}"'), "utf-8")
    code, out, err = shell("replay", "a.session", "--module", "writer.py:Writer")
    told = shell.json("replay", "a.session", "--module", "writer.py:Writer", code=3)

    assert (code, err) == (3, "")
    assert out.splitlines()[:5] == [
        "≠ call 3  write",
        "    text",
        "      @ 1-1 → 1-1",
        "      -wrote a.txt",
        "      +saved a.txt",
    ]
    assert out.splitlines()[-1] == "4 calls: 2 the same, 2 differ, 0 left out"
    assert (told["counts"], told["again"][2]["now"]) == (
        {"same": 2, "differs": 2, "left_out": 0},
        {"outcome": "ok", "text": "saved a.txt"},
    )


# fork


def test_fork_copies_up_to_a_call(shell: Shell) -> None:
    """The copy is a session of its own, to go on with."""
    told = shell.json("fork", "a.session", "b.session", "--call", "3")

    with Session.open("b.session") as session:
        assert (session.session_id, len(session[ToolInvoked])) == (told["session_id"], 3)
    assert shell("inspect", "b.session", "--file", "a.txt") == (0, "one\n", "")
    assert shell("run", "writer.py", "-q", "--session", "b.session", "--keep-files")[0] == 0


# serve-mcp


@pytest.mark.heavy
def test_serve_mcp_serves_the_tools_of_a_file_over_standard_input_and_output(shell: Shell) -> None:
    """A client starts it as a program; policies hold, and --session keeps what happened."""
    from mcp import Client, StdioServerParameters, stdio_client

    arguments = ["-m", "weakincentives.cli", "serve-mcp", "writer.py:Writer", "--session", "mcp.session"]

    async def talk() -> tuple[list[str], list[str]]:
        parameters = StdioServerParameters(command=sys.executable, args=arguments, cwd=str(shell.folder))
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            async with Client(stdio_client(parameters, errlog=nowhere)) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                texts: list[str] = []
                for name, given in (("publish", {}), ("write", {"path": "a", "text": "b"}), ("publish", {})):
                    result = await client.call_tool(name, given)
                    texts.append(result.content[0].text.splitlines()[0])  # pyright: ignore
            return names, texts

    assert asyncio.run(talk()) == (
        ["write", "publish"],
        ["Cannot call 'publish' - missing required tools: write", "wrote a", "published"],
    )
    assert [step["outcome"] for step in shell.json("inspect", "mcp.session", "--tool", "publish")["steps"]] == [
        "denied",
        "ok",
    ]


@pytest.mark.heavy
def test_serve_mcp_tells_where_it_listens(shell: Shell) -> None:
    """On any free port, as JSON on standard output."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "weakincentives.cli",
            "serve-mcp",
            "writer.py:Writer",
            "--http",
            "--port",
            "0",
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
        finally:
            server.terminate()

    assert told["tools"] == ["write", "publish"]
    assert told["address"].startswith("http://127.0.0.1:")
