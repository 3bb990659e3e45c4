"""Files that ztick has left, which belong to the log and are not found by its name.

ztick compacts into ``logfile.compressed`` in its working directory, whatever its log is called, and
sets the log aside as ``logfile.to_compress`` meanwhile. Here they are looked for beside the log,
under the log's own name. Under the other name they may as well belong to another log, so they are
not read: what was found is said, and how to have it read.
"""

from __future__ import annotations

import os

from journeyman.disk import Disk
from journeyman.logs.segments import ZtickNames
from journeyman.servers.core.server_log import ServerLog

_OF_ZTICK = ZtickNames("logfile")


def tell_of_ztick_files(disk: Disk, path: str, messages: ServerLog) -> None:
    """Warn of such files in the working directory and beside the log at ``path``."""
    own = ZtickNames(path)
    for name, where_it_is_read in (
        (_OF_ZTICK.compressed, own.compressed),
        (_OF_ZTICK.to_compress, own.to_compress),
    ):
        for found in dict.fromkeys((name, os.path.join(os.path.dirname(path), name))):
            if os.path.abspath(found) == os.path.abspath(where_it_is_read):
                continue
            if disk.exists(found):
                messages.warn(
                    f"{found} is there and was not read: ztick writes this name whatever its log "
                    f"is called; if it belongs to {path}, stop the server and move it to "
                    f"{where_it_is_read}"
                )
