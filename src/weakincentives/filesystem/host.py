"""Files on disk below one root: decides what each operation of the protocol does to a real tree, links and odd names included.

Changes are made in place, one journaled step at a time (`journal`), and belong to the transaction of the call that makes
them. Every access goes through `anchor`, which never leaves the root. Never follows a link out, never opens a special file.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import Literal, final

from ..clock import SYSTEM_CLOCK
from ..errors import TransactionError, WinkError
from ..transaction import Scope, current_scope
from . import pattern as globs
from .anchor import Anchor, Place, is_reserved, kind_of, shown
from .errors import (
    DirectoryNotEmptyError,
    DiskError,
    FileAccessError,
    FileAlreadyExistsError,
    FileBusyError,
    FileIsDirectoryError,
    FileMissingError,
    InvalidPathError,
    JournalError,
    NotDirectoryError,
    PathEscapeError,
    ReadOnlyFileError,
    SpecialFileError,
)
from .journal import HostSnapshot, Journal, Step, Transaction, Witness, Work
from .paths import ROOT, join, normalize
from .protocol import FileStat, Filesystem, Names, encoded

_SETTLED = 2.0
"""Seconds after which no disk gives a further change the time of the one before."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class HostFilesystem(Filesystem):
    """A directory of the host. Each write belongs to the transaction of the call that makes it, or takes effect at once.

    A transaction that an earlier process left unfinished is rolled back here, before anything is read. Give the durable
    `session` the files are used with: whether an interrupted commit counts is written in its file.

    `readonly` protects paths: True for all, or globs, as in `InMemoryFilesystem`. `journal` is where the undo journal lies if
    not in the root; it must be on the same disk. `fsync=True` survives a power cut too.
    """

    __slots__ = ("__weakref__", "_anchor", "_closed", "_journal", "_readonly", "_stop")

    __transactional__ = True
    """Scopes need no snapshot of it: it enlists its changes when it makes them."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        readonly: bool | str | Iterable[str] = (),
        journal: str | os.PathLike[str] | None = None,
        fsync: bool = False,
        session: Witness | None = None,
    ) -> None:
        self._readonly = globs.parse_protection(readonly)
        path: str = os.path.abspath(os.fspath(root))
        try:
            self._anchor = Anchor(path)
        except FileNotFoundError:
            raise FileMissingError(f"Cannot open {path}: there is no such directory. Make it first.") from None
        except NotADirectoryError:
            raise NotDirectoryError(f"Cannot open {path}: it is not a directory.") from None
        folder: str | None = None if journal is None else os.path.abspath(os.fspath(journal))
        self._closed = False
        self._journal = Journal(self._anchor, folder, fsync=fsync, witness=session)
        try:
            self._journal.recover()
        except BaseException:
            self._anchor.close()
            raise
        self._stop = weakref.finalize(self, _stop, self._journal, self._anchor)

    @property
    def root(self) -> str:
        """The directory, as an absolute path of the host."""
        return self._anchor.path

    def close(self) -> None:
        """Remove the journal, once open transactions have ended, if nobody else uses it."""
        self._closed = True
        self._journal.idle = self._stop
        if not self._journal.busy and self._stop.detach() is not None:
            _stop(self._journal, self._anchor, wait=True)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read_bytes(self, path: str) -> bytes:
        path = normalize(path)
        with _Told("read", path):
            while True:
                with self._at(path) as place:
                    _check_file(place, path)
                    try:
                        fd = os.open(place.name, _READ, dir_fd=place.fd)
                    except OSError as error:
                        if error.errno == errno.ELOOP:  # swapped for a link since we looked
                            continue
                        raise
                return _content(fd, path)

    def list(self, path: str = ROOT) -> Names:
        return sorted({shown(entry) for entry in self._entries(normalize(path))})

    def stat(self, path: str) -> FileStat:
        path = normalize(path)
        with _Told("look at", path), self._at(path) as place:
            info = place.info
            assert info is not None
            kind = place.kind
            if kind not in ("file", "directory"):
                raise SpecialFileError.at(path)
            readonly = self._protects(path) or not _may_write(place)
            mode = stat.S_IMODE(info.st_mode)
            if kind == "file":
                return FileStat(path, "file", info.st_size, readonly, mode)
            return FileStat(path, "directory", 0, readonly, mode)

    def version(self, path: str) -> str:
        """By what the disk knows of the file, without reading it. One that changed a moment ago is read: another change
        could have the same time."""
        path = normalize(path)
        with _Told("look at", path), self._at(path) as place:
            _check_file(place, path)
            info = place.info
            assert info is not None
        if SYSTEM_CLOCK.now() - max(info.st_mtime, info.st_ctime) < _SETTLED:
            return self.digest(path)
        return f"{info.st_dev:x}-{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}-{info.st_ctime_ns:x}"

    def is_readonly(self, path: str) -> bool:
        path = normalize(path)
        if self._protects(path):
            return True
        with _Told("look at", path), self._reach(path) as place:
            if place.info is not None:
                return not _may_write(place)
            return not os.access(".", os.W_OK, dir_fd=place.fd, effective_ids=True)

    def _kind(self, path: str) -> Literal["file", "directory"] | None:
        path = normalize(path)
        try:
            with _Told("look at", path), self._reach(path) as place:
                if place.info is None:
                    return None
                kind = place.kind
        except NotDirectoryError:
            return None
        if kind == "file":
            return "file"
        if kind == "directory":
            return "directory"
        raise SpecialFileError.at(path)

    def _entries(self, path: str) -> Names:
        """The names in a directory, as the disk has them."""
        with _Told("list", path), self._reach(path) as place:
            if place.info is None:
                raise FileMissingError.directory(path)
            if place.kind != "directory":
                raise NotDirectoryError.at(path)
            fd = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.fd)
            try:
                return [name for name in os.listdir(fd) if not is_reserved(name)]
            finally:
                os.close(fd)

    def _children(self, path: str) -> Mapping[str, bool]:
        """What a search may look at: no links to directories (they could lead in circles), nothing special or outside."""
        with _Told("list", path), self._reach(path) as place:
            if place.info is None:
                raise FileMissingError.directory(path)
            if place.kind != "directory":
                raise NotDirectoryError.at(path)
            fd = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.fd)
        found: dict[str, bool] = {}
        links: Names = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if is_reserved(entry.name):
                        continue
                    if entry.is_symlink():
                        links.append(shown(entry.name))
                    elif entry.is_dir(follow_symlinks=False):
                        found[shown(entry.name)] = True
                    elif entry.is_file(follow_symlinks=False):
                        found[shown(entry.name)] = False
        finally:
            os.close(fd)
        for name in links:
            try:
                if self._kind(join(path, name)) == "file":
                    found[name] = False
            except (OSError, ValueError):
                continue
        return found

    # -- writing ---------------------------------------------------------------------------------------------------

    def write_bytes(self, path: str, content: bytes) -> None:
        data = content if type(content) is bytes else encoded(path, content)
        path = normalize(path)
        self._check_writable(path)
        self._change("write", path, lambda work: self._put(work, path, data))

    def append(self, path: str, content: str | bytes) -> None:
        data = encoded(path, content)
        path = normalize(path)
        self._check_writable(path)

        def add(work: Work) -> Names:
            with self._claim(work, path) as place:
                before = b"" if place.info is None else self._content_of(place, path)
            return self._put(work, path, before + data)

        self._change("write", path, add)

    def mkdir(self, path: str) -> None:
        path = normalize(path)
        kind = self._kind(path)
        if kind == "file":
            raise FileAlreadyExistsError.not_a_directory(path)
        if kind is None:
            self._check_writable(path)
        self._change("make", path, lambda work: self._make(work, path))

    def delete(self, path: str, recursive: bool = False) -> None:
        path = normalize(path)
        with _Told("delete", path), self._at(path, follow=False):
            pass
        if path == ROOT:
            raise InvalidPathError.root("delete")
        self._check_writable(path)

        def remove(work: Work) -> Names:
            with self._claim(work, path, follow=False) as place:
                if place.info is None:
                    raise FileMissingError.file(path)
                inside: Names = []
                if place.kind == "directory":
                    inside = self._inside(place, path)
                    if inside and not recursive:
                        raise DirectoryNotEmptyError.at(path)
                work.remove(place.fd, place.path, place.name, whole=place.kind == "directory")
            return [path, *inside]

        self._change("delete", path, remove)

    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        source, target = self._check_transfer("copy", src, dst, overwrite)
        self._check_writable(target)
        self._change("copy", target, lambda work: self._copy(work, source, target))

    def move(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        source, target = self._check_transfer("move", src, dst, overwrite)
        self._check_writable(source)
        self._check_writable(target)

        def rename(work: Work) -> Names:
            if source == target:
                return []
            with self._claim(work, source, follow=False) as place:
                if place.info is None:
                    raise FileMissingError.file(source)
                inside = self._inside(place, source) if place.kind == "directory" else []
                with self._claim(work, target, follow=False) as there:
                    self._make_missing(work, there)
                    if there.info is not None:
                        if there.kind == "directory" or place.kind == "directory":
                            raise FileBusyError.at(target)
                        work.remove(there.fd, there.path, there.name)
                    work.move(place.fd, place.path, place.name, there.fd, there.path, there.name)
            return [source, target, *inside, *(target + name[len(source) :] for name in inside)]

        self._change("move", source, rename)

    # -- beyond the protocol ---------------------------------------------------------------------------------------

    def symlink(self, path: str, target: str) -> None:
        """Make a symbolic link where nothing is. `target` is relative to it and stays inside."""
        path = normalize(path)
        self._check_writable(path)
        if not target or target.startswith("/"):
            raise PathEscapeError.absolute(path, path)

        def make(work: Work) -> Names:
            with self._claim(work, path, follow=False) as place:
                depth = place.path.count("/")  # where it really stands: the way there may go through links
                for part in target.split("/"):
                    depth += -1 if part == ".." else part not in ("", ".")
                    if depth < 0:
                        raise PathEscapeError.link(path, path)
                if place.info is not None:
                    raise FileAlreadyExistsError.file(path)
                self._make_missing(work, place)
                work.link(place.fd, place.path, place.name, target)
            return [path]

        self._change("link", path, make)

    def chmod(self, path: str, mode: int) -> None:
        """Set the permission bits of a file; what it was before is kept like any other content."""
        path = normalize(path)
        self._check_writable(path)

        def set_mode(work: Work) -> Names:
            with self._claim(work, path) as place:
                if place.info is None:
                    raise FileMissingError.file(path)
                content = self._content_of(place, path)
                if stat.S_IMODE(place.info.st_mode) == mode:
                    return []
                temporary = self._temporary(work, content, None, place)
                try:
                    os.chmod(temporary, mode, dir_fd=work.txn.slot.fd)
                    work.put(place.fd, place.path, place.name, temporary, exists=True)
                except BaseException:
                    _forget(work, temporary)
                    raise
            return [path]

        self._change("change", path, set_mode)

    # -- going back ------------------------------------------------------------------------------------------------

    def snapshot(self) -> HostSnapshot:
        """The tree as this call sees it now; costs the same however many files there are."""
        scope = current_scope()
        work = self._work_at(scope)
        if work is None:
            return self._journal.mark(scope, ())
        with work.txn.mutex:
            line = tuple(work.line())
            for each in line:  # what they write next must be told from what they have written
                each.ours.clear()
            return self._journal.mark(scope, line)

    def restore(self, snapshot: HostSnapshot, /) -> None:
        """Put the tree back as it was; a write of the present call, if there is one.

        In the transaction that took the snapshot only its own later changes are undone. Elsewhere everything since is that was
        made through this object and kept.
        """
        if not isinstance(snapshot, HostSnapshot):
            raise TypeError(f"Expected a snapshot of a HostFilesystem, got {type(snapshot).__qualname__}")
        if snapshot.journal is not self._journal:
            raise TransactionError("This snapshot belongs to another filesystem and cannot be restored here.")
        if any(work.undone for work in snapshot.line):
            raise TransactionError("Cannot restore: the transaction the snapshot was taken in has been rolled back.")
        scope = current_scope()
        number = snapshot.number
        if scope is not None and scope is snapshot.scope:
            scope.check_writable("files")
            work = self._work_at(scope)
            if work is not None:
                with work.txn.mutex:
                    work.check_open()
                    work.rewind(number)
            return

        def go_back(work: Work) -> Names:
            steps = self._journal.remembered(number)
            for each in work.line():
                steps += [(step, work.txn.slot.fd) for step in each.steps if step.number > number]
            steps.sort(key=lambda pair: pair[0].number, reverse=True)
            for step, kept in steps:
                self._invert(work, step, kept)
            return [shown(path) for step, _ in steps for path in (step.path, step.target) if path]

        self._change("restore", ROOT, go_back)

    def _invert(self, work: Work, step: Step, kept: int) -> None:
        """The inverse of a step as a change of its own, that can be undone in turn."""
        with self._claim(work, step.path, follow=False) as place:
            match step.verb:
                case "create":
                    if place.info is not None:
                        work.remove(place.fd, place.path, place.name)
                case "mkdir":
                    if place.kind == "directory" and not self._inside(place, step.path):
                        work.remove(place.fd, place.path, place.name)
                case "replace" | "remove":
                    if place.info is not None:
                        work.remove(place.fd, place.path, place.name)
                    self._put_back(work, place, kept, step.kept)
                case "move":
                    with self._claim(work, step.target, follow=False) as there:
                        if there.info is not None and place.info is None:
                            work.move(there.fd, there.path, there.name, place.fd, place.path, place.name)

    def _put_back(self, work: Work, place: Place, fd: int, name: str) -> None:
        """A copy of what was displaced: the same snapshot may be restored again, and others may write to the copy."""
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        kind = kind_of(info.st_mode)
        if kind == "directory":
            work.mkdir(place.fd, place.path, place.name)
            with _opened(place.fd, place.name) as made, _opened(fd, name) as old:
                for inner in sorted(os.listdir(old)):
                    there = Place(self._anchor, place.path, os.dup(made), inner, None, ())
                    with there:
                        self._put_back(work, there, old, inner)
            os.chmod(place.name, stat.S_IMODE(info.st_mode), dir_fd=place.fd)
        elif kind == "link":
            work.link(place.fd, place.path, place.name, os.readlink(name, dir_fd=fd))
        elif kind == "file":
            data = _content(os.open(name, _READ, dir_fd=fd), place.path)
            temporary = self._temporary(work, data, info, None)
            os.utime(temporary, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=work.txn.slot.fd)
            work.put(place.fd, place.path, place.name, temporary, exists=False)

    # -- what they stand on ----------------------------------------------------------------------------------------

    def _work_at(self, scope: Scope | None) -> Work | None:
        """What the nearest scope around has changed so far."""
        while scope is not None:
            branch = scope.branch_of(self)
            if isinstance(branch, Work):
                return branch
            scope = scope.parent
        return None

    def _work(self, scope: Scope) -> Work:
        """The changes of a scope; all scopes around it take part too, so that each can undo what happens inside."""
        branch = scope.branch_of(self)
        if isinstance(branch, Work):
            return branch
        scope.check_writable("files")
        parent = None if scope.parent is None else self._work(scope.parent)
        # One step: a scope that ends meanwhile either has this branch, or refuses it.
        with scope._mutex:
            scope.check_writable("files")
            branch = scope.branch_of(self)
            if isinstance(branch, Work):
                return branch
            work = Work(Transaction(self._journal, scope.txn_id) if parent is None else parent.txn, parent)
            scope.enlist(self, work)
            return work

    def _change(self, verb: str, path: str, act: Callable[[Work], Names]) -> None:
        """Run one operation whole or not at all, in the transaction of the present call or in one of its own."""
        self._check_open()
        scope = current_scope()
        if scope is None:
            work = Work(Transaction(self._journal, os.urandom(16).hex()), None)
            try:
                with _Told(verb, path):
                    work.check_open()
                    act(work)
                    work.make_last()
            except BaseException:
                work.rollback()
                raise
            with _Told(verb, path):
                work.commit()
            return
        scope.check_writable("files")
        work = self._work(scope)
        with work.txn.mutex, _Told(verb, path):
            work.check_open()
            start = work.steps[-1].number if work.steps else 0
            try:
                touched = act(work)
            except BaseException:
                work.rewind(start)
                raise
        for each in touched:
            scope.touch("files", each)

    def _check_open(self) -> None:
        if self._closed:
            raise JournalError.closed(self.root)

    def _reach(self, path: str, *, follow: bool = True) -> Place:
        self._check_open()
        return self._anchor.reach(path, follow=follow)

    def _at(self, path: str, *, follow: bool = True) -> Place:
        self._check_open()
        return self._anchor.present(path, follow=follow)

    def _claim(self, work: Work, path: str, *, follow: bool = True) -> Place:
        """The place of a path that nobody else changes from now on."""
        while True:
            seen = self._journal.ended
            place = self._anchor.reach(path, follow=follow)
            if place.name == ".":
                return place
            try:
                news = work.txn.claim(place.path, work, seen)
            except BaseException:
                place.close()
                raise
            if not news:
                return place
            place.close()

    def _make_missing(self, work: Work, place: Place) -> None:
        while place.missing:
            name = place.missing[0]
            path = f"{place.directory}/{name}" if place.directory else name
            work.txn.claim(path, work)
            work.mkdir(place.fd, path, name)
            place.descend()

    def _make(self, work: Work, path: str) -> Names:
        with self._claim(work, path) as place:
            if place.kind == "directory":
                return [path]
            if place.info is not None:
                raise FileAlreadyExistsError.not_a_directory(path)
            self._make_missing(work, place)
            work.mkdir(place.fd, place.path, place.name)
        return [path]

    def _put(self, work: Work, path: str, content: bytes, like: os.stat_result | None = None) -> Names:
        with self._claim(work, path) as place:
            if place.info is not None:
                _check_file(place, path)
                if not _may_write(place):
                    raise FileAccessError.at("write", path)
            elif place.missing:
                self._make_missing(work, place)
            temporary = self._temporary(work, content, like, place)
            try:
                work.put(place.fd, place.path, place.name, temporary, exists=place.info is not None)
            except BaseException:
                _forget(work, temporary)
                raise
        return [path]

    def _temporary(self, work: Work, content: bytes, like: os.stat_result | None, place: Place | None) -> str:
        """A file in the slot with this content, and with mode and owner of what it will replace."""
        slot = work.txn.slot
        name = slot.fresh()
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=slot.fd)
        except FileNotFoundError:
            raise JournalError.gone(self.root) from None
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            info = place.info if place is not None and place.info is not None else like
            if info is not None:
                mine = os.fstat(fd)
                if (mine.st_uid, mine.st_gid) != (info.st_uid, info.st_gid):
                    with suppress(PermissionError):  # as any program that replaces a file of somebody else
                        os.fchown(fd, info.st_uid, info.st_gid)
                mode = stat.S_IMODE(info.st_mode)
                if stat.S_IMODE(mine.st_mode) != mode:
                    os.fchmod(fd, mode)
            elif place is not None:
                above = os.fstat(place.fd)
                if above.st_mode & stat.S_ISGID:
                    os.fchown(fd, -1, above.st_gid)
        except BaseException:
            _forget(work, name)
            raise
        finally:
            os.close(fd)
        return name

    def _copy(self, work: Work, source: str, target: str) -> Names:
        with self._at(source) as place:
            assert place.info is not None
            if place.kind == "file":
                return self._put(work, target, self._content_of(place, source), like=place.info)
            if place.kind != "directory":
                raise SpecialFileError.at(source)
            touched = self._make(work, target)
            with self._claim(work, target) as made:
                top = made.path
            for inside, _, info in self._anchor.below(place):
                if is_reserved(inside.rpartition("/")[2]):
                    continue
                kind, there = kind_of(info.st_mode), f"{top}/{inside}"
                name = join(target, shown(inside))
                if kind == "special":
                    raise SpecialFileError.inside(source, join(source, shown(inside)))
                if self._protects(name):
                    raise ReadOnlyFileError.at(name)
                with self._claim(work, there, follow=False) as spot:
                    spot.name = there.rpartition("/")[2]
                    if kind == "directory":
                        work.mkdir(spot.fd, there, spot.name)
                        os.chmod(spot.name, stat.S_IMODE(info.st_mode) | 0o700, dir_fd=spot.fd)
                    else:
                        from_fd = self._anchor.directory(f"{place.path}/{inside}".rpartition("/")[0])
                        try:
                            last = inside.rpartition("/")[2]
                            if kind == "link":
                                work.link(spot.fd, there, spot.name, os.readlink(last, dir_fd=from_fd))
                            else:
                                data = _content(os.open(last, _READ, dir_fd=from_fd), name)
                                temporary = self._temporary(work, data, info, None)
                                work.put(spot.fd, there, spot.name, temporary, exists=False)
                        finally:
                            os.close(from_fd)
                touched.append(name)
            return touched

    def _content_of(self, place: Place, path: str) -> bytes:
        _check_file(place, path)
        return _content(os.open(place.name, _READ, dir_fd=place.fd), path)

    def _inside(self, place: Place, path: str) -> Names:
        """The canonical paths of all that lies below a directory; raises if one of them is protected."""
        found: Names = []
        for inside, _, _ in self._anchor.below(place):
            name = join(path, shown(inside))
            if self._protects(name):
                raise ReadOnlyFileError.inside(path, name)
            found.append(name)
        return found

    def _protects(self, path: str) -> bool:
        return globs.protects(self._readonly, path)

    def _check_writable(self, path: str) -> None:
        if self._protects(path):
            raise ReadOnlyFileError.at(path)


@final
class _Told:
    """The system's errors in words for a model."""

    __slots__ = ("_path", "_verb")

    def __init__(self, verb: str, path: str) -> None:
        self._verb = verb
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, WinkError):
            return
        if isinstance(error, FileNotFoundError):
            raise FileMissingError.file(self._path) from None
        if isinstance(error, PermissionError | BlockingIOError):
            raise FileAccessError.at(self._verb, self._path) from error
        if error.errno == errno.EXDEV:
            raise DiskError.elsewhere(self._path) from error
        raise DiskError.failed(self._verb, self._path, error.strerror or type(error).__name__) from error


def _stop(journal: Journal, anchor: Anchor, wait: bool = False) -> None:
    # CAUTION: as a finalizer this runs wherever garbage is collected, also while this very thread holds the lock by another
    # filesystem of the same root. It must not wait.
    try:
        journal.close(wait=wait)
    finally:
        anchor.close()


@contextmanager
def _opened(fd: int, name: str) -> Generator[int]:
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        yield inner
    finally:
        os.close(inner)


def _forget(work: Work, temporary: str) -> None:
    with suppress(OSError):  # the slot is cleared sooner or later
        os.unlink(temporary, dir_fd=work.txn.slot.fd)


def _check_file(place: Place, path: str) -> None:
    kind = place.kind
    if kind == "directory":
        raise FileIsDirectoryError.at(path)
    if kind != "file":
        raise SpecialFileError.at(path)


def _may_write(place: Place) -> bool:
    return os.access(place.name, os.W_OK, dir_fd=place.fd, effective_ids=True)


def _content(fd: int, path: str) -> bytes:
    """All of an open file; closes it."""
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):  # swapped since we looked
            raise SpecialFileError.at(path)
        parts: list[bytes] = []
        while part := os.read(fd, max(info.st_size + 1, 1 << 16)):
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(fd)
