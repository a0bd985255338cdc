"""Where receipts, scopes and plans are kept: one protocol, a file or a PostgreSQL server behind it.

`open_store` decides which by what it is given; nothing else in the package may ask.
"""

from __future__ import annotations

import os

from wardwright.store.chain import Flaw, Verification, checkpoint, erase, export, mark, retain, sign, verify
from wardwright.store.postgres import PostgresStore
from wardwright.store.protocol import (
    Checkpoint,
    Commit,
    PlanEpoch,
    ReceiptPage,
    ReceiptQuery,
    SealedRow,
    Store,
    StoredReceipt,
)
from wardwright.store.sqlite import SqliteStore

__all__ = [
    "Checkpoint",
    "Commit",
    "Flaw",
    "PlanEpoch",
    "PostgresStore",
    "ReceiptPage",
    "ReceiptQuery",
    "SealedRow",
    "SqliteStore",
    "Store",
    "StoredReceipt",
    "Verification",
    "checkpoint",
    "erase",
    "export",
    "mark",
    "open_store",
    "retain",
    "sign",
    "verify",
]


def open_store(where: str | os.PathLike[str]) -> Store:
    """A `postgresql://` address opens a database, anything else is the path of a file, made if it is missing."""
    if isinstance(where, str) and where.startswith(("postgresql://", "postgres://")):
        return PostgresStore(where)
    return SqliteStore(where)
