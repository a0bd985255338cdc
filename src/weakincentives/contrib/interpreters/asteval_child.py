"""The inside of the engine "asteval": a script, run by a bare Python in a process that lives for one evaluation.

Order matters: load everything, take limits, give up every system call but those of memory and the two open pipes, then
read the code. INVARIANT: whatever a hostile program reaches in this process, the kernel lets it compute and talk to its
parent, nothing else; it cannot open, connect, start or signal anything. The checks of the code come on top and give the
reasons. Imports nothing of the package: it must start without it.
"""
# asteval has no types, and half of this file is a subclass of its interpreter.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import ast
import ctypes
import json
import math
import os
import platform
import resource
import struct
import sys
import unicodedata
from collections.abc import Callable
from typing import Any, NoReturn

# read, write, close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn, mremap,
# madvise, exit, futex, clock_gettime, exit_group, getrandom, sigaltstack, restart_syscall, gettimeofday
_ALLOWED = {
    "x86_64": (0xC000003E, (0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 25, 28, 60, 202, 228, 231, 318, 131, 219, 96)),
    "aarch64": (
        0xC00000B7,
        (63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 216, 233, 93, 98, 113, 94, 278, 132, 128, 169),
    ),
}
_MAX_DEPTH = 80
# The parser asks for this module at the first name that is not ASCII, when nothing can be loaded any more.
_LOADED_EARLY = (unicodedata,)
_HIDDEN = ("gi_", "cr_", "ag_", "tb_", "f_", "co_", "func_", "im_")
_NO_ATTRIBUTES = {"mro", "format", "format_map", "with_traceback", "add_note"}
_ABSENT = {
    "getattr", "setattr", "delattr", "hasattr", "vars", "dir", "globals", "locals", "eval", "exec", "compile", "input",
    "breakpoint", "help", "exit", "quit", "object", "super", "memoryview", "classmethod", "staticmethod", "property",
    "callable", "iter", "next", "id",
}  # fmt: skip
_UNKNOWN = {
    ast.Import: "import is not available",
    ast.ImportFrom: "import is not available",
    ast.ClassDef: "classes are not available",
    ast.AsyncFunctionDef: "async is not available",
    ast.AsyncFor: "async is not available",
    ast.AsyncWith: "async is not available",
    ast.Await: "async is not available",
    ast.Yield: "yield is not available",
    ast.YieldFrom: "yield is not available",
    ast.GeneratorExp: "generator expressions are not available; use a list in brackets",
    ast.Global: "global is not available",
    ast.Nonlocal: "nonlocal is not available",
    ast.With: "with is not available",
    ast.NamedExpr: ":= is not available",
    ast.Match: "match is not available",
}


def give_up_system_calls() -> None:
    """From here on, a system call outside the list fails with EPERM. Raises OSError when the kernel does not agree."""
    architecture, numbers = _ALLOWED[platform.machine()]
    load, jump_equal, jump_above, give = 0x20, 0x15, 0x35, 0x06
    allow, deny, kill = 0x7FFF0000, 0x00050001, 0x80000000
    program = [(load, 0, 0, 4), (jump_equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    # x86-64 has a second table of system calls behind bit 30.
    program += [(jump_above, 0, 1, 0x40000000), (give, 0, 0, kill)]
    for at, number in enumerate(numbers):
        program.append((jump_equal, len(numbers) - at, 0, number))
    program += [(give, 0, 0, deny), (give, 0, 0, allow)]
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    filters = Program(len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((38, 1, 0, 0, 0), (22, 2, ctypes.byref(filters), 0, 0)):  # no new privileges, then seccomp
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def take_limits(memory_bytes: int, seconds: float) -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    cpu = math.ceil(seconds) + 2
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, used + memory_bytes),
    ):
        resource.setrlimit(kind, (most, most))


class Pipe:
    """Frames of JSON over the two pipes: four bytes of length, then the text."""

    def send(self, message: dict[str, object]) -> None:
        body = json.dumps(message).encode()
        data = memoryview(struct.pack(">I", len(body)) + body)
        while data:
            data = data[os.write(1, data) :]

    def receive(self) -> Any:
        (length,) = struct.unpack(">I", self._exactly(4))
        return json.loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = os.read(0, min(count, 1 << 20))
            if not part:
                os._exit(0)  # nobody waits for us any more
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        FileNotFoundError,
        FileExistsError,
        IsADirectoryError,
        NotADirectoryError,
        PermissionError,
        ValueError,
        OSError,
    )
}


