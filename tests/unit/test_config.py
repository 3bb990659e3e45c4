"""Settings: where they come from, what is refused, and how it is said."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.config import (
    Address,
    Configuration,
    Interrupted,
    LogLevel,
    Persistence,
    Settings,
    StorageEngine,
    StorageMode,
    Token,
    all_settings,
    load,
    load_tokens,
    parse_address,
    parse_tokens,
    show,
)
from journeyman.config.kinds import Texts, as_toml, read_setting, read_text
from journeyman.config.loading import (
    COMMAND_LINE_ORIGIN,
    DATA_ORIGIN,
    DEFAULT_ORIGIN,
    MAX_FILE_BYTES,
    read_values,
)
from journeyman.errors import UsageError
from journeyman.formats.ztick import Direct, FanOutRunner, Shell, WorkQueueRunner

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
ZTICK_FILE = """\
# a file as ztick's own documentation shows it
[log]
level = "debug"

[controller]
listen = "0.0.0.0:5679"
auth_file = "tokens.toml"
tls_cert = "cert.pem"
tls_key = "key.pem"

[http]
listen = "127.0.0.1:8080"

[shell]
path = "/bin/sh"
args = ["-e", "-c"]

[database]
persistence = "memory"
logfile_path = "data/schedule.log"
fsync_on_persist = false
framerate = 60
compression_interval = 300  # 5 minutes

[telemetry]
enabled = true
endpoint = "http://localhost:4318"
service_name = "jobs"
flush_interval_ms = 1000
"""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Loads a file of this text, under a name that is easy to look for in messages."""
    monkeypatch.chdir(tmp_path)

    def load_text(
        text: str, environ: Mapping[str, str] | None = None, **options: str
    ) -> Configuration:
        Path("c.toml").write_text(text)
        given = {name.replace("__", "."): value for name, value in options.items()}
        return load("c.toml", environ=environ or {}, options=given)

    return load_text


@pytest.fixture
def complaint(loaded):
    def complaint_about(text: str, **kwargs) -> str:
        with pytest.raises(UsageError) as caught:
            loaded(text, **kwargs)
        said = str(caught.value)
        assert "\n" not in said
        return said

    return complaint_about


def with_an_empty_file() -> Settings:
    """The settings of a ztick file that says nothing."""
    plain = Settings()
    return replace(
        plain,
        http=replace(plain.http, enabled=False),
        database=replace(plain.database, logfile_path="logfile"),
        workq=replace(plain.workq, enabled=False),
        kestrel=replace(plain.kestrel, enabled=False),
        ledger=replace(plain.ledger, enabled=False),
        series=replace(plain.series, enabled=False),
    )


# -- values and their origin ---------------------------------------------------------------------


def test_without_anything_the_defaults_hold():
    configuration = load(environ={})
    assert configuration.settings == Settings()
    assert set(configuration.origins.values()) == {DEFAULT_ORIGIN}
    assert configuration.notes == ()
    assert configuration.settings.controller.listen == Address("127.0.0.1", 5678)


def test_a_ztick_file_works_as_it_is(loaded):
    configuration = loaded(ZTICK_FILE)
    settings = configuration.settings
    assert settings.log.level is LogLevel.DEBUG
    assert settings.controller.listen == Address("0.0.0.0", 5679)
    assert settings.controller.auth_file == "tokens.toml"
    assert (settings.controller.tls_cert, settings.controller.tls_key) == ("cert.pem", "key.pem")
    assert settings.http.listen == Address("127.0.0.1", 8080)
    assert settings.shell.args == ("-e", "-c")
    assert settings.database.persistence is Persistence.MEMORY
    assert settings.database.logfile_path == "data/schedule.log"
    assert not settings.database.fsync_on_persist
    assert settings.database.framerate == 60
    assert settings.database.compression_interval_s == 300
    assert settings.telemetry.endpoint == "http://localhost:4318"
    assert settings.telemetry.flush_interval_ms == 1000
    assert configuration.notes == ()
    assert configuration.origins["database.compression_interval"] == "c.toml:23"
    assert configuration.origins["schedule.max_runs"] == DEFAULT_ORIGIN


