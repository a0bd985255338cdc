"""Claims about the file tools: what each does, what it says, and what it refuses (S34, S48, S55, S57)."""

from __future__ import annotations

from typing import Any

import pytest

from weakincentives.adapters import ScriptedAdapter
from weakincentives.contrib.tools import HostMount, VfsConfig, VfsToolsSection
from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.runtime import Session, ToolCall, ToolInvoked, ToolOutcome, execute_tool, execute_tools
from weakincentives.testing import run_tool

READING = ["read_file", "list_directory", "glob_files", "grep_files"]
WRITING = ["write_file", "edit_file", "delete_file", "copy_file", "move_file"]
UNREAD = "Cannot write to {} without reading it first"


class Desk:
    """A section over some files, in a prompt, with a session."""

    def __init__(self, files: dict[str, str | bytes] | None = None, *, readonly: Any = (), **config: Any) -> None:
        self.fs = InMemoryFilesystem(files, readonly=readonly)
        self.section = VfsToolsSection(config=VfsConfig(**config), filesystem=self.fs)
        self.session = Session()
        self.prompt = Prompt(PromptTemplate(sections=[self.section]))

    def call(self, name: str, **args: object) -> ToolOutcome:
        return execute_tool(ToolCall(name, args), prompt=self.prompt, session=self.session)

    def __call__(self, name: str, **args: object) -> str:
        return self.call(name, **args).text


def free(files: dict[str, str | bytes] | None = None, **more: Any) -> Desk:
    """A desk whose files need not be read before they are changed."""
    return Desk(files, read_before_write=False, **more)


