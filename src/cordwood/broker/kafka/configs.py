"""DescribeConfigs and AlterConfigs: the settings tables as Kafka's tools see them, with sources.

A topic's settings can be changed, all of a request's or none. A broker's settings are read at its
start. Its description includes the addresses its listeners are actually bound to, so that a client
of one listener can find the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.config import (
    BrokerConfig,
    Row,
    TopicConfig,
    TopicDefaults,
    format_value,
    rows,
)
from cordwood.errors import CordwoodError, InvalidConfig, RequestError
from cordwood.log.format.identity import KAFKA_NAME
from cordwood.log.lifecycle.live_topics import LiveTopic
from cordwood.protocol.kafka.messages.configs import (
    AlterConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    AlteredResource,
    ConfigChange,
    ConfigChanges,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from cordwood.settings.kafka_names import TOPIC_SETTINGS

TURN_RESOURCES: Final = 10  # each has dozens of settings
TOPIC, BROKER = 2, 4  # resource types
_TOPIC_SOURCE, _STATIC_SOURCE, _DEFAULT_SOURCE = 1, 4, 5
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_INT_MAX: Final = 2**31 - 1
_TYPES: Final = {"bool": 1, "str": 2, "int": 5, "float": 6, "frozenset[str]": 7}
_TYPE_INT: Final = 3  # for an integer that fits into 32 bits

Addresses = Callable[[], Mapping[str, Sequence[str]]]
Changes = dict[str, str | None]  # dotted name → text; None resets it to the default


class KafkaConfigs:
    """The handlers of three APIs."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicService,
        cluster: ClusterView,
        addresses: Addresses,
        identity: str,
    ) -> None:
        """``addresses`` returns where each listener is bound, by the name of its setting.

        ``identity`` tells the data directory from others at its path (``log.format.identity``).
        """
        self._identity = identity
        self._config = config
        self._cluster = cluster
        self._topics = topics
        self._addresses = addresses
        self._altering = asyncio.Lock()  # no change between reading a list and appending to it

    # --- describe ---------------------------------------------------------------------------

    async def describe_configs(
        self, request: DescribeConfigsRequest, _version: int, _session: Session
    ) -> DescribeConfigsResponse:
        """Describe every setting of the resources, or the requested ones."""
        resources = {  # once each
            resource[:2]: resource async for resource in RequestSlices().of(request.resources)
        }
        turns = RequestSlices(TURN_RESOURCES)
        shared = _SharedSettings(request, self._config.topic_defaults)
        return DescribeConfigsResponse(
            results=[
                self._describe(resource, request, shared)
                async for resource in turns.of(resources.values())
            ]
        )

    def _describe(
        self,
        resource: DescribeConfigsResource,
        request: DescribeConfigsRequest,
        shared: _SharedSettings,
    ) -> DescribedResource:
        kind, name = resource.resource_type, resource.resource_name
        try:
            if kind == TOPIC:
                configs = shared.of(self._topics.get(name))
            else:
                self._check_broker(kind, name)
                # The empty name asks for dynamic settings of all brokers; there are none.
                described = self._described_broker() if name else iter(())
                configs = [_trimmed(each, request) for each in described]
        except CordwoodError as error:
            return DescribedResource(error.code, str(error), kind, name)
        if resource.configuration_keys is not None:
            wanted = set(resource.configuration_keys)
            configs = [each for each in configs if each.name in wanted]
        return DescribedResource(Code.NONE, None, kind, name, configs)

    def _described_broker(self) -> Iterator[DescribedConfig]:
        bound = {name.replace("_", "."): addresses for name, addresses in self._addresses().items()}
        for each in _described_settings(self._config):
            yield each._replace(value=",".join(bound[each.name])) if each.name in bound else each
        yield from _described_defaults(self._config.topic_defaults)
        yield from _kafka_names(self._config, self._cluster, bound, self._identity)

    # --- change -----------------------------------------------------------------------------

    async def alter_configs(
        self, request: AlterConfigsRequest, _version: int, _session: Session
    ) -> AlterConfigsResponse:
        """Replace a topic's settings: those not named go back to their defaults."""
        return AlterConfigsResponse(results=await self._alter_all(request, plan_replacement))

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, _version: int, _session: Session
    ) -> IncrementalAlterConfigsResponse:
        """Change only the named settings."""
        results = await self._alter_all(request, plan_changes)
        return IncrementalAlterConfigsResponse(results=results)

    async def _alter_all(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        plan: Callable[[Sequence[Any], LiveTopic], Changes],
    ) -> list[AlteredResource]:
        results = []
        repeated = _repeated(request.resources)
        resources: Sequence[AlterConfigsResource | ConfigChanges] = request.resources
        async for resource in RequestSlices(TURN_RESOURCES).of(resources):
            where = resource.resource_type, resource.resource_name
            names = {each.name for each in resource.configs}
            code, text = await self._alter(
                where,
                partial(plan, resource.configs),
                is_repeated=where in repeated or len(names) < len(resource.configs),
                validate_only=request.validate_only,
            )
            results.append(AlteredResource(code, text, *where))
        return results

    async def _alter(
        self,
        where: tuple[int, str],
        plan: Callable[[LiveTopic], Changes],
        *,
        is_repeated: bool,
        validate_only: bool,
    ) -> tuple[int, str | None]:
        """Apply ``plan`` to a topic's settings, or only validate it; returns code and message."""
        kind, name = where
        try:
            if is_repeated:
                raise RequestError("a resource or setting is named twice; name it once")
            if kind != TOPIC:
                self._check_broker(kind, name)
                raise RequestError(
                    "a broker's settings are read when it starts; change the config file, the "
                    "environment or the flags, and restart it"
                )
            async with self._altering:
                changes = plan(self._topics.get(name))
                self._topics.check_changes(name, changes)
                if not validate_only:
                    await self._topics.alter(name, changes)
        except CordwoodError as error:
            return error.code, str(error)
        return Code.NONE, None

    def _check_broker(self, kind: int, name: str) -> None:
        if kind != BROKER:
            raise RequestError(
                f"resources of type {kind} have no settings; describe a topic or a broker"
            )
        if name not in ("", str(self._cluster.node_id)):
            raise RequestError(
                f"there is no broker {name}; the only broker is {self._cluster.node_id}"
            )


