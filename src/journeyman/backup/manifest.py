"""One backup: when it was taken, which files it has, and of which chunks they are made.

    manifests/20261117T053000123456789Z.json
        {"format": 1, "taken_ns": ..., "exact": true, "files": [{"path": ..., "chunks": [...]}],
         "digest": SHA-256 of all the rest}

``identity`` is what the source file was when it was read: inode, size and time of its last change.
A file that still is the same need not be read again, and of one that grew only what is new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from journeyman.backup.vault import Vault
from journeyman.errors import LogError
from journeyman.units import NS_PER_S

FOLDER = "manifests"
FORMAT = 1
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """``path`` is relative to the data directory, with slashes."""

    path: str
    size: int
    identity: tuple[int, int, int]
    chunks: tuple[str, ...]
    sizes: tuple[int, ...] = ()  # of the chunks; none in backups of earlier versions


@dataclass(frozen=True, slots=True)
class Manifest:
    """``exact``: all files are as they were at one moment; else each log is, in causal order."""

    taken_ns: int
    source: str
    version: str
    exact: bool
    files: tuple[StoredFile, ...]

    @property
    def name(self) -> str:
        """The moment, so that names are in the order of time."""
        seconds, ns = divmod(self.taken_ns, NS_PER_S)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}{ns:09d}Z"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def chunks(self) -> set[str]:
        return {chunk for file in self.files for chunk in file.chunks}

    def write(self, vault: Vault) -> None:
        body = {"format": FORMAT, **asdict(self)}
        data = json.dumps({**body, "digest": _digest(body)}, indent=1).encode()
        vault.write(FOLDER, self.name + _SUFFIX, data)
        vault.settle()


def read_manifest(vault: Vault, name: str) -> Manifest:
    """LogError if it is missing, damaged, or of a newer version."""
    where = f"{vault.where}/{FOLDER}/{name}{_SUFFIX}"
    try:
        body: dict[str, Any] = json.loads(vault.read(FOLDER, name + _SUFFIX))
        digest = body.pop("digest")
        if body["format"] != FORMAT:
            raise LogError(where, f"format {body['format']}: a newer version made this backup")
        if digest != _digest(body):
            raise LogError(where, "the manifest is damaged: its digest does not match")
        del body["format"]
        files = tuple(
            StoredFile(
                *(f["path"], f["size"], tuple(f["identity"])),
                *(tuple(f["chunks"]), tuple(f.get("sizes", ()))),
            )
            for f in body.pop("files")
        )
        return Manifest(files=files, **body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogError(where, f"the manifest is damaged: {error}") from None


def list_backups(vault: Vault) -> list[str]:
    """The names of all backups, oldest first."""
    return sorted(
        name.removesuffix(_SUFFIX) for name in vault.names(FOLDER) if name.endswith(_SUFFIX)
    )


def remove_manifest(vault: Vault, name: str) -> None:
    vault.remove(FOLDER, name + _SUFFIX)


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