class TestSection:
    def test_it_brings_the_nine_tools(self) -> None:
        """The names are those of S55."""
        assert sorted(each.name for each in VfsToolsSection().tools) == sorted([*READING, *WRITING])

    def test_reading_tools_are_declared_so(self) -> None:
        """Neighbouring reads of one turn run side by side, writes alone."""
        effects = {each.name: each.effects for each in VfsToolsSection().tools}

        assert effects == {**dict.fromkeys(READING, "none"), **dict.fromkeys(WRITING, "local")}

    def test_every_parameter_is_described(self) -> None:
        """A schema is a prompt."""
        for each in VfsToolsSection().tools:
            assert all("description" in about for about in each.schema()["properties"].values()), each.name

    def test_it_brings_an_empty_filesystem(self) -> None:
        """Without configuration there is nothing, and what a tool writes is there for other tools."""
        section, session = VfsToolsSection(session=Session()), Session()
        prompt = Prompt(PromptTemplate()).bind(sections=[section])
        execute_tool(ToolCall("write_file", {"path": "a.txt", "content": "1"}), prompt=prompt, session=session)

        with prompt.resources:
            assert prompt.resources.get(Filesystem) is section.filesystem
        assert section.filesystem.read("a.txt") == "1"

    def test_a_filesystem_bound_to_the_prompt_is_used_instead(self) -> None:
        """The tools work on whatever the call is given."""
        mine, section = InMemoryFilesystem({"mine.txt": "x"}), VfsToolsSection()
        prompt = Prompt(PromptTemplate(sections=[section])).bind(resources={Filesystem: mine})
        outcome = execute_tool(ToolCall("list_directory"), prompt=prompt, session=Session())

        assert outcome.text == "/: 1 entry.\n\nmine.txt (1 byte)"

    def test_a_readonly_section_has_only_reading_tools(self) -> None:
        """What the model cannot do it is not offered, over any filesystem."""
        desk = Desk({"a": "x"}, readonly=())
        section = VfsToolsSection(config=VfsConfig(readonly=True), filesystem=desk.fs)

        assert [each.name for each in section.tools] == READING
        assert section.policies == ()

    def test_guidance(self) -> None:
        """What the model is told."""
        assert VfsToolsSection(config=VfsConfig(root="/workspace")).template == (
            "Use these tools to read, find and change files.\n"
            "All files lie below /workspace; a path without a leading slash is taken from there.\n"
            "\n"
            "- Look around with `list_directory` and `glob_files`; search in files with `grep_files`.\n"
            "- Read long files in parts: `read_file` takes `offset` and `limit`, and says where it was cut.\n"
            "- Read a file before you change, replace or delete it; it is refused otherwise, also when the file has "
            "changed since you read it.\n"
            "- Change a part of a file with `edit_file`; `write_file` is for new files and complete rewrites.\n"
            "- A call that fails has changed nothing."
        )

    def test_guidance_for_reading_only(self) -> None:
        """Nothing is said of tools that are not there."""
        assert VfsToolsSection(config=VfsConfig(readonly=True)).template == (
            "Use these tools to read and find files.\n"
            "\n"
            "- Look around with `list_directory` and `glob_files`; search in files with `grep_files`.\n"
            "- Read long files in parts: `read_file` takes `offset` and `limit`, and says where it was cut."
        )

    def test_tool_descriptions(self) -> None:
        """What the model is told of each tool."""
        assert {each.name: each.description for each in VfsToolsSection().tools} == {
            "read_file": "Read a text file, or some lines of it. Lines are shown under their numbers.",
            "list_directory": "List the files and directories in a directory.",
            "glob_files": "Find files by name.",
            "grep_files": "Find lines in text files by a regular expression.",
            "write_file": "Create a file, or with overwrite=true replace all of it. To change a part, use edit_file.",
            "edit_file": "Replace text in a file. The old text must occur exactly once, unless replace_all=true.",
            "delete_file": "Delete a file, an empty directory, or with recursive=true a directory and all inside.",
            "copy_file": "Copy a file, or a directory with all inside, to a new path.",
            "move_file": "Move or rename a file, or a directory with all inside.",
        }

    def test_mounts_and_a_filesystem_exclude_each_other(self) -> None:
        """A mount is copied into files of the section's own."""
        config = VfsConfig(mounts=[HostMount(".")])
        with pytest.raises(PromptValidationError) as refused:
            VfsToolsSection(config=config, filesystem=InMemoryFilesystem())

        assert str(refused.value) == (
            "VfsToolsSection: mounts are copied into files of its own, so they cannot be combined with filesystem=. "
            "Leave one of them out."
        )

    def test_without_a_filesystem_the_tools_say_so(self) -> None:
        """A tool taken out of its section may find nothing bound."""
        read = VfsToolsSection().tools[0]
        prompt = Prompt(PromptTemplate()).bind(extra_tools=[read])
        outcome = execute_tool(ToolCall("read_file", {"path": "a"}), prompt=prompt, session=Session())

        assert outcome.text == "Cannot use files: no filesystem is bound to the prompt."

    def test_the_suite_of_the_seeds(self) -> None:
        """The example of 001: a root, bound as a further section, tools and files and policy in place."""
        session = Session()
        vfs = VfsToolsSection(session=session, config=VfsConfig(root="/tmp/workspace"))
        prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="Task", template="Work.")])).bind(sections=[vfs])

        def call(name: str, **args: object) -> str:
            return execute_tool(ToolCall(name, args), prompt=prompt, session=session).text

        assert call("write_file", path="/tmp/workspace/new_file.txt", content="content") == (
            "Created /tmp/workspace/new_file.txt (7 bytes)."
        )
        vfs.filesystem.write("config.json", "{}")
        assert call("write_file", path="config.json", content="new content") == UNREAD.format("config.json")
        call("read_file", path="config.json")
        assert call("write_file", path="config.json", content="new content", overwrite=True) == (
            "Replaced /tmp/workspace/config.json (11 bytes)."
        )

    def test_a_model_can_work_with_it(self) -> None:
        """One evaluation: find, read, edit, done."""
        desk = Desk({"src/app.py": "port = 80\n"})
        turns: list[Any] = [
            ToolCall("grep_files", {"pattern": "port"}),
            ToolCall("read_file", {"path": "src/app.py"}),
            ToolCall("edit_file", {"path": "src/app.py", "old_string": "80", "new_string": "8080"}),
            "done",
        ]
        with ScriptedAdapter(turns) as adapter:
            adapter.evaluate(desk.prompt, session=desk.session)

        assert desk.fs.read("src/app.py") == "port = 8080\n"


