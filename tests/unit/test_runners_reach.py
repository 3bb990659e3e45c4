"""Which addresses the runs of a rule may connect to, whatever name or form they are given by."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from journeyman.config import ControllerSettings, RunnerSettings, Settings
from journeyman.config.tokens import parse_tokens
from journeyman.formats.ztick import Amqp, Http, Redis
from journeyman.runners.contract import RunRequest, RunResult
from journeyman.runners.reach import NotAllowed, Reach, open_socket
from journeyman.runners.runner_set import RunnerSet
from journeyman.servers.core.access import Access
from tests.support.runner_world import in_loop, raw_server

FILE = """
[token.admin]
secret = "a"
namespace = "*"
{runners}
[token.team]
secret = "t"
namespace = "team."
"""
RESTRICTING = FILE.format(runners='runners = "*"')
OF_ZTICK = FILE.format(runners="")
NOT_PUBLIC = "the address is not public, and not in runners.allow"
DENIED = "the address is in runners.deny"


def access(file: str = RESTRICTING) -> Access:
    return Access(parse_tokens(file, "tokens"))


def verdict(
    address: str,
    *,
    rule: str = "team.r",
    host: str = "host",
    file: str = RESTRICTING,
    allow: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
) -> str:
    settings = RunnerSettings(allow=allow, deny=deny)
    gate = Reach(settings, access(file)).gate(rule, host)
    try:
        if gate is not None:
            gate.check(address)
    except NotAllowed as error:
        return str(error)
    return ""


INNER = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "192.168.1.1",
    "169.254.169.254", "100.100.100.200", "100.64.0.1", "168.63.129.16", "192.0.0.192", "224.0.0.1",
    "240.0.0.1", "255.255.255.255", "198.18.0.1",
    "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a00:1::1",
    "2001:0:808:808:0:0:80ff:fffe",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", INNER)
def test_rules_of_a_namespace_reach_no_address_inside(address):
    assert verdict(address) == NOT_PUBLIC
    assert verdict(address, rule="r") == ""
    assert verdict(address, file=OF_ZTICK) == ""


@pytest.mark.parametrize("address", PUBLIC)
def test_rules_of_a_namespace_reach_the_internet(address):
    assert verdict(address) == ""


def test_lists_name_networks_and_hosts():
    inside = "10.1.2.3"
    assert verdict(inside, allow=("10.1.0.0/16",)) == ""
    assert verdict(f"::ffff:{inside}", allow=("10.1.0.0/16",)) == ""
    assert verdict(inside, allow=("10.2.0.0/16", "::1")) == NOT_PUBLIC
    assert verdict(inside, host="Cache.Internal.", allow=("cache.internal",)) == ""
    assert verdict(inside, host="a.cache.internal", allow=("cache.internal",)) == NOT_PUBLIC
    assert verdict(inside, host="a.cache.internal", allow=("*.cache.internal",)) == ""
    assert verdict(inside, host="evilcache.internal", allow=("*.cache.internal",)) == NOT_PUBLIC
    for rule in ("team.r", "r"):
        assert verdict("8.8.8.8", rule=rule, deny=("8.8.0.0/16",)) == DENIED
        assert verdict("::ffff:8.8.8.8", rule=rule, deny=("8.8.0.0/16",)) == DENIED
        assert verdict("64:ff9b::808:808", rule=rule, deny=("8.8.0.0/16",)) == DENIED
        assert verdict("8.8.8.8", rule=rule, host="x.example", deny=("*.example",)) == DENIED
        assert verdict(inside, rule=rule, allow=(inside,), deny=("10.0.0.0/8",)) == DENIED


def test_a_file_of_ztick_denies_nothing():
    assert verdict("8.8.8.8", file=OF_ZTICK, deny=("8.8.0.0/16",)) == ""
    assert Reach(RunnerSettings(deny=("0.0.0.0/0",))).gate("r", "host") is None


def test_rules_of_a_token_that_was_removed_stay_bound(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(RESTRICTING)
    settings = Settings(controller=ControllerSettings(auth_file=str(path)))
    tenants = Access.load(settings)
    path.write_text(RESTRICTING.partition("[token.team]")[0])
    tenants.reload(settings, [])
    gate = Reach(RunnerSettings(), tenants).gate("team.r", "host")
    assert gate is not None
    with pytest.raises(NotAllowed):
        gate.check("127.0.0.1")


@asynccontextmanager
async def runners(
    file: str, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()
) -> AsyncIterator[RunnerSet]:
    settings = Settings(runners=RunnerSettings(allow=allow, deny=deny))
    async with RunnerSet(settings, tenants=access(file)) as found:
        yield found


def records(port: int, host: str) -> list[Any]:
    return [
        Http("GET", f"http://{host}:{port}/"),
        Amqp(f"amqp://{host}:{port}", "", "key"),
        Redis(f"redis://{host}:{port}", "SET", "key"),
    ]


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@in_loop
async def test_runs_of_a_namespace_connect_to_no_address_inside():
    """Nothing is connected to: it is not enough to give no answer."""
    async with raw_server(close) as server:
        names = ("127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "0", "0.0.0.0")
        async with runners(RESTRICTING) as bound:
            for host in (*names, "[::ffff:127.0.0.1]", "[::1]"):
                for record in records(server.port, host):
                    result: RunResult = await bound.run(RunRequest("team.j", 5, record, "team.r"))
                    assert not result.success
                    if host in names[:2]:
                        assert result.reason.endswith(NOT_PUBLIC)
        assert server.opened == 0


@in_loop
async def test_runs_connect_where_they_are_allowed_to():
    async with raw_server(close) as server:
        opened = 0
        for file, rule, allow, deny in (
            (RESTRICTING, "r", (), ()),
            (RESTRICTING, "team.r", ("127.0.0.0/8",), ()),
            (RESTRICTING, "team.r", ("localhost",), ()),
            (OF_ZTICK, "team.r", (), ("127.0.0.0/8",)),
        ):
            async with runners(file, allow, deny) as free:
                for record in records(server.port, "localhost"):
                    result = await free.run(RunRequest("team.j", 5, record, rule))
                    assert "not public" not in result.reason
                    assert server.opened > opened, (record, result.reason)
                    opened = server.opened


@in_loop
async def test_a_name_is_judged_by_the_address_that_is_connected_to(monkeypatch):
    """A name that resolves to a public address when it is looked at, and to another later."""
    loop = asyncio.get_running_loop()
    answers = iter(["8.8.8.8", "127.0.0.1"])

    async def rebound(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(loop, "getaddrinfo", rebound)
    gate = Reach(RunnerSettings(), access()).gate("team.r", "rebound.example")
    assert gate is not None
    gate.check(str((await loop.getaddrinfo("rebound.example", 80))[0][4][0]))
    with pytest.raises(NotAllowed):
        await open_socket(gate, "rebound.example", 80)
