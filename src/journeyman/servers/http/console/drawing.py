"""What every page of the console has: its frame, its headers, who looks, and at which moment.

    handler --page(request, template, name of the page, values)--> HTML

``at`` of the address is the moment that a page shows. Nothing can be changed then. A page whose log
does not say what was when shows the present, and says so (SHOWS_NOW).
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from journeyman import __version__
from journeyman.clock import Clock
from journeyman.config import Token
from journeyman.servers.http.console import commands, shown
from journeyman.servers.http.console.assets import all_assets
from journeyman.servers.http.console.sessions import Session, Sessions
from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.fields import time_text
from journeyman.servers.http.routes import RouteCall

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
    ("timetables", "/console/timetables", "Timetables"),
    ("rules", "/console/rules", "Rules"),
    ("queues", "/console/queues", "Queues"),
    ("fan-out", "/console/fan-out", "Fan-out"),
    ("log", "/console/log", "Log"),
    ("time", "/console/time", "Time machine"),
    ("reports", "/console/reports", "Reports"),
    ("settings", "/console/settings", "Settings"),
)
SHOWS_NOW: Final = {
    "rules": "Rules have no times in the log",
    "fan-out": "The log of the fan-out queues does not say what was read when",
    "settings": "Settings and tokens are those of the present; who did what ends at that moment",
}

SHARED: Final = ("base.html", "parts.html", "tiles.html")  # by other templates


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


def asked(
    request: web.Request, query: Any = None, *, path: dict[str, str] | None = None
) -> RouteCall:
    """A call of a handler of version 1, with the rights of who looks."""
    return RouteCall(request, path or {}, query, None)


def moment_of(request: web.Request) -> str:
    return request.query.get("at", "")


class Drawing:
    def __init__(self, clock: Clock, sessions: Sessions) -> None:
        self._clock = clock
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
        return (await self._template(template)).render(**more).encode()

    async def problem(self, request: web.Request, error: ApiError) -> web.Response:
        response = await self.page(request, "problem.html", "", error=error)
        response.set_status(error.status)
        return response

    async def page(
        self, request: web.Request, template: str, here: str, **more: Any
    ) -> web.Response:
        now_ns = self._clock.now_ns()
        session: Session | None = request.get("session")
        token: Token | None = request.get("token")
        at = moment_of(request) if here else ""
        html = (await self._template(template)).render(
            here=here,
            navigation=NAVIGATION,
            address=str(request.rel_url),
            now_address=str(request.rel_url.without_query_params("at")),
            place=commands.ServerPlace(f"{request.scheme}://{request.host}", token is not None),
            at=at,
            shows_now=SHOWS_NOW.get(here, ""),
            said=_taken(session),
            now_ns=now_ns,
            now=time_text(now_ns),
            away=lambda ns: shown.away(ns, now_ns),
            token=token,
            may_write=(token is None or token.may_write) and not at,
            code=self._sessions.form_code(session) if session is not None else "",
            **more,
        )
        response = web.Response(text=html, headers=HEADERS)
        if session is not None and request.get("session_is_new"):
            self._sessions.give(response, session)
        return response


def _taken(session: Session | None) -> str:
    """What the last action said, once."""
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
