"""The file tools: decides what each tool takes, does and says; the section brings them, their files and their policy.

The tools work on whatever `Filesystem` is bound to the prompt; the section's own one is used when nothing else is. The
host's disk is read only through mounts, once, while the section is built. How lines are shown is `vfs_view`'s part, how
text is replaced `vfs_edit`'s, what a path means `vfs_root`'s. Never catches what the filesystem raises: its words are
written for the model.
"""

from __future__ import annotations

import glob as stdlib_glob
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from ...errors import FilesystemError, PromptValidationError, ToolValidationError
from ...filesystem import FileAlreadyExistsError, Filesystem, InMemoryFilesystem, normalize
from ...filesystem.paths import ROOT, join
from ...frozen import frozen
from ...prompt import PolicyDecision, ReadBeforeWritePolicy, Section, Tool, ToolContext, ToolPolicy, ToolResult
from ...session import Session
from .mounts import HostMount, Mounted, copy_in
from .vfs_edit import edit, listed
from .vfs_root import VisibleRoot
from .vfs_view import count_lines, how_many_fit, is_binary, look, numbered, shorten

_logger = logging.getLogger(__name__)

_GREP_LINE_CHARS = 500
_LIST_LIMIT = 1_000
_MAX_BYTES = 256 * 1024 * 1024
_FILES_ONLY = {"write_file": "path", "edit_file": "path", "copy_file": "dst", "move_file": "dst"}

# -- what the model sends ----------------------------------------------------------------------------------------------


@frozen
class ReadFileParams:
    """Which lines of which file to read."""

    path: str
    """The file to read."""
    offset: Annotated[int, Ge(0)] = 1
    """Number of the first line to show, counted from 1."""
    limit: Annotated[int, Ge(1)] = 2_000
    """How many lines to show at most."""


@frozen
class WriteFileParams:
    """A whole file to write."""

    path: str
    """The file to write; directories above it are made."""
    content: str
    """The whole content, exactly as it shall be stored."""
    overwrite: bool = False
    """Set to true to replace a file that exists."""


@frozen
class EditFileParams:
    """A replacement inside a file."""

    path: str
    """The file to change."""
    old_string: str
    """The text to replace, exactly as in the file, without line numbers; it must occur exactly once."""
    new_string: str
    """The text to put there; empty to remove."""
    replace_all: bool = False
    """Set to true to replace every occurrence."""


@frozen
class ListDirectoryParams:
    """The directory to list."""

    path: str = "."
    """The directory to list; the top directory if left out."""


@frozen
class DeleteFileParams:
    """What to delete."""

    path: str
    """The file, or directory, to delete."""
    recursive: bool = False
    """Set to true to delete a directory with everything inside."""


@frozen
class GlobFilesParams:
    """Which files to find by name."""

    pattern: str
    """A glob such as '*.py', '**/*.md' or 'src/**/test_*.py'; '**' is any number of directories, '*/' finds directories."""
    path: str = "."
    """The directory to start from; the top directory if left out."""
    limit: Annotated[int, Ge(1), Le(1_000)] = 200
    """How many paths to show at most."""


@frozen
class GrepFilesParams:
    """Which lines to find by content."""

    pattern: str
    """A regular expression (RE2: no lookaround, no backreferences), matched within a line."""
    path: str = "."
    """The directory or file to search; the top directory if left out."""
    glob: str | None = None
    """Search only files that match: by name ('*.py'), or by path from the top directory if it has a slash ('src/**/*.py')."""
    ignore_case: bool = False
    """Set to true to treat capital and small letters alike."""
    context: Annotated[int, Ge(0), Le(20)] = 0
    """How many lines to show before and after each match."""
    limit: Annotated[int, Ge(1), Le(1_000)] = 100
    """How many matches to show at most."""


@frozen
class CopyFileParams:
    """What to copy where."""

    src: str
    """The file, or directory, to copy."""
    dst: str
    """The path of the copy itself, not of a directory to put it in."""
    overwrite: bool = False
    """Set to true to replace a file that exists."""