def test_the_later_origin_counts(loaded):
    environ = {"JOURNEYMAN_DATABASE_FRAMERATE": "2", "JOURNEYMAN_SCHEDULE_MAX_RUNS": "2"}
    configuration = loaded(
        "[database]\nframerate = 1\n[schedule]\nmax_runs = 1\ninterrupted = 'fail'\n",
        environ,
        schedule__max_runs="3",
    )
    assert configuration.settings.schedule.interrupted is Interrupted.FAIL
    assert configuration.settings.database.framerate == 2
    assert configuration.settings.schedule.max_runs == 3
    assert configuration.origins["schedule.interrupted"] == "c.toml:5"
    assert configuration.origins["database.framerate"] == (
        "environment JOURNEYMAN_DATABASE_FRAMERATE"
    )
    assert configuration.origins["schedule.max_runs"] == COMMAND_LINE_ORIGIN


def test_text_becomes_every_kind_of_value():
    environ = {
        "JOURNEYMAN_LOG_LEVEL": "warn",
        "JOURNEYMAN_CONTROLLER_LISTEN": "[::1]:1",
        "JOURNEYMAN_HTTP_LISTEN": "localhost:0",
        "JOURNEYMAN_SHELL_ARGS": '["-x", "-c"]',
        "JOURNEYMAN_DATABASE_FSYNC_ON_PERSIST": "false",
        "JOURNEYMAN_DATABASE_LOGFILE_PATH": "a b",
    }
    settings = load(environ=environ).settings
    assert settings.log.level is LogLevel.WARN
    assert settings.controller.listen == Address("::1", 1)
    assert settings.http.listen == Address("localhost", 0)
    assert settings.shell.args == ("-x", "-c")
    assert settings.database.fsync_on_persist is False
    assert settings.database.logfile_path == "a b"


def test_variables_of_others_are_left_alone_and_near_misses_noted():
    environ = {
        "JOURNEYMAN_DEBUG": "1",
        "PATH": "/bin",
        "JOURNEYMAN_HTTP_PORT_80_TCP": "tcp://10.0.0.1:80",
        "JOURNEYMAN_LOG_LEVLE": "debug",
    }
    configuration = load(environ=environ)
    assert configuration.settings == Settings()
    assert configuration.notes == (
        "environment JOURNEYMAN_HTTP_PORT_80_TCP: no such setting; ignored",
        (
            "environment JOURNEYMAN_LOG_LEVLE: no such setting "
            "(did you mean JOURNEYMAN_LOG_LEVEL?); ignored"
        ),
    )


def test_the_environment_of_the_process_counts_unless_another_is_given(monkeypatch):
    monkeypatch.setenv("JOURNEYMAN_DATABASE_FRAMERATE", "77")
    assert load().settings.database.framerate == 77
    assert load(environ={}).settings.database.framerate == 512


OVERHOP_FILE = """\
[storage]
engine = "sled"
path = "~/.overhop/data"

[storage.sled]
cache_capacity = 67108864
mode = "high_throughput"
"""


def test_the_settings_of_overhop_are_those_of_the_store(loaded):
    configuration = loaded(OVERHOP_FILE)
    storage = configuration.settings.storage
    assert storage.engine is StorageEngine.ROCKSDB
    assert (storage.path, storage.cache_capacity_bytes) == ("~/.overhop/data", 64 * 1024 * 1024)
    assert storage.mode is StorageMode.HIGH_THROUGHPUT
    assert configuration.origins["storage.mode"].endswith(":7")
    [remark] = configuration.remarks
    assert remark.endswith(':2: storage.engine = "sled": served by rocksdb')
    assert configuration.notes == ()


def test_the_settings_of_overhop_may_come_from_elsewhere():
    variables = {"JOURNEYMAN_STORAGE_ENGINE": "sled", "JOURNEYMAN_STORAGE_SLED_MODE": "low_space"}
    options = {"storage.sled.cache_capacity": "1048576"}
    configuration = load(environ=variables, options=options)
    storage = configuration.settings.storage
    assert storage.engine is StorageEngine.ROCKSDB
    assert storage.mode is StorageMode.LOW_SPACE
    assert storage.cache_capacity_bytes == 1024 * 1024
    assert (len(configuration.remarks), configuration.notes) == (1, ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('mode = "fast"', "storage.mode = 'fast': expected one of low_space, high_throughput"),
        ("cache = 5", "unknown key storage.sled.cache; [storage.sled] allows cache_capacity, mode"),
        ("cache_capacity = 5", "storage.cache_capacity = 5: expected"),
    ],
)
def test_what_overhop_would_refuse_is_refused(loaded, line: str, said: str):
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        loaded(f"[storage.sled]\n{line}\n")
    assert ":2: " in str(caught.value)


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        Settings().database.framerate = 1  # type: ignore[misc]


# -- the data directory --------------------------------------------------------------------------


