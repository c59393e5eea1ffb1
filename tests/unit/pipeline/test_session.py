"""Which settings a session is built with."""

import pytest

from cordwood.errors import ConfigError
from cordwood.pipeline.session import open_session, plan_settings


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


def test_the_callers_settings_win():
    """Over every one of ours."""
    assert plan_settings("local[1]", {"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_a_master_and_a_remote_exclude_each_other():
    """One of both would be ignored in silence."""
    with pytest.raises(ConfigError, match="not both"):
        open_session(master="local[1]", remote="sc://localhost")
