"""Claims of the interpreters' confinement: each known way out is refused, with its reason, and the host goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weakincentives.contrib.interpreters import asteval_process
from weakincentives.contrib.tools import AstevalSection, EvaluationLimits
from weakincentives.contrib.tools.asteval import Engine
from weakincentives.runtime import ToolOutcome
from weakincentives.testing import make_vfs, run_tool

LIMITS = EvaluationLimits(seconds=0.4, memory_bytes=32 * 1024 * 1024, steps=100_000, file_bytes=1_000_000)
TIME = "The code ran longer than 0.4 seconds and was stopped."
MEMORY = "The code wanted more than 33554432 bytes of memory and was stopped."
STEPS = "The code did more than 100000 steps and was stopped."
FILES = "The code used more than 1000000 bytes read and written."

# name: code, what monty says, what asteval says; None: to that engine it is no way out.
# Where two limits stand, either may be used up first: it depends on the machine.
ESCAPES: dict[str, tuple[str, str | None, str | None]] = {
    "mro walk": (
        "().__class__.__mro__[1].__subclasses__()",
        "AttributeError: 'tuple' object has no attribute '__class__'",
        "the attribute '__subclasses__' is not available",
    ),
    "base walk": (
        "x = ''.__class__\nx.__base__",
        "AttributeError: 'str' object has no attribute '__class__'",
        "the attribute '__",
    ),
    "format walk": (
        "'{0.__class__.__mro__}'.format(())",
        "AttributeError: 'tuple' object has no attribute '__class__'",
        "the attribute 'format' is not available",
    ),
    "format walk by name": (
        "'{x.__init__.__globals__}'.format(x=print)",
        "AttributeError",
        "the attribute 'format' is not available",
    ),
    "format_map walk": ("'{a.__class__}'.format_map({'a': 1})", "AttributeError", "the attribute 'format_map'"),
    "format of the type": ("str.format('{0.__class__}', 1)", "AttributeError", "the attribute 'format'"),
    "f-string walk": ("f'{().__class__.__mro__}'", "AttributeError", "the attribute '__"),
    "f-string nested spec": ("f'{1:{().__class__}}'", "AttributeError", "the attribute '__class__'"),
    "generator frame": (
        "g = (i for i in [1])\ng.gi_frame.f_back.f_globals",
        "AttributeError",
        "generator expressions are not available|the attribute",
    ),
    "generator function frame": (
        "def f():\n  yield 1\nf().gi_frame",
        "does not yet support yield",
        "yield is not available|the attribute",
    ),
    "traceback frame": (
        "try:\n  1/0\nexcept Exception as e:\n  t = e.__traceback__.tb_frame\n  t.f_globals",
        "AttributeError: 'ZeroDivisionError' object has no attribute '__traceback__'",
        "the attribute '",
    ),
    "raised with a traceback": (
        "ValueError('x').with_traceback(None)",
        "AttributeError",
        "the attribute 'with_traceback' is not available",
    ),
    "coroutine frame": (
        "async def f(): pass\nf().cr_frame",
        "'coroutine' object has no attribute 'cr_frame'",
        "async is not available|the attribute",
    ),
    "function globals": (
        "def f(): pass\nf.__globals__",
        "'function' object has no attribute '__globals__'",
        "the attribute '__globals__'",
    ),
    "function code": ("def f(): pass\nf.__code__", "no attribute '__code__'", "the attribute '__code__'"),
    "function closure": ("def f(): pass\nf.__closure__", "no attribute '__closure__'", "the attribute '__closure__'"),
    "builtins by name": ("__builtins__", "NameError: name '__builtins__'", "the name '__builtins__' is not available"),
    "loader by name": ("__loader__", "NameError", "the name '__loader__' is not available"),
    "bound method's self": ("print.__self__", "AttributeError", "the attribute '__self__' is not available"),
    "getattr of a built name": ("getattr((), '__cl' + 'ass__')", "AttributeError", "the name 'getattr'"),
    "getattr by map": (
        "import functools\nfunctools.reduce(getattr, ['__class__'], ())",
        "AttributeError",
        "import is not available|the name",
    ),
    "setattr on a builtin": ("setattr(int, 'x', 1)", "AttributeError|TypeError|NameError", "the name 'setattr'"),
    "type with three arguments": ("type('X', (object,), {})", "TypeError", "the name 'object' is not available"),
    "type of a type": ("type(type(1)).__subclasses__(1)", "AttributeError", "the attribute '__subclasses__'"),
    "metaclass": (
        "class M(type): pass\nclass X(metaclass=M): pass",
        "does not yet support class inheritance",
        "classes are not available",
    ),
    "class with hooks": ("class A:\n  __slots__ = 1\nA.__dict__", "Error", "classes are not available|the attribute"),
    "reduce": ("(1).__reduce_ex__(2)", "no attribute '__reduce_ex__'", "the attribute '__reduce_ex__'"),
    "getattribute": ("object.__getattribute__((), '__class__')", "AttributeError", "the attribute|the name"),
    "__import__": ("__import__('os')", "NameError", "the name '__import__' is not available"),
    "import subprocess": ("import subprocess", "No module named 'subprocess'", "import is not available"),
    "import ctypes": ("import ctypes", "No module named 'ctypes'", "import is not available"),
    "import socket": ("import socket", "No module named 'socket'", "import is not available"),
    "import importlib": ("from importlib import import_module", "No module named", "import is not available"),
    "import pickle": ("import pickle", "No module named 'pickle'", "import is not available"),
    "import threading": ("import threading", "No module named 'threading'", "import is not available"),
    "import gc": ("import gc", "No module named 'gc'", "import is not available"),
    "shell": ("import os\nos.system('id')", "module 'os' has no attribute 'system'", "import is not available"),
    "environment": ("import os\nos.environ['PATH']", "'os.environ' is not supported", "import is not available"),
    "modules": ("import sys\nsys.modules", "module 'sys' has no attribute 'modules'", "import is not available"),
    "frames of sys": ("import sys\nsys._getframe()", "has no attribute '_getframe'", "import|the attribute"),
    "eval": ("eval('().__class__')", "AttributeError", "the name 'eval' is not available"),
    "exec": ("exec('import ctypes')", "No module named 'ctypes'", "the name 'exec' is not available"),
    "compile": ("compile('1', '', 'eval')", "NameError", "the name 'compile' is not available"),
    "globals": ("globals()", "NameError", "the name 'globals' is not available"),
    "vars": ("vars(print)", "NameError|TypeError", "the name 'vars' is not available"),
    "open": ("open('/etc/passwd').read()", "FileNotFoundError", "PermissionError: open() is not available"),
    "pathlib": ("from pathlib import Path\nPath('/etc/passwd').read_text()", "FileNotFoundError", "import is not"),
    "path that climbs": ("read_text('../../../../etc/passwd')", "Path leads outside", "Path leads outside"),
    "path that climbs and comes back": ("read_text('a/../../a/b')", "Path leads outside: ../a/b", "Path leads outside"),
    "open that climbs": ("open('../x', 'w')", "Path leads outside: ../x", "PermissionError: open() is not available"),
    "directory above": ("list_files('..')", "Path leads outside: ..", "Path leads outside: .."),
    "move out": ("from pathlib import Path\nPath('a').rename('../b')", "Path leads outside: ../b|not found", "import is not"),
    "path of the kernel": ("read_text('/proc/self/environ')", "FileNotFoundError", "FileNotFoundError"),
    "path with a null": ("read_text('a\\0b')", "ValueError: embedded null byte", "ValueError: Invalid path"),
    "path that is no text": ("read_text({1})", "TypeError", "TypeError: expected text, got set"),
    "huge power": ("10 ** 10 ** 8", MEMORY, "max exponent is 10000"),
    "huge power by steps": ("x = 10 ** 9999\nwhile True: x = x * x", f"{TIME}|{MEMORY}", f"{TIME}|{MEMORY}"),
    "huge int as text": ("str(10 ** 9999)", "Exceeds the limit", "Exceeds the limit"),
    "huge shift": ("1 << 10 ** 10", MEMORY, "max left shift is 1000"),
    "huge text": ("'a' * 10 ** 10", MEMORY, "max string length is 262144"),
    "huge bytes": ("bytes(10 ** 10)", MEMORY, MEMORY),
    "huge padding": ("'a'.ljust(10 ** 10)", MEMORY, MEMORY),
    "huge width": ("'%10000000000d' % 1", MEMORY, MEMORY),
    "list doubling": ("x = [1]\nwhile True: x = x + x", f"{MEMORY}|{TIME}", f"{MEMORY}|{TIME}"),
    "dict growing": ("d = {}\ni = 0\nwhile True:\n  d[i] = 'x' * 1000\n  i += 1", f"{MEMORY}|{TIME}", f"{MEMORY}|{STEPS}|{TIME}"),
    "shared value shown": ("a = [1]\nfor i in range(40): a = [a, a]\na", f"{MEMORY}|{TIME}", f"{MEMORY}|{TIME}"),
    "sorting a huge range": ("sorted(range(10 ** 9))", f"{MEMORY}|{TIME}", f"{MEMORY}|{TIME}"),
    "loop": ("while True: pass", TIME, f"{STEPS}|{TIME}"),
    "loop in C": ("sum(range(10 ** 12))", TIME, TIME),
    "loop that catches all": (
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        TIME,
        f"{STEPS}|{TIME}",
    ),
    "loop in finally": ("try:\n  pass\nfinally:\n  while True: pass", TIME, f"{STEPS}|{TIME}"),
    "recursion": ("def f(n):\n  return f(n + 1)\nf(0)", "RecursionError", "RecursionError"),
    "recursion that catches": (
        "def f(n):\n  try:\n    return f(n + 1)\n  except RecursionError:\n    return f(n)\nf(0)",
        "RecursionError|" + TIME,
        f"RecursionError|{STEPS}|{TIME}|{MEMORY}",
    ),
    "print for ever": ("while True: print('x' * 1000)", TIME, f"{STEPS}|{TIME}"),
    "deep parentheses": ("(" * 20_000 + ")" * 20_000, "Source is too deeply nested", "too many nested parentheses"),
    "deep signs": ("-" * 20_000 + "1", "Source is too deeply nested", MEMORY + "|died|nested|RecursionError"),
    "deep nots": ("not " * 12_000 + "1", "Source is too deeply nested", MEMORY + "|died|nested|RecursionError"),
    "deep attributes": ("a" + ".b" * 20_000, "Source is too deeply nested", MEMORY + "|died|nested|RecursionError"),
    "deep sums": ("1" + "+1" * 20_000, "Source is too deeply nested", MEMORY + "|died|nested|RecursionError"),
    "deep lambdas": ("lambda:" * 7_000 + "1", "Source is too deeply nested", MEMORY + "|died|nested|RecursionError"),
    "deep blocks": ("".join(" " * i + "if 1:\n" for i in range(99)) + " " * 99 + "1", None, "nested|indentation"),
    "long elif": ("if 0: 1\n" + "elif 0: 1\n" * 4_000, None, MEMORY + "|died|nested|RecursionError"),
    "null byte": ("1\0+1", "SyntaxError", "null bytes"),
    "lone surrogate": ("write_text('a', '\\ud800')", None, "Error"),
    "fullwidth dunder": ("().__ｃlass__", "no attribute '__class__'", "the attribute '__class__' is not available"),
    "fullwidth underscore": ("()._＿class_＿", "no attribute '__class__'", "the attribute '__class__'"),
    "error's object": ("try:\n  nothing\nexcept NameError as e:\n  e.__context__", "Error", "the attribute '__context__'"),
    "writing without end": ("while True: write_text('big', 'x' * 100_000)", FILES, FILES),
    "appending without end": ("while True: append_text('big', 'x' * 10_000)", FILES, FILES),
    "exit": ("exit()", "NameError", "the name 'exit' is not available"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt", "Error"),
    "system exit": ("raise SystemExit", "SystemExit|Error", "Error"),
    "regular expression": (
        "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b').group()",
        "AttributeError: 'NoneType'",
        "import is not available",
    ),
    "sleep": ("import time\nwhile True: time.sleep(1)", f"{TIME}|RuntimeError", "import is not available"),
    "debugger": ("breakpoint()", "NameError", "the name 'breakpoint' is not available"),
}  # fmt: skip


def attempt(engine: Engine, code: str) -> ToolOutcome:
    tool = AstevalSection(engine=engine, config=LIMITS).tools[0]
    return run_tool(tool, {"code": code}, fs=make_vfs())


def is_refused(outcome: ToolOutcome, reasons: str) -> bool:
    return outcome.outcome == "failed" and any(reason in outcome.text for reason in reasons.split("|"))


@pytest.mark.parametrize("name", [name for name, (_, monty, _a) in ESCAPES.items() if monty is not None])
def test_monty_refuses_with_a_reason(name: str) -> None:
    """A way out of the interpreter fails, and the text says why."""
    code, reasons, _ = ESCAPES[name]
    outcome = attempt("monty", code)
    assert reasons is not None
    assert is_refused(outcome, reasons), outcome.text


@pytest.mark.parametrize("name", [name for name, (_, _m, asteval) in ESCAPES.items() if asteval is not None])
def test_asteval_refuses_with_a_reason(name: str) -> None:
    """A way out of the interpreter fails, and the text says why."""
    code, _, reasons = ESCAPES[name]
    outcome = attempt("asteval", code)
    assert reasons is not None
    assert is_refused(outcome, reasons), outcome.text


@pytest.mark.parametrize(
    "code",
    ["{i * (2 ** 61 - 1) for i in range(100_000)}", "import os\nos.getenv('x', {i * (2 ** 61 - 1) for i in range(100_000)})",
     "nothing({i * (2 ** 61 - 1) for i in range(100_000)})"],
    ids=["as a value", "as a default", "as an argument"],
)  # fmt: skip
def test_keys_of_equal_hash_are_never_built_outside(code: str) -> None:
    """A set that takes quadratic time in CPython stays inside: fetching it would block this process for minutes."""
    assert attempt("monty", code).outcome in ("ok", "failed")


@pytest.mark.parametrize("engine", ["monty", "asteval"])
def test_no_name_survives_a_call(engine: Engine) -> None:
    """Each call has an interpreter of its own, so one call cannot prepare the next."""
    tool = AstevalSection(engine=engine, config=LIMITS).tools[0]
    run_tool(tool, {"code": "leftover = 1\nprint = 2"})
    assert "NameError" in run_tool(tool, {"code": "leftover"}).text


REACH = """
import os, runpy, socket, sys
child = runpy.run_path(sys.argv[1])
child["take_limits"](32 * 1024 * 1024, 5)
child["give_up_system_calls"]()
for name, reach in {
    "open": lambda: open("/etc/passwd"),
    "socket": lambda: socket.socket(),
    "fork": lambda: os.fork(),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(1, 0),
    "list": lambda: os.listdir("/"),
}.items():
    try:
        reach()
    except OSError:
        print(name, "refused")
    else:
        print(name, "POSSIBLE")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(asteval_process.unavailable() is not None, reason="needs seccomp on Linux")
def test_the_kernel_refuses_whatever_asteval_might_let_through() -> None:
    """Code that had broken out of asteval altogether could still open, connect, start and signal nothing."""
    child = Path(asteval_process.__file__).with_name("asteval_child.py")
    run = subprocess.run([sys.executable, "-I", "-c", REACH, str(child)], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:-1] == [
        f"{name} refused" for name in ("open", "socket", "fork", "exec", "kill", "list")
    ]
