"""Claims about the workspace digest: what it holds, what is read again, and how the model opens it step by step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from weakincentives.adapters import ScriptedAdapter
from weakincentives.contrib.tools import DigestConfig, WorkspaceDigest, WorkspaceDigestSection
from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import FileMissingError, FileStat, Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, apply_visibility
from weakincentives.runtime import Session, ToolCall, ToolOutcome, execute_tool, tool_transaction

FILES = {
    "README.md": "# Shop\n\nSells things.\n\n## Use\n",
    "pyproject.toml": "[project]\n",
    "src/shop/__init__.py": '"""A shop."""\n',
    "src/shop/cart.py": '"""What a customer wants to buy."""\n\n\nclass Cart:\n    def add(self): ...\n\n\ndef _sum(): ...\n\n\ndef total(): ...\n',
    "src/web/app.ts": "export class App {}\nexport const start = 1\ninterface Hidden {}\n",
    "logo.png": b"\x89PNG\0\0",
    "node_modules/left/index.js": "function left() {}\n",
    "src/shop/__pycache__/cart.pyc": b"\0",
}


class Counting(Filesystem):
    """A filesystem that counts which files are read, and knows versions without reading."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self.inner = InMemoryFilesystem(files)
        self.read_paths: list[str] = []
        self.broken: set[str] = set()

    def read_bytes(self, path: str) -> bytes:
        self.read_paths.append(path)
        if path in self.broken:
            raise FileMissingError.file(path)
        return self.inner.read_bytes(path)

    def version(self, path: str) -> str:
        return self.inner.digest(path)

    def write_bytes(self, path: str, content: bytes) -> None:
        self.inner.write_bytes(path, content)

    def delete(self, path: str, recursive: bool = False) -> None:
        self.inner.delete(path, recursive)

    def list(self, path: str = "/") -> Any:
        return self.inner.list(path)

    def mkdir(self, path: str) -> None:
        self.inner.mkdir(path)

    def stat(self, path: str) -> FileStat:
        return self.inner.stat(path)

    def is_readonly(self, path: str) -> bool:
        return self.inner.is_readonly(path)


class Desk:
    """A session, a workspace and a prompt that shows its digest."""

    def __init__(self, files: Mapping[str, str | bytes] = FILES, *, built: bool = True, **options: Any) -> None:
        self.session = Session()
        self.fs = InMemoryFilesystem(files)
        self.section = WorkspaceDigestSection(**options)
        self.prompt = Prompt(PromptTemplate(sections=[self.section])).bind(resources={Filesystem: self.fs})
        if built:
            self.section.refresh(self.session, self.fs)

    def call(self, name: str, **arguments: Any) -> ToolOutcome:
        return execute_tool(ToolCall(name, arguments), prompt=self.prompt, session=self.session)

    def part(self, key: str) -> list[str]:
        return self.call("read_section", section_key=f"workspace-digest/{key}").text.splitlines()[2:]

    @property
    def text(self) -> str:
        return self.prompt.render(self.session).text


# -- what it says ------------------------------------------------------------------------------------------------------


def test_the_overview_counts_files_languages_and_sizes() -> None:
    """What people did not write is passed over."""
    digest = Desk().session[WorkspaceDigest].latest()
    assert digest is not None
    assert digest.render() == (
        "6 files in 3 folders, 233 bytes.\n"
        "Languages: Python (2 files, 12 lines), TypeScript (1 file, 3 lines), Markdown (1 file, 5 lines), "
        "TOML (1 file, 1 line), Other (1 file, 0 lines).\n"
        "Largest files: src/shop/cart.py (110 bytes), src/web/app.ts (63 bytes), README.md (30 bytes), "
        "src/shop/__init__.py (14 bytes), pyproject.toml (10 bytes)."
    )


def test_the_prompt_shows_the_overview_and_folds_the_parts() -> None:
    """Each part says what it holds and how to read it."""
    text = Desk().text
    assert text.startswith("# Workspace\n\n6 files in 3 folders, 233 bytes.\n")
    assert (
        "This is the state of the last `refresh_workspace_digest`. Call `read_workspace_digest` with a folder for its "
        "layout, with a file for its symbols and their lines: it always looks at the files as they are now."
    ) in text
    assert "## Layout\n\nThe tree of files. Folders at the top: src/.\n\n[Summary only. Call read_section" in text
    assert "## Key files\n\nWhat to open first: README.md, pyproject.toml.\n" in text
    assert "## Symbols\n\n9 symbols in 3 files: classes, functions, headings.\n" in text
    assert "class Cart" not in text