def places(settings: Settings) -> tuple[str, str, str]:
    return settings.database.logfile_path, settings.workq.cmdlog_path, settings.kestrel.queue_path


def test_everything_is_below_the_data_directory():
    assert places(load(environ={}).settings) == (
        "journeyman-data/schedule.log",
        "journeyman-data/workq",
        "journeyman-data/kestrel",
    )
    configuration = load(environ={}, options={"data.directory": "/d", "workq.cmdlog_path": "w"})
    assert places(configuration.settings) == ("/d/schedule.log", "w", "/d/kestrel")
    assert configuration.settings.storage.path == "/d/store"
    assert configuration.origins["database.logfile_path"] == DATA_ORIGIN
    assert configuration.origins["workq.cmdlog_path"] == COMMAND_LINE_ORIGIN


def test_the_address_of_a_database_is_not_below_the_data_directory():
    given = {"data.directory": "/d", "storage.engine": "postgres"}
    assert load(environ={}, options=given).settings.storage.path == Settings().storage.path


def test_a_file_that_names_the_data_directory_has_its_log_there(loaded):
    settings = loaded("[data]\ndirectory = 'd'\n[database]\nframerate = 5\n").settings
    assert settings.database.logfile_path == "d/schedule.log"


@pytest.mark.parametrize("section", ["workq", "kestrel"])
def test_with_a_file_a_service_is_open_if_something_asks_for_it(loaded, section: str):
    def is_open(text: str, environ: Mapping[str, str] | None = None, **options: str) -> bool:
        enabled: bool = getattr(loaded(text, environ, **options).settings, section).enabled
        return enabled

    assert not is_open("[database]\nframerate = 5\n")
    assert is_open(f"[{section}]\n")
    assert is_open("", None, **{f"{section}__listen": "127.0.0.1:5"})
    assert is_open("", {f"JOURNEYMAN_{section.upper()}_LISTEN": "127.0.0.1:5"})
    assert not is_open(f"[{section}]\nenabled = false\n")
    configuration = loaded("")
    origin = configuration.origins[f"{section}.enabled"]
    assert origin == f"c.toml has only sections of ztick, and no [{section}]"


@pytest.mark.parametrize("section", ["notices", "workq", "storage", "limits"])
def test_a_file_that_ztick_would_refuse_changes_only_what_it_says(loaded, section: str):
    """A file that only names a mail server must not hide the data of a server without a file."""
    settings = loaded(f"[log]\nlevel = 'debug'\n[{section}]\n").settings
    assert settings == replace(Settings(), log=replace(Settings().log, level=LogLevel.DEBUG))


