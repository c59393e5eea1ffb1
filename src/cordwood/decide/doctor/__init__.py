"""``cordwood doctor``: what a machine's facts mean for a broker and for Spark, and what to do.

The command collects the facts (``cli.doctor``); here they become findings. Each says what was found
and, unless all is well, what to do about it. A *problem* stops something from working; a *warning*
is worth knowing and does not. Pure: reads no file, clock or environment.
"""

from __future__ import annotations

from cordwood.decide.doctor.check_results import CheckResult, CheckState
from cordwood.decide.doctor.facts import Facts
from cordwood.decide.doctor.machine_checks import (
    check_clock,
    check_directory,
    check_limits,
    check_ports,
    check_tls,
)
from cordwood.decide.doctor.runtime_checks import (
    check_kernels,
    check_packages,
    check_python,
    check_spark,
)

__all__ = ["CheckResult", "CheckState", "Facts", "diagnose"]


def diagnose(facts: Facts) -> list[CheckResult]:
    """One or more findings for each part, in the order a person would look."""
    runs_spark = facts.spark.is_wanted and facts.spark.version is not None
    return [
        *check_python(facts.python),
        *check_packages(facts.python.packages, facts.python.executable),
        *check_spark(facts.spark),
        *check_directory(facts.disk),
        *check_ports(facts.ports, facts.disk.broker_pid),
        *check_tls(facts.tls),
        *check_limits(facts.limits, with_spark=runs_spark),
        check_clock(facts.clock, facts.disk.newest_ms),
        check_kernels(facts.kernels),
    ]
