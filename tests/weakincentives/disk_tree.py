"""What a tree on disk is, told without the filesystem under test: bytes, modes, times and links of everything below a root."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from weakincentives.filesystem.anchor import JOURNAL_NAME

DiskTree = dict[str, tuple[object, ...]]


def disk_tree(root: Path, *, times: bool = False) -> DiskTree:
    """Each path with its kind, mode and content; `times` adds modification times of files. The journal is left out."""
    found: DiskTree = {}
    for folder, folders, files in os.walk(root):
        if JOURNAL_NAME in folders:
            folders.remove(JOURNAL_NAME)
        for name in (*folders, *files):
            place = Path(folder, name)
            info = place.lstat()
            mode = stat.S_IMODE(info.st_mode)
            key = str(place.relative_to(root))
            if stat.S_ISLNK(info.st_mode):
                found[key] = ("link", os.readlink(place))
            elif stat.S_ISDIR(info.st_mode):
                found[key] = ("directory", mode)
            elif stat.S_ISREG(info.st_mode):
                found[key] = ("file", mode, place.read_bytes(), info.st_nlink, info.st_mtime_ns if times else 0)
            else:
                found[key] = ("special", stat.S_IFMT(info.st_mode), mode)
    return found


def make_tree(root: Path) -> None:
    """A small project with everything a rollback must not disturb."""
    for name, content in {
        "a.txt": "a",
        "src/main.py": "print()",
        "src/lib/one.py": "1",
        "src/lib/two.py": "2",
        "docs/index.md": "# Docs",
        "docs/deep/er/page.md": "page",
        "nested/.git/HEAD": "ref",
        "nested/.git/objects/ab": "object",
        "nested/code.py": "nested",
        ".gitignore": "build/\n",
        "build/out.bin": "ignored",
        "bin/run": "#!/bin/sh",
    }.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    (root / "bin/run").chmod(0o751)
    (root / "docs/deep").chmod(0o711)
    (root / "nested/.git/objects/ab").chmod(0o444)
    (root / "empty/inner").mkdir(parents=True)
    os.link(root / "a.txt", root / "hard.txt")
    os.symlink("a.txt", root / "soft.txt")
    os.symlink("../docs", root / "src/docs")
    os.symlink("nowhere", root / "dangling")
