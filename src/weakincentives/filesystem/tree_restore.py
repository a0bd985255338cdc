"""The way back: makes a directory tree what a manifest says, and touches only what differs from it.

Goes by descriptors, follows no link, and tries everything before it complains. What was never recorded (ignored and
special files, nested repositories) is left where it is; if it lies in a folder that stands where a recorded file must
stand, that folder is moved aside, never deleted.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress

from .tree_nodes import BELOW, Entry, File, Folder, Link, Manifest, Nested, join, same, same_folder, split
from .tree_store import Blobs
from .tree_walk import MovedError, Walk, allow, dress, open_up

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DRAFT = ".being-put-back~"
"""Not a name that scans leave out: what a killed restore leaves is removed by the next one."""


class Restore:
    """One try to turn what is there `now` into what was there `then`."""

    def __init__(self, root: str, now: Manifest, then: Manifest, blobs: Blobs) -> None:
        self._root = root
        self._now = now
        self._then = then
        self._blobs = blobs
        self._owners = os.geteuid() == 0
        self._touched: set[str] = set()
        self._made: dict[int, tuple[str, str]] = {}
        """For files with several names: a place where the right inode is, by the recorded inode."""
        self._homes = self._homes_of_links()
        self.failures: list[Exception] = []
        self.aside: list[str] = []
        """Where folders went that were in the way and held what is not ours to delete."""

    # -- what is to be done ----------------------------------------------------------------------------------------

    @property
    def needed(self) -> bool:
        """Whether anything differs that could be put right."""
        for path, want in self._then.items():
            have = self._now.get(path)
            if have is want or type(want) is Nested:
                continue
            assert type(want) is Folder
            if type(have) is not Folder or not same_folder(have, want, owners=self._owners):
                return True
            if any(not self._is_right(have.entries.get(name), node) for name, node in want.entries.items()):
                return True
            if any(
                self._removable(path, name, node) for name, node in have.entries.items() if name not in want.entries
            ):
                return True
        return False

    def _is_right(self, have: Entry | None, want: Entry) -> bool:
        if want is BELOW:
            return have is BELOW  # what is in it is compared by itself
        if not (have is want or (have is not None and same(have, want, owners=self._owners))):
            return False
        if type(have) is not File or type(want) is not File or have.links == want.links == 1:
            return True
        if want.links == 1:
            return have.sig[1] == want.sig[1]  # it has become another name of some other file
        return self._homes.get(want.sig[1]) == have.sig[1]

    def _homes_of_links(self) -> dict[int, int]:
        """For files with several names: the inode that stands for each recorded one now. The old one, if it lives."""
        homes: dict[int, int] = {}
        for path, folder in self._then.items():
            if type(folder) is not Folder:
                continue
            here = self._now.get(path)
            if type(here) is not Folder:
                continue
            for name, want in folder.entries.items():
                have = here.entries.get(name)
                if type(want) is not File or want.links == 1 or type(have) is not File:
                    continue
                old, new = want.sig[1], have.sig[1]
                if homes.get(old) != old and (old == new or (have.digest == want.digest and old not in homes)):
                    homes[old] = new
                    self._made[old] = (path, name)
        return homes

    def _removable(self, path: str, name: str, node: Entry) -> bool:
        return node is not BELOW or any(
            not self._keeps(each) or self._files_in(each) for each in self._below(join(path, name))
        )

    def _files_in(self, path: str) -> bool:
        folder = self._now.get(path)
        return type(folder) is Folder and any(node is not BELOW for node in folder.entries.values())

    def _below(self, top: str) -> list[str]:
        """The folder and all folders in it, as they are now, each before those inside it."""
        found: list[str] = []
        todo = [top]
        while todo:
            path = todo.pop()
            found.append(path)
            folder = self._now.get(path)
            if type(folder) is Folder:
                todo.extend(join(path, name) for name, node in folder.entries.items() if node is BELOW)
        return found

    def _keeps(self, path: str) -> bool:
        """Whether something in the folder, at any depth, must be left where it is."""
        for each in self._below(path):
            folder = self._now.get(each)
            if type(folder) is not Folder or folder.holds:
                return True
        return False

    # -- how it is done --------------------------------------------------------------------------------------------

    def run(self) -> None:
        with Walk(self._root, forced=True) as walk, Walk(self._root, forced=True) as other:
            self._walk, self._other = walk, other
            self._return_repositories()
            for path, want in self._then.items():
                if type(want) is Folder and self._now.get(path) is not want:
                    self._try(path, lambda path=path, want=want: self._fill(path, want))
            for path, want in reversed(self._then.items()):
                if type(want) is Folder and (path in self._touched or self._now.get(path) is not want):
                    self._try(path, lambda path=path, want=want: self._finish(path, want))

    def _try(self, path: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (OSError, MovedError) as error:
            error.add_note(f"while putting back {path or '.'}")
            self.failures.append(error)

    def _return_repositories(self) -> None:
        """A nested repository that was moved goes back to its place, if that is free."""
        away = {
            folder.place: path
            for path, folder in self._now.items()
            if type(folder) is Nested and type(self._then.get(path)) is not Nested
        }
        for path, folder in self._then.items() if away else ():
            if type(folder) is Nested and (source := away.get(folder.place)) is not None:
                self._try(path, lambda source=source, path=path: self._move(source, path))

    def _move(self, source: str, target: str) -> None:
        above, name = split(target)
        here = self._now.get(above)
        if type(here) is not Folder or name in here.entries:
            return
        from_folder, from_name = split(source)
        os.rename(from_name, name, src_dir_fd=self._goto(from_folder), dst_dir_fd=self._other.goto(above))
        self._touched.update((above, from_folder))

    def _goto(self, path: str, *, to_write: bool = True) -> int:
        fd = self._walk.goto(path)
        if to_write:
            allow(fd, 0o700)
            self._touched.add(path)
        return fd

    def _fill(self, path: str, want: Folder) -> None:
        """Put right what is directly in one folder; folders in it are only made, their turn comes."""
        here = self._now.get(path)
        have: Mapping[str, Entry] = here.entries if type(here) is Folder else {}
        for name, node in have.items():
            if name not in want.entries and self._removable(path, name, node):
                self._try(join(path, name), lambda name=name, node=node: self._remove(path, name, node))
        for name, node in want.entries.items():
            known = have.get(name)
            if not self._is_right(known, node):
                self._try(
                    join(path, name), lambda name=name, node=node, known=known: self._put(path, name, node, known)
                )

    def _remove(self, path: str, name: str, node: Entry) -> None:
        if node is not BELOW:
            os.unlink(name, dir_fd=self._goto(path))
            return
        for each in reversed(self._below(join(path, name))):
            folder = self._now.get(each)
            if type(folder) is not Folder:
                continue
            fd = self._goto(each)
            for inner, what in folder.entries.items():
                if what is not BELOW:
                    os.unlink(inner, dir_fd=fd)
            if not self._keeps(each):
                above, last = split(each)
                os.rmdir(last, dir_fd=self._goto(above))

    def _put(self, path: str, name: str, node: Entry, known: Entry | None) -> None:
        nested = type(self._then.get(join(path, name))) is Nested
        if nested:
            return  # it was never recorded: nothing to put back
        if node is BELOW:
            if known is not None:
                self._remove(path, name, known)
            os.mkdir(name, 0o700, dir_fd=self._goto(path))
            return
        if known is BELOW:
            self._remove(path, name, BELOW)
            if self._keeps(join(path, name)):
                self._move_aside(path, name)
        if type(node) is Link:
            self._put_link(path, name, node)
        elif type(node) is File:
            self._put_file(path, name, node, known if type(known) is File else None)

    def _move_aside(self, path: str, name: str) -> None:
        fd = self._goto(path)
        for number in itertools.count(1):
            free = f"{name}.kept-{number}"
            try:
                os.stat(free, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                os.rename(name, free, src_dir_fd=fd, dst_dir_fd=fd)
                self.aside.append(join(path, free))
                return

    def _put_link(self, path: str, name: str, node: Link) -> None:
        fd = self._goto(path)
        _clear(fd)
        os.symlink(node.target, _DRAFT, dir_fd=fd)
        dress(fd, _DRAFT, None, self._owner(node), node.sig[3])
        os.rename(_DRAFT, name, src_dir_fd=fd, dst_dir_fd=fd)

    def _put_file(self, path: str, name: str, node: File, known: File | None) -> None:
        fd = self._goto(path)
        several = node.links > 1
        in_place = known is not None and several and known.sig[1] == node.sig[1]
        alone = known is not None and known.links == 1
        if known is not None and known.digest == node.digest and (in_place or (alone and not several)):
            dress(fd, name, node.sig[0], self._owner(node), node.sig[3])
            return
        if in_place:
            # CAUTION: all its names must see the old bytes again, so this inode is written, as the program did.
            self._overwrite(fd, name, node)
            dress(fd, name, node.sig[0], self._owner(node), node.sig[3])
            return
        _clear(fd)
        home = self._home(node) if several else None
        if home is not None:
            above, last = home
            os.link(last, _DRAFT, src_dir_fd=self._other.goto(above), dst_dir_fd=fd, follow_symlinks=False)
        else:
            draft = os.open(_DRAFT, _NEW, 0o600, dir_fd=fd)
            try:
                self._blobs.write(node.digest, draft)
            except BaseException:
                _clear(fd)
                raise
            finally:
                os.close(draft)
            dress(fd, _DRAFT, node.sig[0], self._owner(node), node.sig[3])
        os.rename(_DRAFT, name, src_dir_fd=fd, dst_dir_fd=fd)
        if several and home is None:
            self._made[node.sig[1]] = (path, name)

    def _overwrite(self, fd: int, name: str, node: File) -> None:
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            target = os.open(name, flags, dir_fd=fd)
        except PermissionError:
            open_up(fd, name)
            target = os.open(name, flags, dir_fd=fd)
        try:
            if os.fstat(target).st_ino != node.sig[1]:
                raise MovedError(name)
            os.ftruncate(target, 0)
            self._blobs.write(node.digest, target)
        finally:
            os.close(target)

    def _home(self, node: File) -> tuple[str, str] | None:
        """Another name of the same recorded file that is, or is about to be, what it should be."""
        return self._made.get(node.sig[1])

    def _finish(self, path: str, want: Folder) -> None:
        """Owner, mode and time of a folder: last, as every change inside moves its time."""
        fd = self._walk.goto(path)
        about = os.fstat(fd)
        owner = self._owner(want)
        if owner is not None and owner != (about.st_uid, about.st_gid):
            os.fchown(fd, *owner)
        if about.st_mode != want.mode:
            os.fchmod(fd, stat.S_IMODE(want.mode))
        if about.st_mtime_ns != want.mtime_ns:
            os.utime(fd, ns=(about.st_atime_ns, want.mtime_ns))

    def _owner(self, node: File | Link | Folder) -> tuple[int, int] | None:
        return (node.uid, node.gid) if self._owners else None


def _clear(fd: int) -> None:
    """Remove the draft that a killed restore left."""
    with suppress(FileNotFoundError):
        os.unlink(_DRAFT, dir_fd=fd)
