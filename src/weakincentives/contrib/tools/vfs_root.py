"""The root a model sees: decides which file a path means when the files are shown below a prefix, and the way back.

With root "/workspace" both `/workspace/a.txt` and `a.txt` (and, as everywhere, `workspace/a.txt`) are the file `a.txt`
of the filesystem; any other absolute path is refused, never bent. With root "/" paths pass through as they are.
"""

from __future__ import annotations

from ...errors import FilesystemError, PromptValidationError
from ...filesystem import InvalidPatternError, PathEscapeError, normalize
from ...filesystem.paths import ROOT, is_inside


class VisibleRoot:
    """The prefix of one section. Made with it, never changed."""

    __slots__ = ("_prefix", "path")

    def __init__(self, path: str) -> None:
        try:
            self._prefix = normalize(path)
        except (FilesystemError, TypeError) as error:
            raise PromptValidationError(f"VfsConfig: root cannot be {path!r}: {error}") from error
        self.path = ROOT if self._prefix == ROOT else f"/{self._prefix}"
        """As the model writes it."""

    def resolve(self, path: str) -> str:
        """The path in the filesystem that the model means by `path`; raises a `FilesystemError`."""
        if self._prefix == ROOT:
            return path
        place = normalize(path)
        if is_inside(place, self._prefix):
            return place[len(self._prefix) + 1 :] or ROOT
        if path.startswith("/"):
            raise PathEscapeError(
                f"Path leads outside: {path}\nFiles here lie below {self.path}; retry with a path that starts with "
                f"{self.path}/ or with no slash."
            )
        return place

    def resolve_glob(self, pattern: str) -> str:
        """The same for a glob: one that starts at the root starts at the filesystem's."""
        if self._prefix == ROOT or not pattern.startswith("/"):
            return pattern
        if pattern.startswith(f"{self.path}/"):
            return pattern[len(self.path) :]
        raise InvalidPatternError(
            f"Invalid glob {pattern!r}: files here lie below {self.path}\nStart it with {self.path}/ or with no slash, "
            "then retry."
        )

    def show(self, place: str) -> str:
        """The canonical path `place` of the filesystem as the model should see it."""
        if self._prefix == ROOT:
            return place
        return self.path if place == ROOT else f"{self.path}/{place}"
