"""The gate. `govern` is pure: simulation, replay and the in-process policy all call it, live serving the `rule` beneath it, and
nothing else.

It gives the ruling and the delta; who serves commits the delta before anything is released. An engine that fails raises
`GovernanceUnavailable`: nothing passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from wardwright.errors import GovernanceUnavailable, WardwrightError
from wardwright.facts import Phase, ToolFact, text_digest
from wardwright.history import (
    EMPTY_SCOPE,
    Delta,
    Head,
    LedgerEntry,
    LedgerStatus,
    Observed,
    Registers,
    ScopeDelta,
    ScopeState,
    scope_key,
)
from wardwright.history.observer import MAX_PINNED
from wardwright.history.requests import (
    BOUND_BY_REPLY,
    CHANGED_TOOLS,
    EVERY_TOOL,
    MAX_NAME,
    MAX_STRIPPED,
    REQUESTS,
    Fields,
    RequestRecord,
    capped,
    put,
)
from wardwright.policy.arbitrate import arbitrate, transformed
from wardwright.policy.compile import ModelPlan, Plan
from wardwright.policy.evaluate import BOUND, Run, answered, bound_routes, evaluate, set_aside, unwind
from wardwright.policy.rules import CallRuling, Ruling
from wardwright.wire.turn import ResultItem, Turn

JUDGED = "judged"
"""Name of a request that is known by its facts only."""
MAX_LAST_IDS = 64
"""Call ids of a released reply that the next transcript is compared with, to note what it leaves out."""
ROUTES = frozenset({"restrict_routes", "switch_model", "reroute"})

_head: Callable[[tuple[Any, ...]], Head] = partial(cast("Any", tuple).__new__, Head)
"""Makes a head of all its fields, in their order, in little more than half the time; every gate makes one."""


def scopes_of(plan: Plan, turn: Turn) -> tuple[str, ...]:
    """Keys of the scopes that judging this turn reads; the session's first. What `Store.load` is asked for."""
    return tuple(scope_key(kind, turn.caller) for kind in model_plan(plan, turn).scopes)


def model_plan(plan: Plan, turn: Turn) -> ModelPlan:
    """The part of the plan that governs a turn's model."""
    found = plan.models.get(turn.model) or plan.model(turn.model)
    if found is None:
        raise GovernanceUnavailable(f"No plan governs model '{turn.model}'.")
    return found


def govern(plan: Plan, registers: Registers, turn: Turn, now: int) -> tuple[Ruling, Delta]:
    """Rules on one turn at one gate. Reads nothing but its arguments and changes none of them."""
    try:
        part = plan.models.get(turn.model) or model_plan(plan, turn)
        scope = scope_key("session_id", turn.caller)
    except WardwrightError:
        raise
    except Exception as error:
        # INVARIANT: G19, nor does a turn pass of which nobody can say whose it is.
        raise GovernanceUnavailable("The policy engine failed, so nothing passes.") from error
    return rule(part, registers.scopes, registers.key, turn, now, scope)


def rule(
    part: ModelPlan, scopes: Mapping[str, ScopeState], secret: bytes, turn: Turn, now: int, scope: str
) -> tuple[Ruling, Delta]:
    """As `govern`, for whoever has found its parts already: `scope` is the session's key."""
    try:
        observed = part.observer.observe(turn, scopes.get(scope, EMPTY_SCOPE), secret)
        return _decide(part, scopes, secret, turn, observed, now, scope)
    except WardwrightError:
        raise
    except Exception as error:
        # INVARIANT: G19, an engine that fails is closed; the cause is kept for the operator.
        raise GovernanceUnavailable("The policy engine failed, so nothing passes.") from error


