"""The pages of agent sessions: what is listed and what never is, steps with their differences, time travel, hostile files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from wardwright.config import parse_config
from wardwright.deployment import compile_deployment
from wardwright.errors import ConfigError
from wardwright.http import page_agents
from wardwright.http.service import Service
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SequentialDependencyPolicy, ToolContext, tool
from weakincentives.runtime import Session, ToolCall, execute_tool

from .desk import PLAN, Desk
from .visitor import Visitor


@dataclass(frozen=True)
class Note:
    text: str


@tool
def write(path: str, text: str, *, context: ToolContext) -> str:
    """Write a file."""
    assert context.filesystem is not None
    context.filesystem.write(path, text)
    context.session[Note].append(Note(path))
    if "bad" in text:
        raise ValueError("Bad text. Send another, then retry.")
    return f"wrote {path}"


@tool
def publish() -> str:
    """Publish."""
    return "published"


TEMPLATE = PromptTemplate(
    sections=[MarkdownSection(title="Write", template="Write.", tools=[write, publish])],
    policies=[SequentialDependencyPolicy({"publish": {"write"}})],
)


class Agent:
    """Works in a durable session with attached files."""

    def __init__(self, path: Path) -> None:
        self.session = Session.open(path)
        files = InMemoryFilesystem()
        self.session.attach("work", files)
        self.prompt = Prompt(TEMPLATE).bind(resources={Filesystem: files})

    def call(self, name: str, **arguments: str) -> None:
        execute_tool(ToolCall(name, arguments), prompt=self.prompt, session=self.session)


@dataclass
class Place:
    visitor: Visitor
    folder: Path
    desk: Desk

    def agent(self, name: str = "a.session") -> Agent:
        return Agent(self.folder / name)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "sessions"
    folder.mkdir()
    desk = Desk(tmp_path)
    desk.sessions_folder = str(folder)  # pyright: ignore[reportAttributeAccessIssue]
    yield Place(Visitor(desk, "viewer"), folder, desk)
    desk.close()


def worked(place: Place) -> None:
    """Step 1 attaches, 2 is denied, 3 fails, 4 and 5 are kept."""
    agent = place.agent()
    agent.call("publish")
    agent.call("write", path="a.txt", text="bad")
    agent.call("write", path="a.txt", text="one\ntwo\n")
    agent.call("write", path="a.txt", text="one\n2\n")
    agent.session.close()


# the list


def test_the_page_says_how_to_name_a_folder(tmp_path: Path) -> None:
    """When the gateway was started without one."""
    desk = Desk(tmp_path)
    seen = Visitor(desk, "viewer").get("/agents")
    desk.close()

    assert (seen.status, "wardwright serve --sessions sessions/" in seen.text) == (200, True)


def test_session_files_of_the_folder_are_listed_newest_first(place: Place) -> None:
    """And nothing else: no other files, no links, no folders, no hidden files."""
    for number, name in enumerate(("old.session", "new.session")):
        Session.open(place.folder / name).close()
        os.utime(place.folder / name, (number, number))
    (place.folder / "notes.txt").write_text("hello")
    (place.folder / "link.session").symlink_to(place.folder / "old.session")
    (place.folder / ".draft").write_bytes((place.folder / "old.session").read_bytes())
    (place.folder / "deeper").mkdir()
    seen = place.visitor.get("/agents")

    assert [name for name, address in seen.links if address.startswith("/agents/")] == ["new.session", "old.session"]


def test_a_long_folder_is_paged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page looks into as many files as it shows."""
    monkeypatch.setattr(page_agents, "LISTED", 2)
    for number in range(3):
        Session.open(place.folder / f"{number}.session").close()
        os.utime(place.folder / f"{number}.session", (number, number))
    seen = place.visitor.get("/agents")

    assert "0.session" not in seen.text
    assert "0.session" in place.visitor.get(seen.link("Older")).text


def test_a_folder_that_is_gone_is_told(place: Place) -> None:
    """Not an empty list."""
    place.folder.rmdir()

    assert (
        "The folder of agent sessions cannot be read: No such file or directory." in place.visitor.get("/agents").text
    )


# nothing but the folder


