"""Each fault that validation can find, with its kind, record and exact boundary.

The properties of ``tests/property/test_validation.py`` rarely generate a length that is wrong by
one, so these bodies do. Both implementations must find the same fault: plain Python, and the
kernel, which reads eight bytes at a time where possible.
"""

from __future__ import annotations

import pytest

from cordwood.batch.kernels.loader import load_kernels
from cordwood.batch.record_parser import Fault
from cordwood.batch.validation import BodyCheck, walk_by_kernel, walk_plainly

# length, attributes, timestamp delta, offset delta, key and value (null), no headers
FIRST, SECOND, THIRD = "0c 00 00 00 01 01 00", "0c 00 00 02 01 01 00", "0c 00 00 04 01 01 00"

WALKS = pytest.mark.parametrize(
    "walk", [walk_plainly, walk_by_kernel], ids=lambda walk: walk.__name__
)


@pytest.fixture(scope="module", autouse=True)
def warmed():
    """Load the kernels once."""
    load_kernels()


# A first record that is invalid by itself, whatever follows it.
FAULTY = {
    "a length of five": (Fault.LENGTH, "0a 00 00 00 01 01 00"),
    "a negative length": (Fault.LENGTH, "01 00 00 00 01 01 00"),
    "a length of six bytes": (Fault.LENGTH, "8c 80 80 80 80 00 00 00 00 01 01 00"),
    "a length above 32 bits": (Fault.LENGTH, "8c 80 80 80 10 00 00 00 01 01 00"),
    "a timestamp past the record": (Fault.FIELDS, "0c 00 80 80 80 80 80 00"),
    "a timestamp of eleven bytes": (Fault.FIELDS, "20 00" + "80" * 10 + "00 00 01 01 00"),
    "a timestamp above 64 bits": (Fault.FIELDS, "1e 00" + "ff" * 9 + "02 00 01 01 00"),
    "an offset delta past the record": (Fault.FIELDS, "0c 00 00 80 80 80 80 00"),
    "an offset delta above 32 bits": (Fault.FIELDS, "14 00 00 80 80 80 80 10 01 01 00"),
    "an offset delta of one": (Fault.DELTA, "0c 00 00 02 01 01 00"),
    "an offset delta of minus one": (Fault.DELTA, "0c 00 00 01 01 01 00"),
    "a key one byte too long": (Fault.FIELDS, "0c 00 00 00 06 01 00"),
    "a key in the value's place": (Fault.FIELDS, "0c 00 00 00 04 01 00"),
    "a key of minus two": (Fault.FIELDS, "0c 00 00 00 03 01 00"),
    "a value one byte too long": (Fault.FIELDS, "0c 00 00 00 01 04 00"),
    "a value in the headers' place": (Fault.HEADERS, "0c 00 00 00 01 02 00"),
    "a null value across the record's end": (Fault.FIELDS, "0c 00 00 00 02 61 81 00"),
    "a value of minus two": (Fault.FIELDS, "0c 00 00 00 01 03 00"),
    "a negative count of headers": (Fault.HEADERS, "0c 00 00 00 01 01 01"),
    "a header behind the record": (Fault.HEADERS, "0c 00 00 00 01 01 02"),
    "half a header": (Fault.HEADERS, "0e 00 00 00 01 01 02 00"),
    "two headers in three bytes": (Fault.HEADERS, "12 00 00 00 01 01 04 00 00 00"),
    "a header without a name": (Fault.HEADERS, "10 00 00 00 01 01 02 01 01"),
    "a header name one byte too long": (Fault.HEADERS, "10 00 00 00 01 01 02 04 01"),
    "a header value one byte too long": (Fault.HEADERS, "10 00 00 00 01 01 02 00 02"),
    "a header value of minus two": (Fault.HEADERS, "10 00 00 00 01 01 02 00 03"),
    "a byte behind the fields": (Fault.SHORT, "0e 00 00 00 01 01 00 00"),
}