def judge(
    plan: Plan,
    registers: Registers,
    turn: Turn,
    facts: Sequence[ToolFact],
    now: int,
    *,
    user_turns: Sequence[int] = (),
    phase: Phase | None = None,
) -> tuple[Ruling, Delta]:
    """As `govern`, on facts that were observed before (a stored receipt, a case file); of the turn's items only text is read.

    `user_turns`: for every new user text, the number of facts before it. `phase`: of a request, when it is known."""
    try:
        part = model_plan(plan, turn)
        phases = [fact.phase for fact in facts if fact.source != "inferred"]
        observed = Observed([replace(fact) for fact in facts], part.observer.surface(turn.tools))
        observed.user_turns = tuple(user_turns)
        # What the ledger would have learnt: later results are known by the calls they answer.
        status: LedgerStatus = "passed" if turn.gate == "reply" else "observed"
        for fact in facts:
            if fact.source == "assistant_tool_call" and fact.tool_call_id:
                entry = LedgerEntry(status, fact.raw_name, fact.arguments_digest, 0, False, "forged" in fact.marks)
                observed.ledger[f"c:{fact.tool_call_id}"] = entry
        scope = scope_key("session_id", turn.caller)
        if turn.gate != "request":
            session = registers.scopes.get(scope, EMPTY_SCOPE)
            observed.phase = cast("Phase", session.head.phase)
            part.observer.asked(turn, session, observed)
        elif phase is not None:
            observed.phase = phase
        elif phases and phases[-1] == "result_interpretation":
            observed.phase = "result_interpretation"
        observed.repairing = tuple(
            fact.raw_name for fact in facts if fact.source == "inferred" and fact.phase == "argument_repair"
        )
        return _decide(part, registers.scopes, registers.key, turn, observed, now, scope)
    except WardwrightError:
        raise
    except Exception as error:
        # INVARIANT: G19, an engine that fails is closed; the cause is kept for the operator.
        raise GovernanceUnavailable("The policy engine failed, so nothing passes.") from error


def _decide(
    part: ModelPlan,
    scopes: Mapping[str, ScopeState],
    secret: bytes,
    turn: Turn,
    observed: Observed,
    now: int,
    scope: str,
) -> tuple[Ruling, Delta]:
    run = Run(part, scopes, secret, turn, observed, now, scope)
    evaluate(run)
    ruling = arbitrate(run)
    through = not run.findings or passes(ruling)
    if run.conditional:
        unwind(run, through)
    gate, session, plan_hash = run.gate, run.session, part.plan_hash
    old = session.head
    started, last_plan, last_plan_since = old[11:14]  # since_ms, plan_hash, plan_since_ms
    # The changed surface is an event once, when a request with it passes.
    event = session.event + (run.events if through else run.events - observed.surface_changed)
    since = started or now
    plan_since = last_plan_since if last_plan == plan_hash else now
    if gate == "request":
        ruling.request = observed.transcript_digest
        head = _asked(run, ruling, through, event, since, plan_since)
    elif gate == "reply":
        if through and part.wider:
            answered(run)
        head = _replied(run, ruling, through, event, since, plan_since)
    else:
        head = old._replace(event=event, since_ms=since, plan_hash=plan_hash, plan_since_ms=plan_since)
    ruling.states = part.initial
    if run.touched:
        ruling.states = states = dict(part.initial)
        for name in run.touched:
            state = states[name] = run.state(name, -1)
            if state not in part.machines[name].states:
                ruling.notes = (*ruling.notes, "unknown_state")
    ledger = observed.ledger
    if ledger and (run.findings or gate != "reply"):  # else all of a reply has passed, as the observer wrote
        ledger = _ledger(run, ruling, through)
    # Filled by hand, here and below: a class that is called takes twice as long.
    change = ScopeDelta.__new__(ScopeDelta)
    change.scope = scope
    change.kind = "session_id"
    change.base_version = session.version
    change.head = head
    change.registers = session.changes
    change.ledger = ledger
    changes = (change,)
    if part.wider:
        changes += tuple(_wider(run, head))
    facts = observed.facts
    if run.events - observed.surface_changed < len(facts):  # some were seen before
        facts = [fact for fact in facts if not fact.repeat]
    delta = Delta.__new__(Delta)
    delta.at_ms = now
    delta.scopes = changes
    delta.facts = tuple(facts)
    return ruling, delta


