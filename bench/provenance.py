"""What provenance costs: indexing a page, and a decision after many values were seen.

Best of several rounds, in time of the processor; the bars are printed beside the figures.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from time import process_time

import orjson

from bench._table import Bars
from wardwright.config import parse_config
from wardwright.gateway import govern
from wardwright.history import Registers, apply
from wardwright.policy.compile import compile_plan
from wardwright.wire import Caller, CallItem, Turn
from wardwright.wire.turn import Item, ResultItem, TextItem

CALLER = Caller(session_id="bench")
PLAN = compile_plan(
    parse_config("""
model_id: bench
catalog:
  - {match: web_get, namespace: web, risk_class: read_only, arguments: {url: any}, fields: {"": text}}
  - {match: contacts, namespace: mail, risk_class: read_only, names: [name], fields: {name: directory, email: directory}}
  - match: mails
    namespace: mail
    risk_class: read_only
    names: [subject]
    authors: [sender]
    fields: {id: system, sender: {class: system, roles: [sender]}, recipients: system, date: system, subject: label, body: text}
  - {match: send, namespace: mail, risk_class: external_side_effect, effects: [send], arguments: {to: address, body: text}}
governance:
  - {id: p, kind: argument_provenance, action: deny_call, tool: {name: "*", phase: planning}}
  - {id: i, kind: intent, action: deny_call, tool: {risk_class: external_side_effect}}
""")
)
PARAGRAPH = (
    "The committee met again in the old town hall and spoke at length about what should be done with the harbour, the market and "
    "the two bridges that nobody has used since the great storm. Most of the members agreed that the plans of the previous year "
    "were too modest, while others held that the money would be better spent on schools, on the library and on the small clinic "
    "behind the station, which serves four villages. A vote was put off until the autumn. Minutes of the meeting can be had from "
    "the secretary at clerk@town.example.org or read at https://town.example.org/minutes/2024/17 from 2024-05-14 on. "
)


class Session:
    """A session that goes through the gates."""

    def __init__(self) -> None:
        self.registers = Registers(key=b"bench")
        self.items: list[Item] = [TextItem("user", "Please send the minutes to Bob Smith and tell him about the vote.")]
        self.now = 1
        self.count = 0

    def govern(self, gate: str, items: list[Item]) -> str:
        self.now += 1
        turn = Turn(gate, "chat_completions", "bench", tuple(items), caller=CALLER)  # pyright: ignore[reportArgumentType]
        ruling, delta = govern(PLAN, self.registers, turn, self.now)
        self.registers = apply(self.registers, delta)
        return ruling.decision

    def read(self, name: str, content: str) -> None:
        self.count += 1
        call = CallItem(f"c{self.count}", name, "{}")
        self.govern("request", self.items)
        self.govern("reply", [call])
        self.items.extend((call, ResultItem(call.id, content)))
        self.govern("request", self.items)


def page(size: int, number: int = 0) -> str:
    text = PARAGRAPH.replace("clerk", f"clerk{number}").replace("/17", f"/{number}")
    return (text * (size // len(text) + 1))[:size]


def mails(count: int) -> str:
    """A mailbox of so many mails, as JSON."""
    return orjson.dumps(
        [
            {
                "id": f"m{n}",
                "sender": f"person{n}@corp{n % 7}.example.org",
                "recipients": ["me@example.org", f"other{n}@corp.example.org"],
                "date": f"2024-05-{n % 28 + 1:02} 10:{n % 60:02}",
                "subject": f"Status of project number{n}",
                "body": page(1_500, n),
            }
            for n in range(count)
        ]
    ).decode()


def contacts(count: int) -> str:
    """An address book: nothing but short fields."""
    return orjson.dumps(
        [{"name": f"Person Number{n}", "email": f"person{n}@corp{n % 7}.example.org"} for n in range(count)]
    ).decode()


def indexing(tool: str, content: str, rounds: int = 15) -> float:
    """µs per KB of a result: the whole gate that sees it."""

    def once() -> float:
        session = Session()
        session.govern("request", session.items)
        call = CallItem("c1", tool, "{}")
        session.govern("reply", [call])
        items = [*session.items, call, ResultItem("c1", content)]
        turn = Turn("request", "chat_completions", "bench", tuple(items), caller=CALLER)
        begin = process_time()
        govern(PLAN, session.registers, turn, 9)
        return process_time() - begin

    gc.disable()
    best = min(once() for _ in range(rounds))
    gc.enable()
    return best * 1e9 / len(content)


def decision(values: int, rounds: int = 300) -> float:
    """µs of one whole reply gate with both rules, after so many values."""
    session = Session()
    session.govern("request", session.items)
    for block in range(0, values, 500):
        records = [
            {"name": f"Person Number{n}", "email": f"person{n}@corp{n % 7}.example.org"}
            for n in range(block, min(values, block + 500))
        ]
        session.read("contacts", orjson.dumps(records).decode())
    session.read("contacts", orjson.dumps([{"name": "Bob Smith", "email": "bob@corp.example.org"}]).decode())
    body = {"to": "bob@corp.example.org", "body": "Dear Bob, the vote was put off until the autumn. Regards"}
    turn = Turn(
        "reply", "chat_completions", "bench", (CallItem("z", "send", orjson.dumps(body).decode()),), caller=CALLER
    )
    ruling, _ = govern(PLAN, session.registers, turn, 99)
    assert ruling.decision == "allow", ruling.message
    return timed(lambda: govern(PLAN, session.registers, turn, 99), rounds)


def timed(work: Callable[[], object], rounds: int) -> float:
    best = 1e9
    for _ in range(rounds):
        begin = process_time()
        work()
        best = min(best, process_time() - begin)
    return best * 1e6


def main(*, quick: bool = False) -> bool:
    bars = Bars()
    rounds = 100 if quick else 1_000
    few, many = decision(100, rounds), decision(10_000, rounds)
    tries = 5 if quick else 25
    bars.show("indexing a page of 200 KB, per KB, best", indexing("web_get", page(200_000), tries), "µs", 40)
    bars.show("indexing 110 mails of 1.7 KB as records, per KB, best", indexing("mails", mails(110), tries), "µs")
    address_book = contacts(1_000)
    per_kb = indexing("contacts", address_book, tries)
    bars.show("indexing 1,000 contacts, per KB, best", per_kb, "µs")
    bars.show("the same per field", per_kb * len(address_book) / 1_000 / 2_000, "µs")
    bars.show("a reply with provenance and intent after 100 values, best", few, "µs")
    bars.show("the same after 10,000 values, best", many, "µs", 100)
    bars.show("ratio of the two", many / few, "×", 1.5)
    return bars.ok


if __name__ == "__main__":
    sys.exit(0 if main(quick="--quick" in sys.argv) else 1)