def test_the_layout_is_opened_by_reading_it() -> None:
    """Folders first, with their totals, as deep as fits."""
    assert Desk().part("layout") == [
        "src/ (3 files, 187 bytes)",
        "  shop/ (2 files, 124 bytes)",
        "    __init__.py (14 bytes)",
        "    cart.py (110 bytes)",
        "  web/ (1 file, 63 bytes)",
        "    app.ts (63 bytes)",
        "README.md (30 bytes)",
        "logo.png (6 bytes)",
        "pyproject.toml (10 bytes)",
    ]


def test_key_files_are_told_with_their_first_words() -> None:
    """Those at the top first."""
    assert Desk().part("key-files") == ["README.md (30 bytes): Shop", "pyproject.toml (10 bytes)"]


def test_symbols_are_told_file_by_file() -> None:
    """Code before prose, what others may use before what they may not."""
    assert Desk().part("symbols") == [
        "src/shop/cart.py: Cart, total, _sum",
        "src/web/app.ts: App, start, Hidden",
        "README.md: Shop, Use",
    ]


def test_a_part_can_be_opened_in_the_prompt() -> None:
    """As any folded section."""
    desk = Desk()
    apply_visibility(desk.session, {("workspace-digest", "symbols"): SectionVisibility.FULL})
    assert "## Symbols\n\nsrc/shop/cart.py: Cart, total, _sum\n" in desk.text


def test_before_anybody_looked_the_model_is_told_what_to_call() -> None:
    """No parts are offered then."""
    desk = Desk(built=False)
    assert desk.text == (
        "# Workspace\n\nNobody has looked at the workspace yet. "
        "Call `refresh_workspace_digest` first, then `read_workspace_digest` for details."
    )


def test_rendering_is_pure() -> None:
    """Files that changed since do not change the text; a refresh does."""
    desk = Desk()
    before = desk.text
    desk.fs.write("new.py", "x = 1\n")
    assert desk.text == before
    desk.section.refresh(desk.session, desk.fs)
    assert desk.text != before


# -- what is read ------------------------------------------------------------------------------------------------------


def test_only_files_that_changed_are_read_again() -> None:
    """However many there are."""
    fs = Counting({f"d{n % 10}/f{n}.py": f"def f{n}(): ...\n" for n in range(1_000)})
    session, section = Session(), WorkspaceDigestSection()
    section.refresh(session, fs)
    assert len(fs.read_paths) == 1_000
    fs.read_paths.clear()
    fs.write("d3/f3.py", "def other(): ...\n")
    section.refresh(session, fs)
    assert fs.read_paths == ["d3/f3.py"]


def test_files_on_disk_are_known_without_reading_them() -> None:
    """By what the disk says of a file that has not changed for a while, here one of Python's own packages."""
    root = Path(json.__file__).parent

    class Disk(HostFilesystem):
        read_paths: ClassVar[list[str]] = []

        def read_bytes(self, path: str) -> bytes:
            self.read_paths.append(path)
            return super().read_bytes(path)

    fs = Disk(root, readonly=True)
    section = WorkspaceDigestSection()
    first = section.refresh(Session(), fs)
    assert "decoder.py" in fs.read_paths
    fs.read_paths.clear()
    assert section.refresh(Session(), fs) == first
    assert fs.read_paths == []


def test_a_file_on_disk_that_has_just_changed_is_read(tmp_path: Path) -> None:
    """Same size, same moment: only the content tells them apart."""
    fs, section = HostFilesystem(tmp_path), WorkspaceDigestSection()
    (tmp_path / "a.py").write_text("def a(): ...\n")
    assert section.refresh(Session(), fs).symbols == ("a.py: a",)
    (tmp_path / "a.py").write_text("def b(): ...\n")
    assert section.refresh(Session(), fs).symbols == ("a.py: b",)


def test_content_that_comes_back_is_known() -> None:
    """After a rollback, in another session, under another name."""
    fs = Counting({"a.py": "def a(): ...\n"})
    section = WorkspaceDigestSection()
    section.refresh(Session(), fs)
    fs.write("a.py", "def b(): ...\n")
    section.refresh(Session(), fs)
    fs.read_paths.clear()
    fs.write("a.py", "def a(): ...\n")
    fs.write("c.py", "def b(): ...\n")
    section.refresh(Session(), fs)
    assert fs.read_paths == []


