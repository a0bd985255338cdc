"""Files for tools: one protocol, one way to name a file, and a transactional filesystem in memory."""

from __future__ import annotations

from .errors import (
    BinaryContentError,
    DirectoryNotEmptyError,
    FileAlreadyExistsError,
    FileIsDirectoryError,
    FileMissingError,
    InvalidPathError,
    InvalidPatternError,
    NotDirectoryError,
    PathEscapeError,
    ReadOnlyFileError,
)
from .memory import FilesSnapshot, InMemoryFilesystem
from .paths import normalize
from .protocol import FileStat, Filesystem, GrepMatch
from .tree import DirectoryTree, TreeSnapshot
from .tree_errors import TreeBusyError, TreeSnapshotError, TreeStoreError

__all__ = [
    "BinaryContentError",
    "DirectoryNotEmptyError",
    "DirectoryTree",
    "FileAlreadyExistsError",
    "FileIsDirectoryError",
    "FileMissingError",
    "FileStat",
    "FilesSnapshot",
    "Filesystem",
    "GrepMatch",
    "InMemoryFilesystem",
    "InvalidPathError",
    "InvalidPatternError",
    "NotDirectoryError",
    "PathEscapeError",
    "ReadOnlyFileError",
    "TreeBusyError",
    "TreeSnapshot",
    "TreeSnapshotError",
    "TreeStoreError",
    "normalize",
]
