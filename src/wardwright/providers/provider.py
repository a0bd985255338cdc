"""What the gateway asks of any provider, and the making of all that a file declares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from wardwright.errors import ConfigError, Problem, ProviderFailed
from wardwright.providers.client import Client
from wardwright.providers.response import Response
from wardwright.providers.scripted import Scripted
from wardwright.providers.settings import ProviderConfig
from wardwright.providers.upstream import Upstream
from wardwright.wire.turn import WireName


class Provider(Protocol):
    """Whoever answers requests: a service behind HTTP, or a script."""

    @property
    def name(self) -> str: ...

    def wire_for(self, wire: WireName) -> WireName:
        """The wire this provider speaks for a client's: the same one if it can."""
        ...

    def blocked(self, model: str) -> bool:
        """Whether requests for `model` are held back for now."""
        ...

    def ids(self, call_ids: Iterable[str]) -> dict[str, str]:
        """Tool-call ids that this provider would refuse, and what to send instead."""
        ...

    async def send(
        self,
        wire: WireName,
        body: bytes,
        *,
        stream: bool,
        model: str,
        deadline: float | None = None,
        headers: Sequence[tuple[str, str]] = (),
        tried: list[ProviderFailed] | None = None,
    ) -> Response:
        """The answer to `body`, which is written in `wire`, when it has begun; or ProviderFailed."""
        ...

    def close(self) -> None:
        """Keeps nothing for later; answers that are under way come to their end."""
        ...


def open_providers(
    configs: Mapping[str, ProviderConfig], client: Client, environ: Mapping[str, str], *, passing: Collection[str] = ()
) -> dict[str, Provider]:
    """Every provider, with its secrets read. ConfigError names each whose secret is not there."""
    opened: dict[str, Provider] = {}
    problems: list[Problem] = []
    for name, config in configs.items():
        try:
            opened[name] = (
                Scripted(config, passing=passing) if config.url is None else Upstream(config, client, environ)
            )
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return opened
