"""Claims about policies (S14, S30 to S35), all through the pipeline: who is asked, what is answered, what is remembered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from weakincentives.clock import FakeClock
from weakincentives.errors import DeadlineExceededError, PromptValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    KeyedDependencyPolicy,
    MarkdownSection,
    PolicyDecision,
    PolicyState,
    Prompt,
    PromptTemplate,
    QuotaPolicy,
    RateLimitPolicy,
    ReadBeforeWritePolicy,
    SequentialDependencyPolicy,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import (
    Session,
    ToolCall,
    ToolInvoked,
    ToolOutcome,
    aexecute_tool,
    aexecute_tools,
    execute_tool,
    execute_tools,
)


@dataclass(frozen=True)
class Work:
    fail: bool = False


def _work(params: Work, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.error("no") if params.fail else ToolResult.ok("done")


def tool(name: str, **more: Any) -> Tool[Work, str]:
    return Tool[Work, str](name=name, description="Work.", handler=_work, **more)


def prompt_of(names: Iterable[str], *policies: Any, **more: Any) -> Prompt[Any]:
    return Prompt(PromptTemplate(policies=policies)).bind(extra_tools=[tool(name) for name in names], **more)


def run(session: Session, prompt: Prompt[Any], name: str, **args: object) -> ToolOutcome:
    return execute_tool(ToolCall(name, args), prompt=prompt, session=session)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def session(clock: FakeClock) -> Session:
    return Session(clock=clock)


class Answering:
    """A policy that always answers the same, and notes that it was asked."""

    def __init__(self, answer: object, name: str | None = None, asked: list[str] | None = None) -> None:
        self.answer = answer
        if name is not None:
            self.name = name
        self.asked = [] if asked is None else asked

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> Any:
        self.asked.append(getattr(self, "name", ""))
        return self.answer


# -- what a policy may answer (S14, S30) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, PolicyDecision.allow(), PolicyDecision(True), PolicyDecision(True, "fine")])
def test_some_answers_allow(session: Session, answer: object) -> None:
    """None and an allowing decision let the call through."""
    assert run(session, prompt_of(["a"], Answering(answer)), "a").outcome == "ok"


@pytest.mark.parametrize(
    "answer", [PolicyDecision.deny("Not now.\nWait."), PolicyDecision(False, "Not now.\nWait."), "Not now.\nWait."]
)
def test_a_denial_is_read_word_for_word(session: Session, answer: object) -> None:
    """The model reads the policy's reason and nothing else, the handler does not run, and the event names the policy."""
    outcome = run(session, prompt_of(["a"], Answering(answer, "gate")), "a")

    assert (outcome.outcome, outcome.text, outcome.success) == ("denied", "Not now.\nWait.", False)
    [event] = session[ToolInvoked].all()
    assert (event.outcome, event.policy, event.rendered_output) == ("denied", "gate", "Not now.\nWait.")


@pytest.mark.parametrize("answer", ["", PolicyDecision(False), PolicyDecision(False, ""), PolicyDecision(False, 5)])  # type: ignore[arg-type]
def test_a_denial_without_a_reason_says_so(session: Session, answer: object) -> None:
    """A reason that is no text is no reason."""
    outcome = run(session, prompt_of(["a"], Answering(answer, "gate")), "a")

    assert (outcome.outcome, outcome.text) == ("denied", "Policy 'gate' denied the call without a reason.")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (True, "bool"),
        (False, "bool"),
        (1, "int"),
        ([], "list"),
        (object(), "object"),
        (PolicyDecision, "type"),
        (PolicyDecision("yes"), "PolicyDecision(allowed='yes', reason=None, approval_id='')"),  # type: ignore[arg-type]
    ],
)
def test_any_other_answer_denies(session: Session, answer: object, kind: str) -> None:
    """Fail closed: what is not understood is no permission, not even True."""
    outcome = run(session, prompt_of(["a"], Answering(answer, "gate")), "a")

    assert (outcome.outcome, outcome.text) == (
        "denied",
        f"Policy 'gate' gave no usable decision: expected PolicyDecision, str or None, got {kind}. "
        "The call was denied and cannot succeed until the policy is fixed.",
    )


@pytest.mark.parametrize(("error", "detail"), [(OSError("no line"), "no line"), (OSError(), "OSError")])
def test_a_policy_that_raises_denies(session: Session, error: Exception, detail: str) -> None:
    """Fail closed, and say which policy and why."""

    class Broken:
        def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:
            raise error

    outcome = run(session, prompt_of(["a"], Broken()), "a")

    assert (outcome.outcome, outcome.text) == (
        "denied",
        f"Policy 'Broken' failed: {detail}. The call was denied and cannot succeed until the policy is fixed.",
    )


