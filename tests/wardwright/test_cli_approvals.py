"""Claims about `wardwright approvals`, `approve` and `reject` (G23, G61): what is shown, who may decide, and how it ends."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright import approvals, receipts
from wardwright.approvals import Held
from wardwright.cli import main
from wardwright.history import Delta
from wardwright.keys import Keyring
from wardwright.store import ReceiptQuery, open_store

Shell = Callable[..., tuple[int, str, str]]

SCOPE = "session_id\x1facme\x1fs1"
FOREVER = 4_000_000_000_000


@pytest.fixture
def shell(tmp_path: Path, capsysbinary: Any, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs the command in a folder with a store and its keys."""
    monkeypatch.chdir(tmp_path)
    Keyring.create("ward.db.keys")
    open_store("ward.db").close()

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "--db", "ward.db"])
        out, err = capsysbinary.readouterr()
        return int(caught.value.code or 0), out.decode(), err.decode()

    return run


def json(shell: Shell, *arguments: str) -> Any:
    code, out, err = shell(*arguments, "--json")
    assert (code, err) == (0, "")
    return orjson.loads(out)


def hold(request: str = "digest", arguments: str = '{"path":"/etc"}') -> str:
    """Something that waits, as a gateway leaves it; its handle."""
    ring = Keyring.load("ward.db.keys")
    call = {"name": "shell_exec", "arguments": arguments, "rule_id": "ask-first", "message": "Ask first."}
    reply = {"choices": [{"message": {"tool_calls": [{"id": "a"}]}}]}
    held = Held(
        handle=approvals.handle_of(ring, SCOPE, request),
        scope=SCOPE,
        wire="chat_completions",
        model="coding",
        stream=False,
        request_digest=request,
        plan_hash="plan-1",
        principal="ci",
        keys=("finding-1",),
        calls=(call,),
        reply=reply,
        receipt_id="rcpt_1",
        expires_at_ms=FOREVER,
    )
    store = open_store("ward.db")
    store.commit(Delta(1000), seal=approvals.rows(ring, held))
    store.close()
    return held.handle


def digest(shell: Shell, handle: str) -> str:
    return json(shell, "approvals", handle)["digest"]


def verdict(handle: str) -> str:
    store = open_store("ward.db")
    try:
        return approvals.verdict(store, Keyring.load("ward.db.keys"), SCOPE, handle, 1001).status
    finally:
        store.close()


def test_what_waits_is_listed_with_its_arguments(shell: Shell) -> None:
    """G23: an approver sees who asked, for what, with which arguments, and by which rule it waits."""
    handle = hold()

    code, out, err = shell("approvals")

    assert (code, err) == (0, "")
    assert out == (
        f"{handle}  until 2096-10-02 07:06:40\n"
        "  coding, session s1 of acme, asked by ci\n"
        '  shell_exec: {"path":"/etc"}\n'
        "    ask-first: Ask first.\n"
        f"  --seen {digest(shell, handle)}\n"
        "1 waits\n"
    )


def test_the_list_as_json_goes_on_where_it_ended(shell: Shell) -> None:
    """G61: as the API answers."""
    handles = sorted([hold("one"), hold("two")])

    first = json(shell, "approvals", "--limit", "1")
    rest = json(shell, "approvals", "--after", first["next_after"])

    assert [one["handle"] for one in first["approvals"] + rest["approvals"]] == handles
    assert rest["next_after"] is None


def test_what_a_model_wrote_cannot_play_with_the_terminal(shell: Shell) -> None:
    """Escapes, line breaks and marks that turn text around are shown, not obeyed."""
    handle = hold(arguments="ls\x1b[2K\n\u202etxt.exe")

    assert "ls\\x1b[2K\\n\\u202etxt.exe" in shell("approvals", handle)[1]


