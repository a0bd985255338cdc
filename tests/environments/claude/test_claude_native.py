"""The SDK's own tools under our policies and in our transactions, with the real CLI."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from weakincentives.errors import BudgetExceededError, PromptEvaluationError
from weakincentives.filesystem.tree import DirectoryTree
from weakincentives.limits import Budget
from weakincentives.prompt import (
    ApprovalPolicy,
    MarkdownSection,
    PolicyDecision,
    Prompt,
    PromptTemplate,
    QuotaPolicy,
    ReadBeforeWritePolicy,
    ToolContext,
)
from weakincentives.runtime import Session, ToolCall, ToolInvoked, decide
from weakincentives.testing.adapter_kit import ScriptTurn

from .claude_harness import ClaudeHarness

NATIVE = ["Bash", "Edit", "Glob", "Read", "Write"]
READ_FIRST = ReadBeforeWritePolicy(read_tools=("Read",), write_tools=("Write", "Edit"))
TAKEN_BACK = "The call failed, so what it changed in the workspace was taken back."


def prompt(policies: Sequence[Any] = ()) -> Prompt[None]:
    return Prompt(PromptTemplate(sections=[MarkdownSection(title="Work", template="Do it.")], policies=policies))


def bash(command: str, **more: Any) -> ToolCall:
    return ToolCall("Bash", {"command": command, "description": "work", **more})


def outcomes(session: Session) -> list[tuple[str, str]]:
    return [(event.tool_name, event.outcome) for event in session[ToolInvoked]]


def told(claude: ClaudeHarness, words: str, at: int = -1) -> bool:
    return any(words in text for text in claude.texts(at))


def test_a_native_write_is_a_call_like_any_other(claude: ClaudeHarness) -> None:
    """It is recorded once, with the files it changed."""
    session = Session()
    path = claude.workspace / "new.txt"
    script = [ScriptTurn(calls=[ToolCall("Write", {"file_path": str(path), "content": "hello"})]), ScriptTurn("Done.")]

    response = claude.adapter(script, tools=NATIVE).evaluate(prompt(), session)

    assert (response.text, path.read_text()) == ("Done.", "hello")
    assert outcomes(session) == [("Write", "ok")]
    (event,) = session[ToolInvoked]
    assert event.params == {"file_path": "new.txt", "content": "hello"}
    assert event.changes.files == ("new.txt",)


def test_a_native_tool_that_fails_leaves_no_trace(claude: ClaudeHarness) -> None:
    """What a command changed before it failed is put back, and the model is told so."""
    session = Session()
    (claude.workspace / "old.txt").write_text("old")
    script = [ScriptTurn(calls=[bash("echo new > old.txt; mkdir made; touch made/it; exit 3")]), ScriptTurn("Sorry.")]

    claude.adapter(script, tools=NATIVE).evaluate(prompt(), session)

    assert [path.name for path in claude.workspace.iterdir()] == ["old.txt"]
    assert (claude.workspace / "old.txt").read_text() == "old"
    assert outcomes(session) == [("Bash", "failed")]
    assert told(claude, "Exit code 3")
    assert told(claude, TAKEN_BACK)


def test_a_command_that_succeeds_keeps_what_it_did(claude: ClaudeHarness) -> None:
    """Files of a successful command stay and are named in its event."""
    session = Session()
    script = [ScriptTurn(calls=[bash("echo 1 > a; echo 2 > b")]), ScriptTurn("Done.")]

    claude.adapter(script, tools=NATIVE).evaluate(prompt(), session)

    assert (claude.workspace / "b").read_text() == "2\n"
    (event,) = session[ToolInvoked]
    assert (event.outcome, event.changes.files) == ("ok", ("a", "b"))


def test_a_policy_keeps_a_native_tool_from_running(claude: ClaudeHarness) -> None:
    """The model reads the policy's reason, and nothing was run."""

    class NoShell:
        def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision | None:
            return PolicyDecision.deny("No shell here. Use Write.") if tool.name == "Bash" else None

    session = Session()
    script = [ScriptTurn(calls=[bash("touch made")]), ScriptTurn("I see.")]

    claude.adapter(script, tools=NATIVE).evaluate(prompt([NoShell()]), session)

    assert list(claude.workspace.iterdir()) == []
    assert outcomes(session) == [("Bash", "denied")]
    assert told(claude, "No shell here. Use Write.")


def test_a_policy_that_raises_denies_a_native_tool(claude: ClaudeHarness) -> None:
    """Nothing runs that could not be judged."""

    class Broken:
        def check(self, tool_name: str, params: Any, *, context: ToolContext) -> None:
            raise RuntimeError("no idea")

    session = Session()
    script = [ScriptTurn(calls=[bash("touch made")]), ScriptTurn("I see.")]

    claude.adapter(script, tools=NATIVE).evaluate(prompt([Broken()]), session)

    assert list(claude.workspace.iterdir()) == []
    assert outcomes(session) == [("Bash", "denied")]
    assert told(claude, "Policy 'Broken' failed: no idea.")


