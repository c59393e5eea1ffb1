"""One Spark session for all tests here: starting one takes seconds."""

import pytest

from support.datadir import make_data_directory
from support.kafka_jars import connector_jars


@pytest.fixture(scope="session")
def spark():
    from cordwood.spark import session

    conf = {"spark.sql.shuffle.partitions": "2"}
    if jars := connector_jars():  # a running session takes no more of them
        conf["spark.jars"] = jars
    running = session("tests", master="local[2]", conf=conf)
    yield running
    running.stop()


@pytest.fixture
def data(tmp_path):
    return make_data_directory(tmp_path / "data")