def test_no_other_path_is_ever_read(place: Place) -> None:
    """Names only: no way up, no links, no folders, nothing hidden."""
    Session.open(place.folder.parent / "secret").close()
    (place.folder / "link").symlink_to(place.folder.parent / "secret")
    (place.folder / ".draft").write_bytes((place.folder.parent / "secret").read_bytes())
    (place.folder / "deeper").mkdir()
    os.mkfifo(place.folder / "pipe")
    names = (
        "..",
        "%2e%2e",
        "..%2Fsecret",
        "%2Fetc%2Fpasswd",
        "..%5Csecret",
        "link",
        "deeper",
        "pipe",
        "missing",
        "a%00b",
    )
    for name in (*names, ".draft"):
        for part in ("", "/step", "/file?files=work&path=a.txt"):
            seen = place.visitor.get(f"/agents/{name}{part}")
            assert seen.status in (404, 405), name
            assert str(place.folder) not in seen.html


def test_files_that_are_no_sessions_are_refused_without_where_they_lie(place: Place) -> None:
    """The reason is told, the folder is not."""
    (place.folder / "x").write_text("hello\n")
    seen = place.visitor.get("/agents/x")

    assert (seen.status, "x is not a session file." in seen.text, str(place.folder) in seen.html) == (409, True, False)


def test_the_folder_is_what_the_process_was_started_with(tmp_path: Path) -> None:
    """By its config, or by the command line, which wins; what is sent over the network names none."""
    config = parse_config(f"{PLAN}workbench: {{sessions: kept}}\n", "plan.yaml")
    for given, expected in (("", "kept"), ("other", "other")):
        service = Service(config, str(tmp_path / "gateway.db"), "127.0.0.1", sessions=given)
        service.compile(f"{PLAN}workbench: {{sessions: /etc}}\n".encode())
        service.store.close()
        assert service.sessions_folder == expected


def test_a_key_of_the_workbench_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """With the one that was meant."""
    with pytest.raises(ConfigError, match=r"unknown key 'session' \(did you mean 'sessions'\?\)"):
        compile_deployment(parse_config(f"{PLAN}workbench: {{session: kept}}\n", "plan.yaml"))


# steps


def test_a_session_shows_its_steps_newest_first(place: Place) -> None:
    """Kept, rolled back and denied calls, and what they changed."""
    worked(place)
    seen = place.visitor.get("/agents/a.session")

    assert [address.rpartition("=")[2] for name, address in seen.links if name in ("write", "publish", "attach")] == [
        "5",
        "4",
        "3",
        "2",
        "1",
    ]
    assert "failed, rolled back" in seen.text
    assert "denied by sequential_dependency" in seen.text


def test_calls_are_picked_by_tool_and_outcome(place: Place) -> None:
    """By links, and by a form."""
    worked(place)
    seen = place.visitor.get("/agents/a.session")
    failed = place.visitor.get(seen.link("1 failed"))
    picked = place.visitor.send(seen.form("/agents/a.session"), tool="publish")

    assert "Bad text." in failed.text
    assert "wrote a.txt" not in failed.text
    assert "Bad text." not in picked.text
    assert place.visitor.get("/agents/a.session?outcome=odd").status == 400