def problem_of(tree: ast.AST) -> tuple[str, int] | None:
    """The first thing in the code that does not exist here, and its line."""
    todo: list[tuple[ast.AST, int, int]] = [(tree, 0, 1)]
    while todo:
        node, depth, line = todo.pop()
        line = getattr(node, "lineno", line)
        if depth > _MAX_DEPTH:
            return "the code is too deeply nested", line
        for kind, words in _UNKNOWN.items():
            if isinstance(node, kind):
                return words, line
        if isinstance(node, ast.Attribute) and (
            node.attr.startswith("_") or node.attr.startswith(_HIDDEN) or node.attr in _NO_ATTRIBUTES
        ):
            return f"the attribute '{node.attr}' is not available", line
        if isinstance(node, ast.Name) and (node.id.startswith("__") or node.id in _ABSENT):
            return f"the name '{node.id}' is not available", line
        todo.extend((child, depth + 1, line) for child in ast.iter_child_nodes(node))
    return None


def interpreter_class() -> type[Any]:
    # Must not be found: its functions read files and map memory.
    sys.modules["numpy"] = sys.modules["numpy_financial"] = None  # type: ignore[assignment]
    import asteval
    from asteval.astutils import Procedure

    made: Any = asteval.Interpreter

    class Counting(made):  # type: ignore[misc,valid-type]
        """asteval that counts its steps and knows the line it is at."""

        def __init__(self, steps: int, recursion: int, stop: Callable[[], NoReturn], **more: Any) -> None:
            self.left = steps
            self.deepest = recursion
            self.stop = stop
            self.at = 1
            self.first: tuple[str, str, int] | None = None
            super().__init__(**more)

        def run(self, node: Any, expr: Any = None, lineno: Any = None, with_raise: bool = True) -> Any:
            self.left -= 1
            if self.left < 0:
                self.stop()  # WHY NOT raise: the code could catch it
            self.at = getattr(node, "lineno", self.at)
            return super().run(node, expr=expr, lineno=lineno, with_raise=with_raise)

        def raise_exception(
            self, node: Any, exc: Any = None, msg: Any = "", expr: Any = None, lineno: Any = None
        ) -> Any:
            if not self.error:
                raised = sys.exc_info()[1]
                if exc is None and raised is not None:
                    self.first = (type(raised).__name__, str(raised), self.at)
                else:
                    self.first = (getattr(exc, "__name__", "Error"), str(msg), self.at)
            return super().raise_exception(node, exc=exc, msg=msg, expr=expr, lineno=lineno)

        def on_call(self, node: Any) -> Any:
            """As asteval's own, with starred arguments, a depth, and without the arguments in the error text."""
            function = self.run(node.func)
            if not callable(function):
                raise TypeError(f"'{type(function).__name__}' object is not callable")
            given: list[Any] = []
            for each in node.args:
                if isinstance(each, ast.Starred):
                    given.extend(self.run(each.value))
                else:
                    given.append(self.run(each))
            named: dict[str, Any] = {}
            for each in node.keywords:
                if each.arg is None:
                    named.update(self.run(each.value))
                else:
                    named[each.arg] = self.run(each.value)
            if not isinstance(function, Procedure):
                return function(*given, **named)
            if self._calldepth >= self.deepest:
                raise RecursionError("maximum recursion depth exceeded")
            self._calldepth += 1
            try:
                return function(*given, **named)
            finally:
                self._calldepth -= 1

    return Counting


