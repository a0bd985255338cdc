"""What servers said of their tools when they were first seen, and what has changed since.

Decides whether a tool may be offered as the server describes it now. A description is a prompt that a stranger wrote: one
that changes after somebody has looked at it is kept from the model until somebody has looked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Literal, cast

from ..errors import PromptValidationError
from ..frozen import frozen

_VERSION: Final = 1


@frozen
class McpOffer:
    """A tool as its server describes it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict[str, Any])
    title: str = ""

    @property
    def digest(self) -> str:
        """The same for the same description, whatever the order of its keys."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "annotations": self.annotations,
        }


@frozen
class McpChange:
    """A tool that is not what it was when it was first seen, or was not there then."""

    server: str
    tool: str
    kind: Literal["changed", "new"]
    fields: tuple[str, ...]
    """What differs."""
    before: McpOffer | None
    after: McpOffer

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.server}: tool '{self.tool}' is new"
        return f"{self.server}: tool '{self.tool}' has another {', '.join(self.fields)} than when it was accepted"


class McpPins:
    """The accepted descriptions of tools, by server. Lives as long as its holder, or in a JSON file.

    A server's first listing is accepted as it is; `new_tools` says what happens to tools that appear later. Thread-safe.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, new_tools: Literal["accept", "refuse"] = "accept"
    ) -> None:
        if new_tools not in ("accept", "refuse"):
            raise ValueError(f"new_tools must be 'accept' or 'refuse', got {new_tools!r}.")
        self._path = None if path is None else os.fspath(path)
        self._accepts_new = new_tools == "accept"
        self._lock = threading.Lock()
        self._servers: dict[str, dict[str, McpOffer]] = {}
        if self._path is not None:
            self._servers = _read(self._path)

    def pinned(self, server: str) -> Mapping[str, McpOffer]:
        """The accepted tools of a server, by their names there."""
        with self._lock:
            return dict(self._servers.get(server, {}))

    def admit(self, server: str, offers: Sequence[McpOffer]) -> list[McpChange]:
        """Accept what is seen for the first time; what has changed comes back, and stays as it was accepted."""
        changes: list[McpChange] = []
        with self._lock:
            self._refresh()
            known = self._servers.get(server)
            first = known is None
            known = {} if known is None else known
            added = False
            for offer in offers:
                before = known.get(offer.name)
                if before is None and (first or self._accepts_new):
                    known[offer.name] = offer
                    added = True
                elif before is None:
                    changes.append(McpChange(server, offer.name, "new", (), None, offer))
                elif before.digest != offer.digest:
                    changes.append(McpChange(server, offer.name, "changed", _differing(before, offer), before, offer))
            if first or added:
                self._servers[server] = known
                self._write()
        return changes

    def accept(self, change: McpChange) -> None:
        """Let the tool be what it is now. A section made from now on offers it so."""
        with self._lock:
            self._refresh()
            self._servers.setdefault(change.server, {})[change.tool] = change.after
            self._write()

    def _refresh(self) -> None:
        """Take over what another process has accepted meanwhile."""
        if self._path is not None:
            self._servers = _read(self._path)

    def _write(self) -> None:
        if self._path is None:
            return
        servers = {
            server: {name: offer.as_json() for name, offer in sorted(offers.items())}
            for server, offers in sorted(self._servers.items())
        }
        text = json.dumps({"version": _VERSION, "servers": servers}, indent=1, ensure_ascii=False)
        beside = f"{self._path}.{os.getpid()}.{id(self):x}.new"
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(beside, self._path)


def _differing(before: McpOffer, after: McpOffer) -> tuple[str, ...]:
    one, other = before.as_json(), after.as_json()
    return tuple(name for name in one if one[name] != other[name])


def _read(path: str) -> dict[str, dict[str, McpOffer]]:
    try:
        with open(path, encoding="utf-8") as file:
            told: Any = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _unreadable(path, str(error)) from error
    try:
        if told["version"] != _VERSION:
            raise _unreadable(path, f"its version is {told['version']!r}, known is {_VERSION}")
        servers = cast("dict[str, dict[str, dict[str, Any]]]", told["servers"])
        return {
            server: {name: McpOffer(**offer) for name, offer in offers.items()} for server, offers in servers.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error


def _unreadable(path: str, why: str) -> PromptValidationError:
    # WHY NOT begin anew: whoever can break the file could have every change accepted.
    return PromptValidationError(
        f"The file of accepted MCP tools {path!r} cannot be read: {why}. Restore it, or delete it to accept all tools anew."
    )
