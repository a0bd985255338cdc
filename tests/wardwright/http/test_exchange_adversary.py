"""Against the exchange: callers that hang up anywhere, answers that cross, approvals in other hands, stores and providers that fail."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright.errors import ProviderFailed, StoreUnavailable
from wardwright.exchange import Exchange
from wardwright.wire.turn import WireName

from .gateway_fixture import PATH, Answer, Running, Streamed, asked, called, goes_on, running, said
from .test_exchange import CONFIG, decide

CHAT: WireName = "chat_completions"
STATUS = "wardwright_policy_cache_status"
SERVED = (
    CONFIG
    + """  - {id: no-leak, kind: tool_selector, action: block, message: Not that., tool: {name: leak, source: tool_result}}
server_tools:
  - {name: wardwright_policy_cache_status, engine: builtin}
  - {name: add, engine: snippet, source: "1 + 1", description: d, parameters: {type: object, properties: {}}}
  - {name: leak, engine: snippet, source: "'x'", description: d, parameters: {type: object, properties: {}}}
"""
)


def judged(gateway: Running, session: str) -> bool:
    """Whether anything of this session was committed."""
    scope = f"session_id\x1f\x1f{session}"
    return gateway.service.store.load((scope,), lambda _: ())[scope].version > 0


def receipts_of(gateway: Running, session: str) -> list[dict[str, Any]]:
    return [one for one in gateway.receipts() if one["caller"]["session_id"] == session]


class Committing:
    """Wraps a store's commits: calls `then` after each batch that was committed."""

    def __init__(self, gateway: Running, then: Callable[[Sequence[Any]], None]) -> None:
        store: Any = gateway.service.store
        commit_all = store.commit_all

        def committed(commits: Sequence[Any]) -> Any:
            made = commit_all(commits)
            then(commits)
            return made

        store.commit_all = committed


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "calls", [(), ("wipe",), ("deploy",), ("bomb",), ("look", "wipe"), (STATUS,), (STATUS, "look")]
)
def test_who_is_cut_off_anywhere_leaves_one_receipt(tmp_path: Path, calls: tuple[str, ...], stream: bool) -> None:
    """X2: cancelled at any step, an exchange that was judged has one receipt, and one that was not has none."""

    async def story(gateway: Running) -> None:
        body = asked(CHAT, "hi", ["look", "wipe", "deploy", "bomb"], stream=stream)
        ended = False
        steps = 0
        while not ended:
            steps += 1
            session = f"s{steps}"
            made = [(f"{session}-{name}", name, {}) for name in calls]
            gateway.provider.replies = [said(CHAT, "", *made), said(CHAT, "Done."), said(CHAT, "Done.")]
            task = asyncio.ensure_future(gateway.post(PATH[CHAT], body, session=session))
            for _ in range(steps):
                await asyncio.sleep(0)
            ended = task.done()
            task.cancel()
            await asyncio.wait([task])
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(receipts_of(gateway, session)) == judged(gateway, session), f"cut off at step {steps}"
        assert steps > 4

    running(tmp_path, SERVED, story)


@pytest.mark.parametrize("which", [1, 2], ids=["request", "reply"])
@pytest.mark.interpreted
def test_a_caller_who_hangs_up_during_a_commit_leaves_one_receipt(tmp_path: Path, which: int) -> None:
    """X2: what was committed when nobody was there any more to be told counts as it was committed, once."""

    async def story(gateway: Running) -> None:
        gone = asyncio.Event()
        count = 0

        def hang_up(_: Sequence[Any]) -> None:
            nonlocal count
            count += 1
            if count == which:
                gone.set()

        Committing(gateway, hang_up)
        gateway.provider.replies = [said(CHAT, "Hello.")]
        await gateway.post(PATH[CHAT], asked(CHAT, "hi", stream=True), session="s1", gone=gone)
        assert len(receipts_of(gateway, "s1")) == 1

    running(tmp_path, CONFIG, story)


def test_a_caller_who_hangs_up_lets_go_of_the_provider(tmp_path: Path) -> None:
    """A stream that nobody reads any more is closed at the provider, and recorded as abandoned."""

    async def story(gateway: Running) -> None:
        gone = asyncio.Event()
        stream = Streamed()
        gateway.provider.replies = [stream]
        task = asyncio.ensure_future(gateway.post(PATH[CHAT], asked(CHAT, "hi", stream=True), session="s1", gone=gone))
        while not gateway.provider.sent:
            await asyncio.sleep(0)
        gone.set()
        await task
        assert stream.closed
        assert [one["final"]["status"] for one in receipts_of(gateway, "s1")] == ["failed"]

    running(tmp_path, CONFIG, story)