def test_long_sessions_are_paged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By position, so that a page never changes while others are added."""
    monkeypatch.setattr(page_agents, "STEPS", 2)
    worked(place)
    first = place.visitor.get("/agents/a.session")
    second = place.visitor.get(first.link("Older"))

    assert second.address == "/agents/a.session?before=4"
    assert place.visitor.get(second.link("Newest")).text == first.text


def test_a_step_shows_parameters_text_and_differences(place: Place) -> None:
    """Line by line, with signs for those who see no colours."""
    worked(place)
    seen = place.visitor.get("/agents/a.session/step?at=5")

    assert '"path": "a.txt"' in seen.text
    assert '<span class="cut">-two\n</span><span class="put">+2\n</span>' in seen.html
    assert "Policies: allowed." in seen.text
    assert "wink fork a.session a-5.session --at 5" in seen.text


def test_a_rollback_is_shown_as_such(place: Place) -> None:
    """A failed call changed nothing, and it is said that what it wrote is not known."""
    worked(place)
    seen = place.visitor.get("/agents/a.session/step?at=3")

    assert "Nothing: it was rolled back." in seen.text
    assert "Rolled back: what it had written before it ended was never stored." in seen.text


def test_time_travel_works_by_links(place: Place) -> None:
    """First, previous, next and last; each with the session as it was then."""
    worked(place)
    seen = place.visitor.get("/agents/a.session/step")
    before = place.visitor.get(seen.link("Previous"))
    first = place.visitor.get(before.link("First"))

    assert (seen.link("Last"), before.link("Next")) == ("/agents/a.session/step?at=5",) * 2
    assert "Note : 2 items" in seen.text or "Note: 2 items" in seen.text
    assert "Note: 1 item" in before.text
    assert "Nothing yet." in first.text
    assert "Previous" not in [name for name, _ in first.links]


def test_a_file_is_shown_as_it_was(place: Place) -> None:
    """From the step it is asked for at."""
    worked(place)
    seen = place.visitor.get(place.visitor.get("/agents/a.session/step?at=4").link("a.txt"))

    assert "one two" in seen.text
    assert place.visitor.get("/agents/a.session/file?files=work&path=nope").status == 404


def test_the_slider_asks_for_a_piece_of_the_page(place: Place) -> None:
    """The same step, without what stands around it."""
    worked(place)
    part = place.visitor.get("/agents/a.session/step?at=4", x_wardwright_fragment="yes")

    assert "<html" not in part.html
    assert 'data-position="4"' in part.html
    assert part.html.strip() in place.visitor.get("/agents/a.session/step?at=4").html


def test_an_odd_position_leads_to_one_that_is_there(place: Place) -> None:
    """A slider that is a little off is no error."""
    worked(place)

    for at in ("0", "999", "-1", "x", "9" * 40):
        assert place.visitor.get(f"/agents/a.session/step?at={at}").status == 200


def test_a_session_that_is_being_written_is_shown_as_it_is_now(place: Place) -> None:
    """Also while the agent has it open, and again after more has happened."""
    agent = place.agent()
    assert "attach" in place.visitor.get("/agents/a.session").text

    agent.call("write", path="a.txt", text="1")
    seen = place.visitor.get("/agents/a.session")
    agent.session.close()

    assert "wrote a.txt" in seen.text


def test_a_session_without_steps_can_be_looked_at(place: Place) -> None:
    """It says so."""
    Session.open(place.folder / "empty").close()

    assert "Nothing has happened in this session yet." in place.visitor.get("/agents/empty").text
    assert place.visitor.get("/agents/empty/step").status == 404


# hostile contents


def test_what_a_session_holds_is_text_and_nothing_else(place: Place) -> None:
    """Names, parameters, files and texts are escaped wherever they stand."""
    evil = "<script>alert(1)</script>"
    agent = place.agent(f"{evil.replace('/', '_')}.session")
    agent.call("write", path=f"{evil.replace('/', '_')}.txt", text=evil)
    agent.call(evil)
    agent.session.close()
    visitor = place.visitor
    address = visitor.get("/agents").link(f"{evil.replace('/', '_')}.session")
    pages = [visitor.get("/agents"), visitor.get(address), *(visitor.get(f"{address}/step?at={at}") for at in (2, 3))]
    pages.append(visitor.get(pages[2].link(f"{evil.replace('/', '_')}.txt")))

    assert all(page.status == 200 and "<script>alert" not in page.html for page in pages)
    assert all("&lt;script&gt;alert" in page.html for page in pages)


def test_long_contents_are_cut_and_it_is_said(place: Place) -> None:
    """A page stays a page."""
    agent = place.agent()
    agent.call("write", path="a.txt", text="x" * 300_000)
    agent.session.close()
    seen = place.visitor.get("/agents/a.session/step")

    assert len(seen.html) < 200_000
    assert "more characters; wink inspect shows all of them" in seen.text


def test_a_file_of_a_thousand_surprises_is_told_not_served_as_a_failure(place: Place) -> None:
    """Bytes changed at random give a page with a reason, never an error of the gateway."""
    worked(place)
    path = place.folder / "a.session"
    whole = path.read_bytes()
    for at in range(60, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
        for part in ("", "/step"):
            assert place.visitor.get(f"/agents/a.session{part}").status in (200, 404, 409)


def test_files_that_are_too_big_are_left_to_the_command_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command to use."""
    monkeypatch.setattr(page_agents, "LARGEST", 100)
    worked(place)
    seen = place.visitor.get("/agents/a.session")

    assert seen.status == 409
    assert "more than a page opens. Look at it with: wink inspect a.session" in seen.text
