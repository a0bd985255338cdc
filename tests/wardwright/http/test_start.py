"""From a command line to a process that serves: what it tells before the first request, and what it leaves when it cannot start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from wardwright.errors import ConfigError, StoreUnavailable
from wardwright.http.service import Service
from wardwright.http.start import Start, create_app, serve


class Enough(Exception):
    """Nothing is served in these tests."""


def test_the_port_that_is_told_is_the_one_that_was_found(tmp_path: Path) -> None:
    """With port 0 any free one is taken, and whoever starts the gateway must know which."""
    told: list[int] = []

    def tell(service: Service, port: int) -> None:
        service.store.close()
        told.append(port)
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", port))
        raise Enough

    with pytest.raises(Enough):
        serve(Start(database=str(tmp_path / "ward.db"), port=0), tell)

    assert told[0] > 0


@pytest.mark.parametrize("content", [b"junk", None], ids=["no-database", "no-folder"])
def test_a_start_without_a_place_for_its_store_leaves_nothing(tmp_path: Path, content: bytes | None) -> None:
    """No keys, no locks: the store is what is wrong, and what is told."""
    database = tmp_path / "junk.db"
    if content is None:
        database = tmp_path / "missing" / "ward.db"
    else:
        database.write_bytes(content)
    before = list(tmp_path.iterdir())

    with pytest.raises(StoreUnavailable, match=f"^store {database}: "):
        serve(Start(database=str(database), port=0), lambda service, port: None)

    assert list(tmp_path.iterdir()) == before


@pytest.mark.parametrize("auth", ["", "auth: {anonymous: true}\n"], ids=["none", "anonymous"])
@pytest.mark.parametrize("host", ["0.0.0.0", "0"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_address_that_others_can_reach_is_not_served_without_keys(
    tmp_path: Path, host: str, auth: str, workers: int
) -> None:
    """However it is written and however many processes shall serve; nobody is told that it serves, and nothing is made."""
    config = tmp_path / "p.yaml"
    config.write_text(f"model_id: m\ntargets: [{{model: scripted, provider: scripted}}]\n{auth}")
    start = Start(config=str(config), database=str(tmp_path / "ward.db"), host=host, port=0, workers=workers)
    with pytest.raises(ConfigError, match=f"auth: will not listen on {host}"):
        serve(start, lambda service, port: pytest.fail("it serves"))
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "0", "LOCALHOST", "localhost.example.org", "::ffff:10.0.0.1"])
def test_an_application_for_such_an_address_is_not_made_either(tmp_path: Path, host: str) -> None:
    """Whatever is not known to be this machine's own is taken for everybody's."""
    with pytest.raises(ConfigError, match=f"auth: will not listen on {host}"):
        create_app(None, str(tmp_path / "ward.db"), host=host)
    assert not list(tmp_path.iterdir())
