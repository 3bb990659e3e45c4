"""Steps of Airflow and tables of dbt, with doubles of the one class that each library calls.

The examples for Airflow, Dagster and dbt run in these programs themselves in `make proof`:
tests/support/workflow_examples.py.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import date
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pyarrow as pa
import pytest
import yaml

import journeyman as jm
from journeyman.errors import UsageError
from journeyman.integrations.send_once import send_once
from journeyman.spark.lakes import delta
from journeyman.spark.lakes.layout import TABLES
from journeyman.spark.lakes.storage import change_lake
from journeyman.testing import InMemory

EXAMPLE = Path(__file__).parents[2] / "examples" / "dbt"
ATTEMPT = ["dag", "run", "step", "1"]


class Deferred(Exception):
    """What Airflow raises to free the slot of a step."""


class Operator:
    """Airflow's BaseOperator, as far as a step calls it."""

    def __init__(self, *, task_id: str) -> None:
        self.task_id = task_id
        self.log = SimpleNamespace(info=lambda *words: None)

    def defer(self, *, trigger: Any, method_name: str) -> None:
        raise Deferred(trigger, method_name)


class Trigger:
    """Airflow's BaseTrigger."""


class Source:
    """dbt's BasePlugin, which reads its configuration when it is made."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.initialize(config)  # type: ignore[attr-defined]


def load_with_doubles(
    monkeypatch: pytest.MonkeyPatch, name: str, doubles: dict[str, dict[str, Any]]
) -> Any:
    """Import a module of the integrations while its library is these names."""
    for path, names in doubles.items():
        for end in [i for i, letter in enumerate(path) if letter == "."]:
            if path[:end] not in doubles:
                monkeypatch.setitem(sys.modules, path[:end], ModuleType(path[:end]))
        double = ModuleType(path)
        vars(double).update(names)
        monkeypatch.setitem(sys.modules, path, double)
    full = f"journeyman.integrations.{name}"
    monkeypatch.delitem(sys.modules, full, raising=False)
    module = import_module(full)
    monkeypatch.delitem(sys.modules, full)
    return module


def test_an_attempt_of_a_step_is_one_job():
    app, customers = jm.App(), []

    @app.task(name="report")
    def report(customer: int) -> int:
        customers.append(customer)
        return customer * 2

    with InMemory(app) as queue:
        first = send_once(app, "report", [5], {}, attempt=ATTEMPT, options={})
        again = send_once(app, "report", [5], {}, attempt=ATTEMPT, options={})
        other = send_once(app, "report", [6], {}, attempt=ATTEMPT, options={})
        retried = send_once(app, "report", [5], {}, attempt=[*ATTEMPT[:-1], "2"], options={})
        queue.run_all()
        assert first.result() == again.result() == 10
    assert first.id == again.id
    assert len({first.id, other.id, retried.id}) == 3
    assert sorted(customers) == [5, 5, 6]
    with pytest.raises(UsageError, match="timeout is an option of the task"):
        send_once(app, "report", [5], {}, attempt=ATTEMPT, options={"timeout": 5})


def test_a_step_of_airflow_defers_until_its_job_has_ended(monkeypatch):
    airflow = load_with_doubles(
        monkeypatch,
        "airflow",
        {
            "airflow.sdk": {"BaseOperator": Operator},
            "airflow.sdk.exceptions": {"AirflowFailException": LookupError},
            "airflow.triggers.base": {"BaseTrigger": Trigger, "TriggerEvent": lambda sent: sent},
        },
    )
    app = jm.App()

    @app.task(name="report")
    def report(customer: int) -> int:
        if customer == 0:
            raise ValueError("no such customer")
        return customer * 2

    monkeypatch.setattr(airflow, "App", lambda url: app)
    # An app in memory would be one of a server again: each step closes what it has opened.
    monkeypatch.setattr(app, "close", lambda: None)
    monkeypatch.setattr(app, "aclose", AsyncMock())

    async def finish(step: Any, deferred: Deferred) -> Any:
        trigger, method = deferred.args
        path, given = trigger.serialize()
        assert path == "journeyman.integrations.airflow.JobEnded"
        event = await anext(airflow.JobEnded(**given).run())
        return getattr(step, method)({}, event)

    def run(step: Any, number: int) -> Any:
        ids = {"dag_id": "d", "run_id": "r", "task_id": "s", "map_index": -1}
        with pytest.raises(Deferred) as deferred:
            step.execute({"ti": SimpleNamespace(**ids, try_number=number)})
        queue.run_all(check=False)
        return asyncio.run(finish(step, deferred.value))

    with InMemory(app) as queue:
        step = airflow.SendTask(task_id="s", task="report", task_args=[5])
        assert run(step, 1) == 10
        assert run(airflow.WaitForJob(task_id="w", job_id=step.job_id), 1) == 10
        failing = airflow.SendTask(task_id="s", task="report", task_args=[0])
        with pytest.raises(RuntimeError, match="no such customer"):
            run(failing, 2)
        with pytest.raises(LookupError, match="no such customer"):
            run(airflow.WaitForJob(task_id="w", job_id=failing.job_id), 1)


def test_dbt_reads_tables_as_of_the_last_complete_snapshot(monkeypatch, tmp_path):
    dbt = load_with_doubles(
        monkeypatch, "dbt", {"dbt.adapters.duckdb.plugins": {"BasePlugin": Source}}
    )
    lake, table = str(tmp_path / "lake"), "gold/failures_daily"
    with pytest.raises(UsageError, match="no lake at"):
        dbt.Plugin({"lake": lake})
    with pytest.raises(UsageError, match="needs config"):
        dbt.Plugin({})

    def write(failures: int) -> None:
        row: dict[str, Any] = {
            "dialect": "workq",
            "queue": "mail",
            "outcome": "failed",
            "reason": "ValueError",
        }
        row |= {"host": "a", "date": date(2026, 11, 18), "month": "2026-11"}
        changed.write(
            table,
            pa.Table.from_pylist([row | {"failures": failures}], delta.nullable_schema_of(table)),
        )

    with change_lake(lake) as changed:
        write(3)
        changed.commit(complete=True)
        plugin = dbt.Plugin({"lake": lake})
        write(4)
        changed.commit(complete=False)
    for opened in (plugin, dbt.Plugin({"lake": lake})):
        rows = opened.load(SimpleNamespace(identifier="failures_daily")).to_table().to_pylist()
        assert [row["failures"] for row in rows] == [3]
    with pytest.raises(UsageError, match="has no table nothing; it has failures_daily"):
        plugin.load(SimpleNamespace(identifier="nothing"))


def test_the_example_of_dbt_names_tables_of_the_lake():
    sources = yaml.safe_load((EXAMPLE / "models" / "sources.yml").read_text())["sources"]
    tables = {table["name"] for source in sources for table in source["tables"]}
    assert tables <= {table.short for table in TABLES.values()}
    models = yaml.safe_load((EXAMPLE / "models" / "models.yml").read_text())["models"]
    written = {path.stem for path in (EXAMPLE / "models").glob("*.sql")}
    assert {model["name"] for model in models} == written
