"""Typed values in and out of JSON: parse, dump, schema. Strict, complete in its complaints, compiled once per type."""

from __future__ import annotations

from weakincentives.serde.dumping import dump, dump_json, hide_secrets, redact
from weakincentives.serde.json_schema import schema
from weakincentives.serde.parsing import Parser, parse, parse_json, parser
from weakincentives.serde.problem import ParseError
from weakincentives.serde.resolve import resolve_types
from weakincentives.serde.secret import REDACTED, Secret, has_secrets
from weakincentives.serde.shape import Pattern

__all__ = [
    "REDACTED",
    "ParseError",
    "Parser",
    "Pattern",
    "Secret",
    "dump",
    "dump_json",
    "has_secrets",
    "hide_secrets",
    "parse",
    "parse_json",
    "parser",
    "redact",
    "resolve_types",
    "schema",
]