class TestRoot:
    @pytest.mark.parametrize(
        "path", ["/workspace/a.txt", "a.txt", "./a.txt", "workspace/a.txt", "/workspace/b/../a.txt"]
    )
    def test_all_spellings_are_one_file(self, path: str) -> None:
        """Absolute below the root and relative to it mean the same, for the policy too."""
        desk = Desk({"a.txt": "x"}, root="/workspace")
        desk("read_file", path="/workspace/a.txt")

        assert desk("write_file", path=path, content="yy", overwrite=True) == "Replaced /workspace/a.txt (2 bytes)."
        assert desk.fs.read("a.txt") == "yy"

    @pytest.mark.parametrize("path", ["/etc/passwd", "/", "/workspace/../etc", "/workspaces/a.txt"])
    @pytest.mark.parametrize("name", ["read_file", "delete_file", "list_directory"])
    def test_other_absolute_paths_are_refused(self, name: str, path: str) -> None:
        """They are not bent to something inside."""
        assert Desk({"a.txt": "x", "etc/passwd": "x"}, root="/workspace/")(name, path=path) == (
            f"Path leads outside: {path}\n"
            "Files here lie below /workspace; retry with a path that starts with /workspace/ or with no slash."
        )

    @pytest.mark.parametrize("path", ["..", "../a.txt", "a/../../b", "/../workspace/a.txt", "../workspace/a.txt"])
    def test_escapes_are_refused(self, path: str) -> None:
        """Climbing out is refused, also when it would come back."""
        desk = Desk({"a.txt": "x"}, root="/workspace")

        assert desk("read_file", path=path) == (
            f"Path leads outside: {path}\n"
            "Only paths below the top directory exist here; use one without the extra '..'."
        )
        assert not desk.call("write_file", path=path, content="").success

    def test_results_carry_the_root(self) -> None:
        """What the model sees it can send back."""
        desk = Desk({"src/a.py": "x = 1\n"}, root="/work/space")

        assert desk("glob_files", pattern="**/*.py") == "1 path:\n\n/work/space/src/a.py"
        assert desk("glob_files", pattern="/work/space/src/*") == "1 path:\n\n/work/space/src/a.py"
        assert desk("grep_files", pattern="x", glob="/work/space/src/*.py") == (
            "1 match in 1 file:\n\n/work/space/src/a.py:1: x = 1"
        )

    def test_a_glob_from_elsewhere_is_refused(self) -> None:
        """It could find nothing, and silence would mislead."""
        assert Desk(root="/workspace")("glob_files", pattern="/**/*.py") == (
            "Invalid glob '/**/*.py': files here lie below /workspace\n"
            "Start it with /workspace/ or with no slash, then retry."
        )

    def test_a_root_that_is_no_path_is_refused(self) -> None:
        """At construction, by name."""
        with pytest.raises(PromptValidationError, match=r"^VfsConfig: root cannot be '\.\./up': Path leads outside"):
            VfsToolsSection(config=VfsConfig(root="../up"))