def test_what_is_remembered_is_bounded() -> None:
    """Two workspaces of the largest size; what was read first is forgotten first."""
    fs = Counting({})
    section = WorkspaceDigestSection(config=DigestConfig(max_files=2))
    for n in range(5):
        fs.write("a.py", f"x = {n}\n")
        section.refresh(Session(), fs)
    fs.read_paths.clear()
    fs.write("a.py", "x = 0\n")
    section.refresh(Session(), fs)
    assert fs.read_paths == ["a.py"]


def test_large_files_are_listed_and_not_read() -> None:
    """The digest says how many."""
    fs = Counting({"big.py": "x = 1\n" * 100, "small.py": "y = 1\n"})
    digest = WorkspaceDigestSection(config=DigestConfig(max_file_bytes=500)).refresh(Session(), fs)
    assert fs.read_paths == ["small.py"]
    assert digest.notes == ("1 file over 500 bytes not read.",)


def test_a_file_that_cannot_be_read_is_counted() -> None:
    """The others are told all the same."""
    fs = Counting({"a.py": "x = 1\n", "b.py": "def b(): ...\n"})
    fs.broken.add("a.py")
    digest = WorkspaceDigestSection().refresh(Session(), fs)
    assert (digest.files, digest.symbols, digest.notes) == (2, ("b.py: b",), ("1 file could not be read.",))


def test_too_many_files_are_cut_with_a_note() -> None:
    """The time of a refresh is bounded."""
    digest = WorkspaceDigestSection(config=DigestConfig(max_files=3)).refresh(
        Session(), InMemoryFilesystem({f"{n}.txt": "" for n in range(5)})
    )
    assert (digest.files, digest.notes) == (3, ("Only the first 3 files were looked at; there are more.",))


def test_long_parts_are_cut_with_a_note() -> None:
    """The note says how to see the rest."""
    files = {f"f{n:02}.py": "def f(): ...\n" for n in range(12)}
    digest = WorkspaceDigestSection(config=DigestConfig(max_lines=5)).refresh(Session(), InMemoryFilesystem(files))
    assert digest.tree[-1] == "… and 8 more entries. Call read_workspace_digest with a folder to see more."
    assert (
        digest.symbols[-1] == "… and 8 more files with symbols. Call read_workspace_digest with a folder to see more."
    )
    assert (len(digest.tree), len(digest.symbols)) == (5, 5)


def test_a_deep_tree_is_shown_as_deep_as_fits() -> None:
    """Deeper folders are told by their totals."""
    files = {f"top/mid{m}/f{n}.txt": "x" for m in range(3) for n in range(9)}
    digest = WorkspaceDigestSection(config=DigestConfig(max_lines=10)).refresh(Session(), InMemoryFilesystem(files))
    assert digest.tree == (
        "top/ (27 files, 27 bytes)",
        "  mid0/ (9 files, 9 bytes)",
        "  mid1/ (9 files, 9 bytes)",
        "  mid2/ (9 files, 9 bytes)",
    )


def test_own_excludes_take_the_place_of_ours() -> None:
    """By name anywhere, by whole path with a slash."""
    config = DigestConfig(exclude=("*.ts", "src/shop/**"))
    digest = WorkspaceDigestSection(config=config).refresh(Session(), InMemoryFilesystem(FILES))
    assert digest.tree == (
        "node_modules/ (1 file, 19 bytes)",
        "  left/ (1 file, 19 bytes)",
        "    index.js (19 bytes)",
        "README.md (30 bytes)",
        "logo.png (6 bytes)",
        "pyproject.toml (10 bytes)",
    )


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("broken.py", "class Fine:\n  def go(self):\n def (", "broken.py: Fine, go"),
        ("old.py", "print 'x'\nclass Old: pass\n", "old.py: Old"),
        ("escape.py", 'class A:\n    def go(self): return "\\d"\n', "escape.py: A"),
        ("zero.py", "a\ufffd = 1\ndef f(): ...\n", "zero.py: f"),
        ("deep.py", "def f(): ...\nx = " + "-" * 50_000 + "1\n", "deep.py: f"),
        ("main.go", "package x\nfunc (s *S) Run() {}\ntype S struct {}\n", "main.go: Run, S"),
        ("lib.rs", "pub struct A;\npub(crate) async fn go() {}\n", "lib.rs: A, go"),
        ("A.java", "public final class A {\n}\n", "A.java: A"),
        ("run.sh", "build() {\n}\nfunction test() {\n}\n", "run.sh: build, test"),
        ("x.sql", "CREATE TABLE IF NOT EXISTS users (id int);\n", "x.sql: users"),
        ("Makefile", "all: x\n\tdo\nNAME := 1\n", "Makefile: all"),
        ("a.rb", "class A\n  def ready?\n", "a.rb: A, ready?"),
    ],
)
def test_symbols_are_found_in_many_languages_and_in_broken_files(name: str, content: str, line: str) -> None:
    """Nothing that stands in a file can make the digest fail."""
    digest = WorkspaceDigestSection().refresh(Session(), InMemoryFilesystem({name: content}))
    assert digest.symbols == (line,)


