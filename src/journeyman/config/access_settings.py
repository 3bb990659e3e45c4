"""The section [access] of the table: who may reach the server at all."""

from __future__ import annotations

from dataclasses import dataclass

from journeyman.config.kinds import Flag, TextList
from journeyman.config.rows import setting


@dataclass(frozen=True, slots=True)
class AccessSettings:
    insecure: bool = setting(
        Flag(), False, "allow addresses other than loopback without tokens: everyone may connect"
    )
    allowed_hosts: tuple[str, ...] = setting(
        TextList(), (), "host names by which HTTP clients may address this server; * allows all"
    )