def test_a_policy_may_ask_for_the_name_of_the_tool(session: Session) -> None:
    """A first parameter called tool_name gets the name, here and in on_result."""
    seen: list[object] = []

    class ByName:
        def check(self, tool_name: str, params: object, context: ToolContext) -> str | None:
            seen.append(tool_name)
            return None

        def on_result(self, tool_name: str, params: object, result: object, *, context: ToolContext) -> None:
            seen.append(tool_name)

    run(session, prompt_of(["a"], ByName()), "a")

    assert seen == ["a", "a"]


def test_a_policy_sees_tool_params_and_context(session: Session) -> None:
    """What it is asked about is the parsed call in its session."""
    seen: list[object] = []

    class Looking:
        def check(self, tool: Any, params: Any, *, context: ToolContext) -> None:
            seen.extend([tool.name, params, context.session == session, context.call_id])

    execute_tool(ToolCall("a", {"fail": True}, "c1"), prompt=prompt_of(["a"], Looking()), session=session)

    assert seen == ["a", Work(fail=True), True, "c1"]


def test_policies_may_be_async(session: Session) -> None:
    """Their answers count in sync and async code alike, denials, errors and on_result included."""
    told: list[str] = []

    class Slow:
        def __init__(self, answer: object) -> None:
            self.answer = answer

        async def check(self, tool: Any, params: Any, *, context: ToolContext) -> Any:
            await asyncio.sleep(0)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        async def on_result(self, tool: Any, params: Any, result: Any, *, context: ToolContext) -> None:
            await asyncio.sleep(0)
            told.append(tool.name)

    expected = {
        None: "done",
        "no": "no",
        5: "Policy 'Slow' gave no usable decision",
        ValueError("x"): "Policy 'Slow' failed: x",
    }
    for answer, text in expected.items():
        prompt = prompt_of(["a"], Slow(answer))
        assert run(session, prompt, "a").text.startswith(text)
        assert asyncio.run(aexecute_tool(ToolCall("a"), prompt=prompt, session=session)).text.startswith(text)
    assert told == ["a", "a"]


@pytest.mark.parametrize("kind", ["unknown", "invalid"])
def test_unknown_and_invalid_calls_reach_no_policy(session: Session, kind: str) -> None:
    """S1: lookup and parsing come first."""
    policy = Answering(None)
    prompt = prompt_of(["a"], policy)
    run(session, prompt, "b" if kind == "unknown" else "a", **({} if kind == "unknown" else {"fail": 1}))

    assert policy.asked == []


def test_what_is_no_policy_is_refused() -> None:
    """A policy has a check method."""
    with pytest.raises(PromptValidationError):
        PromptTemplate(policies=[object()])  # type: ignore[list-item]


def test_an_attribute_called_ask_is_no_approval(session: Session) -> None:
    """Only what also hears the answer is asked before the call takes its turn."""

    class Asking(Answering):
        ask = "whatever"

    assert run(session, prompt_of(["a"], Asking(None)), "a").outcome == "ok"


# -- order and place (S31, S32) --------------------------------------------------------------------------------------------


def nested(*, outer: object, inner: object, prompt: object, asked: list[str]) -> Prompt[Any]:
    return Prompt(
        PromptTemplate(
            sections=[
                MarkdownSection(
                    title="Outer",
                    template="",
                    policies=[Answering(outer, "outer", asked)],
                    children=[
                        MarkdownSection(
                            title="Inner", template="", tools=[tool("a")], policies=[Answering(inner, "inner", asked)]
                        )
                    ],
                ),
                MarkdownSection(title="Other", template="", policies=[Answering("never", "other", asked)]),
            ],
            policies=[Answering(prompt, "prompt", asked)],
        )
    )


def test_outer_sections_are_asked_first_and_the_prompt_last(session: Session) -> None:
    """The policies of other sections are not asked."""
    asked: list[str] = []
    run(session, nested(outer=None, inner=None, prompt=None, asked=asked), "a")

    assert asked == ["outer", "inner", "prompt"]


def test_the_first_denial_ends_it(session: Session) -> None:
    """Nobody behind it is asked."""
    asked: list[str] = []

    assert run(session, nested(outer=None, inner="no", prompt="never", asked=asked), "a").text == "no"
    assert asked == ["outer", "inner"]


