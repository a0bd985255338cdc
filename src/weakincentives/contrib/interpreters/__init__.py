"""Interpreters for code that a model wrote: each in a process of its own that reaches files by asking, and nothing else.

`evaluation` says what goes in and comes out, `file_access` answers for the files. `monty` and `asteval` are the engines.
"""

from __future__ import annotations