def test_a_blocked_result_waits_for_the_tools_beside_it(tmp_path: Path) -> None:
    """G41: when one result is blocked, nothing of the other tools goes on behind the receipt: all runs are on it."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(CHAT, "", ("c1", "leak", {}), ("c2", "add", {}))]
        answer = await gateway.post(PATH[CHAT], asked(CHAT, "hi"), session="s1")
        assert answer.status == 403
        runs = gateway.receipt(answer)["final"]["provider_metadata"]["wardwright_server_tools"]
        assert sorted(one["name"] for one in runs) == ["add", "leak"]

    running(tmp_path, SERVED, story)


def other_plan(config: str) -> bytes:
    return (config + "  - {id: another, kind: request_guard, match: never said, action: alert_async}\n").encode()


def test_a_held_reply_is_not_released_under_another_plan(tmp_path: Path) -> None:
    """G23: an approval is bound to the plan it was given under; after a change the reply is held, and decided, anew."""

    async def story(gateway: Running) -> None:
        body = asked(CHAT, "go", ["deploy"])
        gateway.provider.replies = [said(CHAT, "", ("c1", "deploy", {})), said(CHAT, "", ("c2", "deploy", {}))]
        held = await gateway.post(PATH[CHAT], body, session="s1")
        await decide(gateway, held.json["error"]["approval"], "approve")
        await gateway.service.activate(other_plan(CONFIG), "op")
        gateway.put_doubles()
        again = await gateway.post(PATH[CHAT], body, session="s1")
        assert again.status == 403 and again.json["error"]["code"] == "approval_required"
        assert len(gateway.provider.sent) == 2

    running(tmp_path, CONFIG, story)


KEYS = """
auth:
  keys:
    - {id: ann, key_env: ANN, tenant: t}
    - {id: bob, key_env: BOB, tenant: t}
"""


def test_an_approval_is_not_released_to_another_principal(tmp_path: Path) -> None:
    """G23: whoever else knows session, request and handle gets nothing of what was held for the requester."""

    async def story(gateway: Running) -> None:
        ann, bob = ({"authorization": f"Bearer {one * 40}"} for one in "ab")
        body = asked(CHAT, "go", ["deploy"])
        gateway.provider.replies = [
            said(CHAT, "", ("c1", "deploy", {"x": "for-ann"})),
            said(CHAT, "", ("c2", "deploy", {"x": "for-bob"})),
        ]
        held = await gateway.post(PATH[CHAT], body, ann, session="s1")
        handle = held.json["error"]["approval"]
        await decide(gateway, handle, "approve")
        taken = await gateway.post(PATH[CHAT], body, {**bob, "x-wardwright-approval": handle}, session="s1")
        assert taken.status != 200 and b"for-ann" not in taken.body
        mine = await gateway.post(PATH[CHAT], body, ann, session="s1")
        assert mine.status == 200 and called(CHAT, mine.json) == ["c1"]

    running(tmp_path, CONFIG + KEYS, story, environ={"ANN": "a" * 40, "BOB": "b" * 40})


ASKING = CONFIG + "  - {id: sign-off, kind: request_guard, action: require_approval, match: wire the money}\n"


def test_an_approved_request_may_show_its_handle(tmp_path: Path) -> None:
    """G23: the handle that the refusal gave is good for what was approved, at the request as at the reply."""

    async def story(gateway: Running) -> None:
        body = asked(CHAT, "please wire the money")
        gateway.provider.replies = [said(CHAT, "Done.")]
        held = await gateway.post(PATH[CHAT], body, session="s1")
        handle = held.json["error"]["approval"]
        await decide(gateway, handle, "approve")
        passed = await gateway.post(PATH[CHAT], body, {"x-wardwright-approval": handle}, session="s1")
        assert passed.status == 200 and b"Done." in passed.body

    running(tmp_path, ASKING, story)


@pytest.mark.parametrize("show", [False, True], ids=["same-request", "handle"])
def test_a_request_and_its_reply_may_both_need_an_approval(tmp_path: Path, show: bool) -> None:
    """G23: the request is approved, then its reply; then the reply is released, and the provider was asked once."""

    async def story(gateway: Running) -> None:
        body = asked(CHAT, "please wire the money", ["deploy"])
        gateway.provider.replies = [said(CHAT, "", ("c1", "deploy", {}))]
        headers: dict[str, str] = {}
        for _ in range(2):
            held = await gateway.post(PATH[CHAT], body, headers, session="s1")
            assert held.status == 403 and held.json["error"]["code"] == "approval_required"
            waits = await gateway.post(PATH[CHAT], body, headers, session="s1")
            assert waits.json["error"]["code"] == "approval_pending"
            await decide(gateway, held.json["error"]["approval"], "approve")
            if show:
                headers = {"x-wardwright-approval": held.json["error"]["approval"]}
        released = await gateway.post(PATH[CHAT], body, headers, session="s1")
        assert released.status == 200 and called(CHAT, released.json) == ["c1"]
        assert len(gateway.provider.sent) == 1
        once = await gateway.post(PATH[CHAT], body, session="s1")
        assert once.status == 403

    running(tmp_path, ASKING, story)


def test_two_replies_held_at_once_are_both_found_again(tmp_path: Path) -> None:
    """G23: two requests of one session that are under way at the same time do not forget each other's held reply."""

    async def story(gateway: Running) -> None:
        bodies = [asked(CHAT, text, ["deploy"]) for text in ("one", "two")]
        gateway.provider.replies = [said(CHAT, "", (f"c{n}", "deploy", {})) for n in (1, 2)]
        both = asyncio.Event()

        async def wait() -> None:
            if len(gateway.provider.sent) == 2:
                both.set()
            await both.wait()

        gateway.provider.before = wait
        held = await asyncio.gather(*[gateway.post(PATH[CHAT], body, session="s1") for body in bodies])
        for answer in held:
            await decide(gateway, answer.json["error"]["approval"], "approve")
        for body in bodies:
            assert (await gateway.post(PATH[CHAT], body, session="s1")).status == 200
        assert len(gateway.provider.sent) == 2

    running(tmp_path, CONFIG, story)