def test_the_example_with_a_mail_server_keeps_the_ledger_and_opens_every_service():
    example = Path(__file__).parents[2] / "examples" / "backup_mail" / "journeyman.toml"
    settings = load(str(example), environ={}).settings
    assert settings == replace(Settings(), notices=settings.notices)
    assert settings.notices.smtp_host == "mail.example.com"


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[database]\n\nframerate = 0\n",
            "c.toml:3: database.framerate = 0: expected a whole number from 1 to 65535",
        ),
        (
            "[database]\nframerate = 65536\n",
            "c.toml:2: database.framerate = 65536: expected a whole number from 1 to 65535",
        ),
        (
            '[database]\nframerate = "512"\n',
            "c.toml:2: database.framerate = '512': expected a whole number from 1 to 65535",
        ),
        (
            "[database]\nframerate = true\n",
            "c.toml:2: database.framerate = true: expected a whole number from 1 to 65535",
        ),
        (
            "[database]\ncompression_interval = -1\n",
            (
                "c.toml:2: database.compression_interval = -1: "
                "expected a whole number of seconds from 0 to 4294967295"
            ),
        ),
        (
            '[database]\nfsync_on_persist = "true"\n',
            "c.toml:2: database.fsync_on_persist = 'true': expected true or false",
        ),
        (
            "[database]\nfsync_on_persist = 1\n",
            "c.toml:2: database.fsync_on_persist = 1: expected true or false",
        ),
        (
            '[log]\nlevel = "Info"\n',
            "c.toml:2: log.level = 'Info': expected one of off, error, warn, info, debug, trace",
        ),
        (
            "[log]\nlevel = 3\n",
            "c.toml:2: log.level = 3: expected one of off, error, warn, info, debug, trace",
        ),
        (
            '[controller]\nauth_file = ""\n',
            "c.toml:2: controller.auth_file = '': expected a string that is not empty",
        ),
        (
            '[shell]\nargs = "-c"\n',
            "c.toml:2: shell.args = '-c': expected an array of strings, such as [\"-c\"]",
        ),
        (
            '[shell]\nargs = ["-c", 5]\n',
            "c.toml:2: shell.args = ['-c', 5]: expected an array of strings, such as [\"-c\"]",
        ),
        (
            '[http]\nlisten = ":80"\n',
            (
                "c.toml:2: http.listen = ':80': expected host:port, such as 127.0.0.1:5678 or "
                "[::1]:5678, or unix:PATH (name the host: 127.0.0.1:80 for this machine "
                "alone, 0.0.0.0:80 or [::]:80 for every network)"
            ),
        ),
        (
            "[log]\nlevle = 5\n",
            "c.toml:2: unknown key log.levle = 5 (did you mean log.level?); [log] allows level",
        ),
        (
            "\n[databse]\nframerate = 5\n",
            (
                "c.toml:2: unknown section [databse] (did you mean database?); allowed are log, "
                "controller, http, shell, database, telemetry, access, data, ledger, lake, series, "
                "events, schedule, history, workq, kestrel, storage, runners, notices, limits, "
                "messages"
            ),
        ),
        ("[[log]]\nlevel = 'info'\n", "c.toml: [[log]] must be [log]"),
        (
            "[controller]\ntls_cert = 'c.pem'\n",
            "c.toml:2: controller.tls_cert = 'c.pem': controller.tls_key must be set as well",
        ),
        (
            "[controller]\ntls_key = 'k.pem'\n",
            "c.toml:2: controller.tls_key = 'k.pem': controller.tls_cert must be set as well",
        ),
        (
            "[telemetry]\nenabled = true\n",
            "c.toml:2: telemetry.enabled = true: telemetry.endpoint must be set as well",
        ),
        (
            "[shell]\npath = '/nowhere/sh'\n",
            "c.toml:2: shell.path = '/nowhere/sh': expected the path of an executable file",
        ),
        (
            "[shell]\npath = 'c.toml'\n",
            "c.toml:2: shell.path = 'c.toml': expected the path of an executable file",
        ),
    ],
)
def test_a_refusal_names_file_line_key_value_and_what_is_allowed(complaint, text: str, said: str):
    assert complaint(text) == said


def test_refusals_of_the_environment_and_the_command_line_say_where(complaint):
    assert complaint("", environ={"JOURNEYMAN_SCHEDULE_MAX_RUNS": "many"}) == (
        "environment JOURNEYMAN_SCHEDULE_MAX_RUNS: schedule.max_runs = 'many': "
        "expected a whole number from 1 to 10000"
    )
    assert complaint("", schedule__max_runs="0") == (
        "command line: schedule.max_runs = '0': expected a whole number from 1 to 10000"
    )
    assert complaint("", schedule__max_rums="5") == (
        "command line: unknown key schedule.max_rums = '5' (did you mean schedule.max_runs?); "
        "[schedule] allows max_runs, interrupted, overdue, retention"
    )
    assert complaint("", nothing="5") == (
        "command line: unknown key nothing = '5'; no section [nothing]"
    )


@pytest.mark.parametrize("text", ["", "5.0", "1_000", "٣", "--5", "9" * 5000, "yes"])
def test_text_that_is_no_number_is_refused(text: str):
    with pytest.raises(UsageError, match="expected a whole number"):
        load(environ={"JOURNEYMAN_SCHEDULE_MAX_RUNS": text})


@pytest.mark.parametrize("text", ["1", "True", "", "yes"])
def test_text_that_is_no_flag_is_refused(text: str):
    with pytest.raises(UsageError, match="expected true or false"):
        load(environ={"JOURNEYMAN_TELEMETRY_ENABLED": text})


@pytest.mark.parametrize("text", ["-c", "[", "['\\u0000']x", "5", '["\\u0000"]'])
def test_text_that_is_no_array_of_strings_is_refused(text: str):
    with pytest.raises(UsageError, match="expected an array of strings"):
        load(environ={"JOURNEYMAN_SHELL_ARGS": text})


