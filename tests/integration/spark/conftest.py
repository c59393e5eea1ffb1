"""One Spark session shared by all tests here, because starting one takes seconds."""

import pytest

from support.datadir import make_data_directory
from support.kafka_jars import connector_jars


@pytest.fixture(scope="session")
def spark():
    from cordwood.spark import session

    conf = {"spark.sql.shuffle.partitions": "2"}
    if jars := connector_jars():  # jars cannot be added to a running session
        conf["spark.jars"] = jars
    running = session("tests", master="local[2]", conf=conf)
    yield running
    unlabelled = [name for name, label in jobs_of_ours(running) if not label]
    running.stop()
    assert not unlabelled, "Spark's UI does not say what these jobs are"


def jobs_of_ours(spark):
    """Yield each job that our code started, and whether Spark's UI has a description of it."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    for job in (jobs.apply(at) for at in range(jobs.size())):
        if "/cordwood/pipeline/" in job.name():
            yield job.name(), job.description().isDefined()


@pytest.fixture
def data(tmp_path):
    return make_data_directory(tmp_path / "data")
