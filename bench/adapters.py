"""CPU per turn of an agent's loop, ours beside others: a scripted model, one small tool call per turn, nothing else.

Each loop runs in a process of its own, the others in environments of their own (made on first use, under build/envs), through
their public interface. A loop whose cost grows with the conversation is stopped after a while; then its figure is that of the
longest run it finished. Twenty turns are run before the clock starts, so that nobody pays for loading. Each figure is the best of
several runs, the others' too, unless one of theirs takes longer than ten seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

from bench._table import Bars

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / "build" / "envs"
PEERS = {
    "pydantic_ai": ("Pydantic AI", ["pydantic-ai-slim"]),
    "langgraph": ("LangGraph", ["langgraph", "langchain"]),
    "openai_agents": ("OpenAI Agents SDK", ["openai-agents"]),
    "agent_framework": ("Agent Framework", ["agent-framework-core"]),
}
PATIENCE = 120
"""Seconds for one run of one loop."""
OUR_ROUNDS = 7
LONG = 10
"""Seconds of CPU of a run that is not repeated."""


def main(quick: bool = False) -> bool:
    bars = Bars()
    sizes = [100, 1_000] if quick else [100, 1_000, 10_000]
    rounds = 3 if quick else 5
    ours: dict[int, float] = {}
    for turns in (
        sizes * OUR_ROUNDS
    ):  # the sizes take turns, so that a busy minute of the machine is not one size's alone
        cost = _measure(Path(sys.executable), "ours", turns)
        if cost is None:
            print(f"  ours: {turns:,} turns did not end within {PATIENCE} s")
            return False
        ours[turns] = min(cost, ours.get(turns, cost))
    for turns in sizes:
        bars.show(f"ours, {turns:,} turns, best of {OUR_ROUNDS}", ours[turns], "µs per turn")
    bars.show(f"ours, {sizes[-1]:,} / {sizes[0]:,} turns", ours[sizes[-1]] / ours[sizes[0]], "×", 1.2)
    for name, (called, packages) in PEERS.items():
        python = peer_environment(name, packages)
        if python is None:
            print(f"  NOT MEASURED: {called} could not be installed")
            bars.ok = False
            continue
        for turns in sizes:
            cost = _measure(python, name, turns)
            if cost is None:
                print(f"  {called}: {turns:,} turns did not end within {PATIENCE} s")
                break
            if cost * turns < LONG * 1e6:
                cost = min(cost, *(_measure(python, name, turns) or cost for _ in range(rounds - 1)))
            bars.show(f"{called}, {turns:,} turns", cost, "µs per turn")
            bars.at_least(f"{called} / ours at {turns:,} turns", cost / ours[turns], "×", 4)
    return bars.ok


def _measure(python: Path, name: str, turns: int) -> float | None:
    """Microseconds of CPU per turn; None when it took too long."""
    script = HERE / "_peers" / f"{name}.py"
    try:
        ran = subprocess.run(
            [python, script, str(turns)], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if ran.returncode:
        raise RuntimeError(f"{name}: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1])["cpu"] / turns * 1e6


def peer_environment(name: str, packages: list[str]) -> Path | None:
    """The interpreter of a peer's environment, made if it is not there; None when that fails."""
    home = ENVIRONMENTS / f"peer-{name}"
    python, done = home / "bin" / "python", home / ".installed"
    if not done.exists():
        print(f"  installing {', '.join(packages)} into {home.name} (once)")
        venv.create(home, with_pip=True)
        ran = subprocess.run([python, "-m", "pip", "install", "-qq", *packages], capture_output=True, check=False)
        if ran.returncode:
            return None
        done.touch()
    return python


if __name__ == "__main__":
    sys.exit(0 if main(quick="--quick" in sys.argv) else 1)
