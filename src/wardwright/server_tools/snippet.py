"""The engine `snippet`: Python from the config, in an interpreter of its own that reaches no file, no network and no clock of ours.

Decides how arguments go in and how the result comes out: as JSON text, both ways. What the interpreter says is text from a place we
do not trust; it is never evaluated here. The model reads why a snippet failed, never a line of it.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any, Final, cast

import orjson

from wardwright.server_tools.answer import Answer, answer_of
from wardwright.server_tools.settings import NO_PARAMETERS, ServerTool
from weakincentives.contrib.interpreters import monty
from weakincentives.contrib.interpreters.evaluation import EvaluationLimits
from weakincentives.contrib.interpreters.file_access import FileAccess
from weakincentives.contrib.interpreters.last_expression import keep_last_expression
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import Tool, ToolContext, ToolResult

_logger = logging.getLogger(__name__)

_BEFORE: Final = "import json as __json\ninput = __json.loads({})\n"
_AFTER: Final = """
if isinstance(__result, tuple) and len(__result) == 2 and isinstance(__result[1], dict):
    __result = {"result": __result[0], "receipt_metadata": __result[1]}
else:
    __result = {"result": __result}
__json.dumps(__result, allow_nan=False)
"""
_ESCAPED: Final = re.compile(r"\\(.)")
_GRACE: Final = 4.0
"""Seconds on top of a snippet's own, after which the call is given up although the interpreter should have ended it."""


def snippet_tool(tool: ServerTool, description: str) -> Tool[Any, Any]:
    """The tool that runs a snippet with the model's arguments over its configured input."""
    limits = tool.limits
    seconds = limits.timeout_ms / 1000
    # JSON in ASCII is up to six characters for one, and a quoted text up to twice that.
    bounds = EvaluationLimits(
        seconds=seconds,
        memory_bytes=limits.memory_bytes,
        recursion=limits.recursion,
        output_chars=1_000,
        value_chars=12 * limits.output_chars + 20_000,
        file_operations=1,
        file_bytes=1,
    )
    body = keep_last_expression(tool.source, "__result")
    assert body is not None, "a snippet without a result was refused when it was configured"

    async def run(params: dict[str, Any], *, context: ToolContext) -> ToolResult[Answer]:
        given = json.dumps({**tool.input, **params})
        code = f"{_BEFORE.format(repr(given))}{body}\n{_AFTER}"
        left = seconds if context.deadline is None else min(seconds, max(0.01, context.deadline.remaining_seconds))
        found = await monty.evaluate(code, FileAccess(None, bounds), bounds, left)
        if found.failure is not None:
            # Places in the source only: the reason may hold what the caller sent.
            _logger.info("The snippet of tool %s failed (%s): %s", tool.name, found.failure.ending, found.failure.trace)
            raise ToolValidationError(f"Tool '{tool.name}' failed: {found.failure.reason}")
        whole = _unquoted(found.value or "")
        if whole is None:
            raise ToolValidationError(
                f"Tool '{tool.name}' failed: its result is longer than {limits.output_chars} characters. Ask for less."
            )
        value = cast("dict[str, Any]", orjson.loads(whole))
        if "receipt_metadata" in value:
            return answer_of((value["result"], value["receipt_metadata"]), limits.output_chars)
        return answer_of(value["result"], limits.output_chars)

    return Tool.from_json_schema(
        name=tool.name,
        description=description,
        schema=tool.parameters or NO_PARAMETERS,
        handler=run,
        result_type=Answer,
        effects="none",
        timeout=seconds + _GRACE,
    )


def _unquoted(shown: str) -> str | None:
    """The text of JSON that Python shows in quotes: in it only quotes and backslashes are escaped. None: it was cut off."""
    if len(shown) < 2 or shown[0] not in "'\"" or shown[-1] != shown[0]:
        return None
    return _ESCAPED.sub(r"\1", shown[1:-1])
