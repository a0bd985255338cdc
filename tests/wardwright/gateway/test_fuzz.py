"""Everything our OpenAPI document declares, asked with whatever fits it and whatever does not: never a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.generation.case import Case
from schemathesis.schemas import APIOperation

from wardwright.http.openapi import document
from wardwright.http.service import Service, embedded
from wardwright.http.start import front

from ..http.standing import standing

pytestmark = pytest.mark.heavy

SCHEMA = schemathesis.openapi.from_dict(document())
OPERATIONS = [one.ok() for one in SCHEMA.get_all_operations()]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The embedded example, served on a real socket; its address and its admin token."""
    folder: Path = tmp_path_factory.mktemp("fuzz")
    service = Service(embedded(), str(folder / "fuzz.db"), "127.0.0.1")
    with standing(front(service)) as port:
        yield f"http://127.0.0.1:{port}", service.admin_token or ""


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fitting", "unfitting"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=[one.label for one in OPERATIONS])
def test_no_request_makes_the_gateway_fail(
    gateway: tuple[str, str], operation: APIOperation, mode: GenerationMode
) -> None:
    """G63: a request that the document allows, or does not, is answered below 500."""
    address, token = gateway

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def ask(case: Case) -> None:
        answer = case.call(base_url=address, headers={"authorization": f"Bearer {token}"}, timeout=30)
        assert answer.status_code < 500, f"{answer.status_code}: {answer.content[:300]!r} for {case.as_curl_command()}"

    try:
        ask()
    except Unsatisfiable:
        # There is nothing in such a request that could be wrong.
        assert mode == GenerationMode.NEGATIVE and not operation.body and not operation.path_parameters
