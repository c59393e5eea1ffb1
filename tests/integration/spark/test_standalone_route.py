"""The router on a standalone cluster with separate master, worker and driver processes."""

import io

import pytest

from cordwood.client import Client, Producer
from cordwood.lab.scenarios.cluster import open_cluster
from cordwood.lab.scenarios.pipeline import Driver, routed
from cordwood.lab.scenarios.stage import SPARK_S, ScenarioRun, read_all, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_the_router_runs_on_a_standalone_cluster_as_it_does_embedded(tmp_path):
    """``cordwood pipeline run --master`` delivers all records to their routes, in order."""
    with ScenarioRun("standalone", out=io.StringIO()) as stage, open_cluster(tmp_path) as cluster:
        broker = stage.serve()
        driver = Driver(stage, broker.addresses["kafka"], master=cluster.url)
        try:
            with Producer(broker.addresses["ingress"], name="p") as producer:
                producer.send_and_confirm([(f"k{i % 2}.x", str(i)) for i in range(100)])
            driver.wait_ready()
            wait_until(lambda: routed(broker) == 100, "all are routed", SPARK_S)
        finally:
            driver.close()
        control = broker.addresses["control"]
        for topic in (0, 1):
            lines = read_all(control, f"k{topic}", 50)
            assert [line.payload for line in lines] == [b"%d" % i for i in range(topic, 100, 2)]
        with Client(control) as client:
            assert client.get_ack("k0") + client.get_ack("k1") == 100
