"""The secret of namespaces is whole or not there wherever the power fails, and stays once used."""

from __future__ import annotations

from typing import Any

import pytest

from journeyman.servers.core.namespace_secret import KnownNamespaces, load_namespaces
from tests.support.crash.cuts import crashes
from tests.support.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("kind_of_disk")

PATH = "/data/namespaces.secret"
SILENT: Any = None  # any message is an error


class World:
    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.disk.plant("/data/unrelated", b"")
        self.used: list[KnownNamespaces] = []

    def load(self, *names: str) -> KnownNamespaces:
        return load_namespaces(self.disk, "/data", SILENT, set(names), has_records=False)

    def run(self) -> None:
        self.used.append(self.load("a."))
        self.used.append(self.load("a.", "b.\udcff"))


def test_a_secret_that_was_used_survives_every_power_cut():
    for crash in crashes(World, lambda world: world.disk, World.run, seeds=4):
        after = World()
        after.disk = crash.disk
        kept = after.load()
        if crash.run.used:
            last = crash.run.used[-1]
            assert kept.secret == last.secret, crash
            assert kept.names >= last.names, crash
        assert after.load() == kept, crash


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, line: str, **_: object) -> None:
        self.lines.append(line)


def test_a_full_disk_does_not_stop_the_server():
    heard: Any = Heard()
    disk = SimulatedDisk(capacity=40)
    disk.plant("/data/unrelated", b"")
    known = load_namespaces(disk, "/data", heard, {"a."}, has_records=False)
    assert len(known.secret) == 32
    assert known.names == {"a."}
    assert [line.partition(":")[0] for line in heard.lines] == [
        "the file of namespaces cannot be written"
    ]
    assert PATH not in disk.files()


def test_a_damaged_file_is_put_aside_and_reported():
    heard: Any = Heard()
    disk = SimulatedDisk()
    for content in (b"", b"00", b"0" * 63 + b"\n", b"Z" * 64, b"\xff" * 64, b"0" * 65):
        disk.plant(PATH, content)
        known = load_namespaces(disk, "/data", heard, {"a."}, has_records=True)
        assert disk.read_bytes(f"{PATH}.damaged") == content
        assert load_namespaces(disk, "/data", SILENT, set(), has_records=True) == known
    assert len(heard.lines) == 6
