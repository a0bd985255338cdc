"""The engine "monty": an interpreter of its own, written in Rust, in a process that lives for one evaluation.

Decides which requests of the interpreter are answered, and that only text crosses: the value of the code is printed
inside, never fetched. Fetching it would build the code's dicts and sets here, where equal hashes cost quadratic time with
the interpreter lock held. For the same reason arguments are looked at only where the interpreter has checked their types.
Cancelling the evaluation kills the process.
"""

from __future__ import annotations

import atexit
import secrets
import threading
from collections.abc import Callable
from typing import Any

from ...clock import SYSTEM_CLOCK
from ...errors import FilesystemError
from ...filesystem import FileAlreadyExistsError, PathEscapeError
from .evaluation import Ending, Evaluation, EvaluationLimits, Failure, Output, cut, one_line, traced
from .file_access import FileAccess, FilesExhausted, builtin_name
from .last_expression import keep_last_expression

_GRACE = 1.0
"""Seconds the interpreter has to stop by itself before its process is killed."""
_LINGER = 0.1

_LEVELS = 64
_TOP = "/workspace~"
_HERE = _TOP + "/~" * (_LEVELS - 1)
"""Where the code runs. The interpreter resolves `..` before it asks, and `/..` is `/`: from so deep below, a path that climbs out
can be told from one that begins at the root."""

PRELUDE = """
from pathlib import Path as __Path
def read_text(path, __Path=__Path):
    return __Path(path).read_text()
def write_text(path, text, __Path=__Path):
    return __Path(path).write_text(text)
def append_text(path, text):
    with open(path, 'a') as file:
        return file.write(text)
def list_files(path='.', __Path=__Path):
    return sorted(entry.name for entry in __Path(path).iterdir())
None
"""


async def evaluate(code: str, files: FileAccess, limits: EvaluationLimits, seconds: float) -> Evaluation:
    """Run the code in a new interpreter; it has ended when this returns or raises."""
    _linger_at_exit()
    try:
        found = await _evaluate(code, files, limits, seconds)
    finally:
        _exit.last_used = SYSTEM_CLOCK.monotonic()
    value = None if found.value is None else _as_seen(found.value)
    return Evaluation(value, _as_seen(found.output), found.failure)


async def _evaluate(code: str, files: FileAccess, limits: EvaluationLimits, seconds: float) -> Evaluation:
    import asyncio

    import pydantic_monty as monty

    output = Output(limits.output_chars)
    shown = _Shown(output)
    kept = keep_last_expression(code, "_")
    source = (code if kept is None else kept) + "\n" + shown.epilogue(kept is not None, limits.value_chars)
    try:
        async with (
            asyncio.timeout(seconds + 2 * _GRACE),
            monty.AsyncMonty(
                min_processes=1,
                max_processes=1,
                request_timeout=seconds + _GRACE,
                feed_duration_limit_grace=_GRACE,
                turn_duration_limit_grace=_GRACE,
            ) as pool,
            pool.checkout(
                limits={
                    "max_feed_duration_secs": seconds,
                    "max_memory": limits.memory_bytes,
                    "max_recursion_depth": limits.recursion,
                    "max_suspensions": 2 * limits.file_operations + 1_000,
                },
                os_policy={"sleep": "zero"},
            ) as session,
        ):
            await session.feed_start(PRELUDE, cwd=_HERE)
            ends_at = SYSTEM_CLOCK.monotonic() + seconds
            turn: Any = await session.feed_start(source, print_callback=shown)
            while not isinstance(turn, monty.MontyComplete):
                if SYSTEM_CLOCK.monotonic() > ends_at:
                    return Evaluation(None, output.text(), _stopped("time", limits, seconds))
                turn = await _answer(turn, files, monty)
    except monty.MontyRuntimeError as error:
        return Evaluation(None, output.text(), _failure(error, code, limits, seconds))
    except monty.MontySyntaxError as error:
        return Evaluation(None, output.text(), _invalid(error, code))
    except monty.MontyCrashedError as error:
        ending: Ending = "time" if error.timed_out else "crash"
        return Evaluation(None, output.text(), _stopped(ending, limits, seconds))
    except FilesExhausted as error:
        return Evaluation(None, output.text(), Failure("files", f"The code used {error}."))
    except TimeoutError:
        return Evaluation(None, output.text(), _stopped("time", limits, seconds))
    return Evaluation(shown.value(limits.value_chars), output.text())


