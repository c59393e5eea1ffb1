"""DescribeConfigs and AlterConfigs: settings of topics and brokers as Kafka's tools see them.

The settings of a resource change together or not at all. A topic's settings and those of a broker
that can change while it runs are stored; log levels last until the next start. The description of a
broker includes the addresses its listeners are actually bound to, so that a client of one listener
can find the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.dynamic_settings import DynamicSettings
from cordwood.broker.kafka.broker_loggers import check_levels, described_loggers, set_levels
from cordwood.broker.kafka.config_plans import Changes, Plan, plan_changes, plan_replacement
from cordwood.broker.kafka.described_settings import (
    described_broker,
    described_level,
    described_topic,
    kafka_facts,
    trimmed,
)
from cordwood.broker.kafka.group_settings import GroupConfigs
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.config import TopicConfig, rows
from cordwood.decide.dynamic_settings import ALL_BROKERS, DynamicLevels, translate
from cordwood.errors import CordwoodError, RequestError
from cordwood.log.lifecycle.live_topics import LiveTopic
from cordwood.protocol.kafka.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    AlteredResource,
    ConfigChanges,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)

TURN_RESOURCES: Final = 10  # each has dozens of settings
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32  # resource types
_LISTED: Final = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
_ALL_TYPES_VERSION: Final = 1  # ListConfigResources before it lists client metrics only

Addresses = Callable[[], Mapping[str, Sequence[str]]]


class KafkaConfigs:
    """The handlers of four APIs."""

    def __init__(
        self,
        settings: DynamicSettings,
        topics: TopicService,
        groups: GroupConfigs,
        cluster: ClusterView,
        *,
        addresses: Addresses,
        identity: str,
    ) -> None:
        """``addresses`` returns where each listener is bound, by the name of its setting.

        ``identity`` tells the data directory from others at its path (``log.format.identity``).
        """
        self._identity = identity
        self._settings = settings
        self._cluster = cluster
        self._topics = topics
        self._groups = groups
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
        shared = _SharedSettings(request, self._settings)
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
                configs = [trimmed(each, request) for each in self._described(kind, name)]
        except CordwoodError as error:
            return DescribedResource(error.code, str(error), kind, name)
        if resource.configuration_keys is not None:
            wanted = set(resource.configuration_keys)
            configs = [each for each in configs if each.name in wanted]
        return DescribedResource(Code.NONE, None, kind, name, configs)

    def _described(self, kind: int, name: str) -> Iterator[DescribedConfig]:
        """Return the settings of a resource that is no topic; raises ``RequestError``."""
        if kind == GROUP:
            return self._groups.described(name)
        self._check_broker(kind, name)
        if kind == BROKER_LOGGER:
            return described_loggers()
        return described_level(self._settings) if name == ALL_BROKERS else self._described_broker()

    def _described_broker(self) -> Iterator[DescribedConfig]:
        bound = {name.replace("_", "."): addresses for name, addresses in self._addresses().items()}
        for each in described_broker(self._settings):
            yield each._replace(value=",".join(bound[each.name])) if each.name in bound else each
        yield from kafka_facts(self._settings.current, self._cluster, bound, self._identity)

    async def list_config_resources(
        self, request: ListConfigResourcesRequest, version: int, _session: Session
    ) -> ListConfigResourcesResponse:
        """List topics, brokers, loggers and groups with settings; there are no client metrics."""
        wanted = request.resource_types or _LISTED
        if version < _ALL_TYPES_VERSION:
            wanted = (CLIENT_METRICS,)
        if not set(wanted) <= set(_LISTED):
            return ListConfigResourcesResponse(error_code=Code.UNSUPPORTED_VERSION)
        nodes = [str(node_id) for node_id in self._cluster.node_ids]
        turns = RequestSlices()
        names = {
            TOPIC: list(self._topics.all()),
            BROKER: nodes,
            BROKER_LOGGER: nodes,
            GROUP: self._groups.names(),
        }
        return ListConfigResourcesResponse(
            config_resources=[
                ListedConfigResource(name, kind)
                for kind in dict.fromkeys(wanted)
                async for name in turns.of(names.get(kind, ()))
            ]
        )

    # --- change -----------------------------------------------------------------------------

    async def alter_configs(
        self, request: AlterConfigsRequest, _version: int, _session: Session
    ) -> AlterConfigsResponse:
        """Replace the settings of resources: those not named go back to their defaults."""
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
        plan: Callable[..., Changes],
    ) -> list[AlteredResource]:
        results = []
        repeated = _repeated(request.resources)
        resources: Sequence[AlterConfigsResource | ConfigChanges] = request.resources
        async for resource in RequestSlices(TURN_RESOURCES).of(resources):
            where = resource.resource_type, resource.resource_name
            code, text = Code.NONE, None
            try:
                if where in repeated:
                    raise RequestError("a resource is named twice; name it once")
                await self._alter(resource, plan, validate_only=request.validate_only)
            except CordwoodError as error:
                code, text = Code(error.code), str(error)
            results.append(AlteredResource(code, text, *where))
        return results

    async def _alter(
        self,
        resource: AlterConfigsResource | ConfigChanges,
        plan: Callable[..., Changes],
        *,
        validate_only: bool,
    ) -> None:
        """Change the settings of a resource, or only validate it; raises ``RequestError``."""
        kind, name, asked = resource
        if kind in (TOPIC, GROUP):
            _check_named_once(asked)
            alter = self._alter_topic if kind == TOPIC else self._groups.alter
            await alter(name, partial(plan, asked), validate_only=validate_only)
            return
        self._check_broker(kind, name)
        if kind == BROKER_LOGGER:
            _check_named_once(asked)
            if not isinstance(resource, ConfigChanges):
                raise RequestError("log levels are changed one by one; use IncrementalAlterConfigs")
            levels = check_levels(resource.configs)
            if not validate_only:
                set_levels(levels)
            return
        translated = [_translated(each) for each in asked]
        _check_named_once(translated)
        await self._alter_broker(name, partial(plan, translated), validate_only=validate_only)

    async def _alter_topic(self, name: str, plan: Plan, *, validate_only: bool) -> None:
        async with self._altering:
            topic = self._topics.get(name)
            changes = plan(topic.overrides, partial(_list_of, topic.config))
            self._topics.check_changes(name, changes)
            if not validate_only:
                await self._topics.alter(name, changes)

    async def _alter_broker(self, level: str, plan: Plan, *, validate_only: bool) -> None:
        def changes(levels: DynamicLevels) -> Changes:
            defaults = self._settings.current.topic_defaults.config
            return plan(levels.of(level), partial(_list_of, defaults))

        await self._settings.alter(level, changes, validate_only=validate_only)

    def _check_broker(self, kind: int, name: str) -> None:
        if kind not in (BROKER, BROKER_LOGGER):
            raise RequestError(
                f"resources of type {kind} have no settings; describe a topic, a broker, its "
                "loggers or a group"
            )
        node = str(self._cluster.node_id)
        if name != node and (kind, name) != (BROKER, ALL_BROKERS):
            raise RequestError(f"there is no broker {name!r}; the only broker is {node}")


def _translated(asked: Any) -> Any:
    """Return a change of a broker's setting under the name and in the unit of our table."""
    name, value = translate(asked.name, asked.value)
    return asked._replace(name=name, value=value)


