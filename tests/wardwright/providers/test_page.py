"""The page docs/providers.md says what is true: its configs load without a warning, and its tables name every key."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright.config import Problems, load_config
from wardwright.policy.compile import compile_plan
from wardwright.providers.scripted import Scripted
from wardwright.providers.settings import ID_RULES, PROVIDER_KEYS, ProviderConfig, compile_providers
from wardwright.providers.upstream import LONGEST_WAIT, REPEATED

PAGE = (Path(__file__).parents[3] / "docs" / "providers.md").read_text("utf-8")
DEPLOYMENT, REHEARSAL = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def providers(text: str) -> dict[str, ProviderConfig]:
    config = load_config(text)
    problems = Problems("page")
    found = compile_providers(config.deployment["providers"], problems)
    assert problems.found == []
    return dict(found)


def test_the_deployment_of_the_page_loads() -> None:
    """Nothing in it would be refused or warned of."""
    assert set(providers(DEPLOYMENT)) == {"scripted", "openai", "claude", "local", "azure"}
    plan = compile_plan(load_config(DEPLOYMENT))
    assert plan.warnings == ()
    [model] = plan.models.values()
    assert [target.upstream_model for target in model.targets] == ["gpt-5-mini", "claude-sonnet-4-5", "qwen3"]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([("user", "The weather?")], "get_weather"),
        ([("user", "The weather?"), "call", ("tool", "rain all day")], "Take an umbrella."),
        ([("user", "The weather?"), "call", ("tool", "sunny")], "Leave it at home."),
    ],
)
def test_the_rehearsal_of_the_page_says_what_it_shows(messages: list[Any], said: str) -> None:
    """Each line of the script is said when the page says so."""
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    body = {
        "model": "m",
        "messages": [
            {"role": "assistant", "tool_calls": [call]}
            if one == "call"
            else {"role": one[0], "content": one[1], **({"tool_call_id": "c"} if one[0] == "tool" else {})}
            for one in messages
        ],
    }

    async def run() -> bytes:
        provider = Scripted(providers(f"{REHEARSAL}\n")["rehearsal"])
        return await (await provider.send("chat_completions", orjson.dumps(body), stream=False, model="m")).read(9999)

    message = orjson.loads(asyncio.run(run()))["choices"][0]["message"]
    assert said in (message["content"], *(one["function"]["name"] for one in message.get("tool_calls", ())))


def test_the_tables_of_the_page_name_every_key() -> None:
    """A key that is read is described."""
    rows = "\n".join(re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE))
    assert [key for key in ("kind", *PROVIDER_KEYS) if f"`{key}`" not in rows] == []
    assert [
        key for key in ("model", "upstream_model", "price", "context_window", "tools") if f"`{key}`" not in rows
    ] == []


def test_the_limits_of_the_page_are_those_in_force() -> None:
    """Statuses, waits and lengths of ids are told as they are."""
    assert sorted(REPEATED) == [408, 409, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529]
    assert "408, 409,\n429, 500, 502–504, 520–524 and 529" in PAGE
    assert (LONGEST_WAIT, f"up to {LONGEST_WAIT:.0f} seconds" in PAGE) == (10.0, True)
    assert (ID_RULES["anthropic"].length, ID_RULES["openai"].length) == (64, 40)
    config = ProviderConfig("p", "openai")
    assert (config.timeout_ms, config.connect_timeout_ms, config.retries, config.max_connections) == (
        60_000,
        5_000,
        2,
        100,
    )
    assert (config.breaker_failures, config.breaker_open_ms) == (5, 30_000)
