"""A filesystem in memory: decides how files lie in one immutable root, and how each write is an operation on it.

A root maps every path to its `File` or `Folder`, so a write costs the same among ten files and a hundred thousand, and
a snapshot is the root itself. Operations touch only the paths they name: replayed on a root that somebody else changed,
they keep his files. What cannot be replayed (he made a directory where a file was written) raises and refuses the
commit. Never touches a disk.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast, final

from immutables import Map

from ..transaction import Mark, Store, current_scope
from . import pattern as globs
from .errors import (
    DirectoryNotEmptyError,
    FileAlreadyExistsError,
    FileIsDirectoryError,
    FileMissingError,
    InvalidPathError,
    NotDirectoryError,
    ReadOnlyFileError,
)
from .paths import ROOT, join, normalize, split
from .protocol import FileStat, Filesystem, Names, content_digest, encoded

# -- the root ----------------------------------------------------------------------------------------------------------


@final
class File:
    """The content of one file. Never changed; a write makes another."""

    __slots__ = ("_digest", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._digest = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and self.content == other.content

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def digest(self) -> str:
        """Computed when first asked for."""
        if not self._digest:
            self._digest = content_digest(self.content)
        return self._digest


@final
class Folder:
    """The names in one directory; True for directories. Never changed."""

    __slots__ = ("names",)

    def __init__(self, names: Map[str, bool]) -> None:
        self.names = names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self.names == other.names

    __hash__ = None  # pyright: ignore[reportAssignmentType]


Node: TypeAlias = File | Folder
Root: TypeAlias = Map[str, Node]

_EMPTY_FOLDER = Folder(Map())
_EMPTY: Root = Map({ROOT: _EMPTY_FOLDER})


def _with_folder(root: Root, path: str) -> Root:
    """The root with a directory at `path` and above."""
    node = root.get(path)
    if node is None:
        return _with_new(root, path, _EMPTY_FOLDER)
    if type(node) is File:
        raise NotDirectoryError.at(path)
    return root


def _with_new(root: Root, path: str, node: Node) -> Root:
    """The root with `node` at a path that is free."""
    directory, name = split(path)
    root = _with_folder(root, directory)
    folder = cast("Folder", root[directory])
    return root.set(directory, Folder(folder.names.set(name, type(node) is Folder))).set(path, node)


def _without(root: Root, path: str) -> Root:
    directory, name = split(path)
    folder = cast("Folder", root[directory])
    return root.set(directory, Folder(folder.names.delete(name))).delete(path)


def _loaded(files: Mapping[str, str | bytes]) -> Root:
    """The root that holds `files`; the same as writing one after the other, but each directory is made once."""
    nodes: dict[str, Node] = {}
    names: dict[str, dict[str, bool]] = {ROOT: {}}
    for given, content in files.items():
        path = normalize(given)
        if path in names:
            raise FileIsDirectoryError.at(path)
        nodes[path] = File(encoded(given, content))
        is_dir, known = False, False
        while not known:
            directory, name = split(path)
            if directory in nodes:
                raise NotDirectoryError.at(directory)
            known = directory in names
            names.setdefault(directory, {})[name] = is_dir
            path, is_dir = directory, True
    nodes.update((directory, Folder(Map(inside))) for directory, inside in names.items())
    return Map(nodes)


def _below(root: Root, path: str) -> Iterator[tuple[str, Node]]:
    """Everything below a directory, each directory before what is in it."""
    todo = [path]
    while todo:
        directory = todo.pop()
        for name in cast("Folder", root[directory]).names:
            place = join(directory, name)
            node = root[place]
            yield place, node
            if type(node) is Folder:
                todo.append(place)


# -- operations --------------------------------------------------------------------------------------------------------


class Put:
    """Create or replace a file."""

    __slots__ = ("file", "path")

    def __init__(self, path: str, file: File) -> None:
        self.path = path
        self.file = file

    def __call__(self, root: Root) -> Root:
        node = root.get(self.path)
        if node is None:
            return _with_new(root, self.path, self.file)
        if type(node) is Folder:
            raise FileIsDirectoryError.at(self.path)
        return root.set(self.path, self.file)


class Append:
    """Add to the end of a file; what others added meanwhile stays."""

    __slots__ = ("content", "path")

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self.content = content

    def __call__(self, root: Root) -> Root:
        node = root.get(self.path)
        if node is None:
            return _with_new(root, self.path, File(self.content))
        if type(node) is Folder:
            raise FileIsDirectoryError.at(self.path)
        return root.set(self.path, File(node.content + self.content))


class Remove:
    """Remove a file; nothing if it is gone already."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, root: Root) -> Root:
        return _without(root, self.path) if type(root.get(self.path)) is File else root


