"""Claims about recordings: what a durable session's file tells of each step, at each position, and when calls are made again."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import orjson
import pytest

from weakincentives import serde
from weakincentives.errors import SessionStorageError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    ApprovalPolicy,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    QuotaPolicy,
    SequentialDependencyPolicy,
    ToolContext,
    tool,
)
from weakincentives.recording import Recording, Rerun, compare
from weakincentives.runtime import (
    Session,
    ToolCall,
    ToolInvoked,
    decide,
    execute_tool,
    keyed_slice,
    log_slice,
    pending_approvals,
)
from weakincentives.serde import Secret
from weakincentives.session.record import Source, header_line


@dataclass(frozen=True)
class Note:
    text: str


@keyed_slice(lambda item: item.name)
@dataclass(frozen=True)
class Price:
    name: str
    cents: int


@log_slice
@dataclass(frozen=True)
class Seen:
    what: str


@tool
def write(path: str, text: str, *, context: ToolContext) -> str:
    """Write a file and note it."""
    files = context.filesystem
    assert files is not None
    files.write(path, text)
    context.session[Note].append(Note(path))
    if "bad" in text:
        raise ValueError("Bad text. Send another, then retry.")
    return f"wrote {path}"


@tool
def publish() -> str:
    """Publish what was written."""
    return "published"


@tool(effects="external")
def mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@tool
def sign_in(password: Annotated[str, Secret]) -> str:
    """Sign in."""
    return "in"


def agent(*tools: Any, quota: int = 100) -> Prompt[Any]:
    return Prompt(
        PromptTemplate(
            sections=[MarkdownSection(title="Work", template="Write.", tools=tools or (write, publish, mail, sign_in))],
            policies=[SequentialDependencyPolicy({"publish": {"write"}}), QuotaPolicy(quota)],
        )
    )


class Work:
    """An agent at work in a durable session with attached files."""

    def __init__(self, path: Path, *, attach: bool = True) -> None:
        self.path = path
        self.session = Session.open(path)
        self.files = InMemoryFilesystem({"old.txt": "one\ntwo\n"})
        if attach:
            self.session.attach("work", self.files)
        self.prompt = agent().bind(resources={Filesystem: self.files})

    def call(self, name: str, **arguments: Any) -> None:
        execute_tool(ToolCall(name, arguments), prompt=self.prompt, session=self.session)

    def recording(self) -> Recording:
        return Recording(self.path)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    work = Work(tmp_path / "a.session")
    yield work
    work.session.close()


def last(recording: Recording) -> Any:
    return recording.step(recording.position)


# steps


def test_a_call_is_told_with_its_parameters_decision_and_outcome(work: Work) -> None:
    """What a person asks first of a call."""
    work.call("write", path="a.txt", text="hello")
    recording = work.recording()
    told = recording.step(recording.position_of_call(1)).as_json()

    assert (told["tool"], told["params"], told["decision"], told["outcome"], told["rolled_back"]) == (
        "write",
        {"path": "a.txt", "text": "hello"},
        "allowed",
        "ok",
        False,
    )
    assert (told["text"], told["notes"]) == ("wrote a.txt", [])
    assert told["seconds"] > 0


def test_a_kept_call_shows_what_it_changed(work: Work) -> None:
    """Files and slices as differences, what policies remember among them."""
    work.call("write", path="old.txt", text="one\n2\n")
    step = last(work.recording())

    assert [(file.path, file.change, [str(line) for line in file.lines()]) for file in step.files] == [
        ("old.txt", "changed", ["@ 1-2 → 1-2", " one", "-two", "+2"])
    ]
    assert step.slices[0].as_json() == {
        "slice": "Note",
        "type": f"{__name__}:Note",
        "items": [{"change": "added", "before": None, "after": {"text": "old.txt"}}],
        "left_out": 0,
    }
    assert (step.row.slices, step.row.files) == (("Note",), ("old.txt",))


def test_a_failed_call_is_shown_as_rolled_back(work: Work) -> None:
    """And it is said that what it wrote was never stored."""
    work.call("write", path="a.txt", text="bad")
    step = last(work.recording())

    assert (step.row.rolled_back, step.row.outcome, step.files, step.slices) == (True, "failed", (), ())
    assert step.notes == ("Rolled back: what it had written before it ended was never stored.",)


def test_a_denied_call_names_the_policy(work: Work) -> None:
    """Its reason is what the model read; it began nothing, so nothing was rolled back."""
    work.call("publish")
    step = last(work.recording())

    assert (step.decision, step.row.rolled_back) == ("denied by sequential_dependency", False)
    assert step.text.startswith("Cannot call 'publish' - missing required tools: write")


def test_calls_that_were_taken_back_together_are_marked(work: Work) -> None:
    """Each says which step took it back, and that step which calls."""
    with work.session.transaction(tag="try") as block:
        work.call("write", path="a.txt", text="1")
        work.call("write", path="b.txt", text="2")
        block.rollback()
    recording = work.recording()
    row = recording.row(recording.position_of_call(2))

    assert (row.outcome, row.rolled_back, row.taken_back_by) == ("ok", True, recording.position)
    assert recording.step(row.position).notes == (
        f"Taken back with others at step {recording.position}; what it had changed does not count.",
    )
    assert last(recording).text == "calls 1, 2 were taken back together (try): rolled back on request"


def test_calls_of_a_kept_block_say_where_their_changes_are(work: Work) -> None:
    """They are in one record behind the calls, which is a step of its own."""
    with work.session.transaction():
        work.call("write", path="a.txt", text="1")
        work.call("write", path="b.txt", text="2")
    recording = work.recording()
    at = recording.position

    assert recording.step(recording.position_of_call(1)).notes == (
        f"Its changes are part of a larger transaction, kept at step {at}.",
    )
    assert (recording.row(at).kind, [file.path for file in recording.step(at).files]) == (
        "transaction",
        ["a.txt", "b.txt"],
    )


def test_files_that_are_not_attached_are_known_by_name_only(tmp_path: Path) -> None:
    """And that is said, not passed over."""
    work = Work(tmp_path / "b.session", attach=False)
    work.call("write", path="a.txt", text="1")
    work.session.close()
    step = last(work.recording())

    assert (step.row.files, step.files) == (("a.txt",), ())
    assert step.notes == ("No files are attached to this session, so only the names of changed files are known.",)


def test_what_happens_outside_of_calls_is_a_step_too(work: Work) -> None:
    """Writes, other LOG slices, attached files and resets, in order; counters of policies are not."""
    work.session[Note].append(Note("by hand"))
    work.session[Seen].append(Seen("a"))
    work.call("write", path="a.txt", text="1")
    work.session.reset()
    rows = work.recording().rows()

    assert [(row.kind, row.text) for row in rows] == [
        ("attach", "files were attached as work"),
        ("write", "changed outside of any call"),
        ("log", "recorded: Seen"),
        ("call", "wrote a.txt"),
        ("reset", "everything was forgotten"),
    ]


def test_an_item_in_place_of_another_is_shown_as_a_change(work: Work) -> None:
    """Of plain slices and of keyed ones."""
    work.session[Note].append(Note("a"), Note("b"), Note("c"))
    work.session[Note].seed([Note("a2"), *work.session[Note].all()[1:]])
    work.session[Price].append(Price("fig", 3))
    work.session[Price].append(Price("fig", 4))
    recording = work.recording()
    told = [recording.step(position).slices[0].items for position in (3, 5)]

    assert [(one.change, one.before, one.after) for items in told for one in items] == [
        ("changed", {"text": "a"}, {"text": "a2"}),
        ("changed", {"name": "fig", "cents": 3}, {"name": "fig", "cents": 4}),
    ]


def test_rows_are_read_backwards_from_anywhere_and_by_what_they_are(work: Work) -> None:
    """A page of a long session costs a page."""
    for number in range(6):
        work.call("write", path=f"{number}.txt", text="bad" if number % 3 == 0 else "good")
    recording = work.recording()

    assert [row.call for row in recording.rows(count=2)] == [5, 6]
    assert [row.call for row in recording.rows(count=2, before=recording.position_of_call(5))] == [3, 4]
    assert [row.call for row in recording.rows(outcome="failed")] == [1, 4]
    assert [row.call for row in recording.rows(outcome="rolled_back")] == [1, 4]
    assert recording.rows(tool="publish") == []
    assert (recording.outcomes(), recording.tools()) == ({"ok": 4, "failed": 2}, {"write": 6})


@pytest.mark.parametrize("length", [30, 600])
def test_a_page_costs_the_same_however_long_the_session_is(
    work: Work, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many records are read for a list as it has rows, and a few for a step with its state."""
    for number in range(length):
        with work.session.transaction():
            work.session[Note].append(Note(str(number)))
            work.files.write("a.txt", str(number))
    recording = work.recording()
    recording.at(1)  # from here on slices and files are known
    read: list[int] = []
    payload = Source.payload

    def counted(self: Source, offset: int) -> bytes:
        read.append(offset)
        return payload(self, offset)

    monkeypatch.setattr(Source, "payload", counted)
    recording.rows(count=20)
    assert len(read) == 20

    read.clear()
    recording.step(recording.position)
    recording.at(recording.position, items=5)
    assert len(read) <= 12