@frozen
class MoveFileParams:
    """What to move where."""

    src: str
    """The file, or directory, to move or rename."""
    dst: str
    """The new path itself, not that of a directory to put it in."""
    overwrite: bool = False
    """Set to true to replace a file that exists."""


# -- what it gets back -------------------------------------------------------------------------------------------------


@frozen
class ReadFileResult:
    """Lines of a file."""

    path: str
    content: str
    """The lines that were asked for, without numbers; empty for a binary file."""
    first_line: int
    last_line: int
    total_lines: int
    binary: bool = False

    def render(self) -> str:
        return numbered(self.content, self.first_line) if self.content else ""


@frozen
class FileChange:
    """What a tool did to a file; told in the message already."""

    change: Literal["created", "replaced", "edited", "deleted", "copied", "moved"]
    path: str
    """The file that is different now."""
    source: str = ""
    """Where a copied or moved one came from."""

    def render(self) -> str:
        return f"{self.change}: {self.path}"


@frozen
class DirectoryEntry:
    """A name in a directory."""

    name: str
    kind: Literal["file", "directory", "other"]
    """Other: a name that cannot be used, such as a link that leads nowhere or out."""
    size: int = 0
    readonly: bool = False

    def render(self) -> str:
        if self.kind == "other":
            return f"{self.name} (cannot be used)"
        if self.kind == "directory":
            return f"{self.name}/ (read-only)" if self.readonly else f"{self.name}/"
        return f"{self.name} ({_counted(self.size, 'byte')}{', read-only' if self.readonly else ''})"


@frozen
class DirectoryListing:
    """The names in a directory, as many as are shown."""

    path: str
    entries: tuple[DirectoryEntry, ...]

    def render(self) -> str:
        return "\n".join(entry.render() for entry in self.entries)


@frozen
class GlobFilesResult:
    """The paths that a glob names, as many as are shown."""

    paths: tuple[str, ...]
    total: int

    def render(self) -> str:
        return "\n".join(self.paths)


@frozen
class GrepLine:
    """A line that matches, or stands beside one that does."""

    path: str
    line_number: int
    line: str
    matches: bool = True

    def render(self) -> str:
        mark = ":" if self.matches else "-"
        return f"{self.path}{mark}{self.line_number}{mark} {shorten(self.line, _GREP_LINE_CHARS)}"


@frozen
class GrepFilesResult:
    """The lines that were found, as many as are shown."""

    lines: tuple[GrepLine, ...]
    in_context: bool = False
    """Whether lines around the matches are among them; then groups stand apart."""

    def render(self) -> str:
        text: list[str] = []
        before: GrepLine | None = None
        for line in self.lines:
            apart = before is not None and (before.path, before.line_number + 1) != (line.path, line.line_number)
            if apart and self.in_context:
                text.append("--")
            text.append(line.render())
            before = line
        return "\n".join(text)


# -- what is done ------------------------------------------------------------------------------------------------------