class MakeFolder:
    """Make a directory and those above it."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, root: Root) -> Root:
        return _with_folder(root, self.path)


class Prune:
    """Remove a directory if it is empty: what others put there meanwhile stays."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, root: Root) -> Root:
        node = root.get(self.path)
        return _without(root, self.path) if type(node) is Folder and not node.names and self.path != ROOT else root


class Batch:
    """Several operations as one."""

    __slots__ = ("ops",)

    def __init__(self, ops: tuple[Op, ...]) -> None:
        self.ops = ops

    def __call__(self, root: Root) -> Root:
        for op in self.ops:
            root = op(root)
        return root


class Reset:
    """Put another root in place of the present one, whatever that holds."""

    __slots__ = ("root",)

    def __init__(self, root: Root) -> None:
        self.root = root

    def __call__(self, root: Root) -> Root:  # noqa: ARG002
        return self.root


Step: TypeAlias = Put | Append | Remove | MakeFolder | Prune
Op: TypeAlias = Step | Batch | Reset
Steps: TypeAlias = list[Step]


def _difference(now: Root, then: Root) -> Steps:
    """What makes `now` equal to `then`; reads all of both."""
    removes: Steps = []
    prunes: list[str] = []
    folders: Steps = []
    puts: Steps = []
    for path, node in now.items():
        if type(then.get(path)) is not type(node):
            if type(node) is Folder:
                prunes.append(path)
            else:
                removes.append(Remove(path))
    for path, node in then.items():
        there = now.get(path)
        if type(node) is File:
            if there is not node and there != node:
                puts.append(Put(path, node))
        elif type(there) is not Folder:
            folders.append(MakeFolder(path))
    # The deepest directory first: a path sorts before everything below it.
    prunes.sort(reverse=True)
    return [*removes, *map(Prune, prunes), *folders, *puts]


# -- the filesystem ----------------------------------------------------------------------------------------------------


