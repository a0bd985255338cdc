"""What every filesystem must do. A backend's test module subclasses `FilesystemConformance` and gives `make_fs`.

`make_fs(files)` returns an empty filesystem, filled with `files` by the backend's own means. Texts are pinned here, so
that a model reads the same words whatever lies below.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from weakincentives.errors import FencedWriteError, FilesystemError, ReadOnlyError
from weakincentives.filesystem import (
    BinaryContentError,
    DirectoryNotEmptyError,
    FileAlreadyExistsError,
    FileIsDirectoryError,
    FileMissingError,
    FileStat,
    Filesystem,
    GrepMatch,
    InvalidPathError,
    InvalidPatternError,
    NotDirectoryError,
    PathEscapeError,
)
from weakincentives.transaction import Scope

MakeFs = Callable[[Mapping[str, "str | bytes"]], Filesystem]


@contextmanager
def scope(parent: Scope | None = None, *, readonly: bool = False) -> Iterator[Scope]:
    """A transaction that is left open unless the block ends it."""
    opened = Scope(parent, readonly=readonly)
    token = opened.activate()
    try:
        yield opened
    finally:
        Scope.deactivate(token)


def tree(fs: Filesystem, path: str = "/") -> dict[str, bytes | None]:
    """All files with content, all directories with None."""
    found: dict[str, bytes | None] = {}
    for name in fs.list(path):
        place = name if path == "/" else f"{path}/{name}"
        if fs.is_dir(place):
            found[place] = None
            found.update(tree(fs, place))
        else:
            found[place] = fs.read_bytes(place)
    return found


def bystander(fn: Callable[..., object], *args: object) -> None:
    """Do something outside of every transaction, as another thread would."""
    contextvars.Context().run(fn, *args)


class FilesystemConformance:
    """Claims about any filesystem."""

    # -- reading and writing ---------------------------------------------------------------------------------------

    def test_is_a_filesystem(self, make_fs: MakeFs) -> None:
        """It can be bound and asked for as `Filesystem`."""
        assert isinstance(make_fs({}), Filesystem)

    def test_reads_what_was_written(self, make_fs: MakeFs) -> None:
        """Text comes back as it went in."""
        fs = make_fs({})
        fs.write("notes.txt", "häl\u2028lo\n")
        assert fs.read("notes.txt") == "häl\u2028lo\n"

    @pytest.mark.parametrize("text", ["a\r\nb\r\n", "a\rb", "a\n\nb", "\ufeffa", ""])
    def test_line_endings_untouched(self, make_fs: MakeFs, text: str) -> None:
        """Neither reading nor writing changes a character."""
        fs = make_fs({})
        fs.write("a.txt", text)
        assert (fs.read("a.txt"), fs.read_bytes("a.txt")) == (text, text.encode())

    def test_bytes(self, make_fs: MakeFs) -> None:
        """Bytes are kept as they are, by either way of writing."""
        fs = make_fs({})
        fs.write_bytes("a.bin", b"\x00\xff")
        fs.write("b.bin", b"\x00\xfe")
        assert (fs.read_bytes("a.bin"), fs.read_bytes("b.bin")) == (b"\x00\xff", b"\x00\xfe")

    def test_bytes_are_kept_not_borrowed(self, make_fs: MakeFs) -> None:
        """Changing a buffer after the write does not change the file."""
        fs = make_fs({})
        buffer = bytearray(b"before")
        fs.write_bytes("a.bin", buffer)
        buffer[:] = b"after!"
        assert fs.read_bytes("a.bin") == b"before"

    def test_write_replaces(self, make_fs: MakeFs) -> None:
        """Writing again leaves nothing of the old content."""
        fs = make_fs({"a.txt": "long content"})
        fs.write("a.txt", "short")
        assert fs.read("a.txt") == "short"

    def test_write_makes_parents(self, make_fs: MakeFs) -> None:
        """The directories above a new file come by themselves."""
        fs = make_fs({})
        fs.write("a/b/c.txt", "x")
        assert tree(fs) == {"a": None, "a/b": None, "a/b/c.txt": b"x"}

    def test_append(self, make_fs: MakeFs) -> None:
        """Appending creates a file, then adds text or bytes to its end."""
        fs = make_fs({})
        fs.append("logs/a.txt", "one\n")
        fs.append("logs/a.txt", b"two\n")
        assert fs.read("logs/a.txt") == "one\ntwo\n"

    @pytest.mark.parametrize(
        "spelling",
        ["/workspace/a.txt", "workspace/a.txt", "./workspace/a.txt", "workspace//a.txt", "x/../workspace/./a.txt"],
    )
    def test_spellings_of_one_file(self, make_fs: MakeFs, spelling: str) -> None:
        """All spellings of a path reach the same file."""
        fs = make_fs({"workspace/a.txt": "here"})
        fs.append(spelling, "!")
        assert (fs.read(spelling), tree(fs)) == ("here!", {"workspace": None, "workspace/a.txt": b"here!"})

    # -- asking ----------------------------------------------------------------------------------------------------

    def test_kinds(self, make_fs: MakeFs) -> None:
        """Files, directories and nothing are told apart."""
        fs = make_fs({"d/a.txt": ""})
        asked = [(fs.exists(p), fs.is_file(p), fs.is_dir(p)) for p in ("d/a.txt", "d", "/", "no", "d/a.txt/below")]
        assert asked == [
            (True, True, False),
            (True, False, True),
            (True, False, True),
            (False, False, False),
            (False, False, False),
        ]

    def test_stat(self, make_fs: MakeFs) -> None:
        """`stat` tells canonical path, kind, size in bytes and protection."""
        fs = make_fs({"d/a.txt": "häh"})
        file, directory, root = fs.stat("/d/a.txt"), fs.stat("./d/"), fs.stat("/")
        assert isinstance(file, FileStat)
        assert (file.path, file.kind, file.size, file.readonly) == ("d/a.txt", "file", 4, False)
        assert (directory.path, directory.kind, directory.size) == ("d", "directory", 0)
        assert (root.path, root.kind) == ("/", "directory")

    def test_is_readonly(self, make_fs: MakeFs) -> None:
        """Nothing is protected unless somebody asked for it."""
        fs = make_fs({"a.txt": ""})
        assert (fs.is_readonly("a.txt"), fs.is_readonly("/")) == (False, False)

    def test_list(self, make_fs: MakeFs) -> None:
        """`list` gives the names in one directory, sorted, dotfiles too."""
        fs = make_fs({"b.txt": "", "a/x.txt": "", ".hidden": "", "B.txt": ""})
        assert (fs.list(), fs.list("a"), fs.list("/a/")) == ([".hidden", "B.txt", "a", "b.txt"], ["x.txt"], ["x.txt"])

    def test_digest(self, make_fs: MakeFs) -> None:
        """The digest follows the content, and nothing else."""
        fs = make_fs({"a": "x", "b": "x", "c": "y"})
        before = fs.digest("a")
        fs.write("a", "z")
        assert (before == fs.digest("b"), before == fs.digest("c"), before == fs.digest("a")) == (True, False, False)

    # -- making, deleting, copying, moving -------------------------------------------------------------------------

    def test_mkdir(self, make_fs: MakeFs) -> None:
        """`mkdir` makes parents and accepts what exists."""
        fs = make_fs({})
        fs.mkdir("/workspace/src")
        fs.mkdir("workspace/src")
        fs.mkdir("/")
        assert tree(fs) == {"workspace": None, "workspace/src": None}

    def test_delete_file_keeps_directory(self, make_fs: MakeFs) -> None:
        """The directory stays when its last file goes."""
        fs = make_fs({"d/a.txt": ""})
        fs.delete("d/a.txt")
        assert tree(fs) == {"d": None}

    def test_delete_empty_directory(self, make_fs: MakeFs) -> None:
        """An empty directory needs no `recursive`."""
        fs = make_fs({})
        fs.mkdir("d/e")
        fs.delete("d/e")
        assert tree(fs) == {"d": None}

    def test_delete_recursive(self, make_fs: MakeFs) -> None:
        """`recursive` takes the directory and all below, and nothing that only begins with its name."""
        fs = make_fs({"d/a.txt": "", "d/e/b.txt": "", "dd/c.txt": "", "d.txt": ""})
        fs.delete("d", recursive=True)
        assert tree(fs) == {"dd": None, "dd/c.txt": b"", "d.txt": b""}

    def test_copy_file(self, make_fs: MakeFs) -> None:
        """A copy makes parents and lives on its own."""
        fs = make_fs({"a.txt": "x"})
        fs.copy("a.txt", "d/b.txt")
        fs.write("a.txt", "y")
        assert tree(fs) == {"a.txt": b"y", "d": None, "d/b.txt": b"x"}

    def test_copy_directory(self, make_fs: MakeFs) -> None:
        """A directory is copied with all it holds, empty directories too."""
        fs = make_fs({"d/a.txt": "x", "d/e/b.txt": "y"})
        fs.mkdir("d/empty")
        fs.copy("d", "f")
        assert {k: v for k, v in tree(fs).items() if k.startswith("f")} == {
            "f": None,
            "f/a.txt": b"x",
            "f/e": None,
            "f/e/b.txt": b"y",
            "f/empty": None,
        }

    def test_move_file(self, make_fs: MakeFs) -> None:
        """A moved file is at its target only."""
        fs = make_fs({"d/a.txt": "x"})
        fs.move("d/a.txt", "e/b.txt")
        assert tree(fs) == {"d": None, "e": None, "e/b.txt": b"x"}

    def test_move_directory(self, make_fs: MakeFs) -> None:
        """A moved directory takes everything along."""
        fs = make_fs({"d/e/a.txt": "x"})
        fs.move("d", "f")
        assert tree(fs) == {"f": None, "f/e": None, "f/e/a.txt": b"x"}

    def test_overwrite(self, make_fs: MakeFs) -> None:
        """`overwrite` replaces a file, and is harmless on the file itself."""
        fs = make_fs({"a": "1", "b": "2", "c": "3"})
        fs.copy("a", "b", overwrite=True)
        fs.move("a", "c", overwrite=True)
        fs.move("c", "./c", overwrite=True)
        fs.copy("c", "c", overwrite=True)
        assert tree(fs) == {"b": b"1", "c": b"1"}

    # -- finding ---------------------------------------------------------------------------------------------------

    GLOB_TREE: Mapping[str, str] = {
        "a.py": "",
        "b.txt": "",
        ".hid.py": "",
        "src/c.py": "",
        "src/sub/d.py": "",
        "src/sub/e.md": "",
        "src-old/f.py": "",
        "x[1].py": "",
    }

    @pytest.mark.parametrize(
        ("pattern", "path", "expected"),
        [
            ("*.py", "/", [".hid.py", "a.py", "x[1].py"]),
            ("/*.py", "/", [".hid.py", "a.py", "x[1].py"]),
            ("*", "/", [".hid.py", "a.py", "b.txt", "x[1].py"]),
            ("?.py", "/", ["a.py"]),
            ("[ab].*", "/", ["a.py", "b.txt"]),
            ("[!a].*", "/", ["b.txt"]),
            ("x[[]1].py", "/", ["x[1].py"]),
            ("A.py", "/", []),
            ("src/*.py", "/", ["src/c.py"]),
            ("*/*.py", "/", ["src-old/f.py", "src/c.py"]),
            ("*.py", "src", ["src/c.py"]),
            ("**/*.py", "src", ["src/c.py", "src/sub/d.py"]),
            ("/src/**/*.py", "src/sub", ["src/sub/d.py"]),
            ("**/*.py", "/", [".hid.py", "a.py", "src-old/f.py", "src/c.py", "src/sub/d.py", "x[1].py"]),
            ("src/**", "/", ["src/c.py", "src/sub/d.py", "src/sub/e.md"]),
            ("src/**/d.py", "/", ["src/sub/d.py"]),
            ("src/**/sub/**/d.py", "/", ["src/sub/d.py"]),
            ("**/**/e.md", "/", ["src/sub/e.md"]),
            ("**/sub/*", "/", ["src/sub/d.py", "src/sub/e.md"]),
            ("s**/c.py", "/", ["src/c.py"]),
            ("*/", "/", ["src", "src-old"]),
            ("src/**/", "/", ["src", "src/sub"]),
            ("a.py", "/", ["a.py"]),
            ("a.py/", "/", []),
            ("a.py/*", "/", []),
            ("./src/./c.py", "/", ["src/c.py"]),
            ("nothing/*.py", "/", []),
        ],
    )
    def test_glob(self, make_fs: MakeFs, pattern: str, path: str, expected: list[str]) -> None:
        """A glob finds these files, sorted, each once."""
        assert make_fs(self.GLOB_TREE).glob(pattern, path) == expected

    def test_search(self, make_fs: MakeFs) -> None:
        """`search` finds a literal part of the name, sorted by path, up to the limit."""
        fs = make_fs({"test.py": "", "test_helper.py": "", "d/my.test": "", "test/other.py": "", "t.st": ""})
        assert fs.search("test", limit=10) == ["d/my.test", "test.py", "test_helper.py"]
        assert fs.search("test", limit=1) == ["d/my.test"]
        assert fs.search("t.s") == ["t.st"]
        assert (fs.search("TEST"), fs.search("", limit=0)) == ([], [])

    def test_grep(self, make_fs: MakeFs) -> None:
        """`grep` gives path, line number and line, by path and then by line."""
        fs = make_fs({"b.py": "one\ntwo two\nthree", "a/c.py": "x\r\n  two\r\n", "d.txt": "two"})
        assert fs.grep("two") == [
            GrepMatch("a/c.py", 2, "  two"),
            GrepMatch("b.py", 2, "two two"),
            GrepMatch("d.txt", 1, "two"),
        ]

    @pytest.mark.parametrize(
        ("pattern", "lines"),
        [
            ("^b", [2]),
            ("a$", [1, 4]),
            ("(?i)B", [2]),
            ("^$", [3]),
            ("", [1, 2, 3, 4]),
            (r"a\n", []),
            (r"[^x]+", [1, 2, 4]),
            ("é", [4]),
            ("^.a$", [4]),
            ("b|é", [2, 4]),
        ],
    )
    def test_grep_is_by_line(self, make_fs: MakeFs, pattern: str, lines: list[int]) -> None:
        """A pattern is matched against each line on its own, anchors included."""
        fs = make_fs({"a.txt": "a\nbx\n\néa\n"})
        assert [match.line_number for match in fs.grep(pattern)] == lines

    def test_grep_narrowed(self, make_fs: MakeFs) -> None:
        """`path` (a directory or a file), `glob` and `limit` narrow what is searched."""
        fs = make_fs({"a.py": "x\nx", "s/b.py": "x", "s/c.md": "x", "s/t/d.py": "x"})

        def where(**narrow: object) -> list[str]:
            return [match.path for match in fs.grep("x", **narrow)]  # pyright: ignore[reportArgumentType]

        assert where(path="s") == ["s/b.py", "s/c.md", "s/t/d.py"]
        assert where(path="a.py") == ["a.py", "a.py"]
        assert where(glob="*.py") == ["a.py", "a.py", "s/b.py", "s/t/d.py"]
        assert where(glob="s/*.py") == ["s/b.py"]
        assert where(path="s", glob="**/t/*") == ["s/t/d.py"]
        assert (where(limit=1), where(limit=0)) == (["a.py"], [])

    def test_grep_passes_over_binary_files(self, make_fs: MakeFs) -> None:
        """Files that are not text are not searched."""
        fs = make_fs({"a.bin": b"\xffx", "b.bin": b"\0x", "c.txt": "x"})
        assert [match.path for match in fs.grep("x")] == ["c.txt"]

    def test_grep_takes_linear_time(self, make_fs: MakeFs) -> None:
        """A pattern that would keep a backtracking engine busy for ever is no harm."""
        fs = make_fs({"a.txt": "a" * 5000 + "!"})
        assert fs.grep("(a+)+$") == []

    # -- what is refused, and in which words -----------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("act", "error", "builtin", "message"),
        [
            pytest.param(act, error, builtin, message, id=name)
            for name, act, error, builtin, message in [
                (
                    "read missing",
                    lambda fs: fs.read("/no.txt"),
                    FileMissingError,
                    FileNotFoundError,
                    "File not found: no.txt\nList the directory to see what is there, then retry with an existing path.",
                ),
                (
                    "delete missing",
                    lambda fs: fs.delete("no.txt"),
                    FileMissingError,
                    FileNotFoundError,
                    "File not found: no.txt\nList the directory to see what is there, then retry with an existing path.",
                ),
                (
                    "list missing",
                    lambda fs: fs.list("no"),
                    FileMissingError,
                    FileNotFoundError,
                    "Directory not found: no\nList a directory above it to see what is there, then retry with an existing path.",
                ),
                (
                    "read directory",
                    lambda fs: fs.read("d"),
                    FileIsDirectoryError,
                    IsADirectoryError,
                    "Not a file: d is a directory\nName a file inside it, then retry.",
                ),
                (
                    "write directory",
                    lambda fs: fs.write("/", ""),
                    FileIsDirectoryError,
                    IsADirectoryError,
                    "Not a file: / is a directory\nName a file inside it, then retry.",
                ),
                (
                    "append directory",
                    lambda fs: fs.append("d", ""),
                    FileIsDirectoryError,
                    IsADirectoryError,
                    "Not a file: d is a directory\nName a file inside it, then retry.",
                ),
                (
                    "copy onto directory",
                    lambda fs: fs.copy("a.txt", "d", overwrite=True),
                    FileIsDirectoryError,
                    IsADirectoryError,
                    "Not a file: d is a directory\nName a file inside it, then retry.",
                ),
                (
                    "write below file",
                    lambda fs: fs.write("a.txt/b.txt", ""),
                    NotDirectoryError,
                    NotADirectoryError,
                    "Not a directory: a.txt is a file\nUse a path that does not lead through it, then retry.",
                ),
                (
                    "list file",
                    lambda fs: fs.list("a.txt"),
                    NotDirectoryError,
                    NotADirectoryError,
                    "Not a directory: a.txt is a file\nUse a path that does not lead through it, then retry.",
                ),
                (
                    "mkdir below file",
                    lambda fs: fs.mkdir("a.txt/d"),
                    NotDirectoryError,
                    NotADirectoryError,
                    "Not a directory: a.txt is a file\nUse a path that does not lead through it, then retry.",
                ),
                (
                    "mkdir on file",
                    lambda fs: fs.mkdir("a.txt"),
                    FileAlreadyExistsError,
                    FileExistsError,
                    "Cannot make directory a.txt: a file has that name\nChoose another name, then retry.",
                ),
                (
                    "copy directory onto file",
                    lambda fs: fs.copy("d", "a.txt", overwrite=True),
                    FileAlreadyExistsError,
                    FileExistsError,
                    "Cannot make directory a.txt: a file has that name\nChoose another name, then retry.",
                ),
                (
                    "copy onto file",
                    lambda fs: fs.copy("a.txt", "d/b.txt"),
                    FileAlreadyExistsError,
                    FileExistsError,
                    "File already exists: d/b.txt\nSet overwrite=true to replace it, then retry",
                ),
                (
                    "move onto file",
                    lambda fs: fs.move("a.txt", "d/b.txt"),
                    FileAlreadyExistsError,
                    FileExistsError,
                    "File already exists: d/b.txt\nSet overwrite=true to replace it, then retry",
                ),
                (
                    "delete full directory",
                    lambda fs: fs.delete("d"),
                    DirectoryNotEmptyError,
                    OSError,
                    "Directory not empty: d\nSet recursive=true to delete it with everything inside, then retry.",
                ),
                (
                    "delete root",
                    lambda fs: fs.delete("/", recursive=True),
                    InvalidPathError,
                    ValueError,
                    "Cannot delete the top directory\nName something inside it, then retry.",
                ),
                (
                    "move root",
                    lambda fs: fs.move(".", "e"),
                    InvalidPathError,
                    ValueError,
                    "Cannot move the top directory\nName something inside it, then retry.",
                ),
                (
                    "move into itself",
                    lambda fs: fs.move("d", "d/e"),
                    InvalidPathError,
                    ValueError,
                    "Cannot move d to d/e: the target lies inside the source\nChoose a target outside, then retry.",
                ),
                (
                    "copy into itself",
                    lambda fs: fs.copy("d", "d"),
                    InvalidPathError,
                    ValueError,
                    "Cannot copy d to d: the target lies inside the source\nChoose a target outside, then retry.",
                ),
                (
                    "escape",
                    lambda fs: fs.read("d/../../etc/passwd"),
                    PathEscapeError,
                    PermissionError,
                    "Path leads outside: d/../../etc/passwd\n"
                    "Only paths below the top directory exist here; use one without the extra '..'.",
                ),
                (
                    "read binary",
                    lambda fs: fs.read("d/b.bin"),
                    BinaryContentError,
                    ValueError,
                    "Cannot read d/b.bin as text: it is a binary file (2 bytes)\nChoose a text file.",
                ),
                (
                    "grep one binary",
                    lambda fs: fs.grep("x", path="d/b.bin"),
                    BinaryContentError,
                    ValueError,
                    "Cannot read d/b.bin as text: it is a binary file (2 bytes)\nChoose a text file.",
                ),
                (
                    "write surrogate",
                    lambda fs: fs.write("a.txt", "ab\ud800"),
                    BinaryContentError,
                    ValueError,
                    "Cannot write a.txt: the character at position 2 of the content is half of a pair and has no UTF-8 form\n"
                    "Remove or replace it, then retry.",
                ),
                (
                    "grep bad pattern",
                    lambda fs: fs.grep("(a"),
                    InvalidPatternError,
                    ValueError,
                    "Invalid regular expression '(a': missing ): (a\nLookaround and backreferences are not available; "
                    "escape special characters to find them literally. Correct it, then retry.",
                ),
                (
                    "glob empty",
                    lambda fs: fs.glob(""),
                    InvalidPatternError,
                    ValueError,
                    "Invalid glob '': it is empty\n"
                    "Examples: '*.py', 'src/**/*.md', '*/' for directories. Correct it, then retry.",
                ),
                (
                    "glob outside",
                    lambda fs: fs.glob("../*"),
                    InvalidPatternError,
                    ValueError,
                    "Invalid glob '../*': '..' is not possible in a glob\n"
                    "Examples: '*.py', 'src/**/*.md', '*/' for directories. Correct it, then retry.",
                ),
                (
                    "negative limit",
                    lambda fs: fs.search("a", limit=-1),
                    InvalidPatternError,
                    ValueError,
                    "Invalid limit -1: expected a number of results, 0 or more\nCorrect it, then retry.",
                ),
            ]
        ],
    )
    def test_refused(
        self,
        make_fs: MakeFs,
        act: Callable[[Filesystem], object],
        error: type[FilesystemError],
        builtin: type[Exception],
        message: str,
    ) -> None:
        """What cannot be done says so in these words, is the expected builtin, and changes nothing."""
        fs = make_fs({"a.txt": "x", "d/b.txt": "y", "d/b.bin": b"\xff\xfe"})
        before = tree(fs)
        with pytest.raises(error) as caught:
            act(fs)
        assert (str(caught.value), isinstance(caught.value, builtin), tree(fs)) == (message, True, before)

    @pytest.mark.parametrize("method", ["glob", "grep"])
    def test_searching_nowhere_is_refused(self, make_fs: MakeFs, method: str) -> None:
        """A search in a directory that does not exist is an error, not an empty answer."""
        with pytest.raises(FileMissingError, match="Directory not found: no"):
            getattr(make_fs({}), method)("*" if method == "glob" else "x", path="no")

    # -- transactions ----------------------------------------------------------------------------------------------

    def test_rollback_restores_everything(self, make_fs: MakeFs) -> None:
        """A rolled back scope leaves no trace of any kind of write (S5)."""
        fs = make_fs({"a.txt": "1", "d/b.txt": "2", "d/e/c.txt": "3"})
        before = tree(fs)
        with scope() as call:
            fs.write("a.txt", "changed")
            fs.write("new/deep/file.txt", "new")
            fs.append("d/b.txt", "more")
            fs.delete("d/e", recursive=True)
            fs.mkdir("empty")
            fs.move("d", "moved")
            fs.copy("a.txt", "copied.txt")
            call.rollback()
        assert tree(fs) == before

    def test_commit_keeps_everything(self, make_fs: MakeFs) -> None:
        """After a commit everybody sees what the scope saw at its end."""
        fs = make_fs({"a.txt": "1", "d/b.txt": "2"})
        with scope() as call:
            fs.write("a.txt", "changed")
            fs.move("d", "moved")
            seen = tree(fs)
            call.commit()
        assert tree(fs) == seen == {"a.txt": b"changed", "moved": None, "moved/b.txt": b"2"}

    def test_nested_scopes_are_savepoints(self, make_fs: MakeFs) -> None:
        """An inner commit is undone by the outer rollback; an inner rollback leaves the outer writes."""
        fs = make_fs({"a": "0"})
        with scope() as outer:
            fs.write("a", "1")
            with scope(outer) as inner:
                fs.write("a", "2")
                fs.write("b", "2")
                inner.rollback()
            after_inner_rollback = tree(fs)
            with scope(outer) as inner:
                fs.write("a", "3")
                inner.commit()
            after_inner_commit = tree(fs)
            outer.rollback()
        assert (after_inner_rollback, after_inner_commit, tree(fs)) == ({"a": b"1"}, {"a": b"3"}, {"a": b"0"})

    def test_readonly_scope_writes_nothing(self, make_fs: MakeFs) -> None:
        """A call declared without effects reads, and is refused every write (S6)."""
        fs = make_fs({"a": "0"})
        with scope(readonly=True):
            assert fs.read("a") == "0"
            for write in (
                lambda: fs.write("a", "1"),
                lambda: fs.append("a", "1"),
                lambda: fs.mkdir("d"),
                lambda: fs.delete("a"),
                lambda: fs.copy("a", "b"),
                lambda: fs.move("a", "b"),
            ):
                with pytest.raises(ReadOnlyError):
                    write()
        assert tree(fs) == {"a": b"0"}

    def test_ended_scope_writes_nothing(self, make_fs: MakeFs) -> None:
        """A handler that outlived its call is refused every write (S9)."""
        fs = make_fs({"a": "0"})
        with scope() as call:
            call.rollback()
            for write in (
                lambda: fs.write("a", "1"),
                lambda: fs.append("a", "1"),
                lambda: fs.mkdir("d"),
                lambda: fs.delete("a"),
                lambda: fs.copy("a", "b"),
                lambda: fs.move("a", "b"),
            ):
                with pytest.raises(FencedWriteError):
                    write()
        assert tree(fs) == {"a": b"0"}

    def test_changes_are_noted(self, make_fs: MakeFs) -> None:
        """A scope knows every path it wrote (S45)."""
        fs = make_fs({"a": "0", "d/b": "0", "c": "0"})
        with scope() as call:
            fs.write("/a", "1")
            fs.delete("c")
            fs.move("d", "e")
            touched = {key for kind, key in call.touched if kind == "files"}
            call.rollback()
        assert touched >= {"a", "c", "d/b", "e/b"}
