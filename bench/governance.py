"""What one decision costs: facts to ruling, bytes to ruling, text rules per kilobyte, and whether history length shows.

Best of several interleaved rounds; the bars are printed beside the figures. Run it alone for trustworthy numbers.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import orjson
import yaml

from bench._table import Bars, best, interleaved, median_ratio
from wardwright.config import parse_config
from wardwright.gateway import govern
from wardwright.history import Head, LedgerEntry, Registers, ScopeState, apply, scope_key
from wardwright.policy.arbitrate import arbitrate
from wardwright.policy.compile import Plan, compile_plan
from wardwright.policy.evaluate import Run, evaluate
from wardwright.wire import Caller, CallItem, Turn
from wardwright.wire.chat_completions import parse_request
from wardwright.wire.linear import PatternSet

NAMESPACES = ("browser", "shell", "mcp.github", "mcp.mail", "filesystem", "database", "calendar", "search")
CALLER = Caller(session_id="bench")
KEY = b"bench-key"


def make_plan(count: int) -> Plan:
    """A mixed plan: selectors, loops, sequences, state-scoped and argument rules over many namespaces."""
    rules: list[dict[str, object]] = []
    for number in range(count):
        namespace = f"{NAMESPACES[number % 8]}" if number % 5 == 0 else f"ns{number % 97}"
        common: dict[str, object] = {"id": f"r{number}"}
        match number % 6:
            case 0:
                rule = {
                    "kind": "tool_selector",
                    "action": "annotate",
                    "tool": {"namespace": namespace, "risk_class": "write"},
                }
            case 1:
                rule = {
                    "kind": "tool_loop_threshold",
                    "action": "deny_call",
                    "threshold": 1_000_000_000,
                    "tool": {"namespace": namespace, "phase": "planning"},
                }
            case 2:
                rule = {
                    "kind": "tool_sequence",
                    "after": {"tool": {"namespace": namespace, "phase": "result_interpretation"}},
                    "then": {
                        "action": "deny_call",
                        "tool": {"namespace": f"ns{(number * 7) % 97}", "phase": "planning"},
                    },
                    "until": {"user_turn": True},
                }
            case 3:
                rule = {
                    "kind": "tool_selector",
                    "action": "block",
                    "state_scope": "locked",
                    "tool": {"namespace": namespace, "phase": "planning"},
                }
            case 4:
                rule = {
                    "kind": "tool_selector",
                    "action": "deny_call",
                    "tool": {"namespace": namespace, "name": f"tool{number % 13}*", "phase": "planning"},
                }
            case _:
                rule = {
                    "kind": "tool_selector",
                    "action": "deny_call",
                    "tool": {"namespace": namespace, "arguments": {"/path": {"glob": "/etc/*"}}, "phase": "planning"},
                }
        rules.append(common | rule)
    rules.append(
        {
            "id": "lock",
            "kind": "tool_selector",
            "action": "transition",
            "transition_to": "locked",
            "tool": {"namespace": "never"},
        }
    )
    document = {
        "state_machine": {"initial_state": "active", "states": [{"id": "active"}, {"id": "locked"}]},
        "governance": rules,
    }
    return compile_plan(parse_config(yaml.safe_dump(document)))


def seven_facts() -> Turn:
    """A reply with seven calls."""
    names = (
        "browser_open",
        "shell_exec",
        "mcp__github__create_issue",
        "read_file",
        "ns3.tool1",
        "ns11.tool5",
        "ns42.tool9",
    )
    items = [CallItem(f"call_{n}", name, f'{{"path":"/home/me/notes.txt","n":{n}}}') for n, name in enumerate(names)]
    return Turn("reply", "chat_completions", "m", items, caller=CALLER)


def request_body(names: Sequence[str], more_tools: Sequence[str] = (), words: int = 20, choice: str = "") -> bytes:
    """A chat request that declares the named tools and whose transcript holds a call of each of `names`, with its result."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are a careful assistant. " * words},
        {"role": "user", "content": "Please look at the page and tidy up my notes. " * 10},
    ]
    for number, name in enumerate(names):
        arguments = orjson.dumps({"path": f"/home/me/{number}.txt", "mode": "r"}).decode()
        call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": f"c{number}", "content": "The content of the file, line by line. " * 12}
        )
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Does one thing well.",
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string"}, "mode": {"type": "string"}},
                },
            },
        }
        for name in [*names, *more_tools]
    ]
    forced = {"tool_choice": {"type": "function", "function": {"name": choice}}} if choice else {}
    return orjson.dumps({"model": "m", "messages": messages, "tools": tools, **forced})


