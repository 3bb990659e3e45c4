"""Who uses the console: a cookie names a session, a session has a token and signs its forms.

    no tokens   a session is made for every client: it only ties forms to the browser they are for
    tokens      the login form takes a secret, as every port does, with the same delays

The cookie is HttpOnly and SameSite=Strict: no script reads it and no other site sends it. A form
holds a code that only this server can make for this session, so that a page elsewhere cannot make
one up. Sessions are in memory, bounded, and end with the server, with their token, or when unused.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from journeyman.clock import Clock
from journeyman.config import Token
from journeyman.units import NS_PER_S

COOKIE: Final = "journeyman_session"
MAX_SESSIONS = 10_000
IDLE_S = 12 * 60 * 60


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