def symbols(pipe: Pipe) -> dict[str, Any]:
    """Every name the code starts with."""
    from asteval import astutils

    table: dict[str, Any] = {
        name: value for name, value in astutils.BUILTINS_TABLE.items() if name not in _ABSENT and name != "format"
    }
    table.update({name: value for name, value in astutils.MATH_TABLE.items() if name != "pow"})

    def ask(operation: str, *arguments: object) -> Any:
        for each in arguments:
            if type(each) is not str:
                raise TypeError(f"expected text, got {type(each).__name__}")
        pipe.send({"op": operation, "args": list(arguments)})
        answer = pipe.receive()
        if "error" in answer:
            kind, words = answer["error"]
            raise _KINDS.get(kind, OSError)(words)
        return answer["ok"]

    def type_name(value: object) -> str:
        return type(value).__name__

    def no_open(*_: object, **__: object) -> NoReturn:
        raise PermissionError("open() is not available; use read_text(path) and write_text(path, text)")

    def shown(*values: object, sep: str = " ", end: str = "\n") -> None:
        pipe.send({"op": "print", "args": [str(sep).join([str(value) for value in values]) + str(end)]})

    table.update(
        type=type_name,
        open=no_open,
        read_text=lambda path: ask("read_text", path),
        write_text=lambda path, text: ask("write_text", path, text),
        append_text=lambda path, text: ask("append_text", path, text),
        list_files=lambda path=".": ask("list_files", path),
        print=shown,
    )
    for name in ("type", "open", "read_text", "write_text", "append_text", "list_files", "print"):
        table[name].__name__ = table[name].__qualname__ = name  # errors speak of what the code called
    return table


def main() -> NoReturn:
    pipe = Pipe()
    sys.path.append(sys.argv[1])
    made = interpreter_class()
    table = symbols(pipe)
    show: Any = table["print"]
    task = pipe.receive()
    sys.path.clear()
    sys.setrecursionlimit(40 * task["recursion"] + 2_000)
    take_limits(task["memory_bytes"], task["seconds"])
    give_up_system_calls()

    def end(ending: str, reason: str = "", line: int = 0, value: str | None = None, length: int = 0) -> NoReturn:
        pipe.send({"op": "end", "args": [ending, reason[:2_000], line, value, length]})
        os._exit(0)

    pipe.send({"op": "ready", "args": []})
    code = task["code"]
    try:
        tree = ast.parse(code)
        problem = problem_of(tree)
        if problem is not None:
            end("refused", *problem)
        interpreter = made(
            task["steps"],
            task["recursion"],
            lambda: end("steps"),
            symtable=table,
            use_numpy=False,
            nested_symtable=False,
        )
        interpreter.symtable["print"] = show
        try:
            value = interpreter.run(tree, expr=code, lineno=0)
        except Exception as error:  # noqa: BLE001  INVARIANT: the code's error is told, whatever it is
            kind, words, line = interpreter.first or (type(error).__name__, str(error), interpreter.at)
            end("memory" if kind == "MemoryError" else "error", f"{kind}: {words}" if words else kind, line)
        if interpreter.error and interpreter.first is not None:
            kind, words, line = interpreter.first
            end("memory" if kind == "MemoryError" else "error", f"{kind}: {words}" if words else kind, line)
        if value is None or not tree.body or not isinstance(tree.body[-1], ast.Expr):
            end("ok")
        text = repr(value)
        end("ok", value=text[: task["value_chars"]], length=len(text))
    except SyntaxError as error:
        end("error", f"SyntaxError: {error.msg}", error.lineno or 0)
    except MemoryError:
        end("memory")
    except (RecursionError, ValueError) as error:
        end("error", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