class TestReadFile:
    def test_lines_are_numbered(self) -> None:
        """And the header says how many there are."""
        assert Desk({"a.txt": "one\n\ttwo\n"})("read_file", path="a.txt") == (
            "a.txt: lines 1-2 of 2.\n\n     1\tone\n     2\t\ttwo"
        )

    def test_offset_and_limit(self) -> None:
        """A part is shown under its own numbers, and the header says how to go on."""
        desk = Desk({"a.txt": "".join(f"line {n}\n" for n in range(1, 11))})

        assert desk("read_file", path="a.txt", offset=4, limit=2) == (
            "a.txt: lines 4-5 of 10. Cut after line 5; continue with offset=6.\n\n     4\tline 4\n     5\tline 5"
        )
        assert desk("read_file", path="a.txt", offset=10) == "a.txt: lines 10-10 of 10.\n\n    10\tline 10"

    def test_far_into_a_long_file(self) -> None:
        """Wherever the line lies among the blocks that are skipped."""
        desk = Desk({"a": "".join(f"{n}\n" for n in range(1, 60_001)), "b": "\n" * 200_000 + "end"})

        assert [desk.call("read_file", path="a", offset=at, limit=1).value.content for at in (1, 13_000, 60_000)] == [
            "1\n",
            "13000\n",
            "60000\n",
        ]
        assert [desk.call("read_file", path="b", offset=at, limit=1).value.content for at in (65_537, 200_001)] == [
            "\n",
            "end",
        ]

    def test_offset_zero_is_the_beginning(self) -> None:
        """Whoever counts from zero loses no turn."""
        assert Desk({"a": "x\n"})("read_file", path="a", offset=0) == "a: lines 1-1 of 1.\n\n     1\tx"

    def test_offset_beyond_the_end(self) -> None:
        """It says what there is."""
        assert Desk({"a.txt": "x\ny\n"})("read_file", path="a.txt", offset=3) == (
            "Cannot read a.txt from line 3: it has 2 lines\nRetry with an offset from 1 to 2."
        )

    def test_an_empty_file(self) -> None:
        """It is no error, whatever the offset."""
        desk = Desk({"a.txt": ""})

        assert desk("read_file", path="a.txt") == "a.txt is empty."
        assert desk("read_file", path="a.txt", offset=5) == "a.txt is empty."

    def test_a_long_line_is_cut(self) -> None:
        """In place, so that the lines around it stay readable."""
        text = Desk({"a.txt": "é" * 3000 + "\nnext\n"})("read_file", path="a.txt")

        assert text == ("a.txt: lines 1-2 of 2.\n\n     1\t" + "é" * 2000 + "… [cut: 2000 more bytes]\n     2\tnext")

    def test_much_text_is_cut_between_lines(self) -> None:
        """However many lines were asked for."""
        outcome = Desk({"a.txt": ("x" * 99 + "\n") * 1000}).call("read_file", path="a.txt", limit=100_000)

        assert outcome.message == "a.txt: lines 1-600 of 1000. Cut after line 600; continue with offset=601."

    def test_two_thousand_lines_by_default(self) -> None:
        """A long file is read in parts."""
        outcome = Desk({"a.txt": "x\n" * 2001}).call("read_file", path="a.txt")

        assert outcome.message == "a.txt: lines 1-2000 of 2001. Cut after line 2000; continue with offset=2001."

    @pytest.mark.parametrize(
        ("content", "note"),
        [
            (b"a\r\nb\r\n", "Lines end in CRLF."),
            (b"a\r\nb\n", "Some lines end in CRLF, others in LF."),
            (b"\xef\xbb\xbfa\nb\n", "The file starts with a byte order mark."),
            (b"a\nb", "The last line has no line ending."),
        ],
    )
    def test_what_cannot_be_seen_is_said(self, content: bytes, note: str) -> None:
        """The lines look the same in each case; the value has them as they are."""
        outcome = Desk({"a.txt": content}).call("read_file", path="a.txt")

        assert outcome.text == f"a.txt: lines 1-2 of 2. {note}\n\n     1\ta\n     2\tb"
        assert outcome.value.content.encode() == content

    @pytest.mark.parametrize(
        "content", [b"\x89PNG\r\n\x1a\n", b"a\0b", b"\xff\xfea\0", b"\xff\xd8\xff\xe0", bytes(range(128, 256))]
    )
    def test_binary_files_are_reported(self, content: bytes) -> None:
        """Nothing of them is shown, and they are known from then on, so that they can be replaced."""
        desk = Desk({"a.bin": content})

        assert desk("read_file", path="a.bin") == (
            f"a.bin is a binary file ({len(content)} bytes); its content cannot be shown."
        )
        assert desk.call("delete_file", path="a.bin").success

    def test_text_in_an_old_encoding_is_shown_as_far_as_possible(self) -> None:
        """A stray byte does not hide a whole file."""
        assert Desk({"a.txt": b"caf\xe9 au lait\n"})("read_file", path="a.txt") == (
            "a.txt: lines 1-1 of 1. It is not all UTF-8: what cannot be shown stands as \ufffd (1 times). edit_file keeps "
            "those bytes, write_file would lose them.\n\n     1\tcaf\ufffd au lait"
        )

    def test_only_line_feeds_end_lines(self) -> None:
        """Other separators of Unicode do not shift the numbers of what follows."""
        assert Desk({"a": "a\u2028b\x0cc\rd\ne\n"}).call("read_file", path="a").value.total_lines == 2

    def test_a_directory_is_no_file(self) -> None:
        """The filesystem's words reach the model."""
        assert Desk({"src/a": ""})("read_file", path="src") == (
            "Not a file: src is a directory\nName a file inside it, then retry."
        )

    def test_a_missing_file(self) -> None:
        """The filesystem's words reach the model."""
        assert Desk()("read_file", path="a.txt") == (
            "File not found: a.txt\nList the directory to see what is there, then retry with an existing path."
        )