# positions


def shop(session: Session) -> Iterator[None]:
    notes, prices = session[Note], session[Price]
    yield notes.append(Note("a"), Note("b"))
    yield notes.seed([notes.all()[1], notes.all()[1], Note("c")])
    yield notes.append(Note("d"))
    yield notes.clear(lambda note: note.text == "c")
    yield prices.append(Price("fig", 1), Price("plum", 2))
    yield prices.append(Price("fig", 3))
    yield prices.clear(lambda price: price.cents == 2)
    yield prices.seed([Price("x", 1), Price("x", 2)])
    yield notes.seed([replace(note, text=note.text.upper()) for note in notes])
    for number in range(200):
        yield notes.append(Note(str(number)))
    yield notes.seed(notes.all()[::-1])
    yield session.reset()
    yield notes.append(Note("after"))


def test_every_position_is_what_the_session_itself_says_it_was(work: Work) -> None:
    """The reader without classes and the session with them agree on slices and files, operation by operation."""
    steps = shop(work.session)
    for number, _ in enumerate(steps):
        work.files.append("log.txt", f"{number}\n")
        if number % 50 == 3:
            work.files.move("log.txt", "moved.txt", overwrite=True)
        if number % 100 == 53:
            work.files.delete("moved.txt")
    recording = work.recording()

    for position in range(1, recording.position + 1, 29):
        then, told = work.session.at(position), recording.at(position, items=1000)
        expected = {cls.__name__: [serde.dump(item) for item in then[cls]] for cls in (Note, Price)}
        files = then.attached("work")
        assert {one.slice: list(one.items) for one in told.slices} == {key: all for key, all in expected.items() if all}
        assert told.files == (("work", tuple(files.glob("**/*")), len(files.glob("**/*"))),)
        for path in files.glob("**/*"):
            assert recording.file("work", path, position) == files.read(path)


