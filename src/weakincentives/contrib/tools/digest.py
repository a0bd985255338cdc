"""The workspace digest: what lies in a workspace, told in few words and opened step by step.

Decides what the digest holds and how the model reads on from it. The digest is a STATE slice, so the prompt's text is a
function of the session; it changes when somebody refreshes it, never by rendering. What the tools answer is always as
the files are now. Never shows the content of a file beyond names, headings and first lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from annotated_types import Ge

from ...errors import PromptValidationError, ToolValidationError
from ...filesystem import Filesystem, normalize
from ...filesystem.paths import ROOT
from ...frozen import frozen
from ...prompt import Section, SectionVisibility, Tool, ToolContext, ToolResult
from ...session import Session
from .digest_facts import KEY_FILES, OTHER, shown_path
from .digest_survey import (
    DigestConfig,
    FoundFile,
    Survey,
    Surveyor,
    counted,
    page,
    size_text,
    tree_lines,
)
from .vfs_root import VisibleRoot

READ: Final = "read_workspace_digest"
REFRESH: Final = "refresh_workspace_digest"
_SHOWN_LANGUAGES: Final = 8
_SHOWN_LARGEST: Final = 5
_SYMBOLS_PER_FILE: Final = 12


@frozen
class LanguageShare:
    """How much of a workspace is written in one language."""

    name: str
    files: int
    lines: int
    size: int


@frozen
class WorkspaceDigest:
    """What lies in a workspace, as it was when last looked at. At most one in a session."""

    files: int
    folders: int
    size: int
    languages: tuple[LanguageShare, ...] = ()
    """The largest first."""
    tree: tuple[str, ...] = ()
    """The layout, as lines."""
    key_files: tuple[str, ...] = ()
    """What a newcomer opens first, as lines."""
    symbols: tuple[str, ...] = ()
    """Classes, functions, headings, as one line for each file."""
    symbol_count: int = 0
    """How many there are, shown or not."""
    symbol_files: int = 0
    """In how many files."""
    largest: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    def render(self) -> str:
        """The overview: a few lines, whatever the size of the workspace."""
        lines = [f"{counted(self.files, 'file')} in {counted(self.folders, 'folder')}, {size_text(self.size)}."]
        if self.languages:
            shown = [
                f"{share.name} ({counted(share.files, 'file')}, {counted(share.lines, 'line')})"
                for share in self.languages[:_SHOWN_LANGUAGES]
            ]
            more = len(self.languages) - len(shown)
            lines.append(f"Languages: {', '.join(shown)}{f' and {more} more' if more else ''}.")
        if self.largest:
            lines.append(f"Largest files: {', '.join(self.largest)}.")
        return "\n".join((*lines, *self.notes))


def digest_of(survey: Survey, config: DigestConfig) -> WorkspaceDigest:
    """The digest of what was found: bounded, and the same for the same files."""
    files = list(survey.files())
    folders = len(list(survey.root.walk())) - 1
    key_files = [file for file in files if file.path.rpartition("/")[2].lower() in KEY_FILES]
    key_files.sort(key=lambda file: (file.path.count("/"), file.path))
    named = [file for file in files if file.facts is not None and file.facts.symbols]
    # Code before prose, and what lies near the top first: it is what others stand on.
    named.sort(key=lambda file: (file.language == "Markdown", file.path.count("/"), file.path))
    largest = sorted(files, key=lambda file: (-file.size, file.path))[:_SHOWN_LARGEST]
    notes: list[str] = []
    if survey.cut:
        notes.append(f"Only the first {counted(config.max_files, 'file')} were looked at; there are more.")
    big = sum(1 for file in files if file.size > config.max_file_bytes)
    if big:
        notes.append(f"{counted(big, 'file')} over {size_text(config.max_file_bytes)} not read.")
    if survey.unread:
        notes.append(f"{counted(survey.unread, 'file')} could not be read.")
    return WorkspaceDigest(
        files=len(files),
        folders=folders,
        size=survey.root.size,
        languages=_languages(files),
        tree=_cut(tree_lines(survey.root, config.max_lines), config.max_lines, "entries"),
        key_files=_cut([_key_line(file) for file in key_files], config.max_lines, "key files"),
        symbols=_cut([_symbol_line(file) for file in named], config.max_lines, "files with symbols"),
        symbol_count=sum(len(file.facts.symbols) for file in named if file.facts is not None),
        symbol_files=len(named),
        largest=tuple(f"{shown_path(file.path)} ({size_text(file.size)})" for file in largest),
        notes=tuple(notes),
    )


def _languages(files: Sequence[FoundFile]) -> tuple[LanguageShare, ...]:
    counts, lines, sizes = Counter[str](), Counter[str](), Counter[str]()
    for file in files:
        counts[file.language] += 1
        sizes[file.language] += file.size
        lines[file.language] += 0 if file.facts is None else file.facts.lines
    shares = [LanguageShare(name, counts[name], lines[name], sizes[name]) for name in counts]
    return tuple(sorted(shares, key=lambda share: (share.name == OTHER, -share.size, share.name)))


def _key_line(file: FoundFile) -> str:
    about = "" if file.facts is None or not file.facts.about else f": {file.facts.about}"
    return f"{shown_path(file.path)} ({size_text(file.size)}){about}"


def _symbol_line(file: FoundFile) -> str:
    assert file.facts is not None
    names = list(
        dict.fromkeys(symbol.name for symbol in file.facts.symbols if symbol.kind != "def" or "." not in symbol.name)
    )
    names.sort(key=lambda name: name.startswith("_"))  # what others may use comes first
    more = len(names) - _SYMBOLS_PER_FILE
    rest = f" and {more} more" if more > 0 else ""
    return f"{shown_path(file.path)}: {', '.join(names[:_SYMBOLS_PER_FILE])}{rest}"


def _cut(lines: Sequence[str], most: int, what: str) -> tuple[str, ...]:
    if len(lines) <= most:
        return tuple(lines)
    rest = len(lines) - most + 1
    return (*lines[: most - 1], f"… and {rest:,} more {what}. Call {READ} with a folder to see more.")


# -- the tools ---------------------------------------------------------------------------------------------------------


@frozen
class ReadWorkspaceDigest:
    """What to look at."""

    path: str = ROOT
    """A folder or a file; "/" is the whole workspace."""
    offset: Annotated[int, Ge(0)] = 0
    """How many lines to skip, to read on where an answer was cut."""


class WorkspaceDigestSection(Section[None]):
    """The digest as a section: an overview, and parts that the model opens when it needs them.

    Refresh it before a run, `section.refresh(session, filesystem)`, or give both here; otherwise the model is told to
    do so first. Only files whose content was not seen before are read again. `filesystem` also serves the tools when
    no `Filesystem` is bound to the prompt.
    """

    def __init__(
        self,
        session: Session | None = None,
        *,
        filesystem: Filesystem | None = None,
        config: DigestConfig | None = None,
        title: str = "Workspace",
        key: str = "workspace-digest",
    ) -> None:
        if session is not None and not isinstance(session, Session):
            raise PromptValidationError(
                f"WorkspaceDigestSection: session must be a Session, got {type(session).__name__}."
            )
        self.config = DigestConfig() if config is None else config
        self._filesystem = filesystem
        self._surveyor = Surveyor(self.config)
        self._root = VisibleRoot(self.config.root)
        parts = (
            _Part("Layout", "layout", lambda digest: digest.tree, _layout_summary),
            _Part("Key files", "key-files", lambda digest: digest.key_files, _key_files_summary),
            _Part("Symbols", "symbols", lambda digest: digest.symbols, _symbols_summary),
        )
        super().__init__(title=title, key=key, tools=self._tools(), children=parts, accepts_overrides=False)
        if session is not None and filesystem is not None:
            self.refresh(session, filesystem)

    def refresh(self, session: Session, filesystem: Filesystem) -> WorkspaceDigest:
        """Look at the workspace and put the digest into the session, if it is another one than before."""
        return self._refresh(session, filesystem)[0]

    def render_body(self, params: None, *, session: Session | None = None) -> str:  # noqa: ARG002
        digest = _digest_in(session)
        if digest is None:
            return f"Nobody has looked at the workspace yet. Call `{REFRESH}` first, then `{READ}` for details."
        return (
            f"{digest.render()}\n\n"
            f"This is the state of the last `{REFRESH}`. Call `{READ}` with a folder for its layout, with a file for "
            "its symbols and their lines: it always looks at the files as they are now."
        )

    def _refresh(self, session: Session, filesystem: Filesystem) -> tuple[WorkspaceDigest, int, bool]:
        survey = self._surveyor.look(filesystem)
        digest = digest_of(survey, self.config)
        is_new = session[WorkspaceDigest].latest() != digest
        if is_new:
            session[WorkspaceDigest].seed(digest)
        return digest, survey.read, is_new

    def _tools(self) -> tuple[Tool[Any, Any], ...]:
        def read_workspace_digest(params: ReadWorkspaceDigest, *, context: ToolContext) -> ToolResult[str]:
            return ToolResult.ok(self._read(params, self._files(context)))

        def refresh_workspace_digest(params: None, *, context: ToolContext) -> ToolResult[WorkspaceDigest]:  # noqa: ARG001
            digest, read, is_new = self._refresh(context.session, self._files(context))
            said = "The digest is new" if is_new else "The digest is the same as before"
            return ToolResult.ok(digest, f"{said}; {counted(read, 'file')} had to be read.")

        return (
            Tool[ReadWorkspaceDigest, str](
                name=READ,
                description="Look around in the workspace: the layout of a folder, or the symbols of a file with their line numbers.",
                handler=read_workspace_digest,
                effects="none",
            ),
            Tool[None, WorkspaceDigest](
                name=REFRESH,
                description="Look at the whole workspace again and bring the digest in the prompt up to date.",
                handler=refresh_workspace_digest,
            ),
        )

    def _files(self, context: ToolContext) -> Filesystem:
        found = context.filesystem or self._filesystem
        if found is None:
            raise ToolValidationError("The workspace cannot be looked at: no filesystem is bound. Do not retry.")
        return found

    def _read(self, params: ReadWorkspaceDigest, fs: Filesystem) -> str:
        path, most = normalize(self._root.resolve(params.path)), self.config.max_lines
        if fs.stat(path).kind == "file":
            head, lines = self._about_file(self._surveyor.file(fs, path))
        else:
            survey = self._surveyor.look(fs, path)
            digest = digest_of(survey, self.config)
            shown = shown_path(path) if path == ROOT else f"{shown_path(path)}/"
            head = f"{shown}: {digest.render()}"
            lines = tree_lines(survey.root, most)
        if params.offset and params.offset >= len(lines):
            raise ToolValidationError(
                f"Offset {params.offset} is beyond the end: there are {counted(len(lines), 'line')}. "
                "Retry with a smaller offset."
            )
        shown_lines, more = page(lines, params.offset, most)
        rest = (
            ""
            if more is None
            else f'\n[lines {params.offset + 1} to {more} of {len(lines)}. Read on with {READ}(path="{path}", offset={more})]'
        )
        return "\n".join((head, *shown_lines)) + rest

    def _about_file(self, file: FoundFile) -> tuple[str, list[str]]:
        head = f"{shown_path(file.path)}: {file.language}, {size_text(file.size)}"
        facts = file.facts
        if facts is None:
            return f"{head}. Not read: it is larger than {size_text(self.config.max_file_bytes)}, or unreadable.", []
        if facts.is_binary:
            return f"{head}. Binary.", []
        about = f" {facts.about}" if facts.about else ""
        lines = [f"{symbol.line}: {symbol.kind} {symbol.name}" for symbol in facts.symbols]
        return f"{head}, {counted(facts.lines, 'line')}.{about}", lines


# -- the parts ---------------------------------------------------------------------------------------------------------


class _Part(Section[None]):
    """One part of the digest, folded until the model reads it; there as soon as there is a digest."""

    def __init__(
        self,
        title: str,
        key: str,
        lines: Callable[[WorkspaceDigest], Sequence[str]],
        summarise: Callable[[WorkspaceDigest], str],
    ) -> None:
        super().__init__(
            title=title,
            key=key,
            summary=title,
            visibility=SectionVisibility.SUMMARY,
            enabled=_is_there,
            accepts_overrides=False,
        )
        self._lines = lines
        self._summarise = summarise

    def render_body(self, params: None, *, session: Session | None = None) -> str:  # noqa: ARG002
        digest = _digest_in(session)
        return "" if digest is None else "\n".join(self._lines(digest)) or "Nothing."

    def render_summary(self, params: None, *, session: Session | None = None) -> str:  # noqa: ARG002
        digest = _digest_in(session)
        return "" if digest is None else self._summarise(digest)


def _layout_summary(digest: WorkspaceDigest) -> str:
    top = [line.partition(" (")[0] for line in digest.tree if line.partition(" (")[0].endswith("/") and line[0] != " "]
    more = f" and {len(top) - 8} more" if len(top) > 8 else ""
    return f"The tree of files. Folders at the top: {', '.join(top[:8]) or 'none'}{more}."


def _key_files_summary(digest: WorkspaceDigest) -> str:
    names = ", ".join(line.partition(" (")[0] for line in digest.key_files[:6])
    return f"What to open first: {names or 'nothing that is known by its name'}."


def _symbols_summary(digest: WorkspaceDigest) -> str:
    return f"{counted(digest.symbol_count, 'symbol')} in {counted(digest.symbol_files, 'file')}: classes, functions, headings."


def _is_there(*, session: Session | None) -> bool:
    return _digest_in(session) is not None


def _digest_in(session: Session | None) -> WorkspaceDigest | None:
    return None if session is None else session[WorkspaceDigest].latest()
