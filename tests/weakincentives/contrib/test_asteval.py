"""Claims of AstevalSection: what the model reads, what is kept, what is taken back, and that nothing runs on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.contrib.interpreters.last_expression import keep_last_expression
from weakincentives.contrib.tools import AstevalSection, EvaluationLimits
from weakincentives.contrib.tools.asteval import Engine, EvaluatePython, PythonResult
from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Deadline
from weakincentives.prompt import Prompt, PromptTemplate
from weakincentives.runtime import Session, ToolCall, ToolInvoked, ToolOutcome, aexecute_tool, execute_tool
from weakincentives.testing import make_vfs, run_tool

ENGINES: tuple[Engine, ...] = ("monty", "asteval")
both = pytest.mark.parametrize("engine", ENGINES)


def run(engine: Engine, code: str, *, fs: Filesystem | None = None, **limits: float) -> ToolOutcome:
    section = AstevalSection(engine=engine, config=EvaluationLimits(**limits))  # type: ignore[arg-type]
    return run_tool(section.tools[0], {"code": code}, fs=make_vfs() if fs is None else fs)


@both
def test_the_last_expression_is_the_value(engine: Engine) -> None:
    """The model reads it as Python shows it."""
    outcome = run(engine, "x = [1, 2]\nx + ['three']")
    assert outcome.value == PythonResult("[1, 2, 'three']", "")
    assert outcome.text == "Value: [1, 2, 'three']"


@both
def test_printed_text_comes_with_the_value(engine: Engine) -> None:
    """Output first, then the value."""
    assert run(engine, "print('a', 1)\nprint('b')\n2").text == "Output:\na 1\nb\n\nValue: 2"


@both
def test_code_that_gives_nothing_says_so(engine: Engine) -> None:
    """A model is never left with empty text."""
    assert run(engine, "x = 1").text == "The code ran. It printed nothing, and its last line has no value."


@both
def test_files_are_those_of_the_context(engine: Engine) -> None:
    """Code reads and writes the bound filesystem, and a success keeps what it wrote."""
    fs = make_vfs({"in.txt": "2\n3\n"})
    outcome = run(
        engine, "n = [int(x) for x in read_text('in.txt').split()]\nwrite_text('out/sum.txt', str(sum(n)))", fs=fs
    )
    assert outcome.success, outcome.text
    assert fs.read("out/sum.txt") == "5"


@both
def test_appending_and_listing(engine: Engine) -> None:
    """The two other functions for files do what their names say."""
    fs = make_vfs({"a": "1"})
    assert run(engine, "append_text('a', '2')\nappend_text('b', '3')\nlist_files()", fs=fs).text == "Value: ['a', 'b']"
    assert fs.read("a") == "12"


def test_open_and_pathlib_work_in_monty() -> None:
    """The usual ways to files reach the same filesystem."""
    fs = make_vfs({"a": "1\n2\n", "d/b": "x"})
    code = (
        "from pathlib import Path\n"
        "with open('a') as f: lines = f.readlines()\n"
        "with open('c', 'w') as f: f.write('new')\n"
        "Path('e').mkdir()\nPath('d/b').rename('e/b')\n"
        "(lines, Path('c').read_text(), Path('e/b').exists(), sorted(p.name for p in Path('.').iterdir()),"
        " [str(p) for p in Path('.').glob('*/b')], Path('c').stat().st_size)"
    )
    outcome = run("monty", code, fs=fs)
    assert outcome.text == "Value: (['1\\n', '2\\n'], 'new', True, ['a', 'c', 'd', 'e'], ['e/b'], 3)"
    assert fs.read("e/b") == "x"


def test_code_runs_in_the_root() -> None:
    """Where the interpreter puts the working directory is its own affair: code is told the root, and paths of it work."""
    code = "import os\nfrom pathlib import Path\nprint(Path.cwd() / 'a.txt')\nprint((Path.cwd() / 'a.txt').read_text())\nos.getcwd()"
    assert run("monty", code, fs=make_vfs({"a.txt": "text"})).text == "Output:\n/a.txt\ntext\n\nValue: '/'"


def test_a_program_ends_well_right_after_an_evaluation() -> None:
    """The client's threads are not cut off in the middle of their last words, which would abort the process."""
    program = (
        "from weakincentives.contrib.tools import AstevalSection\nfrom weakincentives.testing import run_tool\n"
        "tool = AstevalSection().tools[0]\nfor _ in range(5): assert run_tool(tool, {'code': '1'}).success"
    )
    ends = [subprocess.run([sys.executable, "-c", program], check=False).returncode for _ in range(4)]
    assert ends == [0, 0, 0, 0]