def test_approving_decides_about_what_was_seen_and_leaves_a_receipt(shell: Shell) -> None:
    """G23, G61: the verdict is in the store for every gateway, and who decided is in the chain."""
    handle = hold()

    answer = shell("approve", handle, "--seen", digest(shell, handle), "--operator", "ann", "--note", "fine")

    assert answer == (0, f"{handle} approved by ann\n", "")
    assert verdict(handle) == "approved"
    store = open_store("ward.db")
    [stored] = store.receipts(ReceiptQuery()).receipts
    store.close()
    told = receipts.load(stored.row.body)
    assert told["caller"]["principal"] == "ann"
    assert "fine" in str(told) and "/etc" not in str(told)


def test_rejecting_answers_as_the_api_does(shell: Shell) -> None:
    """G61: `--json` has the same keys."""
    handle = hold()

    made = json(shell, "reject", handle, "--seen", digest(shell, handle), "--operator", "ann", "--note", "no")

    assert made == {
        "handle": handle,
        "status": "rejected",
        "operator": "ann",
        "note": "no",
        "decided_at_ms": made["decided_at_ms"],
    }
    assert verdict(handle) == "rejected"


def test_without_a_terminal_the_digest_must_be_said(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script cannot approve what nobody looked at."""
    handle = hold()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))

    assert shell("approve", handle, "--operator", "ann") == (
        1,
        "",
        f"wardwright: say what you looked at: --seen DIGEST, as 'wardwright approvals {handle}' shows it\n",
    )
    assert verdict(handle) == "pending"


@pytest.mark.parametrize(("typed", "code", "status"), [("y\n", 0, "approved"), ("n\n", 1, "pending")])
def test_at_a_terminal_it_is_shown_and_asked_for(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, status: str
) -> None:
    """G61: who sits there sees the arguments before saying yes."""
    handle = hold()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(typed))
    ended, out, _ = shell("approve", handle, "--operator", "ann")

    assert (ended, verdict(handle)) == (code, status)
    assert '  shell_exec: {"path":"/etc"}\n' in out and "Approve this? [y/N]" in out


def test_who_asked_does_not_decide(shell: Shell) -> None:
    """G23: one line, exit code 1, nothing decided."""
    handle = hold()

    answer = shell("approve", handle, "--seen", digest(shell, handle), "--operator", "ci")

    assert answer == (1, "", "wardwright: Somebody else than the requester has to decide.\n")
    assert verdict(handle) == "pending"


@pytest.mark.parametrize("name", ["ann\nadmin", "a" * 257])
def test_who_decides_has_a_name_that_can_be_read(shell: Shell, name: str) -> None:
    """It stands on a receipt for good."""
    handle = hold()

    answer = shell("approve", handle, "--seen", digest(shell, handle), "--operator", name)

    assert answer == (1, "", "wardwright: --operator: expected a name of at most 256 characters on one line\n")
    assert verdict(handle) == "pending"


def test_another_thing_than_what_was_seen_is_not_decided(shell: Shell) -> None:
    """G23: what is approved is exactly what was looked at."""
    handle = hold()
    seen = digest(shell, handle)
    hold(arguments='{"path":"/root"}')

    assert shell("approve", handle, "--seen", seen, "--operator", "ann") == (
        1,
        "",
        f"wardwright: Something else waits under {handle} by now: look at it again.\n",
    )


@pytest.mark.parametrize("arguments", [("approvals", "apr_0"), ("approve", "apr_0", "--seen", "x")])
def test_an_unknown_handle_is_told(shell: Shell, arguments: tuple[str, ...]) -> None:
    """G61: exit code 1 and one line."""
    assert shell(*arguments) == (1, "", "wardwright: Nothing waits under apr_0: it was decided or has expired.\n")


def test_keys_are_never_made_to_look_at_what_waits(shell: Shell) -> None:
    """A new ring could open nothing, and would be taken for the store's."""
    Path("ward.db.keys").rename("elsewhere")

    code, _, err = shell("approvals")

    assert code == 1 and "ward.db.keys" in err
    assert not Path("ward.db.keys").exists()
    assert shell("approvals", "--keys", "elsewhere")[:2] == (0, "0 wait\n")
