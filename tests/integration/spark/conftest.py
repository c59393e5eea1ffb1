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
    unlabelled = [name for name, label in jobs_of_ours(running) if not label]
    running.stop()
    assert not unlabelled, "Spark's UI does not say what these jobs are"


def jobs_of_ours(spark):
    """Where each job was started in our own code, and what Spark's UI says of it."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    for job in (jobs.apply(at) for at in range(jobs.size())):
        if "/cordwood/pipeline/" in job.name():
            yield job.name(), job.description().isDefined()


@pytest.fixture
def data(tmp_path):
    return make_data_directory(tmp_path / "data")
