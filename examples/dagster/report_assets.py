"""Two assets of Dagster; the first is computed by a worker of Journeyman.

Dagster reads the annotation of ``context``, so it must not be text: no annotations from __future__.
"""

from typing import Any

import dagster as dg

from journeyman.integrations.dagster import JourneymanResource


@dg.asset
def report(context: dg.AssetExecutionContext, journeyman: JourneymanResource) -> dict[str, Any]:
    """The report of a customer."""
    return dict(journeyman.run(context, "shop.build_report", 5))


@dg.asset
def pages(report: dict[str, Any]) -> int:
    """How long the report is."""
    return int(report["pages"])


defs = dg.Definitions(assets=[report, pages], resources={"journeyman": JourneymanResource()})
