"""The outbox: jobs that are rows in the application's own database until a worker sends them.

    with connection:                                     one transaction:
        connection.execute("INSERT INTO orders ...")       the order
        outbox.send(connection, ship.call(order_id))       and its job: both, or none

    worker --every second--> rows --add, by the id of the job--> server; then the rows go

No job is lost while the server is away, and none is sent for a transaction that was rolled back. A
relay that dies after the server took a job sends it again: the server knows the id until the TTL of
the job ends, and that began after the row was written. So a row is sent exactly once until then; a
row older than the TTL is not sent but reported, for the server may have forgotten the id. So is a
row that the server refuses. Both stay in the table until someone deletes them.

``Outbox`` works with any DB-API module; integrations/ has those of SQLAlchemy and Django.
"""

from __future__ import annotations

import json
import logging
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID, uuid4

from journeyman.client import ConnectionFailed
from journeyman.errors import JourneymanError, UsageError
from journeyman.tasks.broker import Broker, Order, Relayed
from journeyman.tasks.jobs import Job
from journeyman.tasks.options import Options
from journeyman.units import MS_PER_S

if TYPE_CHECKING:
    from journeyman.tasks.task import Call

logger = logging.getLogger("journeyman.outbox")
T = TypeVar("T")

TABLE: Final = "journeyman_outbox"
AT_ONCE: Final = 100  # rows of one round
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,100}")
_COLUMNS: Final = (
    "id VARCHAR(36) PRIMARY KEY, created_ms BIGINT NOT NULL, expires_ms BIGINT NOT NULL,"
    " job TEXT NOT NULL, problem VARCHAR(500) NOT NULL"
)


class Outbox:
    """The outbox of a database that a DB-API module connects to."""

    def __init__(
        self, connect: Callable[[], Any], *, paramstyle: str = "qmark", table: str = TABLE
    ) -> None:
        """``connect`` makes a connection for the relay; ``paramstyle`` is that of the module."""
        if _NAME.fullmatch(table) is None:
            raise UsageError(f"not the name of a table: {table!r}")
        if paramstyle not in ("qmark", "format", "pyformat"):
            raise UsageError(f"the outbox knows qmark, format and pyformat, not {paramstyle!r}")
        self._connect = connect
        self._mark = "?" if paramstyle == "qmark" else "%s"
        self.table = table
        self._reported = (0, 0)

    def create_table(self) -> None:
        """Make the table unless it is there."""
        with self._transaction() as target:
            self._run(target, f"CREATE TABLE IF NOT EXISTS {self.table} ({_COLUMNS})", ())

    def send(self, target: Any, call: Call[T]) -> Job[T]:
        """Write the job into the open transaction of ``target``, a connection or a cursor. Its
        arguments are checked and its id is known now. Raises TypeError, UsageError."""
        salt = call.app.broker.salt() if call.derives_ids else b""
        order = call.order(salt)
        now_ms = _now_ms()
        begins_ms = now_ms if order.at is None else round(order.at.timestamp() * MS_PER_S)
        row = (str(uuid4()), now_ms, begins_ms + order.options.ttl_ms, _written(order), "")
        places = ", ".join("?" * len(row))
        columns = "id, created_ms, expires_ms, job, problem"
        self._run(target, f"INSERT INTO {self.table} ({columns}) VALUES ({places})", row)
        return call.job_of(order, salt)

    def relay(self, broker: Broker) -> Relayed:
        """Send what waits, the oldest first, at most ``AT_ONCE``. Raises ConnectionFailed, and
        whatever the database raises."""
        now_ms = _now_ms()
        waiting = f"FROM {self.table} WHERE problem = '' AND expires_ms"
        with self._transaction() as target:
            rows = self._run(
                target,
                f"SELECT id, job, expires_ms {waiting} > ? ORDER BY created_ms LIMIT {AT_ONCE}",
                (now_ms,),
            )
            expired = self._run(target, f"SELECT COUNT(*) {waiting} <= ?", (now_ms,))[0][0]
            refused = self._run(
                target, f"SELECT COUNT(*) FROM {self.table} WHERE problem <> ''", ()
            )[0][0]
        sent: list[str] = []
        problems: list[tuple[str, str]] = []
        try:
            for row_id, job, expires_ms in rows:
                if _now_ms() >= expires_ms:  # this round was held up, and another relay sent it
                    continue
                try:
                    broker.add(_read(job))
                    sent.append(row_id)
                except ConnectionFailed:
                    raise
                except (JourneymanError, ValueError, KeyError, TypeError) as error:
                    problems.append((str(error)[:500] or type(error).__name__, row_id))
                    logger.error("row %s of %s is not sent: %s", row_id, self.table, error)
        finally:  # jobs that the server has are not sent again
            if sent or problems:
                self._conclude(sent, problems)
        return self._report(Relayed(len(sent), expired, refused + len(problems)))

    def _conclude(self, sent: Sequence[str], problems: Sequence[tuple[str, str]]) -> None:
        with self._transaction() as target:
            for row_id in sent:
                self._run(target, f"DELETE FROM {self.table} WHERE id = ?", (row_id,))
            for problem, row_id in problems:
                change = f"UPDATE {self.table} SET problem = ? WHERE id = ?"
                self._run(target, change, (problem, row_id))

    def _report(self, relayed: Relayed) -> Relayed:
        """Log rows that will never be sent, whenever their number has changed."""
        unsent = relayed.expired, relayed.refused
        if unsent != self._reported and any(unsent):
            logger.error(
                "%s has %d rows that are older than the TTL of their job and %d that the server"
                " refused; they are not sent: look at them and delete them",
                self.table, *unsent,
            )  # fmt: skip
        self._reported = unsent
        return relayed

    # -- the database ------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A transaction of the relay's own: committed at the end, or rolled back."""
        with closing(self._connect()) as connection:
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def _run(self, target: Any, sql: str, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Execute, and fetch the rows of a SELECT."""
        is_cursor = hasattr(target, "fetchall")
        cursor = target if is_cursor else target.cursor()
        try:
            cursor.execute(sql.replace("?", self._mark), tuple(values))
            return list(cursor.fetchall()) if sql.startswith("SELECT") else []
        finally:
            if not is_cursor:
                cursor.close()


def _now_ms() -> int:
    return round(time.time() * MS_PER_S)


def _written(order: Order) -> str:
    options = order.options
    members = {
        "id": str(order.job_id),
        "payload": b64encode(order.payload).decode(),
        "queue": options.queue,
        "retries": options.retries,
        "priority": options.priority,
        "lease_s": options.lease_s,
        "ttl_s": options.ttl_s,
        "unique": options.unique is not None,
        "unique_for_s": options.unique_for_s,
        "at": None if order.at is None else order.at.astimezone(UTC).isoformat(),
        "key": order.limit_key,
        "has_followers": order.has_followers,
    }
    return json.dumps(members, separators=(",", ":"))


def _read(job: str) -> Order:
    members = json.loads(job)
    is_unique = members["unique"]
    options = Options(
        queue=members["queue"],
        retries=members["retries"],
        priority=members["priority"],
        lease_s=members["lease_s"],
        ttl_s=members["ttl_s"],
        unique="args" if is_unique else None,  # the id was made of it already
        unique_for_s=members["unique_for_s"],
    )
    return Order(
        UUID(members["id"]),
        b64decode(members["payload"]),
        options,
        None if members["at"] is None else datetime.fromisoformat(members["at"]),
        members["key"],
        unless_same=is_unique,
        has_followers=members["has_followers"],
    )