class _Exit:
    """What the end of the program must know."""

    last_used = 0.0
    is_watched = False


_exit = _Exit()


def _linger_at_exit() -> None:
    """Have the program wait a moment before it ends, if it used the interpreter just then.

    The client's own threads hand over their last results in Python, and one that comes too late for that aborts the process.
    """
    if not _exit.is_watched:
        _exit.is_watched = True
        atexit.register(_linger)


def _linger() -> None:
    if SYSTEM_CLOCK.monotonic() - _exit.last_used < _LINGER:
        threading.Event().wait(_LINGER)


class _Shown:
    """Takes what is printed: the code's own text, and behind a mark that the code cannot know, the value's."""

    def __init__(self, output: Output) -> None:
        self._mark = f"\x02{secrets.token_hex(16)}"
        self._output = output
        self._tail = ""
        self._value: list[str] | None = None

    def epilogue(self, has_value: bool, most: int) -> str:
        """Statements behind the code. The last one keeps its value from being the result."""
        if not has_value:
            return "None\n"
        show = f"if _ is not None: _ = repr(_); print({self._mark!r} + str(len(_)) + '\\x03' + _[:{most}], end='')\n"
        return show + "None\n"

    def __call__(self, _stream: str, text: str) -> None:
        if self._value is not None:
            self._value.append(text)
            return
        # The mark may be cut in two by the way text arrives.
        text = self._tail + text
        before, mark, after = text.partition(self._mark)
        if mark:
            self._tail = ""
            self._output.add(before)
            self._value = [after]
            return
        possible = text.rfind("\x02", len(text) - len(self._mark) + 1 if len(text) >= len(self._mark) else 0)
        at = len(text) if possible < 0 else possible
        self._output.add(text[:at])
        self._tail = text[at:]

    def value(self, most: int) -> str | None:
        if self._value is None:
            self._output.add(self._tail)
            return None
        length, _, text = "".join(self._value).partition("\x03")
        return cut(text, most, int(length) if length.isdecimal() else None)


async def _answer(turn: Any, files: FileAccess, monty: Any) -> Any:
    if isinstance(turn, monty.AsyncNameLookupSnapshot):
        return await turn.resume()  # without a value: a NameError in the code
    if not isinstance(turn, monty.AsyncFunctionSnapshot):
        return await turn.resume({})
    if not turn.is_os_function:
        return await turn.resume({"exc_type": "NameError", "message": f"name '{turn.function_name}' is not defined"})
    name = str(turn.function_name)
    if name not in _REQUESTS:
        return await turn.resume_not_handled()
    try:
        answer = _REQUESTS[name](files, turn, monty)
    except FilesystemError as error:
        return await turn.resume({"exc_type": builtin_name(error), "message": str(error)})
    return await turn.resume({"return_value": answer})


def _path(turn: Any, at: int = 0) -> str:
    """The path as the filesystem takes it; raises for one that climbs out of where the code runs."""
    given = turn.args[at]
    path = str(given.path if hasattr(given, "mode") else given)
    if path == _HERE or path.startswith(f"{_HERE}/"):
        return path[len(_HERE) :] or "/"
    if path == _TOP or path.startswith(f"{_TOP}/"):
        parts = path.split("/")[1:]
        kept = next(
            (at for at, (one, other) in enumerate(zip(parts, _HERE.split("/")[1:], strict=False)) if one != other),
            len(parts),
        )
        raise PathEscapeError.at("/".join((*[".."] * (_LEVELS - kept), *parts[kept:])))
    return path


def _as_seen(text: str) -> str:
    """The place where the code runs is the root to everybody."""
    return text.replace(f"{_HERE}/", "/").replace(_HERE, "/") if _HERE in text else text


def _open(files: FileAccess, turn: Any, monty: Any) -> object:
    path, mode = _path(turn), str(turn.args[1])
    if "w" in mode:
        files.write(path, "")
    elif "a" in mode:
        files.create(path)
    else:
        files.require(path)
    return monty.MontyFileHandle(path, mode)


def _iterate(files: FileAccess, turn: Any, _monty: Any) -> object:
    from pathlib import PurePosixPath

    base = PurePosixPath(_path(turn))
    return [base / name for name in files.list(str(base))]


