"""One Spark session for all tests here: starting one takes seconds."""

import pytest

from support.datadir import make_data_directory


@pytest.fixture(scope="session")
def spark():
    from cordwood.spark import session

    running = session("tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    yield running
    running.stop()


@pytest.fixture
def data(tmp_path):
    return make_data_directory(tmp_path / "data")