def test_an_empty_variable_does_not_turn_authentication_off():
    with pytest.raises(UsageError, match="expected a string that is not empty"):
        load(environ={"JOURNEYMAN_CONTROLLER_AUTH_FILE": ""})


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    missing = tmp_path / "missing.toml"
    with pytest.raises(UsageError, match=r"missing\.toml: no such file or directory$"):
        load(str(missing), environ={})
    with pytest.raises(UsageError, match=r"is a directory$"):
        load(str(tmp_path), environ={})
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(UsageError, match=r"larger than 1048576 bytes$"):
        load(str(large), environ={})
    large.write_bytes(b"#" * MAX_FILE_BYTES)
    assert load(str(large), environ={}).settings == with_an_empty_file()
    strange = tmp_path / "strange.toml"
    strange.write_bytes(b"[log]\nlevel = \xff\n")
    with pytest.raises(UsageError, match=r"strange\.toml:2: not UTF-8$"):
        load(str(strange), environ={})


# -- files that are not quite TOML ---------------------------------------------------------------


def test_a_file_with_a_byte_order_mark_and_crlf_is_toml(tmp_path):
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf[log]\r\nlevel = 'warn'\r\n")
    configuration = load(str(path), environ={})
    assert configuration.settings.log.level is LogLevel.WARN
    assert configuration.notes == ()


def test_unusual_toml_is_understood_and_its_lines_found_where_they_can_be(loaded):
    configuration = loaded(
        'schedule.max_runs = 5\nhttp = { listen = "h:1" }\n[ database ] # yes\n"framerate" = 9\n'
        '[shell]\nargs = [\n  "-c",\n]\n'
    )
    assert configuration.settings.schedule.max_runs == 5
    assert configuration.settings.http.listen == Address("h", 1)
    assert configuration.settings.database.framerate == 9
    assert configuration.origins["schedule.max_runs"] == "c.toml:1"
    assert configuration.origins["http.listen"] == "c.toml"
    assert configuration.origins["shell.args"] == "c.toml:6"
    assert configuration.notes == ()


def test_keys_before_the_first_section_are_ignored_with_a_note(loaded):
    configuration = loaded("level = 'debug'\n[log]\n")
    assert configuration.settings == with_an_empty_file()
    assert configuration.notes == ("c.toml:1: level is in no section; ignored",)


def test_what_ztick_takes_for_toml_is_read_as_ztick_reads_it(loaded):
    configuration = loaded(
        "stray = 1\n"
        "[log]\n"
        "level = info # as bare as can be\n"
        "what is this\n"
        "[unclosed\n"
        "[database]\n"
        "framerate = 1\n"
        'logfile_path = "C:\\data"  # no escape\n'
        "[log]\n"
        'level = "debug" # "again"\n'
        "[database]\n"
        "framerate = 2 # later\n"
        "[shell]\n"
        'args = ["-c"]\n'
    )
    assert configuration.settings.log.level is LogLevel.DEBUG
    assert configuration.settings.database.framerate == 2
    assert configuration.settings.database.logfile_path == "C:\\data"
    assert configuration.origins["log.level"] == "c.toml:10"
    first, *rest = configuration.notes
    assert re.fullmatch(r"c\.toml: not TOML \(.*\); read line by line, as ztick does", first)
    assert rest == [
        "c.toml:1: stray is in no section; ignored",
        "c.toml:4: neither a section nor key = value; skipped",
        "c.toml:5: neither a section nor key = value; skipped",
        "c.toml:10: log.level is repeated; line 3 is ignored",
        "c.toml:12: database.framerate is repeated; line 7 is ignored",
    ]


@pytest.mark.parametrize("value", ['"data', "'data", '["-c"', "", "{", 'a"b"', "# comment"])
def test_a_value_of_which_nobody_can_tell_what_was_meant_is_refused(complaint, value: str):
    said = complaint(f"[database]\nlogfile_path = {value}\n")
    assert said.startswith("c.toml:2: database.logfile_path = ")
    assert "expected a value as in TOML" in said


def test_unknown_keys_are_refused_in_such_files_too(complaint):
    assert complaint("[log]\nlevel = info\nlevle = x\n").startswith("c.toml:3: unknown key")
    assert complaint("[lgo]\nlevel = info\n").startswith("c.toml:1: unknown section [lgo]")


def test_a_number_of_thousands_of_digits_is_a_bad_value(complaint):
    said = complaint("[database]\nframerate = " + "9" * 5000 + "\n")
    assert said.startswith("c.toml:2: database.framerate = '9999")


@given(st.text(st.sampled_from("[]log\n =\"'#{},\\1.ev"), max_size=60))
def test_any_text_is_values_or_a_usage_error(text: str):
    try:
        values = read_values(text, "f")
    except UsageError:
        return
    assert all(isinstance(note, str) for note in values.notes)


# -- show ----------------------------------------------------------------------------------------


