"""Every setting of the server: section, key, kind, unit, default, limit and meaning, in one table.

A section of the file is a class here, a key is a field; `Settings` holds one of each. The classes
are the table: files, environment, command line, `config --show` and the check of
docs/configuration.md all walk over ``all_settings()``, so nothing is listed twice. The sections of
the queues are in queue_settings.py.

    [database]                          settings.database.framerate
    framerate = 512                     JOURNEYMAN_DATABASE_FRAMERATE=512

The sections down to [telemetry] are ztick's, key for key with its defaults, so a ztick
configuration file works as it is. The ones after it are new. Paths are taken as given: relative
ones are relative to the current directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar, cast

from journeyman.config.kinds import (
    Address,
    Choice,
    Flag,
    Integer,
    ListenAddress,
    NetworkList,
    Networks,
    Optional,
    Text,
    TextList,
    ValueKind,
    setting,
)
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


@dataclass(frozen=True, slots=True)
class AccessSettings:
    insecure: bool = setting(
        Flag(), False, "allow non-loopback addresses without tokens: everyone can connect"
    )
    allowed_hosts: tuple[str, ...] = setting(
        TextList(), (), "host names under which HTTP clients may reach this server; * allows all"
    )
    trusted_proxies: tuple[str, ...] = setting(
        Networks(), (), "load balancers whose word is taken for the addresses of their clients"
    )
    proxy_protocol: bool = setting(
        Flag(), False, "whether they begin connections to the three ports with a PROXY header"
    )
    socket_mode: SocketMode = setting(
        Choice(SocketMode), SocketMode.USER, "mode of Unix sockets: the user, or also its group"
    )


# ruff: noqa: RUF009 - setting() is dataclasses.field() with the rest of the table's row


T = TypeVar("T")

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
    """What to do with a job whose run was interrupted by a stop of the server."""

    RUN = "run"
    FAIL = "fail"


class Overdue(StrEnum):
    """What to do with a planned job that came due while no server ran."""

    RUN = "run"
    SKIP = "skip"


class MessageFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: LogLevel = setting(
        Choice(LogLevel), LogLevel.INFO, "which messages are written to stderr"
    )


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    enabled: bool = setting(Flag(), True, "whether the ztick protocol is served")
    listen: Address = setting(
        ListenAddress(), Address("127.0.0.1", 5678), "address of the ztick protocol"
    )
    auth_file: str | None = setting(
        Optional(Text()), None, "file of tokens, or auto; when set, every port requires one"
    )
    tls_cert: str | None = setting(
        Optional(Text()),
        None,
        "PEM file of the certificate; turns on TLS for every port, together with tls_key",
    )
    tls_key: str | None = setting(
        Optional(Text()), None, "PEM file of the certificate's private key"
    )


@dataclass(frozen=True, slots=True)
class HttpSettings:
    enabled: bool = setting(Flag(), True, "whether the HTTP API and the console are served")
    listen: Address = setting(
        ListenAddress(), Address("127.0.0.1", 5679), "address of the HTTP API and the console"
    )


@dataclass(frozen=True, slots=True)
class ShellSettings:
    path: str = setting(Text(), "/bin/sh", "program that runs the commands of shell rules")
    args: tuple[str, ...] = setting(TextList(), ("-c",), "its arguments; the command follows them")


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    persistence: Persistence = setting(
        Choice(Persistence),
        Persistence.LOGFILE,
        "where jobs and rules are kept: log file, or memory only",
    )
    logfile_path: str = setting(
        Text(), default_place("database.logfile_path"), "the log of jobs and rules"
    )
    fsync_on_persist: bool = setting(
        Flag(), True, "whether a reply waits until its record is synced to disk"
    )
    seals: bool = setting(
        Flag(), True, "whether the log is sealed; false writes the same bytes as the original"
    )
    framerate: int = setting(
        Integer(1, 65_535), 512, "how often per second, at most, the server looks for due jobs"
    )
    compression_interval_s: int = setting(
        Integer(0, _MAX_U32, "seconds"),
        3600,
        "time between compactions of the log; 0 turns them off",
        key="compression_interval",
    )


@dataclass(frozen=True, slots=True)
class DataSettings:
    directory: str = setting(
        Text(), DEFAULT_DIRECTORY, "directory of all data whose path is not set elsewhere"
    )


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    enabled: bool = setting(
        Flag(), True, "whether to keep a ledger; the default depends on other settings"
    )
    path: str = setting(Text(), default_place("ledger.path"), "directory of the ledger")
    audit_days: int = setting(
        Integer(0, 36_500), 365, "how long audit records are kept; 0: for ever"
    )


@dataclass(frozen=True, slots=True)
class LakeSettings:
    hold_bytes: int = setting(
        Integer(0, 2**50, "bytes"),
        1024 * MIB,
        "how much of each log is kept for streams and lakes that have not read it yet; 0: nothing",
    )
    hold_days: int = setting(
        Integer(0, 36_500, "days"),
        7,
        "how long it is kept for a stream or lake that no longer reads",
    )


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    enabled: bool = setting(Flag(), False, "whether telemetry is sent; needs an endpoint")
    endpoint: str | None = setting(Optional(Text()), None, "base URL of an OTLP/HTTP collector")
    service_name: str = setting(Text(), "ztick", "the service.name that the collector sees")
    flush_interval_ms: int = setting(
        Integer(0, _MAX_U32, "milliseconds"), 5000, "time between exports; 0 exports at once"
    )


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    max_runs: int = setting(
        Integer(1, 10_000), 64, "how many jobs can run at the same time; others wait in order"
    )
    interrupted: Interrupted = setting(
        Choice(Interrupted),
        Interrupted.RUN,
        "what to do with jobs interrupted by a stop: run them again or fail them",
    )
    overdue: Overdue = setting(
        Choice(Overdue),
        Overdue.RUN,
        "what to do with jobs that came due while no server ran: run or fail them",
    )
    retention_days: int = setting(
        Integer(0, 36_500, "days"),
        30,
        "how long ended jobs are kept; 0: for ever; runs stay in the history",
        key="retention",
    )


@dataclass(frozen=True, slots=True)
class HistorySettings:
    enabled: bool = setting(
        Flag(), True, "whether each run is recorded in files; only with a log file"
    )
    path: str | None = setting(
        Optional(Text()),
        None,
        "directory of these files; default: the path of the log file plus .runs",
    )
    file_bytes: int = setting(
        Integer(65_536, 1024 * MIB, "bytes"), 16 * MIB, "size at which a new file is started"
    )
    files: int = setting(
        Integer(1, 100_000), 64, "how many files are kept; the oldest are removed first"
    )
    days: int = setting(
        Integer(0, 36_500),
        30,
        "how long runs are kept; 0: no limit; otherwise a file covers at most a day",
    )


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    process_timeout_ms: int = setting(
        Integer(0, 30 * DAY_MS, "milliseconds"),
        0,
        "longest run of shell, direct and awf; 0: no limit",
    )
    network_timeout_ms: int = setting(
        Integer(1, DAY_MS, "milliseconds"), 30_000, "longest run of http, amqp and redis"
    )
    kill_grace_ms: int = setting(
        Integer(0, 60 * 60 * 1000, "milliseconds"),
        5000,
        "time a process has to end after SIGTERM, before SIGKILL",
    )
    output_bytes: int = setting(
        Integer(0, MIB, "bytes"), 4096, "how much of a run's output is kept"
    )
    allow: tuple[str, ...] = setting(
        NetworkList(), (), "networks and hosts that rules of a namespace may connect to"
    )
    deny: tuple[str, ...] = setting(
        NetworkList(), (), "networks and hosts that no rule may connect to"
    )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    connections: int = setting(Integer(1, 100_000), 16_000, "open connections per port")
    auth_timeout_ms: int = setting(
        Integer(1, DAY_MS, "milliseconds"), 5000, "time from connecting to a successful AUTH"
    )
    handshake_timeout_ms: int = setting(
        Integer(1, DAY_MS, "milliseconds"), 10_000, "time limit for a TLS handshake"
    )
    http_timeout_ms: int = setting(
        Integer(1, DAY_MS, "milliseconds"), 30_000, "time limit for an HTTP request to arrive"
    )
    http_body_bytes: int = setting(
        Integer(1, 64 * MIB, "bytes"), MIB, "largest body of an HTTP request"
    )
    past_bytes: int = setting(
        Integer(64 * MIB, 1024 * 1024 * MIB, "bytes"),
        4096 * MIB,
        "memory of the process that reads the past for the console and ?at=",
    )
    stop_timeout_ms: int = setting(
        Integer(0, DAY_MS, "milliseconds"),
        10_000,
        "how long the server waits for runs when it stops",
    )
    waiting_commands: int = setting(
        Integer(1, 1_000_000),
        10_000,
        "how many commands can wait for the log before the server stops reading",
    )
    write_warn_ms: int = setting(
        Integer(1, DAY_MS, "milliseconds"), 1000, "age at which a write in flight is reported"
    )
    write_deadline_ms: int = setting(
        Integer(1, DAY_MS, "milliseconds"),
        10_000,
        "age of a write in flight at which the server is not ready",
    )
    watchdog_deadline_ms: int = setting(
        Integer(1, DAY_MS, "milliseconds"),
        60_000,
        "age of a write in flight at which systemd gets no more signs of life",
    )
    unsent_bytes: int = setting(
        Integer(4096, 1024 * MIB, "bytes"),
        MIB,
        "unread replies of a client before its commands wait",
    )
    total_unsent_bytes: int = setting(
        Integer(MIB, 64 * 1024 * MIB, "bytes"),
        64 * MIB,
        "unread replies of all clients; beyond this, clients that do not read are closed",
    )
    idle_timeout_ms: int = setting(
        Integer(0, 365 * DAY_MS, "milliseconds"),
        DAY_MS,
        "time after which an idle connection of the ztick protocol is closed; 0: never",
    )


@dataclass(frozen=True, slots=True)
class MessageSettings:
    format: MessageFormat = setting(
        Choice(MessageFormat), MessageFormat.TEXT, "text lines, or one JSON object per line"
    )


@dataclass(frozen=True, slots=True)
class Settings:
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
    schedule: ScheduleSettings = ScheduleSettings()
    history: HistorySettings = HistorySettings()
    workq: WorkqSettings = WorkqSettings()
    kestrel: KestrelSettings = KestrelSettings()
    storage: StorageSettings = StorageSettings()
    runners: RunnerSettings = RunnerSettings()
    limits: LimitSettings = LimitSettings()
    messages: MessageSettings = MessageSettings()


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table."""

    section: str
    key: str
    attribute: str
    kind: ValueKind[Any]
    default: Any
    meaning: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"JOURNEYMAN_{self.section}_{self.key}".upper()

    def value_in(self, settings: Settings) -> Any:
        return getattr(getattr(settings, self.section), self.attribute)


def all_settings() -> Iterator[Setting]:
    """The table, in the order of the sections and keys above."""
    for section in fields(Settings):
        for each in fields(cast(Any, section.default)):
            kind, meaning, key = (each.metadata[name] for name in ("kind", "meaning", "key"))
            yield Setting(section.name, key or each.name, each.name, kind, each.default, meaning)
