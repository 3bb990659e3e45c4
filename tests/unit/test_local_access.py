"""Addresses of Unix sockets, the token file of a user, and to whom its token is shown."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from journeyman.client import Schedule, errors, parse_url
from journeyman.config import Address, load_tokens, parse_address
from journeyman.errors import UsageError
from journeyman.local_access import (
    AUTO,
    has_token,
    is_local,
    listening_users,
    make_token,
    token_for,
    token_path,
)

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:162E 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11
   1: 00000000:26C2 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 12
   2: 0100007F:162E 0100007F:D000 01 00000000:00000000 00:00000000 00000000  1002        0 13
   3: 0100007F:D000 0100007F:162E 01 00000000:00000000 00:00000000 00000000  1003        0 14
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_who_listens_on_a_port_is_in_the_system_s_table():
    assert listening_users(TABLE.splitlines(), 5678) == {1000}
    assert listening_users(TABLE.splitlines(), 9922) == {1001}
    assert listening_users(TABLE.splitlines(), 0xD000) == set()


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("unix:/run/x.sock", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_which_addresses_are_of_this_machine_alone(host, is_one):
    assert is_local(host) == is_one


def test_the_token_is_made_once_and_is_an_auth_file():
    make_token()
    made = Path(token_path()).read_text()
    make_token()
    assert Path(token_path()).read_text() == made
    assert os.listdir(os.path.dirname(token_path())) == ["token"]
    tokens = load_tokens(AUTO)
    (token,) = tokens
    assert (token.name, token.namespace, tokens.notes, tokens.warning) == ("auto", "*", (), "")


def test_a_home_that_cannot_be_written_is_a_line(config):
    (config / "config").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot make the token file .* name another"):
        make_token()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_the_token_is_shown_to_a_port_of_this_user():
    make_token()
    with listening() as server:
        port = server.getsockname()[1]
        assert str(token_for("127.0.0.1", port)).startswith("sk_auto_")
        assert token_for("10.0.0.1", port) is None
    assert token_for("127.0.0.1", port) is None  # nothing listens


def test_it_is_not_shown_to_a_port_of_another_user(monkeypatch):
    make_token()
    with listening() as server:
        port = server.getsockname()[1]
        monkeypatch.setattr("journeyman.local_access.listening_users", lambda _rows, _port: {4321})
        assert token_for("127.0.0.1", port) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_file_that_others_can_read_or_write_is_not_used(mode):
    make_token()
    os.chmod(token_path(), mode)
    with listening() as server:
        assert token_for("127.0.0.1", server.getsockname()[1]) is None
    with pytest.raises(UsageError, match="can be read by other users; remove it"):
        load_tokens(AUTO)


def test_neither_a_link_nor_a_pipe_nor_another_user_s_file_is_used(config, monkeypatch):
    make_token()
    path = Path(token_path())
    with listening() as server:
        port = server.getsockname()[1]
        path.rename(config / "elsewhere")
        path.symlink_to(config / "elsewhere")
        assert has_token()
        assert token_for("127.0.0.1", port) is None
        path.unlink()
        os.mkfifo(path, 0o600)
        assert not has_token()
        assert token_for("127.0.0.1", port) is None
        path.unlink()
        (config / "elsewhere").rename(path)
        assert token_for("127.0.0.1", port) is not None
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
        assert token_for("127.0.0.1", port) is None


def test_an_address_may_be_a_socket():
    assert parse_address("unix:/run/x.sock") == Address("", 0, "/run/x.sock")
    assert str(parse_address("unix:relative.sock")) == "unix:relative.sock"
    with pytest.raises(ValueError, match="at most 107 bytes"):
        parse_address("unix:/" + "x" * 107)
    with pytest.raises(ValueError, match="must end with a colon"):
        parse_address("unix:")


def test_a_url_may_name_a_directory_of_sockets():
    url = parse_url("journeyman+unix://a%20b@/run/jm?timeout_s=3&connections=2")
    assert url.place("schedule") == ("unix:/run/jm/schedule.sock", None)
    assert (url.token, url.timeout_s, url.connections) == ("a b", 3.0, 2)
    assert "a b" not in repr(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("journeyman+unix://", "it has no directory"),
        ("journeyman+unix://host/run", "it has a host"),
        ("journeyman+unix:///run?schedule=1", "unknown option 'schedule'"),
        ("journeyman+unix:///run?tls=true", "unknown option 'tls'"),
    ],
)
def test_a_url_that_is_no_directory_of_sockets_says_why(url, problem):
    with pytest.raises(errors.InvalidRequest, match=problem):
        parse_url(url)


def test_a_socket_that_is_not_there_is_said_so(config):
    with (
        Schedule(f"unix:{config}/x", timeout_s=60) as schedule,
        pytest.raises(errors.CannotConnect, match="there is no such socket; is journeyman serve"),
    ):
        schedule.stat()
    with pytest.raises(errors.InvalidRequest, match="at most 107 bytes"):
        Schedule("unix:/" + "x" * 107)