class TestWriteFile:
    def test_a_new_file(self) -> None:
        """Directories above it are made, the content is stored as sent."""
        desk = Desk()

        assert desk("write_file", path="a/b.txt", content="x\r\né") == "Created a/b.txt (5 bytes)."
        assert desk.fs.read_bytes("a/b.txt") == "x\r\né".encode()

    def test_an_existing_file_needs_overwrite(self) -> None:
        """S55, word for word; nothing changed."""
        desk = Desk({"a.txt": "x"})
        desk("read_file", path="a.txt")

        assert desk("write_file", path="/a.txt", content="y") == (
            "File already exists: /a.txt\nSet overwrite=true to replace it, then retry"
        )
        assert desk.fs.read("a.txt") == "x"
        assert desk("write_file", path="/a.txt", content="y", overwrite=True) == "Replaced a.txt (1 byte)."

    def test_the_policy_is_checked_first(self) -> None:
        """S55: unread comes before existing."""
        outcome = Desk({"a.txt": "x"}).call("write_file", path="a.txt", content="y")

        assert (outcome.outcome, outcome.text) == ("denied", UNREAD.format("a.txt"))

    def test_text_without_bytes_is_refused(self) -> None:
        """Half a pair has no UTF-8 form."""
        assert Desk().call("write_file", path="a.txt", content="\ud800").outcome in ("failed", "invalid_params")

    def test_a_directory_cannot_be_written(self) -> None:
        """Also with overwrite."""
        assert free({"src/a": ""})("write_file", path="src", content="", overwrite=True) == (
            "Not a file: src is a directory\nName a file inside it, then retry."
        )

    def test_a_protected_file_cannot_be_written(self) -> None:
        """The filesystem's own protection holds."""
        assert (
            free(
                {"a.txt": "x"},
            )
            is not None
        )
        fs = InMemoryFilesystem({"a.txt": "x"}, readonly="a.txt")
        write = next(each for each in VfsToolsSection().tools if each.name == "write_file")

        assert run_tool(write, {"path": "a.txt", "content": "", "overwrite": True}, fs=fs).text == (
            "Cannot change a.txt: it is read-only\nCopy it to another path and work on the copy."
        )


class TestReadBeforeWrite:
    @pytest.mark.parametrize(
        ("name", "args"),
        [
            ("write_file", {"path": "a.txt", "content": ""}),
            ("edit_file", {"path": "a.txt", "old_string": "x", "new_string": "y"}),
            ("delete_file", {"path": "a.txt"}),
            ("copy_file", {"src": "b.txt", "dst": "a.txt", "overwrite": True}),
            ("move_file", {"src": "b.txt", "dst": "a.txt", "overwrite": True}),
        ],
    )
    def test_what_would_be_lost_must_have_been_read(self, name: str, args: dict[str, object]) -> None:
        """Every tool that changes an existing file is governed."""
        desk = Desk({"a.txt": "x", "b.txt": "z"})

        assert desk(name, **args) == UNREAD.format("a.txt")
        assert desk.fs.read("a.txt") == "x"

    def test_a_part_that_was_read_counts(self) -> None:
        """S34."""
        desk = Desk({"a.txt": "x\ny\n"})
        desk("read_file", path="a.txt", offset=2, limit=1)

        assert desk.call("edit_file", path="a.txt", old_string="x", new_string="z").success

    def test_a_file_that_changed_must_be_read_again(self) -> None:
        """What was read is not what is there."""
        desk = Desk({"a.txt": "x"})
        desk("read_file", path="a.txt")
        desk.fs.write("a.txt", "by somebody else")

        assert desk("edit_file", path="a.txt", old_string="x", new_string="y") == (
            UNREAD.format("a.txt") + "\nIt has changed since you last read it; read it again, then retry."
        )

    def test_a_move_is_no_way_around(self) -> None:
        """An unread file stays unread under its new name."""
        desk = Desk({"a.txt": "x"})
        desk("move_file", src="a.txt", dst="b.txt")

        assert desk("write_file", path="b.txt", content="", overwrite=True) == UNREAD.format("b.txt")

    def test_a_directory_is_deleted_only_when_all_in_it_is_known(self) -> None:
        """The first file that was not read is named."""
        desk = Desk({"d/a": "x", "d/b": "y"})
        desk("read_file", path="d/a")

        assert desk("delete_file", path="d", recursive=True) == UNREAD.format("d/b")

    @pytest.mark.parametrize(
        ("name", "args"),
        [
            ("write_file", {"path": "d", "content": ""}),
            ("edit_file", {"path": "d", "old_string": "x", "new_string": "y"}),
            ("copy_file", {"src": "b", "dst": "d"}),
            ("move_file", {"src": "b", "dst": "d", "overwrite": True}),
        ],
    )
    def test_a_directory_in_place_of_a_file_is_called_that(self, name: str, args: dict[str, object]) -> None:
        """Nothing in it would be changed, so nobody is sent to read it."""
        assert Desk({"d/a": "x", "b": "y"})(name, **args) == (
            "Not a file: d is a directory\nName a file inside it, then retry."
        )

    def test_it_can_be_switched_off(self) -> None:
        """The author decides."""
        assert free({"a.txt": "x"}).call("delete_file", path="a.txt").success


