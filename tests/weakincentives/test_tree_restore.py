"""Claims about single ways in which programs change files, and about what is left alone."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weakincentives.errors import RollbackError
from weakincentives.filesystem import DirectoryTree, TreeBusyError, TreeSnapshotError, TreeStoreError

# Newer Pythons warn of any fork in a process with threads; these children touch nothing of theirs.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("one")
    (root / "sub" / "b.txt").write_text("two")
    return root


@pytest.fixture
def tree(root: Path) -> Iterator[DirectoryTree]:
    with DirectoryTree(root) as tree:
        yield tree


def sh(root: Path, command: str) -> None:
    subprocess.run(["sh", "-c", command], cwd=root, check=True)


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


# -- what programs do --------------------------------------------------------------------------------------------------


def test_a_write_through_an_open_descriptor_is_taken_back(root: Path, tree: DirectoryTree) -> None:
    """A copy shares no inode with the living file, so a write in place does not reach it."""
    with (root / "a.txt").open("r+") as file:
        start = tree.snapshot()
        file.write("TWO")
        file.flush()
        tree.restore(start)

    assert (root / "a.txt").read_text() == "one"


def test_an_edit_that_forges_size_and_time_is_seen(root: Path, tree: DirectoryTree) -> None:
    """Size and mtime may lie; the time of the last change of the inode does not."""
    path = root / "a.txt"
    start, about = tree.snapshot(), path.stat()
    path.write_text("eno")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))

    assert tree.changed_since(start) == ("a.txt",)


def test_many_edits_within_one_tick_are_each_seen(root: Path, tree: DirectoryTree) -> None:
    """A file written just before a scan is read again at the next one, whatever its times say."""
    for number in range(50):
        (root / "a.txt").write_text(f"{number:03}")
        start = tree.snapshot()
        (root / "a.txt").write_text("xxx")
        tree.restore(start)
        assert (root / "a.txt").read_text() == f"{number:03}"


def test_names_of_one_file_stay_one_file(root: Path, tree: DirectoryTree) -> None:
    """A hard link that a program broke is a hard link again."""
    os.link(root / "a.txt", root / "same.txt")
    start = tree.snapshot()
    sh(root, "echo more >> a.txt; rm same.txt; echo other > same.txt")
    tree.restore(start)

    assert (root / "same.txt").read_text() == "one"
    assert (root / "same.txt").samefile(root / "a.txt")


def test_a_link_to_a_file_outside_is_never_written_through(root: Path, tree: DirectoryTree, tmp_path: Path) -> None:
    """Invariant 4: a name that was made to stand for another file is replaced, not written to."""
    outside = tmp_path / "outside"
    outside.write_text("precious")
    start = tree.snapshot()
    (root / "a.txt").unlink()
    os.link(outside, root / "a.txt")
    (root / "sub" / "b.txt").unlink()
    (root / "sub" / "b.txt").symlink_to(outside)
    tree.restore(start)

    assert (outside.read_text(), (root / "a.txt").read_text()) == ("precious", "one")
    assert (root / "sub" / "b.txt").read_text() == "two"


def test_a_folder_replaced_by_a_link_out_is_put_back(root: Path, tree: DirectoryTree, tmp_path: Path) -> None:
    """Invariant 4: what lies behind a link is not touched."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("precious")
    start = tree.snapshot()
    sh(root, f"rm -r sub; ln -s {outside} sub")
    tree.restore(start)

    assert (outside / "b.txt").read_text() == "precious"
    assert (root / "sub" / "b.txt").read_text() == "two"
    assert not (root / "sub").is_symlink()


def test_the_root_itself_may_have_been_removed(root: Path, tree: DirectoryTree) -> None:
    """A program that deletes everything it was given is undone too."""
    start = tree.snapshot()
    sh(root.parent, "rm -rf root")
    tree.restore(start)

    assert names(root) == {"a.txt", "sub", "sub/b.txt"}


