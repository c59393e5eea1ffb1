"""Access control lists: describe, create, delete.

A resource is identified by its type, its name and how the name is matched (3 is literally). The
numbers are those of Kafka's ``ResourceType``, ``PatternType``, ``AclOperation`` and
``AclPermissionType``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.protocol.kafka.primitives import Int8, Int16, Int32, Str

# --- DescribeAcls ---------------------------------------------------------------------------


class DescribeAclsRequest(NamedTuple):
    """List the access control entries that match every filter; null matches anything."""

    resource_type_filter: Int8
    resource_name_filter: Str | None
    pattern_type_filter: Int8
    principal_filter: Str | None
    host_filter: Str | None
    operation: Int8
    permission_type: Int8


class DescribedAcl(NamedTuple):
    """Who may do, or may not do, what on a resource."""

    principal: Str
    host: Str
    operation: Int8
    permission_type: Int8


class DescribedAclResource(NamedTuple):
    """The entries of one resource."""

    resource_type: Int8
    resource_name: Str
    pattern_type: Int8
    acls: Sequence[DescribedAcl]


class DescribeAclsResponse(NamedTuple):
    """The resources with matching entries."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Str | None = None
    resources: Sequence[DescribedAclResource] = ()


# --- CreateAcls -----------------------------------------------------------------------------


class CreateAcl(NamedTuple):
    """An entry to add."""

    resource_type: Int8
    resource_name: Str
    pattern_type: Int8
    principal: Str
    host: Str
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(NamedTuple):
    """Add these entries."""

    creations: Sequence[CreateAcl]


class CreatedAcl(NamedTuple):
    """The result for one entry."""

    error_code: Int16
    error_message: Str | None = None


class CreateAclsResponse(NamedTuple):
    """The result for every entry of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[CreatedAcl] = ()


# --- DeleteAcls -----------------------------------------------------------------------------


class DeleteAclsRequest(NamedTuple):
    """Delete the entries that match any of these filters."""

    filters: Sequence[DescribeAclsRequest]


class MatchingAcl(NamedTuple):
    """An entry that a filter matched, and whether it was deleted."""

    error_code: Int16
    error_message: Str | None
    resource_type: Int8
    resource_name: Str
    pattern_type: Int8
    principal: Str
    host: Str
    operation: Int8
    permission_type: Int8


class DeletedAcls(NamedTuple):
    """The result for one filter."""

    error_code: Int16
    error_message: Str | None = None
    matching_acls: Sequence[MatchingAcl] = ()


class DeleteAclsResponse(NamedTuple):
    """The result for every filter of the request."""

    throttle_time_ms: Int32 = 0
    filter_results: Sequence[DeletedAcls] = ()
