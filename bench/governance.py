"""What one decision costs: facts to ruling, bytes to ruling, text rules per kilobyte, and whether history length shows.

Best of several interleaved rounds; the bars are printed beside the figures. Run it alone for trustworthy numbers.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace

import orjson
import yaml

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


def request_body() -> bytes:
    """A chat request of about five kilobytes whose transcript holds seven new tool events."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are a careful assistant. " * 20},
        {"role": "user", "content": "Please look at the page and tidy up my notes. " * 10},
    ]
    names = ["browser_open", "ns3.tool1", "read_file"]
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
        for name in [*names, "shell_exec", "write_file", "send_email"]
    ]
    choice = {"type": "function", "function": {"name": "read_file"}}
    return orjson.dumps({"model": "m", "messages": messages, "tools": tools, "tool_choice": choice})


def lower(body: bytes) -> Turn:
    """Bytes to a turn, by the wire module."""
    turn = parse_request(body)
    turn.caller = CALLER
    return turn


def best(rounds: int, loops: int, *functions: Callable[[], object]) -> list[float]:
    """Best time per call in microseconds, functions interleaved."""
    results = [float("inf")] * len(functions)
    for _ in range(rounds):
        for index, function in enumerate(functions):
            begin = time.perf_counter()
            for _ in range(loops):
                function()
            results[index] = min(results[index], (time.perf_counter() - begin) / loops * 1e6)
    return results


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
    """Facts to ruling: what is timed is evaluate and arbitrate, on freshly observed facts."""
    part = plan.model("m")
    assert part is not None
    state = registers.scopes.get(scope_key("session_id", CALLER), ScopeState(0, Head()))
    observed = part.observer.observe(turn, state, KEY)

    def decide() -> object:
        run = Run(part, registers, turn, observed, 5)
        evaluate(run)
        return arbitrate(run)

    return decide


def main() -> None:
    """Prints every figure with its bar."""
    gc.collect()
    gc.freeze()  # as the server does once it has started
    gc.set_threshold(50_000, 50, 100)
    print("governance: microseconds per decision (best of interleaved rounds)")
    empty = Registers(key=KEY)
    turn = seven_facts()
    for count, bar in ((10, None), (100, 30), (1000, 90)):
        plan = make_plan(count)
        facts, whole = best(200, 15, from_facts(plan, empty, turn), lambda plan=plan: govern(plan, empty, turn, 5))
        print(f"  7 facts, {count:5d} rules: facts to ruling {facts:6.1f}   govern {whole:6.1f}   bar {bar or '-'}")
    plan = make_plan(100)
    sizes = (1_000, 100_000, 1_000_000)
    holders = [with_facts(plan, size) for size in sizes]
    times = best(200, 15, *[lambda held=held: govern(plan, held, turn, 5) for held in holders])
    for size, figure in zip(sizes, times, strict=True):
        print(f"  after {size:9,d} facts: govern {figure:6.1f}   ratio {figure / times[0]:.2f}   bar 1.20")
    del holders
    body = request_body()
    known = lower(body)
    bytes_time, turn_time = best(
        200, 15, lambda: govern(plan, empty, lower(body), 5), lambda: govern(plan, empty, known, 5)
    )
    print(
        f"  bytes of a request of {len(body)} B: to ruling {bytes_time:6.1f}   (from the turn {turn_time:.1f})   bar 80"
    )
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
    longer = orjson.dumps(document)
    (figure,) = best(200, 15, lambda: govern(plan, registers, lower(longer), 7))
    print(f"  the next request of that session, {len(longer)} B, one new result: to ruling {figure:6.1f}")
    text = "The quick brown fox jumps over the lazy dog; nothing to see here. " * 80
    for count in (10, 100):
        patterns = PatternSet([(rf"secret{number}|token-[0-9]+x{number}", True) for number in range(count)])
        (figure,) = best(200, 15, lambda patterns=patterns: patterns.search(text))
        print(f"  {count:4d} text rules: {figure / (len(text) / 1024):5.2f} per KB   bar 5")


if __name__ == "__main__":
    main()