class TestDelete:
    def test_a_file(self) -> None:
        """It is gone."""
        desk = free({"a.txt": "x"})

        assert desk("delete_file", path="a.txt") == "Deleted a.txt."
        assert not desk.fs.exists("a.txt")

    def test_a_directory_needs_recursive(self) -> None:
        """The filesystem's words say what to set."""
        desk = free({"d/a": "x"})

        assert desk("delete_file", path="d") == (
            "Directory not empty: d\nSet recursive=true to delete it with everything inside, then retry."
        )
        assert desk("delete_file", path="d", recursive=True) == "Deleted directory d."

    def test_the_top_directory_stays(self) -> None:
        """It cannot be deleted."""
        assert free({"a": ""})("delete_file", path="/", recursive=True) == (
            "Cannot delete the top directory\nName something inside it, then retry."
        )

    def test_a_directory_with_protected_files_stays_whole(self) -> None:
        """Nothing of it is deleted when not all of it can be."""
        desk = Desk({"d/a": "x", "d/keep": "y"}, read_before_write=False)
        desk.fs = InMemoryFilesystem({"d/a": "x", "d/keep": "y"}, readonly="keep")
        prompt = desk.prompt.bind(resources={Filesystem: desk.fs})
        call = ToolCall("delete_file", {"path": "d", "recursive": True})

        assert execute_tool(call, prompt=prompt, session=Session()).text == (
            "Cannot remove d: it holds d/keep, which is read-only\nRemove the other files one by one."
        )
        assert desk.fs.read("d/a") == "x"


class TestCopyAndMove:
    def test_copy(self) -> None:
        """Bytes are copied, the source stays."""
        desk = Desk({"a.bin": b"\xff\0"})

        assert desk("copy_file", src="a.bin", dst="d/b.bin") == "Copied a.bin to d/b.bin."
        assert desk.fs.read_bytes("d/b.bin") == desk.fs.read_bytes("a.bin") == b"\xff\0"

    def test_move(self) -> None:
        """The source is gone; directories move with all inside."""
        desk = Desk({"d/a": "x", "d/e/b": "y"})

        assert desk("move_file", src="d", dst="f") == "Moved d to f."
        assert desk.fs.glob("**/*") == ["f/a", "f/e/b"]

    @pytest.mark.parametrize("verb", ["copy", "move"])
    def test_an_existing_target_needs_overwrite(self, verb: str) -> None:
        """The same words as for writing, with the path as given."""
        desk = free({"a": "x", "b": "y"})

        assert desk(f"{verb}_file", src="a", dst="/b") == (
            "File already exists: /b\nSet overwrite=true to replace it, then retry"
        )
        assert desk.call(f"{verb}_file", src="a", dst="/b", overwrite=True).success
        assert desk.fs.read("b") == "x"

    @pytest.mark.parametrize("verb", ["copy", "move"])
    def test_to_itself(self, verb: str) -> None:
        """Under any spelling, and with overwrite, it is a mistake."""
        assert free({"a": "x"})(f"{verb}_file", src="a", dst="./a", overwrite=True) == (
            f"Cannot {verb} a to itself\nGive another path as dst, then retry."
        )

    def test_a_directory_as_target(self) -> None:
        """The target is a path, not a place to put things in."""
        assert free({"a": "x", "d/b": "y"})("copy_file", src="a", dst="d", overwrite=True) == (
            "Not a file: d is a directory\nName a file inside it, then retry."
        )

    def test_into_itself(self) -> None:
        """A directory cannot go inside itself."""
        assert free({"d/b": "y"})("move_file", src="d", dst="d/e") == (
            "Cannot move d to d/e: the target lies inside the source\nChoose a target outside, then retry."
        )

    def test_a_missing_source(self) -> None:
        """It is named."""
        assert free({"b": ""})("move_file", src="a", dst="b").startswith("File not found: a\n")