def test_a_tree_deeper_than_any_path_is_put_back(root: Path, tree: DirectoryTree) -> None:
    """Depth costs neither descriptors nor the length of a path."""
    here = os.open(root, os.O_RDONLY)
    try:
        for _ in range(700):  # the longest path that a call takes has 4,096 bytes
            os.mkdir("deeper", dir_fd=here)
            below = os.open("deeper", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        start = tree.snapshot()
        sh(root, "rm -rf deeper")
        tree.restore(start)

        assert tree.changed_since(start) == ()
        assert subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout.count(b"\n") == 704
    finally:
        os.close(here)
        sh(root, "rm -rf deeper")  # too deep for whoever tidies up after the tests


@forks
def test_shut_and_read_only_folders_are_put_back_without_privileges(tmp_path: Path) -> None:
    """A program that takes away its own rights cannot keep its changes that way."""

    def child(root: Path) -> None:
        (root / "shut").mkdir()
        (root / "shut" / "f").write_text("f")
        (root / "fixed").mkdir()
        (root / "fixed" / "f").write_text("f")
        (root / "fixed").chmod(0o555)
        with DirectoryTree(root) as tree:
            start = tree.snapshot()
            sh(root, "echo x > shut/f; chmod 0 shut/f shut; chmod 755 fixed; rm fixed/f; chmod 555 fixed")
            sh(root, "mkdir -p new/inner; touch new/inner/f; chmod 0 new/inner new")
            tree.restore(start)
        assert (root / "shut" / "f").read_text() == (root / "fixed" / "f").read_text() == "f"
        assert (root / "fixed").stat().st_mode & 0o777 == 0o555
        assert names(root) == {"shut", "shut/f", "fixed", "fixed/f"}

    _unprivileged(tmp_path, child)


@forks
def test_what_cannot_be_read_is_told_before_anything_runs(tmp_path: Path) -> None:
    """Invariant 1: an unreadable file or folder refuses the snapshot, by name."""

    def child(root: Path) -> None:
        (root / "secret").write_text("s")
        (root / "secret").chmod(0)
        (root / "shut").mkdir(0o000)
        with DirectoryTree(root) as tree, pytest.raises(TreeSnapshotError) as caught:
            tree.snapshot()
        assert sorted(str(caught.value).splitlines()[1:3]) == [
            "- secret: Permission denied",
            "- shut: Permission denied",
        ]
        with DirectoryTree(root, ignore=["secret", "shut"]) as tree:
            assert tree.changed_since(tree.snapshot()) == ()

    _unprivileged(tmp_path, child)


def _unprivileged(tmp_path: Path, claim: Callable[[Path], None]) -> None:
    """Run the claim in a child that is not root."""
    place = tmp_path / "place"
    (place / "root").mkdir(parents=True)
    if os.geteuid() == 0:
        for path in (place, place / "root"):
            os.chown(path, 65534, 65534)
        for above in tmp_path.parents[:3]:
            above.chmod(above.stat().st_mode | 0o011)
        tmp_path.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            claim(place / "root")
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- what is left alone ------------------------------------------------------------------------------------------------


def test_ignored_files_are_left_alone(root: Path) -> None:
    """Invariant 3: neither put back nor removed, also in a folder that goes."""
    with DirectoryTree(root, ignore=["*.log", "cache/", "/sub/private"]) as tree:
        start = tree.snapshot()
        sh(root, "mkdir new cache; touch x.log new/y.log new/z cache/c sub/private sub/other")
        tree.restore(start)

    assert names(root) == {"a.txt", "sub", "sub/b.txt", "x.log", "new", "new/y.log", "cache", "cache/c", "sub/private"}


def test_a_nested_repository_is_left_alone(root: Path, tree: DirectoryTree) -> None:
    """Invariant 3: a folder with a .git of its own is not looked into."""
    sh(root, "mkdir -p repo/.git; echo 1 > repo/f")
    start = tree.snapshot()
    sh(root, "echo 2 > repo/f; rm -r repo/.git; mkdir -p clone/.git; echo 1 > a.txt")
    tree.restore(start)

    assert (root / "repo" / "f").read_text() == "2\n"
    assert (root / "clone" / ".git").is_dir()
    assert (root / "a.txt").read_text() == "one"


def test_a_nested_repository_that_was_moved_goes_back(root: Path, tree: DirectoryTree) -> None:
    """A repository is known by its inode, wherever it went."""
    sh(root, "mkdir -p repo/.git; echo 1 > repo/f")
    start = tree.snapshot()
    sh(root, "mv repo sub/elsewhere")
    tree.restore(start)

    assert (root / "repo" / "f").read_text() == "1\n"
    assert not (root / "sub" / "elsewhere").exists()


def test_the_repository_of_the_root_is_part_of_the_tree(root: Path, tree: DirectoryTree) -> None:
    """A commit that a failed call made is taken back with the files."""
    sh(root, "mkdir .git; echo main > .git/HEAD")
    start = tree.snapshot()
    sh(root, "echo other > .git/HEAD")
    tree.restore(start)

    assert (root / ".git" / "HEAD").read_text() == "main\n"


def test_what_holds_a_repository_is_moved_aside(root: Path, tree: DirectoryTree) -> None:
    """Invariant 3: a folder where a recorded file must stand is not deleted with what is not ours."""
    start = tree.snapshot()
    sh(root, "rm a.txt; mkdir -p a.txt/repo/.git; touch a.txt/new")
    tree.restore(start)

    assert (root / "a.txt").read_text() == "one"
    assert (root / "a.txt.kept-1" / "repo" / ".git").is_dir()
    assert not (root / "a.txt.kept-1" / "new").exists()


def test_special_files_are_left_alone_and_told(root: Path, tree: DirectoryTree) -> None:
    """A pipe or socket is not opened, not removed, and listed."""
    os.mkfifo(root / "pipe")
    start = tree.snapshot()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "sub" / "socket"))
        (root / "a.txt").write_text("changed")
        tree.restore(start)

    assert tree.unheld == ("pipe", "sub/socket")
    assert names(root) == {"a.txt", "pipe", "sub", "sub/b.txt", "sub/socket"}


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_file_too_big_is_told_before_anything_runs(root: Path) -> None:
    """Invariant 1: the words name the file, its size and what to do."""
    (root / "sub" / "big").write_bytes(b"x" * 11)
    with DirectoryTree(root, max_file_bytes=10) as tree, pytest.raises(TreeSnapshotError) as caught:
        tree.snapshot()

    assert str(caught.value) == (
        "Cannot take a snapshot of the directory, so nothing was run:\n"
        "- sub/big: 11 bytes, more than max_file_bytes=10\n"
        "Make them readable, raise max_file_bytes, or name them in ignore=, then retry."
    )