def test_what_is_shown_can_be_loaded_again(loaded):
    first = loaded(
        ZTICK_FILE, {"JOURNEYMAN_SHELL_ARGS": '["a\\"b\\\\\\n"]'}, limits__connections="7"
    )
    again = loaded(show(first))
    assert again.settings == first.settings
    assert again.notes == ()


def test_what_is_shown_tells_the_origin_of_each_value(loaded):
    lines = show(loaded("[log]\nlevel = 'warn'\n", limits__connections="7")).splitlines()
    by_start = {line.partition("  #")[0].rstrip(): line.partition("  # ")[2] for line in lines}
    assert by_start['level = "warn"'] == "c.toml:2"
    assert by_start["connections = 7"] == "command line"
    assert by_start["framerate = 512"] == "default"
    assert "# auth_file is not set" in by_start
    assert lines[0] == "[log]"


def test_every_default_is_a_value_that_may_be_set():
    for setting in all_settings():
        if setting.default is not None:
            value = tomllib.loads(f"value = {as_toml(setting.default)}")["value"]
            assert read_setting(setting.kind, value) == setting.default
            assert setting.value_in(Settings()) == setting.default


def test_every_setting_has_its_own_name_and_variable():
    table = list(all_settings())
    assert len({setting.name for setting in table}) == len(table)
    assert len({setting.variable for setting in table}) == len(table)
    assert all(setting.meaning for setting in table)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=4))
def test_strings_come_back_from_what_is_written(values: list[str]):
    assert read_text(Texts, as_toml(tuple(values))) == tuple(values)


def test_the_page_lists_every_setting_with_its_default_and_meaning():
    section = ""
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if heading := re.fullmatch(r"\*\*\[(\w+)\]\*\*", cells[0]):
            section = heading[1]
        elif key := re.fullmatch(r"`(\w+)`", cells[0]):
            rows[f"{section}.{key[1]}"] = cells
    assert list(rows) == [setting.name for setting in all_settings()]
    for setting in all_settings():
        _, default, _, meaning = rows[setting.name]
        unset = setting.default is None
        assert default == ("not set" if unset else f"`{as_toml(setting.default)}`")
        plain = re.sub(r"`|\[(.*?)\]\(.*?\)", r"\1", meaning)
        assert plain.startswith(setting.meaning), setting.name
        if numbers := re.search(r"from (\d+) to (\d+)", setting.allowed):
            assert f"{numbers[1]} to {numbers[2]}" in rows[setting.name][2]


# -- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5678", "127.0.0.1", 5678),
        ("localhost:5678", "localhost", 5678),
        ("my_host-1.example.org:0", "my_host-1.example.org", 0),
        ("[::1]:5678", "::1", 5678),
        ("::1:5678", "::1", 5678),
        (":::5678", "::", 5678),
        ("[::]:65535", "::", 65535),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_addresses_as_people_write_them(text: str, host: str, port: int):
    address = parse_address(text)
    assert address == Address(host, port)
    assert parse_address(str(address)) == address


def test_an_address_is_written_with_brackets_where_it_needs_them():
    assert str(Address("::1", 5678)) == "[::1]:5678"
    assert str(Address("localhost", 5678)) == "localhost:5678"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "localhost",
            "[::1]",
            ":5678",
            "h:",
            "h:x",
            "h:65536",
            "h:-1",
            "h: 5",
            "h:٣",
            "h:1\n",
        ),
        *("256.0.0.1:1", "1.2.3:1", "[::1:5678", "::1]:5678", "[h]:1", "[]:1", "::g:1"),
        *("a b:1", "-h:1", "h/:1", "é:1", "*:1", "h" * 254 + ":1", "http://h:1"),
    ],
)
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(ValueError, match=r"must end with|name the host|is no|is neither"):
        parse_address(text)


# -- the auth file -------------------------------------------------------------------------------

TOKENS = """\
# who may do what
[token.deploy]
secret = "sk_deploy"
namespace = "deploy."

[token.admin]   # everything
secret = sk_admin # bare
namespace = "*" # all
"""


EVERY_RUNNER = frozenset(
    {"shell", "direct", "awf", "http", "amqp", "redis", "queue", "journal", "mail"}
)