def test_one_approval_releases_one_of_two_equal_requests(tmp_path: Path) -> None:
    """G23: two retries at the same moment: one gets the reply, the other learns that it is used up; neither is an outage."""

    async def story(gateway: Running) -> None:
        body = asked(CHAT, "go", ["deploy"])
        gateway.provider.replies = [said(CHAT, "", (f"c{n}", "deploy", {})) for n in range(3)]
        held = await gateway.post(PATH[CHAT], body, session="s1")
        await decide(gateway, held.json["error"]["approval"], "approve")
        answers = await asyncio.gather(*[gateway.post(PATH[CHAT], body, session="s1") for _ in range(2)])
        assert sorted(answer.status for answer in answers) == [200, 410]
        assert len(receipts_of(gateway, "s1")) == 4  # with the operator's own

    running(tmp_path, CONFIG, story)


ROUTED = """
model_id: m
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}, other: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
targets:
  - {model: first, provider: double, context_window: 100000}
  - {model: second, provider: double, context_window: 100000}
  - {model: third, provider: other, context_window: 100000}
governance:
  - {id: private, kind: route_gate, action: restrict_routes, routes: [first, second], match: private}
  - {id: better, kind: tool_selector, action: switch_model, target_model: third, tool: {name: look, source: assistant_tool_call}}
  - {id: other, kind: tool_selector, action: restrict_routes, routes: [third, second], tool: {name: see, source: assistant_tool_call}}
"""


def test_a_reply_that_is_asked_again_stays_within_the_requests_routes(tmp_path: Path) -> None:
    """G12: a route rule at the reply chooses among what the request's ruling allows, never beside it."""

    async def story(gateway: Running) -> None:
        gateway.other.replies = [said(CHAT, "Leaked.")]
        gateway.provider.replies = [said(CHAT, "", ("c1", "look", {}))]
        body = asked(CHAT, "this is private", ["look", "see"])
        refused = await gateway.post(PATH[CHAT], body, session="s1")
        assert refused.status == 403
        gateway.provider.replies = [said(CHAT, "", ("c2", "see", {})), said(CHAT, "Well.")]
        answer = await gateway.post(PATH[CHAT], body, session="s2")
        assert answer.status == 200
        assert [sent["model"] for sent in gateway.provider.sent] == ["first", "first", "second"]
        assert gateway.other.sent == []

    running(tmp_path, ROUTED, story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), RuntimeError("odd"), OSError("gone")])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.interpreted
