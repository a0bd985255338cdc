"""`wink run`: one request, answered by the agent of a Python file."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any, cast

import typer

from .. import serde
from ..adapters.core import PromptResponse
from ..filesystem import Filesystem, InMemoryFilesystem
from ..limits import Deadline
from ..runtime import EventBus, MainLoop, Session, ToolInvoked
from .agent_file import BadInput, adapter_of, chosen, loaded, loop_of, prepared, request_of
from .terminal import DIFFERS, FAILED, AgentFile, Json, harmless, print_json

KEPT_FILES = "files"
"""The name that `--keep-files` attaches files under."""
_MARKS = {"ok": "✓", "denied": "⊘", "pending": "…"}


def run(
    file: AgentFile,
    request: Annotated[
        str | None, typer.Option("--request", "-r", help="The request: JSON, or plain text. '-' reads standard input.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Ask this model in place of the file's.")] = "",
    base_url: Annotated[
        str, typer.Option("--base-url", help="A server that speaks OpenAI's protocol: Ollama, vLLM, a gateway.")
    ] = "",
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds the run may take.")] = None,
    session: Annotated[str, typer.Option("--session", help="Keep the session in this file, or go on with it.")] = "",
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="With --session: keep the agent's files there too, call by call.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not tell the calls as they happen.")] = False,
    json: Json = False,
) -> None:
    """Answer one request with the MainLoop, Prompt or PromptTemplate of a Python file."""
    if keep_files and not session:
        raise BadInput("--keep-files needs --session: the file to keep them in.")
    with loaded(file) as (module, name):
        found = chosen(module, name, file)
        bus = EventBus()
        loop = loop_of(found, adapter_of(model, base_url), bus, file)
        asked = request_of(loop, request)
        if not (quiet or json):
            loop.bus.subscribe(ToolInvoked, _tell)
        with ExitStack() as held:
            before = 0
            if session:
                kept = held.enter_context(Session.open(session, bus=loop.bus))
                before = len(kept[ToolInvoked])
                loop = _InSession(loop, kept, keep_files)
            ended, used = loop.execute(asked, deadline=None if timeout is None else Deadline.after(timeout))
            response = cast("PromptResponse[Any]", ended)
            if json:
                print_json(_answer(response, used, before))
            else:
                _print_answer(response)
    if response.stop_reason != "end_turn":
        raise typer.Exit(FAILED)
    if response.pending:
        raise typer.Exit(DIFFERS)


class _InSession(MainLoop[Any, Any]):
    """Another loop, in a session that is given."""

    def __init__(self, loop: MainLoop[Any, Any], session: Session, keep_files: bool) -> None:
        super().__init__(adapter=loop.adapter, bus=loop.bus, config=loop.config)
        self._loop = loop
        self._session = session
        self._keep_files = keep_files

    def prepare(self, request: Any) -> Any:
        prompt = prepared(self._loop, request)
        if self._keep_files:
            files = prompt.resources.get_optional(Filesystem)
            if not isinstance(files, InMemoryFilesystem):
                there = "has no files" if files is None else f"works on a {type(files).__name__}"
                raise BadInput(f"--keep-files keeps files in memory (InMemoryFilesystem), and the agent {there}.")
            self._session.attach(KEPT_FILES, files)
        return prompt, self._session


def _print_answer(response: PromptResponse[Any]) -> None:
    output = response.output
    typer.echo(response.text if output is None or isinstance(output, str) else serde.dump_json(output))
    for outcome in response.pending:
        typer.echo(f"Waits for approval: {outcome.call.name} ({outcome.approval_id})", err=True)


def _answer(response: PromptResponse[Any], session: Session, before: int) -> dict[str, Any]:
    usage = response.usage
    return {
        "text": response.text,
        "output": None if response.output is None else serde.dump(response.output, redact=True),
        "stop_reason": response.stop_reason,
        "turns": response.turns,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "unfinished": list(response.unfinished),
        "pending": [outcome.approval_id for outcome in response.pending],
        "session_id": session.session_id,
        "calls": [
            {"tool": event.tool_name, "call_id": event.call_id, "outcome": event.outcome, "seconds": event.duration}
            for event in session[ToolInvoked].all()[before:]
        ],
    }


def _tell(event: ToolInvoked) -> None:
    first = event.rendered_output.strip().partition("\n")[0]
    shown = first if len(first) <= 100 else f"{first[:97]}..."
    mark = _MARKS.get(event.outcome, "✗")
    typer.echo(harmless(f"{mark} {event.tool_name}{f': {shown}' if shown else ''}"), err=True)
