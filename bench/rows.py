"""The format in which every benchmark reports.

A bench module has `run()`, which returns rows; `bench.run` prints and saves them. A row holds no
verdict: the documents that quote the numbers state the targets and what they mean.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One measured number: `variant` is what varies between the rows of one `workload`."""

    workload: str
    variant: str
    value: float
    unit: str
    note: str = ""
