"""The ring of keys: where it lies, what is derived from it, and what rotation keeps."""

from __future__ import annotations

import os
import pickle
import resource
import threading
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright import compile_plan, govern, load_config, receipts
from wardwright.config import Problems, parse_yaml
from wardwright.facts import digest
from wardwright.history import EMPTY_SCOPE, Delta, ReceiptRow, Registers, apply, scope_key
from wardwright.keys import (
    DIGEST_DELAY_MS,
    RING_ENV,
    RING_FILE_ENV,
    Keyring,
    KeysUnusable,
    SealBroken,
    SecretSource,
    compile_secret,
    hash_key,
    new_secret,
    refuse_literals,
    ring_path,
    signing_keys_of,
    verify_key,
)
from wardwright.store import checkpoint, open_store, verify
from wardwright.wire.turn import Caller, CallItem, Turn

SCOPE = scope_key("session_id", Caller(tenant="acme", session_id="s1"))
LATER = 2_000_000_000_000

LOOP = """
model_id: m
targets: [{model: m/one, provider: scripted, context_window: 1000, tools: true}]
scopes: {user: {retention: 30d, purpose: to stop loops}}
governance:
  - id: no-loops
    kind: tool_loop_threshold
    cache_scope: user
    tool: {name: search}
    equal: tool+arguments
    threshold: 3
    action: deny_call
"""


def everything(error: BaseException) -> str:
    """All that a log could show of an exception and of those behind it."""
    told: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        told.append(f"{seen!r} {seen} {seen.args} {vars(seen)} {getattr(seen, 'doc', '')}")
        seen = seen.__cause__ or seen.__context__
    return "\n".join(told)


def secrets_of(ring: Keyring) -> list[str]:
    values = orjson.loads(ring.export())
    return [one["secret"] for one in (*values["digests"], *values["generations"])]


# where it lies


def test_a_new_ring_lies_beside_the_database_for_its_owner_alone(tmp_path: Path) -> None:
    """The first start makes the file with mode 0600, whatever the umask."""
    path = ring_path(str(tmp_path / "ward.db"))
    assert path is not None
    before = os.umask(0)
    try:
        Keyring.load_or_create(path, {})
    finally:
        os.umask(before)

    assert (path.name, path.stat().st_mode & 0o777) == ("ward.db.keys", 0o600)


def test_a_ring_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """G64: what was sealed and counted before goes on after."""
    first = Keyring.load_or_create(tmp_path / "keys", {})
    again = Keyring.load_or_create(tmp_path / "keys", {})

    assert again.unseal(first.seal(b"held", b"row"), b"row") == b"held"
    assert (again.session_key(SCOPE), again.signing_key) == (first.session_key(SCOPE), first.signing_key)


def test_of_several_processes_that_start_at_once_one_makes_the_ring(tmp_path: Path) -> None:
    """Nobody goes on with a ring that another one overwrote."""
    rings: list[Keyring] = []
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait()
        rings.append(Keyring.create(tmp_path / "keys", exist_ok=True))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({ring.signing_key for ring in rings}) == 1
    assert os.listdir(tmp_path) == ["keys"]


def test_a_ring_can_come_by_the_environment(tmp_path: Path) -> None:
    """Machines that share a database share the ring, and write no file."""
    first = Keyring.create(tmp_path / "keys")
    other = Keyring.load_or_create(tmp_path / "elsewhere", {RING_ENV: first.export()})

    assert other.unseal(first.seal(b"x", b""), b"") == b"x"
    assert not (tmp_path / "elsewhere").exists()


def test_a_ring_can_come_from_a_named_file(tmp_path: Path) -> None:
    """A mounted file is used in the place of the one beside the database."""
    first = Keyring.create(tmp_path / "mounted")
    other = Keyring.load_or_create(tmp_path / "elsewhere", {RING_FILE_ENV: str(tmp_path / "mounted")})

    assert other.session_key(SCOPE) == first.session_key(SCOPE)


def test_a_named_file_is_never_made(tmp_path: Path) -> None:
    """Two machines that each made one would not share it."""
    with pytest.raises(KeysUnusable, match="No such file"):
        Keyring.load_or_create(tmp_path / "keys", {RING_FILE_ENV: str(tmp_path / "missing")})
    assert os.listdir(tmp_path) == []


