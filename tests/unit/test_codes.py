"""Error codes have Kafka's numbers, compared with kio."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from cordwood.codes import Code


@pytest.mark.parametrize("code", Code)
def test_a_code_has_kafkas_number(code):
    """Every code has the same number in kio."""
    assert ErrorCode(code.value).name.upper() == code.name


def test_no_code_is_missing():
    """Every code of kio is defined."""
    assert {code.value for code in Code} >= {code.value for code in ErrorCode}
