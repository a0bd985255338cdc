"""How soon each page of the workbench shows something with 1,000,000 receipts stored and sessions of 10,000 calls.

A real gateway over a real store, a real browser on the same machine. First contentful paint as the browser tells it, best of several
visits; beside it the first visit after the gateway was started. The store is made once, under build/workbench, which takes minutes;
the browser and its driver are those of `make test-env-browser`. Run it alone for trustworthy numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from bench._table import Bars
from bench._workbench.filling import LONG, everyday, fill
from bench._workbench.serving import TOKEN, Served, serving

ROOT = Path(__file__).parents[1]
DRIVER = ROOT / "build" / "envs" / "browser" / "bin" / "python"
BAR_MS = 1_000.0


def main(quick: bool = False) -> bool:
    if subprocess.run(["make", "-s", "chromium", "build/envs/browser/.installed"], cwd=ROOT, check=False).returncode:
        print("  NOT MEASURED: the browser could not be set up")
        return False
    total, calls, rounds = (20_000, 500, 2) if quick else (1_000_000, 10_000, 5)
    folder = ROOT / "build" / "workbench" / str(total)
    fill(folder, total, calls)
    bars = Bars()
    with serving(folder, folder / "ward.db", "--sessions", str(folder / "sessions")) as gateway:
        everyday(gateway, "today")
        for path, visits in _paint(gateway, rounds, _paths(gateway)).items():
            if any(one["status"] != 200 for one in visits):
                print(f"  {path:<66} answered {visits[0]['status']}")
                bars.ok = False
                continue
            first, *others = visits
            best = min(others, key=lambda one: one["paint"])
            name = path if len(path) < 36 else f"{path[:35]}…"
            what = f"{name} ({best['bytes'] / 1024:.0f} KB; first visit {first['paint']:.0f} ms)"
            bars.show(what, best["paint"], "ms", BAR_MS)
    return bars.ok


def _paths(gateway: Served) -> list[str]:
    """Every page; those of one thing for a thing that is old, and for one that is big."""
    newest = _ask(gateway, "/v1/receipts?limit=1")["receipts"][0]
    middle = _ask(gateway, f"/v1/receipts?limit=1&before={newest['cursor'] // 2}")["receipts"][0]["receipt"]
    old = middle["caller"]["session_id"]
    return [
        "/live",
        f"/live?before={newest['cursor'] // 2}",
        f"/live/session?id={old}",
        f"/live/session?id={LONG}",
        "/approvals",
        "/receipts",
        f"/receipts?before={newest['cursor'] // 2}",
        "/receipts?tool_name=deploy&status=held",
        "/receipts?status=blocked&tool_namespace=notes",
        f"/receipts/{middle['id']}",
        "/receipts/verify",
        f"/replay?id={old}",
        f"/replay?id={LONG}",
        "/policy",
        "/policy/edit",
        "/policy/compare",
        "/policy/surface",
        "/policy/prove",
        "/policy/report",
        "/policy/history",
        "/models",
        "/agents",
        f"/agents/{LONG}.session",
        f"/agents/{LONG}.session/step?at=5000",
    ]


def _ask(gateway: Served, path: str) -> Any:
    direct = build_opener(ProxyHandler({}))
    with direct.open(Request(gateway.address + path, headers={"authorization": f"Bearer {TOKEN}"})) as answer:
        return json.loads(answer.read())


def _paint(gateway: Served, rounds: int, paths: list[str]) -> dict[str, list[dict[str, Any]]]:
    command = [
        str(DRIVER),
        str(ROOT / "bench" / "_workbench" / "paint.py"),
        gateway.address,
        TOKEN,
        str(rounds),
        *paths,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(0 if main(quick="--quick" in sys.argv) else 1)
