"""What a provider answered, whoever the provider is: a status, headers, and a body that is read whole or in pieces.

`Response` is what the gateway works with; `Canned` is one that is there already.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Protocol

from wardwright.errors import ProviderFailed


class Response(Protocol):
    """One answer. Whoever got it reads it to its end or closes it; closing twice, or after the end, does nothing."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names."""
        ...

    @property
    def streamed(self) -> bool:
        """Whether the body is a stream of events."""
        ...

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises ProviderFailed when it is longer than `limit`, or breaks off."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces as they come, cut anywhere. Raises ProviderFailed where it breaks off."""
        ...

    def close(self) -> None:
        """Lets go of an answer that is not wanted any more."""
        ...


class Canned:
    """An answer that is there already; streamed, it comes piece by piece."""

    __slots__ = ("_pieces", "headers", "status")

    def __init__(self, status: int, content_type: str, pieces: Iterable[bytes]) -> None:
        self.status: int = status
        self.headers: Mapping[str, str] = {"content-type": content_type}
        self._pieces = iter(pieces)

    @property
    def streamed(self) -> bool:
        return self.headers["content-type"].startswith("text/event-stream")

    async def read(self, limit: int) -> bytes:
        body = b"".join(self._pieces)
        if len(body) > limit:
            raise ProviderFailed("broken", f"the answer has {len(body)} bytes; at most {limit} are read")
        return body

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration

    def close(self) -> None:
        self._pieces = iter(())
