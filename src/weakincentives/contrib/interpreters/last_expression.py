"""Finds the last expression of a program without parsing it, so that its value can be kept in a variable.

WHY NOT ast.parse: the parser and the tree builder recurse over hostile text in our own process. Tokens do not nest.
Decides nothing about validity: what is not understood here is left as it is, and the interpreter judges it.
"""

from __future__ import annotations

import io
import keyword
import tokenize

_STARTS_EXPRESSION = {"None", "True", "False", "not", "lambda", "await"}
_LAYOUT = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


def keep_last_expression(code: str, name: str) -> str | None:
    """The code with its last statement turned into `name = (…)`, line for line; None if that is no expression."""
    statement = _last_statement(code)
    if not statement or not _is_expression(statement):
        return None
    (first_row, first_column), (last_row, last_column) = statement[0].start, statement[-1].end
    lines = io.StringIO(code).readlines()
    if last_row > len(lines):
        return None
    last = lines[last_row - 1]
    lines[last_row - 1] = f"{last[:last_column]}){last[last_column:]}"
    first = lines[first_row - 1]
    lines[first_row - 1] = f"{first[:first_column]}{name} = ({first[first_column:]}"
    return "".join(lines)


def _last_statement(code: str) -> list[tokenize.TokenInfo]:
    """The tokens of the last simple statement that stands at the left margin; empty if something else comes last."""
    current: list[tokenize.TokenInfo] = []
    finished: list[tokenize.TokenInfo] = []
    level = depth = 0
    compound = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.INDENT:
                level += 1
            elif token.type == tokenize.DEDENT:
                level -= 1
            elif token.type == tokenize.NEWLINE:
                finished = [] if level or compound else current or finished
                current, depth, compound = [], 0, False
            elif token.type not in _LAYOUT:
                if not current and _is_compound(token):
                    compound = True
                if token.string in ("(", "[", "{"):
                    depth += 1
                elif token.string in (")", "]", "}"):
                    depth -= 1
                if token.string == ";" and depth == 0:
                    finished, current = current, []
                else:
                    current.append(token)
    except (tokenize.TokenError, SyntaxError, ValueError):
        return []
    return finished


def _is_compound(token: tokenize.TokenInfo) -> bool:
    return (
        token.string in ("if", "for", "while", "with", "try", "else", "elif", "except", "finally", "def")
        or token.string in ("class", "async")
        or token.string == "@"
    )


def _is_expression(statement: list[tokenize.TokenInfo]) -> bool:
    first = statement[0].string
    if keyword.iskeyword(first) and first not in _STARTS_EXPRESSION:
        return False
    depth = 0
    for token in statement:
        text = token.string
        if token.type == tokenize.ERRORTOKEN:
            return False
        if text in ("(", "[", "{"):
            depth += 1
        elif text in (")", "]", "}"):
            depth -= 1
        elif depth == 0 and token.type == tokenize.OP:
            if text == "=" or (text.endswith("=") and text not in ("==", "!=", "<=", ">=")):
                return False
            if text == ":" and not any(each.string == "lambda" for each in statement):
                return False
    return True