def passes(ruling: Ruling) -> bool:
    """Whether anything of this turn goes on."""
    if ruling.reask:
        return False
    if ruling.decision == "allow":
        return True
    if ruling.decision != "deny_call":
        return False
    # Partly denied: it goes on unless all calls were denied or one of them waits for an approval.
    statuses = {call.status for call in ruling.calls}
    return "require_approval" not in statuses and ("allow" in statuses or ruling.gate == "result")


def _wider(run: Run, head: Head) -> Iterator[ScopeDelta]:
    """What changes in the scopes beside the session's."""
    session = run.session
    for kind in run.plan.wider:
        scope = run.scopes[kind]
        old = scope.head
        moved = old._replace(
            turn=head.turn - session.turn + scope.turn,
            event=head.event - session.event + scope.event,
            since_ms=old.since_ms or run.now,
            plan_hash=head.plan_hash,
            plan_since_ms=old.plan_since_ms if old.plan_hash == head.plan_hash else run.now,
        )
        if scope.changes or moved != old:
            yield ScopeDelta(scope.key, kind, scope.version, moved, scope.changes)


def _asked(run: Run, ruling: Ruling, through: bool, event: int, since: int, plan_since: int) -> Head:
    """The head after a request; and what is kept of one that passes."""
    session, observed, plan = run.session, run.observed, run.plan
    old, whole = session.head, observed.transcript_digest
    if not through:
        return old._replace(
            event=event,
            since_ms=since,
            plan_hash=plan.plan_hash,
            plan_since_ms=plan_since,
            last_digest=whole,
            spoken=run.issued,
        )
    if observed.pins:
        session.changes.update(observed.pins)
    if plan.reserves:
        set_aside(run)
    repairing = capped(observed.repairing) if observed.repairing else ()
    _record_request(run, ruling, repairing)
    turn = session.turn
    return _head(
        (
            turn,
            event,
            len(run.turn.items),
            whole,
            plan.rules.text_hash,
            run.text_hits,
            observed.surface.digest,
            observed.phase,
            repairing,
            old.last_ids,
            ruling.bundles,
            since,
            plan.plan_hash,
            plan_since,
            old.user_turns,
            whole,
            observed.news_from,
            observed.news_turn,
            turn,
            _changed(old, observed) if observed.changed or old.changed else (),
            run.issued,
            observed.words_from,
        )
    )


def _replied(run: Run, ruling: Ruling, through: bool, event: int, since: int, plan_since: int) -> Head:
    """The head after a reply; and what it leaves for the next request, or for the next reply to the same one."""
    observed = run.observed
    # Not field by field, nor by `_replace`: this takes a third of the time.
    (
        turn, _, prefix_length, prefix_digest, text_rules, text_hits, surface_digest, phase, repairing, last_ids, _, _, _, _,
        user_turns, last_digest, news_from, news_turn, asked_turn, changed, spoken, words_from,
    ) = run.session.head  # fmt: skip
    failed: list[str] = []
    for fact in observed.facts:
        if fact.invalid_arguments:
            failed.append(fact.raw_name)  # noqa: PERF401 - there are few, mostly none
    flags = 0
    if through:
        turn, last_ids, user_turns = turn + 1, _last_ids(ruling), run.words
        for record in observed.answers:
            flags |= record.flags
    if flags & BOUND_BY_REPLY or ruling.binds_next:
        _bind(run, ruling, flags)
    if flags & CHANGED_TOOLS:
        changed = ()
    if failed:
        repairing = capped(tuple(dict.fromkeys((*repairing, *failed))))
    if (failed or ruling.bundles) and observed.answers:
        _record_reply(run, ruling, failed)
    return _head(
        (
            turn,
            event,
            prefix_length,
            prefix_digest,
            text_rules,
            text_hits,
            surface_digest,
            phase,
            repairing,
            last_ids,
            ruling.bundles,
            since,
            run.plan.plan_hash,
            plan_since,
            user_turns,
            last_digest,
            news_from,
            news_turn,
            asked_turn,
            changed,
            spoken,
            words_from,
        )
    )


