"""Blocking clients of the server, for programs and for the pipeline.

    from journeyman.client import KestrelClient, Schedule, WorkQueue

``Schedule`` speaks the ztick protocol, ``WorkQueue`` the workq protocol, ``KestrelClient`` that of
kestrel; all work with the originals too. Errors are in ``journeyman.client.errors``, all below
JourneymanError. No dependency beyond the standard library; one object, one connection, one thread.
See docs/client.md.
"""

from __future__ import annotations

from journeyman.client.kestrel import KestrelClient
from journeyman.client.workq import WorkQueue
from journeyman.client.ztick import Schedule

__all__ = ["KestrelClient", "Schedule", "WorkQueue"]
