"""Settings of topics and brokers: describe, replace, change.

A resource is named by its type (2 a topic, 4 a broker) and its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.primitives import Bool, Int8, Int16, Int32, Since, Str

# --- DescribeConfigs ------------------------------------------------------------------------


class DescribeConfigsResource(NamedTuple):
    """A resource asked about; null keys means all its settings."""

    resource_type: Int8
    resource_name: Str
    configuration_keys: Sequence[Str] | None


class DescribeConfigsRequest(NamedTuple):
    """The settings in force, if wanted with where each comes from and what it means."""

    resources: Sequence[DescribeConfigsResource]
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Since(3)] = False


class ConfigSynonym(NamedTuple):
    """Another place that sets the same thing, in order of precedence."""

    name: Str
    value: Str | None
    source: Int8


class DescribedConfig(NamedTuple):
    """One setting, its value and where that comes from."""

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
    """Every resource of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[DescribedResource] = ()


# --- AlterConfigs ---------------------------------------------------------------------------


class AlterConfig(NamedTuple):
    """A setting and its new value; null takes the default."""

    name: Str
    value: Str | None


class AlterConfigsResource(NamedTuple):
    """All the settings a resource is to have; what is not named goes back to its default."""

    resource_type: Int8
    resource_name: Str
    configs: Sequence[AlterConfig]


class AlterConfigsRequest(NamedTuple):
    """Replace the settings of these resources, or only say whether they hold."""

    resources: Sequence[AlterConfigsResource]
    validate_only: Bool


class AlteredResource(NamedTuple):
    """What became of one resource; both Alter APIs answer alike."""

    error_code: Int16
    error_message: Str | None
    resource_type: Int8
    resource_name: Str


class AlterConfigsResponse(NamedTuple):
    """Every resource of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[AlteredResource] = ()


# --- IncrementalAlterConfigs ----------------------------------------------------------------


class ConfigChange(NamedTuple):
    """A change of one setting: 0 set, 1 back to default, 2 append to a list, 3 take from it."""

    name: Str
    operation: Int8
    value: Str | None


class ConfigChanges(NamedTuple):
    """The changes of one resource."""

    resource_type: Int8
    resource_name: Str
    configs: Sequence[ConfigChange]


class IncrementalAlterConfigsRequest(NamedTuple):
    """Change these settings and no others, or only say whether they hold."""

    resources: Sequence[ConfigChanges]
    validate_only: Bool


class IncrementalAlterConfigsResponse(NamedTuple):
    """Every resource of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[AlteredResource] = ()
