"""Which settings a session is built with, and which remote is refused before it is tried."""

import socket
from types import SimpleNamespace

import pytest

from cordwood.errors import ConfigError, UnavailableError
from cordwood.pipeline.runtime.session import check_remote, open_session, parallelism, plan_settings

JAVA = "spark.driver.extraJavaOptions"


def test_an_embedded_session_stays_on_this_machine_and_quiet():
    """Loopback only, no UI, errors only."""
    settings = plan_settings("local[*]", {})
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.log.level"] == "ERROR"


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "sc://h:15002"])
def test_a_cluster_keeps_its_own_settings_for_machines(master):
    """Only what concerns the query is sent."""
    settings = plan_settings(master, {})
    assert "spark.driver.host" not in settings
    assert not any("checkpointFileManager" in name for name in settings)
    assert settings["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize("master", ["local[2]", "spark://h:7077", "yarn"])
def test_every_driver_that_is_started_here_waits_for_a_busy_python(master):
    """Spark's own limit is fifteen seconds."""
    assert plan_settings(master, {})["spark.python.authenticate.socketTimeout"] == "10m"


def test_a_spark_connect_server_s_driver_is_not_ours_to_set():
    """It refuses settings of its Java."""
    assert "spark.python.authenticate.socketTimeout" not in plan_settings("sc://h:15002", {})


def test_the_callers_settings_win():
    """Over every one of ours."""
    assert plan_settings("local[1]", {"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_java_gets_the_callers_options_beside_ours():
    """A heap without an end to it would hang where ours exits."""
    options = plan_settings("local[1]", {JAVA: "-XX:+UseSerialGC"})[JAVA]
    assert options == plan_settings("local[1]", {})[JAVA] + " -XX:+UseSerialGC"


def test_a_master_and_a_remote_exclude_each_other():
    """One of both would be ignored in silence."""
    with pytest.raises(ConfigError, match="not both"):
        open_session(master="local[1]", remote="sc://localhost")


def test_a_remote_without_a_server_is_one_sentence_at_once():
    """Spark's client would ask again and again, for minutes."""
    pytest.importorskip("grpc")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, not listening: refused
        port = nobody.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} .*start-connect-server"):
            check_remote(f"sc://127.0.0.1:{port}/;user_id=me")


@pytest.mark.parametrize("remote", ["spark://h:7077", "h:15002", "sc://", "sc://h:many"])
def test_a_remote_that_names_no_server_is_refused(remote):
    """With the form it should have."""
    pytest.importorskip("grpc")
    with pytest.raises(ConfigError, match="sc://host:port"):
        check_remote(remote)


def test_spark_connect_without_its_client_says_what_to_install(monkeypatch):
    """Not all who use Spark use Connect."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"cordwood\[connect\]"):
        check_remote("sc://127.0.0.1:15002")


def test_parallelism_is_what_the_executors_run_at_once():
    """Spark counts the executors' cores; those of the driver's machine say nothing of them."""
    context = SimpleNamespace(defaultParallelism=97, master="local[97]")
    spark = SimpleNamespace(sparkContext=context)
    assert parallelism(spark) == 97
