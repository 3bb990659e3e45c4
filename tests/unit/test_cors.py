"""CORS: pages of access.allowed_origins may use version 1; every other rule stays as it is."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from journeyman.config import Address, load
from journeyman.errors import UsageError
from journeyman.servers.http.cross_site import CrossSite
from journeyman.servers.http.problems import ApiError

PAGE = "https://dash.example"
ALLOWING = CrossSite(Address("127.0.0.1", 5679), (), [PAGE, "http://[::1]:3000"])
WITHOUT = CrossSite(Address("127.0.0.1", 5679), ())
JOBS = "/v1/work/jobs"
PREFLIGHT = {"Access-Control-Request-Method": "POST"}
FETCHED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
JSON = {"Content-Type": "application/json"}


def request_of(method: str, path: str, origin: str | None = PAGE, **more: str) -> web.Request:
    headers = {"Host": "127.0.0.1:5679"} | ({} if origin is None else {"Origin": origin})
    return make_mocked_request(method, path, headers=headers | more)


def refusal(names: CrossSite, request: web.Request, *, takes_forms: bool = False) -> int:
    with pytest.raises(ApiError) as caught:
        names.check(request, takes_forms=takes_forms)
    return caught.value.status


def headers_of(names: CrossSite, request: web.Request, **own: str) -> dict[str, str]:
    response = web.Response(headers=own)
    asyncio.run(names.name_origin(request, response))
    kept = ("Vary", "Access-Control-Allow-Origin", "Access-Control-Allow-Credentials")
    return {name: response.headers[name] for name in kept if name in response.headers}


@pytest.mark.parametrize("origin", [PAGE, "https://DASH.example:443", "http://[::1]:3000"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_an_allowed_page_may_read_and_change_version_1(method, origin):
    request = request_of(method, JOBS, origin, **FETCHED, **JSON)
    ALLOWING.check(request)
    assert headers_of(ALLOWING, request) == {
        "Vary": "Origin", "Access-Control-Allow-Origin": origin,
    }  # fmt: skip
    assert refusal(WITHOUT, request) == 403
    assert headers_of(WITHOUT, request) == {}


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "*", "", "http://dash.example", "https://dash.example:444"),
        *("https://dash.example.evil", "https://evil.dash.example", "https://evil", "https://["),
    ],
)
def test_a_page_of_any_other_origin_is_refused(origin):
    for method in ("GET", "POST"):
        request = request_of(method, JOBS, origin, **FETCHED, **JSON)
        assert refusal(ALLOWING, request) == 403
    asked = request_of("OPTIONS", JOBS, origin, **FETCHED, **PREFLIGHT)
    assert not ALLOWING.is_preflight(asked)
    assert refusal(ALLOWING, asked) == 403
    # A cache must not give the answer for one origin to another.
    assert headers_of(ALLOWING, asked, Vary="Accept-Encoding") == {
        "Vary": "Accept-Encoding, Origin"
    }


def test_two_origins_are_none():
    request = make_mocked_request(
        "POST",
        JOBS,
        headers=[("Host", "localhost"), ("Origin", PAGE), ("Origin", PAGE), *JSON.items()],
    )
    assert refusal(ALLOWING, request) == 403


@pytest.mark.parametrize(
    "path", ["/console/jobs", "/console/v1/x", "/jobs/a", "/rules/a", "/metrics", "/v1", "/v10/x"]
)
def test_an_allowed_page_may_use_nothing_but_version_1(path):
    for method in ("GET", "POST"):
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        request = request_of(method, path, **FETCHED, **form)
        assert refusal(ALLOWING, request, takes_forms=True) == 403
        assert headers_of(ALLOWING, request) == {}
    assert not ALLOWING.is_preflight(request_of("OPTIONS", path, **PREFLIGHT))


def test_images_forms_and_other_names_are_refused_for_an_allowed_page_too():
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert refusal(ALLOWING, request_of("GET", JOBS, None, **image)) == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert refusal(ALLOWING, request_of("POST", JOBS, **{"Content-Type": kind})) == 415
    packed = JSON | {"Content-Encoding": "gzip"}
    assert refusal(ALLOWING, request_of("POST", JOBS, **packed)) == 415
    assert refusal(ALLOWING, request_of("GET", JOBS, Host="dash.example")) == 421


def test_a_preflight_is_one_only_if_it_asks():
    assert ALLOWING.is_preflight(request_of("OPTIONS", JOBS, **FETCHED, **PREFLIGHT))
    assert not ALLOWING.is_preflight(request_of("OPTIONS", JOBS))
    assert not ALLOWING.is_preflight(request_of("GET", JOBS, **PREFLIGHT))
    assert not ALLOWING.is_preflight(request_of("OPTIONS", JOBS, None, **PREFLIGHT))
    assert not WITHOUT.is_preflight(request_of("OPTIONS", JOBS, **PREFLIGHT))


def test_no_origin_is_allowed_unless_it_is_set():
    assert load(environ={}).settings.access.allowed_origins == ()
    given = {"access.allowed_origins": f'["{PAGE}", "http://[::1]:3000"]'}
    origins = load(environ={}, options=given).settings.access.allowed_origins
    assert origins == (PAGE, "http://[::1]:3000")


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "", "dash.example", "https://dash.example/", "https://a@dash.example"),
        *("https://*.example", "ftp://dash.example", "https://dash.example:65536", "https://A.b"),
    ],
)
def test_what_no_browser_sends_as_an_origin_is_refused_at_the_start(origin):
    with pytest.raises(UsageError, match="not an origin"):
        load(environ={}, options={"access.allowed_origins": f'["{origin}"]'})
