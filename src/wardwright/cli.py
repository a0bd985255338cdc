"""The `wardwright` command: serve, check, simulate, prove, replay, diff, report, receipts, approvals, approve, reject, keys, init.

Every answer can be had as JSON. What is wrong with a file goes to standard error as `file:line:column: path: message`; bad input
ends with one line and exit code 1, never with a traceback; how far long work has come is told to terminals only. The exit codes
are those of docs/gateway/command.md. Decides nothing: each command asks one module and prints what it says.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import importlib.resources
import os
import re
import shlex
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, cast

import orjson
import typer

from wardwright import approvals as waiting
from wardwright import receipts as receipt
from wardwright.archive import ExportedArchive, StoredArchive, session_caller, session_registers
from wardwright.blind import blind as unseen_by
from wardwright.cases import Outcome, load_cases, play
from wardwright.config import load_config
from wardwright.errors import ConfigError, Problem, WardwrightError
from wardwright.history import scope_key
from wardwright.http.admin_approvals import shown, told
from wardwright.http.admin_plans import unexpected
from wardwright.http.service import Service, compile_service
from wardwright.http.start import DATABASE, Start
from wardwright.http.start import serve as start
from wardwright.keys import Keyring, hash_key, is_ring, new_secret, ring_path, signing_keys_of
from wardwright.plans import PLAN, ready_made
from wardwright.plans import names as ready_made_names
from wardwright.policy.compile import Plan, compile_plan
from wardwright.policy.draft import draft
from wardwright.prove import LIMIT, Proof, Question, load_questions, parse_question, standard_questions
from wardwright.prove import prove as search_plan
from wardwright.receipts import FILTERS, Receipt, explain
from wardwright.replay import CHANGES, Because, Decided, Flip, Replay
from wardwright.replay import diff as compare
from wardwright.replay import replay as replay_receipts
from wardwright.report import QUIET_MS
from wardwright.report import report as report_rules
from wardwright.simulate import WIRES, Simulation, Surface, read_transcript
from wardwright.simulate import simulate as run_simulation
from wardwright.store import ReceiptQuery, Store, checkpoint, erase, export, mark, open_store, retain, verify
from wardwright.wire.turn import Caller, Turn, WireName


def _examples(*lines: str) -> str:
    """The end of a help page, line by line as it stands."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


