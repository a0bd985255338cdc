"""A process that writes to a store: `count`, `turns` or `killed`, for the tests that need several of them."""

from __future__ import annotations

import os
import random
import signal
import sys

from wardwright import receipts
from wardwright.errors import VersionConflict
from wardwright.history import Delta, Head, LedgerEntry, ScopeDelta
from wardwright.store import PostgresStore, SqliteStore, Store
from wardwright.wire.turn import Caller

SESSION = "session_id\x1facme\x1fs"


def opened(where: str) -> Store:
    """A path, or `schema@address`."""
    schema, _, address = where.partition("@")
    return PostgresStore(address, schema=schema) if address else SqliteStore(where)


def step(store: Store) -> int:
    """Counts one further; the number reached."""
    while True:
        state = store.load([SESSION], lambda _: ())[SESSION]
        reached = int(state.registers.get(("count", ""), (0,))[0] or 0) + 1
        change = ScopeDelta(
            SESSION,
            "session_id",
            state.version,
            Head(turn=reached),
            {("count", ""): (reached,)},
            {f"c:{reached}": LedgerEntry("passed", "t", "d", reached)},
        )
        caller = Caller(tenant="acme", session_id="s")
        receipt = receipts.build_admin(f"r{reached}", reached, caller, "count", str(reached))
        try:
            store.commit(Delta(reached, (change,)), receipts.record(receipt))
        except VersionConflict:
            continue
        return reached


def count(where: str, steps: str) -> None:
    store = opened(where)
    for _ in range(int(steps)):
        print(step(store))
    store.close()


def turns(where: str) -> None:
    store = opened(where)
    for line in sys.stdin:
        reached = step(store)
        assert reached == int(line) + 1, f"missed a fact: {reached} after {line}"
        print(reached, flush=True)
    store.close()


def killed(where: str, times: str) -> None:
    """Starts a writer, kills it after a few acknowledged commits, and again; prints how many were acknowledged."""
    rng = random.Random(7)
    acknowledged = 0
    for _ in range(int(times)):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            store = opened(where)
            while True:
                reached = step(store)
                os.write(writing, b".")
                if reached % 5 == 0:
                    store.maintain()
        os.close(writing)
        for _ in range(rng.randrange(1, 12)):
            acknowledged += len(os.read(reading, 1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        acknowledged += len(os.read(reading, 1 << 16))
        os.close(reading)
    print(acknowledged)


if __name__ == "__main__":
    {"count": count, "turns": turns, "killed": killed}[sys.argv[1]](*sys.argv[2:])
