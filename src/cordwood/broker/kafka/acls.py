"""Access control lists: every request is refused, as Kafka does without an authorizer."""

from __future__ import annotations

from typing import Final

from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.codes import Code
from cordwood.protocol.kafka.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_REASON: Final = (
    "there is no access control: every client may do everything; restrict who can connect with "
    "mutual TLS (tls.client.ca) or a private network"
)


class KafkaAcls:
    """The handlers of three APIs."""

    async def describe_acls(
        self, _request: DescribeAclsRequest, _version: int, _session: Session
    ) -> DescribeAclsResponse:
        """Return ``SECURITY_DISABLED``: an empty list would mean that nothing is allowed."""
        return DescribeAclsResponse(error_code=Code.SECURITY_DISABLED, error_message=_REASON)

    async def create_acls(
        self, request: CreateAclsRequest, _version: int, _session: Session
    ) -> CreateAclsResponse:
        """Refuse every entry."""
        refused = CreatedAcl(Code.SECURITY_DISABLED, _REASON)
        results = await RequestSlices().map(lambda _: refused, request.creations)
        return CreateAclsResponse(results=results)

    async def delete_acls(
        self, request: DeleteAclsRequest, _version: int, _session: Session
    ) -> DeleteAclsResponse:
        """Refuse every filter."""
        refused = DeletedAcls(Code.SECURITY_DISABLED, _REASON)
        results = await RequestSlices().map(lambda _: refused, request.filters)
        return DeleteAclsResponse(filter_results=results)
