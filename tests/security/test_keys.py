"""Keys: what each one opens, when it ends, how often it may be used, and where it is never found."""

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router import errors
from router.api.access import right_for
from router.callers import Caller, caller_of
from router.model_entry import key_digest
from router.quotas import Quotas
from tests.router.config_desk import Desk
from tests.security.rig import FILED, GUEST, LIMITED, OWNER, PAST, SECRETS, bearer, chat, code_of, guarded
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

RIGHTS = {
    ("GET", "/v1/models"): "model",
    ("GET", "/v1/models/a/b"): "model",
    ("GET", "/models/sse"): "look",
    ("GET", "/status"): "look",
    ("GET", "/metrics"): "look",
    ("GET", "/dash"): "look",
    ("GET", "/dash/static/1/app.js"): "open",
    ("GET", "/router/history"): "look",
    ("GET", "/chat"): "model",
    ("GET", "/login"): "open",
    ("GET", "/events"): "admin",
    ("GET", "/logs/a"): "admin",
    ("GET", "/logsome"): "look",
    ("GET", "/dash/crashes/48211"): "admin",
    ("GET", "/dash/api/crashes/48211"): "admin",
    ("GET", "/unload"): "admin",
    ("GET", "/router/stop"): "admin",
    ("POST", "/models/load"): "admin",
    ("POST", "/router/gpus/0/out"): "admin",
    ("POST", "/router/inflight/1/cancel"): "model",
    ("POST", "/router/reload"): "admin",
    ("PUT", "/router/profile"): "admin",
    ("POST", "/nothing/that/exists"): "admin",
    ("POST", "/dash/sql"): "look",
    ("GET", "/"): "model",
}


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with guarded(tmp_path_factory.mktemp("keys")) as router:
        yield router


@pytest.mark.parametrize("method_path", RIGHTS, ids=" ".join)
def test_what_no_list_names_is_refused_rather_than_allowed(method_path: tuple[str, str]) -> None:
    """A change needs the admin right, a look the right to look; less is needed only where a list says so."""
    assert right_for(*method_path) == RIGHTS[method_path]


def test_each_key_opens_what_it_is_for(router: RouterProcess) -> None:
    """The owner everything, a key without the admin right no change, a key for one model nothing of the others."""
    for path in ("/v1/models", "/status", "/router", "/events?limit=0", "/nothing"):
        assert code_of(router.call("GET", path)) == (401, "unauthorized"), path
    assert router.call("GET", "/health").status == 200
    assert router.call("GET", "/status", **bearer(OWNER)).status == 200
    assert router.call("GET", "/status", **bearer(LIMITED)).status == 200
    assert code_of(router.call("GET", "/status", **bearer(GUEST))) == (403, "forbidden")
    assert code_of(router.call("GET", "/logs", **bearer(LIMITED))) == (403, "forbidden")
    for path in ("/models/unload", "/router/drain", "/router/gpus/0/out", "/router/made-up"):
        assert code_of(router.call("POST", path, {"model": "a"}, **bearer(LIMITED))) == (403, "forbidden"), path
    listed = router.call("GET", "/v1/models", **bearer(GUEST)).json()["data"]
    assert [model["id"] for model in listed] == ["b"]
    assert chat(router, GUEST, "b").status == 200
    assert code_of(chat(router, GUEST, "a")) == (403, "forbidden")
    unloaded = router.call("POST", "/models/unload", {"model": "b", "wait": True}, **bearer(OWNER))
    assert unloaded.status == 200
    assert router.events("AdminUnload")[0]["by"] == "owner"


def test_the_schema_says_what_needs_a_key_and_how_to_send_it(router: RouterProcess) -> None:
    """So that a client made from /openapi.json asks for one, and only where it is needed."""
    schema = router.call("GET", "/openapi.json", **bearer(OWNER)).json()
    schemes = schema["components"]["securitySchemes"]
    ways = {scheme.get("scheme") or scheme["name"] for scheme in schemes.values()}
    assert ways == {"bearer", "basic", "X-Api-Key"}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            named = [name for way in operation["security"] for name in way]
            assert sorted(named) == (sorted(schemes) if right_for(method.upper(), path) != "open" else []), path
    assert schema["paths"]["/status"]["get"]["security"]


