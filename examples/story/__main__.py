"""`make run`: an agent works through a gateway, is rolled back, denied, approved and kept from a loop; then look at it yourself.

Tells the story, prints the address of the workbench and serves until Ctrl-C, which ends it with exit code 0 (`make` itself then says 130). When standard output is
no terminal, or RUN_ONCE=1, it ends after the story (RUN_ONCE=0 serves in any case). Exit code 1: something that was promised did not
happen. With OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own, that model (OPENAI_MODEL) is asked, and nothing is promised.
PORT chooses another port than 8787; one that is taken is told, and a free one used.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

from agent import RELEASE, RENAME, Governed, ShopAgent, Task
from gateway import Gateway, Place, Refused, environment
from telling import Telling

from weakincentives.errors import WinkError
from weakincentives.runtime import EventBus, ToolInvoked

PORT = 8787


class Ended(BaseException):
    """Nobody waits any more."""


class Story:
    """Two agents and those who watch them."""

    def __init__(self, gateway: Gateway, say: Telling) -> None:
        self.gateway, self.say = gateway, say
        self.waiting = threading.Event()
        """The second agent's call waits."""
        self.over = threading.Event()

    def agent(self, task: Task, waited: Callable[[str], None]) -> ShopAgent:
        bus = EventBus()
        told: set[str] = set()

        def heard() -> None:
            found = self.gateway.ask("GET", f"/v1/receipts?session_id={task.name}&limit=5")["receipts"]
            for one in reversed(found):
                receipt = one["receipt"]
                if receipt["id"] not in told:
                    told.add(receipt["id"])
                    self.say.ruling(receipt)

        model = Governed(f"{self.gateway.address}/v1", task.name, waited=waited, heard=heard)
        agent = ShopAgent(task, self.gateway.sessions, model, bus)
        before = agent.contents()

        def invoked(event: ToolInvoked) -> None:
            nonlocal before
            now = agent.contents()
            self.say.call(event, undone=event.outcome == "failed" and now == before)
            before = now

        bus.subscribe(ToolInvoked, invoked)
        return agent

    def approve(self, handle: str) -> None:
        """What the page does when somebody approves: the call as it was shown, by its digest."""
        shown = self.gateway.ask("GET", f"/v1/wardwright/approvals/{handle}")
        decided = self.gateway.ask(
            "POST", f"/v1/wardwright/approvals/{handle}/approve", {"seen": shown["digest"], "note": "staging is fine"}
        )
        self.say.counted[decided["status"]] += 1
        call = shown["calls"][0]
        self.say.approved(f"{decided['operator']} has seen {call['name']} {call['arguments']}, and approves")

    def wait(self, handle: str) -> None:
        """Until somebody has decided on the page."""
        self.waiting.set()
        while not self.over.wait(0.5):
            try:
                self.gateway.ask("GET", f"/v1/wardwright/approvals/{handle}")
            except Refused as refused:
                if refused.status == 404:
                    return
            except OSError:
                pass  # it is ending, or busy
        raise Ended

    def first(self) -> None:
        agent = self.agent(RENAME, self.approve)
        try:
            response, _ = agent.execute(RENAME)
            self.say.answer(response.text)
        finally:
            agent.close()

    def second(self) -> None:
        """Runs beside the rest until somebody has decided."""
        agent = self.agent(RELEASE, self.wait)
        try:
            response, _ = agent.execute(RELEASE)
            self.say.answer(response.text)
        except WinkError as error:
            self.say.answer(str(error))
        except (Ended, OSError, Refused):
            pass
        finally:
            self.waiting.set()
            agent.close()

    def broken_promises(self) -> list[str]:
        """What should have happened, and did not."""
        counted = self.say.counted
        held = self.gateway.ask("GET", "/v1/wardwright/approvals")["approvals"]
        with urllib.request.urlopen(f"{self.gateway.address}/signin", timeout=30) as page:
            signed_in = page.status == 200
        happened = {
            "a call fails half-way and is rolled back": counted["rolled_back"] == 1,
            "the gateway denies a call": counted["production-is-for-people"] == 1,
            "a loop is stopped": counted["no-loops"] == 1,
            "a call is approved, and runs": counted["approved"] == 1 and counted["somebody-agrees"] == 2,
            "one call waits on the page": [one["session_id"] for one in held] == [RELEASE.name],
            "the receipts hold": self.gateway.ask("GET", "/v1/receipts/verify")["ok"],
            "the page is there": signed_in,
            "both sessions are kept": {one.stem for one in self.gateway.sessions.glob("*.session")}
            == {RENAME.name, RELEASE.name},
        }
        return [promise for promise, kept in happened.items() if not kept]


def main() -> int:
    say = Telling()
    once = os.environ.get("RUN_ONCE", "0" if say.to_terminal else "1") not in ("0", "")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    environ = environment()
    wanted = _port(os.environ.get("PORT", ""))
    with ExitStack() as ending:
        try:
            place = Place(wanted)
            ending.callback(place.close)
            say.title("A gateway between an agent and its model")
            if wanted not in (0, place.port):
                say.line(f"Port {wanted} is taken, so this is port {place.port}.")
            gateway = Gateway(place, environ)
            ending.callback(gateway.close)
            return tell(Story(gateway, say), say, once, ending)
        except WinkError as error:
            say.wrong(f"The agent could not go on: {error}")
            return 1
        except KeyboardInterrupt:
            say.line("\nEnded.")
            return 0


def tell(story: Story, say: Telling, once: bool, ending: ExitStack) -> int:
    """The story from beginning to end; what must be closed goes to `ending`."""
    gateway = story.gateway
    say.note(gateway.command)
    say.title(f"An agent renames a function, and deploys ({gateway.model or 'scripted'})")
    story.first()
    say.title("Another agent wants to deploy to production")
    second = threading.Thread(target=story.second, name="the second agent", daemon=True)
    ending.callback(second.join, 10)
    ending.callback(story.over.set)
    second.start()
    story.waiting.wait(None if gateway.model else 30)
    broken = [] if gateway.model else story.broken_promises()
    for promise in broken:
        say.wrong(f"This did not happen: {promise}")
    if broken:
        return 1
    counted = say.counted
    say.line(
        f"So far: {counted['rolled_back']} rolled back, {counted['production-is-for-people']} denied, "
        f"{counted['no-loops']} loop stopped, {counted['approved']} approved. The last one waits for you:"
    )
    say.address(gateway.page)
    say.line("Live: approve or reject it, and this agent goes on. Receipts: why each call was let through or not.")
    say.line("Agent sessions: what each call changed, and what was taken back.")
    if once:
        return 0
    say.note("Ctrl-C ends it.")
    while not gateway.ended():
        story.over.wait(0.5)
    say.wrong(f"The gateway ended; see {gateway.log}")
    return 1


def _port(given: str) -> int:
    if not given:
        return PORT
    if given.isdecimal() and int(given) < 65_536:
        return int(given)
    raise SystemExit(f"error: PORT must be a number from 0 to 65535, got {given!r}")


def _interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
