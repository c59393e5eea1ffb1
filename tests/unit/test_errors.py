"""The error table: two levels, with every attribute set."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import pytest

from cordwood import errors
from cordwood.codes import Code
from cordwood.errors import CordwoodError, RequestError, error_classes

ALL = error_classes()
FAMILIES = [kind for kind in ALL if kind.__bases__ == (CordwoodError,)]
EXIT_CODES = {1, 2, 3, 4, 5, 6, 7}  # 0 is success, 130 is Ctrl-C

HTTP_STATUSES = {400, 403, 404, 405, 409, 415, 421, 500, 503}


def test_the_table_has_every_error_of_the_module():
    """The table contains every error class of the module."""
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    assert {k for k in classes if issubclass(k, CordwoodError)} - {CordwoodError} == set(ALL)


def test_a_class_derived_elsewhere_is_not_a_row_of_the_table():
    """A class defined elsewhere is not in the table."""

    class Detailed(RequestError):
        pass

    assert Detailed in RequestError.__subclasses__()
    assert Detailed not in error_classes()


def test_http_status_is_not_derived_from_the_exit_code():
    """A class without a status of its own has that of its family, whatever its exit code is."""

    class Missing(RequestError):
        exit_code = 3

    assert Missing.http_status == RequestError.http_status == 400


def test_http_status_says_who_can_act():
    """Client errors are 4xx, an unavailable broker is 503, and corruption is 500."""
    statuses = {
        family: {kind.http_status for kind in ALL if issubclass(kind, family)}
        for family in FAMILIES
    }
    assert statuses[errors.UnavailableError] == {503}
    assert statuses[errors.CorruptionError] == {500}
    for family in (errors.RequestError, errors.ProtocolError, errors.ConfigError):
        assert all(400 <= status < 500 for status in statuses[family])


def test_families_are_the_five_of_the_house():
    """There are exactly five error families."""
    assert {family.__name__ for family in FAMILIES} == {
        "RequestError",
        "ProtocolError",
        "CorruptionError",
        "UnavailableError",
        "ConfigError",
    }


@pytest.mark.parametrize("kind", ALL)
def test_error_is_a_family_or_a_member_of_one(kind: type[CordwoodError]):
    """An error is a family or a direct subclass of one."""
    assert kind in FAMILIES or (len(kind.__bases__) == 1 and kind.__bases__[0] in FAMILIES)


@pytest.mark.parametrize("kind", ALL)
def test_error_tells_what_a_client_and_a_shell_see(kind: type[CordwoodError]):
    """Every error has a code, a name, an exit code, an HTTP status and a docstring."""
    assert isinstance(kind.code, Code)
    assert re.fullmatch(r"[A-Z][A-Z_]+", kind.name)
    assert kind.exit_code in EXIT_CODES
    assert kind.http_status in HTTP_STATUSES
    assert kind.__doc__
    assert kind.__doc__.rstrip().endswith(".")


def test_name_after_err_means_one_error():
    """The name after ``ERR`` is unique, because clients tell errors apart by it."""
    names = Counter(kind.name for kind in ALL)
    assert [name for name, count in names.items() if count > 1] == []


def test_everything_unavailable_may_be_tried_again():
    """Every unavailable error is retriable."""
    family = errors.UnavailableError
    assert all(kind.retriable for kind in ALL if issubclass(kind, family))


def test_nothing_else_in_the_module_is_an_exception():
    """Every exception of the module is a ``CordwoodError``."""
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, BaseException):
            assert issubclass(kind, CordwoodError), name