def test_a_second_tree_of_one_directory_is_refused(root: Path, tree: DirectoryTree) -> None:
    """Invariant 6: whoever comes second is told to share or to wait."""
    with pytest.raises(TreeBusyError) as caught:
        DirectoryTree(root)

    assert str(caught.value) == (
        f"{root} is open as a DirectoryTree already, here or in another process\n"
        "Share that one, or wait until it is closed, then retry."
    )


def test_a_store_inside_the_tree_is_refused(root: Path) -> None:
    """Programs could write to it."""
    with pytest.raises(TreeStoreError, match="lies inside the tree, where programs could write to it"):
        DirectoryTree(root, store=root / "store")


def test_a_snapshot_of_another_tree_is_refused(root: Path, tree: DirectoryTree, tmp_path: Path) -> None:
    """A snapshot belongs to the tree that took it."""
    (tmp_path / "other").mkdir()
    with DirectoryTree(tmp_path / "other") as other, pytest.raises(TreeStoreError) as caught:
        tree.restore(other.snapshot())

    assert str(caught.value) == "This snapshot belongs to another DirectoryTree and cannot be restored here."


def test_a_closed_tree_is_refused(root: Path) -> None:
    """What is closed says so."""
    tree = DirectoryTree(root)
    tree.close()
    with pytest.raises(TreeBusyError) as caught:
        tree.snapshot()

    assert str(caught.value) == f"The DirectoryTree of {root} is closed and cannot be used. Open another one."


def test_a_damaged_copy_is_not_put_back(root: Path, tree: DirectoryTree, tmp_path: Path) -> None:
    """A restore that cannot be right says so, puts back the rest, and the tree refuses more work."""
    start = tree.snapshot()
    sh(root, "echo x > a.txt; rm -r sub")
    for blob in (tmp_path / ".root.weakincentives" / "blobs").iterdir():
        if blob.read_text() == "one":
            blob.write_text("eno")
    with pytest.raises(RollbackError, match=r"could not be put back; it still differs: a\.txt$") as caught:
        tree.restore(start)

    assert "is damaged and cannot be put back" in str(caught.value.exceptions[0])
    assert (root / "sub" / "b.txt").read_text() == "two"
    with pytest.raises(TreeBusyError, match="could not be put back by an earlier call"):
        tree.snapshot()


# -- what it keeps -----------------------------------------------------------------------------------------------------


def test_copies_that_nobody_needs_are_dropped(root: Path, tree: DirectoryTree) -> None:
    """Only what a living snapshot or the last scan needs stays."""
    start = tree.snapshot()
    for number in range(20):
        (root / "a.txt").write_text(str(number))
        tree.snapshot()

    assert tree.collect() == 19
    tree.restore(start)
    assert (root / "a.txt").read_text() == "one"


def test_the_usual_store_is_removed_and_a_named_one_is_kept(root: Path, tmp_path: Path) -> None:
    """A directory leaves nothing beside itself, unless a folder was named for it."""
    with DirectoryTree(root) as tree:
        tree.snapshot()
    with DirectoryTree(root, store=tmp_path / "store") as tree:
        tree.snapshot()
    with DirectoryTree(root, store=tmp_path / "store") as tree:
        start = tree.snapshot()
        (root / "a.txt").write_text("x")
        tree.restore(start)

    assert (root / "a.txt").read_text() == "one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "store"]
