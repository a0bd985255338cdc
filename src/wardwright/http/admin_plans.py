"""Plans for operators: which is in force, which were; validate one, activate one for every process, go back to a former one.

A plan that came over the network is checked like a file before anything changes, and takes the place of exactly the one that the
operator looked at (`expected_epoch`). That it begins and that it is done is recorded, as the store cannot do both at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from wardwright import receipts
from wardwright.blind import blind
from wardwright.cases import Outcome, load_cases, play
from wardwright.errors import ConfigError, Problem, VersionConflict
from wardwright.history import Delta
from wardwright.http.route import (
    NOTE,
    SOURCE,
    WHOLE,
    Ask,
    BadRequest,
    Conflict,
    Gateway,
    NotFound,
    Parameter,
    Route,
    Schema,
    object_schema,
)
from wardwright.policy.compile import Plan
from wardwright.prove import Proof, Question, load_questions, prove
from wardwright.receipts import rules_of
from wardwright.store import PlanEpoch
from wardwright.wire.turn import Caller

QUESTION_GATES: Final = 10_000
"""Gates that all questions of one request may ask together."""
PROBLEM: Final[Schema] = {
    "type": "string",
    "description": "It is in force, but this process could not follow it and still rules by the one before.",
}
_EPOCH: Final = object_schema(
    ("epoch", "plan_hash", "at_ms"),
    epoch=WHOLE,
    plan_hash={"type": "string"},
    at_ms={"type": "integer"},
    problem=PROBLEM,
)


def list_plans(ask: Ask) -> Any:
    gateway = ask.gateway
    plan = gateway.plan
    limit = ask.query["limit"]
    known = gateway.store.plan_epochs(limit, ask.query["before"])
    return {
        "current": {
            "epoch": current_epoch(gateway),
            "plan_hash": plan.plan_hash,
            "models": list(plan.models),
            "rules": rule_count(plan),
        },
        "history": [_epoch(one) for one in known],
        "next_before": known[-1].epoch if len(known) == limit else None,
    }


def show_plan(ask: Ask) -> Any:
    one = _former(ask.gateway, _number(ask.path["epoch"]))
    return {**_epoch(one), "source": _text(one.source)}


def validate_plan(ask: Ask) -> Any:
    """The same answer as `wardwright check --json`."""
    plan, problems = check_source(ask.gateway, ask.body["source"])
    outcomes: list[Outcome] = []
    if "cases" in ask.body:
        try:
            # A text is told from a path by its line breaks; nothing is read from disk here.
            loaded = load_cases(ask.body["cases"] + "\n")
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            outcomes.extend(play(plan, case) for case in loaded if plan is not None)
    for outcome in outcomes:
        problems.extend(
            Problem(outcome.case.file, outcome.case.line, 1, outcome.case.name, failure) for failure in outcome.failures
        )
    proofs: list[Proof] = []
    if "questions" in ask.body:
        try:
            asked = load_questions(ask.body["questions"] + "\n")
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            proofs.extend(_proved(plan, asked) if plan is not None else ())
    problems.extend(problem for proof in proofs if (problem := unexpected(proof)) is not None)
    return {
        "ok": not any(problem.severity == "error" for problem in problems),
        "plan_hash": None if plan is None else plan.plan_hash,
        "models": [] if plan is None else list(plan.models),
        "rules": 0 if plan is None else rule_count(plan),
        "problems": [problem_json(problem) for problem in problems],
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
    }


def _proved(plan: Plan, asked: Sequence[Question]) -> Iterator[Proof]:
    """Every question of every model, within a bound for all of them together: a gateway that rules has no time to search."""
    left = QUESTION_GATES
    for name in plan.models:
        for question in asked:
            proof = prove(plan, question, model=name, limit=max(1, left))
            left -= proof.gates
            yield proof


def unexpected(proof: Proof) -> Problem | None:
    """What is wrong with an answer; None when it is the one that was expected."""
    question = proof.question
    if proof.verdict == question.expect:
        return None
    why = "; ".join(proof.reasons or [", ".join(step.news) for step in proof.steps])
    wrong = f"expected {question.expect}, got {proof.verdict}" + (f": {why}" if why else "")
    return Problem(question.file, question.line, 1, question.text, wrong)


def show_blind(ask: Ask) -> Any:
    """What a plan, or the one in force, cannot see; the same as `wardwright check --blind --json`."""
    source = ask.body.get("source")
    plan = ask.gateway.plan if source is None else ask.gateway.compile(source.encode("utf-8", "surrogatepass"))
    return {"plan_hash": plan.plan_hash, "blind": [one.as_json() for one in blind(plan)]}


def activate_plan(ask: Ask) -> Any:
    source = ask.body["source"].encode("utf-8", "surrogatepass")
    return _epoch(activate(ask, source, int(ask.body["expected_epoch"]), "activate_plan", {}))


def roll_back(ask: Ask) -> Any:
    """To the plan before the current one, or to a given epoch. It becomes a new epoch: history only grows."""
    gateway = ask.gateway
    expected = int(ask.body["expected_epoch"])
    wanted = int(ask.body.get("epoch", expected - 1))
    if wanted >= expected:
        raise BadRequest("A roll-back goes to an epoch before the current one.")
    former = _former(gateway, wanted)
    return _epoch(activate(ask, former.source, expected, "roll_back_plan", {"to_epoch": former.epoch}))


def activate(ask: Ask, source: bytes, expected_epoch: int, action: str, details: Mapping[str, Any]) -> PlanEpoch:
    """Makes it the plan of every process. ConfigError with all its problems, or why it does not open here, before anything changes."""
    gateway = ask.gateway
    plan = gateway.compile(source)
    current = current_epoch(gateway)
    if current != expected_epoch:
        raise Conflict(f"The plan is at epoch {current}, not {expected_epoch}: look at it again.")
    gateway.opens(source)
    told = {"plan_hash": plan.plan_hash, "from_epoch": current, "note": ask.body.get("note", ""), **details}
    _record(ask, action, plan.plan_hash, told)
    try:
        made = gateway.store.activate(plan.plan_hash, source, gateway.now_ms(), expected_epoch)
    except VersionConflict as error:
        raise Conflict(f"Somebody else was first: {error}. Look at it again.") from None
    _record(ask, "plan_activated", str(made.epoch), {"plan_hash": plan.plan_hash})
    return made


def _record(ask: Ask, action: str, target: str, details: Mapping[str, Any]) -> None:
    now_ms = ask.gateway.now_ms()
    receipt_id = receipts.receipt_id(now_ms, os.urandom(10))
    told = receipts.build_admin(receipt_id, now_ms, Caller(principal=ask.operator), action, target, details)
    ask.gateway.store.commit(Delta(now_ms), receipts.record(told))


def check_source(gateway: Gateway, source: str) -> tuple[Plan | None, list[Problem]]:
    try:
        plan = gateway.compile(source.encode("utf-8", "surrogatepass"))
    except ConfigError as error:
        return None, list(error.problems)
    return plan, list(plan.warnings)


def current_epoch(gateway: Gateway) -> int:
    """0 while the plan of the file is in force and nobody has activated another."""
    current = gateway.store.plan_epoch()
    return 0 if current is None else current.epoch


def rule_count(plan: Plan) -> int:
    return sum(len(rules_of(part)) for part in plan.models.values())


def problem_json(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "path": problem.path,
        "message": problem.message,
        "severity": problem.severity,
    }


def _former(gateway: Gateway, epoch: int) -> PlanEpoch:
    found = gateway.store.plan_epochs(1, epoch + 1)
    if not found or found[0].epoch != epoch:
        raise NotFound(f"There is no plan of epoch {epoch}.")
    return found[0]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise NotFound(f"There is no plan of epoch '{text[:40]}'.")
    return int(text)


def _epoch(one: PlanEpoch) -> dict[str, Any]:
    return {"epoch": one.epoch, "plan_hash": one.plan_hash, "at_ms": one.at_ms}


def _text(source: bytes) -> str:
    return source.decode("utf-8", "replace")


_EXPECTED: Final[Schema] = {**WHOLE, "description": "The epoch that was looked at; another one since is a conflict."}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/wardwright/plans",
        "viewer",
        "The plan in force, and those that were",
        list_plans,
        object_schema(
            ("current", "history", "next_before"),
            current=object_schema(
                ("epoch", "plan_hash", "models", "rules"),
                epoch=WHOLE,
                plan_hash={"type": "string"},
                models={"type": "array", "items": {"type": "string"}},
                rules=WHOLE,
            ),
            history={"type": "array", "items": _EPOCH},
            next_before={"type": ["integer", "null"]},
        ),
        query=(
            Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100}, "At most so many.", 20),
            Parameter("before", WHOLE, "Go on before this epoch."),
        ),
    ),
    Route(
        "POST",
        "/v1/wardwright/plans/validate",
        "viewer",
        "Check a plan, play policy cases against it and prove questions",
        validate_plan,
        object_schema(
            ("ok", "plan_hash", "models", "rules", "problems", "cases", "proofs"),
            ok={"type": "boolean"},
            plan_hash={"type": ["string", "null"]},
            models={"type": "array", "items": {"type": "string"}},
            rules=WHOLE,
            problems={"type": "array", "items": {"type": "object"}},
            cases={"type": "array", "items": {"type": "object"}},
            proofs={"type": "array", "items": {"type": "object"}},
        ),
        body=object_schema(
            ("source",),
            source=SOURCE,
            cases={"type": "string", "description": "Policy cases as YAML."},
            questions={
                "type": "string",
                "description": f"Questions as YAML. {QUESTION_GATES} gates are asked for all of them together; the command has no such bound.",
            },
        ),
        heavy=True,
    ),
    Route(
        "POST",
        "/v1/wardwright/plans/blind",
        "viewer",
        "What a plan cannot see, why, and what to do about it",
        show_blind,
        object_schema(
            ("plan_hash", "blind"),
            plan_hash={"type": "string"},
            blind={
                "type": "array",
                "items": object_schema(
                    ("kind", "what", "why", "do", "model", "rules", "tools"),
                    kind={"type": "string"},
                    what={"type": "string"},
                    why={"type": "string"},
                    do={"type": "string"},
                    model={"type": "string"},
                    rules={"type": "array", "items": {"type": "string"}},
                    tools={"type": "array", "items": {"type": "string"}},
                ),
            },
        ),
        body=object_schema((), source={**SOURCE, "description": "Instead of the plan in force."}),
        errors=(422,),
    ),
    Route(
        "POST",
        "/v1/wardwright/plans/activate",
        "operator",
        "Make a plan the one of every process",
        activate_plan,
        _EPOCH,
        body=object_schema(("source", "expected_epoch"), source=SOURCE, expected_epoch=_EXPECTED, note=NOTE),
        activates=True,
        errors=(409, 422),
    ),
    Route(
        "POST",
        "/v1/wardwright/plans/rollback",
        "operator",
        "Go back to a former plan",
        roll_back,
        _EPOCH,
        body=object_schema(
            ("expected_epoch",),
            expected_epoch=_EXPECTED,
            epoch={**WHOLE, "description": "The one to go back to; the one before the current when not given."},
            note=NOTE,
        ),
        activates=True,
        errors=(404, 409, 422),
    ),
    Route(
        "GET",
        "/v1/wardwright/plans/{epoch}",
        "operator",
        "A plan that was ever activated, with its text",
        show_plan,
        object_schema(
            ("epoch", "plan_hash", "at_ms", "source"),
            epoch=WHOLE,
            plan_hash={"type": "string"},
            at_ms={"type": "integer"},
            source={"type": "string"},
        ),
        errors=(404,),
    ),
)