def test_what_a_file_says_cannot_pass_for_a_part_of_the_prompt() -> None:
    """Long names are cut; only one line of a file is ever repeated."""
    digest = WorkspaceDigestSection().refresh(Session(), InMemoryFilesystem({"README.md": f"# {'x' * 500}\n"}))
    assert digest.symbols == (f"README.md: {'x' * 79}…",)


def test_long_paths_are_told_whole() -> None:
    """What the model reads is what it may pass to a tool."""
    path = "/".join(["a  deep folder"] * 20) + "/app.py"
    digest = WorkspaceDigestSection().refresh(Session(), InMemoryFilesystem({path: "def go(): ...\n"}))
    assert digest.symbols == (f"{path}: go",)
    assert digest.key_files == (f"{path} (14 bytes)",)


def test_odd_names_on_disk_stay_on_one_line(tmp_path: Path) -> None:
    """A name cannot add lines to the prompt."""
    (tmp_path / "x\n# Forged").mkdir()
    (tmp_path / "x\n# Forged" / "a.txt").write_text("x")
    desk = Desk(built=False)
    desk.section.refresh(desk.session, HostFilesystem(tmp_path))
    assert "\n# Forged" not in desk.text


# -- the tools ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_as_it_is_now() -> None:
    """Also when the digest is older."""
    desk = Desk()
    desk.fs.write("src/web/new.ts", "")
    assert desk.call("read_workspace_digest", path="/src/web").text == (
        "src/web/: 2 files in 0 folders, 63 bytes.\n"
        "Languages: TypeScript (2 files, 3 lines).\n"
        "Largest files: src/web/app.ts (63 bytes), src/web/new.ts (0 bytes).\n"
        "app.ts (63 bytes)\n"
        "new.ts (0 bytes)"
    )


def test_a_file_is_read_with_its_symbols_and_their_lines() -> None:
    """Methods too."""
    assert Desk().call("read_workspace_digest", path="src/shop/cart.py").text == (
        "src/shop/cart.py: Python, 110 bytes, 11 lines. What a customer wants to buy.\n"
        "4: class Cart\n5: def Cart.add\n8: def _sum\n11: def total"
    )


@pytest.mark.parametrize("path", ["/workspace/logo.png", "workspace/logo.png", "logo.png"])
def test_paths_may_be_written_as_the_file_tools_show_them(path: str) -> None:
    """With their prefix or without."""
    desk = Desk(config=DigestConfig(root="/workspace"))
    assert desk.call("read_workspace_digest", path=path).text == "logo.png: Other, 6 bytes. Binary."


def test_binary_and_large_files_say_so() -> None:
    """Their content is not shown."""
    desk = Desk(config=DigestConfig(max_file_bytes=100))
    assert desk.call("read_workspace_digest", path="logo.png").text == "logo.png: Other, 6 bytes. Binary."
    assert desk.call("read_workspace_digest", path="src/shop/cart.py").text == (
        "src/shop/cart.py: Python, 110 bytes. Not read: it is larger than 100 bytes, or unreadable."
    )


def test_a_long_answer_is_read_page_by_page() -> None:
    """The note says how to go on; an offset beyond the end is refused."""
    desk = Desk({f"f{n}.txt": "" for n in range(5)}, config=DigestConfig(max_lines=3))
    first = desk.call("read_workspace_digest").text.splitlines()
    assert first[-4:] == [
        "f0.txt (0 bytes)",
        "f1.txt (0 bytes)",
        "f2.txt (0 bytes)",
        '[lines 1 to 3 of 5. Read on with read_workspace_digest(path="/", offset=3)]',
    ]
    second = desk.call("read_workspace_digest", path="/", offset=3).text.splitlines()
    assert second[-2:] == ["f3.txt (0 bytes)", "f4.txt (0 bytes)"]
    assert desk.call("read_workspace_digest", offset=9).text == (
        "Offset 9 is beyond the end: there are 5 lines. Retry with a smaller offset."
    )