class _FileTools:
    """The handlers of one section. Made with it; what they work on comes with each call."""

    def __init__(self, root: VisibleRoot) -> None:
        self.root = root

    def read_file(self, params: ReadFileParams, *, context: ToolContext) -> ToolResult[ReadFileResult]:
        fs, place, shown = self._at(params.path, context)
        content = _content("read", fs, place, params.path)
        if is_binary(content):
            return ToolResult.ok(
                ReadFileResult(shown, "", 0, 0, 0, binary=True),
                f"{shown} is a binary file ({_counted(len(content), 'byte')}); its content cannot be shown.",
            )
        if not content:
            return ToolResult.ok(ReadFileResult(shown, "", 0, 0, 0), f"{shown} is empty.")
        first, total = max(params.offset, 1), count_lines(content)
        if first > total:
            raise ToolValidationError(
                f"Cannot read {params.path} from line {first}: it has {_counted(total, 'line')}\n"
                f"Retry with an offset from 1 to {total}."
            )
        view = look(content, first, params.limit)
        said = f"{shown}: lines {view.first}-{view.last} of {view.total}."
        return ToolResult.ok(
            ReadFileResult(shown, view.content, view.first, view.last, view.total), " ".join((said, *view.notes))
        )

    def write_file(self, params: WriteFileParams, *, context: ToolContext) -> ToolResult[FileChange]:
        fs, place, shown = self._at(params.path, context)
        exists = fs.is_file(place)
        if exists and not params.overwrite:
            raise FileAlreadyExistsError.file(params.path)
        fs.write(place, params.content)
        size = fs.stat(place).size
        if exists:
            return _changed(f"Replaced {shown} ({_counted(size, 'byte')}).", FileChange("replaced", shown))
        return _changed(f"Created {shown} ({_counted(size, 'byte')}).", FileChange("created", shown))

    def edit_file(self, params: EditFileParams, *, context: ToolContext) -> ToolResult[FileChange]:
        fs, place, shown = self._at(params.path, context)
        content = _content("edit", fs, place, params.path)
        if is_binary(content):
            raise ToolValidationError(
                f"Cannot edit {params.path}: it is a binary file ({_counted(len(content), 'byte')})\nChoose a text file."
            )
        done = edit(params.path, content, params.old_string, params.new_string, params.replace_all)
        fs.write_bytes(place, done.content)
        said = f"Edited {shown}: {_counted(done.count, 'replacement')}, on {listed(done.lines, done.count)}."
        if done.adapted:
            said += " Line endings were made CRLF, as they are in the file."
        return _changed(said, FileChange("edited", shown))

    def delete_file(self, params: DeleteFileParams, *, context: ToolContext) -> ToolResult[FileChange]:
        fs, place, shown = self._at(params.path, context)
        what = "directory " if fs.is_dir(place) else ""
        fs.delete(place, recursive=params.recursive)
        return _changed(f"Deleted {what}{shown}.", FileChange("deleted", shown))

    def copy_file(self, params: CopyFileParams, *, context: ToolContext) -> ToolResult[FileChange]:
        fs, source, target = self._transfer("copy", params, context)
        fs.copy(source, target, overwrite=params.overwrite)
        shown, origin = self.root.show(target), self.root.show(source)
        return _changed(f"Copied {origin} to {shown}.", FileChange("copied", shown, origin))

    def move_file(self, params: MoveFileParams, *, context: ToolContext) -> ToolResult[FileChange]:
        fs, source, target = self._transfer("move", params, context)
        fs.move(source, target, overwrite=params.overwrite)
        shown, origin = self.root.show(target), self.root.show(source)
        return _changed(f"Moved {origin} to {shown}.", FileChange("moved", shown, origin))

    def list_directory(self, params: ListDirectoryParams, *, context: ToolContext) -> ToolResult[DirectoryListing]:
        fs, place, shown = self._at(params.path, context)
        names = fs.list(place)
        entries: list[DirectoryEntry] = []
        for name in names[:_LIST_LIMIT]:
            try:
                about = fs.stat(join(place, name))
            except FilesystemError:  # one bad entry does not hide the others
                entries.append(DirectoryEntry(name, "other"))
            else:
                entries.append(DirectoryEntry(name, about.kind, about.size, about.readonly))
        fitting = tuple(entries[: how_many_fit([entry.render() for entry in entries])])
        listing = DirectoryListing(shown, fitting)
        if not fitting:
            return ToolResult.ok(listing, f"{shown} is empty.")
        if len(fitting) < len(entries) or len(names) > _LIST_LIMIT:
            return ToolResult.ok(
                listing,
                f"{shown}: the first {len(fitting)} of {len(names)} entries. Use glob_files with a pattern to see others.",
            )
        return ToolResult.ok(listing, f"{shown}: {_counted(len(fitting), 'entry')}.")

    def glob_files(self, params: GlobFilesParams, *, context: ToolContext) -> ToolResult[GlobFilesResult]:
        fs, place, shown = self._at(params.path, context)
        found = [self.root.show(path) for path in fs.glob(self.root.resolve_glob(params.pattern), place)]
        if not found:
            hint = "" if "/" in params.pattern else f" Use '**/{params.pattern}' to search the directories below too."
            return ToolResult.ok(GlobFilesResult((), 0), f"No files match '{params.pattern}' in {shown}.{hint}")
        first = found[: params.limit]
        paths = tuple(first[: how_many_fit(first)])
        result = GlobFilesResult(paths, len(found))
        if len(paths) < len(found):
            return ToolResult.ok(
                result, f"The first {len(paths)} of {len(found)} paths. Narrow the pattern or the path to see others."
            )
        return ToolResult.ok(result, f"{_counted(len(found), 'path')}:")

    def grep_files(self, params: GrepFilesParams, *, context: ToolContext) -> ToolResult[GrepFilesResult]:
        fs, place, shown = self._at(params.path, context)
        pattern = f"(?i){params.pattern}" if params.ignore_case else params.pattern
        wanted = None if params.glob is None else self.root.resolve_glob(params.glob)
        found = fs.grep(pattern, place, wanted, params.limit + 1)
        if not found:
            among = "" if params.glob is None else f" among files that match '{params.glob}'"
            return ToolResult.ok(GrepFilesResult(()), f"No lines match {params.pattern!r} in {shown}{among}.")
        matches = found[: params.limit]
        lines = [GrepLine(self.root.show(each.path), each.line_number, each.line) for each in matches]
        if params.context:
            numbers: dict[str, set[int]] = {}
            for each in matches:
                numbers.setdefault(each.path, set()).add(each.line_number)
            lines = [line for path, at in numbers.items() for line in self._around(fs, path, at, params.context)]
        fitting = tuple(lines[: how_many_fit([line.render() for line in lines])])
        result = GrepFilesResult(fitting, in_context=params.context > 0)
        count, files = sum(line.matches for line in fitting), len({line.path for line in fitting})
        if count < len(found):
            return ToolResult.ok(
                result,
                f"The first {_counted(count, 'match')}; there are more. Narrow the pattern, path or glob to see them.",
            )
        return ToolResult.ok(result, f"{_counted(count, 'match')} in {_counted(files, 'file')}:")

    # -- what they stand on ----------------------------------------------------------------------------------------

    def _at(self, path: str, context: ToolContext) -> tuple[Filesystem, str, str]:
        """The filesystem of the call, the canonical path that is meant, and that path as the model should see it."""
        fs = context.filesystem
        if fs is None:
            raise ToolValidationError("Cannot use files: no filesystem is bound to the prompt.")
        place = normalize(self.root.resolve(path))
        return fs, place, self.root.show(place)

    def _transfer(
        self, verb: str, params: CopyFileParams | MoveFileParams, context: ToolContext
    ) -> tuple[Filesystem, str, str]:
        fs, source, _ = self._at(params.src, context)
        target = normalize(self.root.resolve(params.dst))
        if source == target:
            raise ToolValidationError(f"Cannot {verb} {params.src} to itself\nGive another path as dst, then retry.")
        if not params.overwrite and fs.is_file(source) and fs.is_file(target):
            raise FileAlreadyExistsError.file(params.dst)
        return fs, source, target

    def _around(self, fs: Filesystem, path: str, matching: set[int], more: int) -> list[GrepLine]:
        """The lines with these numbers and those around them, each once."""
        lines = fs.read_bytes(path).decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
        if not lines[-1]:
            lines.pop()
        shown = {near for at in matching for near in range(max(at - more, 1), min(at + more, len(lines)) + 1)}
        return [GrepLine(self.root.show(path), at, lines[at - 1], at in matching) for at in sorted(shown)]


