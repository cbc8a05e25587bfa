"""Pages: the login, its cookie, who may change something with it, and what a browser is told to refuse."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from router.api import sessions
from router.api.access import require_own_page
from router.api.cors import Receive, Scope, Send
from router.api.front import Front
from router.api.hosts import is_own
from router.api.sessions import LASTS_S, Sessions
from router.config import KeyConfig, key_digest
from router.errors import RouterError
from tests.api.test_front import relay
from tests.api.world import World, model
from tests.security.rig import GUEST, OWNER, bearer, code_of, guarded
from tests.standin.client import Call
from tests.standin.fixtures import RouterProcess

OWN_PAGE = {"Sec_Fetch_Site": "same-origin"}


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with guarded(tmp_path_factory.mktemp("pages")) as router:
        yield router


def log_in(router: RouterProcess, secret: str = OWNER, to: str = "/dash", **headers: str) -> Call:
    form = urlencode({"key": secret, "next": to}).encode()
    return router.call("POST", "/login", form, **{**OWN_PAGE, **headers})


def cookie_of(call: Call) -> str:
    return call.header("set-cookie").partition(";")[0]


def test_the_form_takes_the_key_once_and_the_cookie_stands_for_it(router: RouterProcess) -> None:
    """A page without a cookie leads to the form, the form back to the page; then every route knows who asks."""
    sent = router.call("GET", "/status?a=1", Accept="text/html")
    assert (sent.status, sent.header("location")) == (303, "login?next=%2Fstatus%3Fa%3D1")
    form = router.call("GET", "/" + sent.header("location"), Accept="text/html")
    assert form.status == 200
    assert 'value="/status?a=1"' in form.read().decode()
    done = log_in(router, to="/status?a=1")
    assert (done.status, done.header("location")) == (303, "./status?a=1")
    cookie = cookie_of(done)
    assert router.call("GET", "/status", Cookie=cookie).status == 200
    body = {"model": "a", "messages": [{"role": "user", "content": "hello"}]}
    asked = router.call("POST", "/v1/chat/completions", body, Cookie=cookie, **OWN_PAGE)
    assert asked.status == 200
    assert router.events("RequestArrived")[-1]["key"] == "owner"
    assert "Logged in as <b>owner</b>" in router.call("GET", "/login", Cookie=cookie).read().decode()
    programs = router.call("GET", "/status")
    assert code_of(programs) == (401, "unauthorized"), "a program is told, not led to a form"


def test_a_wrong_key_gets_the_form_again_and_no_cookie(router: RouterProcess) -> None:
    call = log_in(router, "lr-wrong")
    assert (call.status, call.header("set-cookie")) == (401, "")
    page = call.read().decode()
    assert "not known here" in page
    assert "lr-wrong" not in page


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(router: RouterProcess) -> None:
    """And of the network, where the browser came by https, which a proxy or the page's own origin tells."""
    parts = log_in(router).header("set-cookie").split("; ")
    assert parts[1:] == ["Path=/", f"Max-Age={LASTS_S}", "HttpOnly", "SameSite=Strict"]
    assert OWNER not in parts[0]
    assert log_in(router, X_Forwarded_Proto="https").header("set-cookie").endswith("; Secure")


def test_a_cookie_cannot_be_made_or_changed(router: RouterProcess) -> None:
    """Name, end and code hold together; those of another key, another router or a longer time do not."""
    cookie = cookie_of(log_in(router))
    ours, _, value = cookie.partition("=")
    name, until, code = value.split(".")
    forged = Sessions(b"x" * 32)
    keys = {"owner": KeyConfig("owner", key_digest(OWNER), admin=True)}
    other = forged.begin(replace(_config(), keys=keys), OWNER)
    for wrong in (
        f"{name}.{int(until) + 1}.{code}",
        f"guest.{until}.{code}",
        f"{name}.{until}.{code[:-1]}0",
        f"{name}.{until}.",
        f"{name}.{until}",
        f"{name}.{'9' * 400}.{code}",
        other,
        "",
        "\xff.1.\xff",
    ):
        if f"{ours}={wrong}" != cookie:
            assert router.call("GET", "/status", Cookie=f"{ours}={wrong}").status == 401, wrong


