"""The mail runner: a notice becomes a mail, by the mail server of the settings (``[notices]``).

It succeeds when the mail server has taken the mail for every recipient. Which server that is, and
which recipients there may be, is the administrator's to say; so no gate of reach.py is asked.
smtplib blocks, so it talks in a thread; when the run is cancelled or takes too long, its socket is
shut, which ends the thread.
"""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate
from hashlib import sha256
from typing import Any

from journeyman.config import NoticeSettings, RunnerSettings, SmtpSecurity
from journeyman.config.loading import read_secret
from journeyman.errors import UsageError
from journeyman.formats.ztick import Mail
from journeyman.runners.contract import RunRequest, RunResult, failed_run, limit_text
from journeyman.runners.network import address, why
from journeyman.runners.programs import iso_moment
from journeyman.runners.reach import Reach
from journeyman.units import NS_PER_S

MAX_SUBJECT_CHARS = 200


class MailRunner:
    def __init__(self, runners: RunnerSettings, reach: Reach, settings: NoticeSettings) -> None:  # noqa: ARG002 - of every network runner
        self._settings = settings
        self._limit_ms = runners.network_timeout_ms

    async def run(self, request: RunRequest[Mail]) -> RunResult:
        settings, recipients = self._settings, request.runner.recipients
        if reason := settings.refuses_mail_to(recipients):
            return failed_run(reason)
        try:
            password = read_secret(settings.smtp_password_file, "notices.smtp_password_file")
        except UsageError as error:
            return failed_run(str(error))
        mail = _compose(settings.mail_from, recipients, request)
        return await self._send(mail, password)

    async def close(self) -> None:
        """Runs share nothing."""

    async def _send(self, mail: EmailMessage, password: str) -> RunResult:
        settings = self._settings
        name = f"the mail server at {address(settings.smtp_host or '', settings.smtp_port)}"
        conversation = _Conversation(settings, password, self._limit_ms / 1000)
        try:
            async with asyncio.timeout(self._limit_ms / 1000):
                await asyncio.to_thread(conversation.send, mail)
        except TimeoutError:
            return failed_run(f"no answer from {name} within {limit_text(self._limit_ms)}")
        except smtplib.SMTPRecipientsRefused as error:
            refused = ", ".join(error.recipients)
            return failed_run(f"{name} refused the recipients {refused}")
        except smtplib.SMTPResponseException as error:
            answer = error.smtp_error
            text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
            return failed_run(f"{name} answered {error.smtp_code} {text}")
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return failed_run(f"could not send by {name}: {why(error)}")
        finally:
            conversation.hang_up()
        return RunResult(True)


class _Conversation:
    """One connection to the mail server, in the thread of the run."""

    def __init__(self, settings: NoticeSettings, password: str, limit_s: float) -> None:
        self._settings = settings
        self._password = password
        self._limit_s = limit_s
        self._client: smtplib.SMTP | None = None
        self._is_over = False

    def send(self, mail: EmailMessage) -> None:
        settings = self._settings
        assert settings.smtp_host is not None
        tls = ssl.create_default_context()
        place = (settings.smtp_host, settings.smtp_port)
        if settings.smtp_security is SmtpSecurity.TLS:
            self._client = smtplib.SMTP_SSL(*place, timeout=self._limit_s, context=tls)
        else:
            self._client = smtplib.SMTP(*place, timeout=self._limit_s)
        if self._is_over:
            raise OSError("the run was cancelled")
        if settings.smtp_security is SmtpSecurity.STARTTLS:
            self._client.starttls(context=tls)
        if settings.smtp_user:
            self._client.login(settings.smtp_user, self._password)
        refused = self._client.send_message(mail)
        if refused:
            raise smtplib.SMTPRecipientsRefused(refused)
        with suppress(smtplib.SMTPException, OSError):  # the mail is taken
            self._client.quit()

    def hang_up(self) -> None:
        """Shut the socket, so that the thread does not wait any longer."""
        self._is_over = True
        connection = None if self._client is None else self._client.sock
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()


def _compose(sender: str, recipients: tuple[str, ...], request: RunRequest[Mail]) -> EmailMessage:
    facts = request.facts or {}
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = _subject(facts)
    mail["Date"] = formatdate(request.execution_ns / NS_PER_S)
    # The same for every attempt, so that a mail that arrives twice can be recognised.
    unique = sha256(request.job_id.encode()).hexdigest()[:32]
    mail["Message-ID"] = f"<{unique}@journeyman.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(_text(facts))
    return mail


def _subject(facts: Mapping[str, Any]) -> str:
    text = f"{facts.get('owner', '')} {facts.get('event', '')}: {facts.get('reason', '')}"
    printable = "".join(each if each.isprintable() else " " for each in text)
    return printable[:MAX_SUBJECT_CHARS]


def _text(facts: Mapping[str, Any]) -> str:
    execution = facts.get("execution")
    rows = {
        "Job": facts.get("job"),
        "Queue": facts.get("queue"),
        "Planned": iso_moment(execution) if isinstance(execution, int) else None,
        "Event": facts.get("event"),
        "Reason": facts.get("reason"),
    }
    lines = [f"{name + ':':<9} {value}" for name, value in rows.items() if value]
    if facts.get("output"):
        lines += ["", "The end of its output:", "", str(facts["output"])]
    return "\n".join(lines).replace("\0", "") + "\n"