def test_a_key_that_has_expired_is_told_so(router: RouterProcess) -> None:
    call = chat(router, PAST)
    assert call.status == 401
    assert "has expired" in call.json()["error"]["message"]


def test_a_limited_key_waits_or_is_told_when_to_come_back(router: RouterProcess) -> None:
    """Two requests per minute: the third gets the one 429 there is, in the dialect of its API, and is no arrival."""
    before = len(router.events("RequestArrived"))
    assert [chat(router, LIMITED).status for _ in range(2)] == [200, 200]
    third = chat(router, LIMITED)
    assert 1 <= int(third.header("retry-after")) <= 60
    assert third.header("x-ratelimit-limit-requests") == "2"
    assert third.header("x-ratelimit-remaining-requests") == "0"
    assert third.header("x-ratelimit-reset-requests") == f"{third.header('retry-after')}s"
    assert code_of(third) == (429, "rate_limit_exceeded")
    claude = router.call("POST", "/v1/messages", {"model": "a", "messages": []}, **bearer(LIMITED)).json()
    assert claude["error"]["type"] == "rate_limit_error"
    assert len(router.events("RequestArrived")) == before + 2
    instance = router.call("GET", "/upstream/a/health", **bearer(LIMITED))
    assert code_of(instance) == (403, "forbidden"), "this would go around the limits"
    there = router.call("POST", "/upstream/a/v1/chat/completions", {"model": "a", "messages": []}, **bearer(LIMITED))
    assert code_of(there) == (429, "rate_limit_exceeded"), "and this does not"


