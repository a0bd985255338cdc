"""Claims about `wardwright keys`: rings are made, shown, rotated and used; secrets are printed only where that is the point."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright import compile_plan, load_config, receipts
from wardwright.cli import main
from wardwright.history import Delta, Registers, ScopeDelta, scope_key
from wardwright.keys import Keyring, hash_key, verify_key
from wardwright.simulate import read_transcript, simulate
from wardwright.store import open_store
from wardwright.wire.turn import Caller

Shell = Callable[..., tuple[int, str, str]]

LOOP = (
    "governance:\n  - {id: loop, kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {name: '*'},"
    " equal: tool+arguments}\n"
)


@pytest.fixture
def shell(tmp_path: Path, capsysbinary: Any, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsysbinary.readouterr()
        return int(caught.value.code or 0), out.decode(), err.decode()

    return run


def json(shell: Shell, *arguments: str) -> Any:
    code, out, err = shell(*arguments, "--json")
    assert (code, err) == (0, "")
    return orjson.loads(out)


def secrets(path: str) -> list[str]:
    values = orjson.loads(Path(path).read_bytes())
    return [one["secret"] for one in (*values["digests"], *values["generations"])]


def twice(name: str) -> list[dict[str, Any]]:
    called = [{"id": f"{name}{number}", "name": "browser_open", "arguments": {}} for number in range(2)]
    return [{"role": "user", "content": name}, {"role": "assistant", "tool_calls": called}]


def test_a_ring_is_made_shown_and_rotated_without_showing_a_secret(shell: Shell) -> None:
    """G64: what an operator does by hand."""
    made = shell("keys", "create", "ring")
    shown = json(shell, "keys", "list", "ring")
    rotated = json(shell, "keys", "rotate", "ring")
    plain = shell("keys", "list", "ring")

    assert (made[0], Path("ring").stat().st_mode & 0o777) == (0, 0o600)
    assert (len(shown["generations"]), len(rotated["generations"])) == (1, 2)
    assert plain[1].splitlines()[0].startswith(rotated["generations"][0]["id"])
    assert [one for one in secrets("ring") if one in f"{made} {shown} {rotated} {plain}"] == []


def test_a_ring_that_is_there_is_not_replaced(shell: Shell) -> None:
    """One line, no traceback."""
    shell("keys", "create", "ring")

    assert shell("keys", "create", "ring") == (
        1,
        "",
        "wardwright: The key file ring cannot be made: it exists already.\n",
    )


def test_a_generation_is_retired_by_its_id(shell: Shell) -> None:
    """And only one that is there."""
    shell("keys", "create", "ring")
    first = json(shell, "keys", "rotate", "ring")["generations"][0]["id"]

    assert len(json(shell, "keys", "retire", "ring", first)["generations"]) == 1
    assert shell("keys", "retire", "ring", first)[2] == f"wardwright: The ring has no generation '{first}'.\n"


def test_a_replaced_digest_secret_is_for_later_sessions(shell: Shell) -> None:
    """The command says from when on."""
    shell("keys", "create", "ring")
    since = json(shell, "keys", "replace-digest", "ring")["from_ms"]
    ring = Keyring.load("ring")

    assert ring.session_key("s", since) != ring.session_key("s", since - 1)
    assert "sessions that begin after" in shell("keys", "replace-digest", "ring")[1]


def test_an_exported_ring_is_the_ring(shell: Shell) -> None:
    """For machines that take it from the environment."""
    shell("keys", "create", "ring")
    exported = shell("keys", "export", "ring")[1]

    assert Keyring.load_or_create(None, {"WARDWRIGHT_KEYS": exported}).signing_key == Keyring.load("ring").signing_key


def test_a_new_admin_token_is_printed_and_kept_hashed(shell: Shell) -> None:
    """The old one is gone."""
    shell("keys", "create", "ring")
    token = shell("keys", "admin", "ring")[1].strip()

    assert verify_key(token, Keyring.load("ring").admin_hash)
    assert json(shell, "keys", "list", "ring")["admin_token"] is True


def test_a_new_key_comes_with_its_hash(shell: Shell) -> None:
    """The one is for the caller, the other for the config."""
    made = json(shell, "keys", "new")
    plain = shell("keys", "new")[1].split()

    assert made["hash"] == hash_key(made["key"])
    assert (plain[0], plain[2], plain[3]) == ("key:", "hash:", hash_key(plain[1]))


def test_a_key_is_hashed_from_standard_input(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never from an argument, which every process of the machine can read."""
    monkeypatch.setattr("sys.stdin", io.StringIO("a key\n"))
    hashed = shell("keys", "hash")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))

    assert hashed == (0, f"{hash_key('a key')}\n", "")
    assert shell("keys", "hash") == (1, "", "wardwright: keys hash: no key on standard input\n")


def test_receipts_are_signed_and_verified_with_a_ring(shell: Shell) -> None:
    """Across a rotation, with one file."""
    shell("keys", "create", "ring")
    store = open_store("s.db")
    store.commit(Delta(1), receipts.record(receipts.build_admin("rcpt_1", 1, Caller(), "test", "it")))
    store.close()
    named = ("--db", "s.db", "--key-file", "ring")
    shell("receipts", "checkpoint", *named)
    shell("keys", "rotate", "ring")
    shell("receipts", "checkpoint", *named)

    assert json(shell, "receipts", "verify", *named)["checkpoints"] == 2
    Path("other").write_bytes(b"another key")
    assert shell("receipts", "verify", "--db", "s.db", "--key-file", "other")[0] == 1
    assert shell("receipts", "verify", "--db", "s.db", "--key-file", "gone") == (
        1,
        "",
        "wardwright: The key file gone cannot be used: No such file or directory.\n",
    )


def test_a_simulation_knows_equal_arguments_by_the_ring(shell: Shell) -> None:
    """Also of a session that began before the digest secret was replaced."""
    ring = Keyring.create("ring")
    caller = Caller(tenant="t", session_id="s")
    scope = scope_key("session_id", caller)
    plan, talk = compile_plan(load_config(LOOP)), read_transcript(twice("a"))
    found = simulate(plan, talk, registers=Registers(key=ring.session_key(scope, 1)), caller=caller, now=1)
    state = found.registers.scopes[scope]
    change = ScopeDelta(scope, "session_id", 0, state.head, dict(state.registers.items()), dict(state.ledger.items()))
    store = open_store("s.db")
    store.commit(Delta(2, (change,)), receipts.record(found.receipts[-1]))
    store.close()
    ring.replace_digest(2, delay_ms=1)
    Keyring.create("other")
    Path("plan.yaml").write_text(LOOP)
    Path("talk.json").write_bytes(orjson.dumps(twice("b")))
    asked = ("simulate", "--config", "plan.yaml", "talk.json", "--session", "s", "--db", "s.db", "--key-file")

    assert len(json(shell, *asked, "ring")["blocked_calls"]) == 2
    assert len(json(shell, *asked, "other")["blocked_calls"]) == 0
