"""Folders a command has written to: how much is in them, and how they are made and removed.

What is in such a folder was chosen by a stranger: nothing here follows a link, and no mode bits can keep a folder alive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable
from typing import Any


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
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as found:
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
    """Remove a folder and all in it, whatever its modes; what cannot be removed stays for the system to clean up."""

    def again(function: Callable[..., Any], path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
            if function in {os.unlink, os.rmdir}:
                function(path)
            else:
                shutil.rmtree(path, ignore_errors=True)

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=again)
    else:
        shutil.rmtree(folder, onerror=again)