def test_a_token_says_which_runners_it_may_use():
    def token(lines: str) -> Token:
        found = parse_tokens(f"[token.a]\nsecret = s\n{lines}", "t").find(b"s")
        assert found is not None
        return found

    assert token("namespace = n").runners == EVERY_RUNNER
    assert token("namespace = *").runners == EVERY_RUNNER
    assert token('namespace = n\nrunners = "Shell, http"').runners == {"shell", "http"}
    assert token('namespace = n\nrunners = "*"').runners == token("namespace = *").runners
    assert token('namespace = *\nrunners = ""').runners == frozenset()
    with pytest.raises(UsageError, match=r"t:1: token.a: runners: there is no 'bash'; allowed are"):
        token("namespace = n\nrunners = shell bash")


def test_as_soon_as_one_token_names_runners_the_others_have_none():
    other = "[token.b]\nsecret = b\nnamespace = {}\n"
    for namespace in ("n.", "*"):
        for named in ('runners = "http"', "runners = "):
            text = f"[token.a]\nsecret = a\nnamespace = m.\n{named}\n"
            tokens = parse_tokens(text + other.format(namespace), "t")
            found = tokens.find(b"b")
            assert found is not None
            assert found.runners == frozenset()
            assert tokens.names_runners
            assert tokens.warning == ""


def test_a_file_of_ztick_names_the_tokens_that_can_run_programs():
    tokens = parse_tokens(TOKENS + "[token.look]\nsecret = l\nnamespace = *\naccess = read\n", "t")
    assert not tokens.names_runners
    assert "can run programs: deploy, admin; to restrict them, give each token" in tokens.warning
    many = "".join(f"[token.t{n}]\nsecret = s{n}\nnamespace = n\n" for n in range(30))
    assert parse_tokens(many, "t").warning.count("t1") == 11
    assert " and 10 more; " in parse_tokens(many, "t").warning
    assert parse_tokens("", "t").warning == ""


def test_a_rule_may_only_do_what_its_token_may():
    token = Token("a", "n.", frozenset({"shell", "queue", "journal", "mail"}))
    assert token.refuses(Shell("true")) == ""
    assert token.refuses(Direct("true", ())) == "this token may not use the runner direct"
    assert token.refuses(WorkQueueRunner("n.mail", ())) == ""
    assert token.refuses(WorkQueueRunner("mail", ())) == "insufficient namespace scope"
    assert token.refuses(FanOutRunner("mail")) == "insufficient namespace scope"
    assert Token("a", "*").refuses(FanOutRunner("mail")) == ""


def test_a_token_is_the_same_after_reading_the_file_again():
    text = "[token.a]\nsecret = s\nnamespace = n\n"
    token = parse_tokens(text, "t").find(b"s")
    assert token is not None
    assert token in parse_tokens(text, "t")
    assert token not in parse_tokens(text.replace("= s", "= other"), "t")
    assert token not in parse_tokens(text.replace("= n", "= m"), "t")
    assert token not in parse_tokens(text + "runners = shell", "t")
    assert token not in parse_tokens("", "t")


def test_a_token_file_that_everyone_can_read_is_noted(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("[token.a]\nsecret = s\nnamespace = n\n")
    path.chmod(0o640)
    assert load_tokens(str(path)).notes == ()
    path.chmod(0o644)
    (note,) = load_tokens(str(path)).notes
    assert note.endswith(f"(mode ends in 4); chmod o= {path}")


def test_a_token_is_found_by_its_secret(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text(TOKENS)
    path.chmod(0o600)
    tokens = load_tokens(str(path))
    assert tokens.find(b"sk_deploy") == Token("deploy", "deploy.")
    assert tokens.find(b"sk_admin") == Token("admin", "*")
    assert tokens.find(b"sk_deplo") is None
    assert tokens.find(b"") is None
    assert (len(tokens), tokens.notes) == (2, ())


def test_a_namespace_is_a_prefix_and_a_star_is_all():
    deploy, admin = Token("deploy", "deploy."), Token("admin", "*")
    assert deploy.covers("deploy.x")
    assert not deploy.covers("deploy")
    assert not deploy.covers("billing.deploy.")
    assert admin.covers("anything")
    assert admin.covers("")


@pytest.mark.parametrize(
    ("written", "secret"),
    [
        ('"s"', b"s"),
        ("s", b"s"),
        ('"s#t"', b"s#t"),
        ("s#t", b"s#t"),
        ('"s" # comment "quoted"', b"s"),
        ("s # comment", b"s"),
        (r'"a\b"', rb"a\b"),
        ('"a"b"', b'a"b'),
        ('"ü ü"', "ü ü".encode()),
        ("a=b", b"a=b"),
        ('"', b'"'),
    ],
)
def test_secrets_as_they_may_be_written(written: str, secret: bytes):
    tokens = parse_tokens(f"[token.a]\r\nsecret = {written}\r\nnamespace = n\r\n", "t")
    assert tokens.find(secret) == Token("a", "n")


def test_the_last_of_two_equal_keys_counts():
    tokens = parse_tokens("[token.a]\nsecret = x\nsecret = y\nnamespace = n\n", "t")
    assert tokens.find(b"x") is None
    assert tokens.find(b"y") is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[token.a]\nnamespace = n\n", 't:1: token.a has no secret; give it secret = "..."'),
        (
            "\n[token.a]\nsecret = hush\n",
            't:2: token.a has no namespace; give it namespace = "..."',
        ),
        (
            '[token.a]\nsecret = hush\nnamespace = ""\n',
            't:1: token.a has an empty namespace; give it namespace = "..."',
        ),
        (
            '[token.a]\nsecret = ""\nnamespace = n\n',
            't:1: token.a has an empty secret; give it secret = "..."',
        ),
        (
            "[token.a]\nsecret = hush\nnamespace = n\n[token.b]\nsecret = hush\nnamespace = m\n",
            "t:4: token.b has the same secret as token.a",
        ),
        (
            "[token.a]\nsecret = hush\nnamespace = n\n[token.a]\nsecret = b\nnamespace = m\n",
            "t:4: token.a appears twice; first on line 1",
        ),
    ],
)
def test_auth_files_that_are_refused(text: str, said: str):
    with pytest.raises(UsageError) as caught:
        parse_tokens(text, "t")
    assert str(caught.value) == said