def test_a_stream_is_its_owner_s(tmp_path: Path) -> None:
    """Whoever knows the id of another's conversation or completion can neither read, nor find, nor end it."""
    with guarded(tmp_path, models=[Model("a", tokens=200, gap_s=0.05), Model("b")]) as router:
        body = {"model": "a", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        stream = router.call("POST", "/v1/chat/completions", body, X_Conversation_Id="c-1", **bearer(FILED))
        completion = json.loads(next(stream.chunks()).removeprefix("data: "))["id"]
        lookup = {"conversation_ids": ["c-1"]}
        control = {"id": completion, "model": "a", "action": "reasoning_end"}
        for method in ("GET", "DELETE"):
            call = router.call(method, "/v1/stream?conv_id=c-1", **bearer(LIMITED))
            assert code_of(call) == (404, "conversation_not_found")
        assert router.call("POST", "/v1/streams/lookup", lookup, **bearer(LIMITED)).json() == []
        assert router.call("POST", "/v1/chat/completions/control", control, **bearer(LIMITED)).status == 404
        assert router.call("POST", "/v1/streams/lookup", lookup, **bearer(FILED)).json() != []
        assert router.call("DELETE", "/v1/stream?conv_id=c-1", **bearer(OWNER)).status < 300
        stream.close()


def test_tokens_count_when_an_answer_has_ended(router: RouterProcess) -> None:
    """One answer may go beyond what the minute has; the next request is what waits for the next minute."""
    statuses = [chat(router, FILED).status for _ in range(12)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert set(statuses) == {200, 429}
    assert statuses == sorted(statuses)


def test_the_window_of_a_minute_slides() -> None:
    """Requests of 61 seconds ago are forgotten one by one; how long to wait is exact."""
    clock = SimpleNamespace(now_us=0)
    quotas = Quotas(lambda: clock.now_us)
    caller = Caller("k", rpm=2, tpm=100)
    quotas.admit(caller)
    clock.now_us = 30_000_000
    quotas.admit(caller)
    clock.now_us = 59_000_001
    with pytest.raises(errors.RouterError) as refused:
        quotas.admit(caller)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    clock.now_us = 60_000_000
    quotas.admit(caller)
    quotas.spend(caller, 99)
    clock.now_us = 95_000_000
    quotas.spend(caller, 50)
    with pytest.raises(errors.RouterError, match="100 tokens per minute") as refused:
        quotas.admit(caller)
    assert refused.value.retry_after_s == 25
    clock.now_us = 120_000_000
    quotas.admit(caller)
    quotas.admit(Caller("free"))


# --- where keys are never found -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_key_is_found_nowhere_but_where_its_owner_wrote_it(tmp_path: Path) -> None:
    """After every use and misuse of keys: not in the log, the messages, any answer, a command line, or a child."""
    with guarded(tmp_path, DASHBOARD=True) as router:
        said = [call_everything(router, secret) for secret in (*SECRETS, "lr-wrong-9d3e5ab6c7f14821")]
        login = router.call("POST", "/login", f"key={OWNER}&next=/dash".encode(), Sec_Fetch_Site="same-origin")
        said.append(repr(login.head.getheaders()).encode() + login.read())
        said.append(dashboard_of(router))
        router.hang_up()
        router.wait_words("a new configuration is in force")
        said += [processes(router)]
    said += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name not in OWNERS_FILES]
    said += [gzip.decompress(path.read_bytes()) for path in tmp_path.rglob("*.gz")]
    everything = b"\n".join(said)
    assert b"rate_limit" in everything
    assert b"RequestArrived" in everything
    for secret in (*SECRETS, "lr-wrong-9d3e5ab6c7f14821"):
        assert secret.encode() not in everything
        assert key_digest(secret).encode() not in everything, "the hash of a key is in none of them either"


OWNERS_FILES = ("config.json", "filed.key")


def call_everything(router: RouterProcess, secret: str) -> bytes:
    """Every page that there is and some generations, under this key, sent in each of the ways."""
    paths = ["/v1/models", "/status", "/router", "/router/models", "/metrics", "/docs", "/openapi.json", "/props"]
    paths += [
        "/router/inflight",
        "/running",
        "/slots",
        "/nothing",
        "/login",
        f"/nothing/{'x' * 9}",
        "/upstream/a/props",
    ]
    said = b""
    for path in paths:
        said += router.call("GET", path, **bearer(secret)).read()
        said += router.call("GET", path, X_Api_Key=secret).read()
    for model in "aabb":
        said += chat(router, secret, model).read()
        said += router.call("POST", "/models/load", {"model": model, "wait": True}, X_Api_Key=secret).read()
    return said


def dashboard_of(router: RouterProcess) -> bytes:
    """Its page, and all requests as it knows them, once it knows them."""
    finished = len(router.events("RequestFinished"))
    for _ in polls(30.0, every_s=0.1):
        history = router.call("GET", "/router/history?limit=0", **bearer(OWNER))
        told = history.read()
        if history.status == 200 and told.count(b'"owner"') and told.count(b'"rid"') >= finished:
            return told + router.call("GET", "/dash", **bearer(OWNER)).read()
    raise AssertionError(f"the dashboard does not tell of {finished} requests: {told[-500:]!r}")


def processes(router: RouterProcess) -> bytes:
    """Command lines and environments of the router's children, and the router's command line."""
    said = b""
    children = router.children()
    assert children
    for pid in children:
        said += Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    assert router.process
    return said + Path(f"/proc/{router.process.pid}/cmdline").read_bytes()


def test_a_command_line_is_no_place_for_a_key(tmp_path: Path) -> None:
    """It is refused, with the better places, and not shown."""
    ran = command("check", "--set", "API_KEY=lr-in-argv", home=tmp_path)
    assert ran.returncode == 1
    assert "LLAMA_ROUTER_API_KEY in the environment" in ran.stderr
    assert "lr-in-argv" not in ran.stderr + ran.stdout


def command(*words: str, home: Path, text: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "ROUTER_"))}
    return subprocess.run(
        [sys.executable, "-m", "router.cli", *words],
        env={**environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), **env},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_new_key_is_shown_once_and_its_line_for_the_configuration_has_the_hash(tmp_path: Path) -> None:
    """And the hash of a key that is there already is the same, read from stdin."""
    words = ["key", "new", "alice", "--models", "a, b", "--rpm", "5", "--expires", "2030-01-01", "--json"]
    made = json.loads(command(*words, home=tmp_path).stdout)
    assert made["entry"] == {
        "key": f"sha256:{key_digest(made['key'])}",
        "models": ["a", "b"],
        "rpm": 5,
        "expires": "2030-01-01",
    }
    assert len(made["key"]) > 40
    hashed = command("key", "hash", home=tmp_path, text=made["key"] + "\n").stdout.strip()
    assert hashed == made["entry"]["key"]
    plain = command("key", "new", "bob", "--admin", home=tmp_path).stdout
    assert '"bob": {"key": "sha256:' in plain
    assert '"admin": true' in plain
    assert command("key", "new", "x", "--expires", "soon", home=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("", "one line"), ("one\ntwo\n", "one line")],
)
def test_a_file_that_holds_no_key_is_a_mistake(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    ran = command("check", home=tmp_path, LLAMA_ROUTER_API_KEY_FILE=str(file))
    assert said in ran.stderr
    assert "two" not in ran.stderr


def test_a_key_from_a_file_has_the_admin_right(tmp_path: Path) -> None:
    """As containers and services hand secrets over: LLAMA_ROUTER_API_KEY_FILE."""
    (tmp_path / "secret").write_text(f"{OWNER}\n")
    env = {"LLAMA_ROUTER_API_KEY_FILE": str(tmp_path / "secret")}
    with RouterProcess(tmp_path, [Model("a")], env=env) as router:
        assert router.call("POST", "/router/drain", **bearer(OWNER)).status == 200
        assert router.call("POST", "/router/drain", **bearer(GUEST)).status == 401


def test_it_listens_on_this_machine_alone_until_told_otherwise(router: RouterProcess) -> None:
    """Its one socket is bound to 127.0.0.1; no other address of the machine answers."""
    assert router.process
    inodes = {
        os.readlink(path)[8:-1]
        for path in Path(f"/proc/{router.process.pid}/fd").iterdir()
        if os.readlink(path).startswith("socket:")
    }
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows: list[Any] = [
        line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]
    ]
    listening = {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}
    assert listening == {f"0100007F:{router.port:04X}"}


