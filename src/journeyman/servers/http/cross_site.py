"""Requests that a web page made a browser send: refused before anything else is looked at.

    Host           names this server: its listen address, a name or address of this machine if it
                   listens there, or one of access.allowed_hosts. A page whose own host name was
                   pointed at us (DNS rebinding) still sends its own name. A target
                   that names a host (`PUT http://host/path`) must name this server, too.
                                                                                    else 421
    Origin         of a request that changes something is this server, or absent.   else 403
    Content-Type   of a request with a body is application/json: a form cannot send that, and a
                   script of another site may not without being allowed to, which is never so.
                                                                                    else 415
    Sec-Fetch-*    says that a page of another site loads this, other than by following a link: an
                   image or a script could make the server read its logs again and again.
                                                                                    else 403

``/health`` answers under any name: it says nothing that a page could use.

Pages of access.allowed_origins may use version 1, and nothing else, as programs do (CORS): with the
token in the Authorization header. Access-Control-Allow-Credentials is never sent, so a browser adds
no cookie, and neither an image, a form nor a page of any other site gets further than without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web

from journeyman.config import Address
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import VERSION_1

ANY_HOST = "*"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]+")
_JSON, _FORMS = "application/json", "application/x-www-form-urlencoded"
_DEFAULT_PORTS = {"http": 80, "https": 443}
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, If-None-Match",
    "Access-Control-Max-Age": "600",
}
_EXPOSED = "ETag, Retry-After, Idempotency-Replayed"


class CrossSite:
    """Knows under which names this server may be spoken to."""

    def __init__(
        self, listen: Address, allowed_hosts: Iterable[str], allowed_origins: Iterable[str] = ()
    ) -> None:
        self._allowed = {_plain(host) for host in (*allowed_hosts, listen.host)}
        self._is_local = _is_local(listen.host) or bool(listen.path)
        self._is_everywhere = _is_everywhere(listen.host)
        self._origins = {_read_origin(origin) for origin in allowed_origins}

    def check(self, request: web.Request, *, takes_forms: bool = False) -> None:
        """Raises ApiError if the request may come from a page of another site.

        ``takes_forms``: the caller looks for a code in them that only this server can make.
        """
        hosts = request.headers.getall("Host", [])
        host = self._allowed_host(hosts[0] if len(hosts) == 1 else "")
        if not request.raw_path.startswith(("/", "*")):
            self._allowed_host(request.raw_path.partition("://")[2].partition("/")[0])
        is_allowed = bool(self._allowed_origin(request))
        if request.method not in READING:
            if not is_allowed:
                _check_origin(request, host)
            _check_type(request, _FORMS if takes_forms else _JSON)
        if not is_allowed:
            _check_fetch(request)

    def is_preflight(self, request: web.Request) -> bool:
        """Return whether the browser of an allowed page asks for its permission first."""
        is_asking = "Access-Control-Request-Method" in request.headers
        return request.method == "OPTIONS" and is_asking and bool(self._allowed_origin(request))

    async def name_origin(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let an allowed page read the answer, also one that is an error or a stream."""
        if not self._origins or not _is_version_1(request):
            return
        response.headers["Vary"] = ", ".join([*response.headers.getall("Vary", []), "Origin"])
        if origin := self._allowed_origin(request):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED

    def _allowed_origin(self, request: web.Request) -> str:
        """The origin of a page that may use version 1, if the request is from one."""
        given = request.headers.getall("Origin", [])
        if len(given) != 1 or not _is_version_1(request):
            return ""
        origin = _read_origin(given[0])
        return given[0] if origin is not None and origin in self._origins else ""

    def _allowed_host(self, text: str) -> tuple[str, int | None]:
        host = _split(text)
        if host is None:
            raise ApiError(400, "a request needs one Host header, such as localhost or 127.0.0.1")
        if not self._allows(host[0]):
            raise ApiError(
                421, f"host {json.dumps(host[0])} is not allowed: add it to access.allowed_hosts"
            )
        return host

    def _allows(self, host: str) -> bool:
        if ANY_HOST in self._allowed or host in self._allowed:
            return True
        # A name can be pointed anywhere by its owner, an address cannot.
        if self._is_everywhere:
            return _is_local(host) or _is_address(host)
        return self._is_local and _is_local(host)


def _is_version_1(request: web.Request) -> bool:
    return request.path.startswith(f"{VERSION_1}/")


def _check_origin(request: web.Request, host: tuple[str, int | None]) -> None:
    for origin in request.headers.getall("Origin", []):
        if not _is_same(origin, host):
            raise ApiError(403, f"origin {json.dumps(origin)} may not change anything here")


def _check_fetch(request: web.Request) -> None:
    """Browsers say this of themselves; a page cannot change it. "none": typed, or a bookmark."""
    site = request.headers.get("Sec-Fetch-Site", "none")
    is_link = (
        request.method in READING
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )
    if site not in ("none", "same-origin") and not is_link:
        raise ApiError(403, "pages of other sites may only link here")


def _check_type(request: web.Request, allowed: str) -> None:
    if "Content-Encoding" in request.headers:  # a few bytes could become gigabytes
        raise ApiError(415, "a body must not be compressed")
    given = request.headers.getall("Content-Type", [])
    is_allowed = [value.partition(";")[0].strip().lower() == allowed for value in given]
    if not all(is_allowed) or (request.can_read_body and not given):
        raise ApiError(415, f"Content-Type must be {allowed}")


def _is_same(origin: str, host: tuple[str, int | None]) -> bool:
    parts = _read_origin(origin)
    return parts is not None and parts[1:] == (host[0], host[1] or _DEFAULT_PORTS[parts[0]])


def _read_origin(text: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an Origin header or a setting; None if it is no site."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    default = _DEFAULT_PORTS.get(parts.scheme)
    if default is None or not parts.hostname:
        return None
    return parts.scheme, _plain(parts.hostname), port or default


def _split(text: str) -> tuple[str, int | None] | None:
    """Host and port of a Host header."""
    if not _HOST.fullmatch(text):
        return None
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (_plain(host), port) if host else None


def _plain(host: str) -> str:
    """Return a host as it is compared: names without case and final dot, addresses in
    one spelling."""
    host = host.strip().strip("[]").removesuffix(".").lower()
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_local(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_everywhere(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_unspecified