@both
def test_a_failed_evaluation_takes_its_writes_back(engine: Engine) -> None:
    """The files are as they were, and the event says failed."""
    fs, session = make_vfs({"a": "before"}), Session()
    tool = AstevalSection(engine=engine).tools[0]
    outcome = run_tool(tool, {"code": "write_text('a', 'after')\nwrite_text('b', '')\n1 / 0"}, fs=fs, session=session)
    assert outcome.outcome == "failed"
    assert (fs.list(), fs.read("a")) == (["a"], "before")
    assert session[ToolInvoked].all()[0].success is False


@both
def test_an_error_is_told_with_the_lines_of_the_code(engine: Engine) -> None:
    """What was wrong, where, what it printed, and what to do; no place outside the code."""
    outcome = run(engine, "print('start')\ndef f(n):\n    return 1 / n\n\nf(0)")
    call = "  line 5: f(0)\n  line 3, in f: return 1 / n\n" if engine == "monty" else "  line 3: return 1 / n\n"
    assert outcome.text == (
        f"Evaluation failed: ZeroDivisionError: division by zero\n{call}Printed until then:\nstart\n"
        "Nothing it wrote to files was kept. Correct the code, then retry."
    )


@both
def test_a_syntax_error_is_told_with_its_line(engine: Engine) -> None:
    """The model sees which line to correct."""
    assert "\n  line 2: y = = 2\n" in run(engine, "x = 1\ny = = 2").text


@both
def test_an_error_of_the_filesystem_can_be_caught(engine: Engine) -> None:
    """A missing file is an exception like any other."""
    code = "try:\n    x = read_text('gone')\nexcept FileNotFoundError:\n    x = 'none'\nx"
    assert run(engine, code).text == "Value: 'none'"


@both
def test_without_a_filesystem_code_still_runs(engine: Engine) -> None:
    """Only files are missing then, and that is told."""
    section = AstevalSection(engine=engine)
    assert run_with_nothing(section, "1 + 1") == "Value: 2"
    told = run_with_nothing(section, "read_text('a')")
    assert "PermissionError: There are no files here: no filesystem is bound to this prompt." in told


def run_with_nothing(section: AstevalSection, code: str) -> str:
    prompt = Prompt(PromptTemplate(sections=[section])).bind()
    return execute_tool(ToolCall("evaluate_python", {"code": code}), prompt=prompt, session=Session()).text


@both
def test_output_is_cut_with_a_note(engine: Engine) -> None:
    """What is dropped is counted."""
    assert run(engine, "print('abcdefghij')", output_chars=4).text == (
        "Output:\nabcd\n[Output cut: the first 4 of 11 characters are shown. Print less.]"
    )


@both
def test_a_value_is_cut_with_a_note(engine: Engine) -> None:
    """The model learns how long it was."""
    assert run(engine, "'a' * 100", value_chars=5).text == "Value: 'aaaa… [cut: 5 of 102 characters are shown]"


@both
def test_code_that_is_too_long_is_not_run(engine: Engine) -> None:
    """The refusal says how to do it instead."""
    assert run(engine, "print('x') ", code_chars=10).text == (
        "The code is too long: 11 characters, at most 10 are taken.\n"
        "Put data into files and read it from there, then retry."
    )


@both
@pytest.mark.parametrize(
    ("code", "limit", "told"),
    [
        ("sum(range(10 ** 12))", {"seconds": 0.2}, "The code ran longer than 0.2 seconds and was stopped.\nNothing it wrote to files was kept. Do less in one call, then retry."),
        ("bytes(10 ** 10)", {"memory_bytes": 1_000_000}, "The code wanted more than 1000000 bytes of memory and was stopped.\nNothing it wrote to files was kept. Hold less data at once, then retry."),
        ("[read_text('a') for i in range(9)]", {"file_operations": 3}, "The code used more than 3 file operations.\nNothing it wrote to files was kept. Read and write less in one call, then retry."),
        ("write_text('b', 'x' * 99)", {"file_bytes": 50}, "The code used more than 50 bytes read and written.\nNothing it wrote to files was kept. Read and write less in one call, then retry."),
    ],
    ids=["time", "memory", "operations", "bytes"],
)  # fmt: skip
def test_a_limit_ends_the_evaluation(engine: Engine, code: str, limit: dict[str, float], told: str) -> None:
    """Whatever was used up is named, with what to do next."""
    assert run(engine, code, fs=make_vfs({"a": "1"}), **limit).text == f"Evaluation failed: {told}"


def test_steps_end_an_evaluation_of_asteval() -> None:
    """A step is a visited node of the code; the code cannot catch the end."""
    assert run("asteval", "while True:\n  try:\n    pass\n  except: pass", steps=1_000).text == (
        "Evaluation failed: The code did more than 1000 steps and was stopped.\n"
        "Nothing it wrote to files was kept. Do less in one call, then retry."
    )


