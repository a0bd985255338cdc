"""A directory that programs change by themselves, as a resource that rolls back.

A snapshot costs a stat of everything and a copy of what changed since the last one; a restore makes the directory
what it was and touches only what differs. docs/decisions/0016-tree-snapshots.md says why it is built so.

INVARIANTS (tests cite the numbers)
 1. A snapshot that cannot hold a file is not taken: no program runs that could not be undone.
 2. After a restore every recorded path has its bytes, mode, time and link target; folders too, also empty ones.
 3. What was not recorded is never deleted: ignored and special files, nested repositories.
 4. No link is followed, nothing outside the root is written.
 5. A transaction that no process finished is taken back when the tree is opened next.
 6. One transaction at a time: two could not tell their changes apart.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Self, final

from ..errors import FilesystemError, RollbackError
from ..transaction import Scope, current_scope
from .errors import NotDirectoryError
from .tree_errors import TreeBusyError, TreeSnapshotError, TreeStoreError, listed, shown
from .tree_nodes import Manifest, Nested, changed, digests
from .tree_restore import Restore
from .tree_scan import Ignore, Look, settled
from .tree_store import Store, content_digest

_logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 256 * 1024 * 1024
_TRIES = 3
_GARBAGE = 256
_TOUCHED = 1_000
"""More names than this in one call are told as their number."""


@final
class TreeSnapshot:
    """A directory at one moment. Opaque; give it to `restore`, any number of times, while the tree is open."""

    __slots__ = ("__weakref__", "manifest", "tree")

    def __init__(self, tree: DirectoryTree, manifest: Manifest) -> None:
        self.tree = tree
        self.manifest = manifest


class DirectoryTree:
    """A directory whose changes roll back, whoever makes them. Lives until closed; one at a time per directory.

    Passed to a transaction (`PendingToolTracker`, `tool_transaction`, a prompt's resources) it is scanned when that
    begins and put back when it fails. With `eager=False` only calls that use `guard()` pay for a scan.
    `ignore`: globs of what is not part of the tree, by name if they have no slash, else by path. `store`: where copies
    are kept, outside of the tree; a folder named here is kept for the next time, the usual one beside the root is
    removed by `close()`. `committed`: asked about a transaction that a killed process left
    (`session.committed` of the durable session it belonged to).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        ignore: Iterable[str] = (),
        store: str | os.PathLike[str] | None = None,
        max_file_bytes: int | None = MAX_FILE_BYTES,
        eager: bool = True,
        committed: Callable[[str], bool] | None = None,
    ) -> None:
        self._root = os.path.realpath(root)
        if not os.path.isdir(self._root):
            raise NotDirectoryError(f"Not a directory: {shown(self._root)}. A DirectoryTree needs one that exists.")
        self._ignore = Ignore([ignore] if isinstance(ignore, str) else ignore)
        self._limit = max_file_bytes
        self._eager = eager
        self._keeps_store = store is not None
        self._mutex = threading.RLock()
        self._pid = os.getpid()
        self._index: Manifest = {}
        self._snapshots: weakref.WeakSet[TreeSnapshot] = weakref.WeakSet()
        self._holder: Scope | None = None
        self._branches: list[_TreeBranch] = []
        self._unheld: tuple[str, ...] = ()
        self._broken = self._closed = self._closing = False
        self._store = Store(self._place(store), self._root, self._ignore.patterns)
        self._swept = 0
        try:
            self._recover(committed)
        except BaseException:
            self._store.close()
            raise

    def _place(self, store: str | os.PathLike[str] | None) -> str:
        if store is None:
            # Beside the root: found again by anyone who knows the root, and out of the way of `rm -rf *`.
            above, name = os.path.split(self._root)
            if not name:
                raise TreeStoreError(
                    "The root of the disk has no place beside it for copies. Pass store= with a folder."
                )
            return os.path.join(above, f".{name}.weakincentives")
        place = os.path.realpath(store)
        if os.path.commonpath([place, self._root]) == self._root:
            raise TreeStoreError(
                f"The store {shown(place)} lies inside the tree, where programs could write to it. Choose a folder outside."
            )
        return place

    def _recover(self, committed: Callable[[str], bool] | None) -> None:
        store = self._store
        known = set(digests(store.logged))
        whole = all(digest in store.blobs for digest in known)
        if store.open_txn is not None:
            if committed is not None and store.open_txn and committed(store.open_txn):
                store.done()
            else:
                if not whole:
                    raise TreeStoreError(
                        f"A transaction on {shown(self._root)} was not finished, and copies are missing in "
                        f"{shown(store.folder)}: it cannot be put back. Remove that folder to go on with what is there."
                    )
                _logger.warning("%s: taking back a transaction that was not finished", self._root)
                self._put(store.logged, Ignore(store.open_ignore))
                store.done()
        if whole:
            self._index = store.logged
        if not whole or store.open_ignore != self._ignore.patterns:
            store.compact(store.logged if whole else {})  # the log says what was ignored, too
        self.collect()

    # -- for users -------------------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        return self._root

    @property
    def unheld(self) -> tuple[str, ...]:
        """What the last scan saw and left alone: special files and nested repositories."""
        return self._unheld

    def snapshot(self) -> TreeSnapshot:
        """The directory as it is now; raises `TreeSnapshotError` if something in it cannot be held."""
        with self._mutex:
            self._check()
            return self._take()

    def restore(self, snapshot: TreeSnapshot, /) -> None:
        """Make the directory what it was; raises `RollbackError` with every cause if that did not succeed."""
        scope = current_scope()
        if scope is not None:
            scope.check_writable("files")
        with self._mutex:
            self._check()
            if snapshot.tree is not self:
                raise TreeStoreError("This snapshot belongs to another DirectoryTree and cannot be restored here.")
            if self._holder is not None:
                if scope is None or scope.top is not self._holder:
                    raise TreeBusyError.transaction(self._root)
                self._put(snapshot.manifest, self._ignore)
                return
            self._store.begin(snapshot.manifest, "")  # a process that dies half-way has its work finished by the next
            self._put_or_break(snapshot.manifest)
            self._store.done()

    def changed_since(self, snapshot: TreeSnapshot) -> tuple[str, ...]:
        """The paths of what came, went or changed since, sorted."""
        with self._mutex:
            self._check()
            look = self._looking(self._ignore, content_digest)
            now = settled(
                lambda: look().compare(snapshot.manifest, forced=False),
                lambda: TreeSnapshotError.restless(self._root),
            )
            return tuple(changed(snapshot.manifest, now))

    @contextmanager
    def guard(self) -> Generator[TreeSnapshot]:
        """Put the directory back if the block fails. In a tool call, also if the call fails later.

        What the block changed is named in the call's `ToolInvoked.changes`.
        """
        scope = current_scope()
        if scope is None:
            own = Scope()
            try:
                yield self._enlist(own) or self.snapshot()
            except BaseException:
                own.rollback()
                raise
            own.commit()
            return
        scope.check_writable("files")
        start = self._enlist(scope) or self.snapshot()
        try:
            yield start
        except BaseException:
            with self._mutex:
                self._put_or_break(start.manifest)
            raise

    def collect(self) -> int:
        """Drop the copies that no living snapshot and no coming scan needs; how many there were."""
        with self._mutex:
            needed = set(digests(self._index))
            needed.update(digests(self._store.logged))
            for snapshot in tuple(self._snapshots):
                needed.update(digests(snapshot.manifest))
            dropped = self._store.blobs.sweep(needed)
            self._swept = len(self._store.blobs)
            return dropped

    def close(self) -> None:
        """Let go of the directory; in a transaction, when that has ended. Harmless when done twice."""
        with self._mutex:
            if self._closed or os.getpid() != self._pid:
                return
            if self._branches:
                self._closing = True
                return
            self._closed = True
            finished = self._store.open_txn is None
            if finished and self._keeps_store:
                self._store.compact(self._index)
            self._store.close(remove=finished and not self._keeps_store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def join_scope(self, scope: Scope, /) -> None:
        """A transaction takes the tree in. Readers change nothing, so there is nothing to take back."""
        if self._eager and not scope.readonly:
            self._enlist(scope)

    # -- transactions ----------------------------------------------------------------------------------------------

    def _enlist(self, scope: Scope) -> TreeSnapshot | None:
        """Make the scope able to put the tree back; its snapshot, or None if it had one before."""
        with self._mutex:
            self._check()
            if scope.branch_of(self) is not None:
                return None
            if self._holder is not None and self._holder is not scope.top:
                raise TreeBusyError.transaction(self._root)
            branch = _TreeBranch(self)
            # Noted before it begins: an interrupt in between must not leave the tree taken.
            with scope._mutex:
                scope.check_writable("files")  # it may have been given up while a thread was on its way here
                self._holder = scope.top
                self._branches.append(branch)
                scope.enlist(self, branch)
            start = self._take()
            if len(self._branches) == 1:
                self._store.begin(start.manifest, scope.txn_id)
            branch.start = start
            return start

    def _ended(self, branch: _TreeBranch) -> None:
        if branch in self._branches:
            self._branches.remove(branch)
        if not self._branches:
            self._holder = None
            if self._closing:
                self.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise TreeBusyError.forked(self._root)
        if self._closed or self._closing:
            raise TreeBusyError.closed(self._root)
        if self._broken:
            raise TreeBusyError.unrestored(self._root)

    # -- the work --------------------------------------------------------------------------------------------------

    def _looking(self, ignore: Ignore, read: Callable[[int, int], str]) -> Callable[[], Look]:
        return lambda: Look(self._root, ignore, self._index, read, max_file_bytes=self._limit)

    def _take(self) -> TreeSnapshot:
        new = self._looking(self._ignore, self._store.blobs.put)
        looks: list[Look] = []

        def hold() -> Manifest:
            looks.append(new())
            return looks[-1].hold()

        manifest = settled(hold, lambda: TreeSnapshotError.restless(self._root))
        look = looks[-1]
        if look.problems:
            raise TreeSnapshotError.unheld(
                [(path, why if isinstance(why, str) else why.strerror or str(why)) for path, why in look.problems]
            )
        self._note_unheld(manifest, look)
        self._index = manifest
        snapshot = TreeSnapshot(self, manifest)
        self._snapshots.add(snapshot)
        if len(self._store.blobs) > 2 * self._swept + _GARBAGE:
            self.collect()
        return snapshot

    def _put_or_break(self, then: Manifest) -> None:
        try:
            self._put(then, self._ignore)
        except BaseException:
            self._broken = True
            raise

    def _put(self, then: Manifest, ignore: Ignore) -> None:
        """Make the tree what it was, and look again whether it is."""
        new = self._looking(ignore, content_digest)
        failures: list[Exception] = []
        now = then
        os.makedirs(self._root, exist_ok=True)
        for _ in range(_TRIES):
            looks: list[Look] = []

            def compare() -> Manifest:
                looks.append(new())  # noqa: B023
                return looks[-1].compare(then, forced=True)  # noqa: B023

            now = settled(compare, lambda: TreeSnapshotError.restless(self._root))
            shut = [error for _, error in looks[-1].problems if isinstance(error, OSError)]
            work = Restore(self._root, now, then, self._store.blobs)
            if not work.needed:
                if shut:
                    raise RollbackError(f"{shown(self._root)} could not be put back", shut)
                self._note_unheld(now, looks[-1])
                self._report(now, then)
                return
            work.run()
            failures = [*shut, *work.failures]
            if work.aside:
                _logger.warning(
                    "%s: moved aside, as it holds what is not ours to delete: %s", self._root, listed(work.aside)
                )
        left = changed(then, now)
        message = f"{shown(self._root)} could not be put back; it still differs: {listed(left)}"
        raise RollbackError(message, failures or [TreeSnapshotError.restless(self._root)])

    def _note_unheld(self, manifest: Manifest, look: Look) -> None:
        nested = (path for path, folder in manifest.items() if type(folder) is Nested)
        self._unheld = tuple(sorted((*look.special, *nested)))

    def _report(self, now: Manifest, then: Manifest) -> None:
        lost = [path for path, folder in then.items() if type(folder) is Nested and path not in now]
        if lost:
            _logger.warning("%s: nested repositories are gone and were never recorded: %s", self._root, listed(lost))
        left = sorted(now.keys() - then.keys())
        if left:
            _logger.warning("%s: left alone, as they hold what is not recorded: %s", self._root, listed(left))


class _TreeBranch:
    """What one scope does to the tree when it ends."""

    __slots__ = ("_settled", "start", "tree")

    def __init__(self, tree: DirectoryTree) -> None:
        self.tree = tree
        self.start: TreeSnapshot | None = None
        self._settled = False

    @property
    def _is_outermost(self) -> bool:
        return self.tree._branches[:1] == [self]

    def note_changes(self, scope: Scope, /) -> None:
        """Name what is different now. Who cannot look keeps the call: what was done can still be undone."""
        tree, start = self.tree, self.start
        if start is None:
            return
        try:
            names = tree.changed_since(start)
        except FilesystemError as error:
            _logger.warning("%s: cannot tell what was changed: %s", tree.root, error)
            names = (tree.root,)
        for name in names if len(names) <= _TOUCHED else (f"{len(names)} paths in {tree.root}",):
            scope.touch("files", name)

    @property
    def _is_forked(self) -> bool:
        """A forked process ends its copy of a scope; the directory is its parent's."""
        return os.getpid() != self.tree._pid

    def prepare(self, scope: Scope, /) -> None:  # noqa: ARG002
        if self._is_forked:
            raise TreeBusyError.forked(self.tree.root)

    def settle(self) -> None:
        """Refuses the commit if it cannot be noted. Where a session's log has decided, the log is asked instead."""
        with self.tree._mutex:
            if self._is_outermost:
                self.tree._store.done()
                self._settled = True

    def commit(self) -> None:
        with self.tree._mutex:
            self.tree._ended(self)

    def rollback(self) -> None:
        """May be run again when it was interrupted."""
        tree = self.tree
        if self._is_forked:
            return
        with tree._mutex:
            try:
                self._undo(tree)
            except Exception:
                # The mark stays: whoever opens the tree next tries again.
                tree._broken = True
                tree._ended(self)
                raise
            tree._ended(self)

    def _undo(self, tree: DirectoryTree) -> None:
        if self.start is not None:
            if self._settled:
                tree._store.begin(self.start.manifest, "")
            tree._put(self.start.manifest, tree._ignore)
        if self._is_outermost:
            tree._broken = False
            if tree._store.open_txn is not None:
                tree._store.done()

    def merge(self, parent: Scope, /) -> None:
        if parent.branch_of(self.tree) is None:
            parent.enlist(self.tree, self)
        else:
            with self.tree._mutex:
                self.tree._ended(self)