def test_a_database_server_needs_a_shared_ring() -> None:
    """G64: the refusal says what to set."""
    assert ring_path("postgresql://db/ward") is None
    with pytest.raises(KeysUnusable) as caught:
        Keyring.load_or_create(ring_path("postgresql://db/ward"), {})
    assert str(caught.value) == (
        "Machines that share a database must share their keys. Set WARDWRIGHT_KEYS_FILE to a file made by "
        "`wardwright keys create FILE`, or WARDWRIGHT_KEYS to what is in it."
    )


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o666])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    """A ring that may have leaked is not used silently."""
    Keyring.create(tmp_path / "keys")
    (tmp_path / "keys").chmod(mode)

    with pytest.raises(KeysUnusable, match="others can read or change it; run `chmod 600` on it"):
        Keyring.load(tmp_path / "keys")


def test_a_file_of_the_owner_s_group_is_taken(tmp_path: Path) -> None:
    """Mounted secrets are often readable by the service's group."""
    made = Keyring.create(tmp_path / "keys")
    (tmp_path / "keys").chmod(0o440)

    assert Keyring.load(tmp_path / "keys").signing_key == made.signing_key


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    """Making a ring over another one would lose every counter."""
    made = Keyring.create(tmp_path / "keys")
    with pytest.raises(KeysUnusable, match="it exists already"):
        Keyring.create(tmp_path / "keys")
    assert Keyring.load(tmp_path / "keys").signing_key == made.signing_key


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    """An operator reads what is wrong, not a traceback."""
    with pytest.raises(KeysUnusable, match="cannot be made: No such file or directory"):
        Keyring.load_or_create(tmp_path / "no" / "keys", {})


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-9],
        lambda text: text.replace('"version":1', '"version":2'),
        lambda text: text.replace('"generations":[', '"generations":[], "x":['),
        lambda text: text.replace('"digests":[', '"digests":[], "y":['),
        lambda text: text.replace('"made_ms":0', '"made_ms":"0"'),
        lambda text: text.replace("=", "A"),
        lambda text: text.replace('"admin":""', '"admin":"token"'),
        lambda text: text.replace('"admin":""', '"admin":null'),
        lambda text: "[]",
        lambda text: f"{text} {text}",
        lambda text: text + "\ud800",
    ],
)
def test_a_broken_ring_is_refused_without_showing_it(change: object) -> None:
    """Neither the message nor the errors behind it hold a secret."""
    ring = Keyring.ephemeral()
    with pytest.raises(KeysUnusable) as caught:
        Keyring.load_or_create(None, {RING_ENV: change(ring.export())})  # type: ignore[operator]

    assert str(caught.value) == "The environment variable WARDWRIGHT_KEYS does not hold a ring of keys of this version."
    assert [secret for secret in secrets_of(ring) if secret[:20] in everything(caught.value)] == []


# what is derived


def test_keys_for_different_uses_are_different() -> None:
    """Who learns one of them learns no other."""
    ring = Keyring.ephemeral()
    derived = {ring.session_key(SCOPE), ring.signing_key, ring.stable_key("redaction"), ring.stable_key("handles")}

    assert len(derived) == 4
    assert {len(key) for key in derived} == {32}


def test_a_digest_key_belongs_to_a_tenant() -> None:
    """Two tenants never see equal digests; sessions, users and runs of one tenant do."""
    ring = Keyring.ephemeral()
    acme = Caller(tenant="acme", session_id="s1", user="eve")
    other = Caller(tenant="other", session_id="s1", user="eve")

    assert ring.session_key(scope_key("session_id", acme)) == ring.session_key(scope_key("user", acme))
    assert ring.session_key(scope_key("session_id", acme)) != ring.session_key(scope_key("session_id", other))


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_tenant_s_key_is_another_s(one: str, two: str) -> None:
    """Whatever a tenant is called."""
    scopes = [f"session_id\x1f{name}\x1fs" for name in (one, two) if "\x1f" not in name]
    keys = {RING.session_key(scope) for scope in scopes}

    assert len(keys) == len(set(scopes))


RING = Keyring.ephemeral()


def test_a_rule_over_users_counts_equal_arguments_in_several_sessions() -> None:
    """G20: a new session id does not escape a loop rule: the digest key is not the session's own."""
    plan = compile_plan(load_config(LOOP))
    registers = Registers(key=RING.session_key(SCOPE))
    statuses: list[str] = []
    for number in range(3):
        caller = Caller(tenant="acme", user="eve", session_id=f"s{number}")
        key = RING.session_key(scope_key("session_id", caller))
        turn = Turn("reply", "chat_completions", "m", [CallItem(f"c{number}", "search", '{"q":1}')], caller=caller)
        ruling, delta = govern(plan, Registers(registers.scopes, key), turn, number)
        registers = apply(registers, delta)
        statuses.append(ruling.calls[0].status)

    assert statuses == ["allow", "allow", "deny_call"]


