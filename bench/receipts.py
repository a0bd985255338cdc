"""What receipts cost with many stored: commits with their indexing, and queries by every filter and by combinations of them.

The store is filled first, which takes minutes at full size. A figure is the best of several rounds; queries show the slowest
of all that were asked, each at its best. Run it alone for trustworthy numbers.
"""

from __future__ import annotations

import gc
import itertools
import random
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from bench._table import Bars
from wardwright import receipts
from wardwright.config import parse_config
from wardwright.gateway import govern
from wardwright.history import Delta, Head, LedgerEntry, ReceiptRow, Registers, ScopeDelta, apply
from wardwright.policy.compile import compile_plan
from wardwright.store import Commit, ReceiptQuery, SqliteStore, verify
from wardwright.wire.turn import Caller, CallItem, DeclaredTool, ResultItem, TextItem, Turn, Usage

PLAN = """
model_id: bench
governance:
  - {id: no-shell, kind: tool_selector, action: deny_call, tool: {namespace: shell, risk_class: irreversible}}
  - {id: loop, kind: tool_loop_threshold, action: switch_model, target_model: m, threshold: 9, tool: {namespace: "*"}}
  - {id: watch, kind: tool_selector, action: annotate, tool: {namespace: browser}}
targets: [{model: m, provider: scripted, context_window: 8000, tools: true}]
"""
RISK = {"shell": "irreversible", "browser": "read_only", "notes": "write", "mail": "external_side_effect"}
STATUSES = ("released", "released", "released", "blocked", "held", "failed")


class Mint:
    """Makes receipts like those of real exchanges, no two alike, from one that went through the gate."""

    def __init__(self) -> None:
        self._rng = random.Random(1)
        self._versions: dict[str, int] = {}
        self.made = 0
        plan = compile_plan(parse_config(PLAN))
        tools = [
            DeclaredTool("shell_exec", "runs", {"type": "object"}),
            DeclaredTool("browser_open", "opens", {"type": "object"}),
        ]
        caller = Caller(tenant="t", application="a", agent="g", user="u", session_id="s", principal="p")
        asked = Turn(
            "request",
            "chat_completions",
            "bench",
            [TextItem("user", "go"), CallItem("a", "browser_open", "{}"), ResultItem("a", "page")],
            tools,
            caller=caller,
        )
        answered = Turn(
            "reply",
            "chat_completions",
            "bench",
            [CallItem("b", "shell_exec", "{}")],
            tools,
            caller=caller,
            usage=Usage(9, 9),
        )
        registers = Registers({}, b"k")
        ruled, delta = govern(plan, registers, asked, 1)
        replied, _ = govern(plan, apply(registers, delta), answered, 2)
        outcome = receipts.Outcome("released", 200, "m")
        self._build = lambda: receipts.build(
            "r",
            [receipts.Judged(asked, ruled, 1), receipts.Judged(answered, replied, 2)],
            outcome,
            receipts.rules_of(plan.models["bench"]),
            b"k",
        )
        self._whole = self._build()

    def build(self) -> receipts.Receipt:
        """The whole receipt anew, as a gateway makes it."""
        return self._build()

    def next(self) -> tuple[Delta, ReceiptRow]:
        self.made += 1
        rng, number = self._rng, self.made
        # Sixteen sessions at a time, six exchanges each.
        place, group = number % 16, number // 96
        session = f"s{group}-{place}"
        tenant, user = (group * 16 + place) % 5, (group * 16 + place) * 7919 % 5_000
        namespace = rng.choice(("shell", "browser", "notes", "mail"))
        named = {
            "namespace": namespace,
            "name": f"tool{rng.randrange(12)}",
            "risk_class": RISK[namespace],
            "tool_call_id": f"call_{rng.getrandbits(96):024x}",
            "arguments_digest": f"{rng.getrandbits(128):032x}",
        }
        whole = self._whole
        gates = [
            gate | {"at_ms": number, "facts": [fact | named for fact in gate["facts"]]}
            for gate in whole["decision"]["gates"]
        ]
        receipt = whole | {
            "id": receipts.receipt_id(number, rng.randbytes(10)),
            "at_ms": number,
            "caller": whole["caller"] | {"tenant": f"t{tenant}", "user": f"u{user}", "session_id": session},
            "decision": whole["decision"] | {"gates": gates},
            "final": whole["final"] | {"status": rng.choice(STATUSES)},
        }
        row = receipts.record(receipt)
        base = self._versions.get(row.scope, 0)
        self._versions[row.scope] = base + 1
        change = ScopeDelta(
            row.scope,
            "session_id",
            base,
            Head(turn=base, event=number, prefix_digest=named["arguments_digest"]),
            {("0123456789abcdef0123456789abcdef", ""): (base, number)},
            {f"c:{named['tool_call_id']}": LedgerEntry("passed", "shell_exec", named["arguments_digest"], base)},
        )
        return Delta(number, (change,)), row