def plan_replacement(asked: Sequence[AlterConfig], topic: LiveTopic) -> Changes:
    """Return the changes that leave exactly these settings overridden."""
    return dict.fromkeys(topic.overrides) | {each.name: each.value for each in asked}


def plan_changes(asked: Sequence[ConfigChange], topic: LiveTopic) -> Changes:
    """Resolve incremental changes; raises ``InvalidConfig`` or ``RequestError``."""
    return {each.name: _plan_change(topic.config, each) for each in asked}


def _plan_change(config: TopicConfig, change: ConfigChange) -> str | None:
    name, operation, value = change
    if operation == _DELETE:
        return None
    if value is None:
        raise RequestError(f"{name}: only a deletion (operation {_DELETE}) may omit the value")
    if operation == _SET:
        return value
    if operation not in (_APPEND, _SUBTRACT):
        raise RequestError(f"{name}: unknown operation {operation}; use 0 to 3")
    field_name, kind, _ = rows(TopicConfig).get(name, ("", "", None))
    if kind != "frozenset[str]":
        raise InvalidConfig(
            f"{name} is not a list, so it can only be set, not appended to or subtracted from"
        )
    now: frozenset[str] = getattr(config, field_name)
    words = {word.strip() for word in value.split(",")}
    return ",".join(sorted(now | words if operation == _APPEND else now - words))


def _repeated(resources: Sequence[tuple[int, str, object]]) -> set[tuple[int, str]]:
    counts = Counter((kind, name) for kind, name, _ in resources)
    return {where for where, count in counts.items() if count > 1}


# --- one setting ----------------------------------------------------------------------------


class _SharedSettings:
    """Topic settings for one reply: neighbours with the same settings share one list."""

    def __init__(self, request: DescribeConfigsRequest, defaults: TopicDefaults) -> None:
        self._request = request
        self._defaults = defaults
        self._last: tuple[Mapping[str, str], list[DescribedConfig]] | None = None

    def of(self, topic: LiveTopic) -> list[DescribedConfig]:
        """Return every setting, with as much detail as the request asks for."""
        own = topic.overrides
        if self._last is None or self._last[0] != own:
            described = described_topic(topic.config, own, self._defaults)
            self._last = own, [_trimmed(each, self._request) for each in described]
        return self._last[1]