def lower(body: bytes) -> Turn:
    """Bytes to a turn, by the wire module."""
    turn = parse_request(body)
    turn.caller = CALLER
    return turn


def with_facts(plan: Plan, count: int) -> Registers:
    """Registers of a session that has seen `count` facts: as many ledger entries, and every counter in use."""
    registers = Registers(key=KEY)
    for _ in range(3):
        registers = apply(registers, govern(plan, registers, seven_facts(), 1)[1])
    scope = scope_key("session_id", CALLER)
    state = registers.scopes[scope]
    entries = state.ledger.mutate()
    for number in range(count):
        entries[f"c:call-{number:08d}"] = LedgerEntry("passed", "browser_open", f"{number:032x}", number)
    head = state.head._replace(turn=count // 7, event=count)
    return replace(registers, scopes={scope: ScopeState(state.version, head, state.registers, entries.finish())})


def from_facts(plan: Plan, registers: Registers, turn: Turn) -> Callable[[], object]:
    """Facts to ruling: what is timed is evaluate and arbitrate. The facts are observed, and their arguments parsed, once."""
    part = plan.model("m")
    assert part is not None
    scope = scope_key("session_id", CALLER)
    state = registers.scopes.get(scope, ScopeState(0, Head()))
    observed = part.observer.observe(turn, state, KEY)

    def decide() -> object:
        run = Run(part, registers.scopes, registers.key, turn, observed, 5, scope)
        evaluate(run)
        return arbitrate(run)

    return decide


def windowed(threshold: int) -> Callable[[], object]:
    """A reply with one call, under a windowed loop whose window is full of earlier calls."""
    rule = {
        "id": "loop",
        "kind": "tool_loop_threshold",
        "action": "deny_call",
        "threshold": threshold,
        "within": {"events": 10 * threshold},
        "tool": {"namespace": "browser"},
    }
    plan = compile_plan(parse_config(yaml.safe_dump({"governance": [rule]})))
    registers = Registers(key=KEY)
    for number in range(threshold + 5):
        reply = Turn("reply", "chat_completions", "m", [CallItem(f"c{number}", "browser_open", "{}")], caller=CALLER)
        registers = apply(registers, govern(plan, registers, reply, 1)[1])
    last = Turn("reply", "chat_completions", "m", [CallItem("last", "browser_open", "{}")], caller=CALLER)
    return partial(govern, plan, registers, last, 2)


def fresh_names(plan: Plan, empty: Registers) -> Callable[[], object]:
    """Seven calls of tools nobody has seen before: nothing that is remembered about names helps."""
    numbers = itertools.count()

    def decide() -> object:
        items = [CallItem(f"call_{n}", f"ns{n}.tool{next(numbers)}", "{}") for n in range(7)]
        return govern(plan, empty, Turn("reply", "chat_completions", "m", items, caller=CALLER), 5)

    return decide


def main(quick: bool = False) -> bool:
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # as the server does once it has started
    gc.set_threshold(50_000, 50, 100)
    try:
        return _measure(quick)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _measure(quick: bool) -> bool:
    bars = Bars()
    rounds = 40 if quick else 200
    empty = Registers(key=KEY)
    turn = seven_facts()
    for count, bar in ((10, None), (100, 30), (1_000, 90)):
        plan = make_plan(count)
        times = interleaved(
            {"facts": from_facts(plan, empty, turn), "whole": partial(govern, plan, empty, turn, 5)},
            batch=15,
            rounds=rounds,
        )
        bars.show(f"7 facts to a ruling, {count:,} rules, best", best(times["facts"]), "µs", bar)
        bars.show(f"the whole of govern, {count:,} rules, best", best(times["whole"]), "µs")

    plan = make_plan(100)
    sizes = {"1k": 1_000, "100k": 20_000 if quick else 100_000, "1M": 100_000 if quick else 1_000_000}
    print(f"  after earlier facts: {', '.join(f'{name} = {size:,}' for name, size in sizes.items())}")
    subjects = {name: partial(govern, plan, with_facts(plan, size), turn, 5) for name, size in sizes.items()}
    times = interleaved(subjects, batch=15, rounds=rounds)
    for name in sizes:
        bars.show(f"govern after {name}, best", best(times[name]), "µs")
    bars.show("1M / 1k, median of rounds", median_ratio(times, "1M", "1k"), "×", 1.2)
    del subjects

    loops = {f"{threshold:,}": windowed(threshold) for threshold in (10, 1_000)}
    times = interleaved(loops, batch=15, rounds=rounds)
    bars.show("one call under a full windowed loop of 10, best", best(times["10"]), "µs")
    bars.show("a windowed loop of 1,000 / one of 10, median of rounds", median_ratio(times, "1,000", "10"), "×", 2)
    times = interleaved({"fresh": fresh_names(plan, empty)}, batch=15, rounds=rounds)
    bars.show("7 calls of tools never seen before, 100 rules, best", best(times["fresh"]), "µs")

    # Seven facts: three declared tools, two calls, two results.
    body = request_body(["browser_open", "read_file"], ["ns3.tool1"], words=95)
    # Thirteen: six declared tools and, all new at once, three calls, three results and a forced choice.
    busy = request_body(
        ["browser_open", "ns3.tool1", "read_file"], ["shell_exec", "write_file", "send_email"], choice="read_file"
    )
    registers, longer = _next_request(plan, empty, busy)
    times = interleaved(
        {
            "seven": lambda: govern(plan, empty, lower(body), 5),
            "busy": lambda: govern(plan, empty, lower(busy), 5),
            "next": lambda: govern(plan, registers, lower(longer), 7),
        },
        batch=15,
        rounds=rounds,
    )
    bars.show(f"from the bytes of a request of {len(body):,} B, 7 facts, best", best(times["seven"]), "µs", 80)
    bars.show(f"from {len(busy):,} B, 13 facts, 7 of them new events, best", best(times["busy"]), "µs")
    bars.show(f"from the bytes of the request after that, {len(longer):,} B, best", best(times["next"]), "µs")

    text = "The quick brown fox jumps over the lazy dog; nothing to see here. " * 80
    for count in (10, 100):
        patterns = PatternSet([(rf"secret{number}|token-[0-9]+x{number}", True) for number in range(count)])
        searched = interleaved({"text": partial(patterns.search, text)}, batch=15, rounds=rounds)
        bars.show(f"{count} text rules over a kilobyte, best", best(searched["text"]) / (len(text) / 1024), "µs", 5)
    return bars.ok


def _next_request(plan: Plan, empty: Registers, body: bytes) -> tuple[Registers, bytes]:
    """What is known after that request and its reply, and the request that follows with one new result."""
    registers = apply(empty, govern(plan, empty, lower(body), 5)[1])
    registers = apply(registers, govern(plan, registers, seven_facts(), 6)[1])
    document = orjson.loads(body)
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "browser_open", "arguments": '{"path":"/home/me/notes.txt","n":0}'},
    }
    document["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "one more page"},
    ]
    return registers, orjson.dumps(document)


if __name__ == "__main__":
    sys.exit(0 if main(quick="--quick" in sys.argv) else 1)
