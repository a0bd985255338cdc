"""A keyring for tests: the methods of the real one, with sealing that can be seen through but not moved."""

from __future__ import annotations

import hashlib


class FakeKeyring:
    """Opens only what it sealed, and only with the same additional data."""

    signing_key = b"signs checkpoints"
    signing_keys = (signing_key,)

    def session_key(self, scope: str, since_ms: int | None = None) -> bytes:
        return hashlib.sha256(scope.encode("utf-8", "surrogatepass")).digest()

    def seal(self, plain: bytes, aad: bytes) -> bytes:
        return hashlib.sha256(aad).digest() + plain[::-1]

    def unseal(self, data: bytes, aad: bytes) -> bytes:
        if data[:32] != hashlib.sha256(aad).digest():
            raise ValueError("sealed by nobody we know")
        return data[:31:-1]