def test_a_native_file_must_be_read_before_it_is_written(claude: ClaudeHarness) -> None:
    """The ready-made policy holds for Read and Write as for our own file tools."""
    session = Session()
    path = claude.workspace / "config.json"
    path.write_text("{}")
    writing = ToolCall("Write", {"file_path": str(path), "content": "[]"})
    script = [
        ScriptTurn(calls=[writing]),
        ScriptTurn(calls=[ToolCall("Read", {"file_path": str(path)})]),
        ScriptTurn(calls=[writing]),
        ScriptTurn("Done."),
    ]

    claude.adapter(script, tools=NATIVE).evaluate(prompt([READ_FIRST]), session)

    assert outcomes(session) == [("Write", "denied"), ("Read", "ok"), ("Write", "ok")]
    assert told(claude, "Cannot write to config.json without reading it first", 1)
    assert path.read_text() == "[]"


def test_a_quota_counts_native_calls(claude: ClaudeHarness) -> None:
    """The second command is one too many."""
    session = Session()
    script = [ScriptTurn(calls=[bash("touch a")]), ScriptTurn(calls=[bash("touch b")]), ScriptTurn("Enough.")]

    claude.adapter(script, tools=NATIVE).evaluate(prompt([QuotaPolicy(1, tools={"Bash"})]), session)

    assert outcomes(session) == [("Bash", "ok"), ("Bash", "denied")]
    assert [path.name for path in claude.workspace.iterdir()] == ["a"]


def test_a_success_that_cannot_be_recorded_is_taken_back(claude: ClaudeHarness) -> None:
    """What a policy fails to note did not happen, and the model is told so."""

    class Forgetful:
        def check(self, tool_name: str, params: Any, *, context: ToolContext) -> None:
            return None

        def on_result(self, tool_name: str, params: Any, result: Any, *, context: ToolContext) -> None:
            raise RuntimeError("no ink")

    session = Session()
    script = [ScriptTurn(calls=[bash("touch a")]), ScriptTurn("I see.")]

    claude.adapter(script, tools=NATIVE).evaluate(prompt([Forgetful()]), session)

    assert list(claude.workspace.iterdir()) == []
    assert outcomes(session) == [("Bash", "failed")]
    assert told(claude, "no ink")
    assert told(claude, TAKEN_BACK)


def test_a_native_call_waits_for_approval(claude: ClaudeHarness) -> None:
    """It is pending until somebody decides; made again then, it runs."""
    session = Session()
    policy = ApprovalPolicy(tools={"Bash"})
    script = [ScriptTurn(calls=[bash("touch a")]), ScriptTurn("Somebody must agree.")]
    adapter = claude.adapter(script, tools=NATIVE)

    response = adapter.evaluate(prompt([policy]), session)
    (waiting,) = response.pending
    decide(session, waiting.approval_id, True)
    claude.server.play(script)
    adapter.evaluate(prompt([policy]), session)

    assert outcomes(session) == [("Bash", "pending"), ("Bash", "ok")]
    assert (claude.workspace / "a").exists()


def test_a_native_call_that_tokens_cannot_pay_for_does_not_run(claude: ClaudeHarness) -> None:
    """Claude Code begins calls while the model still speaks; they wait until its tokens are counted (INVARIANT 1)."""
    session = Session()

    with pytest.raises(BudgetExceededError, match="15 of 12 total tokens"):
        claude.adapter([ScriptTurn(calls=[bash("touch a")])], tools=NATIVE).evaluate(
            prompt(), session, budget=Budget(max_total_tokens=12)
        )

    assert list(claude.workspace.iterdir()) == []
    assert outcomes(session) == [("Bash", "budget")]
    assert len(claude.requests()) == 1


def test_a_file_outside_of_the_workspace_is_not_written(claude: ClaudeHarness, tmp_path: Path) -> None:
    """What could not be taken back is refused, by way of a link too."""
    session = Session()
    outside = tmp_path / "outside.txt"
    (claude.workspace / "link").symlink_to(tmp_path)
    script = [
        ScriptTurn(calls=[ToolCall("Write", {"file_path": str(outside), "content": "x"})]),
        ScriptTurn(calls=[ToolCall("Write", {"file_path": str(claude.workspace / "link" / "a"), "content": "x"})]),
        ScriptTurn("I see."),
    ]

    claude.adapter(script, tools=NATIVE).evaluate(prompt(), session)

    assert not outside.exists()
    assert not (tmp_path / "a").exists()
    assert outcomes(session) == [("Write", "failed")] * 2
    assert told(
        claude,
        f"Cannot write to {outside}: it is outside of the workspace {claude.workspace}, and could not be taken back. "
        "Choose a path inside.",
    )


