"""Every setting of the server: section, key, kind, unit, default, limit and meaning, in one table.

A section of the file is a class here, a key is a field whose annotation gives type, range and
meaning; `Settings` holds one of each. The classes are the table: files, environment, command line,
`config --show` and the check of docs/configuration.md all walk over ``all_settings()``, so nothing
is listed twice. The sections of the queues are in queue_settings.py.

    [database]                          settings.database.framerate
    framerate = 512                     JOURNEYMAN_DATABASE_FRAMERATE=512

The sections down to [telemetry] are ztick's, key for key with its defaults, so a ztick
configuration file works as it is. The ones after it are new. Paths are taken as given: relative
ones are relative to the current directory.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from typing import Annotated, Any

from msgspec import Struct, field
from msgspec.structs import fields

from journeyman.config import kinds
from journeyman.config.queue_settings import (
    KestrelSettings,
    StorageSettings,
    WorkqSettings,
)
from journeyman.data_directory import DEFAULT_DIRECTORY, default_place
from journeyman.units import DAY_MS, MIB


class SocketMode(StrEnum):
    """Who can connect to Unix sockets."""

    USER = "0600"
    GROUP = "0660"


class AccessSettings(Struct, frozen=True):
    insecure: Annotated[
        bool, "allow non-loopback addresses without tokens: everyone can connect"
    ] = False
    allowed_hosts: Annotated[
        kinds.Texts, "host names under which HTTP clients may reach this server; * allows all"
    ] = ()
    allowed_origins: Annotated[
        kinds.Origins, "sites whose web pages may use version 1 of the HTTP API (CORS)"
    ] = ()
    trusted_proxies: Annotated[
        kinds.Networks, "load balancers whose word is taken for the addresses of their clients"
    ] = ()
    proxy_protocol: Annotated[
        bool, "whether they begin connections to the three ports with a PROXY header"
    ] = False
    socket_mode: Annotated[SocketMode, "mode of Unix sockets: the user, or also its group"] = (
        SocketMode.USER
    )


_MAX_U32 = 2**32 - 1  # the largest value of ztick's own intervals


class LogLevel(StrEnum):
    """How much the server says; each level includes those above it. Trace equals debug."""

    OFF = "off"
    ERROR = "error"
    WARN = "warn"
    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"


class Persistence(StrEnum):
    """Where the schedule keeps its jobs and rules."""

    LOGFILE = "logfile"
    MEMORY = "memory"


class Interrupted(StrEnum):
    """The treatment of a job whose run was interrupted by a stop of the server."""

    RUN = "run"
    FAIL = "fail"


class Overdue(StrEnum):
    """The treatment of a planned job that came due while no server ran."""

    RUN = "run"
    SKIP = "skip"


class MessageFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogSettings(Struct, frozen=True):
    level: Annotated[LogLevel, "which messages are written to stderr"] = LogLevel.INFO


class ControllerSettings(Struct, frozen=True):
    enabled: Annotated[bool, "whether the ztick protocol is served"] = True
    listen: Annotated[kinds.Listen, "address of the ztick protocol"] = kinds.Address(
        "127.0.0.1", 5678
    )
    auth_file: Annotated[
        kinds.Text | None, "file of tokens, or auto; when set, every port requires one"
    ] = None
    tls_cert: Annotated[
        kinds.Text | None,
        "PEM file of the certificate; turns on TLS for every port, together with tls_key",
    ] = None
    tls_key: Annotated[kinds.Text | None, "PEM file of the certificate's private key"] = None


class HttpSettings(Struct, frozen=True):
    enabled: Annotated[bool, "whether the HTTP API and the console are served"] = True
    listen: Annotated[kinds.Listen, "address of the HTTP API and the console"] = kinds.Address(
        "127.0.0.1", 5679
    )


class ShellSettings(Struct, frozen=True):
    path: Annotated[kinds.Text, "program that runs the commands of shell rules"] = "/bin/sh"
    args: Annotated[kinds.Texts, "its arguments; the command follows them"] = ("-c",)


class DatabaseSettings(Struct, frozen=True):
    persistence: Annotated[
        Persistence, "where jobs and rules are kept: log file, or memory only"
    ] = Persistence.LOGFILE
    logfile_path: Annotated[kinds.Text, "the log of jobs and rules"] = default_place(
        "database.logfile_path"
    )
    fsync_on_persist: Annotated[
        bool, "whether a reply waits until its record is synced to disk"
    ] = True
    seals: Annotated[
        bool, "whether the log is sealed; false writes the same bytes as the original"
    ] = True
    framerate: Annotated[
        int,
        kinds.between(1, 65_535),
        "how often per second, at most, the server looks for due jobs",
    ] = 512
    compression_interval_s: Annotated[
        int, kinds.between(0, _MAX_U32), "time between compactions of the log; 0 turns them off"
    ] = field(default=3600, name="compression_interval")


class DataSettings(Struct, frozen=True):
    directory: Annotated[kinds.Text, "directory of all data whose path is not set elsewhere"] = (
        DEFAULT_DIRECTORY
    )


class LedgerSettings(Struct, frozen=True):
    enabled: Annotated[bool, "whether to keep a ledger; the default depends on other settings"] = (
        True
    )
    path: Annotated[kinds.Text, "directory of the ledger"] = default_place("ledger.path")
    audit_days: Annotated[kinds.Days, "how long audit records are kept; 0: for ever"] = 365


class LakeSettings(Struct, frozen=True):
    hold_bytes: Annotated[
        int,
        kinds.between(0, 2**50),
        "how much of each log is kept for streams and lakes that have not read it yet; 0: nothing",
    ] = 1024 * MIB
    hold_days: Annotated[
        kinds.Days, "how long it is kept for a stream or lake that no longer reads"
    ] = 7


class SeriesSettings(Struct, frozen=True):
    enabled: Annotated[
        bool, "whether figures of queues, tasks, rules and timetables are counted over time"
    ] = True


class EventSettings(Struct, frozen=True):
    retention_days: Annotated[
        int,
        kinds.between(1, 36_500),
        "how long an event counts for jobs that wait for it later",
    ] = field(default=30, name="retention")


class TelemetrySettings(Struct, frozen=True):
    enabled: Annotated[bool, "whether telemetry is sent; needs an endpoint"] = False
    endpoint: Annotated[kinds.Text | None, "base URL of an OTLP/HTTP collector"] = None
    service_name: Annotated[kinds.Text, "the service.name that the collector sees"] = "ztick"
    flush_interval_ms: Annotated[
        int, kinds.between(0, _MAX_U32), "time between exports; 0 exports at once"
    ] = 5000


class ScheduleSettings(Struct, frozen=True):
    max_runs: Annotated[
        int,
        kinds.between(1, 10_000),
        "how many jobs can run at the same time; others wait in order",
    ] = 64
    interrupted: Annotated[
        Interrupted, "what to do with jobs interrupted by a stop: run them again or fail them"
    ] = Interrupted.RUN
    overdue: Annotated[
        Overdue, "what to do with jobs that came due while no server ran: run or fail them"
    ] = Overdue.RUN
    retention_days: Annotated[
        kinds.Days,
        "how long ended jobs are kept; 0: for ever; runs stay in the history",
    ] = field(default=30, name="retention")


class HistorySettings(Struct, frozen=True):
    enabled: Annotated[bool, "whether each run is recorded in files; only with a log file"] = True
    path: Annotated[
        kinds.Text | None, "directory of these files; default: the path of the log file plus .runs"
    ] = None
    file_bytes: Annotated[
        int, kinds.between(65_536, 1024 * MIB), "size at which a new file is started"
    ] = 16 * MIB
    files: Annotated[
        int, kinds.between(1, 100_000), "how many files are kept; the oldest are removed first"
    ] = 64
    days: Annotated[
        kinds.Days,
        "how long runs are kept; 0: no limit; otherwise a file covers at most a day",
    ] = 30


class RunnerSettings(Struct, frozen=True):
    process_timeout_ms: Annotated[
        int, kinds.between(0, 30 * DAY_MS), "longest run of shell, direct and awf; 0: no limit"
    ] = 0
    network_timeout_ms: Annotated[kinds.TimeLimit, "longest run of http, amqp and redis"] = 30_000
    kill_grace_ms: Annotated[
        int,
        kinds.between(0, 60 * 60 * 1000),
        "time a process has to end after SIGTERM, before SIGKILL",
    ] = 5000
    output_bytes: Annotated[int, kinds.between(0, MIB), "how much of a run's output is kept"] = 4096
    users: Annotated[
        kinds.Texts,
        "users as whom rules and timetables may run programs, beside that of the server",
    ] = ()
    allow: Annotated[
        kinds.NetworksAndHosts, "networks and hosts that rules of a namespace may connect to"
    ] = ()
    deny: Annotated[kinds.NetworksAndHosts, "networks and hosts that no rule may connect to"] = ()


class SmtpSecurity(StrEnum):
    """How the conversation with the mail server is encrypted."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