def test_every_policy_hears_of_a_success(session: Session) -> None:
    """Also those of sections the tool is not in; nobody hears of failures and denials."""
    heard: list[str] = []

    class Listening(Answering):
        def on_result(self, tool: Any, params: Any, result: ToolResult[Any], *, context: ToolContext) -> None:
            heard.append(f"{self.name}: {tool.name} {result.value}")

    prompt = Prompt(
        PromptTemplate(
            sections=[
                MarkdownSection(title="A", template="", tools=[tool("a")], policies=[Listening(None, "mine")]),
                MarkdownSection(title="B", template="", policies=[Listening("never", "theirs")]),
            ],
            policies=[Listening(None, "all")],
        )
    )
    run(session, prompt, "a", fail=True)
    run(session, prompt, "a")

    assert heard == ["mine: a done", "theirs: a done", "all: a done"]


def test_a_policy_that_fails_on_a_result_takes_the_call_back(session: Session) -> None:
    """S19: what cannot be recorded did not happen."""

    class Broken:
        name = "book"

        def check(self, tool: Any, params: Any, *, context: ToolContext) -> None:
            pass

        def on_result(self, tool: Any, params: Any, result: Any, *, context: ToolContext) -> None:
            context.session[Work].append(Work())
            raise OSError("full")

    outcome = run(session, prompt_of(["a"], Broken()), "a")

    assert (outcome.outcome, outcome.text) == ("failed", "Internal error: tool 'a' succeeded but book failed: full")
    assert session[Work].all() == ()


def test_the_record_of_a_policy_is_kept_by_its_place(session: Session) -> None:
    """Section path, name and index; the words of the slice are those of its specification."""
    policy = SequentialDependencyPolicy({"b": ["a"]})
    prompt = Prompt(
        PromptTemplate(
            sections=[
                MarkdownSection(
                    title="Outer",
                    template="",
                    children=[
                        MarkdownSection(title="Inner", template="", tools=[tool("a"), tool("b")], policies=[policy])
                    ],
                )
            ],
            policies=[Answering(None), policy],
        )
    )
    run(session, prompt, "a")

    states = {state.policy_name: state.invoked_tools for state in session[PolicyState].all()}
    assert states == {
        "outer/inner/sequential_dependency#0": frozenset({"a"}),
        "sequential_dependency#1": frozenset({"a"}),
    }


def test_what_policies_note_is_no_change_of_the_call(session: Session) -> None:
    """`changes` names what the tool touched."""
    outcome = run(session, prompt_of(["a", "b"], SequentialDependencyPolicy({"b": ["a"]})), "a")

    assert not outcome.changes


def test_one_policy_object_serves_many_sessions(clock: FakeClock) -> None:
    """It holds no state of its own."""
    policies = (SequentialDependencyPolicy({"b": ["a"]}), QuotaPolicy(2), RateLimitPolicy(2))
    prompt = prompt_of(["a", "b"], *policies)
    first, second = Session(clock=clock), Session(clock=clock)
    for _ in range(2):
        run(first, prompt, "a")

    assert run(first, prompt, "b").outcome == "denied"
    assert "missing required tools" in run(second, prompt, "b").text
    assert [run(second, prompt, "a").outcome for _ in range(3)] == ["ok", "ok", "denied"]


def test_one_policy_object_at_two_places_counts_at_each(session: Session) -> None:
    """Its record belongs to the place, not to the object."""
    quota = QuotaPolicy(1)
    prompt = Prompt(
        PromptTemplate(
            sections=[
                MarkdownSection(title="A", template="", tools=[tool("a")], policies=[quota]),
                MarkdownSection(title="B", template="", tools=[tool("b")], policies=[quota]),
            ]
        )
    )

    assert [run(session, prompt, name).outcome for name in "abab"] == ["ok", "ok", "denied", "denied"]


def test_the_record_is_rolled_back_with_the_transaction(session: Session) -> None:
    """A success that was taken back satisfies nothing."""
    prompt = prompt_of(["a", "b"], SequentialDependencyPolicy({"b": ["a"]}))
    with pytest.raises(ValueError, match="no"), session.transaction():
        run(session, prompt, "a")
        assert run(session, prompt, "b").outcome == "ok"
        raise ValueError("no")

    assert run(session, prompt, "b").outcome == "denied"


def test_a_reset_forgets_what_policies_know(session: Session) -> None:
    """Dependencies must be met again, quotas and rates begin anew."""
    prompt = prompt_of(["a", "b"], SequentialDependencyPolicy({"b": ["a"]}), QuotaPolicy(2), RateLimitPolicy(2))
    run(session, prompt, "a")
    run(session, prompt, "b")
    session.reset()

    assert "missing required tools: a" in run(session, prompt, "b").text
    assert [run(session, prompt, "a").outcome for _ in range(3)] == ["ok", "ok", "denied"]


