"""Files for tools: one protocol, one way to name a file, and transactional filesystems in memory and on disk."""

from __future__ import annotations

from .errors import (
    BinaryContentError,
    DirectoryNotEmptyError,
    DiskError,
    FileAccessError,
    FileAlreadyExistsError,
    FileBusyError,
    FileIsDirectoryError,
    FileMissingError,
    FileTooLargeError,
    InvalidPathError,
    InvalidPatternError,
    JournalError,
    NotDirectoryError,
    PathEscapeError,
    ReadOnlyFileError,
    SpecialFileError,
)
from .host import HostFilesystem
from .journal import HostSnapshot
from .memory import FilesSnapshot, InMemoryFilesystem
from .paths import normalize
from .protocol import FileStat, Filesystem, GrepMatch
from .tree import DirectoryTree, TreeSnapshot
from .tree_errors import TreeBusyError, TreeSnapshotError, TreeStoreError

__all__ = [
    "BinaryContentError",
    "DirectoryNotEmptyError",
    "DirectoryTree",
    "DiskError",
    "FileAccessError",
    "FileAlreadyExistsError",
    "FileBusyError",
    "FileIsDirectoryError",
    "FileMissingError",
    "FileStat",
    "FileTooLargeError",
    "FilesSnapshot",
    "Filesystem",
    "GrepMatch",
    "HostFilesystem",
    "HostSnapshot",
    "InMemoryFilesystem",
    "InvalidPathError",
    "InvalidPatternError",
    "JournalError",
    "NotDirectoryError",
    "PathEscapeError",
    "ReadOnlyFileError",
    "SpecialFileError",
    "TreeBusyError",
    "TreeSnapshot",
    "TreeSnapshotError",
    "TreeStoreError",
    "normalize",
]
