"""Plans that come and go while a process serves: whole or not at all, the newest one, and nothing left of those before."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from wardwright.config import parse_config
from wardwright.errors import ConfigError
from wardwright.http import service as module
from wardwright.http.service import Service
from wardwright.keys import KeysUnusable
from wardwright.server_tools import ServerTools
from wardwright.wire.refusal import Refusal

PLAN = """
providers: {up: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
models:
  - model_id: m
    targets: [{model: a, provider: up}]
"""
TOOLS = PLAN + "    server_tools: [{name: wardwright_policy_cache_status, engine: builtin}]\n"


def other(plan: str, number: int) -> str:
    """The same plan with another hash."""
    return plan.replace("model: a", f"model: a{number}")


def opened(
    tmp_path: Path,
    story: Callable[..., Coroutine[Any, Any, None]],
    *configs: str,
    environ: dict[str, str] | None = None,
    last: dict[str, str] | None = None,
) -> None:
    """One service per config, on one store; the last one in an environment of its own."""

    async def main() -> None:
        services: list[Service] = []
        for number, config in enumerate(configs):
            path = tmp_path / f"{number}.yaml"
            path.write_text(config)
            given = last if last is not None and number == len(configs) - 1 else environ
            made = Service(parse_config(config, str(path)), str(tmp_path / "ward.db"), "127.0.0.1", environ=given)
            await made.open()
            services.append(made)
        try:
            await story(*services)
        finally:
            for made in services:
                await made.close()

    asyncio.run(main())


def target(service: Service) -> str:
    return service.plan.models["m"].targets[0].model


class Slow(ServerTools):
    """Tools that are open when they are told to."""

    opens: list[asyncio.Event] = []  # noqa: RUF012
    closed = 0

    async def open(self) -> None:
        if Slow.opens:
            await Slow.opens.pop(0).wait()
        await super().open()

    async def aclose(self) -> None:
        Slow.closed += 1
        await super().aclose()


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ServerTools", Slow)
    monkeypatch.setattr(Slow, "opens", [])
    monkeypatch.setattr(Slow, "closed", 0)


def test_a_plan_that_cannot_be_opened_is_in_force_nowhere(tmp_path: Path) -> None:
    """A provider whose key is not there: the store keeps its epoch, the process its plan."""

    async def story(service: Service) -> None:
        keyed = other(TOOLS, 1).replace('9/v1"', '9/v1", api_key_env: NO_SUCH_KEY')
        with pytest.raises(ConfigError):
            await service.activate(keyed.encode(), "op")
        epoch = service.store.plan_epoch()
        assert epoch is not None and epoch.epoch == service.overlay.epoch == 1
        assert target(service) == "a"

    opened(tmp_path, story, PLAN, environ={})


def test_a_plan_is_tried_without_being_put_in_force(tmp_path: Path) -> None:
    """What it needs is opened and closed again; what is missing is told, with its line, and the one in force goes on."""

    async def story(service: Service) -> None:
        before = service.plan
        await asyncio.to_thread(service.opens, other(TOOLS, 1).encode())
        secret = PLAN.replace("kind: openai,", "kind: openai, api_key_env: NOWHERE,")
        with pytest.raises(ConfigError) as caught:
            await asyncio.to_thread(service.opens, secret.encode())
        assert [problem.message for problem in caught.value.problems] == [
            "the environment variable NOWHERE is empty or not set"
        ]
        assert service.plan is before
        assert service.store.plan_epoch() is not None and len(service.store.plan_epochs(9, None)) == 1

    opened(tmp_path, story, PLAN, environ={})


def test_a_plan_that_opens_late_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    """G30: two operators at two processes: both end with the plan that the store says."""

    async def story(one: Service, two: Service) -> None:
        late = asyncio.Event()
        Slow.opens.append(late)
        first = asyncio.ensure_future(one.activate(other(TOOLS, 1).encode(), "op"))
        while Slow.opens:
            await asyncio.sleep(0)
        await two.activate(other(TOOLS, 2).encode(), "op")
        following = asyncio.ensure_future(one.overlay.poll())
        await asyncio.wait([following], timeout=0.2)  # it may have to wait for the first one
        late.set()
        await asyncio.wait([first, following])
        for service in (one, two):
            await service.overlay.poll()
        epoch = one.store.plan_epoch()
        assert epoch is not None
        assert one.plan.plan_hash == two.plan.plan_hash == epoch.plan_hash

    opened(tmp_path, story, PLAN, PLAN)


def test_the_tools_of_former_plans_are_closed_once_nobody_uses_them(tmp_path: Path) -> None:
    """What an exchange under way began with stays until it ends; after that, plans that came and went leave nothing open."""

    async def story(service: Service) -> None:
        under_way = service.gateway.live
        for number in range(3):
            await service.activate(other(TOOLS, number).encode(), "op")
        gc.collect()
        await service.upkeep()
        assert Slow.closed == 2 and under_way.server_tools["m"].names
        del under_way
        gc.collect()
        await service.upkeep()
        assert Slow.closed == 3

    opened(tmp_path, story, TOOLS)


def test_a_restart_keeps_the_plan_that_an_operator_put_in_force(tmp_path: Path) -> None:
    """G30: a process that starts with the file that was followed before follows what operators did since; a changed file is news."""

    async def first(service: Service) -> None:
        await service.activate(other(PLAN, 1).encode(), "op")

    async def again(service: Service) -> None:
        assert target(service) == "a1"

    async def changed(service: Service) -> None:
        assert target(service) == "a2"

    async def back(service: Service) -> None:
        assert target(service) == "a"

    opened(tmp_path, first, PLAN)
    opened(tmp_path, again, PLAN)
    opened(tmp_path, changed, other(PLAN, 2))
    opened(tmp_path, back, PLAN)


def test_a_provider_key_that_was_replaced_is_used_after_a_reload(tmp_path: Path) -> None:
    """Keys of providers are read anew when the file is, though the file says the same."""
    environ = {"KEY": "one"}

    async def story(service: Service) -> None:
        before = service.gateway.live.providers["up"]
        environ["KEY"] = "two"
        await service.reload()
        assert service.gateway.live.providers["up"] is not before

    opened(tmp_path, story, PLAN.replace('9/v1"', '9/v1", api_key_env: KEY'), environ=environ)


def test_a_reload_applies_the_alert_sinks_of_the_file(tmp_path: Path) -> None:
    """Where alerts go changes with the file, without a restart; what a plan over the network says of it is not taken."""
    first, second, sent = (tmp_path / f"{name}.ndjson" for name in ("first", "second", "sent"))

    async def story(service: Service) -> None:
        path = tmp_path / "0.yaml"
        path.write_text(PLAN + f"alerts: {{sinks: [{{kind: file, path: {second}}}]}}\n")
        await service.reload()
        service.alerts.emit({"n": 1})
        await service.activate((PLAN + f"alerts: {{sinks: [{{kind: file, path: {sent}}}]}}\n").encode(), "op")
        service.alerts.emit({"n": 2})

    opened(tmp_path, story, PLAN + f"alerts: {{sinks: [{{kind: file, path: {first}}}]}}\n")
    assert not first.exists() and not sent.exists()
    assert second.read_text().splitlines() == ['{"n":1}', '{"n":2}']


def test_a_reload_whose_alert_secret_is_missing_changes_nothing(tmp_path: Path) -> None:
    """A file whose sink cannot be opened is refused whole."""
    sink = tmp_path / "first.ndjson"
    before = PLAN + f"alerts: {{sinks: [{{kind: file, path: {sink}}}]}}\n"

    async def story(service: Service) -> None:
        (tmp_path / "0.yaml").write_text(PLAN + "alerts: {sinks: [{kind: webhook, url_env: NOT_SET}]}\n")
        with pytest.raises(KeysUnusable):
            await service.reload()
        await asyncio.sleep(0)  # what it began has its turn
        service.alerts.emit({"n": 1})

    opened(tmp_path, story, before, environ={})
    assert sink.read_text() == '{"n":1}\n'


def test_a_file_that_is_refused_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    """Signals that come while a plan opens: each finds the file as it is in its turn, and the last one rules, with its code."""
    (tmp_path / "echo.py").write_text(
        "def spec():\n    return {'name': 'echo', 'description': 'Echo.', 'parameters': {'type': 'object'}}\n\n\n"
        "def run(arguments, context):\n    return 'echo'\n"
    )

    async def story(service: Service) -> None:
        opening = asyncio.Event()
        Slow.opens.append(opening)
        under_way = asyncio.create_task(service.activate(other(TOOLS, 1).encode(), "op"))
        while Slow.opens:
            await asyncio.sleep(0)
        (tmp_path / "0.yaml").write_text(other(PLAN, 2).replace('9/v1"', '9/v1", api_key_env: NO_SUCH_KEY'))
        refused = asyncio.create_task(service.reload_safely())
        await asyncio.sleep(0)
        (tmp_path / "0.yaml").write_text(other(PLAN, 3) + "    server_tools: [{engine: module, path: echo.py}]\n")
        last = [asyncio.create_task(service.reload_safely()) for _ in range(100)]
        await asyncio.sleep(0)
        opening.set()
        await asyncio.gather(under_way, refused, *last)
        assert target(service) == "a3" and len(service.models["m"].server_tools) == 1
        assert service.overlay.epoch == 3

    opened(tmp_path, story, PLAN, environ={})


def test_a_file_that_is_gone_leaves_the_plan_in_force(tmp_path: Path) -> None:
    """A signal to read a file that cannot be read changes nothing, and raises nothing."""

    async def story(service: Service) -> None:
        for broken in (b"models: [", b"\xff\xfe", None):
            if broken is None:
                (tmp_path / "0.yaml").unlink()
            else:
                (tmp_path / "0.yaml").write_bytes(broken)
            await service.reload_safely()
            assert target(service) == "a"

    opened(tmp_path, story, PLAN)


def test_a_process_that_cannot_follow_a_plan_is_not_ready_and_tries_again(tmp_path: Path) -> None:
    """G30: it rules by the plan before, says so to whoever sends it requests, and follows as soon as it can."""
    lacking: dict[str, str] = {}

    async def story(one: Service, two: Service) -> None:
        await one.activate(other(PLAN, 1).replace('9/v1"', '9/v1", api_key_env: KEY').encode(), "op")
        await two.overlay.poll()
        assert target(two) == "a"
        assert await two.ready() == "This process could not follow the plan of epoch 2; the one before rules here."
        lacking["KEY"] = "here"
        await two.upkeep()
        await two.overlay.poll()
        assert target(two) == "a1" and await two.ready() == ""

    opened(tmp_path, story, PLAN, PLAN, environ={"KEY": "here"}, last=lacking)


@pytest.mark.parametrize(
    ("auth", "says"),
    [
        ("{}", "without authentication. Declare auth.keys, or listen on 127.0.0.1."),
        ("{operators: [{id: ann, key_env: ANN, role: viewer}]}", "without authentication"),
        ("{anonymous: true}", "auth.anonymous lets everybody in"),
    ],
)
def test_nobody_serves_the_network_without_keys(tmp_path: Path, auth: str, says: str) -> None:
    """An address that others can reach is refused while no caller's key is declared, before a ring is made."""
    config = parse_config(f"{PLAN}auth: {auth}\n", "p.yaml")
    with pytest.raises(ConfigError, match=rf"p\.yaml:6:1: auth: will not listen on 0\.0\.0\.0.*{says}"):
        Service(config, str(tmp_path / "ward.db"), "0.0.0.0", environ={"ANN": "a key that is long enough"})
    assert not list(tmp_path.iterdir())


def test_a_plan_cannot_take_the_keys_away_from_an_open_address(tmp_path: Path) -> None:
    """What is sent to a gateway that others can reach must declare keys too, and is refused as a plan with a problem."""
    config = parse_config(f"{PLAN}auth: {{keys: [{{id: ci, key_env: CI}}]}}\n", "p.yaml")
    service = Service(config, str(tmp_path / "ward.db"), "0.0.0.0", environ={"CI": "a key that is long enough"})
    try:
        with pytest.raises(ConfigError, match="auth: will not listen on 0"):
            service.compile(PLAN.encode())
    finally:
        service.store.close()


def test_no_way_leads_an_open_address_to_a_plan_without_keys(tmp_path: Path) -> None:
    """Neither its own file read again, nor a plan that is sent, nor one that a process of another address put in force."""
    keyed = f"{PLAN}auth: {{keys: [{{id: ci, key_env: CI}}]}}\n"
    path = tmp_path / "p.yaml"

    def made(config: str, host: str) -> Service:
        path.write_text(config)
        environ = {"CI": "a key that is long enough"}
        return Service(parse_config(config, str(path)), str(tmp_path / "ward.db"), host, environ=environ)

    async def story() -> None:
        others = made(keyed, "0.0.0.0")
        await others.open()
        local = made(keyed, "127.0.0.1")
        await local.open()
        late = made(keyed, "::")
        try:
            for bare in (other(PLAN, 1), other(PLAN, 2) + "auth: {anonymous: true}\n"):
                path.write_text(bare)
                with pytest.raises(ConfigError, match="auth: will not listen on 0"):
                    await others.reload()
                with pytest.raises(ConfigError, match="auth: will not listen on 0"):
                    await others.activate(bare.encode(), "op")
                with pytest.raises(ConfigError, match="auth: will not listen on 0"):
                    await asyncio.to_thread(others.opens, bare.encode())
                await local.activate(bare.encode(), "op")
                await others.overlay.poll()
                assert target(others) == "a" and await others.ready() != ""
                asked = others.authenticator.authenticate({}, "127.0.0.1")
                assert isinstance(asked, Refusal) and asked.code == "missing_api_key"
            with pytest.raises(ConfigError, match="auth: will not listen on ::"):
                await late.open()
        finally:
            late.store.close()
            await local.close()
            await others.close()

    asyncio.run(story())


def test_all_missing_secrets_are_told_at_once(tmp_path: Path) -> None:
    """Whoever starts it is told of every variable in one go, before a ring or a database is made."""
    text = (
        'providers: {up: {kind: openai, base_url: "https://up.test/v1", api_key_env: UP, headers: {x-team: {env: TEAM}}}}\n'
        "models: [{model_id: m, targets: [{model: a, provider: up}]}]\n"
        "auth: {admin: {token_env: ADMIN}, keys: [{id: ci, key_env: CI}], operators: [{id: ann, key_env: ANN, role: viewer}]}\n"
        "alerts: {sinks: [{kind: webhook, url_env: HOOK, header_env: HEADER}]}\n"
    )
    with pytest.raises(KeysUnusable) as refused:
        Service(parse_config(text, "p.yaml"), str(tmp_path / "ward.db"), "127.0.0.1", environ={})
    assert str(refused.value).splitlines() == [
        "auth.keys 'ci': the environment variable CI is not set or empty.",
        "auth.operators 'ann': the environment variable ANN is not set or empty.",
        "auth.admin: the environment variable ADMIN is not set or empty.",
        "alerts.sinks[0].url: the environment variable HOOK is not set or empty.",
        "alerts.sinks[0].header: the environment variable HEADER is not set or empty.",
        "p.yaml:1:64: providers.up.api_key_env: the environment variable UP is empty or not set",
        "p.yaml:1:100: providers.up.headers.x-team.env: the environment variable TEAM is empty or not set",
    ]
    assert not list(tmp_path.iterdir())


def test_a_roll_back_may_lead_to_the_file_and_its_code(tmp_path: Path) -> None:
    """A plan that is the process's own file, byte for byte, keeps the modules beside it; any other text with them is refused."""
    (tmp_path / "echo.py").write_text(
        "def spec():\n    return {'name': 'echo', 'description': 'Echo.', 'parameters': {'type': 'object'}}\n\n\n"
        "def run(arguments, context):\n    return 'echo'\n"
    )
    file = PLAN + "    server_tools: [{engine: module, path: echo.py}]\n"

    async def story(service: Service) -> None:
        await service.activate(PLAN.encode(), "ann")
        assert not service.models["m"].server_tools
        await service.activate(file.encode(), "ann")
        assert len(service.models["m"].server_tools) == 1
        with pytest.raises(ConfigError, match="modules run inside the gateway"):
            await service.activate(other(file, 2).encode(), "ann")

    opened(tmp_path, story, file)