def test_a_snapshot_takes_the_record_along(session: Session) -> None:
    """Going back in time forgets the successes since."""
    prompt = prompt_of(["a", "b"], SequentialDependencyPolicy({"b": ["a"]}))
    snapshot = session.snapshot()
    run(session, prompt, "a")
    session.restore(snapshot)

    assert run(session, prompt, "b").outcome == "denied"


def test_a_durable_session_remembers_what_policies_know(tmp_path: Path) -> None:
    """A restart neither forgets a dependency nor refills a quota."""
    prompt = prompt_of(["a", "b"], SequentialDependencyPolicy({"b": ["a"]}), QuotaPolicy(2))
    with Session.open(tmp_path / "session") as session:
        run(session, prompt, "a")
    with Session.open(tmp_path / "session") as session:
        assert run(session, prompt, "b").outcome == "ok"
        assert run(session, prompt, "a").text == "Quota exceeded: 2/2 calls used"


# -- SequentialDependencyPolicy (S33) --------------------------------------------------------------------------------------


def test_a_tool_waits_for_the_tools_it_depends_on(session: Session) -> None:
    """The denial names what is missing, sorted, and what to do."""
    prompt = prompt_of(["test", "build", "deploy"], SequentialDependencyPolicy({"deploy": {"test", "build"}}))

    assert run(session, prompt, "deploy").text == (
        "Cannot call 'deploy' - missing required tools: build, test\nCall these tools first, then retry deploy."
    )
    run(session, prompt, "build")
    assert run(session, prompt, "deploy").text == (
        "Cannot call 'deploy' - missing required tools: test\nCall these tools first, then retry deploy."
    )
    run(session, prompt, "test", fail=True)
    assert run(session, prompt, "deploy").outcome == "denied"
    run(session, prompt, "test")
    assert run(session, prompt, "deploy").outcome == "ok"


def test_dependencies_chain(session: Session) -> None:
    """Each link is checked on its own; a link stays satisfied."""
    policy = SequentialDependencyPolicy({"b": ["a"], "c": ["b"]})
    prompt = prompt_of("abc", policy)

    assert [run(session, prompt, name).outcome for name in "cbabccc"] == [
        "denied",
        "denied",
        "ok",
        "ok",
        "ok",
        "ok",
        "ok",
    ]


def test_a_dependency_reaches_across_sections(session: Session) -> None:
    """The tool it waits for may stand in another section, under other policies."""
    prompt = Prompt(
        PromptTemplate(
            sections=[
                MarkdownSection(title="Checks", template="", tools=[tool("test")]),
                MarkdownSection(
                    title="Release",
                    template="",
                    tools=[tool("deploy")],
                    policies=[SequentialDependencyPolicy({"deploy": ["test"]})],
                ),
            ]
        )
    )

    assert [run(session, prompt, name).outcome for name in ("deploy", "test", "deploy")] == ["denied", "ok", "ok"]


def test_a_batch_satisfies_a_dependency_in_order(session: Session) -> None:
    """Calls of one turn see what the ones before them did."""
    prompt = prompt_of("ab", SequentialDependencyPolicy({"b": ["a"]}))
    outcomes = execute_tools([ToolCall("b"), ToolCall("a"), ToolCall("b")], prompt=prompt, session=session)

    assert [outcome.outcome for outcome in outcomes] == ["denied", "ok", "ok"]


def test_a_required_tool_the_prompt_lacks_is_refused() -> None:
    """Such a tool could never be called; what the prompt lacks altogether does not matter."""
    policy = SequentialDependencyPolicy({"deploy": ["test", "build"], "other": ["gone"]})
    with pytest.raises(PromptValidationError) as refused:
        prompt_of(["deploy", "test"], policy)

    assert str(refused.value) == (
        "SequentialDependencyPolicy at sequential_dependency#0 requires tools the prompt does not have: build"
    )
    assert prompt_of(["deploy", "test", "build"], policy)


def test_a_cycle_is_refused() -> None:
    """Tools that wait for each other would wait for ever."""
    with pytest.raises(PromptValidationError) as refused:
        SequentialDependencyPolicy({"a": ["b"], "b": ["c"], "c": ["a"]})

    assert str(refused.value) == "SequentialDependencyPolicy has a cycle: a -> b -> c -> a"


@pytest.mark.parametrize(
    "make",
    [lambda: SequentialDependencyPolicy({"a": "bc"}), lambda: QuotaPolicy(1, "bc"), lambda: RateLimitPolicy(1, "bc")],
)
def test_one_name_is_no_collection_of_names(make: Callable[[], object]) -> None:
    """A string would be read letter by letter."""
    with pytest.raises(PromptValidationError) as refused:
        make()

    assert str(refused.value) == "tools must be a collection of tool names, got the string 'bc'"


# -- KeyedDependencyPolicy (S34) -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class At:
    path: str
    content: str = ""


