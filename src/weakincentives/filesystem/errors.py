"""What a filesystem raises, and the words a model reads when it does: what is wrong, then what to do next.

FilesystemError                              (weakincentives.errors)
├── FileMissingError(FileNotFoundError)      nothing there
├── FileAlreadyExistsError(FileExistsError)  something there that would be lost
├── FileIsDirectoryError(IsADirectoryError)  a file was wanted
├── NotDirectoryError(NotADirectoryError)    a directory was wanted
├── DirectoryNotEmptyError                   deleting it needs recursive=True
├── ReadOnlyFileError(PermissionError)       protected by the owner of the filesystem
├── PathEscapeError(PermissionError)         leads out of the root; refused, never clamped
├── FileBusyError(BlockingIOError)           another transaction is changing it
├── SpecialFileError                         a device, pipe or socket
├── FileAccessError(PermissionError)         the system denies it
├── DiskError                                the disk failed, is full, or is another one
├── JournalError                             the undo journal of a disk tree cannot be used
├── FileTooLargeError(ValueError)            more than can be taken at once
├── InvalidPathError(ValueError)             not a path here
├── InvalidPatternError(ValueError)          not a glob or regular expression here
└── BinaryContentError(ValueError)           bytes that are not text, or text that is not bytes

Each takes its whole message, so that a backend may say more; the class methods are the usual words.
"""

from __future__ import annotations

from typing import TypeVar

from ..errors import FilesystemError

_E = TypeVar("_E", bound=FilesystemError)


class FileMissingError(FilesystemError, FileNotFoundError):
    """There is nothing at that path."""

    @classmethod
    def file(cls: type[_E], path: str) -> _E:
        return cls(
            f"File not found: {path}\nList the directory to see what is there, then retry with an existing path."
        )

    @classmethod
    def directory(cls: type[_E], path: str) -> _E:
        return cls(
            f"Directory not found: {path}\nList a directory above it to see what is there, then retry with an existing path."
        )


class FileAlreadyExistsError(FilesystemError, FileExistsError):
    """There is something at that path, and it would be lost."""

    @classmethod
    def file(cls: type[_E], path: str) -> _E:
        return cls(f"File already exists: {path}\nSet overwrite=true to replace it, then retry")

    @classmethod
    def not_a_directory(cls: type[_E], path: str) -> _E:
        return cls(f"Cannot make directory {path}: a file has that name\nChoose another name, then retry.")


class FileIsDirectoryError(FilesystemError, IsADirectoryError):
    """A file was wanted, a directory was named."""

    @classmethod
    def at(cls: type[_E], path: str) -> _E:
        return cls(f"Not a file: {path} is a directory\nName a file inside it, then retry.")


class NotDirectoryError(FilesystemError, NotADirectoryError):
    """A directory was wanted, a file was named."""

    @classmethod
    def at(cls: type[_E], path: str) -> _E:
        return cls(f"Not a directory: {path} is a file\nUse a path that does not lead through it, then retry.")


class DirectoryNotEmptyError(FilesystemError):
    """The directory holds something."""

    @classmethod
    def at(cls: type[_E], path: str) -> _E:
        return cls(f"Directory not empty: {path}\nSet recursive=true to delete it with everything inside, then retry.")


class ReadOnlyFileError(FilesystemError, PermissionError):
    """The owner of the filesystem protects this path."""

    @classmethod
    def at(cls: type[_E], path: str) -> _E:
        return cls(f"Cannot change {path}: it is read-only\nCopy it to another path and work on the copy.")

    @classmethod
    def inside(cls: type[_E], path: str, protected: str) -> _E:
        return cls(
            f"Cannot remove {path}: it holds {protected}, which is read-only\nRemove the other files one by one."
        )


class PathEscapeError(FilesystemError, PermissionError):
    """The path leads out of the root."""

    @classmethod
    def at(cls: type[_E], path: str) -> _E:
        return cls(
            f"Path leads outside: {path}\nOnly paths below the top directory exist here; use one without the extra '..'."
        )

    @classmethod
    def link(cls: type[_E], path: str, link: str) -> _E:
        return cls(
            f"Path leads outside: {path} goes through the link {link}, which points out of the top directory\n"
            "Cannot be followed; use a path without it."
        )

    @classmethod
    def absolute(cls: type[_E], path: str, link: str) -> _E:
        return cls(
            f"Path leads outside: {path} goes through the link {link}, which is absolute\n"
            "Cannot be followed; use a path without it."
        )


class FileBusyError(FilesystemError, BlockingIOError):
    """Another transaction is changing the path, and nobody waits for it here."""

    @classmethod
    def at(cls: type[_E], path: str) -> _E:
        return cls(
            f"Cannot change {path} now: another tool call is changing it\nWork on something else first, then retry."
        )