def _last_ids(ruling: Ruling) -> tuple[str, ...]:
    calls: Sequence[CallRuling] = ruling.calls
    if ruling.decision != "allow":
        calls = [call for call in calls if call.status == "allow"]
    elif len(calls) == 1:
        return (calls[0].call_id,)
    return tuple([call.call_id for call in calls[:MAX_LAST_IDS]])


def _changed(old: Head, observed: Observed) -> tuple[str, ...]:
    """Tools whose changed definition no released reply has answered yet."""
    surface = observed.surface
    names = dict.fromkeys(name for name in old.changed if name not in surface.names)
    names.update(dict.fromkeys(surface.kept[fact.raw_name] for fact in observed.changed))
    return tuple(names) if len(names) <= MAX_PINNED else (EVERY_TOOL,)


def _record_request(run: Run, ruling: Ruling, repairing: tuple[str, ...]) -> None:
    """What the reply to this request will be judged by."""
    session, observed = run.session, run.observed
    flags = BOUND_BY_REPLY if run.bound else 0
    if observed.changed:
        flags |= CHANGED_TOOLS
    # A plain tuple will do: it is written down at once.
    record: Fields = (
        observed.transcript_digest or JUDGED,
        session.turn,
        observed.news_from,
        observed.news_turn,
        flags,
        run.words,
        run.first_word,
        observed.phase,
        ruling.bundles,
        repairing,
        _stripped(run, ruling) if ruling.stripped or ruling.withheld_server_tools else (),
    )
    before = observed.before
    if before is not None and before.turn == session.turn:
        # The same transcript twice, and no reply yet: whichever is answered first meets what either would.
        again = RequestRecord(*record)
        record = again._replace(
            flags=before.flags | again.flags,
            bundles=tuple(dict.fromkeys((*before.bundles, *again.bundles))),
            repairing=capped(tuple(dict.fromkeys((*before.repairing, *again.repairing)))),
            stripped=_merged(before.stripped, again.stripped),
        )
    # Who observed a turn has looked for its name; nobody has for facts that were stored.
    new = before is None and observed.turn is not None
    session.changes[REQUESTS] = put(session.registers.get(REQUESTS), record, new)


def _record_reply(run: Run, ruling: Ruling, failed: Sequence[str]) -> None:
    """What a reply adds for the next one to the same request."""
    session = run.session
    before = run.observed.answers[-1]
    after = before._replace(
        bundles=tuple(dict.fromkeys((*before.bundles, *ruling.bundles))),
        repairing=capped(tuple(dict.fromkeys((*before.repairing, *failed)))),
    )
    if after != before:
        session.put(REQUESTS, put(session.registers.get(REQUESTS), after))