def test_a_login_ends_with_its_time_and_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A week later, when the key is changed, and when it is taken away."""
    made = Sessions(b"s" * 32)
    config = replace(_config(), keys={"me": KeyConfig("me", key_digest("lr-one"))})
    cookie = made.begin(config, "lr-one")
    assert made.caller_of(config, cookie).key == "me"
    for keys in ({}, {"me": KeyConfig("me", key_digest("lr-two"))}):
        with pytest.raises(RouterError, match="has ended"):
            made.caller_of(replace(config, keys=keys), cookie)
    now = sessions.time.time()
    monkeypatch.setattr("router.api.sessions.time.time", lambda: now + LASTS_S + 1)
    with pytest.raises(RouterError, match="has ended"):
        made.caller_of(config, cookie)


@pytest.mark.parametrize("name", ["a.b", "ünï", "x y;z", "\udcff"])
def test_a_key_may_have_any_name(name: str) -> None:
    made = Sessions(b"s" * 32)
    config = replace(_config(), keys={name: KeyConfig(name, key_digest("lr-one"))})
    cookie = made.begin(config, "lr-one")
    assert cookie.isascii()
    assert ";" not in cookie
    assert made.caller_of(config, cookie).key == name


def test_logging_out_takes_the_cookie_away(router: RouterProcess) -> None:
    cookie = cookie_of(log_in(router))
    out = router.call("POST", "/logout", b"", Cookie=cookie, **OWN_PAGE)
    assert (out.status, out.header("location")) == (303, "./login")
    assert out.header("set-cookie").startswith(f"{cookie.partition('=')[0]}=; Path=/; Max-Age=0;")


def test_two_routers_of_one_machine_leave_each_other_s_logins_alone() -> None:
    """Browsers keep cookies by host, whatever the port; a restart, which has the same secret, ends no login."""
    config = replace(_config(), keys={"me": KeyConfig("me", key_digest("lr-one"))})
    one, other, again = Sessions(b"a" * 32), Sessions(b"b" * 32), Sessions(b"a" * 32)
    sent = "; ".join(
        each.set_cookie(each.begin(config, "lr-one"), secure=False).partition(";")[0] for each in (one, other)
    )
    headers = [(b"cookie", sent.encode())]
    for each in (one, other, again):
        assert each.caller_of(config, each.cookie_in(headers)).key == "me"


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://router:11434"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {},
    ],
)
def test_a_foreign_page_changes_nothing_with_a_cookie(headers: dict[str, str]) -> None:
    """Neither by a form, nor from another port of the same host, nor by a browser that hides where it comes from."""
    fields = [(name.encode(), value.encode()) for name, value in {"host": "router:11434", **headers}.items()]
    with pytest.raises(RouterError) as refused:
        require_own_page(fields)
    assert refused.value.code == "origin_not_allowed"


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "same-origin"}, {"origin": "https://Router:11434"}])
def test_our_own_pages_change_what_their_login_may(headers: dict[str, str]) -> None:
    require_own_page([(name.encode(), value.encode()) for name, value in {"host": "router:11434", **headers}.items()])


def test_a_change_by_cookie_is_checked_on_every_route(router: RouterProcess) -> None:
    """Relayed ones as well; reading, and programs that send their key, are not concerned."""
    cookie = cookie_of(log_in(router))
    for path in (
        "/models/unload",
        "/router/drain",
        "/v1/chat/completions",
        "/tokenize",
        "/upstream/a/slots",
        "/logout",
    ):
        call = router.call("POST", path, {"model": "a"}, Cookie=cookie)
        assert code_of(call) == (403, "origin_not_allowed"), path
    assert code_of(router.call("GET", "/unload", Cookie=cookie)) == (403, "origin_not_allowed")
    assert router.call("GET", "/status", Cookie=cookie, Sec_Fetch_Site="cross-site").status == 200
    assert router.call("POST", "/router/drain", b"", Cookie=cookie, **bearer(OWNER)).status == 200
    guest = cookie_of(log_in(router, GUEST))
    assert code_of(router.call("POST", "/router/drain", b"", Cookie=guest, **OWN_PAGE)) == (403, "forbidden")


def test_nobody_is_logged_in_by_a_foreign_page(router: RouterProcess) -> None:
    """Else somebody's questions would be asked under another's key."""
    assert code_of(log_in(router, Sec_Fetch_Site="cross-site")) == (403, "origin_not_allowed")


@pytest.mark.parametrize(
    "asked",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "", "/a\r\nX: 1", "/ü"],
)
def test_the_login_leads_nowhere_else(router: RouterProcess, asked: str) -> None:
    done = log_in(router, to=asked)
    assert (done.status, done.header("location")) == (303, "./dash")


def test_markup_is_shown_and_not_run(router: RouterProcess) -> None:
    """What a link or a name puts on a page is text there."""
    page = router.call("GET", "/login?next=/%22%3E%3Cscript%3Ealert(1)%3C/script%3E").read().decode()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    docs = router.call("GET", "/docs", **bearer(OWNER)).read().decode()
    assert "<script" not in docs


def test_names_of_models_are_text_in_every_page() -> None:
    """A model may be called anything; errors are JSON and never HTML, whatever a browser asks for."""

    async def story(world: World) -> None:
        front = Front()
        front.serve(world.services, relay)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://router") as http:
            for path in ("/v1/models/<b>x</b>", "/<b>x</b>", "/status", "/router/models"):
                answer = await http.get(path, headers={"accept": "text/html"})
                assert answer.headers["content-type"] == "application/json", path
                assert answer.headers["x-content-type-options"] == "nosniff", path

    World.run(story, model("<b>evil</b>"))


def test_a_browser_is_told_what_to_refuse(router: RouterProcess) -> None:
    """Scripts of our own origin alone, no frames, no guessing of types, no referrer to others; once each."""
    for path in ("/login", "/docs"):
        call = router.call("GET", path, **bearer(OWNER))
        names = [name.lower() for name, _ in call.head.getheaders()]
        assert len(names) == len(set(names)), names
        policy = dict(part.split(" ", 1) for part in call.header("content-security-policy").split("; "))
        assert policy["script-src"] == "'self'"
        assert policy["style-src"] == "'self' 'unsafe-inline'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
        assert (call.header("x-frame-options"), call.header("referrer-policy")) == ("DENY", "same-origin")
        page = call.read().decode()
        assert '<link rel="icon" href="data:' in page
        assert "data:" in policy["img-src"]
        assert "http://" not in page.replace("http://127.0.0.1", "")
        assert "https://" not in page


def test_a_page_that_brings_its_own_policy_keeps_it() -> None:
    """What stands behind the router may be stricter."""

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/html"), (b"Content-Security-Policy", b"default-src 'none'")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def story(world: World) -> None:
        front = Front()
        front.serve(world.services, relay)
        made: Any = front._app
        await made
        front._app = _done(page)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://router") as http:
            answer = await http.get("/anything")
            assert answer.headers.get_list("content-security-policy") == ["default-src 'none'"]

    World.run(story)


def _done(value: Any) -> Any:
    import asyncio

    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:11434", True),
        ("localhost:11434", True),
        ("[::1]:11434", True),
        ("192.168.1.5", True),
        ("box", True),
        ("box.local:80", True),
        ("chat.example.org", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:11434", False),
        ("localhost.evil.example", False),
        ("x" * 294 + ".local.evil.example", False),
        ("x" * 1000, False),
        ("", True),
    ],
)
def test_a_website_cannot_point_its_own_name_at_this_machine(host: str, own: bool) -> None:
    """Where no key is asked for, only names that a site cannot have are answered, and those the owner wrote down."""
    config = replace(_config(), cors_origins=("https://chat.example.org",))
    assert is_own(config, host.encode()) is own
    assert is_own(replace(config, host="0.0.0.0"), host.encode())
    assert is_own(replace(config, keys={"a": KeyConfig("a", "")}), host.encode())


def test_a_foreign_name_is_refused_on_every_route(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def story(world: World) -> None:
        front = Front()
        front.serve(world.services, relay)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://evil.example") as http:
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/unload")):
                answer = await http.request(method, path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed"), path
            assert (await http.get("/health")).status_code == 200

    World.run(story)


def _config() -> Any:
    """A configuration without keys, listening on 127.0.0.1."""
    kept: list[Any] = []

    async def story(world: World) -> None:
        kept.append(world.config)

    World.run(story)
    return kept[0]