class TestListDirectory:
    def test_entries(self) -> None:
        """Directories end in a slash, files have sizes, protection is shown."""
        desk = Desk({"b.txt": "xy", "a/c": ""})
        fs = InMemoryFilesystem({"b.txt": "xy", "a/c": "", "d/e": "", "f.lock": ""}, readonly=["*.lock", "d"])
        prompt = desk.prompt.bind(resources={Filesystem: fs})

        assert execute_tool(ToolCall("list_directory"), prompt=prompt, session=Session()).text == (
            "/: 4 entries.\n\na/\nb.txt (2 bytes)\nd/ (read-only)\nf.lock (0 bytes, read-only)"
        )

    def test_an_empty_directory(self) -> None:
        """It says so."""
        assert Desk()("list_directory", path="/") == "/ is empty."

    def test_a_file_is_no_directory(self) -> None:
        """The filesystem's words reach the model."""
        assert Desk({"a": ""})("list_directory", path="a") == (
            "Not a directory: a is a file\nUse a path that does not lead through it, then retry."
        )

    def test_many_entries_are_cut(self) -> None:
        """It says how many there are and how to see others."""
        outcome = Desk({f"f{n:04}": "" for n in range(1001)}).call("list_directory")

        assert outcome.message == ("/: the first 1000 of 1001 entries. Use glob_files with a pattern to see others.")
        assert len(outcome.value.entries) == 1000


class TestGlobFiles:
    def test_paths_are_sorted(self) -> None:
        """From the directory asked for."""
        desk = Desk({"b.py": "", "a.py": "", "src/c.py": "", "src/d.md": ""})

        assert desk("glob_files", pattern="**/*.py") == "3 paths:\n\na.py\nb.py\nsrc/c.py"
        assert desk("glob_files", pattern="*", path="src") == "2 paths:\n\nsrc/c.py\nsrc/d.md"
        assert desk("glob_files", pattern="*/") == "1 path:\n\nsrc"

    def test_nothing_found(self) -> None:
        """It is no error; the usual mistake is named."""
        desk = Desk({"src/a.py": ""})

        assert desk("glob_files", pattern="*.py") == (
            "No files match '*.py' in /. Use '**/*.py' to search the directories below too."
        )
        assert desk("glob_files", pattern="src/*.md") == "No files match 'src/*.md' in /."

    def test_many_paths_are_cut(self) -> None:
        """It says how many there are."""
        desk = Desk({f"f{n}": "" for n in range(5)})

        assert desk("glob_files", pattern="*", limit=2) == (
            "The first 2 of 5 paths. Narrow the pattern or the path to see others.\n\nf0\nf1"
        )

    def test_long_paths_are_cut_too(self) -> None:
        """A limit on paths alone would not hold the text short."""
        outcome = Desk({f"{'x' * 200}/{'y' * 200}{n}": "" for n in range(400)}).call(
            "glob_files", pattern="**/*", limit=1000
        )

        assert len(outcome.text) < 61_000
        assert outcome.message.endswith("of 400 paths. Narrow the pattern or the path to see others.")

    def test_climbing_is_refused(self) -> None:
        """The words are the filesystem's."""
        assert Desk()("glob_files", pattern="../*") == (
            "Invalid glob '../*': '..' is not possible in a glob\n"
            "Examples: '*.py', 'src/**/*.md', '*/' for directories. Correct it, then retry."
        )


