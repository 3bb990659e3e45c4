"""The options of ``write.format("journeyman")``. A name that nobody knows is an error:

door         ztick or workq: which of the server's protocols
address      HOST:PORT; by default 127.0.0.1 and the port of that service
token        the secret of a token
tls          true: speak TLS, trusting what the system trusts; tlsCa: trusting this file
batchSize    jobs on the way at a time, for each task (500)
rateLimit    jobs a second over all tasks together; then ``tasks`` is needed
tasks        how many tasks there are at most; each gets its share of the rate
maxRetries   how often a task connects anew before it gives up (5)
refused      fail (default): the write fails, behind all jobs that were taken; skip: it does not
report       a file on the driver's machine for the counts, as JSON
runId        workq: what ids are made of besides ``job_key``; say the same again to repeat a
             write that failed, and no job is added twice. A stream whose rows have no
             ``job_id`` needs it: a batch that Spark repeats must add nothing twice
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final
from uuid import uuid4

from journeyman.errors import UsageError
from journeyman.spark.source import options as source_options


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Checked and with defaults. Pickled with every task; ``run_id`` is the same in all."""

    dialect: str
    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: str | None = None
    batch_size: int = 500
    rate_limit: float | None = None
    tasks: int | None = None
    max_retries: int = 5
    refused: str = "fail"
    report: str | None = None
    run_id: str = ""

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> ServerOptions:
        """Raises UsageError."""
        values = source_options.parse_options("format('journeyman')", texts, OPTIONS)
        dialect = values.pop("dialect", None)
        if dialect is None:
            raise UsageError("format('journeyman') needs the option door: ztick or workq")
        host, port = split_server_address(values.pop("address", None), _default_port(dialect))
        values.setdefault("run_id", str(uuid4()))
        options = cls(dialect, host, port, **values)
        if options.rate_limit is not None and options.tasks is None:
            raise UsageError(
                "rateLimit is over all tasks: say with tasks how many there are at most,"
                " or use journeyman.spark.send"
            )
        return options

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"


def _default_port(dialect: str) -> int:
    port: int = import_module(f"journeyman.client.{dialect}").DEFAULT_PORT
    return port


def split_server_address(text: str | None, default_port: int) -> tuple[str, int]:
    """HOST, HOST:PORT or [ADDRESS]:PORT."""
    if text is None:
        return "127.0.0.1", default_port
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"an address is HOST:PORT, not {text!r}")
    return host, int(port)


def _rate(name: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise UsageError(f"{name} is a number of jobs a second above 0, not {text!r}")
    return rate


OPTIONS: Final[source_options.OptionTable] = (
    ("door", "dialect", source_options.one_of("ztick", "workq")),
    ("address", "address", source_options.any_text),
    ("token", "token", source_options.any_text),
    ("tls", "tls", source_options.flag_option),
    ("tlsCa", "tls_ca", source_options.any_text),
    ("batchSize", "batch_size", source_options.number_from(1)),
    ("rateLimit", "rate_limit", _rate),
    ("tasks", "tasks", source_options.number_from(1)),
    ("maxRetries", "max_retries", source_options.number_from(0)),
    ("refused", "refused", source_options.one_of("fail", "skip")),
    ("report", "report", source_options.any_text),
    ("runId", "run_id", source_options.any_text),
)
