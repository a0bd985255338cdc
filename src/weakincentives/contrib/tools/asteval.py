"""Model-written Python: one tool that runs a piece of code in a confined interpreter and tells what came of it.

Decides what the model is told about the language and about failures. What the code writes belongs to the call: an
evaluation that fails leaves no file behind. The confinement itself is the engines' part (`contrib/interpreters`), the
reasons are in docs/decisions/0017-model-written-python.md.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal

from annotated_types import MinLen

from ...errors import PromptValidationError
from ...frozen import frozen
from ...prompt import Section, Tool, ToolContext, ToolExample, ToolResult
from ...session import Session
from ..interpreters import asteval_process, monty
from ..interpreters.evaluation import Ending, Evaluation, EvaluationLimits
from ..interpreters.file_access import FileAccess

Engine = Literal[
    "monty",  # an interpreter written for untrusted code; the default
    "asteval",  # asteval in a process without system calls; slower, knows other corners of Python
]
_PACKAGES: Final = {"monty": "pydantic_monty", "asteval": "asteval"}


@frozen
class EvaluatePython:
    """Code for one evaluation."""

    code: Annotated[str, MinLen(1)]
    """Python code. The value of its last expression is the result; print() output is returned too."""


@frozen
class PythonResult:
    """What an evaluation gave."""

    value: str | None
    """The last expression as Python shows it; None when there was none."""
    output: str
    """What the code printed."""

    def render(self) -> str:
        parts: list[str] = []
        if self.output:
            parts.append(f"Output:\n{self.output.rstrip()}")
        if self.value is not None:
            parts.append(f"Value: {self.value}")
        return "\n\n".join(parts) or "The code ran. It printed nothing, and its last line has no value."


class AstevalSection(Section[None]):
    """Guidance and the tool `evaluate_python`. Holds no state: each call runs in an interpreter of its own.

    Files are those of the context's filesystem. `config` sets the limits of one evaluation.
    """

    def __init__(
        self,
        *,
        session: Session | None = None,  # noqa: ARG002  accepted as by every suite; handlers use the context's
        engine: Engine = "monty",
        config: EvaluationLimits | None = None,
        title: str = "Python",
        key: str = "python",
        accepts_overrides: bool = True,
    ) -> None:
        if engine not in _PACKAGES:
            raise PromptValidationError(f"AstevalSection: engine must be one of: monty, asteval; got {engine!r}.")
        if find_spec(_PACKAGES[engine]) is None:
            raise PromptValidationError(
                f"AstevalSection(engine={engine!r}) needs the package {_PACKAGES[engine].replace('_', '-')}. "
                "Install it: pip install 'weakincentives[asteval]'."
            )
        if engine == "asteval" and (missing := asteval_process.unavailable()) is not None:
            raise PromptValidationError(f"AstevalSection(engine='asteval') cannot run here: {missing}")
        self.engine: Engine = engine
        self.limits = EvaluationLimits() if config is None else config
        handler: Any = self._evaluate_in_monty if engine == "monty" else self._evaluate_in_asteval
        tool = Tool[EvaluatePython, PythonResult](
            name="evaluate_python",
            description="Run Python code in a confined interpreter and return its output and the value of its last expression.",
            handler=handler,
            examples=(
                ToolExample(
                    description="Add up what a file lists.",
                    input=EvaluatePython("sum(int(line) for line in read_text('counts.txt').splitlines())"),
                    output=PythonResult("6", ""),
                )
                if engine == "monty"
                else ToolExample(
                    description="Add up what a file lists.",
                    input=EvaluatePython("sum([int(line) for line in read_text('counts.txt').splitlines()])"),
                    output=PythonResult("6", ""),
                ),
            ),
        )
        super().__init__(title=title, key=key, tools=(tool,), accepts_overrides=accepts_overrides)
        self.template: str | None = _GUIDANCE[engine].replace("{seconds}", f"{self.limits.seconds:g}")

    async def _evaluate_in_monty(self, params: EvaluatePython, *, context: ToolContext) -> ToolResult[PythonResult]:
        if (refusal := self._refusal(params)) is not None:
            return refusal
        files = FileAccess(context.filesystem, self.limits)
        return self._result(await monty.evaluate(params.code, files, self.limits, self._seconds(context)))

    def _evaluate_in_asteval(self, params: EvaluatePython, *, context: ToolContext) -> ToolResult[PythonResult]:
        if (refusal := self._refusal(params)) is not None:
            return refusal
        files = FileAccess(context.filesystem, self.limits)
        with asteval_process.Interpreter(self.limits, self._seconds(context)) as interpreter:
            if context.scope is not None:
                context.on_end(interpreter.kill)  # a call that is cancelled stops its code at once
            return self._result(interpreter.evaluate(params.code, files))

    def _seconds(self, context: ToolContext) -> float:
        if context.deadline is None:
            return self.limits.seconds
        return max(0.01, min(self.limits.seconds, context.deadline.remaining_seconds))

    def _refusal(self, params: EvaluatePython) -> ToolResult[Any] | None:
        most = self.limits.code_chars
        if len(params.code) > most:
            return ToolResult.error(
                f"The code is too long: {len(params.code)} characters, at most {most} are taken.\n"
                "Put data into files and read it from there, then retry."
            )
        return None

    def _result(self, evaluation: Evaluation) -> ToolResult[PythonResult]:
        failure = evaluation.failure
        if failure is None:
            return ToolResult.ok(PythonResult(evaluation.value, evaluation.output))
        lines = [f"Evaluation failed: {failure.reason}", *(f"  {place}" for place in failure.trace)]
        if evaluation.output:
            lines.append(f"Printed until then:\n{evaluation.output.rstrip()}")
        lines.append(f"Nothing it wrote to files was kept. {_ADVICE[failure.ending]}")
        return ToolResult.error("\n".join(lines))


_ADVICE: Final[dict[Ending, str]] = {
    "error": "Correct the code, then retry.",
    "refused": "This cannot work here; do it another way.",
    "time": "Do less in one call, then retry.",
    "memory": "Hold less data at once, then retry.",
    "steps": "Do less in one call, then retry.",
    "files": "Read and write less in one call, then retry.",
    "crash": "This code cannot run here; write it in a simpler way.",
}

_GUIDANCE: Final[dict[str, str]] = {
    "monty": """
Use `evaluate_python` for arithmetic, text and data work that is better computed than guessed.

- The value of the last expression is returned, and what `print()` wrote.
- Each call starts afresh: variables of earlier calls are gone. Keep results in files.
- Files of the workspace: `read_text(path)`, `write_text(path, text)`, `append_text(path, text)`, `list_files(path)`,
  and `open()` or `pathlib.Path` as usual. When the code fails, nothing it wrote is kept.
- Available to import: `math`, `re`, `json`, `datetime`, `decimal`, `itertools`, `collections`, `functools`, `random`.
- Not available: other modules, class inheritance, generators with `yield`, processes, network.
- A call may run {seconds} seconds.
""".strip(),
    "asteval": """
Use `evaluate_python` for arithmetic, text and data work that is better computed than guessed.

- The value of the last expression is returned, and what `print()` wrote.
- Each call starts afresh: variables of earlier calls are gone. Keep results in files.
- Files of the workspace: `read_text(path)`, `write_text(path, text)`, `append_text(path, text)`, `list_files(path)`.
  When the code fails, nothing it wrote is kept.
- The functions of `math` are there by name: `sqrt(2)`, `pi`.
- Not available: imports, classes, generator expressions (use lists), `str.format` (use f-strings), names that begin
  with an underscore.
- A call may run {seconds} seconds.
""".strip(),
}
