"""Ways out of a root on disk, each refused with its reason: by text, by link, by swap, by special file, by odd name."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import (
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    InvalidPathError,
    InvalidPatternError,
    PathEscapeError,
    SpecialFileError,
)
from weakincentives.filesystem.anchor import JOURNAL_NAME
from weakincentives.transaction import Scope

from .disk_tree import disk_tree

SECRET = "nobody may read this"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A root beside a secret, with links of every kind from one to the other."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (outside / "folder").mkdir()
    (outside / "folder/inner.txt").write_text(SECRET)
    (tmp_path / "root-twin").mkdir()
    (tmp_path / "root-twin/secret.txt").write_text(SECRET)
    for folder in ("d/e", "real"):
        (root / folder).mkdir(parents=True)
    (root / "real/file.txt").write_text("inside")
    (root / "plain.txt").write_text("inside")
    links = {
        "out": "../outside",
        "out.txt": "../outside/secret.txt",
        "d/out": "../../outside",
        "d/e/out.txt": "../../../outside/secret.txt",
        "absolute": str(outside),
        "absolute.txt": str(outside / "secret.txt"),
        "inside-but-absolute": str(root / "plain.txt"),
        "etc": "/etc",
        "slash": "/",
        "proc": "/proc/self/root",
        "cwd": "/proc/self/cwd",
        "up": "..",
        "d/up": "../..",
        "d/roundabout": "../d/../../outside/secret.txt",
        "back-in": "../root/plain.txt",
        "twin": "../root-twin/secret.txt",
        "hop": "d/out",
        "hop-hop": "hop",
        "through": "real/../../outside/secret.txt",
        "hidden-up": "d/e/../../../outside/secret.txt",
        "new-outside": "../outside/new.txt",
        "self": "self",
        "ping": "pong",
        "pong": "ping",
        "circle/a": "../circle/b",
        "circle/b": "../circle/a",
        "journal": JOURNAL_NAME,
        "up-through": "linked/../../outside/secret.txt",
        "linked": "d/e",
    }
    (root / "circle").mkdir()
    for name, target in links.items():
        os.symlink(target, root / name)
    return tmp_path


Act = Callable[[Filesystem, str], object]
READS: dict[str, Act] = {
    "read": lambda fs, path: fs.read(path),
    "stat": lambda fs, path: fs.stat(path),
    "exists": lambda fs, path: fs.exists(path),
    "append": lambda fs, path: fs.append(path, "x"),
    "write": lambda fs, path: fs.write(path, "x"),
    "copy from": lambda fs, path: fs.copy(path, "copied"),
    "copy to": lambda fs, path: fs.copy("plain.txt", path, overwrite=True),
    "grep": lambda fs, path: fs.grep("nobody", path),
}
LEAVES = "Path leads outside: {path} goes through the link {link}, which points out of the top directory\nCannot be followed; use a path without it."
ABSOLUTE = "Path leads outside: {path} goes through the link {link}, which is absolute\nCannot be followed; use a path without it."
CLIMBS = "Path leads outside: {path}\nOnly paths below the top directory exist here; use one without the extra '..'."
CIRCLE = "Invalid path {path}: it leads through more than 40 links\nUse a direct path, then retry."
RESERVED = "Invalid path {path}: the filesystem keeps its journal there\nUse another name, then retry."

BY_TEXT = [
    "../outside/secret.txt",
    "/../outside/secret.txt",
    "d/../../outside/secret.txt",
    "./../outside/secret.txt",
    "d/e/../../../outside/secret.txt",
    "..",
    "d/../..",
    "//../outside",
    "real/../../root/plain.txt",
    "../root-twin/secret.txt",
    "no/such/../../../outside/secret.txt",
]
BY_LINK = [
    ("out/secret.txt", LEAVES, "out"),
    ("out.txt", LEAVES, "out.txt"),
    ("out/new.txt", LEAVES, "out"),
    ("out/folder/inner.txt", LEAVES, "out"),
    ("d/out/secret.txt", LEAVES, "d/out"),
    ("d/e/out.txt", LEAVES, "d/e/out.txt"),
    ("up/outside/secret.txt", LEAVES, "up"),
    ("d/up/outside/secret.txt", LEAVES, "d/up"),
    ("d/roundabout", LEAVES, "d/roundabout"),
    ("back-in", LEAVES, "back-in"),
    ("twin", LEAVES, "twin"),
    ("hop/secret.txt", LEAVES, "d/out"),
    ("hop-hop/secret.txt", LEAVES, "d/out"),
    ("through", LEAVES, "through"),
    ("hidden-up", LEAVES, "hidden-up"),
    ("new-outside", LEAVES, "new-outside"),
    ("absolute/secret.txt", ABSOLUTE, "absolute"),
    ("absolute.txt", ABSOLUTE, "absolute.txt"),
    ("inside-but-absolute", ABSOLUTE, "inside-but-absolute"),
    ("etc/passwd", ABSOLUTE, "etc"),
    ("slash/etc/passwd", ABSOLUTE, "slash"),
    ("proc/etc/passwd", ABSOLUTE, "proc"),
    ("cwd/secret.txt", ABSOLUTE, "cwd"),
    ("self", CIRCLE, ""),
    ("ping", CIRCLE, ""),
    ("circle/a", CIRCLE, ""),
    ("self/below", CIRCLE, ""),
    (JOURNAL_NAME, RESERVED, ""),
    (f"{JOURNAL_NAME}/lock", RESERVED, ""),
    (JOURNAL_NAME.upper(), RESERVED, ""),
    (f"d/{JOURNAL_NAME}/x", RESERVED, ""),
    ("journal", RESERVED, ""),
    ("journal/lock", RESERVED, ""),
]


@pytest.mark.parametrize("path", BY_TEXT)
def test_no_text_leads_out(world: Path, path: str) -> None:
    """A path that climbs out is refused for reading and writing, on disk and in memory, and nothing is touched."""
    backends: list[Filesystem] = [HostFilesystem(world / "root"), InMemoryFilesystem({"plain.txt": "inside"})]
    before = disk_tree(world)
    for fs in backends:
        more: tuple[Act, ...] = (lambda fs, path: fs.list(path), lambda fs, path: fs.delete(path))
        for act in (*READS.values(), *more):
            with pytest.raises(PathEscapeError) as refused:
                act(fs, path)
            assert str(refused.value) == CLIMBS.format(path=path)
    assert disk_tree(world) == before


@pytest.mark.parametrize(("path", "reason", "link"), BY_LINK)
def test_no_link_leads_out(world: Path, path: str, reason: str, link: str) -> None:
    """A path through a link that leaves, is absolute, circles or names the journal is refused in these words."""
    fs = HostFilesystem(world / "root")
    before = disk_tree(world)
    for name, act in READS.items():
        with pytest.raises((PathEscapeError, InvalidPathError)) as refused:
            act(fs, path)
        assert str(refused.value) == reason.format(path=path, link=link), name
    assert disk_tree(world) == before


@pytest.mark.parametrize("path", ["out", "absolute", "up", "slash", "hop"])
def test_no_directory_behind_a_link_out(world: Path, path: str) -> None:
    """Nothing can be listed, made, searched or put in a directory that is outside."""
    fs = HostFilesystem(world / "root")
    before = disk_tree(world)
    for act in (
        lambda: fs.list(path),
        lambda: fs.mkdir(f"{path}/new"),
        lambda: fs.glob("*", path),
        lambda: fs.move("plain.txt", f"{path}/moved.txt"),
        lambda: fs.delete(f"{path}/secret.txt"),
        lambda: fs.is_dir(path),
    ):
        with pytest.raises(PathEscapeError):
            act()
    assert disk_tree(world) == before


@pytest.mark.parametrize("pattern", ["**/*", "*/*", "out/*", "**/secret.txt", "hop/**", "absolute/*"])
def test_searches_stay_inside(world: Path, pattern: str) -> None:
    """No glob finds anything outside."""
    found = HostFilesystem(world / "root").glob(pattern)
    assert set(found) <= {"plain.txt", "real/file.txt"}


def test_grep_and_search_stay_inside(world: Path) -> None:
    """The secret is found by no search."""
    fs = HostFilesystem(world / "root")
    assert (fs.grep("nobody"), fs.search("secret")) == ([], [])


@pytest.mark.parametrize("pattern", ["../*", "/../*", "d/../../*"])
def test_no_glob_climbs(world: Path, pattern: str) -> None:
    """A glob with `..` is refused on both backends."""
    for fs in (HostFilesystem(world / "root"), InMemoryFilesystem()):
        with pytest.raises(InvalidPatternError, match="not possible in a glob"):
            fs.glob(pattern)


def test_a_link_out_can_be_deleted_and_moved_as_what_it_is(world: Path) -> None:
    """Deleting or replacing a link acts on the link; what it points to stays, and a rollback brings the link back."""
    fs = HostFilesystem(world / "root")
    before = disk_tree(world)
    call = Scope()
    token = call.activate()
    fs.delete("out")
    fs.delete("absolute.txt")
    Scope.deactivate(token)
    assert not (world / "root/out").is_symlink()
    assert (world / "outside/secret.txt").read_text() == SECRET
    call.rollback()
    assert disk_tree(world) == before


def test_a_directory_is_deleted_without_following_its_links(world: Path) -> None:
    """Removing a directory for good removes its links, never what they lead to."""
    fs = HostFilesystem(world / "root")
    fs.delete("d", recursive=True)
    fs.close()
    assert (world / "outside/secret.txt").read_text() == SECRET
    assert (world / "outside/folder/inner.txt").read_text() == SECRET


def test_a_copied_link_is_no_way_out(world: Path) -> None:
    """A directory is copied with its links as links; what they lead to is neither read nor written."""
    fs = HostFilesystem(world / "root")
    fs.copy("d", "copy/of/d")
    assert os.readlink(world / "root/copy/of/d/out") == "../../outside"
    with pytest.raises(FilesystemError):
        fs.read("copy/of/d/e/out.txt")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("linked/../x", "x"), ("link-up/file.txt", "inside"), ("real/self/self/file.txt", "inside"), ("chain", "inside")],
)
def test_links_inside_are_followed(world: Path, path: str, expected: str) -> None:
    """A link that stays inside leads where it says, also by way of `..` behind another link."""
    root = world / "root"
    os.symlink(".", root / "real/self")
    os.symlink("d/../real", root / "link-up")
    os.symlink("real/file.txt", root / "chain")
    (root / "x").write_text("x")
    assert HostFilesystem(root).read(path) == expected


def test_dots_behind_a_link_count_from_where_it_leads(world: Path) -> None:
    """In a link's text, `..` behind another link is the parent of that link's target, as everywhere on the system."""
    root = world / "root"
    os.symlink("linked/../found", root / "behind")
    (root / "d/found").write_text("beside e, not beside the link")
    fs = HostFilesystem(root)
    assert fs.read("behind") == "beside e, not beside the link"
    with pytest.raises(FilesystemError):
        fs.read("up-through")


def test_special_files_are_refused_without_being_opened(tmp_path: Path) -> None:
    """A pipe, socket or device neither blocks nor is read, and the model is told what it is."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    names = ["pipe", "socket"]
    if os.geteuid() == 0:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero: reading never ends
        names.append("device")
    os.symlink("pipe", tmp_path / "link")
    fs = HostFilesystem(tmp_path)
    for name in (*names, "link"):
        for act in READS.values():
            if act is READS["copy to"]:
                continue
            with pytest.raises(SpecialFileError) as refused:
                act(fs, name)
            assert str(refused.value) == f"Cannot use {name}: it is a device, pipe or socket\nChoose a regular file."
    assert (fs.glob("**/*"), fs.grep("x"), fs.list()) == ([], [], sorted((*names, "link")))


