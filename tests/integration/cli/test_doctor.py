"""``cordwood doctor`` on a real machine: beside brokers, with taken ports and bad files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from cordwood.cli.commands.doctor import collect
from cordwood.cli.doctor.runtime_facts import first_writable, spark_facts
from cordwood.config import load_broker_config
from cordwood.decide.doctor import CheckResult, CheckState, diagnose
from cordwood.decide.doctor.facts import KernelFacts
from cordwood.lab.scenarios.stage import Child
from cordwood.server.certs import write_lab_certificates

OFF = [word for name in ("kafka", "ingress", "control", "http") for word in ("-c", f"{name}=off")]


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command; no listener is on unless ``words`` turn it on."""
    command = [sys.executable, "-m", "cordwood", "doctor", *OFF, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def findings(data: Path, **settings: str) -> dict[str, CheckResult]:
    """Return what the command would find in this process, by check."""
    off = dict.fromkeys(("kafka", "ingress", "control", "http"), "off")
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    config = load_broker_config({**off, "data": str(data), **dotted}, {}, None)
    return {finding.check: finding for finding in diagnose(collect(config))}


def test_it_changes_nothing_and_says_so_for_each_part(tmp_path):
    """Every part has a line; the data directory is not created, and nothing is left in it."""
    ran = doctor("--data", str(tmp_path / "data"), "-c", "pipeline=off")
    assert ran.returncode == 0, ran.stdout
    for check in ("python", "packages", "directory", "file system", "disk space", "fsync"):
        assert f" {check}  " in ran.stdout, check
    assert "will be created in" in ran.stdout
    assert list(tmp_path.iterdir()) == []
    assert ran.stdout.splitlines()[-1].startswith("0 problems, ")


def test_a_taken_port_is_a_problem_that_names_the_process(tmp_path):
    """A port in use gives exit code 5, the holder's process id, and the option to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = doctor("--data", str(tmp_path), "-c", f"http={address}")
    assert ran.returncode == 5
    assert "problem  port http" in ran.stdout
    assert f"{address} is in use by process {os.getpid()} (" in ran.stdout
    assert "to do: stop it, or choose another: --http HOST:PORT" in ran.stdout


def test_beside_a_running_broker_its_ports_and_directory_are_fine(tmp_path):
    """The broker of this directory holds its lock and its ports; that is as it should be."""
    data = tmp_path / "data"
    broker = Child(data, {})
    kafka = broker.addresses["kafka"]
    try:
        ran = doctor("--data", str(data), "-c", f"kafka={kafka}", "-c", "pipeline=off", "-J")
        assert ran.returncode == 0
        found = {row["check"]: row for row in json.loads(ran.stdout)}
        assert found["directory"]["found"].endswith(f"; process {broker.pid} serves it now")
        assert found["port kafka"]["found"] == f"{kafka} is served by this directory's broker"
        assert findings(tmp_path / "x", kafka=kafka)["port kafka"].state is CheckState.PROBLEM
    finally:
        broker.kill()
    stale = findings(data)
    assert (stale["lock"].state, stale["directory"].state) == (CheckState.OK, CheckState.OK)
    assert f"left by process {broker.pid}" in stale["lock"].found
    (data / "lock").write_text(f"{os.getpid()}\n")
    assert findings(data)["lock"].state is CheckState.WARNING


def test_an_address_of_another_machine_and_a_name_without_address_are_problems(tmp_path):
    """What cannot be bound is a problem with the system's reason, not a traceback."""
    found = findings(tmp_path, kafka="192.0.2.1:9092", http="no.invalid:1")
    assert found["port kafka"].found == "192.0.2.1:9092: Cannot assign requested address"
    assert found["port http"].state is CheckState.PROBLEM


def test_tls_files_are_read_and_must_fit(tmp_path):
    """A certificate, its key and the CA are loaded; what is wrong is named by its setting."""
    write_lab_certificates(tmp_path, ["127.0.0.1"], 90, replace=False)
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "server.pem", "server.key"))
    on = partial(findings, tmp_path, kafka_tls="127.0.0.1:0")
    fine = on(tls_cert=cert, tls_key=key, tls_client_ca=ca)
    assert fine["tls certificate"].state is CheckState.OK
    assert [name for name in fine if name.startswith("tls")] == ["tls certificate"]
    assert on()["tls"].state is CheckState.PROBLEM
    other = on(tls_cert=cert, tls_key=str(tmp_path / "client.key"))
    assert "do not load" in other["tls tls.cert"].found
    gone = on(tls_cert=f"{tmp_path}/none.pem", tls_key=key)
    assert gone["tls tls.cert"].found == f"{tmp_path}/none.pem: No such file or directory"
    wrong = on(tls_cert=cert, tls_key=key, tls_client_ca=key)
    assert "is no certificate" in wrong["tls tls.client.ca"].found
    Path(key).chmod(0o644)
    assert on(tls_cert=cert, tls_key=key)["tls key"].state is CheckState.WARNING


def test_a_directory_that_cannot_be_one_is_a_problem(tmp_path):
    """A file where the directory should be cannot be written as a directory."""
    (tmp_path / "file").write_text("")
    assert findings(tmp_path / "file" / "data")["directory"].state is CheckState.PROBLEM


def test_a_kernel_cache_that_cannot_be_written_is_a_warning(tmp_path):
    """Numba would compile at every start."""
    (tmp_path / "file").write_text("")
    assert first_writable([tmp_path / "file" / "cache"]) == KernelFacts(None, False)
    fresh = first_writable([tmp_path / "file" / "cache", tmp_path / "new" / "cache"])
    assert fresh == KernelFacts(str(tmp_path / "new" / "cache"), False)
    compiled = tmp_path / "new" / "cache" / "kernels_1" / "batches.scan-7.py311.nbi"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert first_writable([tmp_path / "new" / "cache"]).is_compiled


@pytest.mark.parametrize("setting", ["kafkaa=1", "kafka=1", "num.partitions=x"])
def test_a_wrong_setting_gives_exit_code_2(setting, tmp_path):
    """A setting that serve would refuse is refused here, too."""
    ran = doctor("--data", str(tmp_path), "-c", setting)
    assert (ran.returncode, ran.stdout) == (2, "")


@pytest.mark.spark
def test_spark_s_python_is_the_one_it_would_run(tmp_path):
    """The Python on PATH is asked whether it has cordwood; so is that of a variable."""
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\necho 3.8 pyarrow\n")
    fake.chmod(0o755)
    on_path = spark_facts(is_wanted=True, environ={"PATH": str(tmp_path)})
    assert (on_path.python_chosen_by, on_path.python) == ("PATH", str(fake))
    assert "does not have pyarrow" in str(on_path.python_problem)
    own = spark_facts(is_wanted=True, environ={**os.environ, "PYSPARK_PYTHON": sys.executable})
    assert (own.python_problem, own.version is not None) == (None, True)
    assert own.javas


@pytest.mark.spark
def test_spark_home_is_read_by_its_jars(tmp_path):
    """SPARK_HOME overrides pyspark's own jars, so its version is found from those there."""
    environ = {**os.environ, "SPARK_HOME": str(tmp_path)}
    assert spark_facts(is_wanted=True, environ=environ).home_version is None
    jar = tmp_path / "jars" / "spark-core_2.13-3.5.1.jar"
    jar.parent.mkdir()
    jar.touch()
    assert spark_facts(is_wanted=True, environ=environ).home_version == "3.5.1"