def described_topic(
    config: TopicConfig, own: Collection[str], defaults: TopicDefaults
) -> Iterator[DescribedConfig]:
    """Return a topic's settings as Kafka shows them; ``own`` are those that it sets itself."""
    for name, (field_name, kind, row) in rows(TopicConfig).items():
        synonyms = _default_synonyms(name, defaults)
        if name in own:
            text = format_value(row, getattr(config, field_name))
            synonyms.insert(0, ConfigSynonym(name, text, _TOPIC_SOURCE))
        yield _described(name, kind, row, synonyms)


def _default_synonyms(name: str, defaults: TopicDefaults) -> list[ConfigSynonym]:
    """Return the broker-wide default, if there is one, and the built-in default."""
    field_name, _, row = rows(TopicConfig)[name]
    known = TOPIC_SETTINGS.get(name)
    broker_name = (known.broker_name if known else "") or name
    synonyms = [ConfigSynonym(broker_name, format_value(row, row.default), _DEFAULT_SOURCE)]
    if name in defaults.chosen:
        text = format_value(row, getattr(defaults.config, field_name))
        synonyms.insert(0, ConfigSynonym(broker_name, text, _STATIC_SOURCE))
    return synonyms


def _described_settings(config: BrokerConfig) -> Iterator[DescribedConfig]:
    """Yield the settings of the broker itself."""
    for name, (field_name, kind, row) in rows(BrokerConfig).items():
        value = getattr(config, field_name)
        synonyms = [ConfigSynonym(name, format_value(row, row.default), _DEFAULT_SOURCE)]
        if value != row.default:
            synonyms.insert(0, ConfigSynonym(name, format_value(row, value), _STATIC_SOURCE))
        yield _described(name, kind, row, synonyms)._replace(read_only=True)


def _described_defaults(defaults: TopicDefaults) -> Iterator[DescribedConfig]:
    """Yield the broker-wide defaults of topic settings, by our names and by Kafka's."""
    for name, (_, kind, row) in rows(TopicConfig).items():
        synonyms = _default_synonyms(name, defaults)
        for written in dict.fromkeys((name, synonyms[0].name)):
            yield _described(written, kind, row, synonyms)._replace(read_only=True)


def _described(
    name: str, kind: str, row: Row, synonyms: Sequence[ConfigSynonym]
) -> DescribedConfig:
    """Return a setting whose value and source are those of its first synonym."""
    return DescribedConfig(
        name=name,
        value=synonyms[0].value,
        read_only=False,
        config_source=synonyms[0].source,
        synonyms=synonyms,
        config_type=_type_of(kind, row),
        documentation=row.doc,
    )


def _kafka_names(
    config: BrokerConfig,
    cluster: ClusterView,
    bound: Mapping[str, Sequence[str]],
    identity: str,
) -> Iterator[DescribedConfig]:
    """Yield the values that Kafka's tools look up under Kafka's own names; they cannot be set."""
    listeners = [f"PLAINTEXT://{address}" for address in bound.get("kafka", ())]
    listeners += [f"SSL://{address}" for address in bound.get("kafka.tls", ())]
    scheme = "SSL" if config.kafka == "off" else "PLAINTEXT"
    advertised = [f"{scheme}://{config.advertised_kafka}"] if config.advertised_kafka else listeners
    values = {
        "advertised.listeners": ",".join(advertised),
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "broker.id": str(cluster.node_id),
        KAFKA_NAME: identity,
        "default.replication.factor": str(cluster.replication_factor),
        "listeners": ",".join(listeners),
        "log.dirs": str(Path(config.data).absolute()),
        "node.id": str(cluster.node_id),
    }
    for name, value in values.items():
        yield DescribedConfig(
            name, value, read_only=True, config_source=_STATIC_SOURCE, config_type=_TYPES["str"]
        )


def _type_of(kind: str, row: Row) -> int:
    fits = kind == "int" and row.high is not None and row.high <= _INT_MAX
    return _TYPE_INT if fits else _TYPES[kind]


def _trimmed(config: DescribedConfig, request: DescribeConfigsRequest) -> DescribedConfig:
    return config._replace(
        synonyms=config.synonyms if request.include_synonyms else (),
        documentation=config.documentation if request.include_documentation else None,
    )