def _check_named_once(asked: Sequence[Any]) -> None:
    counts = Counter(each.name for each in asked)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise RequestError(f"the setting {twice[0]} is named twice; name it once")


def _list_of(config: TopicConfig, name: str) -> frozenset[str] | None:
    field_name, kind, _ = rows(TopicConfig).get(name, ("", "", None))
    if kind != "frozenset[str]":
        return None
    words: frozenset[str] = getattr(config, field_name)
    return words


def _repeated(resources: Sequence[tuple[int, str, object]]) -> set[tuple[int, str]]:
    counts = Counter((kind, name) for kind, name, _ in resources)
    return {where for where, count in counts.items() if count > 1}


class _SharedSettings:
    """Topic settings for one reply: neighbours with the same settings share one list."""

    def __init__(self, request: DescribeConfigsRequest, settings: DynamicSettings) -> None:
        self._request = request
        self._settings = settings
        self._last: tuple[Mapping[str, str], list[DescribedConfig]] | None = None

    def of(self, topic: LiveTopic) -> list[DescribedConfig]:
        """Return every setting, with as much detail as the request asks for."""
        own = topic.overrides
        if self._last is None or self._last[0] != own:
            described = described_topic(topic.config, own, self._settings)
            self._last = own, [trimmed(each, self._request) for each in described]
        return self._last[1]
