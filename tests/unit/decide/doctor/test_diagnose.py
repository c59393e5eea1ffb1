"""What ``cordwood doctor`` concludes from facts, and what it advises."""

from dataclasses import replace

import pytest

from cordwood.config import GIB, MIB
from cordwood.decide.doctor import CheckState, Facts, diagnose
from cordwood.decide.doctor.facts import (
    ClockFacts,
    DiskFacts,
    JavaFacts,
    KernelFacts,
    LimitFacts,
    Package,
    PortFacts,
    PythonFacts,
    SparkFacts,
    TlsFacts,
)

NOW_MS = 1_800_000_000_000
GOOD = Facts(
    python=PythonFacts((3, 12, 1), "/venv/bin/python", "linux", False, ()),
    spark=SparkFacts("4.3.0", True, javas=[JavaFacts("/java", 17)], python="/venv/bin/python3"),
    ports=(PortFacts("kafka", "127.0.0.1:9092", None),),
    disk=DiskFacts("/data", "/data", True, "ext4", 90 * GIB, 100 * GIB, 9, 10, 0.002),
    limits=LimitFacts(1 << 19, 16384, 8 * GIB, None, GIB),
    clock=ClockFacts(NOW_MS, True),
    kernels=KernelFacts("/cache", True),
    tls=TlsFacts((), ("tls.cert", "tls.key"), {}),
)


def changed(part: str, **changes) -> Facts:
    """Return good facts with some of one part changed."""
    return replace(GOOD, **{part: replace(getattr(GOOD, part), **changes)})


def findings(facts: Facts) -> dict[str, tuple[CheckState, str, str]]:
    """Return the findings that are not ok, by check."""
    return {
        each.check: (each.state, each.found, each.remedy)
        for each in diagnose(facts)
        if each.state is not CheckState.OK
    }


def test_a_good_machine_has_nothing_to_do():
    """Every check of a good machine is ok and has no remedy."""
    assert {each.state for each in diagnose(GOOD)} == {CheckState.OK}
    assert {each.remedy for each in diagnose(GOOD)} == {""}


FAULTS = [
    ("python", {"version": (3, 10, 2)}, "python", CheckState.PROBLEM, "3.11 or newer"),
    ("python", {"platform": "darwin"}, "platform", CheckState.PROBLEM, "Linux"),
    ("python", {"is_optimized": True}, "assertions", CheckState.WARNING, "-O"),
    (
        "spark",
        {"version": None, "install": "pip X"},
        "spark",
        CheckState.WARNING,
        "pip X; or set pip",
    ),
    ("spark", {"home": "/opt/spark"}, "spark", CheckState.PROBLEM, "unset SPARK_HOME"),
    ("spark", {"home": "/s", "home_version": "3.5.1"}, "spark", CheckState.PROBLEM, "same version"),
    (
        "spark",
        {"javas": (), "install_java": "pip J"},
        "java",
        CheckState.PROBLEM,
        "pip J; or install",
    ),
    ("spark", {"javas": [JavaFacts("/j", 11)]}, "java", CheckState.PROBLEM, "JAVA_HOME"),
    ("spark", {"javas": [JavaFacts("/j", None)]}, "java", CheckState.PROBLEM, "JAVA_HOME"),
    ("spark", {"javas": [JavaFacts("/j", 26)]}, "java", CheckState.WARNING, "17, 21 or 25"),
    ("disk", {"can_write": False}, "directory", CheckState.PROBLEM, "chown"),
    ("disk", {"filesystem": "tmpfs"}, "file system", CheckState.WARNING, "disk"),
    ("disk", {"filesystem": "nfs4"}, "file system", CheckState.WARNING, "local disk"),
    ("disk", {"filesystem": "overlay"}, "file system", CheckState.WARNING, "volume"),
    ("disk", {"free_bytes": 10 * MIB}, "disk space", CheckState.PROBLEM, "free some space"),
    ("disk", {"free_bytes": 2 * GIB}, "disk space", CheckState.WARNING, "free some space"),
    ("disk", {"free_inodes": 1, "total_inodes": 100}, "disk space", CheckState.WARNING, "inodes"),
    ("disk", {"sync_s": None, "sync_error": "EIO"}, "fsync", CheckState.PROBLEM, "another disk"),
    ("disk", {"sync_s": 0.2}, "fsync", CheckState.WARNING, "faster"),
    ("disk", {"lock_pid": 7, "lock_pid_runs": True}, "lock", CheckState.WARNING, "do not use kill"),
    ("disk", {"newest_ms": NOW_MS + 600_000}, "clock", CheckState.WARNING, "set the clock"),
    ("limits", {"open_files": 100}, "open files", CheckState.PROBLEM, "ulimit -Hn"),
    ("limits", {"open_files": 1024}, "open files", CheckState.WARNING, "LimitNOFILE"),
    ("limits", {"memory_available": 1 * GIB}, "memory", CheckState.WARNING, "pipeline=off"),
    ("limits", {"file_bytes": 1 * MIB}, "file size", CheckState.PROBLEM, "ulimit -f"),
    ("clock", {"now_ms": 0}, "clock", CheckState.PROBLEM, "set the clock"),
    ("clock", {"is_synchronized": False}, "clock", CheckState.WARNING, "chrony"),
    ("kernels", {"directory": None}, "kernels", CheckState.WARNING, "NUMBA_CACHE_DIR"),
    ("tls", {"listeners": ["kafka.tls"]}, "tls", CheckState.PROBLEM, "certs init"),
    (
        "tls",
        {"errors": {"tls.key": "/k: Permission denied"}},
        "tls tls.key",
        CheckState.PROBLEM,
        "path",
    ),
    ("tls", {"days_left": -1.0}, "tls certificate", CheckState.PROBLEM, "renew"),
    ("tls", {"days_left": 3.0}, "tls certificate", CheckState.WARNING, "renew"),
    ("tls", {"is_key_public": True}, "tls key", CheckState.WARNING, "chmod 600"),
]


