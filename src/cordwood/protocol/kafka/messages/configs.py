"""Settings of topics, brokers, loggers and groups: describe, replace, change, list.

A resource is identified by its type (2: topic, 4: broker, 8: loggers of a broker, 32: group)
and its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.primitives import Bool, Int8, Int16, Int32, Since, Str

# --- DescribeConfigs ------------------------------------------------------------------------


class DescribeConfigsResource(NamedTuple):
    """A resource to describe; null keys means all its settings."""

    resource_type: Int8
    resource_name: Str
    configuration_keys: Sequence[Str] | None


class DescribeConfigsRequest(NamedTuple):
    """Describe the settings in effect, optionally with their sources and documentation."""

    resources: Sequence[DescribeConfigsResource]
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Since(3)] = False


class ConfigSynonym(NamedTuple):
    """Another source of the same setting, in order of precedence."""

    name: Str
    value: Str | None
    source: Int8


class DescribedConfig(NamedTuple):
    """One setting, its value and the source of the value."""

    name: Str
    value: Str | None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: Sequence[ConfigSynonym] = ()
    config_type: Annotated[Int8, Since(3)] = 0
    documentation: Annotated[Str | None, Since(3)] = None


class DescribedResource(NamedTuple):
    """The settings of one resource."""

    error_code: Int16
    error_message: Str | None
    resource_type: Int8
    resource_name: Str
    configs: Sequence[DescribedConfig] = ()


class DescribeConfigsResponse(NamedTuple):
    """The result for every resource of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[DescribedResource] = ()


# --- AlterConfigs ---------------------------------------------------------------------------


class AlterConfig(NamedTuple):
    """A setting and its new value; null restores the default."""

    name: Str
    value: Str | None


class AlterConfigsResource(NamedTuple):
    """All settings of a resource; those not listed return to their defaults."""

    resource_type: Int8
    resource_name: Str
    configs: Sequence[AlterConfig]


class AlterConfigsRequest(NamedTuple):
    """Replace the settings of these resources, or only validate the request."""

    resources: Sequence[AlterConfigsResource]
    validate_only: Bool


class AlteredResource(NamedTuple):
    """The result for one resource; both Alter APIs share this response."""

    error_code: Int16
    error_message: Str | None
    resource_type: Int8
    resource_name: Str


class AlterConfigsResponse(NamedTuple):
    """The result for every resource of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[AlteredResource] = ()


# --- IncrementalAlterConfigs ----------------------------------------------------------------


class ConfigChange(NamedTuple):
    """A change of one setting: 0 set, 1 restore default, 2 append to a list, 3 remove from it."""

    name: Str
    operation: Int8
    value: Str | None


class ConfigChanges(NamedTuple):
    """The changes of one resource."""

    resource_type: Int8
    resource_name: Str
    configs: Sequence[ConfigChange]


class IncrementalAlterConfigsRequest(NamedTuple):
    """Change these settings and no others, or only validate the request."""

    resources: Sequence[ConfigChanges]
    validate_only: Bool


class IncrementalAlterConfigsResponse(NamedTuple):
    """The result for every resource of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[AlteredResource] = ()


# --- ListConfigResources --------------------------------------------------------------------


class ListConfigResourcesRequest(NamedTuple):
    """List the resources of these types, or of all types that can be listed."""

    resource_types: Annotated[Sequence[Int8], Since(1)] = ()


class ListedConfigResource(NamedTuple):
    """A resource with settings; version 0 lists only those of type 16, client metrics."""

    resource_name: Str
    resource_type: Annotated[Int8, Since(1)] = 16


class ListConfigResourcesResponse(NamedTuple):
    """The resources."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: Sequence[ListedConfigResource] = ()