def test_keys_of_many_tenants_are_not_all_remembered() -> None:
    """Callers may be let to name tenants; the keys are the same when they are derived again."""
    ring = Keyring.ephemeral()
    keys = [ring.session_key(f"session_id\x1ft{number}\x1fs") for number in range(3_000)]

    assert len(set(keys)) == 3_000
    assert ring.session_key("session_id\x1ft0\x1fs") == keys[0]


def test_keys_of_many_sessions_are_not_all_remembered() -> None:
    """Sessions of one tenant have one key and those of another one another, however many and however they are named."""
    ring = Keyring.ephemeral()
    keys = [ring.session_key(f"session_id\x1ft{number % 2}\x1fs{number}") for number in range(9_000)]

    assert keys == [*keys[:2]] * 4_500
    assert ring.session_key("session_id\x1ft1\x1f" + "s" * 9_000) == keys[1] != keys[0]


def test_a_scope_of_another_form_gets_its_own_key_each_time() -> None:
    """What is remembered is remembered by tenant: no scope without one passes for another."""
    ring = Keyring.ephemeral()
    odd = ["", "a", "b", "tenant\x1fa", "tenant\x1fb", "session_id\x1fa\x1fs", "session_id\x1fb\x1fs"]
    first = [ring.session_key(scope) for scope in odd]

    assert [ring.session_key(scope) for scope in odd] == first
    assert first[1] == first[3] == first[5]
    assert first[2] == first[4] == first[6]
    assert len(set(first)) == 3


# sealing


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_what_is_sealed_opens(plain: bytes, aad: bytes) -> None:
    """G8: whatever it is and wherever it belongs."""
    assert RING.unseal(RING.seal(plain, aad), aad) == plain


def test_sealed_data_shows_nothing_and_is_never_twice_the_same() -> None:
    """Equal replies cannot be told from different ones."""
    first, second = RING.seal(b"rm -r x" * 9, b""), RING.seal(b"rm -r x" * 9, b"")

    assert b"rm -r x" not in first
    assert first[-60:] != second[-60:]


def test_sealed_data_opens_only_where_it_belongs() -> None:
    """G8: a row moved to another session stays shut."""
    with pytest.raises(SealBroken, match="was changed, or belongs elsewhere"):
        RING.unseal(RING.seal(b"x", b"session one"), b"session two")


@given(st.data())
def test_changed_data_does_not_open(data: st.DataObject) -> None:
    """Any bit of it, the head too."""
    sealed = bytearray(RING.seal(b"held reply", b"row"))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealBroken):
        RING.unseal(bytes(sealed), b"row")


@pytest.mark.parametrize("data", [b"", b"ww1", b"x" * 100])
def test_what_was_never_sealed_does_not_open(data: bytes) -> None:
    """Short or foreign data is refused, not read."""
    with pytest.raises(SealBroken, match="This is no sealed data"):
        RING.unseal(data, b"")


def test_another_ring_does_not_open() -> None:
    """The refusal names the generation, which is no secret."""
    with pytest.raises(SealBroken, match=f"generation {RING.generations[0][0]}, which is not in this ring"):
        Keyring.ephemeral().unseal(RING.seal(b"x", b""), b"")


# rotation


def test_rotation_keeps_every_digest(tmp_path: Path) -> None:
    """Counters over equal arguments go on: the digest of a call is what it was."""
    ring = Keyring.create(tmp_path / "keys")
    before = digest(ring.session_key(SCOPE, 5), '{"q":1}'), ring.stable_key("redaction")
    ring.rotate(LATER)

    assert (digest(ring.session_key(SCOPE, LATER), '{"q":1}'), ring.stable_key("redaction")) == before


def test_after_rotation_the_new_generation_seals_and_the_old_one_still_opens(tmp_path: Path) -> None:
    """Held replies survive."""
    ring = Keyring.create(tmp_path / "keys")
    old = ring.seal(b"held", b"row")
    made = ring.rotate(LATER)

    assert ring.unseal(old, b"row") == b"held"
    assert ring.seal(b"x", b"")[3:11].hex() == made
    assert [name for name, _ in ring.generations][-1] == made