def _content(verb: str, fs: Filesystem, place: str, path: str) -> bytes:
    """All of a file, unless it is one that nobody reads by lines: on disk it may be larger than memory."""
    size = fs.stat(place).size if fs.is_file(place) else 0
    if size > _MAX_BYTES:
        raise ToolValidationError(
            f"Cannot {verb} {path}: it has {_counted(size, 'byte')}, at most {_MAX_BYTES} are read at once\nChoose a smaller file."
        )
    return fs.read_bytes(place)


def _changed(message: str, change: FileChange) -> ToolResult[FileChange]:
    return ToolResult(message, change, exclude_value_from_context=True)


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {plural}"


# -- the section -------------------------------------------------------------------------------------------------------


@frozen
class VfsConfig:
    """What a section's files are, and what the model may do with them."""

    root: str = ROOT
    """The prefix of all paths the model sees; with "/workspace", both `/workspace/a.txt` and `a.txt` are the same file."""
    mounts: Sequence[HostMount] = ()
    """Host folders to copy in."""
    readonly: bool = False
    """Whether the model gets only the tools that read."""
    read_before_write: bool = True
    """Whether a file must have been read before it may be changed."""


class VfsToolsSection(Section[None]):
    """Tools to read, find and change files, with guidance, and a policy that files are read before they are changed.

    Brings a filesystem in memory, filled from the mounts, unless `filesystem` is given; another one bound to the prompt
    is used instead of either. The files live with the section: make one per task, not one per program.
    """

    def __init__(
        self,
        *,
        session: Session | None = None,
        config: VfsConfig | None = None,
        filesystem: Filesystem | None = None,
        policies: Sequence[ToolPolicy] = (),
        title: str = "Files",
        key: str = "vfs",
        accepts_overrides: bool = True,
    ) -> None:
        config = VfsConfig() if config is None else config
        root = VisibleRoot(config.root)
        first: tuple[ToolPolicy, ...] = ()
        if config.read_before_write and not config.readonly:
            first = (_ReadFirst(resolve=root.resolve),)
        super().__init__(
            title=title,
            key=key,
            tools=_tools(_FileTools(root), readonly=config.readonly),
            policies=(*first, *policies),
            accepts_overrides=accepts_overrides,
        )
        self.config = config
        self.mounted: tuple[Mounted, ...] = ()
        """What became of each mount, and what was left out of it."""
        if filesystem is None:
            filesystem, self.mounted = _files_of(config, root)
        elif config.mounts:
            raise PromptValidationError(
                "VfsToolsSection: mounts are copied into files of its own, so they cannot be combined with filesystem=. "
                "Leave one of them out."
            )
        self.filesystem: Filesystem = filesystem
        """What the section brings to the prompt."""
        self.template = _guidance(config, root, self.mounted)
        if session is not None:
            self.install(session)

    def resources(self) -> Mapping[Any, object]:
        return {Filesystem: self.filesystem}