def main(quick: bool = False) -> bool:
    total = 20_000 if quick else 1_000_000
    bars = Bars()
    folder = Path(tempfile.mkdtemp(prefix="bench-receipts-"))
    store = SqliteStore(folder / "store.db", upkeep=False)
    try:
        mint = Mint()
        _fill(store, mint, total)
        # What was made so far is none of the collector's business while commits are timed.
        gc.freeze()
        _commits(bars, store, mint, total, rounds=5, size=640 if quick else 3_200)
        _queries(bars, store, mint, total)
        size = sum(file.stat().st_size for file in folder.iterdir())
        bars.show("bytes on disk per receipt, scopes and postings included", size / mint.made, "B")
        started = perf_counter()
        if quick and not verify(store).good:
            bars.ok = False
        bars.show(
            "the whole chain verified" if quick else "(chain not verified at this size)", perf_counter() - started, "s"
        )
    finally:
        store.close()
        shutil.rmtree(folder)
        gc.unfreeze()
    return bars.ok


def _fill(store: SqliteStore, mint: Mint, total: int) -> None:
    started = perf_counter()
    while mint.made < total:
        store.commit_all([Commit(*mint.next()) for _ in range(min(1_000, total - mint.made))])
        if mint.made % 20_000 == 0:
            store.maintain()
    store.maintain()
    print(f"  {total:,} receipts stored in {perf_counter() - started:.0f} s")


def _commits(bars: Bars, store: SqliteStore, mint: Mint, total: int, rounds: int, size: int) -> None:
    single: list[float] = []
    batched: list[float] = []
    indexing: list[float] = []
    building: list[float] = []
    for _ in range(rounds):
        for figures, batch in ((single, 1), (batched, 32)):
            gc.collect()
            spent = 0.0
            for _ in range(0, size, batch):
                # Made just before, as a gateway would: only the commit is timed.
                made = [Commit(*mint.next()) for _ in range(batch)]
                started = perf_counter()
                if batch == 1:
                    store.commit(made[0].delta, made[0].receipt)
                else:
                    store.commit_all(made)
                spent += perf_counter() - started
            started = perf_counter()
            store.maintain()
            indexed = perf_counter() - started
            figures.append((spent + indexed) / size)
            indexing.append(indexed / size)
        started = perf_counter()
        for _ in range(500):
            receipts.record(mint.build())
        building.append((perf_counter() - started) / 500)
    bars.at_least(f"receipts per second at {total:,}, one commit each, indexed", 1 / min(single), "/s", 4_000)
    bars.at_least(f"receipts per second at {total:,}, 32 to a commit, indexed", 1 / min(batched), "/s", 4_000)
    bars.show("of which indexing, off the path", min(indexing) * 1e6, "µs")
    bars.show("building a receipt of two gates and its tags", min(building) * 1e6, "µs")


def _queries(bars: Bars, store: SqliteStore, mint: Mint, total: int) -> None:
    delta, row = mint.next()
    store.commit(delta, row)
    common: dict[str, list[str]] = {}
    for name, value in row.tags:
        common.setdefault(name, []).append(value)
    common |= {
        "tenant": ["t1"],
        "user": ["u7"],
        "session_id": [f"s{total // 200}-3"],
        "status": ["held"],
        "tool_name": ["tool3"],
    }
    known = store.receipts(ReceiptQuery(before=total // 2, limit=1)).receipts[0]
    common["tool_call_id"] = [value for name, value in known.row.tags if name == "tool_call_id"]
    alone = [{name: values[:1]} for name, values in common.items()] + [{name: ["never"]} for name in common]
    bars.show("one filter, the slowest of all names, found or not", max(_ask(store, tags) for tags in alone), "ms", 5)

    rng = random.Random(2)
    combined = [
        {"tool_namespace": ["shell"], "tool_risk_class": ["read_only"]},
        {"tool_namespace": ["shell", "browser"], "tool_risk_class": ["write", "external_side_effect"]},
        {"status": ["released"], "tool_namespace": ["mail"], "tool_risk_class": ["irreversible"], "kind": ["exchange"]},
    ]
    for width in (2, 3, 5, len(common)):
        for _ in range(25):
            names = rng.sample(sorted(common), width)
            combined.append({name: [*common[name][:1], *(["never"] if rng.random() < 0.3 else [])] for name in names})
    bars.show(f"slowest of {len(combined)} combinations", max(_ask(store, tags) for tags in combined), "ms", 100)
    times = [(total // 2, total // 2 + 50), (0, 10), (total * 2, None), (total // 3, total // 3 + total // 100)]
    slowest = max(
        _ask(store, tags, since, until)
        for tags, (since, until) in itertools.product([{}, *alone[:8], *combined[:12]], times)
    )
    bars.show("slowest with a time range as well", slowest, "ms", 100)


def _ask(store: SqliteStore, tags: dict[str, list[str]], since: int | None = None, until: int | None = None) -> float:
    query = ReceiptQuery(tags=tags, since_ms=since, until_ms=until)
    times: list[float] = []
    for _ in range(3):
        started = perf_counter()
        store.receipts(query)
        times.append(perf_counter() - started)
    return min(times) * 1_000


if __name__ == "__main__":
    sys.exit(0 if main(quick="--quick" in sys.argv) else 1)
