"""Tables of a lake as sources of dbt-duckdb, all as of one snapshot. See docs/integrations.md.

    plugins:                                      in profiles.yml
      - module: journeyman.integrations.dbt
        alias: lake
        config: {lake: /lake}

The snapshot is chosen when dbt starts: an ingest that ends meanwhile changes nothing of this run.
"""

from __future__ import annotations

import posixpath
from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin

from journeyman.columnar.delta import errors_of_delta, open_delta
from journeyman.errors import UsageError


class Plugin(BasePlugin):
    """The tables of one snapshot of a lake, for dbt-duckdb."""

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Choose the last complete snapshot. Raises UsageError if there is none."""
        self._lake = str(plugin_config.get("lake", "")).rstrip("/")
        if not self._lake:
            raise UsageError("profiles.yml: the plugin needs config: {lake: DIRECTORY OR URI}")
        snapshots = open_delta(posixpath.join(self._lake, "snapshots"))
        if snapshots is None:
            raise UsageError(
                f"there is no lake at {self._lake}: create one with `journeyman pipeline ingest`"
            )
        with errors_of_delta(self._lake):
            rows = snapshots.to_pyarrow_table(
                columns=["number", "complete", "versions"]
            ).to_pylist()
        complete = [row for row in rows if row["complete"]]
        if not complete:
            raise UsageError(f"the first ingest into {self._lake} is not finished: run it again")
        last = max(complete, key=lambda row: row["number"])
        versions = dict(last["versions"])
        self._tables = {_name_in_sql(table): (table, versions[table]) for table in versions}

    def load(self, source_config: Any) -> Any:
        """Return a table as a dataset that DuckDB scans. Raises UsageError if there is none."""
        name = source_config.identifier
        if name not in self._tables:
            known = ", ".join(sorted(self._tables))
            raise UsageError(f"the lake {self._lake} has no table {name}; it has {known}")
        table, version = self._tables[name]
        path = posixpath.join(self._lake, table)
        with errors_of_delta(path):
            opened = open_delta(path)
            assert opened is not None, path
            opened.load_as_version(version)
            return opened.to_pyarrow_dataset()

    def default_materialization(self) -> str:
        """Read a source whenever a model does, instead of copying it."""
        return "view"


def _name_in_sql(table: str) -> str:
    """``silver/jobs`` is ``jobs``, ``bronze/workq`` is ``bronze_workq``: see docs/lake.md."""
    layer, _, name = table.partition("/")
    return f"bronze_{name}" if layer == "bronze" else name