class _ReadFirst(ReadBeforeWritePolicy):
    """A directory in place of a file is the tool's to refuse: what is in it would not be changed."""

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:
        fs = context.filesystem
        if fs is not None and tool.name in _FILES_ONLY:
            try:
                if fs.is_dir(self._resolved(getattr(params, _FILES_ONLY[tool.name]))):
                    return PolicyDecision.allow()
            except FilesystemError as error:
                return PolicyDecision.deny(str(error))
        return super().check(tool, params, context=context)


def _tools(does: _FileTools, *, readonly: bool) -> list[Tool[Any, Any]]:
    reading: list[Tool[Any, Any]] = [
        Tool[ReadFileParams, ReadFileResult](
            name="read_file",
            description="Read a text file, or some lines of it. Lines are shown under their numbers.",
            handler=does.read_file,
            effects="none",
        ),
        Tool[ListDirectoryParams, DirectoryListing](
            name="list_directory",
            description="List the files and directories in a directory.",
            handler=does.list_directory,
            effects="none",
        ),
        Tool[GlobFilesParams, GlobFilesResult](
            name="glob_files",
            description="Find files by name.",
            handler=does.glob_files,
            effects="none",
        ),
        Tool[GrepFilesParams, GrepFilesResult](
            name="grep_files",
            description="Find lines in text files by a regular expression.",
            handler=does.grep_files,
            effects="none",
        ),
    ]
    if readonly:
        return reading
    return [
        *reading,
        Tool[WriteFileParams, FileChange](
            name="write_file",
            description="Create a file, or with overwrite=true replace all of it. To change a part, use edit_file.",
            handler=does.write_file,
        ),
        Tool[EditFileParams, FileChange](
            name="edit_file",
            description="Replace text in a file. The old text must occur exactly once, unless replace_all=true.",
            handler=does.edit_file,
        ),
        Tool[DeleteFileParams, FileChange](
            name="delete_file",
            description="Delete a file, an empty directory, or with recursive=true a directory and all inside.",
            handler=does.delete_file,
        ),
        Tool[CopyFileParams, FileChange](
            name="copy_file",
            description="Copy a file, or a directory with all inside, to a new path.",
            handler=does.copy_file,
        ),
        Tool[MoveFileParams, FileChange](
            name="move_file",
            description="Move or rename a file, or a directory with all inside.",
            handler=does.move_file,
        ),
    ]