def keyed(name: str) -> Tool[At, str]:
    def handler(params: At, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult.ok("done")

    return Tool[At, str](name=name, description="Work.", handler=handler)


def test_a_key_is_satisfied_by_the_same_key_alone(session: Session) -> None:
    """Reading one thing gives no leave to write another."""
    prompt = Prompt(PromptTemplate(policies=[KeyedDependencyPolicy(requires={"write": "read"}, key="path")])).bind(
        extra_tools=[keyed("read"), keyed("write")]
    )
    run(session, prompt, "read", path="b")

    assert run(session, prompt, "write", path="a").text == (
        "Cannot call 'write' with path='a' before 'read' succeeded for it\n"
        "Call read with the same path first, then retry write."
    )
    assert run(session, prompt, "write", path="b").outcome == "ok"
    [state] = session[PolicyState].all()
    assert state.invoked_keys == frozenset({("read", '"b"')})


def test_a_keyed_dependency_on_a_tool_the_prompt_lacks_is_refused() -> None:
    """The same rule as for unkeyed ones."""
    policy = KeyedDependencyPolicy(requires={"write": "read", "other": "gone"}, key="path")
    with pytest.raises(PromptValidationError) as refused:
        Prompt(PromptTemplate(policies=[policy])).bind(extra_tools=[keyed("write")])

    assert str(refused.value) == (
        "KeyedDependencyPolicy at keyed_dependency#0 requires tools the prompt does not have: read"
    )


# -- ReadBeforeWritePolicy (S34) -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FromTo:
    src: str
    dst: str


@dataclass(frozen=True)
class Many:
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Out:
    output: PurePosixPath
    content: str = ""


def file_tool(name: str, params: type, act: Callable[[Filesystem, Any], object]) -> Tool[Any, str]:
    def handler(given: Any, *, context: ToolContext) -> ToolResult[str]:
        fs = context.filesystem
        assert fs is not None
        act(fs, given)
        return ToolResult.ok("done")

    return Tool[params, str](name=name, description="Work on files.", handler=handler)  # type: ignore[valid-type]


FILE_TOOLS = (
    file_tool("read_file", At, lambda fs, p: fs.read(p.path)),
    file_tool("write_file", At, lambda fs, p: fs.write(p.path, p.content)),
    file_tool("edit_file", At, lambda fs, p: fs.write(p.path, fs.read(p.path) + "!")),
    file_tool("append_file", At, lambda fs, p: fs.append(p.path, p.content)),
    file_tool("delete_file", At, lambda fs, p: fs.delete(p.path, recursive=True)),
    file_tool("move_file", FromTo, lambda fs, p: fs.move(p.src, p.dst, overwrite=True)),
    file_tool("copy_file", FromTo, lambda fs, p: fs.copy(p.src, p.dst, overwrite=True)),
    file_tool("write_many", Many, lambda fs, p: [fs.write(path, "") for path in p.paths]),
    file_tool("save", Out, lambda fs, p: fs.write(str(p.output), p.content)),
)
UNREAD = "Cannot write to {} without reading it first"
CHANGED = UNREAD + "\nIt has changed since you last read it; read it again, then retry."


@dataclass
class Desk:
    """A prompt with file tools, a session and some files."""

    policy: Any = field(default_factory=ReadBeforeWritePolicy)
    files: Mapping[str, str] = field(default_factory=lambda: {"config.json": "old", "other.txt": "other"})

    def __post_init__(self) -> None:
        self.fs = InMemoryFilesystem(self.files)
        self.session = Session()
        self.prompt = Prompt(PromptTemplate(policies=[self.policy])).bind(
            extra_tools=FILE_TOOLS, resources={Filesystem: self.fs}
        )

    def __call__(self, name: str, **args: object) -> str:
        return run(self.session, self.prompt, name, **args).text


@pytest.mark.parametrize("name", ["write_file", "edit_file", "append_file", "delete_file"])
def test_an_existing_file_must_be_read_before_it_is_changed(name: str) -> None:
    """Overwriting, editing, appending and deleting are all governed, and nothing happened."""
    desk = Desk()

    assert desk(name, path="config.json") == UNREAD.format("config.json")
    assert desk.fs.read("config.json") == "old"
    desk("read_file", path="config.json")
    assert desk(name, path="config.json") == "done"


@pytest.mark.parametrize("name", ["move_file", "copy_file"])
def test_the_target_of_a_move_or_copy_is_governed(name: str) -> None:
    """What would be overwritten is the destination; the source is not asked about."""
    desk = Desk()

    assert desk(name, src="other.txt", dst="config.json") == UNREAD.format("config.json")
    assert desk(name, src="other.txt", dst="new.txt") == "done"
    desk("read_file", path="config.json")
    assert desk(name, src="new.txt", dst="config.json") == "done"


def test_a_new_file_is_free_and_known_once_it_is_written() -> None:
    """Own successful writes count as knowing."""
    desk = Desk()

    assert desk("write_file", path="new.txt", content="1") == "done"
    assert desk("write_file", path="new.txt", content="2") == "done"
    assert desk("edit_file", path="new.txt") == "done"
    assert desk.fs.read("new.txt") == "2!"


def test_a_file_written_by_a_copy_or_move_is_known() -> None:
    """Its content comes from a call of the model's own."""
    desk = Desk()
    desk("copy_file", src="other.txt", dst="copy.txt")

    assert desk("write_file", path="copy.txt", content="x") == "done"


def test_a_move_passes_on_what_is_known_of_its_source() -> None:
    """What was never read stays unread under its new name; otherwise a move would be the way around the policy."""
    desk = Desk()
    desk("move_file", src="other.txt", dst="moved.txt")
    assert desk("write_file", path="moved.txt", content="x") == UNREAD.format("moved.txt")

    desk("read_file", path="config.json")
    desk("move_file", src="config.json", dst="new.json")
    assert desk("write_file", path="new.json", content="x") == "done"


def test_paths_can_be_resolved_before_they_are_compared() -> None:
    """Tools that show the model a root of their own say how its paths are meant; the reason keeps the path as given."""
    desk = Desk(ReadBeforeWritePolicy(resolve=lambda path: path.removeprefix("alias-")))

    assert desk("write_file", path="alias-config.json") == UNREAD.format("alias-config.json")
    desk("read_file", path="config.json")
    assert desk("write_file", path="alias-config.json", content="x") == "done"


def test_a_failed_write_teaches_nothing() -> None:
    """Only successes count."""
    desk = Desk(files={})
    desk("edit_file", path="new.txt")
    desk.fs.write("new.txt", "by somebody else")

    assert desk("write_file", path="new.txt", content="x") == UNREAD.format("new.txt")


def test_a_file_that_changed_must_be_read_again() -> None:
    """The policy remembers the content's digest, not that there was a read."""
    desk = Desk()
    desk("read_file", path="config.json")
    desk.fs.write("config.json", "by somebody else")

    assert desk("write_file", path="config.json", content="x") == CHANGED.format("config.json")
    desk("read_file", path="config.json")
    assert desk("write_file", path="config.json", content="x") == "done"


def test_a_file_that_changed_back_is_still_known() -> None:
    """What is there is what was read."""
    desk = Desk()
    desk("read_file", path="config.json")
    desk.fs.write("config.json", "else")
    desk.fs.write("config.json", "old")

    assert desk("write_file", path="config.json", content="x") == "done"


def test_a_partial_read_counts() -> None:
    """Any successful call of a read tool is a read."""
    desk = Desk(ReadBeforeWritePolicy(read_tools=["peek"]))
    peek = file_tool("peek", At, lambda fs, p: fs.read(p.path)[:1])
    desk.prompt = desk.prompt.bind(extra_tools=[peek])
    desk("read_file", path="config.json")
    assert desk("write_file", path="config.json") == UNREAD.format("config.json")
    desk("peek", path="config.json")

    assert desk("write_file", path="config.json") == "done"


def test_a_failed_read_does_not_count() -> None:
    """The model has seen nothing of the file."""
    desk = Desk(files={"config.json": "old"})
    desk("read_file", path="missing.json")
    desk.fs.write("missing.json", "now it is there")

    assert desk("write_file", path="missing.json") == UNREAD.format("missing.json")


@pytest.mark.parametrize("spelling", ["./config.json", "/config.json", "a/../config.json", "config.json"])
def test_paths_are_compared_normalised_and_named_as_given(spelling: str) -> None:
    """Another spelling is the same file."""
    desk = Desk()
    assert desk("write_file", path=spelling) == UNREAD.format(spelling)
    desk("read_file", path="/./config.json")

    assert desk("write_file", path=spelling) == "done"


def test_a_path_that_escapes_is_denied_with_the_reason_of_the_filesystem() -> None:
    """What cannot be named cannot have been read."""
    desk = Desk()
    outcome = run(desk.session, desk.prompt, "write_file", path="../secret")

    assert (outcome.outcome, "../secret" in outcome.text) == ("denied", True)


def test_a_directory_is_removed_only_if_all_in_it_was_read() -> None:
    """The denial names a file that was not; an empty directory is free."""
    desk = Desk(files={"dir/a.txt": "a", "dir/sub/b.txt": "b"})
    desk.fs.mkdir("empty")
    desk("read_file", path="dir/a.txt")

    assert desk("delete_file", path="empty") == "done"
    assert desk("delete_file", path="dir") == UNREAD.format("dir/sub/b.txt")
    desk("read_file", path="dir/sub/b.txt")
    assert desk("delete_file", path="dir") == "done"


def test_a_file_that_was_removed_and_came_back_changed_is_unknown() -> None:
    """A new file under an old name has not been read."""
    desk = Desk()
    desk("read_file", path="config.json")
    assert desk("delete_file", path="config.json") == "done"
    desk.fs.write("config.json", "by somebody else")

    assert desk("write_file", path="config.json") == CHANGED.format("config.json")


def test_a_read_that_was_taken_back_does_not_count() -> None:
    """The record is rolled back with the transaction."""
    desk = Desk()
    with pytest.raises(ValueError, match="no"), desk.session.transaction():
        desk("read_file", path="config.json")
        raise ValueError("no")

    assert desk("write_file", path="config.json") == UNREAD.format("config.json")


def test_without_a_filesystem_a_governed_write_is_denied(session: Session) -> None:
    """Nobody can tell whether the file is there; other tools are not concerned."""
    prompt = Prompt(PromptTemplate(policies=[ReadBeforeWritePolicy()])).bind(
        extra_tools=[keyed("write_file"), keyed("read_file")]
    )

    assert run(session, prompt, "write_file", path="a.txt").text == (
        "Cannot write to a.txt: no filesystem is bound, so it cannot be known whether the file was read."
    )
    assert run(session, prompt, "read_file", path="a.txt").outcome == "ok"


def test_tools_may_be_mapped_to_the_parameter_that_holds_the_path() -> None:
    """For tools whose parameter has a name of its own; paths need not be strings."""
    desk = Desk(ReadBeforeWritePolicy(read_tools={"read_file": "path"}, write_tools={"save": "output"}))

    assert desk("save", output="config.json") == UNREAD.format("config.json")
    assert desk("write_file", path="other.txt") == "done"
    desk("read_file", path="config.json")
    assert desk("save", output="config.json") == "done"


@pytest.mark.parametrize("write_tools", [["write_many"], {"write_many": "paths"}, {"write_many": "path"}])
def test_a_write_whose_file_cannot_be_told_is_denied(write_tools: Any) -> None:
    """Fail closed: what cannot be checked is not allowed."""
    desk = Desk(ReadBeforeWritePolicy(write_tools=write_tools))

    assert desk("write_many", paths=["config.json"]) == (
        "Cannot tell which file 'write_many' would write, so it cannot be checked against what was read."
    )


# -- QuotaPolicy (S35) -----------------------------------------------------------------------------------------------------


def test_a_quota_ends_after_so_many_calls(session: Session) -> None:
    """The denial says how many were used."""
    prompt = prompt_of("ab", QuotaPolicy(2))

    assert [run(session, prompt, name).outcome for name in "ab"] == ["ok", "ok"]
    assert run(session, prompt, "a").text == "Quota exceeded: 2/2 calls used"


def test_a_quota_may_be_for_some_tools(session: Session) -> None:
    """Others neither count nor end."""
    prompt = prompt_of("ab", QuotaPolicy(1, tools=["a"]))

    assert [run(session, prompt, name).outcome for name in "bbabab"] == ["ok", "ok", "ok", "ok", "denied", "ok"]


def test_a_failed_call_counts(session: Session) -> None:
    """Its handler started; a rollback does not give the seat back."""
    prompt = prompt_of("a", QuotaPolicy(1))

    assert run(session, prompt, "a", fail=True).outcome == "failed"
    assert run(session, prompt, "a").outcome == "denied"


def test_a_call_that_was_taken_back_counts(session: Session) -> None:
    """A transaction around it cannot refill the quota."""
    prompt = prompt_of("a", QuotaPolicy(1))
    with pytest.raises(ValueError, match="no"), session.transaction():
        run(session, prompt, "a")
        raise ValueError("no")

    assert run(session, prompt, "a").outcome == "denied"


def test_a_call_that_never_started_does_not_count(session: Session, clock: FakeClock) -> None:
    """Denied by a later policy, invalid, unknown, or stopped by the deadline: the seat is free again."""
    refusing = prompt_of("a", QuotaPolicy(1), Answering("no"))
    prompt = prompt_of("a", QuotaPolicy(1))
    run(session, refusing, "a")
    run(session, prompt, "a", fail=5)
    run(session, prompt, "b")
    deadline = Deadline.after(1, clock=clock)
    clock.advance(2)
    with pytest.raises(DeadlineExceededError):
        execute_tool(ToolCall("a"), prompt=prompt, session=session, deadline=deadline)

    assert [run(session, prompt, "a").outcome for _ in range(2)] == ["ok", "denied"]


def counted() -> tuple[Tool[Work, str], list[int]]:
    """A read-only tool that all runs of a group enter together, and how often its handler ran."""
    ran: list[int] = []

    def handler(params: Work, *, context: ToolContext) -> ToolResult[str]:
        ran.append(1)
        return ToolResult.ok("done")

    return Tool[Work, str](name="look", description="Look.", handler=handler, effects="none"), ran


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_quota_is_exact_in_a_parallel_batch(session: Session, on_a_loop: bool) -> None:
    """Twenty calls at the same time, five seats: five run."""
    look, ran = counted()
    prompt = Prompt(PromptTemplate(policies=[QuotaPolicy(5)])).bind(extra_tools=[look])
    calls = [ToolCall("look") for _ in range(20)]
    if on_a_loop:
        outcomes = asyncio.run(aexecute_tools(calls, prompt=prompt, session=session))
    else:
        outcomes = execute_tools(calls, prompt=prompt, session=session)

    assert len(ran) == 5
    assert sorted(outcome.outcome for outcome in outcomes) == ["denied"] * 15 + ["ok"] * 5
    assert {outcome.text for outcome in outcomes} == {"done", "Quota exceeded: 5/5 calls used"}


def test_a_quota_is_exact_among_threads(session: Session) -> None:
    """Threads that call at the same time take no seat twice."""
    look, ran = counted()
    prompt = Prompt(PromptTemplate(policies=[QuotaPolicy(5)])).bind(extra_tools=[look])
    start = threading.Barrier(8)

    def work() -> None:
        start.wait(10)
        for _ in range(3):
            run(session, prompt, "look")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ran) == 5