def test_a_process_that_did_not_see_the_rotation_opens_what_the_others_seal(tmp_path: Path) -> None:
    """It reads the file again when it meets a generation it does not know."""
    ring = Keyring.create(tmp_path / "keys")
    other = Keyring.load(tmp_path / "keys")
    ring.rotate(LATER)

    assert other.unseal(ring.seal(b"held", b""), b"") == b"held"
    assert other.signing_key == ring.signing_key


def test_checkpoints_verify_across_rotations(tmp_path: Path) -> None:
    """The chain is signed with the newest key and verified with all of them."""
    ring = Keyring.create(tmp_path / "keys")
    store = open_store(str(tmp_path / "ward.db"))
    try:
        store.commit(*receipt_of(1))
        checkpoint(store, 1, ring.signing_key)
        ring.rotate(2)
        store.commit(*receipt_of(2))
        checkpoint(store, 3, ring.signing_key)

        assert verify(store, ring.signing_keys).good
        assert not verify(store, ring.signing_keys[:1]).good
    finally:
        store.close()


def receipt_of(number: int) -> tuple[Delta, ReceiptRow]:
    return Delta(number), receipts.record(receipts.build_admin(f"rcpt_{number}", number, Caller(), "test", "it"))


def test_a_retired_generation_opens_and_verifies_nothing(tmp_path: Path) -> None:
    """What may have leaked can be taken out."""
    ring = Keyring.create(tmp_path / "keys")
    sealed, key = ring.seal(b"x", b""), ring.signing_key
    ring.rotate(1)
    ring.retire(ring.generations[0][0])

    assert key not in ring.signing_keys
    with pytest.raises(SealBroken):
        ring.unseal(sealed, b"")


def test_the_last_generation_cannot_be_retired(tmp_path: Path) -> None:
    """A ring without a key to seal with would fail later, on somebody's request."""
    ring = Keyring.create(tmp_path / "keys")
    with pytest.raises(KeysUnusable, match="The last generation cannot be retired: rotate first"):
        ring.retire(ring.generations[0][0])
    with pytest.raises(KeysUnusable, match="The ring has no generation 'ab'"):
        ring.retire("ab")


def test_a_file_that_is_gone_leaves_the_ring_as_it_was(tmp_path: Path) -> None:
    """Whoever runs goes on; the operator is told."""
    ring = Keyring.create(tmp_path / "keys")
    sealed = ring.seal(b"held", b"")
    (tmp_path / "keys").unlink()

    with pytest.raises(KeysUnusable, match="cannot be used: No such file or directory"):
        ring.reload()
    with pytest.raises(SealBroken):
        ring.unseal(RING.seal(b"x", b""), b"")
    assert ring.unseal(sealed, b"") == b"held"


