"""What every request of the HTTP API is: a frozen struct with a method, a path and a reply type.

The broker's routing table, the clients and ``/openapi.json`` are all made from these declarations.
A GET, DELETE or PUT has its fields in the URL, a POST in a JSON body.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar, get_args

import msgspec

from cordwood.model import OFFSET_MAX

API_PREFIX: Final = "/api/v1"
OLD_PREFIX: Final = "/api"  # the same paths without a version, until the next release
TEXT_CHARS_MAX: Final = 65_536

Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]  # an offset, a number or a size

R = TypeVar("R")


class Call(msgspec.Struct, Generic[R], frozen=True, forbid_unknown_fields=True):
    """A request of the API whose reply is an ``R``; a field without a default is required."""

    route: ClassVar[tuple[str, str]]  # the method and the path below ``API_PREFIX``

    @classmethod
    def reply_type(cls) -> type[R]:
        """Return the type of the reply."""
        bases: Any = cls.__orig_bases__  # type: ignore[attr-defined]
        (reply,) = get_args(bases[0])
        return reply  # type: ignore[no-any-return]


class Done(msgspec.Struct, frozen=True):
    """The reply to a change that returns nothing."""

    ok: bool = True


class Failure(msgspec.Struct, frozen=True):
    """The reply to a request that was refused or failed."""

    error: str  # a name of docs/errors.md
    message: str