def test_a_copy_goes_on_from_its_position(work: Work, tmp_path: Path) -> None:
    """Under an id of its own, with state and files, while the original is in use."""
    work.call("write", path="a.txt", text="1")
    work.call("write", path="a.txt", text="2")
    recording = work.recording()
    made = recording.copy(tmp_path / "copy.session", recording.position_of_call(1))

    with Session.open(tmp_path / "copy.session") as session:
        files = InMemoryFilesystem()
        session.attach("work", files)
        assert (session.session_id, files.read("a.txt"), len(session[ToolInvoked])) == (made, "1", 1)
    assert Recording(tmp_path / "copy.session").forked_from == {
        "session_id": work.session.session_id,
        "position": recording.position_of_call(1),
    }


# a file somebody writes, and files that are not whole


def test_a_session_can_be_watched_while_it_is_written(work: Work) -> None:
    """No lock is taken; what was added is read when asked for, and nothing else."""
    recording = work.recording()
    work.call("write", path="a.txt", text="1")
    assert recording.calls == 0

    recording.refresh()
    assert recording.calls == 1


def test_a_record_that_was_taken_back_is_forgotten(work: Work) -> None:
    """A writer may cut its newest record off and write another in its place."""
    work.session[Note].append(Note("kept"))
    size = work.path.stat().st_size
    work.session[Note].append(Note("gone"))
    work.session.close()
    recording = work.recording()
    os.truncate(work.path, size)
    with Session.open(work.path) as session:
        session[Note].append(Note("new!"))
        recording.refresh()

    assert [item["text"] for item in recording.at(recording.position).slices[0].items] == ["kept", "new!"]