def test_a_ring_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    """A full disk, a file that is gone, a folder that takes no new file: told, and nothing half-written is left."""
    ring = Keyring.create(tmp_path / "keys")
    before = (tmp_path / "keys").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(KeysUnusable) as full:
            ring.rotate(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = os.listdir(tmp_path)
    long = tmp_path / ("k" * 250)
    (tmp_path / "keys").rename(long)
    with pytest.raises(KeysUnusable, match="cannot be written: File name too long"):
        Keyring.load(long).rotate(1)
    with pytest.raises(KeysUnusable, match="cannot be used: No such file or directory"):
        ring.rotate(1)

    assert str(full.value) == f"The key file {tmp_path / 'keys'} cannot be written: File too large."
    assert (left, os.listdir(tmp_path), long.read_bytes()) == (["keys"], [long.name], before)
    assert len(ring.generations) == 1


def test_a_named_key_file_may_be_a_ring_or_any_bytes(tmp_path: Path) -> None:
    """Receipts signed before there was a ring still verify with the file they were signed with."""
    ring = Keyring.create(tmp_path / "ring")
    ring.rotate(1)
    (tmp_path / "plain").write_bytes(b"a key of old")
    (tmp_path / "empty").write_bytes(b"")

    assert signing_keys_of(tmp_path / "ring") == ring.signing_keys
    assert signing_keys_of(tmp_path / "plain") == (b"a key of old",)
    for name, problem in (("empty", "it is empty"), ("gone", "No such file or directory")):
        with pytest.raises(KeysUnusable, match=f"cannot be used: {problem}"):
            signing_keys_of(tmp_path / name)


def test_several_processes_can_rotate_at_once(tmp_path: Path) -> None:
    """No generation is lost, or what it sealed would never open."""
    Keyring.create(tmp_path / "keys")
    made: list[str] = []

    def turn(number: int) -> None:
        made.append(Keyring.load(tmp_path / "keys").rotate(number))

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {name for name, _ in Keyring.load(tmp_path / "keys").generations[1:]} == set(made)
    assert os.listdir(tmp_path) == ["keys"]


def test_a_replaced_digest_secret_is_for_sessions_that_begin_later(tmp_path: Path) -> None:
    """Running sessions keep the digests they have, on every machine."""
    ring = Keyring.create(tmp_path / "keys")
    old = ring.session_key(SCOPE, 1)
    from_ms = ring.replace_digest(LATER)
    other = Keyring.load(tmp_path / "keys")

    assert from_ms == LATER + DIGEST_DELAY_MS
    assert [other.session_key(SCOPE, at) == old for at in (1, from_ms - 1, from_ms, from_ms + 1)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_running_session_goes_on_across_a_replaced_digest_secret() -> None:
    """The start of a session, kept in its head, chooses the key: three equal calls are three, whenever the secret changed."""
    plan = compile_plan(load_config(LOOP.replace("cache_scope: user", "cache_scope: session_id")))
    ring = Keyring.ephemeral()
    caller = Caller(tenant="acme", session_id="s1")
    registers, statuses = Registers(), list[str]()
    for number in range(3):
        now = 1_000 + number
        head = registers.scopes.get(SCOPE, EMPTY_SCOPE).head
        key = ring.session_key(SCOPE, head.since_ms or now)
        turn = Turn("reply", "chat_completions", "m", [CallItem(f"c{number}", "search", '{"q":1}')], caller=caller)
        ruling, delta = govern(plan, Registers(registers.scopes, key), turn, now)
        registers = apply(registers, delta)
        statuses.append(ruling.calls[0].status)
        ring.replace_digest(now, delay_ms=1)

    assert statuses == ["allow", "allow", "deny_call"]


def test_a_ring_of_the_environment_cannot_be_changed() -> None:
    """The change would be lost with the process; the refusal says where to make it."""
    ring = Keyring.load_or_create(None, {RING_ENV: Keyring.ephemeral().export()})
    with pytest.raises(KeysUnusable) as caught:
        ring.rotate(1)
    assert str(caught.value) == (
        "This ring comes from WARDWRIGHT_KEYS: change the file it was exported from, and export it again."
    )


# the admin token


def test_the_admin_token_is_told_once_and_kept_hashed(tmp_path: Path) -> None:
    """Whoever reads the file cannot administer with it."""
    ring = Keyring.create(tmp_path / "keys")
    token = ring.admin_token_once()
    assert token is not None

    assert ring.admin_token_once() is None
    assert Keyring.load(tmp_path / "keys").admin_token_once() is None
    assert verify_key(token, Keyring.load(tmp_path / "keys").admin_hash)
    assert token not in (tmp_path / "keys").read_text()


def test_of_several_processes_one_tells_the_admin_token(tmp_path: Path) -> None:
    """Each worker asks; one prints, and that token is the one that holds."""
    rings = [Keyring.load_or_create(tmp_path / "keys", {}) for _ in range(4)]
    tokens = [token for ring in rings if (token := ring.admin_token_once())]

    assert len(tokens) == 1
    assert {verify_key(tokens[0], ring.admin_hash) for ring in rings} == {True}


def test_a_ring_of_the_environment_makes_no_admin_token() -> None:
    """It could not be kept, so every process would have another one."""
    assert Keyring.load_or_create(None, {RING_ENV: RING.export()}).admin_token_once() is None


def test_a_new_admin_token_replaces_the_old_one(tmp_path: Path) -> None:
    """Other processes follow when they reload."""
    ring = Keyring.create(tmp_path / "keys")
    other = Keyring.load(tmp_path / "keys")
    old, new = ring.new_admin_token(), ring.new_admin_token()
    other.reload()

    assert [verify_key(token, other.admin_hash) for token in (old, new)] == [False, True]


# callers' keys


def test_a_key_is_verified_by_its_hash() -> None:
    """And by nothing else."""
    key = new_secret()

    assert verify_key(key, hash_key(key))
    assert not verify_key(key + " ", hash_key(key))
    assert not verify_key(key, "sha256:")
    assert not verify_key("\ud800", hash_key(key))


def test_new_keys_are_long_and_never_the_same() -> None:
    """256 bits, with a prefix that secret scanners can look for."""
    made = {new_secret() for _ in range(50)}

    assert len(made) == 50
    assert {key[:4] for key in made} == {"wwk_"}
    assert min(len(key) for key in made) >= 47


# secrets named by a config


def test_a_secret_is_read_from_where_the_config_says(tmp_path: Path) -> None:
    """White space around it is not part of it."""
    (tmp_path / "key").write_text(" from-file \n")

    assert SecretSource(env="KEY").read("x", {"KEY": " from-env\n"}) == "from-env"
    assert SecretSource(file=str(tmp_path / "key")).read("x") == "from-file"


def test_a_secret_that_is_missing_is_told_by_its_place(tmp_path: Path) -> None:
    """What wants it, and where it was looked for."""
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(KeysUnusable) as unset:
        SecretSource(env="KEY").read("providers.openai", {})
    with pytest.raises(KeysUnusable) as empty:
        SecretSource(file=str(tmp_path / "empty")).read("auth.admin")
    with pytest.raises(KeysUnusable) as gone:
        SecretSource(file=str(tmp_path / "gone")).read("auth.admin")

    assert str(unset.value) == "providers.openai: the environment variable KEY is not set or empty."
    assert str(empty.value) == f"auth.admin: the file {tmp_path / 'empty'} is empty."
    assert str(gone.value) == f"auth.admin: the file {tmp_path / 'gone'} cannot be read: No such file or directory."


@pytest.mark.parametrize(
    ("content", "problem"), [(b"x" * 70_000, "is too long for a secret"), (b"\xff\xfe", "does not hold text")]
)
def test_a_file_that_holds_no_secret_is_told(tmp_path: Path, content: bytes, problem: str) -> None:
    """Somebody named the wrong file."""
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(KeysUnusable) as caught:
        SecretSource(file=str(tmp_path / "key")).read("auth.admin")

    assert str(caught.value) == f"auth.admin: the file {tmp_path / 'key'} {problem}."


def test_a_secret_with_line_breaks_is_refused_without_showing_it() -> None:
    """It would end a header and begin another one."""
    with pytest.raises(KeysUnusable) as caught:
        SecretSource(env="KEY").read("x", {"KEY": "hidden\r\nx-more: 1"})

    assert str(caught.value) == "x: the secret has line breaks or characters that cannot be printed."
    assert "hidden" not in everything(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "api_key_env: sk-live-123",
            "expected the name of an environment variable, such as WARDWRIGHT_API_KEY; "
            "the secret itself has no place in a config file",
        ),
        (
            "api_key_env: 123",
            "expected the name of an environment variable, such as WARDWRIGHT_API_KEY; "
            "the secret itself has no place in a config file",
        ),
        ("api_key_file: 123", "expected the path of a file that holds the secret"),
        ("{api_key_env: KEY, api_key_file: /run/key}", "give api_key_env or api_key_file, not both"),
        (
            "api_key: sk-live-123",
            "'api_key': a secret has no place in a config file; name it with api_key_env",
        ),
    ],
)
def test_a_secret_in_the_wrong_place_is_told_and_not_repeated(text: str, message: str) -> None:
    """`check` prints problems to terminals and build logs."""
    problems = Problems("f.yaml")
    node = refuse_literals(parse_yaml(text, problems), ("api_key",), "name it with api_key_env", problems)
    compile_secret(node.items(), "api_key", problems)

    assert [problem.message for problem in problems.found] == [message]
    assert "123" not in str(problems.found[0])


def test_a_variable_may_have_any_name_that_a_shell_takes() -> None:
    """The same names as for the keys of providers; not all of them are in capitals."""
    problems = Problems("f.yaml")

    assert compile_secret(parse_yaml("api_key_env: my_Key_2", problems).items(), "api_key", problems) == SecretSource(
        env="my_Key_2"
    )
    assert not problems.found


def test_nothing_shows_a_secret() -> None:
    """Neither repr nor text nor what a debugger prints of the ring and its parts."""
    ring = Keyring.ephemeral()
    ring.rotate(1)
    shown = f"{ring!r} {ring} {ring.generations!r}"

    assert shown.startswith("Keyring(2 generations, memory)")
    assert [secret for secret in secrets_of(ring) if secret in shown] == []


def test_a_ring_cannot_be_pickled() -> None:
    """It would lie about in queues and caches."""
    with pytest.raises(TypeError, match="A ring of keys cannot be pickled"):
        pickle.dumps(RING)
