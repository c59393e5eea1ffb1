"""Public methods declared once, as flows, for a blocking class and an async class.

``@flow_method`` turns a method that returns ``Flow[T]`` into one that returns ``T`` on a class with
``is_async = False`` and into a coroutine function on the others. Signature and docstring are those
of the declaration, for type checkers and ``help`` alike.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, overload

from cordwood.address import parse_address
from cordwood.client.effects import Flow
from cordwood.tls import ClientTls

if TYPE_CHECKING:
    from cordwood.client.aio import AsyncRunner
    from cordwood.client.blocking import BlockingRunner

P = ParamSpec("P")
T = TypeVar("T")


class Runner:
    """Runs flows on a connection of its own; ``blocking`` and ``aio`` each have one."""

    is_async: ClassVar[bool]
    _connection_type: ClassVar[type[Any]]

    def __init__(
        self,
        address: str | tuple[str, int],
        tls: ClientTls | ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        """Does not connect before a flow requests it."""
        self._address = parse_address(address)
        self._tls = tls
        self._timeout_s = timeout_s
        self._connection = self._connection_type(self._address, tls)

    def _finish(self) -> Flow[None]:
        """What remains to be done when a ``with`` block ends without an exception."""
        yield from ()


class FlowMethod(Generic[P, T]):
    """A method that is a plain function of blocking classes and a coroutine function of others."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        returns = flow.__annotations__["return"]  # for ``help``: what a caller gets
        flow.__annotations__["return"] = returns.removeprefix("Flow[").removesuffix("]")

        @wraps(flow)
        def call(runner: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return runner._run(flow(runner, *args, **kwargs))  # noqa: SLF001 - our own half

        @wraps(flow)
        async def call_async(runner: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return await runner._run(flow(runner, *args, **kwargs))  # noqa: SLF001

        self._call = call
        self._call_async = call_async
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, runner: BlockingRunner, owner: type[Runner]) -> Callable[P, T]: ...

    @overload
    def __get__(
        self, runner: AsyncRunner, owner: type[Runner]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, runner: None, owner: type[Runner]) -> Callable[..., Any]: ...

    def __get__(self, runner: Runner | None, owner: type[Runner]) -> Callable[..., Any]:
        """Return the function for this class, bound if accessed on an instance."""
        function = self._call_async if owner.is_async else self._call
        return function if runner is None else MethodType(function, runner)


flow_method = FlowMethod
