"""What the commands that talk to a server share: ``--server URL`` and ``--json``."""

from __future__ import annotations

from journeyman.client.service import URL_VARIABLE

SERVER_VARIABLE = URL_VARIABLE
