"""The process that follows the log into the store (child.py), as the server starts it.

It is also the only one that opens the store, so every engine can be asked over HTTP. If the store
cannot be opened, the start of the server ends.
"""

from __future__ import annotations

from typing import Final

from journeyman.config import Settings
from journeyman.servers.core.follower_process import FollowerProcess
from journeyman.servers.core.helper_process import Helper
from journeyman.servers.core.server_log import ServerLog

_HELPER: Final = Helper(f"{__package__}.child")


def index_process(settings: Settings, messages: ServerLog) -> FollowerProcess:
    return FollowerProcess(_HELPER, "store", "storage", messages, "open_store", settings)