def test_a_file_that_is_cut_while_it_is_read_harms_nobody(work: Work) -> None:
    """The reader stops at what is there; it is not killed, and does not wait."""
    for number in range(3):
        work.session[Note].append(Note("x" * 600_000 + str(number)))
    work.session.close()
    source = Source(str(work.path))
    found = source.header()
    assert found is not None
    size = source.size
    offsets: list[int] = []
    for offset, _ in source.records(found[1], size):
        offsets.append(offset)
        os.truncate(work.path, offset + 700_000)

    assert len(offsets) < 5
    assert list(source.records(offsets[-1] + 1, size)) == []


def test_another_file_in_its_place_is_read_anew(work: Work, tmp_path: Path) -> None:
    """By what it is, not by its name."""
    work.call("write", path="a.txt", text="1")
    recording = work.recording()
    work.session.close()
    Session.open(tmp_path / "other").close()
    os.replace(tmp_path / "other", work.path)
    recording.refresh()

    assert (recording.calls, recording.position) == (0, 0)


def test_what_is_not_whole_is_told_in_words(work: Work) -> None:
    """A torn end and damage in the middle are different things; what comes before is read."""
    work.session.close()
    whole = work.path.read_bytes()
    with Session.open(work.path) as session:
        session[Note].append(Note("1"))
        session[Note].append(Note("2"))
    full = work.path.read_bytes()

    work.path.write_bytes(full[:-3])
    assert work.recording().tail() == (
        "The last write is not whole: it is under way, or was cut short and will be dropped at the next opening."
    )
    work.path.write_bytes(whole + b"?" + full[len(whole) + 1 :])
    assert work.recording().tail() == (
        f"The record at byte {len(whole)} is damaged and more records follow it; what follows is not read."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello\n", "is not a session file. Choose another path."),
        (b"", "holds no session yet: its making was cut short."),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """With a reason."""
    path = tmp_path / "x"
    path.write_bytes(content)

    with pytest.raises(SessionStorageError, match=message):
        Recording(path)


def test_links_and_folders_can_be_refused(tmp_path: Path) -> None:
    """For those who show a folder to others."""
    Session.open(tmp_path / "a").close()
    (tmp_path / "link").symlink_to(tmp_path / "a")

    for name in ("link", "."):
        with pytest.raises(SessionStorageError):
            Recording(tmp_path / name, follow=False)


def test_looking_imports_nothing_that_the_file_names(work: Work) -> None:
    """A file can be looked at by whoever has nothing to do with the agent."""
    work.session[Note].append(Note("x"))
    work.session.close()
    code = (
        "import sys; from weakincentives.recording import Recording; r = Recording(sys.argv[1]);"
        "r.step(r.position); r.at(r.position); print([n for n in sys.modules if 'test_recording' in n])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(work.path)], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_numbers_that_are_not_there_are_told(work: Work) -> None:
    """With those that are."""
    recording = work.recording()

    with pytest.raises(SessionStorageError, match=r"There is no call 3 in .*: it has no calls\."):
        recording.position_of_call(3)
    with pytest.raises(SessionStorageError, match="There is no position 9: the session has positions 1 to 1"):
        recording.step(9)
    with pytest.raises(SessionStorageError, match=r"No files are attached as 'x' \(attached: work\)\."):
        recording.file("x", "a")
    with pytest.raises(SessionStorageError, match=r"There is no file a in work at position 1\."):
        recording.file("work", "a")


ODD: tuple[Any, ...] = (
    None, 0, -1, 99, 2**40, "x", "", [], {}, [1, 2], True, 1.5, [[]], [[0, 5]],
    {"$": "data"}, {"$": [99]}, {"$": 5}, {"$": [0, 1]}, {"$": "map", "v": [1]}, {"$": "enum"}, {"op": "put"},
)  # fmt: skip


def changed(value: Any, random: Random) -> Any:
    """The value with something odd in one place."""
    if not value or not isinstance(value, list | dict) or random.random() < 0.15:
        return random.choice(ODD)
    place: Any = random.randrange(len(value)) if isinstance(value, list) else random.choice(list(value))
    copy: Any = value.copy()
    if random.random() < 0.15:
        copy.pop(place)
    else:
        copy[place] = changed(copy[place], random)
    return copy


def test_whatever_a_whole_record_says_its_reader_raises_nothing_else(work: Work) -> None:
    """A file made to mislead is told to make no sense; nothing else escapes, and nothing runs on for ever."""
    work.call("write", path="a.txt", text="1")
    work.call("write", path="a.txt", text="2")
    work.session[Price].append(Price("fig", 3))
    with work.session.transaction() as block:
        work.call("write", path="b.txt", text="3")
        block.rollback()
    work.session.close()
    source = Source(str(work.path))
    found = source.header()
    assert found is not None
    payloads = [payload for _, payload in source.records(found[1], source.size)]
    told = 0
    for seed in range(120):
        random = Random(seed)
        place = random.randrange(len(payloads))
        lines = payloads[place].split(b"\n")
        line = random.randrange(len(lines))
        lines[line] = orjson.dumps(changed(orjson.loads(lines[line]), random))
        made = [*payloads[:place], b"\n".join(lines), *payloads[place + 1 :]]
        framed = (struct.pack("<BII", 0xFF, len(one), zlib.crc32(one, len(one))) + one for one in made)
        path = work.path.with_name(f"odd-{seed}")
        path.write_bytes(header_line(found[0]) + b"".join(framed))
        try:
            recording = Recording(path)
            for row in recording.rows():
                json.dumps(recording.step(row.position).as_json())
            for name, paths, _ in recording.at(recording.position).files:
                assert all(recording.file(name, one) is not None for one in paths)
        except SessionStorageError:
            told += 1
    assert 20 < told < 120


# again


def test_the_same_tools_do_the_same_again(work: Work) -> None:
    """Each call in the state in which it was recorded, policies and their counters included."""
    work.call("publish")
    work.call("write", path="a.txt", text="1")
    work.call("write", path="a.txt", text="bad")
    work.call("publish")
    again = list(Rerun(work.recording(), agent(quota=3)).calls())

    assert [(one.row.outcome, one.verdict) for one in again] == [
        ("denied", "same"),
        ("ok", "same"),
        ("failed", "same"),
        ("ok", "same"),
    ]


def test_approvals_count_again_as_they_did(tmp_path: Path) -> None:
    """What somebody decided between two calls is in the recording, and holds for the call after it."""
    section = MarkdownSection(title="Work", template="Publish.", tools=[publish])
    prompt = Prompt(PromptTemplate(sections=[section], policies=[ApprovalPolicy()]))
    with Session.open(tmp_path / "c.session") as session:
        for _ in range(2):
            execute_tool(ToolCall("publish", {}), prompt=prompt, session=session)
            for waiting in pending_approvals(session):
                decide(session, waiting.approval_id, True)
    again = list(Rerun(Recording(tmp_path / "c.session"), prompt).calls())

    assert [(one.row.outcome, one.verdict) for one in again] == [("pending", "same"), ("ok", "same")]


def test_what_another_tool_does_differently_is_shown(work: Work) -> None:
    """Text, slices and files; the next call starts from what was recorded all the same."""

    @tool(name="write")
    def shout(path: str, text: str, *, context: ToolContext) -> str:
        """Write a file in capitals."""
        assert context.filesystem is not None
        context.filesystem.write(path, text.upper())
        return f"wrote {path}"

    work.call("write", path="a.txt", text="one\n")
    work.call("write", path="b.txt", text="TWO\n")
    first, second = Rerun(work.recording(), agent(shout, publish)).calls()

    assert (first.verdict, first.outcome) == ("differs", "ok")
    assert {one.what: [str(line) for line in one.lines] for one in first.differences} == {
        "slice Note": ["-{", '-  "text": "a.txt"', "-}"],
        "file a.txt": ["@ 1-1 → 1-1", "-one", "+ONE"],
    }
    assert [one.what for one in second.differences] == ["slice Note"]


def test_nothing_of_it_stays(work: Work) -> None:
    """Neither in the session nor in its files."""
    work.call("write", path="a.txt", text="1")
    before = work.path.read_bytes()
    list(Rerun(work.recording(), agent()).calls())

    assert (work.path.read_bytes(), work.files.read("a.txt")) == (before, "1")


def test_what_cannot_be_done_again_says_why(work: Work) -> None:
    """Effects outside, secrets, and what is not stored by itself."""
    work.call("mail", to="ann")
    work.call("sign_in", password="hunter2")
    with work.session.transaction() as block:
        work.call("write", path="a.txt", text="1")
        block.rollback()
    with work.session.transaction():
        work.call("write", path="a.txt", text="1")
    recording = work.recording()
    told = [one.left_out for one in Rerun(recording, agent()).calls()]

    assert told == [
        "the tool has effects outside; --external makes the call again all the same",
        "its arguments hold secrets, which are not stored",
        f"it was taken back with others at step {recording.position - 3}, and what it ran in is not stored",
        f"it is part of a larger transaction, kept at step {recording.position}",
    ]
    assert next(Rerun(recording, agent(), external=True).calls()).verdict == "same"


# comparing


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a\n", "a\n", []),
        ("a\n", "a\r\n", ["@ only line endings differ"]),
        ("", "a\nb", ["+a", "+b"]),
        ("x" * 200_001, "y", ["@ too long to compare: 200001 characters before, 1 after"]),
        ("a\nb\nc\nd\ne\nf", "a\nb\nc\nd\nX\nf", ["@ 2-6 → 2-6", " b", " c", " d", "-e", "+X", " f"]),
        ("same\n" * 9 + "x\n" * 1700, "same\n" * 9 + "y", ["@ 10-1709 → 10-10", *["-x"] * 1700, "+y"]),
    ],
)
def test_a_comparison_says_what_it_left_out(before: str, after: str, expected: list[str]) -> None:
    """Never silently nothing for texts that differ."""
    assert [str(line) for line in compare(before, after)] == expected


def test_everything_can_be_had_as_json(work: Work) -> None:
    """Whatever a step is."""
    work.call("write", path="a.txt", text="1")
    work.session[Seen].append(Seen("a"))
    work.session.reset()
    recording = work.recording()
    asked: list[Callable[[], Any]] = [
        recording.as_json,
        *(recording.step(row.position).as_json for row in recording.rows()),
        *(recording.row(row.position).as_json for row in recording.each()),
        recording.at(recording.position).as_json,
    ]

    assert all(json.dumps(ask()) for ask in asked)
