"""What a directory tree raises, and the words for it: what is wrong, then what to do next.

FilesystemError
├── TreeSnapshotError    something in the tree cannot be held, so no program may run yet
├── TreeBusyError        somebody else has the tree
└── TreeStoreError       the folder where copies are kept cannot be used
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import FilesystemError

_SHOWN = 5


def shown(path: str) -> str:
    """A path as a reader may see it; the root is a dot."""
    return path if path.isprintable() and path else repr(path) if path else "."


def listed(paths: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(shown(path) for path in paths[:_SHOWN]) + more


class TreeSnapshotError(FilesystemError):
    """The snapshot would not hold everything, so it was not taken."""

    @classmethod
    def unheld(cls, problems: Sequence[tuple[str, str]]) -> TreeSnapshotError:
        lines = [f"- {shown(path)}: {why}" for path, why in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            lines.append(f"- and {len(problems) - _SHOWN} more")
        return cls(
            "Cannot take a snapshot of the directory, so nothing was run:\n"
            + "\n".join(lines)
            + "\nMake them readable, raise max_file_bytes, or name them in ignore=, then retry."
        )

    @classmethod
    def restless(cls, root: str) -> TreeSnapshotError:
        return cls(
            f"Cannot take a snapshot of {shown(root)}: directories in it move while they are read\n"
            "Stop the programs that work there, then retry."
        )


class TreeBusyError(FilesystemError):
    """Only one transaction at a time can tell its own changes in a directory from anybody else's."""

    @classmethod
    def transaction(cls, root: str) -> TreeBusyError:
        return cls(
            f"Another call is changing {shown(root)}, and two at a time could not be told apart\n"
            "Wait until it has ended, then retry."
        )

    @classmethod
    def elsewhere(cls, root: str) -> TreeBusyError:
        return cls(
            f"{shown(root)} is open as a DirectoryTree already, here or in another process\n"
            "Share that one, or wait until it is closed, then retry."
        )

    @classmethod
    def closed(cls, root: str) -> TreeBusyError:
        return cls(f"The DirectoryTree of {shown(root)} is closed and cannot be used. Open another one.")

    @classmethod
    def forked(cls, root: str) -> TreeBusyError:
        return cls(
            f"The DirectoryTree of {shown(root)} belongs to the process that opened it and cannot be used in a fork."
        )

    @classmethod
    def unrestored(cls, root: str) -> TreeBusyError:
        return cls(
            f"{shown(root)} could not be put back by an earlier call and cannot be used as it is\n"
            "Close this DirectoryTree; the next one that is opened there tries again."
        )


class TreeStoreError(FilesystemError):
    """The store cannot be made, read or trusted."""