def _merged(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    pairs = dict(zip(first[::2], first[1::2], strict=True)) | dict(zip(second[::2], second[1::2], strict=True))
    return tuple(word for pair in pairs.items() for word in pair)


def _stripped(run: Run, ruling: Ruling) -> tuple[str, ...]:
    """Pairs of a raw name that the provider will not see and the rule that takes it away."""
    names = (*ruling.stripped, *ruling.withheld_server_tools)
    rules: dict[str, str] = {}
    first = ""
    for finding in ruling.findings:
        if finding.effect not in ("strip_tools", "set_controls") or not finding.enforced or finding.lifted:
            continue
        first = first or finding.rule_id
        for index in finding.facts:
            rules.setdefault(run.facts[index].raw_name, finding.rule_id)
        for tool in finding.evidence.get("blocked_tools", ()):
            rules.setdefault(tool["raw_name"], finding.rule_id)
        for name in finding.evidence.get("withheld_server_tools", ()):
            rules.setdefault(name, finding.rule_id)
    if len(names) > MAX_STRIPPED or any(len(name) > MAX_NAME for name in names):
        return (EVERY_TOOL, first)
    return tuple(word for name in names for word in (name, rules.get(name, first)))


def _bind(run: Run, ruling: Ruling, flags: int) -> None:
    """Route rules of a reply that came too late bind the next request, until a reply to it is released."""
    session = run.session
    if flags & BOUND_BY_REPLY:
        session.put(BOUND, None)
    if ruling.binds_next:
        # With the routes themselves: what is bound stays bound when the plan changes meanwhile.
        # And with what another reply has bound that was under way at the same time.
        bound = bound_routes(session) | {
            finding.rule_id: (finding.effect, finding.action.target_model, *finding.action.routes)
            for finding in ruling.findings
            if finding.effect in ROUTES and finding.enforced and not finding.lifted
        }
        session.put(BOUND, tuple([word for name, one in bound.items() for word in (name, len(one), *one)]))


_STATUS: dict[str, LedgerStatus] = {
    "allow": "passed",
    "deny_call": "denied",
    "block": "denied",
    "require_approval": "held",
}


def _waits(ruling: Ruling) -> bool:
    """Whether the whole reply is held with what waits for an approval in it."""
    waiting = not ruling.reask and any(one.status == "require_approval" for one in ruling.calls)
    return waiting or ruling.decision == "require_approval"


def _ledger(run: Run, ruling: Ruling, through: bool) -> dict[str, LedgerEntry]:
    observed: Observed = run.observed
    entries = observed.ledger
    if run.gate == "reply":
        for call in ruling.calls:
            name = f"c:{call.call_id}"
            if name not in entries:
                continue  # judged from stored facts: the ledger learns nothing
            status: LedgerStatus = _STATUS[call.status]
            if status == "passed" and not through:
                # Nothing of this reply is released: it is held with the calls that wait, or asked again elsewhere.
                status = "held" if _waits(ruling) else "denied"
            if status != "passed":
                entries[name] = entries[name]._replace(status=status)
                numbered = f"n:{call.call_id[5:25]}"
                if not call.provider_id and numbered in entries:
                    # The caller will not see this call, so the next equal one is the one that it will see in its place.
                    number = entries[numbered].turn - 1
                    entries[numbered] = LedgerEntry("held" if status == "held" else "passed", call.name, "", number)
        if not through:
            hosted: LedgerStatus = "held" if _waits(ruling) else "denied"
            for name, entry in entries.items():
                if name[0] in "hs":
                    entries[name] = entry._replace(status=hosted)
        return entries
    if not through:
        return {name: entry if entry.refused else entry._replace(refused=True) for name, entry in entries.items()}
    for name, entry in entries.items():
        if entry.refused:
            entries[name] = entry._replace(refused=False)
    if run.gate == "result":
        for call in ruling.calls:
            name = f"r:{call.call_id}"
            if name in entries and (call.status != "allow" or ruling.transforms):
                # The caller gets our error, or a changed text: that, and nothing else, is what its transcript will honestly show.
                item = run.turn.items[call.item] if 0 <= call.item < len(run.turn.items) else None
                shown = call.message if call.status != "allow" else ""
                if call.status == "allow" and isinstance(item, ResultItem):
                    shown = transformed(ruling, call.item, item.content)
                    if shown == item.content:
                        continue
                entries[name] = entries[name]._replace(status="denied", digest=text_digest(observed.key, shown))
    return entries


__all__ = ["govern", "judge", "model_plan", "passes", "rule", "scopes_of"]
