"""The console's style, scripts and libraries: read once, compressed once, named by their hash.

    /console/assets/console.1f3a9c0d.css      may be kept by the browser for good

Nothing is fetched from anywhere else. All of it together stays below MAX_COMPRESSED_BYTES.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from aiohttp import web

from journeyman.servers.http.routes import takes_gzip

MAX_COMPRESSED_BYTES: Final = 80_000
PREFIX: Final = "/console/assets/"
_NAMES = (
    *("console.css", "console.js", "icon.svg"),
    *("vendor/htmx.js", "vendor/htmx-sse.js", "vendor/uplot.js", "vendor/uplot.css"),
)
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    address: str
    media_type: str
    data: bytes
    compressed: bytes


@cache
def all_assets() -> dict[str, Asset]:
    """By their plain names."""
    folder = files(__package__) / "assets"
    found = {}
    for name in _NAMES:
        data = folder.joinpath(*name.split("/")).read_bytes()
        digest = hashlib.sha256(data).hexdigest()[:8]
        stem, _, kind = name.rpartition("/")[2].rpartition(".")
        address = f"{PREFIX}{stem}.{digest}.{kind}"
        media_type = f"{_TYPES[kind]}; charset=utf-8"
        found[name] = Asset(address, media_type, data, gzip.compress(data, 9, mtime=0))
    return found


@cache
def _by_address() -> dict[str, Asset]:
    return {asset.address: asset for asset in all_assets().values()}


async def serve_asset(request: web.Request) -> web.Response:
    asset = _by_address().get(request.path)
    if asset is None:
        raise web.HTTPNotFound
    is_compressed = takes_gzip(request)
    headers = {
        "Content-Type": asset.media_type,
        "Cache-Control": "public, max-age=31536000, immutable",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=asset.compressed if is_compressed else asset.data, headers=headers)
