"""Error numbers are Kafka's, as an independent implementation has them."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from cordwood.codes import Code


@pytest.mark.parametrize("code", Code)
def test_a_code_has_kafkas_number(code):
    """Every name we use stands for the number another implementation gives it."""
    assert ErrorCode(code.value).name.upper() == code.name


def test_no_code_is_missing():
    """Every code the other implementation knows has a name here."""
    assert {code.value for code in Code} >= {code.value for code in ErrorCode}
