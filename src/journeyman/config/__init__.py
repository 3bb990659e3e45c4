"""The server's configuration: every setting, where its value comes from, and the auth file.

    settings.py         the table: section, key, type, range, default, meaning; the frozen result
    queue_settings.py   its sections about queues, and the tables inside [kestrel]
    kinds.py            types of values: what is allowed, reading, writing; host:port
    loading.py          defaults < file < environment < command line; checks; show, sample
    tokens.py           the auth file

Nothing here opens a listener, a log or a certificate: it says what was asked for, and refuses
what cannot be, in one line that names place, key, value and what is allowed.
"""

from __future__ import annotations

from journeyman.config.kinds import Address, parse_address
from journeyman.config.loading import Configuration, load, sample, show
from journeyman.config.queue_settings import (
    StorageEngine,
    StorageMode,
    StorageSettings,
    WorkqPersistence,
    WorkqSettings,
    WorkqSync,
)
from journeyman.config.settings import (
    ControllerSettings,
    DatabaseSettings,
    HistorySettings,
    Interrupted,
    LimitSettings,
    LogLevel,
    MessageFormat,
    NoticeSettings,
    Overdue,
    Persistence,
    RunnerSettings,
    Settings,
    ShellSettings,
    SmtpSecurity,
    TelemetrySettings,
    all_settings,
)
from journeyman.config.tokens import (
    ALL_NAMESPACES,
    Token,
    Tokens,
    digest_of,
    load_tokens,
    parse_tokens,
)

__all__ = [
    "ALL_NAMESPACES",
    "Address",
    "Configuration",
    "ControllerSettings",
    "DatabaseSettings",
    "HistorySettings",
    "Interrupted",
    "LimitSettings",
    "LogLevel",
    "MessageFormat",
    "NoticeSettings",
    "Overdue",
    "Persistence",
    "RunnerSettings",
    "Settings",
    "ShellSettings",
    "SmtpSecurity",
    "StorageEngine",
    "StorageMode",
    "StorageSettings",
    "TelemetrySettings",
    "Token",
    "Tokens",
    "WorkqPersistence",
    "WorkqSettings",
    "WorkqSync",
    "all_settings",
    "digest_of",
    "load",
    "load_tokens",
    "parse_address",
    "parse_tokens",
    "sample",
    "show",
]