def test_nothing_runs_in_the_background(claude: ClaudeHarness) -> None:
    """What goes on after its call could not be taken back."""
    session = Session()
    script = [ScriptTurn(calls=[bash("touch a", run_in_background=True)]), ScriptTurn("I see.")]
    options: dict[str, Any] = {"tools": NATIVE}

    claude.adapter(script, environment={"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "0"}, **options).evaluate(
        prompt(), session
    )

    assert not (claude.workspace / "a").exists()
    assert outcomes(session) == [("Bash", "failed")]
    assert told(
        claude,
        "Cannot run 'Bash' in the background: what it changes could not be taken back. Retry without run_in_background.",
    )


def test_what_the_permissions_of_claude_code_refuse_is_recorded(claude: ClaudeHarness) -> None:
    """A call that we allow and Claude Code does not is a failed one, and the next call runs."""
    session = Session()
    write = ToolCall("Write", {"file_path": str(claude.workspace / "a"), "content": "x"})
    script = [ScriptTurn(calls=[bash("touch b"), write]), ScriptTurn("I see.")]

    claude.adapter(script, tools=NATIVE, permission_mode="acceptEdits", disallowed_tools=["Bash(touch:*)"]).evaluate(
        prompt(), session
    )

    assert outcomes(session) == [("Bash", "failed"), ("Write", "ok")]
    assert [path.name for path in claude.workspace.iterdir()] == ["a"]


def test_a_native_call_with_bad_arguments_is_recorded(claude: ClaudeHarness) -> None:
    """Claude Code refuses it before any hook; it is a failed call all the same, no policy is asked (INVARIANT 2)."""
    session = Session()
    asked: list[str] = []

    class Asked:
        def check(self, tool_name: str, params: Any, *, context: ToolContext) -> None:
            asked.append(tool_name)

    script = [ScriptTurn(calls=[ToolCall("Write", {"content": 7})]), ScriptTurn("Sorry.")]

    claude.adapter(script, tools=NATIVE).evaluate(prompt([Asked()]), session)

    assert outcomes(session) == [("Write", "failed")]
    assert asked == []
    assert not told(claude, "Unknown tool")


def test_native_calls_of_one_reply_do_not_share_a_fate(claude: ClaudeHarness) -> None:
    """Of two commands the second fails: what the first did stays."""
    session = Session()
    script = [ScriptTurn(calls=[bash("touch a"), bash("touch b; false")]), ScriptTurn("Half.")]

    claude.adapter(script, tools=NATIVE).evaluate(prompt(), session)

    assert sorted(outcomes(session)) == [("Bash", "failed"), ("Bash", "ok")]
    assert [path.name for path in claude.workspace.iterdir()] == ["a"]


def test_the_tree_of_the_prompt_is_used(claude: ClaudeHarness) -> None:
    """Whoever binds a DirectoryTree decides what is not part of the workspace."""
    session = Session()
    script = [ScriptTurn(calls=[bash("touch kept.log gone.txt; false")]), ScriptTurn("I see.")]

    with DirectoryTree(claude.workspace, ignore=["*.log"]) as tree:
        bound = prompt().bind(resources={DirectoryTree: tree})
        claude.adapter(script, tools=NATIVE).evaluate(bound, session)

    assert [path.name for path in claude.workspace.iterdir()] == ["kept.log"]


def test_a_tree_of_another_directory_is_refused(claude: ClaudeHarness, tmp_path: Path) -> None:
    """Better no run than one that takes back the wrong directory."""
    with DirectoryTree(claude.home) as tree:
        bound = prompt().bind(resources={DirectoryTree: tree})
        with pytest.raises(ValueError, match=r"Set options\.cwd to it\."):
            claude.adapter([], tools=NATIVE).evaluate(bound, Session())


def test_a_cancelled_run_takes_back_what_a_native_tool_was_doing(claude: ClaudeHarness, tmp_path: Path) -> None:
    """The command is stopped, then what it had done is put back; it is recorded as cancelled (INVARIANT 3)."""
    session = Session()
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    script = [ScriptTurn(calls=[bash(f"touch a; echo $$ > {begun}; sleep 60; touch b")])]

    async def run() -> int:
        task = asyncio.create_task(claude.adapter(script, tools=NATIVE).aevaluate(prompt(), session))
        process = int(await asyncio.to_thread(begun.read_text))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return process

    process = asyncio.run(run())

    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert list(claude.workspace.iterdir()) == []
    assert outcomes(session) == [("Bash", "cancelled")]


def test_a_claude_code_that_dies_ends_the_run(claude: ClaudeHarness) -> None:
    """The caller is told, and what a native tool had begun is put back."""
    session = Session()
    script = [ScriptTurn(calls=[bash("touch a; kill -9 $PPID")])]

    with pytest.raises(PromptEvaluationError, match="Claude Code could not be run: "):
        claude.adapter(script, tools=NATIVE).evaluate(prompt(), session)

    assert list(claude.workspace.iterdir()) == []
    assert outcomes(session) == [("Bash", "cancelled")]