def test_a_store_that_fails_lets_nothing_pass(tmp_path: Path, at: int, error: Exception, stream: bool) -> None:
    """L2, G19: whatever the store raises at either gate, and from then on, is told as an outage of governance."""

    async def story(gateway: Running) -> None:
        store: Any = gateway.service.store
        commit_all, count = store.commit_all, 0

        def fails(commits: Any) -> Any:
            nonlocal count
            count += 1
            if count >= at:
                raise error
            return commit_all(commits)

        store.commit_all = fails
        gateway.provider.replies = [said(CHAT, "", ("c1", "look", {"x": "unseen"}))]
        answer = await gateway.post(PATH[CHAT], asked(CHAT, "hi", ["look"], stream=stream), session="s1")
        assert answer.status == 503 and answer.json["error"]["type"] == "governance_unavailable"
        assert b"unseen" not in answer.body
        store.commit_all = commit_all
        gateway.provider.replies = [said(CHAT, "Well again.")]
        answer = await gateway.post(PATH[CHAT], asked(CHAT, "hi", ["look"]), session="s1")
        assert answer.status == 200

    running(tmp_path, CONFIG, story)


def test_what_a_provider_says_of_a_prompt_is_not_recorded(tmp_path: Path) -> None:
    """G8: a provider's error may repeat what it was sent; the caller reads it, the receipt does not keep it."""

    async def story(gateway: Running) -> None:
        failed = ProviderFailed(
            "status", "the provider said no: 'my dearest secret' is too long", status=400, retryable=False
        )
        gateway.provider.replies = [failed]
        answer = await gateway.post(PATH[CHAT], asked(CHAT, "my dearest secret"), session="s1")
        assert b"my dearest secret" in answer.body
        assert b"my dearest secret" not in orjson.dumps(gateway.receipt(answer))

    running(tmp_path, CONFIG, story)


def test_ids_that_providers_use_again_keep_sessions_apart(tmp_path: Path) -> None:
    """G20: two sessions whose provider names its calls alike both stay what their headers say."""

    async def story(gateway: Running) -> None:
        replies: dict[str, Answer] = {}
        body = asked(CHAT, "hi", ["look"])
        for session in ("s1", "s2"):
            gateway.provider.replies = [said(CHAT, "", ("call_0", "look", {}))]
            replies[session] = await gateway.post(PATH[CHAT], body, session=session)
        for session, reply in replies.items():
            gateway.provider.replies = [said(CHAT, "Done.")]
            call = called(CHAT, reply.json)[0]
            answer = await gateway.post(PATH[CHAT], goes_on(CHAT, body, reply.json, {call: "seen"}), session=session)
            assert answer.headers["x-wardwright-session-id"] == session

    running(tmp_path, CONFIG, story)


def test_a_comment_never_comes_after_the_end(tmp_path: Path) -> None:
    """G2: keep-alive comments stop before the stream's last byte, whenever their time comes."""

    async def story(gateway: Running) -> None:
        gateway.limit(keep_alive_ms=0)  # in every turn of the event loop
        gateway.provider.replies = [said(CHAT, "Hello.", ("c1", "look", {})), said(CHAT, "", ("c1", "bomb", {}))]
        gateway.provider.piece = 16
        answer = await gateway.post(PATH[CHAT], asked(CHAT, "hi", ["look"], stream=True), session="s1")
        assert answer.status == 200 and answer.body.count(b": ") > 1
        await gateway.post(PATH[CHAT], asked(CHAT, "hi", ["look"], stream=True), session="s2")
        for _ in range(5):
            await asyncio.sleep(0)

    running(tmp_path, CONFIG, story)


