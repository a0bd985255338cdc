"""What a directory tree was at one moment: files by digest, links, folders; how two moments differ; and as data.

A manifest maps the path of every folder ("" is the root) to what was in it. Nothing here is changed once made, so
that manifests share what is the same in them. Never touches a disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, final

Sig: TypeAlias = tuple[int, int, int, int, int]
"""Mode, inode, size, mtime and ctime: while these stay the same, so does the content."""


def signature(about: os.stat_result) -> Sig:
    return about.st_mode, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


@final
class File:
    """A regular file. The digest is empty where nobody needed to read it."""

    __slots__ = ("digest", "gid", "links", "sig", "sure", "uid")

    def __init__(self, sig: Sig, uid: int, gid: int, links: int, digest: str, sure: bool) -> None:
        self.sig = sig
        self.uid = uid
        self.gid = gid
        self.links = links
        self.digest = digest
        self.sure = sure
        """False: written so shortly before it was read that a later write may bear the same time."""


@final
class Link:
    """A symbolic link; its target is text that nobody follows."""

    __slots__ = ("gid", "sig", "sure", "target", "uid")

    def __init__(self, sig: Sig, uid: int, gid: int, target: str, sure: bool) -> None:
        self.sig = sig
        self.uid = uid
        self.gid = gid
        self.target = target
        self.sure = sure


@final
class Below:
    """Stands for a folder in the entries of the folder above."""

    __slots__ = ("sig", "sure")

    def __init__(self) -> None:
        self.sig: Sig = (0, 0, 0, 0, 0)
        self.sure = False


BELOW = Below()
Entry: TypeAlias = File | Link | Below


@final
class Folder:
    """A folder and what was recorded in it."""

    __slots__ = ("entries", "gid", "holds", "mode", "mtime_ns", "uid")

    def __init__(
        self, mode: int, mtime_ns: int, uid: int, gid: int, entries: Mapping[str, Entry], *, holds: bool
    ) -> None:
        self.mode = mode
        self.mtime_ns = mtime_ns
        self.uid = uid
        self.gid = gid
        self.entries = entries
        self.holds = holds
        """True when something lies in it that is not recorded: ignored, or a special file."""


@final
class Nested:
    """A folder with a repository of its own: not looked into, not touched."""

    __slots__ = ("place",)

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place
        """Device and inode: a repository that was moved is known again by them."""


Manifest: TypeAlias = dict[str, Folder | Nested]
"""Folders by path, each one before those inside it."""


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def digests(manifest: Manifest) -> Iterator[str]:
    """What of the store a manifest needs."""
    for folder in manifest.values():
        if type(folder) is Folder:
            for node in folder.entries.values():
                if type(node) is File:
                    yield node.digest


def same(have: Entry | None, want: Entry, *, owners: bool) -> bool:
    """Whether nobody could tell the two apart by name, content, mode, time or (if asked) owner."""
    if have is want:
        return True
    if type(have) is File and type(want) is File:
        if have.digest != want.digest or have.sig[0] != want.sig[0]:
            return False
    elif type(have) is Link and type(want) is Link:
        if have.target != want.target:
            return False
    else:
        return False
    if have.sig[3] != want.sig[3]:
        return False
    return not owners or (have.uid == want.uid and have.gid == want.gid)


def same_folder(have: Folder, want: Folder, *, owners: bool) -> bool:
    """Whether the folders themselves, not what is in them, are alike."""
    return (
        have.mode == want.mode
        and have.mtime_ns == want.mtime_ns
        and (not owners or (have.uid == want.uid and have.gid == want.gid))
    )


def changed(before: Manifest, after: Manifest) -> list[str]:
    """The paths of files, links and folders that came, went or changed, sorted; a mere time of a folder is no change."""
    found: set[str] = set()
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old is new:
            continue
        if type(old) is not type(new):
            found.add(path)
        if type(old) is Folder and type(new) is Folder and old.mode != new.mode:
            found.add(path)
        ours: Mapping[str, Entry] = old.entries if type(old) is Folder else {}
        theirs: Mapping[str, Entry] = new.entries if type(new) is Folder else {}
        for name in ours.keys() | theirs.keys():
            a, b = ours.get(name), theirs.get(name)
            if a is not b and (a is None or b is None or not same(a, b, owners=True)):
                found.add(join(path, name))
    found.discard("")
    return sorted(found)


# -- as data -----------------------------------------------------------------------------------------------------------
# Names are bytes to the disk; Latin-1 gives each byte a character, so that any name has a form in JSON.


def text_of(name: str) -> str:
    return name if name.isascii() else os.fsencode(name).decode("latin-1")


def name_of(text: str) -> str:
    return text if text.isascii() else os.fsdecode(text.encode("latin-1"))


def dump_difference(before: Manifest, after: Manifest) -> dict[str, Any]:
    """What turns one manifest into another: `folders` that are new or changed, by entry, and those `gone`."""
    folders: dict[str, Any] = {}
    for path, new in after.items():
        old = before.get(path)
        if old is new:
            continue
        if type(new) is Nested:
            folders[text_of(path)] = list(new.place)
            continue
        assert type(new) is Folder
        known: Mapping[str, Entry] = old.entries if type(old) is Folder else {}
        entries: dict[str, Any] = {
            text_of(name): _dump(node) for name, node in new.entries.items() if known.get(name) is not node
        }
        entries.update((text_of(name), None) for name in known.keys() - new.entries.keys())
        folders[text_of(path)] = [new.mode, new.mtime_ns, new.uid, new.gid, int(new.holds), entries]
    return {"folders": folders, "gone": [text_of(path) for path in before.keys() - after.keys()]}


def apply_difference(manifest: Manifest, data: Mapping[str, Any]) -> Manifest:
    """The manifest after `dump_difference`."""
    after = {path: folder for path, folder in manifest.items() if path not in set(map(name_of, data["gone"]))}
    for text, fields in data["folders"].items():
        path = name_of(text)
        if len(fields) == 2:
            after[path] = Nested((fields[0], fields[1]))
            continue
        mode, mtime_ns, uid, gid, holds, changes = fields
        old = after.get(path)
        entries: dict[str, Entry] = dict(old.entries) if type(old) is Folder else {}
        for name, node in changes.items():
            if node is None:
                entries.pop(name_of(name), None)
            else:
                entries[name_of(name)] = _load(node)
        after[path] = Folder(mode, mtime_ns, uid, gid, entries, holds=bool(holds))
    # A folder that came later stands behind; whoever walks wants each one before those inside it.
    return {path: after[path] for path in sorted(after, key=lambda path: path.split("/") if path else [])}


def _dump(node: Entry) -> list[Any]:
    if type(node) is File:
        return [*node.sig, node.uid, node.gid, int(node.sure), node.digest, node.links]
    if type(node) is Link:
        return [*node.sig, node.uid, node.gid, int(node.sure), text_of(node.target)]
    return []


def _load(fields: list[Any]) -> Entry:
    if not fields:
        return BELOW
    mode, inode, size, mtime_ns, ctime_ns, uid, gid, sure, what, *links = fields
    sig = (mode, inode, size, mtime_ns, ctime_ns)
    if links:
        return File(sig, uid, gid, links[0], what, bool(sure))
    return Link(sig, uid, gid, name_of(what), bool(sure))
