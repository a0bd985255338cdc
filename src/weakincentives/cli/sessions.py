"""`wink inspect`, `wink replay`, `wink fork`: what a durable session's file tells, without touching it."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from datetime import datetime
from typing import Annotated, Any

import typer

from ..errors import SessionStorageError
from ..recording import Again, Recording, Rerun, Row, State, Step
from ..recording.index import OUTCOMES
from ..recording.plain import shown
from .agent_file import BadInput, loaded, prompt_of
from .terminal import DIFFERS, FAILED, ForRequest, Json, Paper, print_json, seconds, watched

SessionFile = Annotated[str, typer.Argument(metavar="SESSION", help="The file of a durable session.")]
CallNumber = Annotated[int | None, typer.Option("--call", min=1, help="The number of a call, from 1.")]
Position = Annotated[int | None, typer.Option("--at", min=1, help="A step by its position, as listed.")]

_WORDS = (*OUTCOMES, "rolled_back")
_STYLES = {"ok": "green", "denied": "yellow", "pending": "yellow"}


def inspect(
    session: SessionFile,
    call: CallNumber = None,
    at: Position = None,
    state: Annotated[
        bool, typer.Option("--state", help="Also what slices and files were then; at the end, without --call or --at.")
    ] = False,
    file: Annotated[
        str, typer.Option("--file", help="Print this attached file as it was then: PATH, or NAME:PATH.")
    ] = "",
    last: Annotated[int, typer.Option("--last", min=1, help="How many steps to list, the newest.")] = 50,
    before: Annotated[int | None, typer.Option("--before", min=1, help="List steps before this position.")] = None,
    tool: Annotated[str, typer.Option("--tool", help="Only calls of this tool.")] = "",
    outcome: Annotated[str, typer.Option("--outcome", help="Only calls that ended so; rolled_back too.")] = "",
    diff: Annotated[bool, typer.Option("--diff", help="Show with each step what it changed.")] = False,
    module: Annotated[
        str, typer.Option("--module", help="A Python file with the classes of keyed slices, to tell their items apart.")
    ] = "",
    json: Json = False,
) -> None:
    """Show the calls of a durable session: what they were asked, what they changed, what was rolled back or denied.

    Nothing is run, locked or written: a session can be watched while an agent works in it."""
    if outcome and outcome not in _WORDS:
        raise BadInput(f"--outcome '{outcome}' is not one of {', '.join(_WORDS)}.")
    with ExitStack() as held:
        if module:
            held.enter_context(loaded(module))
        _inspect(_opened(session), call, at, state, file, before, last, tool, outcome, diff, json)


def _inspect(
    recording: Recording,
    call: int | None,
    at: int | None,
    state: bool,
    file: str,
    before: int | None,
    last: int,
    tool: str,
    outcome: str,
    diff: bool,
    json: bool,
) -> None:
    position = _position(recording, call, at)
    if file:
        _print_file(recording, file, position, json)
    elif position is not None:
        step = recording.step(position)
        then = recording.at(position) if state else None
        if json:
            print_json(step.as_json() | ({} if then is None else {"state": then.as_json()}))
        else:
            _print_step(Paper(), step)
            if then is not None:
                _print_state(Paper(), then)
    else:
        rows = recording.rows(before=before, count=last, tool=tool, outcome=outcome)
        if json:
            steps = [recording.step(row.position).as_json() if diff else row.as_json() for row in rows]
            told = {"session": recording.as_json(), "steps": steps}
            print_json(told | ({"state": recording.at(recording.position).as_json()} if state else {}))
        else:
            _print_list(Paper(), recording, rows, diff)
            if state:
                _print_state(Paper(), recording.at(recording.position))
    _complain(recording)


def replay(
    session: SessionFile,
    call: Annotated[int | None, typer.Option("--call", min=1, help="Up to this call; without it, all.")] = None,
    module: Annotated[
        str, typer.Option("--module", help="FILE[:OBJECT]: make the calls again with the tools of this Python file.")
    ] = "",
    external: Annotated[
        bool, typer.Option("--external", help="With --module: also calls whose tools have effects outside.")
    ] = False,
    request: ForRequest = None,
    json: Json = False,
) -> None:
    """Rebuild a session from its stored operations, up to a call, and check it; with --module, make the calls again.

    Without --module nothing is run and no code is loaded: every record is read, checked and applied, and the state they add up to is
    shown. With it each call runs again in the state in which it was recorded, in a throwaway copy, and what differs is shown. Exit
    code 3: something differs."""
    recording = _opened(session)
    last = recording.calls if call is None else call
    position = _position(recording, call, None) or recording.position
    if external and not module:
        raise BadInput("--external is for --module: without it nothing is run.")
    found = _again(recording, module, last, external, request, json) if module else []
    if not module:
        for number in watched(range(1, position + 1), position, "Reading"):
            recording.read(number)
    state = recording.at(position)
    counts = Counter(one.verdict for one in found)
    if json:
        told = {
            "session": recording.as_json(),
            "position": position,
            "state": state.as_json(),
            "again": [one.as_json() for one in found] if module else None,
            "counts": {word: counts[word] for word in ("same", "differs", "left_out")} if module else None,
        }
        print_json(told)
    else:
        paper = Paper()
        if not module:
            calls = f"{recording.call_at(position)} calls"
            paper.line(f"{position} operations with {calls} read and applied, every record whole")
            _print_state(paper, state)
        else:
            paper.line(
                f"{sum(counts.values())} calls: {counts['same']} the same, {counts['differs']} differ, "
                f"{counts['left_out']} left out"
            )
    _complain(recording)
    if counts["differs"]:
        raise typer.Exit(DIFFERS)


def _again(
    recording: Recording, module: str, last: int, external: bool, request: str | None, json: bool
) -> list[Again]:
    found: list[Again] = []
    with loaded(module) as (code, name):
        rerun = Rerun(recording, prompt_of(code, name, module, request)(), external=external)
        for one in watched(rerun.calls(1, last), last, "Calling again"):
            found.append(one)
            if not json and one.verdict != "same":
                _print_again(Paper(), one)
    return found


def fork(
    session: SessionFile,
    path: Annotated[str, typer.Argument(metavar="NEW", help="The file to make; it must not exist.")],
    call: Annotated[
        int | None, typer.Option("--call", min=1, help="Up to and with this call; without it, all.")
    ] = None,
    at: Annotated[int | None, typer.Option("--at", min=0, help="Up to this position instead.")] = None,
    json: Json = False,
) -> None:
    """Copy a session up to a call into a new file, under an id of its own, to go on from there: wink run --session NEW."""
    recording = _opened(session)
    position = _position(recording, call, at)
    position = recording.position if position is None else position
    try:
        made = recording.copy(path, position)
    except SessionStorageError as error:
        raise BadInput(str(error)) from None
    calls = recording.call_at(position)
    if json:
        origin = {"session_id": recording.session_id, "position": position}
        print_json({"file": path, "session_id": made, "forked_from": origin, "calls": calls})
    else:
        typer.echo(f"{path}: session {made}, {calls} calls and {position} operations of {session}")


# what was given


def _opened(path: str) -> Recording:
    try:
        return Recording(path)
    except SessionStorageError as error:
        raise BadInput(str(error)) from None


def _position(recording: Recording, call: int | None, at: int | None) -> int | None:
    if call is not None and at is not None:
        raise BadInput("Say --call or --at, not both: each names one step.")
    try:
        if call is not None:
            return recording.position_of_call(call)
        if at:
            recording.row(at)
    except SessionStorageError as error:
        raise BadInput(str(error)) from None
    return at


def _complain(recording: Recording) -> None:
    problem = recording.tail()
    if problem:
        typer.echo(f"wink: {recording.path}: {problem}", err=True)
        if "damaged" in problem:
            raise typer.Exit(FAILED)


# how it looks


def _mark(row: Row) -> tuple[str, str]:
    if row.kind != "call":
        return ("↶", "magenta") if row.kind == "rollback" else ("·", "dim")
    if row.rolled_back:
        return "↶", "magenta"
    return {"ok": ("✓", "green"), "denied": ("⊘", "yellow"), "pending": ("…", "yellow")}.get(row.outcome, ("✗", "red"))


def _print_list(paper: Paper, recording: Recording, rows: list[Row], diff: bool) -> None:
    paper.line(
        ("session ", "dim"),
        (recording.session_id, "bold"),
        f": {recording.calls} calls, {recording.position} operations, {recording.bytes} bytes",
    )
    origin = recording.forked_from
    if origin:
        paper.line(("forked from ", "dim"), f"{origin['session_id']} at position {origin['position']}")
    if recording.calls:
        paper.line(("outcomes ", "dim"), ", ".join(f"{count} {word}" for word, count in recording.outcomes().items()))
    paper.line(("files ", "dim"), ", ".join(recording.attached()) or "none attached: contents of files are not known")
    paper.line()
    if not rows:
        paper.line("No steps to show.")
        return
    names = max(4, *(len(row.tool or row.kind) for row in rows))
    words = max(7, *(len(row.outcome) for row in rows))
    paper.line((f"  call   step  {'tool':<{names}}  {'outcome':<{words}}  {'time':>9}", "dim"))
    for row in rows:
        what = f"  [{', '.join((*row.slices, *row.files))}]" if row.slices or row.files else ""
        taken = f"  taken back at step {row.taken_back_by}" if row.taken_back_by else ""
        paper.line(
            _mark(row),
            f"{row.call or '':>5}  {row.position:>5}  {row.tool or row.kind:<{names}}  ",
            (f"{row.outcome:<{words}}", _STYLES.get(row.outcome, "red" if row.outcome else "")),
            (f"  {seconds(row.seconds):>9}  ", "dim"),
            row.text,
            (taken, "magenta"),
            (what, "cyan"),
        )
        if diff:
            _print_changes(paper, recording.step(row.position))


def _print_step(paper: Paper, step: Step) -> None:
    row = step.row
    if row.kind != "call":
        paper.line(_mark(row), f" step {row.position}  ", (row.kind, "bold"), f"  {step.text}")
        if step.result is not None:
            paper.block(shown(step.result))
        _print_changes(paper, step)
        return
    paper.line(_mark(row), f" call {row.call}  step {row.position}  ", (row.tool, "bold"), f"  {row.call_id}")
    when = "" if row.timestamp is None else datetime.fromtimestamp(row.timestamp).astimezone().isoformat(" ", "seconds")
    kept = "rolled back" if row.rolled_back else ""
    paper.line("  outcome   ", (row.outcome, _STYLES.get(row.outcome, "red")), (f"  {kept}" if kept else "", "magenta"))
    paper.line(f"  began     {when}", ("   took ", "dim"), seconds(row.seconds))
    if step.decision:
        paper.line(f"  policies  {step.decision}")
    paper.line("  parameters")
    paper.block(shown(step.params))
    if step.text:
        paper.line("  the model read")
        paper.block(step.text)
    _print_changes(paper, step)


def _print_changes(paper: Paper, step: Step) -> None:
    for change in step.slices:
        paper.line("    slice ", (change.slice, "cyan"), f" ({change.type_name})")
        for item in change.items:
            paper.line(f"      {item.change}")
            paper.lines(item.lines(), "        ")
        if change.left_out:
            paper.line(f"      and {change.left_out} more changes")
    for file in step.files:
        paper.line("    file ", (file.path, "cyan"), f" {file.change}, in {file.attached}")
        if file.note:
            paper.line(f"      {file.note}")
        paper.lines(file.lines())
    for note in step.notes:
        paper.line((f"    {note}", "dim"))


def _print_state(paper: Paper, state: State) -> None:
    paper.line((f"state at step {state.position}", "bold"))
    for one in state.slices:
        paper.line("  slice ", (one.slice, "cyan"), f" ({one.kind}): {one.count} items")
        if len(one.items) < one.count and one.items:
            paper.line((f"    the newest {len(one.items)}:", "dim"))
        for item in one.items:
            paper.block(shown(item))
    for name, paths, count in state.files:
        paper.line("  files ", (name, "cyan"), f": {count}")
        for path in paths:
            paper.line(f"    {path}")
        if len(paths) < count:
            paper.line((f"    and {count - len(paths)} more", "dim"))
    if not state.slices and not state.files:
        paper.line("  nothing")


def _print_file(recording: Recording, file: str, position: int | None, json: bool) -> None:
    name, colon, path = file.partition(":")
    attached = recording.attached()
    if not colon or name not in attached:
        if not attached:
            raise BadInput("No files are attached to this session, so there are none to show.")
        if len(attached) > 1:
            raise BadInput(f"Say in which files: --file NAME:{file}, where NAME is one of {', '.join(attached)}.")
        name, path = next(iter(attached)), file
    try:
        text = recording.file(name, path, position)
    except SessionStorageError as error:
        raise BadInput(str(error)) from None
    told: dict[str, Any] = {"files": name, "path": path, "position": position or recording.position, "text": text}
    if json:
        print_json(told)
    elif sys.stdout.isatty():
        Paper().block(text, "")  # a terminal would obey what a pipe only hands on
    else:
        typer.echo(text, nl=False)


def _print_again(paper: Paper, one: Again) -> None:
    if one.left_out:
        paper.line(("–", "dim"), f" call {one.row.call}  ", (one.row.tool, "bold"), f"  left out: {one.left_out}")
        return
    paper.line(("≠", "red"), f" call {one.row.call}  ", (one.row.tool, "bold"))
    for difference in one.differences:
        paper.line(f"    {difference.what}")
        paper.lines(difference.lines)