class SpecialFileError(FilesystemError):
    """A device, pipe or socket: reading it might never end."""

    @classmethod
    def at(cls: type[_E], path: str) -> _E:
        return cls(f"Cannot use {path}: it is a device, pipe or socket\nChoose a regular file.")

    @classmethod
    def inside(cls: type[_E], path: str, special: str) -> _E:
        return cls(
            f"Cannot copy {path}: it holds {special}, a device, pipe or socket\nCopy the other files one by one."
        )


class FileAccessError(FilesystemError, PermissionError):
    """The operating system denies it."""

    @classmethod
    def at(cls: type[_E], verb: str, path: str) -> _E:
        return cls(f"Cannot {verb} {path}: the system denies access\nChoose another path.")


class DiskError(FilesystemError):
    """The disk failed, is full, or is not the one the tree is on."""

    @classmethod
    def failed(cls: type[_E], verb: str, path: str, reason: str) -> _E:
        return cls(f"Cannot {verb} {path}: {reason}\nThis call changed nothing there.")

    @classmethod
    def elsewhere(cls: type[_E], path: str) -> _E:
        return cls(
            f"Cannot change {path}: it lies on another disk than the top directory\nCopy it to another path and work on the copy."
        )


class JournalError(FilesystemError):
    """The undo journal cannot be used; for the owner of the tree, not for a model."""

    @classmethod
    def undecided(cls: type[_E], root: str, sessions: str, folder: str) -> _E:
        return cls(
            f"Cannot open {root}: a transaction was interrupted there, and whether it counts is known to session {sessions}. "
            f"Pass session=Session.open(…) with its file. To keep the files as they are now, remove {folder}."
        )

    @classmethod
    def forged(cls: type[_E], root: str, folder: str) -> _E:
        return cls(
            f"Cannot open {root}: its journal {folder} holds a record that was not written by this program. "
            "To keep the files as they are now, remove that folder."
        )

    @classmethod
    def gone(cls: type[_E], root: str) -> _E:
        return cls(
            f"Cannot write to {root}: the directory or its journal was removed meanwhile. Open the filesystem anew."
        )

    @classmethod
    def closed(cls: type[_E], root: str) -> _E:
        return cls(f"Cannot use {root}: this filesystem has been closed.")

    @classmethod
    def forked(cls: type[_E], root: str) -> _E:
        return cls(f"Cannot write to {root} in a forked process: the transaction belongs to the process that began it.")


class FileTooLargeError(FilesystemError, ValueError):
    """More than can be taken at once."""

    @classmethod
    def searching(cls: type[_E], path: str, size: int, most: int) -> _E:
        return cls(f"Cannot search {path}: it has {size} bytes, at most {most} are searched\nChoose a smaller file.")


class InvalidPathError(FilesystemError, ValueError):
    """The text cannot name a file here."""

    @classmethod
    def because(cls: type[_E], path: str, reason: str, advice: str) -> _E:
        # repr: the very character that is refused must not reach the reader raw.
        shown = path if path.isprintable() and len(path) <= _SHOWN else repr(path[:_SHOWN])
        return cls(
            f"Invalid path {shown}: {reason}\n{advice}, then retry."
            if path
            else f"Invalid path: {reason}\n{advice}, then retry."
        )

    @classmethod
    def root(cls: type[_E], verb: str) -> _E:
        return cls(f"Cannot {verb} the top directory\nName something inside it, then retry.")

    @classmethod
    def into_itself(cls: type[_E], verb: str, source: str, target: str) -> _E:
        return cls(
            f"Cannot {verb} {source} to {target}: the target lies inside the source\nChoose a target outside, then retry."
        )


_SHOWN = 200


class InvalidPatternError(FilesystemError, ValueError):
    """The text is not a pattern we can search for."""

    @classmethod
    def glob(cls: type[_E], pattern: str, reason: str) -> _E:
        return cls(
            f"Invalid glob {pattern!r}: {reason}\nExamples: '*.py', 'src/**/*.md', '*/' for directories. Correct it, then retry."
        )

    @classmethod
    def regex(cls: type[_E], pattern: str, reason: str) -> _E:
        return cls(
            f"Invalid regular expression {pattern!r}: {reason}\n"
            "Lookaround and backreferences are not available; escape special characters to find them literally. Correct it, then retry."
        )

    @classmethod
    def limit(cls: type[_E], limit: object) -> _E:
        return cls(f"Invalid limit {limit!r}: expected a number of results, 0 or more\nCorrect it, then retry.")


class BinaryContentError(FilesystemError, ValueError):
    """The bytes are not text, or the text has no bytes."""

    @classmethod
    def reading(cls: type[_E], path: str, size: int) -> _E:
        return cls(f"Cannot read {path} as text: it is a binary file ({size} bytes)\nChoose a text file.")

    @classmethod
    def writing(cls: type[_E], path: str, position: int) -> _E:
        return cls(
            f"Cannot write {path}: the character at position {position} of the content is half of a pair and has no UTF-8 form\n"
            "Remove or replace it, then retry."
        )
