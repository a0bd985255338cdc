"""The operator's catalog: raw tool names to namespace, name, risk class, effects and trust of results.

Identity entries are read first, then attribute entries. What a caller says about its own tools is never read here.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

RiskClass: TypeAlias = Literal["read_only", "write", "irreversible", "external_side_effect", "unknown"]
"""read_only: changes nothing
write: changes something that can be changed back
irreversible: cannot be undone
external_side_effect: reaches people or systems outside
unknown: the catalog does not say"""

ResultStatus: TypeAlias = Literal["success", "error", "timeout", "rejected", "unknown"]
"""success: the wire or the catalog's extractor says it worked
error: it failed
timeout: it took too long
rejected: it was refused before it ran (also: denied by us)
unknown: nobody said"""

Trust: TypeAlias = Literal["untrusted", "trusted"]
"""untrusted: an outsider may have written the result (the default)
trusted: the operator vouches for the source"""
