"""The one shape every benchmark reports in.

A bench module offers `run()` and returns rows; `bench.run` prints and keeps them. A row never
holds a verdict: targets and what they mean live in the documents that quote the numbers.
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