@WALKS
@pytest.mark.parametrize("name", FAULTY)
def test_a_record_wrong_by_one_is_found_alone_and_before_others(walk, name):
    """The fault and its record are the same, whether the body ends there or continues."""
    fault, record = FAULTY[name]
    found = BodyCheck(fault, 0)
    assert walk(bytes.fromhex(record), 1, 0) == found
    assert walk(bytes.fromhex(record + SECOND + THIRD), 3, 0) == found


@WALKS
@pytest.mark.parametrize(
    ("found", "count", "body"),
    [
        (BodyCheck(Fault.COUNT, 0), 1, ""),
        (BodyCheck(Fault.COUNT, 0), 0, ""),
        (BodyCheck(Fault.COUNT, 0), 0, FIRST),
        (BodyCheck(Fault.COUNT, 0), -1, FIRST),
        (BodyCheck(Fault.COUNT, 0), 2, FIRST + "0c 00 00 02 01 01"),
        (BodyCheck(Fault.COUNT, 0), 2**31 - 1, FIRST),
        (BodyCheck(Fault.LENGTH, 0), 1, "0e 00 00 00 01 01 00"),
        (BodyCheck(Fault.LENGTH, 1), 2, FIRST + "0e 00 00 02 01 01 00"),
        (BodyCheck(Fault.LENGTH, 1), 2, "1c 00 00 00 01 10 61 61 61 61 61 61 61 61 00"),
        (BodyCheck(Fault.SHORT, 0), 2, "0e 00 00 00 01 01 00" + SECOND),
        (BodyCheck(Fault.DELTA, 1), 2, FIRST + FIRST),
        (BodyCheck(Fault.DELTA, 1), 2, FIRST + THIRD),
        (BodyCheck(Fault.LEFT_OVER, 0), 1, FIRST + "00"),
        (BodyCheck(Fault.LEFT_OVER, 0), 1, FIRST + SECOND),
        (BodyCheck(Fault.LEFT_OVER, 1), 2, FIRST + SECOND + "00 00 00 00 00 00 00 00"),
    ],
)
def test_a_body_wrong_by_one_is_found(walk, found, count, body):
    """Counts and lengths that contradict the rest of the body are found."""
    assert walk(bytes.fromhex(body), count, 0) == found


@WALKS
@pytest.mark.parametrize(
    ("found", "count", "body"),
    [
        (BodyCheck(Fault.NONE, 0, 5, 5, 0), 1, FIRST),
        (BodyCheck(Fault.NONE, 2, 5, 5, 0), 3, FIRST + SECOND + THIRD),
        (BodyCheck(Fault.NONE, 0, 5, 5, 0), 1, "8c 80 80 80 00 00 00 00 01 01 00"),  # five bytes
        (BodyCheck(Fault.NONE, 0, 5, 5, -1), 1, "0c 00 00 00 00 01 00"),  # an empty key is a key
        (BodyCheck(Fault.NONE, 0, 5, 5, 0), 1, "10 00 00 00 01 01 02 00 01"),  # a null header value
        (BodyCheck(Fault.NONE, 1, 4, 6, 1), 2, "0c 00 01 00 00 01 00 0c 00 02 02 01 01 00"),
        (BodyCheck(Fault.NONE, 1, 4, 6, 1), 2, "0c 00 02 00 00 01 00 0c 00 01 02 01 01 00"),
        (BodyCheck(Fault.NONE, 1, 5, 5, 0), 2, "0c 00 00 00 01 01 00 0c 00 00 02 01 01 00"),
        (
            BodyCheck(Fault.NONE, 0, 5 - 2**63, 5 - 2**63, 0),
            1,
            "1e 00" + "ff" * 9 + "01 00 01 01 00",
        ),
    ],
)  # fmt: skip
def test_a_body_at_a_bound_is_taken(walk, found, count, body):
    """A valid body at a limit returns its timestamp range and its first record without a key."""
    assert walk(bytes.fromhex(body), count, 5) == found
