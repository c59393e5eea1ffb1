"""Access control lists without an authorizer."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.protocol.kafka.messages.acls import (
    CreateAcl,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from support.kafka_services import KafkaServices

ANY = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
VERSIONS = (1, 2, 3)


@pytest.mark.parametrize("version", VERSIONS)
async def test_lists_are_not_described_without_an_authorizer(tmp_path, version):
    """The answer is SECURITY_DISABLED, never an empty list, and says what to use instead."""
    async with KafkaServices(tmp_path) as services:
        reply = await services.ask(ANY, version)
        assert (reply.error_code, list(reply.resources)) == (Code.SECURITY_DISABLED, [])
        assert "mutual TLS" in reply.error_message


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_change_of_a_list_is_refused_without_an_authorizer(tmp_path, version):
    """Every creation and every filter of a request gets SECURITY_DISABLED."""
    async with KafkaServices(tmp_path) as services:
        entry = CreateAcl(2, "t", 3, "User:a", "*", 3, 3)
        created = await services.ask(CreateAclsRequest([entry, entry]), version)
        assert [each.error_code for each in created.results] == [Code.SECURITY_DISABLED] * 2
        deleted = await services.ask(DeleteAclsRequest([ANY, ANY]), version)
        assert [each.error_code for each in deleted.filter_results] == [Code.SECURITY_DISABLED] * 2