def test_a_directory_with_a_special_file_is_not_copied(tmp_path: Path) -> None:
    """Copying says which file is in the way, and leaves nothing half done."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").write_text("a")
    os.mkfifo(tmp_path / "d/pipe")
    fs = HostFilesystem(tmp_path)
    before = disk_tree(tmp_path)
    with pytest.raises(SpecialFileError) as refused:
        fs.copy("d", "e")
    assert str(refused.value) == (
        "Cannot copy d: it holds d/pipe, a device, pipe or socket\nCopy the other files one by one."
    )
    assert disk_tree(tmp_path) == before


def _swapping(act: Callable[[], None], rounds: int, swap: Callable[[], None]) -> None:
    """Do something many times while another thread swaps what it looks at."""
    done = threading.Event()

    def keep_swapping() -> None:
        while not done.is_set():
            swap()

    thread = threading.Thread(target=keep_swapping)
    thread.start()
    try:
        for _ in range(rounds):
            act()
    finally:
        done.set()
        thread.join()


def test_a_swap_in_the_middle_leads_nowhere(world: Path) -> None:
    """A directory that another thread keeps exchanging for a link out never lets a read or a write through."""
    root = world / "root"
    (root / "flip").mkdir()
    (root / "flip/secret.txt").write_text("inside")
    os.symlink("../outside", root / "flop")
    fs = HostFilesystem(root)
    seen: set[str] = set()

    exchange = ctypes.CDLL(None, use_errno=True).renameat2

    def swap() -> None:
        assert exchange(-100, bytes(root / "flip"), -100, bytes(root / "flop"), 2) == 0

    def act() -> None:
        for attempt in (lambda: seen.add(fs.read("flip/secret.txt")), lambda: fs.write("flip/new.txt", "new")):
            try:
                attempt()
            except OSError:
                seen.add("refused")

    _swapping(act, 150, swap)
    assert SECRET not in seen
    if (root / "flip").is_symlink():
        swap()
    assert disk_tree(world / "outside") == {
        "secret.txt": ("file", 0o644, SECRET.encode(), 1, 0),
        "folder": ("directory", 0o755),
        "folder/inner.txt": ("file", 0o644, SECRET.encode(), 1, 0),
    }


def test_a_rollback_follows_no_link(world: Path) -> None:
    """A directory exchanged for a link out during the call stops the undo there; nothing outside is touched."""
    root = world / "root"
    fs = HostFilesystem(root)
    (world / "outside/file.txt").write_text("theirs")
    call = Scope()
    token = call.activate()
    fs.write("real/file.txt", "changed")
    Scope.deactivate(token)
    os.rename(root / "real", root / "kept")
    os.symlink("../outside", root / "real")
    with pytest.raises(ExceptionGroup):
        call.rollback()
    assert (world / "outside/file.txt").read_text() == "theirs"
    # Once the way is there again, the next opening finishes the work.
    os.unlink(root / "real")
    os.rename(root / "kept", root / "real")
    fs.close()
    HostFilesystem(root).close()
    assert (root / "real/file.txt").read_text() == "inside"
    assert not (root / JOURNAL_NAME).exists()


ODD = {
    "e\u0301.txt": "é.txt",
    "back\\slash": "back\ufffdslash",
    "new\nline": "new\ufffdline",
    b"bad\xffbyte".decode("utf-8", "surrogateescape"): "bad\ufffdbyte",
    "rtl\u202egpj.exe": "rtl\ufffdgpj.exe",
}


@pytest.mark.parametrize(("on_disk", "said"), ODD.items(), ids=ascii)
def test_odd_names_are_shown_and_found(tmp_path: Path, on_disk: str, said: str) -> None:
    """A disk name that no path can spell is listed in a form that can be read, written and deleted, and rolled back."""
    (tmp_path / on_disk).write_text("odd")
    fs = HostFilesystem(tmp_path)
    before = disk_tree(tmp_path)
    assert (fs.list(), fs.glob("*"), fs.read(said)) == ([said], [said], "odd")
    call = Scope()
    token = call.activate()
    fs.write(said, "changed")
    assert set(os.listdir(tmp_path)) == {on_disk, JOURNAL_NAME}
    fs.delete(said)
    Scope.deactivate(token)
    call.rollback()
    assert disk_tree(tmp_path) == before


def test_names_that_read_alike_are_refused(tmp_path: Path) -> None:
    """Where several odd names read the same, none is guessed."""
    for name in ("a\nb", "a\tb"):
        (tmp_path / name).write_text(name)
    fs = HostFilesystem(tmp_path)
    with pytest.raises(InvalidPathError) as refused:
        fs.read("a\ufffdb")
    assert (
        str(refused.value)
        == "Invalid path a\ufffdb: several names on disk read like this\nUse another file, then retry."
    )
    assert fs.list() == ["a\ufffdb"]