class TestGrepFiles:
    def test_matches(self) -> None:
        """Path, number and line, without line endings."""
        desk = Desk({"a.py": "import os\r\nx = 1\r\n", "b.py": "import sys\n", "c.bin": b"import\0"})

        assert desk("grep_files", pattern="^import") == (
            "2 matches in 2 files:\n\na.py:1: import os\nb.py:1: import sys"
        )

    def test_only_some_files(self) -> None:
        """By glob, by directory, by file."""
        desk = Desk({"a.py": "x\n", "a.md": "x\n", "src/b.py": "x\n"})

        assert desk("grep_files", pattern="x", glob="*.md") == "1 match in 1 file:\n\na.md:1: x"
        assert desk("grep_files", pattern="x", path="src") == "1 match in 1 file:\n\nsrc/b.py:1: x"
        assert desk("grep_files", pattern="x", path="a.py") == "1 match in 1 file:\n\na.py:1: x"

    def test_case(self) -> None:
        """Capital letters count unless told otherwise."""
        desk = Desk({"a": "Foo\n"})

        assert desk("grep_files", pattern="foo") == "No lines match 'foo' in /."
        assert desk("grep_files", pattern="foo", ignore_case=True) == "1 match in 1 file:\n\na:1: Foo"

    def test_nothing_found_among_some_files(self) -> None:
        """It says where it looked."""
        assert Desk({"src/a": "x"})("grep_files", pattern="x", path="src", glob="*.py") == (
            "No lines match 'x' in src among files that match '*.py'."
        )

    def test_lines_around(self) -> None:
        """Neighbours are merged, groups stand apart, and a line is shown once."""
        desk = Desk({"a": "1\nx2\nx3\n4\n5\n6\nx7\n", "b": "x1\n"})

        assert desk("grep_files", pattern="x", context=1) == (
            "4 matches in 2 files:\n\na-1- 1\na:2: x2\na:3: x3\na-4- 4\n--\na-6- 6\na:7: x7\n--\nb:1: x1"
        )

    def test_many_matches_are_cut(self) -> None:
        """It says that there are more."""
        desk = Desk({"a": "x\n" * 5})

        assert desk("grep_files", pattern="x", limit=2) == (
            "The first 2 matches; there are more. Narrow the pattern, path or glob to see them.\n\na:1: x\na:2: x"
        )
        assert desk("grep_files", pattern="x", limit=5).startswith("5 matches in 1 file:")

    def test_long_lines_are_cut(self) -> None:
        """A minified file does not fill the model's window."""
        assert Desk({"a": "x" * 600})("grep_files", pattern="x") == (
            f"1 match in 1 file:\n\na:1: {'x' * 500}… [cut: 100 more characters]"
        )

    def test_a_bad_expression(self) -> None:
        """The words are the filesystem's."""
        assert Desk()("grep_files", pattern="(").startswith("Invalid regular expression '(': missing )")

    def test_no_expression_hangs(self) -> None:
        """The classic bomb is answered at once, because the engine is linear."""
        assert Desk({"a": "a" * 5000 + "!"})("grep_files", pattern="(a+)+$") == "No lines match '(a+)+$' in /."

    def test_one_binary_file(self) -> None:
        """Asked for by name, it is reported."""
        assert Desk({"a.bin": b"\0"})("grep_files", pattern="x", path="a.bin") == (
            "Cannot read a.bin as text: it is a binary file (1 bytes)\nChoose a text file."
        )


class TestTransactions:
    def test_a_turn_keeps_its_order(self) -> None:
        """Reads before a write see the old file, reads after it the new one."""
        desk = Desk({"a": "old\n"})
        calls = [
            ToolCall("read_file", {"path": "a"}),
            ToolCall("grep_files", {"pattern": "old"}),
            ToolCall("edit_file", {"path": "a", "old_string": "old", "new_string": "new"}),
            ToolCall("read_file", {"path": "a"}),
        ]
        outcomes = execute_tools(calls, prompt=desk.prompt, session=desk.session)

        assert [outcome.success for outcome in outcomes] == [True] * 4
        assert [outcomes[at].value.content for at in (0, 3)] == ["old\n", "new\n"]

    def test_what_several_tools_did_inside_a_failed_call_is_undone(self) -> None:
        """File tools called by another tool are part of its transaction, and so is what was known."""
        desk = Desk({"a": "x", "b": "y"})
        named = {each.name: each for each in desk.section.tools}

        @tool
        def rebuild(context: ToolContext) -> str:
            """Change several files, and fail."""
            for name, args in (
                ("read_file", {"path": "a"}),
                ("write_file", {"path": "a", "content": "1", "overwrite": True}),
                ("move_file", {"src": "b", "dst": "c"}),
            ):
                assert named[name].run(named[name].parse(args), context=context).success
            raise ValueError("Cannot go on.")

        prompt = desk.prompt.bind(extra_tools=[rebuild])
        outcome = execute_tool(ToolCall("rebuild"), prompt=prompt, session=desk.session)

        assert outcome.text == "Cannot go on."
        assert {path: desk.fs.read(path) for path in desk.fs.glob("*")} == {"a": "x", "b": "y"}
        assert desk("delete_file", path="a") == UNREAD.format("a")

    def test_changes_are_recorded(self) -> None:
        """The event of a call names the files it touched."""
        desk = Desk()
        desk("write_file", path="a/b", content="x")

        event = desk.session[ToolInvoked].latest()
        assert event is not None
        assert list(event.changes.files) == ["a/b"]