def test_a_quota_of_nothing_allows_nothing(session: Session) -> None:
    """Zero is a quota; less is not."""
    assert run(session, prompt_of("a", QuotaPolicy(0)), "a").text == "Quota exceeded: 0/0 calls used"
    with pytest.raises(PromptValidationError) as refused:
        QuotaPolicy(-1)
    assert str(refused.value) == "QuotaPolicy max_calls must be 0 or more, got -1"


# -- RateLimitPolicy (S35) -------------------------------------------------------------------------------------------------


def test_a_rate_is_limited_per_minute(session: Session, clock: FakeClock) -> None:
    """The denial says how many calls there were and how long to wait, and waiting so long is enough."""
    prompt = prompt_of("a", RateLimitPolicy(2))
    run(session, prompt, "a")
    clock.advance(30)
    run(session, prompt, "a")

    assert run(session, prompt, "a").text == (
        "Rate limit exceeded: 2 calls to a in last minute\nMaximum: 2 calls per minute\nWait 60 seconds before retrying"
    )
    clock.advance(30)
    assert [run(session, prompt, "a").outcome for _ in range(2)] == ["ok", "denied"]
    clock.advance(60)
    assert [run(session, prompt, "a").outcome for _ in range(3)] == ["ok", "ok", "denied"]