class NoticeSettings(Struct, frozen=True):
    smtp_host: Annotated[kinds.Text | None, "mail server that takes the mails of on_failure"] = None
    smtp_port: Annotated[int, kinds.between(1, 65_535), "its port"] = 587
    smtp_security: Annotated[SmtpSecurity, "how the connection to it is encrypted"] = (
        SmtpSecurity.STARTTLS
    )
    smtp_user: Annotated[kinds.Text | None, "user name for it; none: no login"] = None
    smtp_password_file: Annotated[kinds.Text | None, "file with the password of that user"] = None
    mail_from: Annotated[kinds.Text, "sender of the mails"] = "journeyman@localhost"
    recipients: Annotated[
        kinds.Texts, "who may get mails: addresses, or *@example.com; empty: everyone"
    ] = ()
    signing_key_file: Annotated[
        kinds.Text | None, "file with the key that signs the HTTP requests of on_failure"
    ] = None

    def refuses_mail_to(self, recipients: Iterable[str]) -> str:
        """Return why nobody can send this mail; empty if it can be sent."""
        if not self.smtp_host:
            return "no mail server is configured: set notices.smtp_host"
        known = {each.lower() for each in self.recipients}
        for recipient in recipients:
            address = recipient.lower()
            if known and known.isdisjoint((address, f"*@{address.rpartition('@')[2]}")):
                return f"{recipient} is not in notices.recipients"
        return ""


