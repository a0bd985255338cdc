"""Logs as JSON lines on standard error: one event per line, for machines first. No body, no argument and no secret is ever logged."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

import orjson

_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}


class JsonLines(logging.Formatter):
    """Time, level, event, and what the event was given beside its name."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update((key, value) for key, value in record.__dict__.items() if key not in _OWN)
        if record.exc_info is not None and record.exc_info[0] is not None:
            # The kind of error and where; its text may repeat what a caller sent.
            line["error"] = record.exc_info[0].__name__
            frame = record.exc_info[2]
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            if frame is not None:
                line["where"] = f"{frame.tb_frame.f_code.co_filename.rpartition('/')[2]}:{frame.tb_lineno}"
        return orjson.dumps(line, default=str).decode()


def set_up(level: str = "info") -> None:
    """Sends the gateway's events to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("wardwright")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
