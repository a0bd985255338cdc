"""The outside of the engine "asteval": starts the process, answers its requests for files, ends it.

Decides what the process may ask. Everything it sends is taken for hostile: known words with text, or it is ended. The
process is gone when the evaluation is over, out of time, or its call has ended.
"""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
import threading
from importlib.util import find_spec
from types import TracebackType
from typing import IO, Any, cast

from ...errors import FilesystemError
from .evaluation import Evaluation, EvaluationLimits, Failure, Output, cut, one_line, traced
from .file_access import FileAccess, FilesExhausted, builtin_name

# Named, not imported: it is a program for another process, and needs modules that only some systems have.
_CHILD = os.path.join(os.path.dirname(__file__), "asteval_child.py")
_START_SECONDS = 30.0


def unavailable() -> str | None:
    """Why the engine cannot run on this machine; None if it can."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return "its process gives up system calls by seccomp, which needs Linux on x86-64 or arm64. Use engine='monty'."
    return None


class _Broken(Exception):
    """The process sent something it never sends."""


class Interpreter:
    """One process for one evaluation. A context manager: leaving it ends the process, whatever happened."""

    def __init__(self, limits: EvaluationLimits, seconds: float) -> None:
        spec = find_spec("asteval")
        assert spec is not None and spec.origin is not None, "the section checks that asteval is installed"
        home = os.path.dirname(os.path.dirname(spec.origin))
        self._limits = limits
        self._seconds = seconds
        self._timed_out = False
        # -I -S: no environment, no user site, no site-packages; only the folder of asteval is named.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-X", "utf8", _CHILD, home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            close_fds=True,
            start_new_session=True,
            bufsize=0,
        )
        self._timer = self._watch(_START_SECONDS)

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            cast("IO[bytes]", pipe).close()
        self._process.wait()
        self._timer.join()

    def kill(self) -> None:
        """End the process now; fine at any time, from any thread."""
        self._process.kill()

    def evaluate(self, code: str, files: FileAccess) -> Evaluation:
        """Run the code and answer what it asks for."""
        output = Output(self._limits.output_chars)
        try:
            return self._talk(code, files, output)
        except FilesExhausted as error:
            return Evaluation(None, output.text(), Failure("files", f"The code used {error}."))
        except (_Broken, OSError):
            if self._timed_out:
                return Evaluation(None, output.text(), self._stopped("time"))
            return Evaluation(None, output.text(), self._stopped("crash"))

    def _talk(self, code: str, files: FileAccess, output: Output) -> Evaluation:
        limits = self._limits
        self._send(
            {
                "code": code,
                "seconds": self._seconds,
                "steps": limits.steps,
                "recursion": limits.recursion,
                "memory_bytes": limits.memory_bytes,
                "value_chars": limits.value_chars,
            }
        )
        # Once, and first: from here on hostile code may be talking, and its time does not start anew.
        if self._receive() != ("ready", []):
            raise _Broken
        self._timer.cancel()
        self._timer = self._watch(self._seconds)
        while True:
            operation, arguments = self._receive()
            if operation == "end":
                return self._ended(code, arguments, output)
            if operation == "print":
                output.add(_text(arguments, 1)[0])
            elif operation in ("read_text", "list_files", "write_text", "append_text"):
                self._send(_answered(files, operation, arguments))
            else:
                raise _Broken

    def _ended(self, code: str, arguments: list[Any], output: Output) -> Evaluation:
        if len(arguments) != 5:
            raise _Broken
        ending, reason, line, value, length = arguments
        if not (isinstance(reason, str) and isinstance(line, int) and isinstance(length, int)):
            raise _Broken
        if ending == "ok":
            if value is not None and not isinstance(value, str):
                raise _Broken
            shown = None if value is None else cut(value, self._limits.value_chars, length)
            return Evaluation(shown, output.text())
        if ending in ("memory", "steps"):
            return Evaluation(None, output.text(), self._stopped(ending))
        if ending == "refused":
            return Evaluation(None, output.text(), Failure("refused", one_line(reason), traced(code, [(line, None)])))
        if ending == "error":
            return Evaluation(None, output.text(), Failure("error", one_line(reason), traced(code, [(line, None)])))
        raise _Broken

    def _stopped(self, ending: Any) -> Failure:
        reasons = {
            "time": f"The code ran longer than {self._seconds:g} seconds and was stopped.",
            "memory": f"The code wanted more than {self._limits.memory_bytes} bytes of memory and was stopped.",
            "steps": f"The code did more than {self._limits.steps} steps and was stopped.",
            "crash": "The interpreter died while it ran the code.",
        }
        return Failure(ending, reasons[ending])

    def _watch(self, seconds: float) -> threading.Timer:
        def late() -> None:
            self._timed_out = True
            self.kill()

        timer = threading.Timer(seconds, late)
        timer.daemon = True
        timer.start()
        return timer

    def _send(self, message: dict[str, object]) -> None:
        body = json.dumps(message).encode()
        data = memoryview(struct.pack(">I", len(body)) + body)
        pipe = cast("Any", self._process.stdin)
        while data:
            data = data[pipe.write(data) :]

    def _receive(self) -> tuple[str, list[Any]]:
        (length,) = struct.unpack(">I", self._exactly(4))
        if length > 6 * self._limits.file_bytes + (1 << 22):
            raise _Broken
        try:
            message: Any = json.loads(self._exactly(length))
            operation, arguments = message["op"], message["args"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _Broken from error
        if not isinstance(operation, str) or not isinstance(arguments, list):
            raise _Broken
        return operation, cast("list[Any]", arguments)

    def _exactly(self, count: int) -> bytes:
        pipe = cast("Any", self._process.stdout)
        parts: list[bytes] = []
        while count:
            part = pipe.read(min(count, 1 << 20))
            if not part:
                raise _Broken
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _answered(files: FileAccess, operation: str, arguments: list[Any]) -> dict[str, object]:
    try:
        if operation == "read_text":
            return {"ok": files.read_text(*_text(arguments, 1))}
        if operation == "list_files":
            return {"ok": files.list(*_text(arguments, 1))}
        path, text = _text(arguments, 2)
        return {"ok": files.write(path, text) if operation == "write_text" else files.append(path, text)}
    except FilesystemError as error:
        return {"error": [builtin_name(error), str(error)]}


def _text(arguments: list[Any], count: int) -> list[str]:
    if len(arguments) != count or not all(isinstance(each, str) for each in arguments):
        raise _Broken
    return arguments