@pytest.mark.parametrize(("part", "changes", "check", "state", "remedy"), FAULTS)
def test_one_fault_is_one_finding_with_its_remedy(part, changes, check, state, remedy):
    """Each fault alone is found, and nothing else is; the remedy says what to do."""
    ((found_check, (found_state, _, advice)),) = findings(changed(part, **changes)).items()
    assert (found_check, found_state) == (check, state)
    assert remedy in advice


FINE = [
    ("spark", {"version": None, "is_wanted": False}),  # a broker without Spark, as was asked for
    ("spark", {"home": "/s", "home_version": "4.3.1"}),
    ("spark", {"javas": [JavaFacts("/old", 8), JavaFacts("/new", 21)]}),  # the first that suits
    ("disk", {"total_inodes": 0, "free_inodes": 0}),  # a file system that does not count them
    ("disk", {"path": "/data/new"}),  # created at the start
    ("disk", {"lock_pid": 7}),  # stale, and harmless
    ("disk", {"lock_pid": 7, "lock_pid_runs": True, "broker_pid": 7}),
    ("clock", {"is_synchronized": None}),
    ("kernels", {"is_compiled": False}),
    ("tls", {"days_left": 300.0}),
]


@pytest.mark.parametrize(("part", "changes"), FINE)
def test_what_works_is_no_finding(part, changes):
    """Nothing is said against what a broker handles itself, or what the user chose."""
    assert findings(changed(part, **changes)) == {}


def test_memory_for_spark_counts_only_where_spark_will_run():
    """One GiB is enough for a broker without the pipeline."""
    facts = changed("limits", memory_available=1 * GIB)
    assert findings(facts)["memory"][0] is CheckState.WARNING
    assert findings(replace(facts, spark=replace(GOOD.spark, is_wanted=False))) == {}


def test_a_port_of_this_directory_s_broker_is_fine():
    """Beside the running broker its own ports are in use, as they should be."""
    port = PortFacts("kafka", "127.0.0.1:9092", "in use", True, 7, "cordwood")
    facts = replace(GOOD, ports=(port,))
    state, found, remedy = findings(facts)["port kafka"]
    assert (state, "process 7 (cordwood)" in found) == (CheckState.PROBLEM, True)
    assert remedy == "stop it, or choose another: --kafka HOST:PORT"
    assert findings(replace(facts, disk=replace(GOOD.disk, broker_pid=7))) == {}


def test_a_port_whose_holder_is_unknown_is_not_taken_for_the_broker():
    """Without the holder's process id, not even a running broker excuses it."""
    port = PortFacts("http.tls", "127.0.0.1:8443", "in use", True)
    assert findings(replace(GOOD, ports=(port,)))["port http.tls"][1] == "127.0.0.1:8443 is in use"


def test_an_address_of_another_machine_is_a_problem():
    """An address that cannot be bound is reported with the system's reason."""
    port = PortFacts("kafka", "10.9.9.9:9092", "Cannot assign requested address")
    state, found, _ = findings(replace(GOOD, ports=(port,)))["port kafka"]
    assert state is CheckState.PROBLEM
    assert found == "10.9.9.9:9092: Cannot assign requested address"


@pytest.mark.parametrize(
    ("package", "is_wrong"),
    [
        (Package("numpy", ">=1.26", "", None), True),
        (Package("numpy", ">=1.26", "", "1.25.9"), True),
        (Package("numpy", ">=1.26", "", "2.4"), False),
        (Package("pandas", ">=2.2,<3", "spark", "3.0.1"), True),
        (Package("pandas", ">=2.2,<3", "spark", None), False),
    ],
)
def test_a_package_must_fit_if_it_is_there_and_be_there_in_the_core(package, is_wrong):
    """Extras may be missing; what is installed must have a version that cordwood works with."""
    found = findings(changed("python", packages=[package]))
    assert list(found) == ([f"package {package.name}"] if is_wrong else [])
    if is_wrong:
        assert (
            f"-m pip install '{package.name}{package.bounds}'"
            in found[f"package {package.name}"][2]
        )


@pytest.mark.parametrize(
    ("chosen_by", "state"), [("PATH", CheckState.WARNING), ("PYSPARK_PYTHON", CheckState.PROBLEM)]
)
def test_the_python_that_spark_would_run_must_have_cordwood(chosen_by, state):
    """On PATH it is a warning, as the import corrects it; a variable is the user's, and wrong."""
    facts = changed("spark", python_chosen_by=chosen_by, python_problem="x", python_remedy="do y")
    found = findings(facts)["spark python"]
    assert (found[0], found[2]) == (state, "do y")
    assert "DATA_SOURCE_NOT_FOUND" in found[1]
