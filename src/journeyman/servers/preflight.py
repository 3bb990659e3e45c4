"""What a server refuses before it opens anything; ``journeyman config`` refuses the same.

    addresses   one of its own for each port; other networks only with tokens, or insecure = true
    access      the auth file and the certificate can be read and used
    storage     the engine has these options and this kind of path, and its library is installed
    telemetry   the endpoint is a URL, and the exporter is installed

Whether a port is free, a log is locked or a collector answers is seen when the server starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from journeyman.config import Address, Configuration, Settings, WorkqPersistence
from journeyman.errors import UsageError
from journeyman.servers.core.access import Access
from journeyman.servers.telemetry.telemetry import check_telemetry
from journeyman.storage.contract import EngineOptions, expanded
from journeyman.storage.opening import check_engine, check_path


def check(configuration: Configuration) -> Access:
    """What the ports need to know; UsageError, in one line, for what cannot be served."""
    settings = configuration.settings
    _check_addresses(configuration)
    access = Access.load(settings)
    if settings.workq.enabled and settings.workq.persistence is WorkqPersistence.STORAGE:
        storage = settings.storage
        options = EngineOptions(storage.cache_capacity_bytes, storage.mode)
        engine = check_engine(storage.engine, options)
        check_path(engine, expanded(storage.path))
    if settings.telemetry.enabled:
        check_telemetry(settings.telemetry)
    return access


def notes(settings: Settings, access: Access) -> Iterator[str]:
    """What is allowed, and should be known all the same."""
    yield from access.notes
    for name, address in _listening(settings):
        if is_loopback(address):
            continue
        if access.tokens is None:
            yield f"{name} = {address} without tokens: everyone who can connect may run programs"
        elif access.tls is None:
            yield f"{name} = {address} without TLS: tokens can be read on the network"


def is_loopback(address: Address) -> bool:
    if address.host == "localhost":
        return True
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return False


def _listening(settings: Settings) -> Iterator[tuple[str, Address]]:
    if settings.controller.enabled:
        yield "controller.listen", settings.controller.listen
    if settings.http.listen is not None:
        yield "http.listen", settings.http.listen
    if settings.workq.enabled:
        yield "workq.listen", settings.workq.listen
    if settings.kestrel.enabled:
        yield "kestrel.listen", settings.kestrel.listen


def _check_addresses(configuration: Configuration) -> None:
    settings, taken = configuration.settings, dict[Address, str]()
    is_open = settings.controller.auth_file is None and not settings.access.insecure
    for name, address in _listening(settings):
        place = f"{configuration.origins[name]}: {name} = {str(address)!r}"
        if is_open and not is_loopback(address):
            raise UsageError(
                f"{place}: everyone who can connect could run programs; ask for tokens with "
                "controller.auth_file, or set access.insecure = true"
            )
        if address.port and address in taken:
            raise UsageError(f"{place}: {taken[address]} has the same address; give each its own")
        taken[address] = name