def _scan(files: FileAccess, turn: Any, monty: Any) -> object:
    """A directory and what is in it, level by level; each directory is one operation, so a large tree ends at the limit."""
    base, depth = _path(turn), turn.kwargs.get("max_depth")
    found: list[Any] = [monty.ScanEntry("", files.is_dir(base), files.is_file(base), False)]
    todo = [("", 1)]
    while todo:
        below, level = todo.pop()
        for name in files.list(f"{base}/{below}"):
            path = f"{below}/{name}" if below else name
            is_dir = files.is_dir(f"{base}/{path}")
            found.append(monty.ScanEntry(path, is_dir, not is_dir, False))
            if is_dir and (depth is None or level < depth):
                todo.append((path, level + 1))
    return found


def _stat(files: FileAccess, turn: Any, monty: Any) -> object:
    path = _path(turn)
    if files.is_dir(path):
        return monty.StatResult.dir_stat(mtime=0.0)
    return monty.StatResult.file_stat(files.size(path), mtime=0.0)


def _make_directory(files: FileAccess, turn: Any, _monty: Any) -> object:
    path = _path(turn)
    if files.exists(path) and not turn.kwargs.get("exist_ok", False):
        raise FileAlreadyExistsError(f"Already exists: {path}")
    files.mkdir(path)
    return None


# INVARIANT: for each of these the interpreter has checked that the arguments are paths, text or bytes; no others.
_REQUESTS: dict[str, Callable[[FileAccess, Any, Any], object]] = {
    "Path.exists": lambda files, turn, _: files.exists(_path(turn)),
    "Path.is_file": lambda files, turn, _: files.is_file(_path(turn)),
    "Path.is_dir": lambda files, turn, _: files.is_dir(_path(turn)),
    "Path.is_symlink": lambda _files, _turn, _: False,
    "open": _open,
    "Path.read_text": lambda files, turn, _: files.read_text(_path(turn)),
    "Path.read_bytes": lambda files, turn, _: files.read_bytes(_path(turn)),
    "Path.write_text": lambda files, turn, _: files.write(_path(turn), turn.args[1]),
    "Path.write_bytes": lambda files, turn, _: files.write(_path(turn), turn.args[1]),
    "Path.append_text": lambda files, turn, _: files.append(_path(turn), turn.args[1]),
    "Path.append_bytes": lambda files, turn, _: files.append(_path(turn), turn.args[1]),
    "Path.mkdir": _make_directory,
    "Path.unlink": lambda files, turn, _: files.delete(_path(turn)),
    "Path.rmdir": lambda files, turn, _: files.delete(_path(turn)),
    "Path.iterdir": _iterate,
    "Path.scan": _scan,
    "Path.stat": _stat,
    "Path.rename": lambda files, turn, _: files.move(_path(turn), _path(turn, 1)),
    "Path.resolve": lambda _files, turn, _: _path(turn),
    "Path.absolute": lambda _files, turn, _: _path(turn),
}


def _failure(error: Any, code: str, limits: EvaluationLimits, seconds: float) -> Failure:
    """What the code did wrong. Which limit it hit is told by the interpreter's own words: an error that the code
    raises itself can carry them too, and then only fools its author."""
    kind, _, said = str(error.display("type-msg")).partition(": ")
    if kind == "TimeoutError" and "time limit exceeded" in said:
        return _stopped("time", limits, seconds)
    if kind == "MemoryError":
        return _stopped("memory", limits, seconds)
    said = _as_seen(said)
    frames = [(frame.line, _function(frame)) for frame in error.traceback() if frame.filename == "<python-input-1>"]
    trace = traced(code, frames)
    if frames and not trace:
        return Failure("error", f"The value cannot be shown: {one_line(f'{kind}: {said}')}")
    return Failure(_ending(kind), one_line(f"{kind}: {said}" if said else kind), trace)


def _invalid(error: Any, code: str) -> Failure:
    frames = [(frame.line, None) for frame in error.traceback()]
    return Failure("error", one_line(f"SyntaxError: {error.display('msg')}"), traced(code, frames))


def _function(frame: Any) -> str | None:
    name = frame.function_name
    return None if name is None or name == "<module>" else str(name)


def _ending(kind: str) -> Ending:
    return "refused" if kind in ("NotImplementedError", "ModuleNotFoundError", "PermissionError") else "error"


def _stopped(ending: Ending, limits: EvaluationLimits, seconds: float) -> Failure:
    reasons: dict[str, str] = {
        "time": f"The code ran longer than {seconds:g} seconds and was stopped.",
        "memory": f"The code wanted more than {limits.memory_bytes} bytes of memory and was stopped.",
        "crash": "The interpreter died while it ran the code.",
    }
    return Failure(ending, reasons[ending])