def test_a_missing_path_is_a_failed_result() -> None:
    """In the filesystem's own words."""
    outcome = Desk().call("read_workspace_digest", path="nope")
    assert (outcome.outcome, outcome.text.splitlines()[0]) == ("failed", "File not found: nope")


def test_refreshing_says_what_it_cost() -> None:
    """And whether anything is new."""
    desk = Desk()
    assert desk.call("refresh_workspace_digest").message == "The digest is the same as before; 0 files had to be read."
    desk.fs.write("a.py", "x = 1\n")
    outcome = desk.call("refresh_workspace_digest")
    assert outcome.message == "The digest is new; 1 file had to be read."
    assert outcome.changes.slices == ("WorkspaceDigest",)


def test_without_files_the_model_is_told_not_to_retry() -> None:
    """Nothing can be looked at."""
    prompt = Prompt(PromptTemplate(sections=[WorkspaceDigestSection()]))
    outcome = execute_tool(ToolCall("refresh_workspace_digest", {}), prompt=prompt, session=Session())
    assert outcome.text == "The workspace cannot be looked at: no filesystem is bound. Do not retry."


def test_a_rolled_back_refresh_leaves_the_digest_as_it_was() -> None:
    """It is state, as the files are."""
    desk = Desk()
    before = desk.session[WorkspaceDigest].all()
    with pytest.raises(RuntimeError), tool_transaction(desk.session, desk.prompt.resources):
        desk.fs.write("a.py", "x = 1\n")
        desk.call("refresh_workspace_digest")
        raise RuntimeError
    assert desk.session[WorkspaceDigest].all() == before


# -- the section -------------------------------------------------------------------------------------------------------


def test_a_session_and_files_build_the_digest_at_once() -> None:
    """The tools use these files when none are bound."""
    session, fs = Session(), InMemoryFilesystem(FILES)
    prompt = Prompt(PromptTemplate(sections=[WorkspaceDigestSection(session, filesystem=fs)]))
    assert "6 files in 3 folders" in prompt.render(session).text
    outcome = execute_tool(ToolCall("read_workspace_digest", {"path": "logo.png"}), prompt=prompt, session=session)
    assert outcome.success


def test_a_durable_session_has_the_digest_again(tmp_path: Path) -> None:
    """The model sees the same overview after a restart."""
    with Session.open(tmp_path / "session") as session:
        before = WorkspaceDigestSection().refresh(session, InMemoryFilesystem(FILES))
    with Session.open(tmp_path / "session") as session:
        assert session[WorkspaceDigest].latest() == before


def test_a_model_opens_the_digest_step_by_step() -> None:
    """Without starting the conversation over."""
    desk = Desk()
    turns = [
        ToolCall("read_section", {"section_key": "workspace-digest/symbols"}),
        ToolCall("read_workspace_digest", {"path": "src/shop/cart.py"}),
        "Cart is in cart.py, line 4.",
    ]
    with ScriptedAdapter(turns) as adapter:
        assert adapter.evaluate(desk.prompt, desk.session).turns == 3


def test_wrong_settings_are_refused() -> None:
    """When they are made."""
    with pytest.raises(PromptValidationError) as caught:
        DigestConfig(max_lines=0)
    assert str(caught.value) == "DigestConfig.max_lines must be an integer of 1 or more, got 0."
    with pytest.raises(PromptValidationError) as caught:
        WorkspaceDigestSection(session=5)  # type: ignore[arg-type]
    assert str(caught.value) == "WorkspaceDigestSection: session must be a Session, got int."


def test_a_section_may_compute_its_summary() -> None:
    """What stands in place of a folded section is a function of params and session too."""

    class Counted(MarkdownSection[None]):
        def render_summary(self, params: None, *, session: Session | None = None) -> str:
            return f"{self.summary} ({session is not None})"

    prompt = Prompt(
        PromptTemplate(sections=[Counted(title="A", template="x", summary="S", visibility=SectionVisibility.SUMMARY)])
    )
    assert prompt.render(Session()).text.startswith("# A\n\nS (True)\n\n[Summary only.")
