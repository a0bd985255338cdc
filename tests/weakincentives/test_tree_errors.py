"""The words a user reads when a directory tree cannot be opened, held or put back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from weakincentives.filesystem import DirectoryTree, NotDirectoryError, TreeBusyError, TreeSnapshotError, TreeStoreError

# Newer Pythons warn of any fork in a process with threads; these children touch nothing of theirs.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("one")
    return root


def killed_in_a_guard(root: Path, **options: object) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            with DirectoryTree(root, **options).guard():  # pyright: ignore
                (root / "a.txt").write_text("two")
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(pid, 0)


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """A tree is not made by being asked for."""
    with pytest.raises(NotDirectoryError) as caught:
        DirectoryTree(tmp_path / "none")

    assert str(caught.value) == f"Not a directory: {tmp_path / 'none'}. A DirectoryTree needs one that exists."


def test_the_root_of_the_disk_needs_a_store(tmp_path: Path) -> None:
    """There is no place beside it."""
    with pytest.raises(TreeStoreError) as caught:
        DirectoryTree("/")

    assert str(caught.value) == "The root of the disk has no place beside it for copies. Pass store= with a folder."


def test_a_store_that_cannot_be_written_says_what_to_pass(root: Path) -> None:
    """The reason of the system, then the way out."""
    with pytest.raises(TreeStoreError) as caught:
        DirectoryTree(root, store="/proc/none")

    assert str(caught.value) == (
        "Cannot keep copies in /proc/none: No such file or directory. Pass store= with a folder that can be written."
    )


def test_a_log_that_cannot_be_read_is_not_guessed_at(root: Path, tmp_path: Path) -> None:
    """A damaged line refuses the opening and says what to remove."""
    store = tmp_path / "store"
    store.mkdir()
    (store / "log").write_text("{}\n")
    with pytest.raises(TreeStoreError) as caught:
        DirectoryTree(root, store=store)

    assert str(caught.value) == (
        f"The log in {store} cannot be read: 'format'. "
        "If the directory is as it should be, remove that folder and open the tree again."
    )


@forks
def test_missing_copies_of_an_open_transaction_refuse_the_opening(root: Path, tmp_path: Path) -> None:
    """What cannot be put back is said, and nothing is touched."""
    killed_in_a_guard(root)
    store = tmp_path / ".root.weakincentives"
    for blob in (store / "blobs").iterdir():
        blob.unlink()
    with pytest.raises(TreeStoreError) as caught:
        DirectoryTree(root)

    assert str(caught.value) == (
        f"A transaction on {root} was not finished, and copies are missing in {store}: it cannot be put back. "
        "Remove that folder to go on with what is there."
    )


@forks
def test_a_line_cut_short_belongs_to_a_program_that_never_ran(root: Path, tmp_path: Path) -> None:
    """The end of a log that was not written whole is dropped."""
    killed_in_a_guard(root, store=tmp_path / "store")
    with (tmp_path / "store" / "log").open("ab") as log:
        log.write(b'{"open": null')
    DirectoryTree(root, store=tmp_path / "store").close()

    assert (root / "a.txt").read_text() == "one"


@forks
def test_recovery_ignores_what_the_dead_process_ignored(root: Path, tmp_path: Path) -> None:
    """Other patterns at the next opening do not make a file disappear that was never recorded."""
    store = tmp_path / "store"
    with DirectoryTree(root, store=store) as tree:
        tree.snapshot()
    (root / "x.log").write_text("kept")
    killed_in_a_guard(root, store=store, ignore=["*.log"])
    DirectoryTree(root, store=store).close()

    assert ((root / "x.log").read_text(), (root / "a.txt").read_text()) == ("kept", "one")


def test_many_problems_are_told_in_few_lines(root: Path) -> None:
    """The first five by name, the rest by number."""
    for number in range(7):
        (root / f"big{number}").write_text("xxxxx")
    with DirectoryTree(root, max_file_bytes=4) as tree, pytest.raises(TreeSnapshotError) as caught:
        tree.snapshot()

    assert len(str(caught.value).splitlines()) == 8
    assert "\n- and 2 more\n" in str(caught.value)


def test_a_restless_directory_is_told_as_such() -> None:
    """Programs that never stop moving folders cannot be held."""
    assert str(TreeSnapshotError.restless("/r")) == (
        "Cannot take a snapshot of /r: directories in it move while they are read\n"
        "Stop the programs that work there, then retry."
    )


def test_a_tree_that_was_not_put_back_says_how_to_go_on() -> None:
    """The next opening tries again."""
    assert str(TreeBusyError.unrestored("/r")) == (
        "/r could not be put back by an earlier call and cannot be used as it is\n"
        "Close this DirectoryTree; the next one that is opened there tries again."
    )


@pytest.mark.parametrize("planted", ["store", "blobs", "open to all"])
def test_a_store_that_others_could_have_filled_is_refused(root: Path, tmp_path: Path, planted: str) -> None:
    """What lies in a store is dropped when nobody needs it: a link in its place would have us drop other people's files."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / ("0" * 40)).write_text("precious")
    store = root.parent / f".{root.name}.weakincentives"
    folder = store
    if planted == "store":
        store.symlink_to(victim)
    else:
        store.mkdir(mode=0o700)
        folder = store / "blobs"
        folder.symlink_to(victim) if planted == "blobs" else folder.mkdir()
        if planted == "open to all":
            folder.chmod(0o777)
    with pytest.raises(TreeStoreError) as caught:
        DirectoryTree(root)
    assert str(caught.value) == (
        f"Cannot keep copies in {folder}: it is not a folder of this user alone. Remove it, or pass store= with another one."
    )
    assert (victim / ("0" * 40)).read_text() == "precious"


def test_what_is_no_copy_is_not_dropped(root: Path) -> None:
    """A file that somebody put among the copies stays when the others go."""
    store = root.parent / "kept-store"
    DirectoryTree(root, store=store).close()
    (store / "blobs" / "notes.txt").write_text("mine")
    with DirectoryTree(root, store=store) as tree:
        tree.collect()
    assert (store / "blobs" / "notes.txt").read_text() == "mine"
