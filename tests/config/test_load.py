"""Reading the settings: precedence, forms, and errors that name key, origin, value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold.config import Problem, Secret, Settings, SettingsError, load
from statehold.config.sources import known_options

Write = Callable[[str], Path]


@pytest.fixture
def toml(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "clearing.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    directory = tmp_path / "secrets"
    directory.mkdir()
    return directory


def test_nothing_given_is_the_defaults() -> None:
    assert load(env={}) == Settings()


def test_each_source_wins_over_the_next(toml: Write, secrets: Path) -> None:
    path = toml('[commit]\ninterval = "1s"\n')
    read: list[float] = [load(path, env={}, profile="development").commit.interval]
    (secrets / "commit.interval").write_text("2s\n")
    read.append(load(path, env={}, secrets_dir=secrets).commit.interval)
    env = {"STATEHOLD_COMMIT__INTERVAL": "3s"}
    read.append(load(path, env=env, secrets_dir=secrets).commit.interval)
    read.append(load(path, {"commit.interval": "4s"}, env, secrets).commit.interval)
    assert read == [1.0, 2.0, 3.0, 4.0]
    assert load(env={}, profile="development").commit.interval == 0.02


def test_sources_fill_one_section_together(toml: Write) -> None:
    path = toml('[kafka]\nbootstrap_servers = "a:1, b:2"\n[kafka.security]\nprotocol = "ssl"\n')
    env = {"STATEHOLD_KAFKA__SECURITY__SSL_CA_LOCATION": "/ca.pem"}
    kafka = load(path, {"kafka.rack": "r1"}, env).kafka
    assert (kafka.bootstrap_servers, kafka.rack) == ("a:1, b:2", "r1")
    assert (kafka.security.protocol, kafka.security.ssl_ca_location) == ("ssl", "/ca.pem")


def test_toml_may_use_numbers_words_and_units(toml: Write) -> None:
    text = """
    commit = { interval = 1, max_records = 5 }
    [snapshot]
    delta_interval = 2.5
    full_bytes = "1GB"
    periodic_full = "off"
    on_stop = false
    """
    settings = load(toml(text), env={})
    assert (settings.commit.interval, settings.commit.max_records) == (1.0, 5)
    snapshot = settings.snapshot
    assert (snapshot.delta_interval, snapshot.full_bytes) == (2.5, 10**9)
    assert (snapshot.periodic_full, snapshot.on_stop) == (False, False)
    assert load(overrides={"snapshot.delta_interval": "commit"}, env={}).snapshot.delta_interval == "commit"


def test_librdkafka_keys_are_written_with_or_without_quotes(toml: Write) -> None:
    path = toml('[kafka.extra]\n"fetch.wait.max.ms" = 50\nsocket.nagle.disable = false\n')
    env = {"STATEHOLD_KAFKA__EXTRA__FETCH_MIN_BYTES": "10"}
    extra = load(path, {"kafka.extra.log_level": "3"}, env).kafka.extra
    assert dict(extra) == {
        "fetch.wait.max.ms": "50",
        "socket.nagle.disable": "false",
        "fetch.min.bytes": "10",
        "log_level": "3",
    }


@pytest.mark.parametrize(
    "name",
    [
        "kafka.security.sasl_password",
        "kafka__security__sasl_password",
        "STATEHOLD_KAFKA__SECURITY__SASL_PASSWORD",
        "statehold_kafka__security__sasl_password",
    ],
)
def test_a_secret_file_is_named_like_its_setting_and_loses_its_last_newline(secrets: Path, name: str) -> None:
    (secrets / name).write_text(" hunter2\n")
    (secrets / "tls.key").write_text("of another user")
    (secrets / "..data").mkdir()
    assert load(env={}, secrets_dir=secrets).kafka.security.sasl_password == Secret(" hunter2")


def test_variables_of_tools_are_no_settings() -> None:
    env = {
        "STATEHOLD_DEV_CACHE": "/x",
        "STATEHOLD_TEST_SEED": "1",
        "STATEHOLD_BENCH_RECORDS": "2",
        "PATH": "/bin",
    }
    assert load(env=env) == Settings()


def test_an_unknown_key_of_the_file_is_named_with_its_line_and_a_suggestion(toml: Write) -> None:
    path = toml('# a service\n[commit]\ninterval = "1s"\n\n[kafka]\nbootstrap_server = "a:1"\n')
    with pytest.raises(SettingsError) as raised:
        load(path, env={})
    assert str(raised.value) == (
        f"setting kafka.bootstrap_server ({path}:6): unknown setting; did you mean kafka.bootstrap_servers?"
    )


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("commit.intervall", "did you mean commit.interval?"),
        ("comit.interval", "did you mean commit.interval?"),
        ("kafka.session_timeout", "did you mean group.session_timeout?"),
        ("log.zzzzzzzz", "log has format, level"),
        ("zzz", "the sections are kafka, service, group,"),
        ("commit", "commit has interval, max_records,"),
    ],
)
def test_an_unknown_key_of_the_command_line_gets_a_hint(key: str, hint: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(overrides={key: "1"}, env={})
    assert str(raised.value).startswith(f"setting {key} (command line): unknown setting; {hint}")


def test_an_unknown_variable_is_named_as_it_was_written() -> None:
    with pytest.raises(SettingsError, match=r"\(environment variable STATEHOLD_KAFKA_BOOTSTRAP_SERVERS\)") as raised:
        load(env={"STATEHOLD_KAFKA_BOOTSTRAP_SERVERS": "a:1"})
    assert "did you mean kafka.bootstrap_servers?" in str(raised.value)


def test_an_unknown_secret_is_named_without_its_content(secrets: Path) -> None:
    (secrets / "kafka.security.sasl_pasword").write_text("hunter2")
    with pytest.raises(SettingsError, match=r"did you mean kafka\.security\.sasl_password\?") as raised:
        load(env={}, secrets_dir=secrets)
    assert "hunter2" not in str(raised.value)


def test_an_error_of_a_value_names_its_origin_and_the_allowed_values(toml: Write) -> None:
    path = toml("[commit]\nmax_records = 0\n")
    with pytest.raises(SettingsError) as raised:
        load(path, {"snapshot.delta_interval": "often"}, {"STATEHOLD_LOG__FORMAT": "xml"})
    lines = sorted(str(raised.value).splitlines())
    assert lines[0] == (f"setting commit.max_records = 0 ({path}:2): allowed: a whole number, from 1 to 10_000_000")
    assert lines[1] == (
        "setting log.format = 'xml' (environment variable STATEHOLD_LOG__FORMAT): "
        "allowed: 'auto' or 'json' or 'console'"
    )
    assert lines[2].startswith("setting snapshot.delta_interval = 'often' (command line): allowed: a number of")
    assert lines[2].endswith("'commit' or 'off'")


def test_an_error_names_the_value_that_won(toml: Write) -> None:
    path = toml("[commit]\nmax_records = 7\n")
    with pytest.raises(SettingsError, match=r"= 'x' \(environment variable STATEHOLD_COMMIT__MAX_RECORDS\)"):
        load(path, env={"STATEHOLD_COMMIT__MAX_RECORDS": "x"})


def test_a_contradiction_names_the_origin_of_its_key() -> None:
    with pytest.raises(SettingsError, match=r"commit\.timeout = 40s \(command line\): must be less than"):
        load(overrides={"commit.timeout": "40s"}, env={})
    with pytest.raises(SettingsError, match=r"commit\.timeout = 20s \(default\): must be less than"):
        load(overrides={"commit.transaction_timeout": "10s"}, env={})


def test_a_rejected_librdkafka_key_names_its_origin(toml: Write) -> None:
    path = toml('[kafka.extra]\n"isolation.level" = "read_uncommitted"\n')
    with pytest.raises(SettingsError) as raised:
        load(path, {"kafka.extra.acks": "0"}, {"STATEHOLD_KAFKA__EXTRA__FETCH_WAIT_MAX_MS": "soon"})
    origins = {problem.key: problem.origin for problem in raised.value.problems}
    assert origins == {
        "kafka.extra.acks": "command line",
        "kafka.extra.fetch.wait.max.ms": "environment variable STATEHOLD_KAFKA__EXTRA__FETCH_WAIT_MAX_MS",
        "kafka.extra.isolation.level": f"{path}:2",
    }


def test_a_bad_secret_is_never_shown(toml: Write) -> None:
    path = toml("[kafka.security]\nsasl_password = 31337\n")
    with pytest.raises(SettingsError, match=r"sasl_password = <redacted> .*: allowed: text") as raised:
        load(path, env={})
    assert "31337" not in str(raised.value)


@pytest.mark.parametrize("text", ["[commit\n", "commit = \n", "\udcff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(SettingsError, match=r"--config \(.*broken\.toml\): cannot be read: "):
        load(path, env={})


def test_files_and_directories_that_are_absent_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no file .*absent\.toml"):
        load(tmp_path / "absent.toml", env={})
    with pytest.raises(SettingsError, match=r"--secrets-dir \(.*absent\): cannot be read: No such file"):
        load(env={}, secrets_dir=tmp_path / "absent")
    with pytest.raises(SettingsError, match="allowed: development, production"):
        load(env={}, profile="staging")


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOLD_COMMIT__INTERVAL", "70ms")
    assert load().commit.interval == 0.07


def test_reading_is_repeatable_and_keeps_no_state() -> None:
    assert load(overrides={"commit.interval": "1s"}, env={}).commit.interval == 1.0
    assert load(env={}).commit.interval == 0.1


@settings(deadline=None)  # a busy machine is no finding
@given(st.sampled_from(sorted(known_options())), st.text(max_size=12))
def test_any_text_for_any_setting_is_a_value_or_a_rejection_that_names_its_origin(key: str, text: str) -> None:
    rejected: tuple[Problem, ...] = ()
    try:
        load(overrides={key: text}, env={})
    except SettingsError as wrong:
        rejected = wrong.problems
    assert all(problem.cause and problem.origin for problem in rejected)