def test_what_an_auth_file_does_not_know_is_noted_but_never_repeated():
    text = (
        "secret = hush\n[other]\nsecret = hush\n[token.]\n[unclosed\nhush\n"
        "[token.a]\nsecret = s\nnamespace = n\ncolour = hush\n"
    )
    tokens = parse_tokens(text, "t")
    assert tokens.find(b"s") == Token("a", "n")
    assert tokens.find(b"hush") is None
    assert tokens.notes == (
        "t:1: not a secret, namespace, runners or access; ignored",
        "t:2: not a [token.NAME] section; ignored",
        "t:3: not a secret, namespace, runners or access; ignored",
        "t:4: not a [token.NAME] section; ignored",
        "t:5: not a [token.NAME] section; ignored",
        "t:6: not a secret, namespace, runners or access; ignored",
        "t:10: not a secret, namespace, runners or access; ignored",
    )


def test_an_empty_auth_file_lets_nobody_in():
    tokens = parse_tokens("# nobody\n", "t")
    assert len(tokens) == 0
    assert tokens.find(b"") is None


def test_an_auth_file_that_is_not_there_or_too_large_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file or directory"):
        load_tokens(str(tmp_path / "missing"))
    large = tmp_path / "large"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(UsageError, match="larger than"):
        load_tokens(str(large))


def test_secrets_are_in_no_repr():
    tokens = parse_tokens(TOKENS, "t")
    assert repr(tokens) == "Tokens(deploy, admin)"
    held = "".join(repr(getattr(tokens, name)) for name in type(tokens).__slots__)
    assert "sk_" not in held


def test_settings_of_a_section_can_be_replaced_in_tests():
    settings = replace(Settings(), http=replace(Settings().http, listen=Address("h", 1)))
    assert settings.http.listen == Address("h", 1)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:sec@ret:x@host:1/db", "postgresql://me:***@host:1/db"),
        (
            "postgresql://host/db?user=me&password=secret",
            "postgresql://host/db?user=me&password=***",
        ),
        ("host=h password=secret user=me", "host=h password=*** user=me"),
        ("host=h password = 'sec ret\\' x' user=me", "host=h password = *** user=me"),
        ("PASSWORD='secret", "PASSWORD=***"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("/var/lib/a:b@c", "/var/lib/a:b@c"),
    ],
)
def test_the_password_of_an_address_is_not_shown(address: str, shown: str):
    configuration = load(None, options={"storage.path": address})
    assert configuration.settings.storage.path == address
    text = show(configuration)
    assert tomllib.loads(text)["storage"]["path"] == shown
    assert "secret" not in text


def test_no_setting_shows_the_password_of_an_address():
    address = "https://me:secret@collector.example/v1"
    configuration = load(None, environ={}, options={"telemetry.endpoint": address})
    assert configuration.settings.telemetry.endpoint == address
    text = show(configuration)
    assert tomllib.loads(text)["telemetry"]["endpoint"] == "https://me:***@collector.example/v1"
