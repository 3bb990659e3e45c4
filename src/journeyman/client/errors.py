"""Every error of the clients, in one tree below JourneymanError.

    ClientError
    ├── InvalidRequest     would be misread or certainly refused; nothing was sent
    ├── ConnectionFailed   it broke before the answer came
    │   ├── CannotConnect  there is none, so nothing was sent
    │   │   └── LoginBusy  the server could not check the token in time
    │   ├── TimedOut       no answer came in time
    │   └── AnswerLost     it broke after a command that must not be sent twice
    ├── Refused            the server said no; ``code`` and ``reason`` are its words
    │   ├── AccessDenied   wrong or missing token, or an identifier outside its namespace
    │   └── NotFound       there is no such job, rule or queue
    └── BadAnswer          an answer that no such server gives; is it another program?

After InvalidRequest, CannotConnect and Refused nothing has happened. After any other the command
may have happened, or not.
"""

from __future__ import annotations

from journeyman.errors import JourneymanError


class ClientError(JourneymanError):
    """Base class of the errors that clients raise."""


class InvalidRequest(ClientError):
    """Nothing was sent, because the server would misread or refuse it."""


class ConnectionFailed(ClientError):
    """The connection broke before the reply arrived."""


class CannotConnect(ConnectionFailed):
    """The client could not connect, so nothing was sent."""


class LoginBusy(CannotConnect):
    """The server did not check the token, several times in a row; try again later."""


class TimedOut(ConnectionFailed):
    """No answer came in time. It is not asked again: it would not be faster then."""


class AnswerLost(ConnectionFailed):
    """The connection broke after a command that must not be sent twice. Look before repeating."""


class Refused(ClientError):
    """The server refused the command and did nothing."""

    def __init__(self, code: str, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}" if self.reason else self.code


class AccessDenied(Refused):
    """Wrong or missing token, or an identifier outside its namespace."""


class NotFound(Refused):
    """The job, rule or queue does not exist."""


class BadAnswer(ClientError):
    """A reply that this kind of server never sends."""