app = typer.Typer(
    name="wardwright",
    help="Governs the tool calls of models by one policy plan: check it, try it, and ask what it did.",
    epilog="\b\n"
    "Begin with:\n"
    "  wardwright init --list                     ready-made plans\n"
    "  wardwright init --plan write-hardening     one of them, with cases\n"
    "  wardwright check write-hardening           plays its cases, proves its questions\n"
    "  wardwright serve                           an example to talk to\n"
    "\n\b\n"
    "Exit codes:\n"
    "  0  done, and what was asked holds\n"
    "  1  it does not hold, or something given cannot be used\n"
    "  2  the command line is wrong; of prove also: unknown\n"
    "  3  something would change (replay and diff with --exit-code)",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
receipts_app = typer.Typer(
    help="Reads the receipts of a store.",
    epilog=_examples(
        "wardwright receipts list --db ward.db --where tool_namespace=shell --since 2026-12-01",
        "wardwright receipts show RECEIPT --db ward.db",
        "wardwright receipts verify --db ward.db --key-file ward.db.keys --anchor MARK",
        "wardwright receipts export --db ward.db --output receipts.ndjson",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(receipts_app, name="receipts")
keys_app = typer.Typer(
    help="Makes and replaces keys.",
    epilog=_examples(
        "wardwright keys new                    a key for a caller, and its hash for the config",
        "wardwright keys create ward.keys       a ring for machines that share a database",
        "wardwright keys rotate ward.keys",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(keys_app, name="keys")

_MARK: Final = re.compile(r"[0-9]+:[0-9a-f]+")
EVERY: Final = 500
"""Receipts between two words about how far it is."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[Path, typer.Option("--config", help="The plan: a model artifact or a deployment.")]
Database = Annotated[str, typer.Option("--db", help="The gateway's store: a file, or a postgresql:// address.")]
Exported = Annotated[Path | None, typer.Option("--receipts", help="An export of receipts (NDJSON) instead of a store.")]
Session = Annotated[str, typer.Option("--session", help="Only this session.")]
Since = Annotated[
    str, typer.Option("--since", help="From this time on: 2026-12-31, 2026-12-31T18:00:00Z, or milliseconds.")
]
Until = Annotated[str, typer.Option("--until", help="Before this time.")]
Differs = Annotated[bool, typer.Option("--exit-code", help="End with 3 when something would change, or may.")]
Listed = Annotated[int, typer.Option("--limit", min=1, help="Changes to list; all are counted.")]


COMPILED: Final = "" if receipt.__file__.endswith(".py") else ", compiled"


def _version(asked: bool) -> None:
    if asked:
        _say(f"wardwright {importlib.metadata.version('weakincentives')}{COMPILED}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


class BadInput(WardwrightError, ValueError):
    """Something given on the command line cannot be used."""


# serve


@app.command(
    short_help="Serve the gateway until it is stopped.",
    epilog=_examples(
        "wardwright serve",
        "wardwright serve --config wardwright.yaml --db ward.db --port 8787",
        "wardwright serve --config wardwright.yaml --db postgresql://host/ward --workers 4",
    ),
)
def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A model artifact or a deployment; without one, an example is served."),
    ] = None,
    db: Annotated[
        str,
        typer.Option(
            "--db", help=f"A file, or a postgresql:// address; if not given, the config's store, or {DATABASE}."
        ),
    ] = "",
    host: Annotated[
        str, typer.Option("--host", help="Other addresses than loopback need authentication.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0: any that is free, told at the start.")
    ] = 8787,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes; they share the store.")] = 1,
    sessions: Annotated[
        str, typer.Option("--sessions", help="A folder of durable agent sessions to show; if not given, the config's.")
    ] = "",
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
    json: Json = False,
) -> None:
    """Serve the gateway until it is stopped. SIGTERM lets streams end first, SIGHUP reads the config again."""
    _one_of("--log-level", log_level, ("debug", "info", "warning", "error"))

    def tell(service: Service, found: int) -> None:
        address = f"http://{f'[{host}]' if ':' in host else host}:{found}"
        if json:
            _print_json(
                {
                    "address": address,
                    "db": _public(service.database),
                    "models": list(service.plan.models),
                    "admin_token": service.admin_token,
                }
            )
            return
        _say(f"wardwright serves {', '.join(service.plan.models)} at {address}/v1")
        if config is None:
            _say("No --config: this is the embedded example with a scripted provider.")
        if service.admin_token is not None:
            _say(f"Admin token, shown this once: {service.admin_token}")
            _say(f"Workbench, signed in by this link: {address}/signin#{service.admin_token}")
        elif not service.authenticator.has_admin:
            _say("Nobody can administer: set auth.admin, or run 'wardwright keys admin'.")
        else:
            ring = service.keyring.file if service.authenticator.generated_admin else None
            lost = f" (admin token lost? 'wardwright keys admin {ring}' makes another; then SIGHUP)" if ring else ""
            _say(f"Workbench: {address}/signin{lost}")

    start(Start("" if config is None else str(config), db, host, port, workers, log_level, sessions), tell)


def _public(place: str) -> str:
    """Where a store is, without who may use it."""
    return re.sub(r"//.*@", "//", place).partition("?")[0]


# check


@app.command(
    short_help="Validate a plan, play cases, prove questions.",
    epilog=_examples(
        "wardwright check wardwright.yaml",
        "wardwright check write-hardening                  the plan.yaml in it, and what is beside",
        "wardwright check plan.yaml cases/ questions.yaml",
        "wardwright check --blind plan.yaml                what it cannot see",
    ),
)
def check(
    file: Annotated[Path, typer.Argument(help="The plan: a model artifact or a deployment.")],
    cases: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of policy cases, or folders of them; *questions.yaml are proved."),
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Also say what the plan cannot see; only cases that are given are played.")
    ] = False,
    json: Json = False,
) -> None:
    """Validate a plan, play policy cases against it and prove questions. Exit code 0 when it compiles and all of them hold.

    Without cases, those beside it are taken: cases.yaml and questions.yaml beside plan.yaml, X.cases.yaml and X.questions.yaml beside
    X.yaml. A folder stands for the plan.yaml in it."""
    if file.is_dir():
        file = file / PLAN
    try:
        compiled = compile_service(load_config(file), _now_ms(), modules_from=file.resolve().parent)
        plan = compiled.deployment.plan
        problems: list[Problem] = list(plan.warnings)
    except ConfigError as error:
        plan, problems = None, list(error.problems)
    outcomes: list[Outcome] = []
    proofs: list[Proof] = []
    unseen = unseen_by(plan) if blind and plan is not None else ()
    for path in _case_files(cases if cases is not None else () if blind else _beside(file), file):
        try:
            if path.stem.endswith("questions"):
                asked = load_questions(path)
                if plan is not None:
                    proofs.extend(_answered(plan, [(name, one) for name in plan.models for one in asked]))
                continue
            loaded = load_cases(path)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        if plan is not None:
            outcomes.extend(play(plan, case) for case in loaded)
    for outcome in outcomes:
        problems.extend(
            Problem(outcome.case.file, outcome.case.line, 1, outcome.case.name, failure) for failure in outcome.failures
        )
    problems.extend(problem for proof in proofs if (problem := unexpected(proof)) is not None)
    good = not any(problem.severity == "error" for problem in problems)
    held = sum(not outcome.failures for outcome in outcomes)
    if json:
        _print_json(
            {
                "ok": good,
                "plan_hash": None if plan is None else plan.plan_hash,
                "models": [] if plan is None else list(plan.models),
                "rules": 0 if plan is None else _rules(plan),
                "problems": [_problem(problem) for problem in problems],
                "cases": [
                    {
                        "case": outcome.case.name,
                        "file": outcome.case.file,
                        "line": outcome.case.line,
                        "ok": not outcome.failures,
                        "failures": list(outcome.failures),
                    }
                    for outcome in outcomes
                ],
                "proofs": [proof.as_json() for proof in proofs],
                **({"blind": [one.as_json() for one in unseen]} if blind else {}),
            }
        )
    else:
        for problem in problems:
            _complain(problem)
        for one in unseen:
            whose = f"{one.model}: " if one.model else ""
            _say(f"{whose}{one.kind}: {one.what}", f"  why: {one.why}", f"  do:  {one.remedy}")
        if good and plan is not None:
            played = f", {held} of {len(outcomes)} cases hold" if outcomes else ""
            played += f", {len(proofs)} questions answered" if proofs else ""
            _say(f"{file}: {_rules(plan)} rules for {', '.join(plan.models)}{played}")
    if not good:
        raise typer.Exit(1)


def _beside(plan: Path) -> list[Path]:
    """Cases and questions that belong to a plan by their names."""
    stem = "" if plan.name == PLAN else f"{plan.stem.removesuffix('.plan')}."
    return [path for name in ("cases", "questions") if (path := plan.with_name(f"{stem}{name}.yaml")).is_file()]


def _case_files(given: Iterable[Path], plan: Path) -> Iterator[Path]:
    """Files as given; of a folder every YAML file below it but plans."""
    for path in given:
        if not path.is_dir():
            yield path
            continue
        found = sorted(one for one in path.rglob("*") if one.suffix in (".yaml", ".yml") and one.is_file())
        cases = [one for one in found if not one.stem.endswith(".plan") and one.resolve() != plan.resolve()]
        if not cases:
            raise BadInput(f"{path}: no policy cases in this folder")
        yield from cases


def _rules(plan: Plan) -> int:
    return sum(len(receipt.rules_of(part)) for part in plan.models.values())


# simulate


@app.command(
    short_help="Run a recorded conversation through the gates.",
    epilog=_examples(
        "wardwright simulate --config plan.yaml talk.json",
        "wardwright simulate --config plan.yaml --surface phase talk.json",
        "wardwright simulate --config plan.yaml --db ward.db --session s1 talk.json",
    ),
)
def simulate(
    transcript: Annotated[
        str, typer.Argument(help="A conversation as JSON in any wire's form; - reads standard input.")
    ],
    config: Config,
    surface: Annotated[
        str, typer.Option(help="all or phase: compare what the model could call, and run with that surface.")
    ] = "",
    wire: Annotated[str, typer.Option(help=f"One of {', '.join(WIRES)}; found out when not given.")] = "",
    model: Annotated[str, typer.Option(help="The governed model, when the transcript does not name it.")] = "",
    session: Annotated[
        str, typer.Option("--session", help="Name of the session; with --db, the stored one to go on from.")
    ] = "simulation",
    db: Annotated[
        str, typer.Option("--db", help="Start from what this store remembers of --session; nothing is written there.")
    ] = "",
    key_file: Annotated[
        Path | None,
        typer.Option(help="With --db: the ring of keys, or the session's digest key, to know equal arguments again."),
    ] = None,
    step_ms: Annotated[int, typer.Option(min=0, help="Milliseconds between two gates.")] = 0,
    as_recorded: Annotated[
        bool, typer.Option("--as-recorded", help="Keep refused calls and their results in later requests.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a recorded conversation through the gates. Nothing is executed, sent, used up or kept."""
    plan = compile_plan(load_config(config))
    talk = read_transcript(_read(transcript), cast("WireName", _one_of("--wire", wire, WIRES)) if wire else None)
    model = _governed(model, talk.turns, plan, config)
    caller, registers = Caller(session_id=session), None
    if db:
        with _store(db) as store:
            caller = session_caller(store, session)
            turns = [replace(turn, model=model or turn.model) for turn in talk.turns]
            key = b"simulation" if key_file is None else _digest_key(store, caller, key_file)
            registers = session_registers(store, plan, turns, caller, key)
    found = run_simulation(
        plan,
        talk,
        registers=registers,
        caller=caller,
        model=model,
        now=_now_ms(),
        step_ms=step_ms,
        surface=cast("Surface", _one_of("--surface", surface, ("all", "phase"))) if surface else None,
        as_recorded=as_recorded,
    )
    if json:
        _print_json(found.as_json())
    else:
        _say_simulation(found)


def _governed(model: str, turns: Sequence[Turn], plan: Plan, config: Path) -> str:
    """The model whose plan governs: of several, the command or the transcript must name one."""
    if len(plan.models) == 1:
        return model
    unknown = sorted(({model} if model else {turn.model for turn in turns}) - set(plan.models))
    if unknown == [""]:
        raise BadInput(f"the transcript names no model: --model {' or '.join(plan.models)}")
    if unknown:
        raise BadInput(f"no model '{unknown[-1]}' in {config}; choose {', '.join(plan.models)} with --model")
    return model


def _say_simulation(found: Simulation) -> None:
    for step in found.steps:
        ruling = step.ruling
        _say(
            f"{step.number:>3} {step.gate:<7} {ruling.decision:<16} {_because(ruling.rule_id, ruling.message)}".rstrip()
        )
        for finding in ruling.findings:
            if finding.rule_id != ruling.rule_id:
                how = "" if finding.enforced and not finding.lifted else f" ({finding.lifted or 'observed'})"
                _say(f"    {finding.effect} by {finding.rule_id}{how}")
        if ruling.stripped:
            _say(f"    hidden: {', '.join(ruling.stripped)}")
    for row in found.surface:
        hidden = [name for name in row.all if name not in row.phase_scoped]
        line = f"surface at {row.step} ({row.phase}): {len(row.phase_scoped)} of {len(row.all)} tools"
        line += f", without {', '.join(hidden)}" if hidden else ""
        line += f"; would cost {', '.join(row.blocked)}" if row.blocked else ""
        _say(line)
    calls = found.blocked_calls
    _say(
        f"{len(found.steps)} gates, {len(calls)} calls refused"
        + (f", {found.unreached} replies never asked for" if found.unreached else "")
    )


# prove


@app.command(
    short_help="Ask whether a plan can be got around.",
    epilog=_examples(
        "wardwright prove --config plan.yaml",
        'wardwright prove --config plan.yaml --question "can shell/exec run after browser without user?"',
        "wardwright prove --config plan.yaml --file questions.yaml --cases found.yaml",
    ),
)
def prove(
    config: Config,
    question: Annotated[
        list[str] | None,
        typer.Option("--question", help="'can TOOL run after TOOL without TOOL within 30 s?'; may be repeated."),
    ] = None,
    file: Annotated[list[Path] | None, typer.Option("--file", help="Questions as YAML; may be repeated.")] = None,
    model: Annotated[str, typer.Option(help="The governed model; without it every one.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Gates to ask per question before it stays unknown.")] = LIMIT,
    cases: Annotated[
        Path | None, typer.Option("--cases", help="Write counter-examples there, as policy cases for 'check'.")
    ] = None,
    json: Json = False,
) -> None:
    """Ask whether a plan can be got around. Without a question, what its own sequences promise is asked.

    Exit code 0: it cannot. 1: it can, and how is shown. 2: unknown, or the question or the plan cannot be read."""
    try:
        plan = compile_plan(load_config(config))
        asked = [parse_question(line) for line in question or ()]
        asked.extend(one for path in file or () for one in load_questions(path))
        if model and model not in plan.models:
            raise BadInput(f"no model '{model}' in {config}; choose {', '.join(plan.models)}")
    except (WardwrightError, OSError) as error:
        for problem in error.problems if isinstance(error, ConfigError) else ():
            _complain(problem)
        if not isinstance(error, ConfigError):
            typer.echo(_visible(f"wardwright: {error}"), err=True)
        raise typer.Exit(2) from None
    wanted = [
        (name, one)
        for name in ([model] if model else plan.models)
        for one in asked or standard_questions(plan.models[name])
    ]
    proofs = list(_answered(plan, wanted, limit))
    if cases is not None:
        cases.write_text("".join(proof.case_yaml() for proof in proofs), "utf-8")
    verdicts = {proof.verdict for proof in proofs}
    if json:
        _print_json({"plan_hash": plan.plan_hash, "proofs": [proof.as_json() for proof in proofs]})
    else:
        for proof in proofs:
            _say_proof(proof, len(plan.models) > 1)
        if not proofs:
            typer.echo("wardwright: the plan has no sequence to ask about; give --question", err=True)
    if verdicts != {"holds"}:
        raise typer.Exit(1 if "counter_example" in verdicts else 2)


def _say_proof(proof: Proof, named: bool) -> None:
    _say(f"{proof.model}: {proof.question.text}" if named else proof.question.text)
    if proof.verdict == "holds":
        _say("  no: every way was tried")
    elif proof.verdict == "unknown":
        _say("  unknown: no way was found, but")
        for reason in proof.reasons:
            _say(f"    {reason}")
    else:
        _say("  yes:")
    for note in proof.notes:
        _say(f"  note: {note}")
    for number, step in enumerate(proof.steps, 1):
        if step.waited_ms:
            _say(f"       {step.waited_ms} ms pass")
        _say(
            f"    {number}. {step.gate}: {', '.join(step.news)} ({_because(step.ruling.decision, step.ruling.rule_id)})"
        )


# replay, diff, report


@app.command(
    short_help="Judge stored receipts again, by another plan.",
    epilog=_examples(
        "wardwright replay --config plan.yaml --db ward.db --since 2026-12-01",
        "wardwright replay --config plan.yaml --receipts export.ndjson --json",
    ),
)
def replay(
    config: Config,
    db: Database = "",
    exported: Exported = None,
    session: Session = "",
    since: Since = "",
    until: Until = "",
    limit: Listed = CHANGES,
    exit_code: Differs = False,
    json: Json = False,
) -> None:
    """Re-evaluate stored receipts under another plan."""
    plan = compile_plan(load_config(config))
    with _archive(db, exported, session, until) as archive:
        found = replay_receipts(plan, archive, since_ms=_instant("--since", since) or 0, limit=limit)
    _print_json(found.as_json()) if json else _say_replay(found, "recorded", "under this plan")
    _end_as(found, exit_code)


@app.command(
    short_help="What would change under another plan, and why.",
    epilog=_examples(
        "wardwright diff plan.yaml stricter.yaml --db ward.db",
        "wardwright diff plan.yaml stricter.yaml --db ward.db --exit-code   for a build",
    ),
)
def diff(
    before: Annotated[Path, typer.Argument(help="The plan that rules now.")],
    after: Annotated[Path, typer.Argument(help="The plan that might.")],
    db: Database = "",
    exported: Exported = None,
    session: Session = "",
    since: Since = "",
    until: Until = "",
    limit: Listed = CHANGES,
    exit_code: Differs = False,
    json: Json = False,
) -> None:
    """List what would change for recorded receipts if one plan took the place of another."""
    old, new = compile_plan(load_config(before)), compile_plan(load_config(after))
    with _archive(db, exported, session, until) as archive:
        found = compare(old, new, archive, since_ms=_instant("--since", since) or 0, limit=limit)
    _print_json(found.as_json()) if json else _say_replay(found, "before", "after")
    _end_as(found, exit_code)


def _end_as(found: Replay, asked: bool) -> None:
    if asked and found.counts["changed"] + found.counts["unknown"]:
        raise typer.Exit(3)


def _say_replay(found: Replay, before: str, after: str) -> None:
    for change in found.changes:
        doubt = " (unknown: a rule that acted then cannot be replayed)" if change.verdict == "unknown" else ""
        _say(f"{change.receipt_id} {change.gate}{doubt}")
        _say(f"  {before}: {_decided(change.before)}")
        _say(f"  {after}: {_decided(change.after)}")
        for flip in change.flipped:
            _say_flip(flip)
        if change.left_off:
            _say(f"    and {change.left_off} more")
    if found.left_off:
        _say(f"and {found.left_off} more changes; --limit lists them")
    for one in found.unreplayable:
        edited = "" if one.changed else " (the same in both plans)"
        _say(f"not replayed: {one.rule_id} ({one.kind}): {one.missing}{edited}")
    for note in found.notes:
        _say(f"note: {note}")
    counts = found.counts
    _say(
        f"{found.receipts} receipts, {found.gates} gates: {counts['same']} the same, {counts['changed']} changed, "
        f"{counts['unknown']} unknown"
    )


_BECAUSE: Final[Mapping[Because, str]] = {
    "rule_added": " (the rule is new)",
    "rule_removed": " (the rule is gone)",
    "rule_changed": " (the rule says something else)",
    "facts_changed": " (the same rule, other facts)",
    "": "",
}


def _say_flip(flip: Flip) -> None:
    about = f" on {flip.tool}" if flip.tool else ""
    about += f", call {flip.call_id}" if flip.call_id else ""
    _say(f"    {flip.rule_id}: {flip.before or 'nothing'} -> {flip.after or 'nothing'}{about}{_BECAUSE[flip.because]}")
    for name, (was, now) in flip.values.items():
        _say(f"      {name}: {_plain(was)} -> {_plain(now)}")
    for fact in flip.facts:
        for pointer, value in fact.get("arguments", {}).items():
            _say(f"      {pointer} holds {_plain(value)}")


def _plain(value: Any) -> str:
    if value is None or value in ("", [], ()):
        return "none"
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _decided(decided: Decided) -> str:
    parts = [decided.decision + (f" by {decided.rule_id}" if decided.rule_id else "")]
    parts.extend(f"{call_id}: {status}" for call_id, status in decided.calls.items() if status != "allow")
    if decided.allowed_routes is not None:
        parts.append(f"routes {', '.join(decided.allowed_routes)}")
    if decided.model:
        parts.append(f"model {decided.model}")
    if decided.prefer:
        parts.append(f"prefers {', '.join(decided.prefer)}")
    if decided.withheld:
        parts.append(f"without {', '.join(decided.withheld)}")
    return "; ".join(parts)


@app.command(
    short_help="Say per rule what it did, and what it would have.",
    epilog=_examples(
        "wardwright report --db ward.db",
        "wardwright report --config plan.yaml --db ward.db --json",
    ),
)
def report(
    config: Annotated[
        Path | None, typer.Option("--config", help="A plan: its rules that never came up are listed too.")
    ] = None,
    db: Database = "",
    exported: Exported = None,
    session: Session = "",
    until: Until = "",
    quiet_ms: Annotated[
        int, typer.Option(min=1, help="A session that says nothing for so long after a refusal is abandoned.")
    ] = QUIET_MS,
    json: Json = False,
) -> None:
    """Say per rule what it did: fired, would have, retries that passed, time added, sessions abandoned."""
    plan = None if config is None else compile_plan(load_config(config))
    with _archive(db, exported, session, until) as archive:
        found = report_rules(archive, plan=plan, quiet_ms=quiet_ms)
    if json:
        _print_json(found.as_json())
        return
    heads = ("rule", "fired", "would have", "refused", "then passed", "waited s", "abandoned", "mean gate us")
    rows = [
        (
            one.rule_id,
            str(one.fired),
            str(one.would_have_fired),
            str(one.refused),
            str(one.retries_passed),
            f"{one.waited_ms / 1000:g}",
            str(one.sessions_abandoned),
            f"{one.gate_us / one.considered:.0f}" if one.considered else "-",
        )
        for one in found.rules
    ]
    _say_table(heads, rows)
    for one in found.rules:
        if one.would_have_fired:
            about = ", ".join(f"{tool} {count}" for tool, count in list(one.tools.items())[:5])
            _say(
                f"{one.rule_id} would have refused at {one.would_have_refused} of {one.would_have_fired} gates: {about}; "
                f"last {', '.join(one.examples)}"
            )
    _say(f"{found.receipts} receipts, {found.gates} gates, {found.sessions} sessions")


# receipts


@receipts_app.command("list")
def list_receipts(
    db: Database = DATABASE,
    where: Annotated[
        list[str] | None, typer.Option("--where", help=f"NAME=VALUE, may be repeated. Names: {', '.join(FILTERS)}.")
    ] = None,
    since: Since = "",
    until: Until = "",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    before: Annotated[int | None, typer.Option(help="Continue after this cursor.")] = None,
    json: Json = False,
) -> None:
    """List receipts, newest first."""
    with _store(db) as store:
        page = store.receipts(
            ReceiptQuery(_filters(where), _instant("--since", since), _instant("--until", until), before, limit)
        )
    found = [(stored, receipt.load(stored.row.body)) for stored in page.receipts if stored.row.body]
    if json:
        _print_json(
            {
                "receipts": [{"cursor": stored.cursor, "receipt": body} for stored, body in found],
                "next_before": page.next_before,
            }
        )
        return
    _say_table(
        ("receipt", "time", "session", "model", "status", "decision"),
        [
            (
                body["id"],
                _time(body["at_ms"]),
                body.get("caller", {}).get("session_id", ""),
                body.get("request", {}).get("model", ""),
                body["final"]["status"],
                _came_of(body),
            )
            for _, body in found
        ],
    )
    if page.next_before is not None:
        _say(f"more: --before {page.next_before}")


def _came_of(body: Receipt) -> str:
    """What came of an exchange and by which rule; or what an operator did."""
    admin = body.get("admin", {})
    decision = body.get("decision", {})
    return _because(
        decision.get("decision", "") or admin.get("action", ""), decision.get("rule_id", "") or admin.get("target", "")
    )


@receipts_app.command("show")
def show_receipt(
    receipt_id: Annotated[str, typer.Argument(help="Id of the receipt.")], db: Database = DATABASE, json: Json = False
) -> None:
    """Explain one receipt in words."""
    with _store(db) as store:
        stored = store.receipt(receipt_id)
    if stored is None:
        raise BadInput(f"no receipt {receipt_id!r} in {db}")
    if not stored.row.body:
        raise BadInput(f"receipt {receipt_id!r} was erased; its hash was {stored.erased_hash}")
    body: Receipt = receipt.load(stored.row.body)
    _print_json(body) if json else _say(*explain(body).split("\n"))


@receipts_app.command("export")
def export_receipts(
    db: Database = DATABASE,
    where: Annotated[list[str] | None, typer.Option("--where", help="NAME=VALUE, may be repeated.")] = None,
    since: Since = "",
    until: Until = "",
    output: Annotated[Path | None, typer.Option("--output", help="A file; standard output when not given.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="An export is JSON in any case; with --output, say so as JSON.")
    ] = False,
) -> None:
    """Write receipts as NDJSON, newest first: one line each, byte for byte as stored."""
    query = ReceiptQuery(_filters(where), _instant("--since", since), _instant("--until", until))
    with _store(db) as store:
        if output is None:
            for line in export(store, query):
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return
        count = 0
        with output.open("wb") as file:
            for count, line in enumerate(export(store, query), 1):
                file.write(line)
                if count % EVERY == 0:
                    _meanwhile(f"{count} receipts written")
    _meanwhile("")
    _print_json({"file": str(output), "receipts": count}) if json else _say(f"{count} receipts written to {output}")


@receipts_app.command("verify")
def verify_receipts(
    db: Database = DATABASE,
    key_file: Annotated[
        list[Path] | None,
        typer.Option("--key-file", help="A ring, or a key that something was signed with; may be repeated."),
    ] = None,
    anchor: Annotated[str, typer.Option(help="The mark of a checkpoint that must still be there.")] = "",
    json: Json = False,
) -> None:
    """Walk every chain of receipts. Exit code 1 when one was changed, removed, emptied, moved, hidden or cut off."""
    if anchor and not _MARK.fullmatch(anchor):
        raise BadInput(f"--anchor {anchor!r}: expected the mark alone that 'receipts checkpoint' prints, as 1:0123…")
    keys = [key for path in key_file or () for key in signing_keys_of(path)]
    with _store(db) as store:
        _meanwhile("walking the chains")
        found = verify(store, keys, anchor=anchor)
        _meanwhile("")
    if json:
        _print_json(
            {
                "ok": found.good,
                "receipts": found.receipts,
                "erased": found.erased,
                "chains": found.chains,
                "checkpoints": found.checkpoints,
                "flaws": [
                    {"kind": flaw.kind, "writer": flaw.writer, "sequence": flaw.sequence, "message": flaw.message}
                    for flaw in found.flaws
                ],
            }
        )
    else:
        for flaw in found.flaws:
            typer.echo(_visible(str(flaw)), err=True)
        flaws = f"{len(found.flaws)} flaw{'s' if len(found.flaws) != 1 else ''}"
        state = "hold" if found.good else f"do not hold: {flaws}"
        _say(f"{found.receipts} receipts in {found.chains} chains {state}")
    if not found.good:
        raise typer.Exit(1)


@receipts_app.command("checkpoint")
def sign_receipts(
    db: Database,
    key_file: Annotated[Path, typer.Option("--key-file", help="The ring of keys, or the key, to sign with.")],
    json: Json = False,
) -> None:
    """Sign where every chain ends now. Keep the mark it prints where nobody who can write the store can: `verify --anchor`."""
    with _store(db) as store:
        made = checkpoint(store, _now_ms(), signing_keys_of(key_file)[0])
    if json:
        _print_json({"number": made.number, "mark": mark(made), "chains": len(made.heads)})
    else:
        _say(f"checkpoint {made.number} over {len(made.heads)} chains, mark {mark(made)}")


@receipts_app.command("retain")
def retain_receipts(
    db: Database,
    before: Annotated[str, typer.Option(help="Receipts older than this date or time go.")],
    key_file: Annotated[Path, typer.Option("--key-file", help="The ring of keys, or the key, to sign the cut with.")],
    json: Json = False,
) -> None:
    """Remove old receipts. A signed cut stands for them, so that the chain still verifies."""
    until = _instant("--before", before)
    if until is None:
        raise BadInput("--before: say from when on receipts stay")
    with _store(db) as store:
        gone = retain(store, until, _now_ms(), signing_keys_of(key_file)[0])
    _print_json({"removed": gone}) if json else _say(f"{gone} receipts removed")


@receipts_app.command("erase")
def erase_tenant(
    tenant: Annotated[str, typer.Argument(help="Whose data.")],
    db: Database,
    key_file: Annotated[
        Path, typer.Option("--key-file", help="The ring of keys, or the key, that vouches for the erasure.")
    ],
    json: Json = False,
) -> None:
    """Erase all of a tenant: sessions, held replies and what receipts say. Links stay, so that the chain still verifies."""
    with _store(db) as store:
        gone = erase(store, tenant, _now_ms(), signing_keys_of(key_file)[0])
    _print_json({"erased": gone}) if json else _say(f"{gone} sessions and receipts erased")


@receipts_app.command("reindex")
def reindex_receipts(db: Database, json: Json = False) -> None:
    """Make the index anew from the receipts, when `verify` says that filters do not find them."""
    with _store(db) as store:
        store.reindex()
    _print_json({"ok": True}) if json else _say("the index was made anew")


# approvals

Keys = Annotated[
    Path | None,
    typer.Option("--keys", help="The ring of keys; without it WARDWRIGHT_KEYS, or the file beside the database."),
]
Handle = Annotated[str, typer.Argument(help="Handle of what waits: apr_…")]
Seen = Annotated[
    str, typer.Option("--seen", help="The digest that was shown: what is decided is exactly what was looked at.")
]
Note = Annotated[str, typer.Option("--note", help="Why; kept in the receipt.")]
Deciding = Annotated[
    str,
    typer.Option("--operator", help="Who decides, as the receipt names them; the user of this machine if not given."),
]


@app.command(
    "approvals",
    short_help="Show what waits for an approval.",
    epilog=_examples(
        "wardwright approvals --db ward.db",
        "wardwright approvals apr_x --db ward.db            one, with all its arguments",
    ),
)
def list_approvals(
    handle: Annotated[str, typer.Argument(help="Only this one, with all its arguments.")] = "",
    db: Database = DATABASE,
    keys: Keys = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 100,
    after: Annotated[str, typer.Option(help="Go on after this handle.")] = "",
    json: Json = False,
) -> None:
    """Show what waits for an approval, with the arguments that an approver must see."""
    with _store(db) as store:
        ring = _ring(db, keys)
        if handle:
            held = _waiting(store, ring, handle)
            _print_json(shown(held)) if json else _say_held(held)
            return
        found = waiting.pending(store, ring, _now_ms(), limit, after)
    more = found[-1].handle if len(found) == limit else None
    found = sorted(found, key=lambda one: one.held_at_ms)
    if json:
        _print_json({"approvals": [shown(one) for one in found], "next_after": more})
        return
    for one in found:
        _say_held(one)
    _say(f"{len(found)} {'waits' if len(found) == 1 else 'wait'}")
    if more is not None:
        _say(f"more: --after {more}")


@app.command(
    short_help="Approve what waits, once.",
    epilog=_examples(
        'wardwright approve apr_x --db ward.db --note "looked at it"',
        "wardwright approve apr_x --db ward.db --seen DIGEST --operator anna",
    ),
)
def approve(
    handle: Handle,
    db: Database = DATABASE,
    keys: Keys = None,
    seen: Seen = "",
    note: Note = "",
    operator: Deciding = "",
    json: Json = False,
) -> None:
    """Approve what waits: the same request then gets this very reply, once."""
    _decide(True, handle, db, keys, seen, note, operator, json)


@app.command(
    short_help="Reject what waits.",
    epilog=_examples(
        'wardwright reject apr_x --db ward.db --note "not ours"',
    ),
)
def reject(
    handle: Handle,
    db: Database = DATABASE,
    keys: Keys = None,
    seen: Seen = "",
    note: Note = "",
    operator: Deciding = "",
    json: Json = False,
) -> None:
    """Reject what waits: whoever asks again is told so."""
    _decide(False, handle, db, keys, seen, note, operator, json)


def _decide(
    approved: bool, handle: str, db: str, keys: Path | None, seen: str, note: str, operator: str, json: bool
) -> None:
    decider = operator or _user()
    if len(decider) > 256 or not decider.isprintable():
        raise BadInput("--operator: expected a name of at most 256 characters on one line")
    with _store(db) as store:
        ring = _ring(db, keys)
        if not seen:
            if json or not sys.stdin.isatty():
                raise BadInput(f"say what you looked at: --seen DIGEST, as 'wardwright approvals {handle}' shows it")
            held = _waiting(store, ring, handle)
            _say_held(held)
            typer.confirm("Approve this?" if approved else "Reject this?", abort=True)
            seen = held.digest
        made = waiting.decide(store, ring, handle, approved, decider, note, _now_ms(), seen=seen)
    _print_json(told(handle, made)) if json else _say(f"{handle} {made.status} by {made.operator}")


def _waiting(store: Store, ring: Keyring, handle: str) -> waiting.Held:
    held = waiting.waiting(store, ring, handle, _now_ms())
    if held is None:
        raise waiting.NotWaiting(f"Nothing waits under {handle[:80]}: it was decided or has expired.")
    return held


def _ring(db: str, keys: Path | None) -> Keyring:
    """The ring that sealed what waits. None is made: a new one would open nothing."""
    return Keyring.load(keys) if keys is not None else Keyring.load_or_create(ring_path(db), make=False)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise BadInput("say who decides: --operator NAME") from None


def _say_held(held: waiting.Held) -> None:
    who = f"session {held.session_id}" + (f" of {held.tenant}" if held.tenant else "")
    _say(f"{held.handle}  until {_time(held.expires_at_ms)}")
    _say(f"  {held.model}, {who}, asked by {held.principal}")
    for call in held.calls:
        _say(f"  {call.get('name') or held.gate}: {call.get('arguments', '')}")
        _say(f"    {_because(call.get('rule_id', ''), call.get('message', ''))}")
    _say(f"  --seen {held.digest}")


def _visible(text: str) -> str:
    """What a model wrote must not move the cursor, hide itself or be read in another order on somebody's terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


# keys

Ring = Annotated[Path, typer.Argument(help="The file with the ring of keys.")]


@keys_app.command("create")
def create_ring(file: Ring, json: Json = False) -> None:
    """Make a ring, for machines that share a database. `serve` makes one beside a database file by itself."""
    _say_ring(Keyring.create(file, now_ms=_now_ms()), file, json)


@keys_app.command("list")
def list_ring(file: Ring, json: Json = False) -> None:
    """Show the generations of a ring; nothing secret."""
    _say_ring(Keyring.load(file), file, json)


@keys_app.command("rotate")
def rotate_ring(file: Ring, json: Json = False) -> None:
    """Seal and sign with a new generation from now on. The older ones still open and verify; counters go on."""
    ring = Keyring.load(file)
    ring.rotate(_now_ms())
    _say_ring(ring, file, json)


@keys_app.command("retire")
def retire_generation(
    file: Ring, generation: Annotated[str, typer.Argument(help="Its id, as `list` shows it.")], json: Json = False
) -> None:
    """Take a generation out. What it sealed is lost, and what it signed no longer verifies."""
    ring = Keyring.load(file)
    ring.retire(generation)
    _say_ring(ring, file, json)


@keys_app.command("replace-digest")
def replace_digest(file: Ring, json: Json = False) -> None:
    """Use another digest secret for sessions that begin an hour from now, because the old one leaked."""
    since = Keyring.load(file).replace_digest(_now_ms())
    _print_json({"from_ms": since}) if json else _say(f"sessions that begin after {_time(since)} UTC use the new one")


@keys_app.command("export")
def export_ring(file: Ring, json: Json = False) -> None:
    """Print the whole ring on one line, for WARDWRIGHT_KEYS. Secret."""
    text = Keyring.load(file).export()
    _print_json({"ring": text}) if json else _say(text)


@keys_app.command("admin")
def new_admin_token(file: Ring, json: Json = False) -> None:
    """Replace the generated admin token and print the new one, this one time."""
    token = Keyring.load(file).new_admin_token()
    _print_json({"token": token}) if json else _say(token)


@keys_app.command("new")
def new_key(json: Json = False) -> None:
    """Print a new key for a caller or an operator, and its hash for the config."""
    key = new_secret()
    _print_json({"key": key, "hash": hash_key(key)}) if json else _say(f"key:  {key}", f"hash: {hash_key(key)}")


@keys_app.command("hash")
def hash_of_key(json: Json = False) -> None:
    """Read a key from standard input and print its hash for the config."""
    key = (typer.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()).strip()
    if not key:
        raise BadInput("keys hash: no key on standard input")
    _print_json({"hash": hash_key(key)}) if json else _say(hash_key(key))


# init


@app.command(
    short_help="Write a plan to start from.",
    epilog=_examples(
        "wardwright init                                    a commented plan",
        "wardwright init --list",
        "wardwright init --plan write-hardening",
        "wardwright init --plan injection-containment --catalog-from tools.json",
    ),
)
def init(
    target: Annotated[
        Path | None,
        typer.Argument(help="Where to write: a file, or with --plan a folder. wardwright.yaml, or the plan's name."),
    ] = None,
    plan: Annotated[str, typer.Option("--plan", help="A ready-made plan; --list names them.")] = "",
    catalog_from: Annotated[
        Path | None,
        typer.Option("--catalog-from", help="Draft the catalog from these tool schemas (JSON): one file is written."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The same as the argument.")] = None,
    list_plans: Annotated[bool, typer.Option("--list", help="Name the ready-made plans and end.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    json: Json = False,
) -> None:
    """Write a plan to start from: a commented one, a ready-made one, or one for your own tools. Nothing is replaced unless told."""
    if list_plans:
        _say_ready_made(json)
        return
    if target is not None and out is not None:
        raise BadInput("say once where to write: as an argument or with --out")
    where = target or out
    chosen = ready_made(plan) if plan else None
    drafted = None if catalog_from is None else _drafted(catalog_from)
    files: dict[Path, str]
    if chosen is not None and drafted is None:
        folder = where or Path(chosen.name)
        if folder.suffix in (".yaml", ".yml"):
            raise BadInput(f"{folder}: a ready-made plan has several files; give a folder")
        files = {folder / name: text for name, text in chosen.files.items()}
    else:
        file = where or Path("wardwright.yaml")
        if chosen is not None:
            text = chosen.with_catalog(drafted or "")
        else:
            text = drafted or importlib.resources.files("wardwright").joinpath("starter.yaml").read_text("utf-8")
        files = {file: text}
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        raise BadInput(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there already; --force replaces {'it' if len(there) == 1 else 'them'}"
        )
    main_file = next(iter(files))
    main_file.parent.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with path.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(text)
    steps = _next_steps(main_file, chosen is not None and drafted is None, drafted is not None)
    # A ready-made rule may speak of tools that another catalog does not have.
    gone = () if chosen is None or drafted is None else unseen_by(compile_plan(load_config(main_file)))
    notes = [f"{one.what}: {one.why}" for one in gone if one.kind == "never_fires"]
    if json:
        _print_json(
            {
                "file": str(main_file),
                "files": [str(path) for path in files],
                "plan": plan or None,
                "notes": notes,
                "next": list(steps),
            }
        )
        return
    if len(files) == 1:
        _say(f"{main_file} written.")
    else:
        _say(f"{', '.join(path.name for path in files)} written to {main_file.parent}.")
    for note in notes:
        _say(f"Note: {note}")
    for number, (command, why) in enumerate(steps.items()):
        _say(f"{'Next:' if not number else '     '} {command}  # {why}")


def _drafted(tools: Path) -> str:
    try:
        return draft(_bytes(tools).decode("utf-8"), tools.name)
    except ValueError as error:
        raise BadInput(f"{tools}: {error}") from None


def _next_steps(file: Path, with_cases: bool, with_guesses: bool) -> dict[str, str]:
    """Command → what it is for."""
    given = shlex.quote(str(file))
    steps: dict[str, str] = {}
    if with_guesses:
        steps[f"$EDITOR {given}"] = "read every line marked as guessed"
    steps[f"wardwright check {given}"] = (
        "plays its cases, proves its questions" if with_cases else "says what is wrong or odd"
    )
    steps[f"wardwright check --blind {given}"] = "says what this plan cannot see"
    steps[f"wardwright serve --config {given}"] = "rules by it; name your models under 'targets'"
    return steps


def _say_ready_made(json: bool) -> None:
    plans = [ready_made(name) for name in ready_made_names()]
    if json:
        _print_json({"plans": [{"name": one.name, "about": one.about, "files": list(one.files)} for one in plans]})
        return
    width = max(len(one.name) for one in plans)
    for one in plans:
        _say(f"{one.name.ljust(width)}  {one.about}")
    _say("Write one with: wardwright init --plan NAME")


# reading what was given


@contextmanager
def _store(where: str) -> Generator[Store]:
    if not where.startswith(("postgresql://", "postgres://")) and not Path(where).is_file():
        raise BadInput(f"{where}: no such store; name the gateway's with --db")
    store = open_store(where)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _archive(db: str, exported: Path | None, session: str, until: str) -> Generator[Iterable[Receipt]]:
    end = _instant("--until", until)
    if bool(db) == (exported is not None):
        raise BadInput("give the receipts to read: either --db or --receipts")
    if exported is not None:
        yield _Watched(ExportedArchive(exported, session_id=session, until_ms=end))
        return
    with _store(db) as store:
        yield _Watched(StoredArchive(store, session_id=session, until_ms=end))


def _filters(given: Sequence[str] | None) -> dict[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for entry in given or ():
        name, equals, value = entry.partition("=")
        if not equals or not value:
            raise BadInput(f"--where {entry!r}: expected NAME=VALUE")
        found.setdefault(_one_of("--where", name, FILTERS), []).append(value)
    return {name: tuple(values) for name, values in found.items()}


def _one_of(option: str, word: str, words: Sequence[str]) -> str:
    if word not in words:
        raise BadInput(f"{option} {word!r}: expected one of {', '.join(words)}")
    return word


def _instant(option: str, text: str) -> int | None:
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{option} {text!r}: expected a date (2026-12-31), a time (2026-12-31T18:00:00Z) or milliseconds"
        ) from None
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _read(path: str) -> bytes:
    return sys.stdin.buffer.read() if path == "-" else _bytes(Path(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None


def _digest_key(store: Store, caller: Caller, path: Path) -> bytes:
    """The key of a session's digests: the file itself, or what its ring makes of the session."""
    if not is_ring(path):
        return _bytes(path)
    scope = scope_key("session_id", caller)
    return Keyring.load(path).session_key(scope, store.load((scope,), lambda _: ())[scope].head.since_ms)


def _say_ring(ring: Keyring, file: Path, json: bool) -> None:
    if json:
        made = [{"id": name, "made_ms": at_ms} for name, at_ms in ring.generations]
        _print_json({"file": str(file), "generations": made, "admin_token": bool(ring.admin_hash)})
        return
    for name, at_ms in ring.generations:
        _say(f"{name}  {_time(at_ms) if at_ms else 'at the first start'}")


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


# saying it


class _Watched:
    """Receipts, counted on a terminal while they are read. May be read again, as what it stands for."""

    def __init__(self, inner: Iterable[Receipt]) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Receipt]:
        for count, one in enumerate(self._inner):
            if count % EVERY == 0:
                _meanwhile(f"{count} receipts read")
            yield one
        _meanwhile("")


def _meanwhile(text: str) -> None:
    """How far it is, over what stood there; nothing where nobody looks. Empty: it is done."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{_visible(text)[:100]}")
        sys.stderr.flush()


def _answered(plan: Plan, asked: Sequence[tuple[str, Question]], limit: int = LIMIT) -> Iterator[Proof]:
    """The answers to questions, each about a model; which one is being asked is told meanwhile."""
    for number, (model, question) in enumerate(asked, 1):
        _meanwhile(f"question {number} of {len(asked)}: {question.text}")
        yield search_plan(plan, question, model=model, limit=limit)
    _meanwhile("")


def _say(*lines: str) -> None:
    for line in lines:
        typer.echo(_visible(line))


def _print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str))


def _complain(problem: Problem) -> None:
    message = f"warning: {problem.message}" if problem.severity == "warning" else problem.message
    typer.echo(_visible(f"{problem.file}:{problem.line}:{problem.column}: {problem.path}: {message}"), err=True)


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "path": problem.path,
        "message": problem.message,
        "severity": problem.severity,
    }


def _because(first: str, second: str) -> str:
    return ": ".join(part for part in (first, second) if part)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _say_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[index]) for row in (heads, *rows)) for index in range(len(heads))]
    for row in (heads, *rows):
        _say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Whatever is wrong with what was given ends in one line, not in a traceback."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="wardwright")
    except ConfigError as error:
        for problem in error.problems:
            _complain(problem)
        raise SystemExit(1) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough. Nothing may be written there any more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (WardwrightError, OSError) as error:
        # Some have several things to say, a line each.
        for line in str(error).splitlines() or [type(error).__name__]:
            typer.echo(_visible(f"wardwright: {line.strip()}"), err=True)
        raise SystemExit(1) from None
