"""Journeyman: a durable job scheduler and work queue whose log is also a dataset.

Start with docs/architecture.md; every room has a page there.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
