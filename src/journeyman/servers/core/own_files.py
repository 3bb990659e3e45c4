"""Where the server keeps files of its own: reports of the console, figures over time.

They are in the data directory, which is where the ledger or else the schedule's log is. If that is
a database, they are in the user's directory of caches: each machine has its own.
"""

from __future__ import annotations

import hashlib
import os

from journeyman.config import Settings
from journeyman.disk import absolute, is_database
from journeyman.servers.core.ledger import is_used


def own_directory(settings: Settings, *names: str) -> str:
    """The directory of this name."""
    place = settings.ledger.path if is_used(settings) else settings.database.logfile_path
    directory = os.path.dirname(absolute(place))
    if is_database(place):
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        directory = os.path.join(
            caches, "journeyman", hashlib.sha256(place.encode()).hexdigest()[:16]
        )
    return os.path.join(directory, *names)