def test_a_rate_is_limited_per_tool(session: Session) -> None:
    """Each tool has its own minute; tools that are not named have none."""
    prompt = prompt_of("abc", RateLimitPolicy(1, tools=["a", "b"]))

    assert [run(session, prompt, name).outcome for name in "abcabc"] == ["ok", "ok", "ok", "denied", "denied", "ok"]


def test_a_denied_call_does_not_lengthen_the_wait(session: Session, clock: FakeClock) -> None:
    """Counted are calls whose handler started, failures included."""
    prompt = prompt_of("a", RateLimitPolicy(1))
    assert run(session, prompt_of("a", RateLimitPolicy(1), Answering("no")), "a").text == "no"
    run(session, prompt, "a", fail=True)
    for _ in range(3):
        clock.advance(15)
        assert run(session, prompt, "a").outcome == "denied"
    clock.advance(15)

    assert run(session, prompt, "a").outcome == "ok"


def test_a_rate_is_exact_in_a_parallel_batch(session: Session) -> None:
    """Twenty calls at the same time, five per minute: five run."""
    look, ran = counted()
    prompt = Prompt(PromptTemplate(policies=[RateLimitPolicy(5)])).bind(extra_tools=[look])
    execute_tools([ToolCall("look") for _ in range(20)], prompt=prompt, session=session)

    assert len(ran) == 5


def test_a_rate_of_nothing_is_refused() -> None:
    """A tool that may never be called should not be offered."""
    with pytest.raises(PromptValidationError) as refused:
        RateLimitPolicy(0)

    assert str(refused.value) == "RateLimitPolicy max_calls_per_minute must be 1 or more, got 0"