def test_a_wrong_call_is_told_by_the_name_that_was_called() -> None:
    """Names from inside the interpreter would mean nothing to the model."""
    assert (
        "TypeError: read_text() takes 1 positional argument but 2 were given"
        in run("asteval", "read_text('a', 1)").text
    )


def test_what_does_not_exist_is_refused_as_such() -> None:
    """The model is told not to try again."""
    assert run("asteval", "import os").text == (
        "Evaluation failed: import is not available\n  line 1: import os\n"
        "Nothing it wrote to files was kept. This cannot work here; do it another way."
    )


@both
def test_a_near_deadline_shortens_the_time(engine: Engine) -> None:
    """Code never runs beyond the deadline of the run."""
    tool = AstevalSection(engine=engine, config=EvaluationLimits(seconds=60)).tools[0]
    outcome = run_tool(tool, {"code": "sum(range(10 ** 12))"}, deadline=Deadline.after(0.3))
    assert outcome.text.startswith("Evaluation failed: The code ran longer than 0.")


def children() -> set[int]:
    return {pid for pid, parent in processes() if parent == os.getpid()}


def processes() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                yield int(entry.name), int(parent)


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to see processes")
@both
def test_a_cancelled_call_leaves_nothing_running(engine: Engine) -> None:
    """The process of the interpreter is gone when the cancelled call is."""
    before = children()

    async def cancel_it() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        class Watched(InMemoryFilesystem):
            """Tells when the code has begun to run."""

            def read_bytes(self, path: str) -> bytes:
                loop.call_soon_threadsafe(begun.set)
                return super().read_bytes(path)

        fs = Watched()
        fs.write("a", "")
        section = AstevalSection(engine=engine, config=EvaluationLimits(seconds=60))
        prompt = Prompt(PromptTemplate(sections=[section])).bind(resources={Filesystem: fs})
        call = ToolCall("evaluate_python", {"code": "read_text('a')\nwhile True: pass"})
        task = asyncio.ensure_future(aexecute_tool(call, prompt=prompt, session=Session()))
        await begun.wait()
        assert children() - before
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while children() - before:  # killed, but the kernel may still be at it
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(cancel_it(), 30))


def test_the_engine_must_be_known() -> None:
    """A wrong word is refused when the section is made."""
    with pytest.raises(PromptValidationError, match="engine must be one of: monty, asteval; got 'cpython'"):
        AstevalSection(engine="cpython")  # type: ignore[arg-type]


def test_a_limit_must_be_positive() -> None:
    """A limit of nothing would look like no limit."""
    with pytest.raises(ValueError, match="EvaluationLimits: seconds must be a positive number, got 0"):
        EvaluationLimits(seconds=0)


@both
def test_the_guidance_names_the_tool_and_its_time(engine: Engine) -> None:
    """The model is told what it may use and for how long."""
    text = Prompt(PromptTemplate(sections=[AstevalSection(session=Session(), engine=engine)])).bind().render().text
    assert "`evaluate_python`" in text
    assert "A call may run 5 seconds." in text


@both
def test_the_example_of_the_tool_runs(engine: Engine) -> None:
    """What the model is shown is true."""
    (example,) = AstevalSection(engine=engine).tools[0].examples
    assert isinstance(example.input, EvaluatePython)
    assert run(engine, example.input.code, fs=make_vfs({"counts.txt": "1\n2\n3\n"})).value == example.output


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("1", "_ = (1)"),
        ("x = 1\nx  # it", "x = 1\n_ = (x)  # it"),
        ("a = 1; a + 1", "a = 1; _ = (a + 1)"),
        ("f(\n  x=1,\n)\n\n# end\n", "_ = (f(\n  x=1,\n))\n\n# end\n"),
        ("'''a\nb'''", "_ = ('''a\nb''')"),
        ("not x", "_ = (not x)"),
        ("x == 1", "_ = (x == 1)"),
        ("d['a':'b']", "_ = (d['a':'b'])"),
        ("lambda y: y", "_ = (lambda y: y)"),
        ("a, *b", "_ = (a, *b)"),
        ("x = 1", None),
        ("x += 1", None),
        ("x: int", None),
        ("if x: y; z", None),
        ("for x in y:\n  x\n", None),
        ("1\ndef f():\n  2", None),
        ("return 1", None),
        ("import os", None),
        ("(", None),
        ("'", None),
        ("", None),
    ],
)
def test_the_last_expression_is_found_without_a_parser(code: str, kept: str | None) -> None:
    """An expression at the end is kept on its lines; anything else is left alone."""
    assert keep_last_expression(code, "_") == kept