async def hung_up(gateway: Running, body: dict[str, Any]) -> list[str]:
    """Sends it, hangs up as soon as the provider works on it; what its receipts say."""
    gone, forever = asyncio.Event(), asyncio.Event()

    async def works() -> None:
        gone.set()
        await forever.wait()

    gateway.provider.before = works
    gateway.provider.replies = [said(CHAT, "Too late.")]
    await gateway.post(PATH[CHAT], body, session="s1", gone=gone)
    return [one["final"]["status"] for one in receipts_of(gateway, "s1")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_caller_who_hangs_up_before_the_provider_answers_is_not_waited_for(tmp_path: Path, stream: bool) -> None:
    """Nobody works on for a caller who left, whether a stream was asked for or not."""

    async def story(gateway: Running) -> None:
        gateway.limit(keep_alive_ms=1)
        assert await hung_up(gateway, asked(CHAT, "hi", stream=stream)) == ["failed"]

    running(tmp_path, CONFIG, story)


def test_whoever_reads_nothing_leaves_nothing_behind(tmp_path: Path) -> None:
    """Of comments only one waits for a caller who does not read, and none when it has left."""

    async def story(gateway: Running) -> None:
        gateway.limit(keep_alive_ms=0)  # in every turn of the event loop
        gateway.provider.replies = [Streamed()]
        raw, waiting, gone, forever = (
            orjson.dumps(asked(CHAT, "hi", stream=True)),
            [0],
            asyncio.Event(),
            asyncio.Event(),
        )
        pieces = [{"type": "http.request", "body": raw}]

        async def receive() -> dict[str, Any]:
            if pieces:
                return pieces.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                waiting[0] += 1
                await forever.wait()

        scope = {
            "type": "http",
            "method": "POST",
            "path": PATH[CHAT],
            "headers": [(b"host", b"127.0.0.1:8787"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 50_000),
        }
        before = asyncio.all_tasks()
        request = asyncio.ensure_future(gateway.front(scope, receive, send))
        while not waiting[0]:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert waiting == [1]
        gone.set()
        await request
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    running(tmp_path, CONFIG, story)


def test_a_body_that_never_begins_takes_no_place(tmp_path: Path) -> None:
    """G64: who sends headers and then nothing is told so in time, and the next one is let in."""

    async def story(gateway: Running) -> None:
        gateway.limit(body_ms=1, concurrency=1)
        answer = Answer()
        never = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await never.wait()
            return {}

        async def send(message: Any) -> None:
            answer.status = answer.status or message["status"]

        scope = {
            "type": "http",
            "method": "POST",
            "path": PATH[CHAT],
            "headers": [(b"host", b"127.0.0.1:8787"), (b"content-length", b"100")],
            "client": ("127.0.0.1", 50_000),
        }
        await gateway.front(scope, receive, send)
        assert answer.status == 408
        gateway.provider.replies = [said(CHAT, "Hello.")]
        assert (await gateway.post(PATH[CHAT], asked(CHAT, "hi"))).status == 200

    running(tmp_path, CONFIG, story)


def test_nothing_is_left_of_requests_that_ended(tmp_path: Path) -> None:
    """No task, no garbage that only the collector finds: what a thousand requests leave does not grow with them."""

    async def story(gateway: Running) -> None:
        async def some(count: int, start: int) -> None:
            for number in range(start, start + count):
                stream = number % 2 == 0
                gateway.provider.replies = [
                    said(CHAT, "", (f"w{number}", "wipe", {})),
                    said(CHAT, "Hello.", (f"c{number}", "look", {})),
                ]
                answer = await gateway.post(
                    PATH[CHAT], asked(CHAT, "hi", ["look"], stream=stream), session=f"s{number}"
                )
                assert answer.status == 200
            await asyncio.sleep(0)

        await some(4, 0)
        gc.collect()
        before = len(asyncio.all_tasks())
        gc.disable()
        try:
            await some(20, 4)
            assert len(asyncio.all_tasks()) == before
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert [one for one in gc.garbage if isinstance(one, Exchange)] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    running(tmp_path, CONFIG, story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.interpreted
def test_a_store_that_fails_once_in_the_middle_is_recorded(tmp_path: Path, stream: bool) -> None:
    """X2, G19: nothing of the reply passes; the receipt says that governance was not available, the caller not where the store lies."""

    async def story(gateway: Running) -> None:
        store: Any = gateway.service.store
        commit_all, count = store.commit_all, 0

        def fails(commits: Any) -> Any:
            nonlocal count
            count += 1
            if count == 2:
                raise StoreUnavailable("store /var/lib/secret/place.db: disk full")
            return commit_all(commits)

        store.commit_all = fails
        gateway.provider.replies = [said(CHAT, "", ("c1", "look", {"x": "unseen"}))]
        answer = await gateway.post(PATH[CHAT], asked(CHAT, "hi", ["look"], stream=stream), session="s1")
        assert answer.status == 503 and b"unseen" not in answer.body and b"secret/place" not in answer.body
        assert [one["final"]["status"] for one in receipts_of(gateway, "s1")] == ["unavailable"]

    running(tmp_path, CONFIG, story)


def test_what_fails_at_the_door_is_an_outage_too(tmp_path: Path) -> None:
    """G19: an error before anything is judged is told in the wire's own shape, and gives its place back."""

    class Broken:
        def __init__(self, sound: Any) -> None:
            self._sound = sound

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sound, name)

        def caller_for(self, *_: Any) -> Any:
            raise RuntimeError("odd")

    async def story(gateway: Running) -> None:
        gateway.limit(concurrency=1)
        service: Any = gateway.service
        sound, service.authenticator = service.authenticator, Broken(service.authenticator)
        for wire in PATH:
            answer = await gateway.post(PATH[wire], asked("chat_completions", "hi"))
            assert answer.status == 503 and b"governance_unavailable" in answer.body
        service.authenticator = sound
        gateway.provider.replies = [said(CHAT, "Hello.")]
        assert (await gateway.post(PATH[CHAT], asked(CHAT, "hi"))).status == 200

    running(tmp_path, CONFIG, story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_approved_server_tool_runs_and_the_model_goes_on(tmp_path: Path, stream: bool) -> None:
    """G23, G41: a held reply may hold calls that are ours: approved, they run, and the provider is asked for the rest."""
    config = SERVED.replace("{name: deploy,", f"{{name: {STATUS},")

    async def story(gateway: Running) -> None:
        body = asked(CHAT, "go", ["look"], stream=stream)
        gateway.provider.replies = [said(CHAT, "", ("c1", STATUS, {})), said(CHAT, "All is well.")]
        held = await gateway.post(PATH[CHAT], body, session="s1")
        assert held.status == 403
        await decide(gateway, held.json["error"]["approval"], "approve")
        answer = await gateway.post(PATH[CHAT], body, session="s1")
        assert answer.status == 200 and b"All is well." in answer.body and STATUS.encode() not in answer.body
        assert len(gateway.provider.sent) == 2
        assert orjson.dumps(gateway.provider.sent[1]).count(b'"tool_call_id"') == 1

    running(tmp_path, config, story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_provider_that_says_nothing_is_replaced(tmp_path: Path, stream: bool) -> None:
    """X4: a stream that ends before its first event has released nothing, so another target may answer."""

    async def story(gateway: Running) -> None:
        silent = Streamed()
        silent.ended.set()
        gateway.provider.replies = [silent if stream else {}]
        gateway.other.replies = [said(CHAT, "Hello.")]
        answer = await gateway.post(PATH[CHAT], asked(CHAT, "hi", stream=stream), session="s1")
        assert answer.status == 200 and b"Hello." in answer.body
        assert len(receipts_of(gateway, "s1")) == 1

    running(tmp_path, CONFIG, story)


def test_an_approval_is_no_good_in_another_session(tmp_path: Path) -> None:
    """G23: the same request and handle under another session's name release nothing, and use nothing up."""

    async def story(gateway: Running) -> None:
        body = asked(CHAT, "go", ["deploy"])
        gateway.provider.replies = [said(CHAT, "", ("c1", "deploy", {}))]
        held = await gateway.post(PATH[CHAT], body, session="s1")
        handle = held.json["error"]["approval"]
        await decide(gateway, handle, "approve")
        elsewhere = await gateway.post(PATH[CHAT], body, {"x-wardwright-approval": handle}, session="s2")
        assert elsewhere.status == 403 and elsewhere.json["error"]["code"] == "approval_mismatch"
        assert (await gateway.post(PATH[CHAT], body, session="s1")).status == 200
        assert len(gateway.provider.sent) == 1

    running(tmp_path, CONFIG, story)


def test_a_reply_that_can_be_read_and_not_written_is_the_providers_fault(tmp_path: Path, wire: WireName) -> None:
    """G19, X2: nothing of it passes, and the caller is told so under the receipt of what was judged."""
    deep = orjson.Fragment(b"[" * 300 + b"]" * 300)

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [{**said(wire, "Hello."), "extra": deep}]
        answer = await gateway.post(PATH[wire], asked(wire, "hi"))
        assert (answer.status, answer.json["error"]["code"]) == (502, "provider_broken")
        assert "cannot be passed on: nested too deeply" in answer.json["error"]["message"]
        assert [one["id"] for one in gateway.receipts()] == [answer.receipt_id]

    running(tmp_path, CONFIG, story)
