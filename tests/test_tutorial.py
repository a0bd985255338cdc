"""Claims of the tutorial: whoever follows it from top to bottom gets what it shows, with real processes and a real gateway."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
TEXT = PAGE.read_text("utf-8")
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = "8787"
SERVE = "wardwright serve"
# Models and proxies of whoever runs the tests.
NOT_OURS = (
    "OPENAI_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "WARDWRIGHT_",
)


def fits(shown: str, printed: str) -> bool:
    """Whether what came is what is shown; … stands for whatever is different every time."""
    pattern = ".*?".join(re.escape(re.sub(r"\s+", " ", part)) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, re.sub(r"\s+", " ", printed).strip()) is not None


class Reader:
    """Somebody with an empty folder and two terminals; the gateway stays in the second one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        self._serving: list[subprocess.Popen[str]] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        # What `. .venv/bin/activate` does.
        self._environment = {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"}

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text.replace(PORT, self._port), "utf-8")

    def run(self, command: str, lines: int) -> str:
        """What comes on the terminal; a command that fails is shown with its exit code. A gateway says `lines` and serves."""
        if command.startswith(SERVE):
            return self._serve(command, lines)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        return done.stdout if done.returncode == 0 else f"{done.stdout}\nexit code {done.returncode}"

    def close(self) -> None:
        for process in self._serving:
            process.terminate()
            process.communicate(timeout=30)

    def _serve(self, command: str, lines: int) -> str:
        words = [*command.split(), "--port", self._port]
        process = subprocess.Popen(
            words,
            cwd=self._folder,
            env={**self._environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._serving.append(process)
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(lines)]
        while process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz"):
                    break
            except OSError:
                continue
        return "".join(printed).replace(self._port, PORT)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.close()


@pytest.mark.heavy
def test_the_tutorial_can_be_followed_word_for_word(reader: Reader) -> None:
    """Its files are written, its commands typed, in its order; each prints what the page shows."""
    for language, file, body in BLOCK.findall(TEXT):
        if file:
            reader.write(file, body)
            continue
        assert language == "console", f"a block of {language} that is neither a file nor typed"
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, shown = part.split("\n", 1)
            printed = reader.run(command, len(shown.splitlines()))
            assert fits(shown, printed), f"$ {command}\n{printed}"


def test_every_fence_of_the_tutorial_is_a_file_or_typed() -> None:
    """Nothing is shown that is not tried."""
    blocks = BLOCK.findall(TEXT)
    assert TEXT.count("```") == 2 * len(blocks)
    assert all(file or language == "console" for language, file, _ in blocks)


def test_the_tutorial_sets_up_with_commands_that_exist() -> None:
    """`make setup` is a target, and what is activated is what it makes."""
    makefile = (PAGE.parents[1] / "Makefile").read_text("utf-8")
    assert "    make setup\n    . .venv/bin/activate\n" in TEXT
    assert re.search(r"^setup:", makefile, re.MULTILINE)
    assert "VENV  := .venv\n" in makefile
