"""Journeyman: a durable job scheduler and work queue whose log is also a dataset.

    journeyman           the version and the base of all errors
    journeyman.client    blocking clients of the server
    journeyman.spark     logs as Spark tables, and back
    journeyman.testing   a clock and a disk for tests

These four packages are the public Python API (docs/python-api.md); everything else may change.
Importing them is cheap: no pyspark, no numpy, no aiohttp. docs/architecture.md leads to the code.
"""

from journeyman.errors import JourneymanError, UsageError

__all__ = ["JourneymanError", "UsageError", "__version__"]

__version__ = "0.1.0"