def _files_of(config: VfsConfig, root: VisibleRoot) -> tuple[InMemoryFilesystem, tuple[Mounted, ...]]:
    files: dict[str, bytes] = {}
    mounted: list[Mounted] = []
    for mount in config.mounts:
        try:
            path = normalize(root.resolve(mount.mount_path))
        except (FilesystemError, TypeError) as error:
            raise PromptValidationError(f"Mount at {mount.mount_path!r}: {error}") from error
        copied, report = copy_in(mount, path)
        twice = files.keys() & copied.keys()
        if twice:
            raise PromptValidationError(
                f"Mount at {mount.mount_path!r}: another mount has put {min(twice)!r} there already. "
                "Choose another mount_path, or leave the file out with exclude=."
            )
        files.update(copied)
        mounted.append(report)
        if report.left_out:
            _logger.warning(
                "%d entries of the mount at %s were left out, such as %s: %s",
                len(report.left_out),
                mount.mount_path,
                report.left_out[0].path,
                report.left_out[0].reason,
            )
    # A glob that names the directory protects all that is in it.
    protected = [
        "**" if report.path == ROOT else f"/{stdlib_glob.escape(report.path)}" for report in mounted if report.readonly
    ]
    try:
        return InMemoryFilesystem(files, readonly=True if config.readonly else protected), tuple(mounted)
    except FilesystemError as error:
        raise PromptValidationError(f"The mounts do not fit together: {error}") from error


def _guidance(config: VfsConfig, root: VisibleRoot, mounted: Sequence[Mounted]) -> str:
    lines = [
        "Use these tools to read and find files."
        if config.readonly
        else "Use these tools to read, find and change files."
    ]
    if root.path != ROOT:
        lines.append(f"All files lie below {root.path}; a path without a leading slash is taken from there.")
    lines.append("\n- Look around with `list_directory` and `glob_files`; search in files with `grep_files`.")
    lines.append("- Read long files in parts: `read_file` takes `offset` and `limit`, and says where it was cut.")
    if not config.readonly:
        if config.read_before_write:
            lines.append(
                "- Read a file before you change, replace or delete it; it is refused otherwise, also when the file has "
                "changed since you read it."
            )
        lines.append("- Change a part of a file with `edit_file`; `write_file` is for new files and complete rewrites.")
        lines.append("- A call that fails has changed nothing.")
    if mounted:
        lines.append("\nProvided:\n")
        lines.extend(_described(report, root) for report in mounted)
    return "\n".join(lines)


def _described(report: Mounted, root: VisibleRoot) -> str:
    marks = [_counted(report.files, "file")]
    if report.readonly:
        marks.append("read-only")
    if report.left_out:
        marks.append(f"{len(report.left_out)} left out")
    return f"- `{root.show(report.path)}`: {', '.join(marks)}"
