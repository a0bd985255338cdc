"""The pages in docs/gateway say what is true: what they show is run against a served gateway, and their key tables are the compilers'."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from wardwright import cli
from wardwright.config import DEPLOYMENT_KEYS, Node, Problems, load_config
from wardwright.http.service import Service, compile_service
from wardwright.http.start import Start, front

from .standing import standing

PROJECT = Path(__file__).parents[3]
FOLDER = PROJECT / "docs" / "gateway"
PAGES = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.md"))}
FRONT = (PROJECT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"# prints (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ADDRESS = "127.0.0.1:8787"
WORDS = {
    "HANDLE": re.compile(r"apr_[0-9a-f]{32}"),
    "SEEN": re.compile(r'"digest": ?"([0-9a-f]+)"|--seen ([0-9a-f]+)'),
    "RECEIPT": re.compile(r'"receipt_id": ?"([^"]+)"'),
}
"""What a reader copies out of one answer into the next command."""


class Terminal:
    """Somebody who follows a page, command by command."""

    def __init__(self, capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: dict[str, str] = {}
        self.address = ""
        self.service: Service | None = None
        self._capture = capture
        self._served = ExitStack()
        monkeypatch.setattr(cli, "start", self._start)

    def run(self, command: str) -> str:
        # A word that stands alone is one that an answer gave.
        for name, value in self.words.items():
            command = command.replace(f"${name}", value)
        program, *arguments = shlex.split(command.replace("\\\n", " "))
        output = self._curl(arguments) if program == "curl" else self._ward(program, arguments)
        for name, pattern in WORDS.items():
            found = pattern.search(output)
            if found is not None:
                self.words[name] = next(one for one in (*found.groups(), found[0]) if one)
        return output

    def python(self, code: str, page: str) -> str:
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(code.replace(ADDRESS, self.address), page, "exec"), names)
        for one in names.values():
            if isinstance(one, (openai.OpenAI, anthropic.Anthropic)):
                one.close()
        return self._capture.readouterr().out

    def close(self) -> None:
        self._served.close()

    def _ward(self, program: str, arguments: list[str]) -> str:
        assert program == "wardwright"
        try:
            cli.main(arguments)
        except SystemExit as ended:
            assert not ended.code, self._capture.readouterr()
        shown = self._capture.readouterr()
        return (shown.err + shown.out).replace(self.address or ADDRESS, ADDRESS)

    def _start(self, start: Start, tell: Callable[[Service, int], None]) -> None:
        """What `serve` does, on a free port and in a thread, so that the reader keeps the terminal."""
        self.close()
        service = start.service()
        tell(service, start.port)
        self.address = f"127.0.0.1:{self._served.enter_context(standing(front(service)))}"
        self.service = service
        if service.admin_token:
            self.words["TOKEN"] = service.admin_token

    def _curl(self, arguments: list[str]) -> str:
        method, url, data = "", "", None
        headers: dict[str, str] = {}
        given = iter(arguments)
        for one in given:
            match one:
                case "-X":
                    method = next(given)
                case "-H":
                    name, _, value = next(given).partition(": ")
                    headers[name] = value
                case "--json":
                    data = next(given)
                    if data.startswith("@"):
                        data = Path(data[1:]).read_text("utf-8")
                    headers.setdefault("content-type", "application/json")
                case "-s" | "-N" | "-i":
                    pass
                case _:
                    url = one
        with httpx2.Client() as client:
            asked = url.replace(ADDRESS, self.address)
            answer = client.request(method or ("POST" if data else "GET"), asked, headers=headers, content=data)
        head = "".join(f"{name}: {value}\n" for name, value in answer.headers.items() if name.startswith("x-"))
        return f"{answer.status_code}\n{head}\n{answer.text}" if "-i" in arguments else answer.text


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.chdir(tmp_path)
    made = Terminal(capsys, monkeypatch)
    yield made
    made.close()


def fits(shown: str, printed: str) -> bool:
    """Whether what came is what is shown; … stands for whatever is different every time or too long."""
    pattern = ".*?".join(re.escape(re.sub(r"\s+", " ", part)) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, re.sub(r"\s+", " ", printed).strip()) is not None


@pytest.mark.parametrize("name", [*PAGES, "the project's README"])
def test_a_page_can_be_followed(name: str, terminal: Terminal) -> None:
    """G61, G63: from top to bottom, files are written, plans checked, commands and code run; what comes is what is shown."""
    text = PAGES.get(name) or FRONT.split("## The gateway in ten lines\n", 1)[1].split("\n## ", 1)[0]
    for language, file, body in BLOCK.findall(text):
        if file:
            Path(file).write_text(body, "utf-8")
        match language:
            case "yaml":
                text = body if re.search(r"^(models|model_id):", body, re.MULTILINE) else f"model_id: m\n{body}"
                compile_service(load_config(text), modules_from=Path.cwd())
            case "python":
                printed = terminal.python(body, name)
                assert fits("\n".join(SHOWN.findall(body)), printed), f"{name}: {body}\nprinted {printed}"
            case "console":
                for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                    command, shown = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", part, re.DOTALL).groups()  # pyright: ignore[reportOptionalMemberAccess]
                    printed = terminal.run(command)
                    assert fits(shown, printed), f"{name}: {command}\nprinted {printed}"
            case "json" if file:
                pass  # commands send it
            case _:
                pytest.fail(f"{name}: a block of {language} that nothing runs")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short_and_its_links_lead_somewhere(name: str) -> None:
    """Files that are there; 150 lines at most."""
    text = PAGES[name]
    assert [link for link in LINK.findall(text) if not (FOLDER / link.split("#")[0]).exists()] == []
    assert len(text.splitlines()) <= 150
    assert text.count("```") == 2 * len(BLOCK.findall(text))


def test_every_page_is_listed() -> None:
    """Whoever starts at the front finds everything; the front is found from outside."""
    assert set(LINK.findall(PAGES["README.md"])) >= set(PAGES) - {"README.md"}
    assert "docs/gateway/README.md" in FRONT
    assert "gateway/README.md" in (PROJECT / "docs" / "governance.md").read_text("utf-8")


# The key tables

TABLE = re.compile(r"^\| `?Key`? \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
HEADING = re.compile(r"^#+ `(.+)`$", re.MULTILINE)


class Recorder:
    """Which keys the compilers take, by the place in the config; learned from what they ask of `Problems`."""

    def __init__(self) -> None:
        self.taken: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    @contextmanager
    def listening(self, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
        plain = Problems.mapping
        taken = self.taken

        def mapping(
            self: Problems, node: Node, required: Iterable[str], optional: Iterable[str], **hints: Any
        ) -> dict[str, Node]:
            needed, may = frozenset(required), frozenset(optional)
            place = re.sub(r"\[\d+\]", "[]", node.path).removeprefix("models[].")
            place = re.sub(r"^(providers|mcp_servers|snippets)\.\w+", r"\1.NAME", place)
            before = taken.get(place, (needed, frozenset[str]()))
            taken[place] = (needed & before[0], may | needed | before[1])
            return plain(self, node, needed, may, **hints)

        with monkeypatch.context() as patched:
            patched.setattr(Problems, "mapping", mapping)
            yield


def tables() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Place in the config → required keys, all keys, as the page shows them."""
    found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
    text = PAGES["config.md"]
    for table in TABLE.finditer(text):
        place = HEADING.findall(text, 0, table.start())[-1]
        rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()]
        keys = {key: row[1] for row in rows for key in re.findall(r"`(\w+)`", row[0])}
        found[place] = (frozenset(key for key, default in keys.items() if default == "required"), frozenset(keys))
    return found


def test_the_key_tables_are_those_of_the_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """G60: every key that is taken is explained, no other is, and what is required is said to be."""
    files = {name: body for _, name, body in BLOCK.findall(PAGES["config.md"])}
    (tmp_path / "reverse_tool.py").write_text(files["reverse_tool.py"])
    recorder = Recorder()
    with recorder.listening(monkeypatch):
        compile_service(load_config(files["all.yaml"]), modules_from=tmp_path)

    shown = tables()
    assert {place: recorder.taken.get(place) for place in shown} == shown
    # Every section has a table here, or a page that is linked.
    elsewhere = {"models", "catalog", "policy_bundles", "scopes", "snippets"}
    assert {re.split(r"[.\[]", place)[0] for place in shown} >= {*DEPLOYMENT_KEYS} - elsewhere