class FilesSnapshot:
    """All files at one moment. Opaque; equal to another one that holds the same files."""

    __slots__ = ("_mark", "_store")

    def __init__(self, store: Store[Root], mark: Mark[Root]) -> None:
        self._store = store
        self._mark = mark

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FilesSnapshot) and self._mark.root == other._mark.root

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class InMemoryFilesystem(Filesystem):
    """Files in memory. Each write belongs to the transaction of the call that makes it, or takes effect at once: so does
    one by a thread that was started without the call's context (`contextvars.copy_context`).

    `readonly` protects paths: True for all, or globs. A glob without a slash goes by name anywhere (`*.lock`), one with
    a slash by whole path (`docs/**`); what protects a directory protects all that is in it.
    """

    __slots__ = ("__weakref__", "_readonly", "store")

    __transactional__ = True
    """Scopes need no snapshot of it: its writes lie in their overlays."""

    def __init__(
        self, files: Mapping[str, str | bytes] | None = None, *, readonly: bool | str | Iterable[str] = ()
    ) -> None:
        self._readonly = globs.parse_protection(readonly)
        self.store: Store[Root] = Store(_loaded(files) if files else _EMPTY, "files")
        """Where a durable session attaches its log."""

    # -- reading ---------------------------------------------------------------------------------------------------

    def read_bytes(self, path: str) -> bytes:
        return self._file(normalize(path)).content

    def digest(self, path: str) -> str:
        return self._file(normalize(path)).digest

    def list(self, path: str = ROOT) -> Names:
        return sorted(self._children(normalize(path)))

    def stat(self, path: str) -> FileStat:
        path = normalize(path)
        node = self._view().get(path)
        if node is None:
            raise FileMissingError.file(path)
        readonly = self._protects(path)
        if type(node) is File:
            return FileStat(path, "file", len(node.content), readonly, 0o444 if readonly else 0o644)
        return FileStat(path, "directory", 0, readonly, 0o555 if readonly else 0o755)

    def is_readonly(self, path: str) -> bool:
        return self._protects(normalize(path))

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, path: str, content: str | bytes) -> None:
        self._put(path, encoded(path, content))

    def write_bytes(self, path: str, content: bytes) -> None:
        self._put(path, content if type(content) is bytes else encoded(path, content))

    def _put(self, path: str, content: bytes) -> None:
        path = normalize(path)
        if self._readonly:
            self._check_writable(path)
        self.store.apply(Put(path, File(content)), current_scope(), "files", path)

    def append(self, path: str, content: str | bytes) -> None:
        op = Append(normalize(path), encoded(path, content))
        self._check_writable(op.path)
        self.store.apply(op, current_scope(), "files", op.path)

    def mkdir(self, path: str) -> None:
        path = normalize(path)
        root = self._view()
        if type(root.get(path)) is File:
            raise FileAlreadyExistsError.not_a_directory(path)
        if path not in root:
            self._check_writable(path)
        self.store.apply(MakeFolder(path), current_scope(), "files", path)

    def delete(self, path: str, recursive: bool = False) -> None:
        path = normalize(path)
        root = self._view()
        node = root.get(path)
        if node is None:
            raise FileMissingError.file(path)
        if path == ROOT:
            raise InvalidPathError.root("delete")
        self._check_writable(path)
        if type(node) is File:
            self.store.apply(Remove(path), current_scope(), "files", path)
            return
        if node.names and not recursive:
            raise DirectoryNotEmptyError.at(path)
        self._apply_all(self._removal(root, path))

    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        source, target = self._check_transfer("copy", src, dst, overwrite)
        self._check_writable(target)
        self._apply_all(_transfer(self._view(), source, target))

    def move(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        source, target = self._check_transfer("move", src, dst, overwrite)
        self._check_writable(source)
        self._check_writable(target)
        root = self._view()
        steps = _transfer(root, source, target)
        self._apply_all(steps if source == target else [*steps, *self._removal(root, source)])

    # -- going back, going on elsewhere ----------------------------------------------------------------------------

    def snapshot(self) -> FilesSnapshot:
        """All files as this call sees them now; costs the same however many there are."""
        return FilesSnapshot(self.store, self.store.mark(current_scope()))

    def restore(self, snapshot: FilesSnapshot, /) -> None:
        """Put all files back as they were; a write of the present call, if there is one.

        In the transaction that took the snapshot, or began from it, only its own later writes are dropped. Elsewhere it
        undoes what anybody wrote since: at once outside of a transaction; inside one (or with a durable log) path by
        path, after reading all of both.
        """
        if not isinstance(snapshot, FilesSnapshot):
            raise TypeError(f"Expected a snapshot of an InMemoryFilesystem, got {type(snapshot).__qualname__}")
        scope = current_scope()
        mark = snapshot._mark
        if scope is not None:
            if snapshot._store is self.store and self.store.drop_since(mark, scope, "files"):
                return
            scope.check_writable("files")
        elif self.store.log is None:
            self.store.apply(Reset(mark.root), None)
            return
        self._apply_all(_difference(self._view(), mark.root))

    def fork(self) -> InMemoryFilesystem:
        """Another filesystem that starts with the files this call sees now; costs the same however many there are."""
        other = InMemoryFilesystem()
        other._readonly = self._readonly
        other.store = Store(self._view(), "files")
        return other

    def checkpoint(self) -> Op:
        """One operation that makes any filesystem hold what this one holds: the beginning of a durable log."""
        return Reset(self._view())

    @staticmethod
    def encode_op(op: Op) -> dict[str, Any]:
        """The operation as JSON-compatible data."""
        return _encode(op)

    @staticmethod
    def decode_op(data: Mapping[str, Any]) -> Op:
        """The operation that `encode_op` wrote; raises `ValueError` for anything else."""
        try:
            return _decode(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"Not a file operation: {data!r}") from error

    # -- what they stand on ----------------------------------------------------------------------------------------

    def _view(self) -> Root:
        return self.store.view(current_scope())

    def _file(self, path: str) -> File:
        node = self.store.view(current_scope()).get(path)
        if node is None:
            raise FileMissingError.file(path)
        if type(node) is Folder:
            raise FileIsDirectoryError.at(path)
        return node

    def _kind(self, path: str) -> Literal["file", "directory"] | None:
        node = self._view().get(normalize(path))
        return None if node is None else "file" if type(node) is File else "directory"

    def _children(self, path: str) -> Mapping[str, bool]:
        node = self._view().get(path)
        if node is None:
            raise FileMissingError.directory(path)
        if type(node) is File:
            raise NotDirectoryError.at(path)
        return node.names

    def _size_on_disk(self, path: str) -> int:  # noqa: ARG002
        return 0

    def _walk(self, path: str) -> Iterator[tuple[str, bool]]:
        return ((place, type(node) is Folder) for place, node in _below(self._view(), path))

    def _protects(self, path: str) -> bool:
        return globs.protects(self._readonly, path)

    def _check_writable(self, path: str) -> None:
        if self._protects(path):
            raise ReadOnlyFileError.at(path)

    def _removal(self, root: Root, path: str) -> Steps:
        """Remove a file or directory as it is now: each path by name, so that what others add meanwhile stays."""
        if type(root.get(path)) is not Folder:
            return [Remove(path)]
        removes: Steps = []
        folders = [path]
        for place, node in _below(root, path):
            if self._protects(place):
                raise ReadOnlyFileError.inside(path, place)
            if type(node) is Folder:
                folders.append(place)
            else:
                removes.append(Remove(place))
        return [*removes, *map(Prune, reversed(folders))]

    def _apply_all(self, steps: Steps) -> None:
        if not steps:
            return
        scope = current_scope()
        self.store.apply(Batch(tuple(steps)), scope, "files", steps[0].path)
        if scope is not None:
            for step in steps:
                scope.touch("files", step.path)


def _transfer(root: Root, source: str, target: str) -> Steps:
    """Put at `target` what lies at `source` now."""
    node = root.get(source)
    if node is None:
        raise FileMissingError.file(source)
    if type(node) is File:
        return [Put(target, node)]
    steps: Steps = [MakeFolder(target)]
    for place, below in _below(root, source):
        there = target + place[len(source) :]
        steps.append(Put(there, below) if type(below) is File else MakeFolder(there))
    return steps


# -- operations as data ------------------------------------------------------------------------------------------------


def _encode(op: Op) -> dict[str, Any]:
    match op:
        case Put():
            return {"op": "put", "path": op.path, **_encode_content(op.file.content)}
        case Append():
            return {"op": "append", "path": op.path, **_encode_content(op.content)}
        case Remove():
            return {"op": "remove", "path": op.path}
        case MakeFolder():
            return {"op": "mkdir", "path": op.path}
        case Prune():
            return {"op": "prune", "path": op.path}
        case Batch():
            return {"op": "batch", "ops": [_encode(part) for part in op.ops]}
        case Reset():
            return {"op": "reset", "ops": [_encode(part) for part in _difference(_EMPTY, op.root)]}


def _encode_content(content: bytes) -> dict[str, str]:
    # Text stays readable in the log, and a quarter smaller.
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _decode(data: Mapping[str, Any]) -> Op:
    match data["op"]:
        case "put":
            return Put(normalize(data["path"]), File(_decode_content(data)))
        case "append":
            return Append(normalize(data["path"]), _decode_content(data))
        case "remove":
            return Remove(normalize(data["path"]))
        case "mkdir":
            return MakeFolder(normalize(data["path"]))
        case "prune":
            return Prune(normalize(data["path"]))
        case "batch":
            return Batch(tuple(map(_decode, data["ops"])))
        case "reset":
            return Reset(Batch(tuple(map(_decode, data["ops"])))(_EMPTY))
        case _:
            raise KeyError("op")


def _decode_content(data: Mapping[str, Any]) -> bytes:
    text: Any = data.get("text")
    return base64.b64decode(data["base64"], validate=True) if text is None else text.encode()
