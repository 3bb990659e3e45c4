"""The common parts of console pages: frame, headers, who looks, and at which moment.

    handler --page(request, template, name of the page, values)--> HTML

``at`` of the address is the moment that a page shows. Nothing can be changed then. A page whose log
does not say what was when shows the present, and says so (SHOWS_NOW).

Who looks: a cookie names a session, a session has a token and signs its forms.

    no tokens   a session is made for every client: it only ties forms to the browser they are for
    tokens      the login form takes a secret, as every port does, with the same delays

The cookie is HttpOnly and SameSite=Strict: no script reads it and no other site sends it. A form
holds a code that only this server can make for this session, so that a page elsewhere cannot make
one up. Sessions are in memory, bounded, and end with the server, with their token, or when unused.

Style, scripts and libraries are read once, compressed once, and named by their hash:

    /console/assets/console.1f3a9c0d.css      may be kept by the browser for good

Nothing is fetched from anywhere else. All of it together stays below MAX_COMPRESSED_BYTES.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from journeyman import __version__
from journeyman.clock import Clock
from journeyman.config import Token
from journeyman.servers.http import wire
from journeyman.servers.http.console import commands, shown
from journeyman.servers.http.console.moments import SERVER, ChosenZone, zone_called
from journeyman.servers.http.console.time_bar import (
    RANGE_COOKIE,
    RANGES,
    FigureHistory,
    moment_or_none,
)
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import RouteCall, takes_gzip
from journeyman.units import NS_PER_S

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NAVIGATION: Final = (
    ("overview", "/", "Overview"),
    ("jobs", "/console/jobs", "Jobs"),
    ("tasks", "/console/tasks", "Tasks"),
    ("queues", "/console/queues", "Queues"),
    ("workers", "/console/workers", "Workers"),
    ("timetables", "/console/timetables", "Timetables"),
    ("fan-out", "/console/fan-out", "Fan-out"),
    ("log", "/console/log", "Log"),
    ("settings", "/console/settings", "Settings"),
)
# Pages without an entry of their own, and the one that leads to them.
BELOW: Final = {"rules": "timetables", "time": "overview", "reports": "log"}
SHOWS_NOW: Final = {
    "workers": "Workers are those of the present",
    "fan-out": "The log of the fan-out queues does not say what was read when",
    "settings": "Settings and tokens are those of the present; who did what ends at that moment",
}

SHARED: Final = ("base.html", "parts.html")  # by other templates

COOKIE: Final = "journeyman_session"
ZONE_COOKIE: Final = "journeyman_zone"
THEME_COOKIE: Final = "journeyman_theme"
THEMES: Final = ("light", "dark")  # anything else: what the system says
KEPT_S: Final = 400 * 24 * 3600
REFRESH: Final = "X-Refresh"  # the header of a page that fetches itself anew
MAX_SESSIONS = 10_000
IDLE_S = 12 * 60 * 60
MAX_COMPRESSED_BYTES: Final = 80_000
PREFIX: Final = "/console/assets/"
_NAMES = ("tokens.css", "console.css", "console.js", "icon.svg", "vendor/idiomorph.js")
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def is_console(path: str) -> bool:
    return path == "/" or path.startswith("/console/")


def local(address: str) -> str:
    """A path of the console, whatever was asked for: no redirect leaves it.

    Browsers drop line ends and tabs from an address, and take a backslash for a slash.
    """
    if not address.isprintable() or "\\" in address or not address.startswith("/"):
        return "/"
    if address.startswith("//"):  # a host follows; one that is not well-formed is a ValueError
        return "/"
    return address if is_console(urlsplit(address).path) else "/"


def api_call(
    request: web.Request, query: Any = None, *, path: dict[str, str] | None = None
) -> RouteCall:
    """A call of a handler of version 1, with the rights of who looks."""
    return RouteCall(request, path or {}, query, None)


def shown_moment(request: web.Request) -> str:
    return request.query.get("at", "")


def chosen_zone(request: web.Request) -> ChosenZone:
    """The zone that this browser has chosen."""
    return zone_called(request.cookies.get(ZONE_COOKIE, "UTC"))


def keep_choices(request: web.Request) -> web.Response:
    """Keep the zone and the theme that a browser has chosen, in cookies, and go back."""
    response = web.HTTPSeeOther(local(request.query.get("back", "/")))
    if "zone" in request.query:
        zone = zone_called(request.query["zone"])
        response.set_cookie(ZONE_COOKIE, zone.name, path="/", max_age=KEPT_S, samesite="Strict")
    if "theme" in request.query:
        theme = request.query["theme"]
        theme = theme if theme in THEMES else "system"
        response.set_cookie(THEME_COOKIE, theme, path="/", max_age=KEPT_S, samesite="Strict")
    return response


class Drawing:
    def __init__(self, clock: Clock, sessions: Sessions, history: FigureHistory) -> None:
        self._clock = clock
        self._history = history
        self._sessions = sessions
        self.templates = _environment()
        self._compiled: dict[str, Template] = {}

    async def _template(self, name: str) -> Template:
        """It is compiled when it is first used; in a thread, for it takes up to 30 ms."""
        if name not in self._compiled:
            self._compiled[name] = await asyncio.to_thread(self._compile, name)
        return self._compiled[name]

    def _compile(self, name: str) -> Template:
        return [self.templates.get_template(each) for each in (*SHARED, name)][-1]

    async def render(self, template: str, **more: Any) -> bytes:
        """A part of a page."""
        html = (await self._template(template)).render(**more)
        return wire.shown_name(html).encode()

    async def problem(self, request: web.Request, error: ApiError) -> web.Response:
        response = await self.page(
            request, "problem.html", "", error=error, is_past=bool(shown_moment(request))
        )
        response.set_status(error.status)
        return response

    async def page(
        self, request: web.Request, template: str, here: str, **more: Any
    ) -> web.Response:
        now_ns = self._clock.now_ns()
        session: Session | None = request.get("session")
        token: Token | None = request.get("token")
        at = shown_moment(request) if here else ""
        # Ages and times of day are those of the moment that the page shows.
        shown_ns = None if here in SHOWS_NOW else moment_or_none(at)
        shown_ns = now_ns if shown_ns is None else shown_ns
        zone, theme = chosen_zone(request), request.cookies.get(THEME_COOKIE, "")
        html = (await self._template(template)).render(
            here=BELOW.get(here, here),
            navigation=NAVIGATION,
            zone=zone,
            zones=list(dict.fromkeys(("UTC", SERVER, zone.name))),
            theme=theme if theme in THEMES else "system",
            address=str(request.rel_url),
            now_address=str(request.rel_url.without_query_params("at")),
            place=commands.ServerPlace(f"{request.scheme}://{request.host}", token is not None),
            at=at,
            shows_now=SHOWS_NOW.get(here, ""),
            said="" if REFRESH in request.headers else _taken(session),
            time_bar=await self._history.bar(request, at, now_ns, zone) if here else None,
            now_ns=shown_ns,
            away=lambda ns: shown.away(ns, shown_ns),
            token=token,
            may_write=(token is None or token.may_write) and not at,
            code=self._sessions.form_code(session) if session is not None else "",
            **more,
        )
        response = web.Response(text=wire.shown_name(html), headers=HEADERS)
        if (chosen := request.query.get("range", "")) in RANGES and here:
            response.set_cookie(RANGE_COOKIE, chosen, path="/", max_age=KEPT_S, samesite="Strict")
        if session is not None and request.get("session_is_new"):
            self._sessions.give(response, session)
        return response


def _taken(session: Session | None) -> str:
    """Return what the last action said, once."""
    if session is None:
        return ""
    said, session.said = session.said, ""
    return said


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= shown.FILTERS
    environment.globals |= {
        "asset": lambda name: all_assets()[name].address,
        "link": shown.link,
        "commands": commands,
        "version": __version__,
    }
    return environment


@dataclass(slots=True)
class Session:
    name: str
    token: Token | None
    used_ns: int
    said: str = ""  # by the last action, for the next page


class Sessions:
    def __init__(self, clock: Clock, *, is_secure: bool) -> None:
        self._clock = clock
        self._is_secure = is_secure  # the port is HTTPS
        self._key = secrets.token_bytes(32)
        self._by_name: OrderedDict[str, Session] = OrderedDict()

    def find(self, request: web.Request) -> Session | None:
        session = self._by_name.get(request.cookies.get(COOKIE, ""))
        if session is None:
            return None
        now_ns = self._clock.monotonic_ns()
        if now_ns - session.used_ns > IDLE_S * NS_PER_S:
            self.end(session)
            return None
        if REFRESH not in request.headers:  # a page that nobody looks at does not keep it
            session.used_ns = now_ns
        self._by_name.move_to_end(session.name)
        return session

    def begin(self, token: Token | None) -> Session:
        session = Session(secrets.token_urlsafe(24), token, self._clock.monotonic_ns())
        self._by_name[session.name] = session
        if len(self._by_name) > MAX_SESSIONS:
            self._by_name.popitem(last=False)
        return session

    def end(self, session: Session) -> None:
        self._by_name.pop(session.name, None)

    def give(self, response: web.StreamResponse, session: Session) -> None:
        response.set_cookie(
            COOKIE,
            session.name,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._is_secure,
        )

    def form_code(self, session: Session) -> str:
        return hmac.new(self._key, session.name.encode(), "sha256").hexdigest()

    def is_signed(self, session: Session, code: str) -> bool:
        return hmac.compare_digest(self.form_code(session).encode(), code.encode())


@dataclass(frozen=True, slots=True)
class Asset:
    address: str
    media_type: str
    data: bytes
    compressed: bytes


@cache
def all_assets() -> dict[str, Asset]:
    """Return the assets by their plain names."""
    folder = files(__package__) / "assets"
    found = {}
    for name in _NAMES:
        data = folder.joinpath(*name.split("/")).read_bytes()
        digest = hashlib.sha256(data).hexdigest()[:8]
        stem, _, kind = name.rpartition("/")[2].rpartition(".")
        address = f"{PREFIX}{stem}.{digest}.{kind}"
        media_type = f"{_TYPES[kind]}; charset=utf-8"
        found[name] = Asset(address, media_type, data, gzip.compress(data, 9, mtime=0))
    return found


@cache
def _by_address() -> dict[str, Asset]:
    return {asset.address: asset for asset in all_assets().values()}


async def serve_asset(request: web.Request) -> web.Response:
    asset = _by_address().get(request.path)
    if asset is None:
        raise web.HTTPNotFound
    is_compressed = takes_gzip(request)
    headers = {
        "Content-Type": asset.media_type,
        "Cache-Control": "public, max-age=31536000, immutable",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=asset.compressed if is_compressed else asset.data, headers=headers)
