"""The files as model-written code sees them: answers its requests from a Filesystem, within limits.

Decides what a request means and when there were too many. A request that fails raises a `FilesystemError` for the code
to see; a limit raises `FilesExhausted`, which ends the evaluation. Paths are judged by the filesystem alone.
"""

from __future__ import annotations

from ...errors import FilesystemError
from ...filesystem import Filesystem
from .evaluation import EvaluationLimits


class FilesExhausted(Exception):
    """The evaluation has used files too much; it ends here."""


class NoFilesError(FilesystemError, PermissionError):
    """There is no filesystem to ask."""


class FileAccess:
    """What one evaluation does with files. Made per call over the filesystem of its context; its writes roll back with it."""

    __slots__ = ("_bytes", "_filesystem", "_limits", "_operations")

    def __init__(self, filesystem: Filesystem | None, limits: EvaluationLimits) -> None:
        self._filesystem = filesystem
        self._limits = limits
        self._operations = 0
        self._bytes = 0

    def read_bytes(self, path: str) -> bytes:
        files = self._files()
        if files.is_file(path):
            self._spend(files.stat(path).size)  # before it is read: a huge file must not reach memory
        return files.read_bytes(path)

    def read_text(self, path: str) -> str:
        files = self._files()
        if files.is_file(path):
            self._spend(files.stat(path).size)
        return files.read(path)

    def write(self, path: str, content: str | bytes) -> int:
        self._spend(_size(content))
        self._files().write(path, content)
        return len(content)

    def append(self, path: str, content: str | bytes) -> int:
        files = self._files()
        # The whole file is written again, so the whole file counts.
        self._spend(_size(content) + (files.stat(path).size if files.is_file(path) else 0))
        files.append(path, content)
        return len(content)

    def create(self, path: str) -> None:
        """Make sure that a file is there, and leave its content alone."""
        files = self._files()
        if not files.is_file(path):
            files.write(path, "")

    def require(self, path: str) -> None:
        """Raise unless a file is there to be read."""
        files = self._files()
        if not files.is_file(path):
            files.read_bytes(path)  # raises, with the words of the filesystem

    def list(self, path: str) -> list[str]:
        return self._files().list(path)

    def exists(self, path: str) -> bool:
        return self._files().exists(path)

    def is_file(self, path: str) -> bool:
        return self._files().is_file(path)

    def is_dir(self, path: str) -> bool:
        return self._files().is_dir(path)

    def size(self, path: str) -> int:
        return self._files().stat(path).size

    def mkdir(self, path: str) -> None:
        self._files().mkdir(path)

    def delete(self, path: str) -> None:
        self._files().delete(path)

    def move(self, src: str, dst: str) -> None:
        files = self._files()
        if files.is_file(src):
            self._spend(files.stat(src).size)
        files.move(src, dst)

    def _files(self) -> Filesystem:
        self._operations += 1
        if self._operations > self._limits.file_operations:
            raise FilesExhausted(f"more than {self._limits.file_operations} file operations")
        if self._filesystem is None:
            raise NoFilesError("There are no files here: no filesystem is bound to this prompt.")
        return self._filesystem

    def _spend(self, amount: int) -> None:
        self._bytes += amount
        if self._bytes > self._limits.file_bytes:
            raise FilesExhausted(f"more than {self._limits.file_bytes} bytes read and written")


def builtin_name(error: FilesystemError) -> str:
    """What Python code knows the error by."""
    return next((each.__name__ for each in type(error).__mro__ if each.__name__ in _BUILTIN), "OSError")


_BUILTIN = {
    "FileNotFoundError",
    "FileExistsError",
    "IsADirectoryError",
    "NotADirectoryError",
    "PermissionError",
    "ValueError",
}


def _size(content: str | bytes) -> int:
    return len(content) if isinstance(content, bytes) else len(content.encode("utf-8", "surrogatepass"))
