"""Claims about mounts: what of a host folder is copied in, what is not, and that nothing leads out of it."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib.tools import HostMount, VfsConfig, VfsToolsSection
from weakincentives.errors import PromptValidationError
from weakincentives.prompt import Prompt, PromptTemplate
from weakincentives.runtime import Session, ToolCall, execute_tool

LINK = "it is a link to something that is not copied"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder to mount, beside a file that must stay secret."""
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "project"
    for name, content in {
        "README.md": b"# Hi\n",
        "src/app.py": b"x = 1\n",
        "src/lib/util.py": b"y = 2\r\n",
        "src/app.pyc": b"\x00\xff",
        "node_modules/a/index.js": b"js",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def mounted(host: Path, **how: Any) -> VfsToolsSection:
    return VfsToolsSection(config=VfsConfig(mounts=[HostMount(host, **how)]))


def paths(section: VfsToolsSection) -> list[str]:
    return section.filesystem.glob("**/*")


def left_out(section: VfsToolsSection) -> dict[str, str]:
    return {each.path: each.reason for each in section.mounted[0].left_out}


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up the right to read everything, if we have it."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


class TestCopying:
    def test_everything_is_copied_as_it_is(self, host: Path) -> None:
        """Bytes are bytes, and the report counts them."""
        section = mounted(host, mount_path="/code")

        assert paths(section) == [
            "code/README.md",
            "code/node_modules/a/index.js",
            "code/src/app.py",
            "code/src/app.pyc",
            "code/src/lib/util.py",
        ]
        assert section.filesystem.read_bytes("code/src/app.pyc") == b"\x00\xff"
        assert section.filesystem.read_bytes("code/src/lib/util.py") == b"y = 2\r\n"
        report = section.mounted[0]
        assert (report.path, report.files, report.bytes, report.left_out) == ("code", 5, 22, ())

    def test_the_host_never_changes(self, host: Path) -> None:
        """What tools write stays inside."""
        section = mounted(host)
        prompt, session = Prompt(PromptTemplate(sections=[section])), Session()
        for name, args in (
            ("read_file", {"path": "README.md"}),
            ("write_file", {"path": "README.md", "content": "x", "overwrite": True}),
            ("delete_file", {"path": "README.md"}),
        ):
            assert execute_tool(ToolCall(name, args), prompt=prompt, session=session).success

        assert (host / "README.md").read_bytes() == b"# Hi\n"

    def test_a_copy_is_made_once(self, host: Path) -> None:
        """What happens on the host later is not seen."""
        section = mounted(host)
        (host / "late.txt").write_text("x")

        assert "late.txt" not in paths(section)

    def test_the_root_is_the_models_business(self, host: Path) -> None:
        """A mount path is written as the model would write it."""
        config = VfsConfig(root="/workspace", mounts=[HostMount(str(host), "/workspace/code", include="README.md")])

        assert paths(VfsToolsSection(config=config)) == ["code/README.md"]

    def test_the_model_is_told_what_is_there(self, host: Path) -> None:
        """By place, never by the host's path."""
        (host / "link").symlink_to("/etc/passwd")
        config = VfsConfig(root="/w", mounts=[HostMount(host, "code", include=["*.py", "link"], readonly=True)])
        template = VfsToolsSection(config=config).template or ""

        assert template.endswith("\n\nProvided:\n\n- `/w/code`: 2 files, read-only, 1 left out")
        assert str(host) not in template


class TestChoosing:
    @pytest.mark.parametrize(
        ("include", "exclude", "expected"),
        [
            ("*.py", (), ["src/app.py", "src/lib/util.py"]),
            (["src"], (), ["src/app.py", "src/app.pyc", "src/lib/util.py"]),
            (["src/"], "*.pyc", ["src/app.py", "src/lib/util.py"]),
            (["src/*.py"], (), ["src/app.py"]),
            (["/README.md", "src/**"], ["lib"], ["README.md", "src/app.py", "src/app.pyc"]),
            ((), ["node_modules", "*.pyc"], ["README.md", "src/app.py", "src/lib/util.py"]),
            ((), ["node_modules/**", "src/"], ["README.md"]),
            (["*.py"], ["*.py"], []),
        ],
    )
    def test_patterns(self, host: Path, include: Any, exclude: Any, expected: list[str]) -> None:
        """By name or by path, a directory for all in it; to leave out wins."""
        assert paths(mounted(host, include=include, exclude=exclude)) == expected

    def test_excluded_directories_are_not_looked_into(self, host: Path) -> None:
        """What cannot be opened there does not matter, nor is it reported."""
        (host / "node_modules" / "link").symlink_to("/etc")

        assert left_out(mounted(host, exclude="node_modules")) == {}

    @pytest.mark.parametrize("word", ["include", "exclude"])
    def test_a_bad_pattern_is_refused(self, host: Path, word: str) -> None:
        """At construction, with the words of the filesystem."""
        with pytest.raises(PromptValidationError) as refused:
            mounted(host, **{word: ["../*"]})

        assert str(refused.value).startswith(f"Mount of '{host}': {word}: Invalid glob '../*'")


class TestConfinement:
    def test_links_out_are_left_out(self, host: Path) -> None:
        """Absolute or climbing, to files or directories, broken or not: nothing outside is read."""
        (host / "abs").symlink_to(host.parent / "secret.txt")
        (host / "up").symlink_to("../secret.txt")
        (host / "src" / "far").symlink_to("../../../../../../etc/passwd")
        (host / "dir").symlink_to("..")
        (host / "broken").symlink_to("nowhere")
        (host / "loop").symlink_to("loop")
        section = mounted(host, exclude="node_modules")

        assert left_out(section) == dict.fromkeys(["abs", "broken", "dir", "loop", "src/far", "up"], LINK)
        assert section.filesystem.grep("secret") == []

    def test_links_inside_become_copies(self, host: Path) -> None:
        """A link to a file that is copied is that file, also through another link."""
        (host / "AGENTS.md").symlink_to("README.md")
        (host / "src" / "again").symlink_to("./../AGENTS.md")
        section = mounted(host)

        assert section.filesystem.read("src/again") == section.filesystem.read("AGENTS.md") == "# Hi\n"
        assert left_out(section) == {}

    def test_a_link_does_not_reach_what_was_left_out(self, host: Path) -> None:
        """Leaving a file out leaves it out under every name."""
        (host / "alias.md").symlink_to("README.md")
        section = mounted(host, exclude="README.md")

        assert left_out(section) == {"alias.md": LINK}

    def test_no_link_is_followed_through_a_linked_directory(self, host: Path) -> None:
        """There `..` would mean something else than it says."""
        (host / "elsewhere").symlink_to("src/lib")
        (host / "odd").symlink_to("elsewhere/../README.md")

        assert left_out(mounted(host)) == {"elsewhere": LINK, "odd": LINK}

    def test_the_folder_itself_may_be_a_link(self, host: Path) -> None:
        """Naming it was its owner's choice."""
        (host.parent / "alias").symlink_to(host)

        assert "README.md" in paths(mounted(host.parent / "alias"))

    def test_pipes_and_sockets_are_left_out(self, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is opened that could block or act."""
        os.mkfifo(host / "pipe")
        monkeypatch.chdir(host)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("sock")
            section = mounted(host)

        reason = "it is neither a file nor a directory"
        assert left_out(section) == {"pipe": reason, "sock": reason}

    def test_names_that_are_no_paths_here_are_left_out(self, host: Path) -> None:
        """Backslashes, control characters and bytes that are not UTF-8 are reported readably."""
        for name in (b"a\\b", b"a\nb", b"caf\xe9"):
            with open(os.path.join(os.fsencode(host), name), "wb"):
                pass

        reason = "its name cannot be a path here"
        assert left_out(mounted(host)) == dict.fromkeys(["a\\b", "a\nb", "caf\\udce9"], reason)

    def test_names_that_look_alike_are_not_mixed_up(self, host: Path) -> None:
        """One file has one path here; the second is reported."""
        (host / "e\u0301").write_text("apart")
        (host / "\u00e9").write_text("composed")
        section = mounted(host)

        assert section.filesystem.read("\u00e9") == "apart"
        assert left_out(section) == {"\u00e9": "another file has the same name in a different Unicode form"}

    def test_directories_that_look_alike_are_not_mixed_up(self, host: Path) -> None:
        """What lies in both under one name is copied once, and reported."""
        for folder, content in (("e\u0301", "apart"), ("\u00e9", "composed")):
            (host / folder).mkdir()
            (host / folder / "a").write_text(content)
        section = mounted(host)

        assert section.filesystem.read("\u00e9/a") == "apart"
        assert list(left_out(section)) == ["\u00e9/a"]

    def test_a_tree_too_deep_is_cut(self, tmp_path: Path) -> None:
        """A mount holds one open directory per level, and no more than it may."""
        before = os.getcwd()
        try:
            os.chdir(tmp_path)
            for _ in range(203):
                os.mkdir("d")
                os.chdir("d")
            Path("deep.txt").write_text("x")
        finally:
            os.chdir(before)
        section = mounted(tmp_path)

        assert list(left_out(section).values()) == ["it lies more than 200 directories deep"]

    def test_what_may_not_be_read_is_left_out(self) -> None:
        """The rest is still copied."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder.chmod(0o755)
            (folder / "open.txt").write_text("x")
            (folder / "closed.txt").write_text("x")
            (folder / "closed").mkdir()
            (folder / "closed.txt").chmod(0)
            (folder / "closed").chmod(0)
            with as_nobody():
                section = mounted(folder)

        assert paths(section) == ["open.txt"]
        assert left_out(section) == dict.fromkeys(["closed", "closed.txt"], "it cannot be opened: Permission denied")

    def test_what_was_left_out_is_logged(self, host: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Whoever built the section hears of it without asking."""
        (host / "link").symlink_to("/etc")
        with caplog.at_level(logging.WARNING):
            mounted(host, mount_path="code")

        assert caplog.messages == [f"1 entries of the mount at code were left out, such as link: {LINK}"]


class TestLimits:
    def test_bytes_in_all(self, host: Path) -> None:
        """Too much is refused; half a mount would mislead."""
        with pytest.raises(PromptValidationError) as refused:
            mounted(host, max_bytes=10)

        assert str(refused.value) == (
            f"Mount of '{host}': its files have more than max_bytes=10 bytes, counted up to 'src/app.py'. "
            "Leave some out with exclude=, choose with include=, or raise max_bytes."
        )

    def test_exactly_as_many_bytes_are_fine(self, host: Path) -> None:
        """The limit is what may be had."""
        assert len(paths(mounted(host, max_bytes=22))) == 5

    def test_links_count_too(self, host: Path) -> None:
        """Their content is there twice."""
        (host / "again").symlink_to("README.md")
        with pytest.raises(PromptValidationError, match="max_bytes=22"):
            mounted(host, max_bytes=22)

    def test_a_huge_file_is_refused_before_it_is_read(self, host: Path) -> None:
        """Its size is enough; a terabyte is not read to find out."""
        with open(host / "huge", "wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(PromptValidationError, match=r"more than max_bytes=67108864 bytes, counted up to 'huge'"):
            mounted(host)

    def test_large_files_can_be_left_out(self, host: Path) -> None:
        """Reported, with their size."""
        section = mounted(host, max_file_bytes=6)

        assert left_out(section) == {"src/lib/util.py": "it has 7 bytes, more than max_file_bytes=6"}

    def test_number_of_files(self, host: Path) -> None:
        """Too many are refused."""
        with pytest.raises(PromptValidationError) as refused:
            mounted(host, max_files=2)

        assert str(refused.value) == (
            f"Mount of '{host}': it holds more than max_files=2 files, counted up to 'src/app.py'. "
            "Leave some out with exclude=, choose with include=, or raise max_files."
        )

    @pytest.mark.parametrize("word", ["max_bytes", "max_files", "max_file_bytes"])
    def test_a_limit_is_a_number(self, host: Path, word: str) -> None:
        """At construction, by name."""
        with pytest.raises(PromptValidationError) as refused:
            mounted(host, **{word: -1})

        assert str(refused.value) == f"Mount of '{host}': {word} must be a whole number, 0 or more, got -1."


class TestRefusing:
    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        """At construction, with the system's reason."""
        with pytest.raises(PromptValidationError) as refused:
            mounted(tmp_path / "no")

        assert str(refused.value) == (
            f"Mount of '{tmp_path / 'no'}': cannot open it as a directory: No such file or directory."
        )

    def test_a_file_is_no_folder(self, host: Path) -> None:
        """A single file is chosen with include=."""
        with pytest.raises(PromptValidationError, match="cannot open it as a directory: Not a directory"):
            mounted(host / "README.md")

    def test_a_mount_path_outside_of_the_root(self, host: Path) -> None:
        """The model could never reach it."""
        config = VfsConfig(root="/workspace", mounts=[HostMount(host, "/code")])
        with pytest.raises(PromptValidationError, match=r"^Mount at '/code': Path leads outside: /code"):
            VfsToolsSection(config=config)

    def test_two_mounts_with_one_file(self, host: Path) -> None:
        """Neither hides the other."""
        config = VfsConfig(mounts=[HostMount(host), HostMount(host, include="README.md")])
        with pytest.raises(PromptValidationError) as refused:
            VfsToolsSection(config=config)

        assert str(refused.value) == (
            "Mount at '/': another mount has put 'README.md' there already. "
            "Choose another mount_path, or leave the file out with exclude=."
        )

    def test_a_mount_below_a_file_of_another(self, host: Path) -> None:
        """A file cannot be a directory too."""
        config = VfsConfig(mounts=[HostMount(host), HostMount(host, "README.md", include="*.py")])
        with pytest.raises(
            PromptValidationError, match=r"^The mounts do not fit together: Not a directory: README\.md"
        ):
            VfsToolsSection(config=config)


class TestReadOnly:
    def test_a_protected_mount_can_only_be_read(self, host: Path) -> None:
        """What lies beside it can be changed, and so can copies of it."""
        config = VfsConfig(
            mounts=[HostMount(host, "ref [1]", include="*.py", readonly=True), HostMount(host, "mine", include="*.md")]
        )
        section = VfsToolsSection(config=config)
        prompt, session = Prompt(PromptTemplate(sections=[section])), Session()

        def call(name: str, **args: object) -> str:
            return execute_tool(ToolCall(name, args), prompt=prompt, session=session).text

        call("read_file", path="ref [1]/src/app.py")
        refused = "Cannot change {}: it is read-only\nCopy it to another path and work on the copy."
        assert call("edit_file", path="ref [1]/src/app.py", old_string="1", new_string="2") == refused.format(
            "ref [1]/src/app.py"
        )
        assert call("write_file", path="ref [1]/new", content="") == refused.format("ref [1]/new")
        assert call("write_file", path="mine/new", content="") == "Created mine/new (0 bytes)."
        assert call("copy_file", src="ref [1]/src/app.py", dst="mine/app.py") == (
            "Copied ref [1]/src/app.py to mine/app.py."
        )

    def test_a_protected_mount_at_the_top(self, host: Path) -> None:
        """Then everything is protected."""
        section = mounted(host, readonly=True)

        assert section.filesystem.is_readonly("new")
