"""A user's program that only the type checker reads: what we promise to a strict checker."""

from __future__ import annotations

from typing import assert_type

from weakincentives.errors import DeadlineExceededError, PromptEvaluationError


def first_error(error: DeadlineExceededError) -> PromptEvaluationError | TimeoutError:
    assert_type(error, DeadlineExceededError)
    return error