class LimitSettings(Struct, frozen=True):
    connections: Annotated[int, kinds.between(1, 100_000), "open connections per port"] = 16_000
    auth_timeout_ms: Annotated[kinds.TimeLimit, "time from connecting to a successful AUTH"] = 5000
    handshake_timeout_ms: Annotated[kinds.TimeLimit, "time limit for a TLS handshake"] = 10_000
    http_timeout_ms: Annotated[kinds.TimeLimit, "time limit for an HTTP request to arrive"] = 30_000
    http_body_bytes: Annotated[
        int, kinds.between(1, 64 * MIB), "largest body of an HTTP request"
    ] = MIB
    past_bytes: Annotated[
        int,
        kinds.between(64 * MIB, 1024 * 1024 * MIB),
        "memory of the process that reads the past for the console and ?at=",
    ] = 4096 * MIB
    stop_timeout_ms: Annotated[
        int, kinds.between(0, DAY_MS), "how long the server waits for runs when it stops"
    ] = 10_000
    waiting_commands: Annotated[
        int,
        kinds.between(1, 1_000_000),
        "how many commands can wait for the log before the server stops reading",
    ] = 10_000
    write_warn_ms: Annotated[kinds.TimeLimit, "age at which a write in flight is reported"] = 1000
    write_deadline_ms: Annotated[
        kinds.TimeLimit, "age of a write in flight at which the server is not ready"
    ] = 10_000
    watchdog_deadline_ms: Annotated[
        kinds.TimeLimit,
        "age of a write in flight at which systemd gets no more signs of life",
    ] = 60_000
    unsent_bytes: Annotated[
        int, kinds.between(4096, 1024 * MIB), "unread replies of a client before its commands wait"
    ] = MIB
    total_unsent_bytes: Annotated[
        int,
        kinds.between(MIB, 64 * 1024 * MIB),
        "unread replies of all clients; beyond this, clients that do not read are closed",
    ] = 64 * MIB
    idle_timeout_ms: Annotated[
        kinds.IdleTime,
        "time after which an idle connection of the ztick protocol is closed; 0: never",
    ] = DAY_MS


class MessageSettings(Struct, frozen=True):
    format: Annotated[MessageFormat, "text lines, or one JSON object per line"] = MessageFormat.TEXT


class Settings(Struct, frozen=True):
    log: LogSettings = LogSettings()
    controller: ControllerSettings = ControllerSettings()
    http: HttpSettings = HttpSettings()
    shell: ShellSettings = ShellSettings()
    database: DatabaseSettings = DatabaseSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    access: AccessSettings = AccessSettings()
    data: DataSettings = DataSettings()
    ledger: LedgerSettings = LedgerSettings()
    lake: LakeSettings = LakeSettings()
    series: SeriesSettings = SeriesSettings()
    events: EventSettings = EventSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    history: HistorySettings = HistorySettings()
    workq: WorkqSettings = WorkqSettings()
    kestrel: KestrelSettings = KestrelSettings()
    storage: StorageSettings = StorageSettings()
    runners: RunnerSettings = RunnerSettings()
    notices: NoticeSettings = NoticeSettings()
    limits: LimitSettings = LimitSettings()
    messages: MessageSettings = MessageSettings()


class Setting(Struct, frozen=True):
    """One line of the table."""

    section: str
    key: str
    attribute: str
    kind: Any  # an annotated type
    default: Any

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"JOURNEYMAN_{self.section}_{self.key}".upper()

    @property
    def meaning(self) -> str:
        return str(self.kind.__metadata__[-1])

    @property
    def allowed(self) -> str:
        """The values it may have, in words."""
        return kinds.allowed(self.kind, self.attribute)

    def value_in(self, settings: Settings) -> Any:
        return getattr(getattr(settings, self.section), self.attribute)


@cache
def all_settings() -> tuple[Setting, ...]:
    """The table, in the order of the sections and keys above."""
    return tuple(
        Setting(
            section.name, key.encode_name, key.name, key.type, getattr(section.default, key.name)
        )
        for section in fields(Settings)
        for key in fields(section.type)
    )
