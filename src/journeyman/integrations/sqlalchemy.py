"""The outbox of a database that SQLAlchemy connects to. See docs/integrations.md.

outbox = SqlAlchemyOutbox(engine)
app.use_outbox(outbox)

with Session(engine) as session, session.begin():
    session.add(order)
    outbox.send(session, ship.call(order.id))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, text

from journeyman.tasks.outbox import TABLE, Outbox


class SqlAlchemyOutbox(Outbox):
    """``send`` takes a Session or a Connection; of an AsyncSession, ``session.sync_session``."""

    def __init__(self, engine: Engine, *, table: str = TABLE) -> None:
        super().__init__(engine.connect, table=table)
        self._engine = engine

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._engine.begin() as connection:
            yield connection

    def _run(self, target: Any, sql: str, values: Sequence[Any]) -> list[Sequence[Any]]:
        pieces = sql.split("?")
        named = "".join(f"{piece}:v{n}" for n, piece in enumerate(pieces[:-1])) + pieces[-1]
        result = target.execute(text(named), {f"v{n}": value for n, value in enumerate(values)})
        return list(result) if result.returns_rows else []