def test_what_it_writes_is_its_users_alone(router: RouterProcess) -> None:
    """On a machine with several users nobody else reads who asked what, whatever their umask lets through."""
    for folder in (router.folder / "state", router.log_dir):
        assert folder.stat().st_mode & 0o077 == 0, folder


def test_keys_are_compared_in_full_whatever_is_sent(router: RouterProcess) -> None:
    """A prefix, another case, an empty key, blanks or the hash itself open nothing."""
    for wrong in (OWNER[:-1], OWNER.upper(), OWNER + "x", "", " ", key_digest(OWNER), f"sha256:{key_digest(OWNER)}"):
        assert router.call("GET", "/status", Authorization=f"Bearer {wrong}").status == 401, wrong
    with socket.create_connection(router.address, timeout=5) as connection:
        connection.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert b" 401 " in connection.recv(100)


def test_every_request_has_its_outcome_in_the_end(router: RouterProcess) -> None:
    """Refusals by key are no arrivals: the log's account is even."""
    for _ in polls(5):
        ended = [*router.events("RequestFinished"), *router.events("RequestCancelled"), *router.events("RequestFailed")]
        if len(router.events("RequestArrived")) == len(ended):
            return
    raise AssertionError("requests are open")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_may_have_any_letters_however_they_are_sent(tmp_path: Path, encoding: str) -> None:
    """A terminal sends UTF-8, and some programs one byte for each letter."""
    config = Desk(tmp_path).models(m={}).config({"LLM": {"m": {}}, "keys": {"me": "schlüssel"}}).load()
    for field in ((b"authorization", "Bearer schlüssel"), (b"x-api-key", "schlüssel")):
        assert caller_of(config, [(field[0], field[1].encode(encoding))]).key == "me"
