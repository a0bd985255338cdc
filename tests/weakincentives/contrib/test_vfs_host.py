"""Claims about the file tools over a directory of the host: the same words, the same care, real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from weakincentives.contrib.tools import VfsConfig, VfsToolsSection
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt import Prompt, PromptTemplate, ToolContext, tool
from weakincentives.runtime import Session, ToolCall, execute_tool


class Disk:
    """A section over a host directory, in a prompt, with a session."""

    def __init__(self, root: Path) -> None:
        (root / "src").mkdir()
        (root / "src" / "app.py").write_bytes(b"import os\r\nport = 80\r\n")
        self.fs = HostFilesystem(root)
        self.section = VfsToolsSection(config=VfsConfig(root="/workspace"), filesystem=self.fs)
        self.prompt = Prompt(PromptTemplate(sections=[self.section]))
        self.session = Session()

    def __call__(self, name: str, **args: object) -> str:
        return execute_tool(ToolCall(name, args), prompt=self.prompt, session=self.session).text


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "root").mkdir()
    return Disk(tmp_path / "root")


def test_files_on_disk_are_read_and_changed(disk: Disk, tmp_path: Path) -> None:
    """An edit keeps the line endings of the file on disk."""
    assert disk("edit_file", path="src/app.py", old_string="80", new_string="81\n82") == (
        "Cannot write to src/app.py without reading it first"
    )
    assert disk("read_file", path="/workspace/src/app.py") == (
        "/workspace/src/app.py: lines 1-2 of 2. Lines end in CRLF.\n\n     1\timport os\n     2\tport = 80"
    )
    disk("edit_file", path="src/app.py", old_string="80", new_string="81\n82")

    assert (tmp_path / "root" / "src" / "app.py").read_bytes() == b"import os\r\nport = 81\r\n82\r\n"


def test_everything_else_works_too(disk: Disk, tmp_path: Path) -> None:
    """List, find, search, copy, move and delete."""
    assert disk("list_directory", path="/workspace") == "/workspace: 1 entry.\n\nsrc/"
    assert disk("glob_files", pattern="**/*.py") == "1 path:\n\n/workspace/src/app.py"
    assert disk("grep_files", pattern="^port") == "1 match in 1 file:\n\n/workspace/src/app.py:2: port = 80"
    assert disk("copy_file", src="src/app.py", dst="b.py") == "Copied /workspace/src/app.py to /workspace/b.py."
    assert disk("move_file", src="b.py", dst="d/c.py") == "Moved /workspace/b.py to /workspace/d/c.py."
    disk("read_file", path="d/c.py")
    assert disk("delete_file", path="d", recursive=True) == "Deleted directory /workspace/d."

    assert [path.name for path in (tmp_path / "root").iterdir() if not path.name.startswith(".")] == ["src"]


def test_a_failed_call_leaves_the_disk_as_it_was(disk: Disk, tmp_path: Path) -> None:
    """What the file tools did inside it is undone."""
    named = {each.name: each for each in disk.section.tools}

    @tool
    def rebuild(context: ToolContext) -> str:
        """Change files, and fail."""
        for name, args in (
            ("write_file", {"path": "new/file.txt", "content": "x"}),
            ("move_file", {"src": "src", "dst": "lib"}),
        ):
            assert named[name].run(named[name].parse(args), context=context).success
        raise ValueError("Cannot go on.")

    prompt = disk.prompt.bind(extra_tools=[rebuild])
    assert execute_tool(ToolCall("rebuild"), prompt=prompt, session=disk.session).text == "Cannot go on."

    assert (tmp_path / "root" / "src" / "app.py").read_bytes() == b"import os\r\nport = 80\r\n"
    assert disk("list_directory") == "/workspace: 1 entry.\n\nsrc/"


def test_links_out_are_refused(disk: Disk, tmp_path: Path) -> None:
    """The filesystem's own guard holds below the tools."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "root" / "link").symlink_to("../secret")

    for name, args in (
        ("read_file", {"path": "link"}),
        ("write_file", {"path": "link", "content": "x", "overwrite": True}),
        ("edit_file", {"path": "link", "old_string": "secret", "new_string": "x"}),
        ("copy_file", {"src": "link", "dst": "copy"}),
    ):
        outcome = execute_tool(ToolCall(name, args), prompt=disk.prompt, session=disk.session)
        assert not outcome.success, name
        assert "link" in outcome.text

    assert (tmp_path / "secret").read_text() == "secret"


def test_names_that_cannot_be_used_do_not_hide_the_others(disk: Disk, tmp_path: Path) -> None:
    """Links that lead nowhere, out or in circles are listed as such, and searches pass over them."""
    root = tmp_path / "root"
    (root / "broken").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    (root / "out").symlink_to("/etc")
    (root / "same.py").symlink_to("src/app.py")

    assert disk("list_directory") == (
        "/workspace: 5 entries.\n\n"
        "broken (cannot be used)\nloop (cannot be used)\nout (cannot be used)\nsame.py (22 bytes)\nsrc/"
    )
    assert disk("glob_files", pattern="**/*") == "2 paths:\n\n/workspace/same.py\n/workspace/src/app.py"


def test_a_file_larger_than_memory_is_not_read(disk: Disk, tmp_path: Path) -> None:
    """It is told, and passed over by searches for other things."""
    with (tmp_path / "root" / "weights.bin").open("wb") as file:
        file.truncate(1 << 40)
    assert disk("read_file", path="weights.bin") == (
        "Cannot read weights.bin: it has 1099511627776 bytes, at most 268435456 are read at once\nChoose a smaller file."
    )
    assert disk("grep_files", pattern="^port") == "1 match in 1 file:\n\n/workspace/src/app.py:2: port = 80"
    assert disk("grep_files", pattern="^port", path="weights.bin") == (
        "Cannot search weights.bin: it has 1099511627776 bytes, at most 67108864 are searched\nChoose a smaller file."
    )
