"""Where receipts, scopes and plans are kept: one protocol, a file or a PostgreSQL server behind it.

`open_store` decides which by what it is given; nothing else in the package may ask.
"""

from __future__ import annotations

import os
from typing import TypeGuard

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
from wardwright.store.sqlite import SqliteStore, check_file

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
    "check_place",
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
    if _is_address(where):
        return PostgresStore(where)
    return SqliteStore(where)


def check_place(where: str | os.PathLike[str]) -> None:
    """StoreUnavailable when `open_store` could not open it, as far as that can be told without leaving or asking anything."""
    if not _is_address(where):
        check_file(where)


def _is_address(where: str | os.PathLike[str]) -> TypeGuard[str]:
    return isinstance(where, str) and where.startswith(("postgresql://", "postgres://"))
