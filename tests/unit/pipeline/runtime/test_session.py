"""The settings of a Spark session, and checks of a Spark Connect URL before it is used."""

import socket
from types import SimpleNamespace

import pytest

from cordwood.errors import ConfigError, UnavailableError
from cordwood.pipeline.runtime.session import check_remote, open_session, parallelism, plan_settings

JAVA = "spark.driver.extraJavaOptions"


def test_an_embedded_session_stays_on_this_machine_and_quiet():
    """A local session binds to loopback, has no UI and logs only errors."""
    settings = plan_settings("local[*]", {})
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.log.level"] == "ERROR"


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "sc://h:15002"])
def test_a_cluster_keeps_its_own_settings_for_machines(master):
    """A cluster gets only settings of the query, and keeps its own for hosts and checkpoints."""
    settings = plan_settings(master, {})
    assert "spark.driver.host" not in settings
    assert not any("checkpointFileManager" in name for name in settings)
    assert settings["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize("master", ["local[2]", "spark://h:7077", "yarn"])
def test_every_driver_that_is_started_here_waits_for_a_busy_python(master):
    """Every driver started here waits ten minutes for a Python worker, not Spark's 15 seconds."""
    assert plan_settings(master, {})["spark.python.authenticate.socketTimeout"] == "10m"


def test_a_spark_connect_server_s_driver_is_not_ours_to_set():
    """A Spark Connect server gets no driver settings, because it refuses them."""
    assert "spark.python.authenticate.socketTimeout" not in plan_settings("sc://h:15002", {})


def test_the_callers_settings_win():
    """The caller's settings override ours."""
    assert plan_settings("local[1]", {"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_java_gets_the_callers_options_beside_ours():
    """The caller's Java options are added to ours and do not replace them."""
    options = plan_settings("local[1]", {JAVA: "-XX:+UseSerialGC"})[JAVA]
    assert options == plan_settings("local[1]", {})[JAVA] + " -XX:+UseSerialGC"


def test_a_master_and_a_remote_exclude_each_other():
    """Setting both a master and a remote is refused."""
    with pytest.raises(ConfigError, match="not both"):
        open_session(master="local[1]", remote="sc://localhost")


def test_a_remote_without_a_server_is_one_sentence_at_once():
    """An unreachable Spark Connect server fails immediately, without the client's long retries."""
    pytest.importorskip("grpc")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound but not listening, so connections are refused
        port = nobody.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} .*start-connect-server"):
            check_remote(f"sc://127.0.0.1:{port}/;user_id=me")


@pytest.mark.parametrize("remote", ["spark://h:7077", "h:15002", "sc://", "sc://h:many"])
def test_a_remote_that_names_no_server_is_refused(remote):
    """A malformed Spark Connect URL is refused with the expected form."""
    pytest.importorskip("grpc")
    with pytest.raises(ConfigError, match="sc://host:port"):
        check_remote(remote)


def test_spark_connect_without_its_client_says_what_to_install(monkeypatch):
    """Without the Spark Connect client, the error names the package to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"cordwood\[connect\]"):
        check_remote("sc://127.0.0.1:15002")


def test_parallelism_is_what_the_executors_run_at_once():
    """Parallelism is Spark's count of executor cores, not the cores of this machine."""
    context = SimpleNamespace(defaultParallelism=97, master="local[97]")
    spark = SimpleNamespace(sparkContext=context)
    assert parallelism(spark) == 97
