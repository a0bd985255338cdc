"""Folders a command has written to: how much is in them, and how they are made and removed.

What is in such a folder was chosen by a stranger: nothing here follows a link, and no mode bits can keep a folder alive.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import weakref

LONG = 2048
"""Characters of a path; half of what the system takes, since a character may take more than one byte."""


def make_folder(path: str, owner: int | None) -> str:
    """A folder that only its owner can look into."""
    os.mkdir(path, 0o700)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def measure(folder: str) -> tuple[int, int]:
    """Bytes on the disk, and the number of entries; what goes away meanwhile counts for nothing."""
    size = entries = 0
    todo = [folder]
    while todo:
        folder = todo.pop()
        if len(folder) > LONG:
            return size, sys.maxsize  # nobody could keep what is that deep
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            for entry in found:
                entries += 1
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    # Its length counts too: a hole is filled when the file is kept.
                    size += max(status.st_blocks * 512, status.st_size)
                    if stat.S_ISDIR(status.st_mode):
                        todo.append(entry.path)
    return size, entries


def remove_folder(folder: str) -> None:
    """Remove a folder and all in it, whatever its modes and however deep; what cannot be removed stays for the system.

    WHY NOT shutil.rmtree: it calls itself for each level, and a stranger decides how many there are.
    """
    todo, emptied = [folder], list[str]()
    while todo:
        path = todo.pop()
        emptied.append(path)
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
            with os.scandir(path) as found:
                entries = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in found]
            for place, is_folder in entries:
                if not is_folder:
                    os.unlink(place)
                    continue
                if len(place) > LONG:
                    os.chmod(place, 0o700)
                    place = _moved_up(place, folder)
                todo.append(place)
    for path in reversed(emptied):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def remove_at_end(owner: object, folder: str) -> None:
    """Remove a folder when its owner is gone or this process ends; not when a child it forked does."""
    weakref.finalize(owner, _remove_own, folder, os.getpid())


def _remove_own(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        remove_folder(folder)


def _moved_up(place: str, folder: str) -> str:
    """A folder under a shorter path, because a path can be too long to be used."""
    shorter = os.path.join(folder, os.urandom(8).hex())
    os.rename(place, shorter)
    return shorter
