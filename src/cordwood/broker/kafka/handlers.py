"""Builds every API's handler from the services, and starts and stops the coordinators."""

from __future__ import annotations

from cordwood.broker.append_notifier import AppendNotifier
from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.dynamic_settings import DynamicSettings
from cordwood.broker.kafka.acls import KafkaAcls
from cordwood.broker.kafka.admin import KafkaAdmin
from cordwood.broker.kafka.commits import KafkaCommits
from cordwood.broker.kafka.configs import Addresses, KafkaConfigs
from cordwood.broker.kafka.consumer_groups import KafkaConsumerGroups
from cordwood.broker.kafka.dispatcher import Handler
from cordwood.broker.kafka.fetch import KafkaFetch
from cordwood.broker.kafka.group_coordinator import GroupCoordinator
from cordwood.broker.kafka.group_settings import GroupConfigs
from cordwood.broker.kafka.groups import KafkaGroups
from cordwood.broker.kafka.metadata import KafkaMetadata
from cordwood.broker.kafka.offsets import KafkaOffsets
from cordwood.broker.kafka.placement import KafkaPlacement
from cordwood.broker.kafka.produce import KafkaProduce
from cordwood.broker.kafka.quorum import KafkaQuorum
from cordwood.broker.kafka.transaction_check import TransactionCheck
from cordwood.broker.kafka.transaction_coordinator import TransactionCoordinator
from cordwood.broker.kafka.transaction_markers import KafkaTransactionMarkers
from cordwood.broker.kafka.transactions import KafkaTransactions
from cordwood.broker.kafka.unsent_replies import UnsentReplies
from cordwood.broker.produce import ProduceService
from cordwood.broker.readers import ReaderService
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import BrokerConfig
from cordwood.log.lifecycle.store import Store
from cordwood.metadata.front import AsyncMetadata


class Coordinators:
    """The group and transaction coordinators, which have timers and must be started and stopped."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        topics: TopicService,
        readers: ReaderService,
        produce: ProduceService,
        metadata: AsyncMetadata,
    ) -> None:
        self.groups = GroupCoordinator(
            config=config,
            clock=clock,
            metadata=metadata,
            topics=topics,
            readers=readers,
        )
        self.transactions = TransactionCoordinator(
            config=config,
            clock=clock,
            metadata=metadata,
            topics=topics,
            produce=produce,
            groups=self.groups,
        )

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use other settings from now on."""
        self.groups.retention_ms = config.offsets_retention_ms

    def start(self) -> None:
        """Start on the running loop, after the writer; finishes transactions already decided."""
        self.groups.start()
        self.transactions.start()

    def drain(self) -> None:
        """End requests parked in a rebalance, before listeners wait for open requests."""
        self.groups.drain()
        self.transactions.drain()

    async def stop(self) -> None:
        """Stop, before the writer and the metadata close."""
        await self.transactions.stop()
        await self.groups.stop()


def kafka_handlers(
    coordinators: Coordinators,
    *,
    settings: DynamicSettings,
    clock: Clock,
    store: Store,
    cluster: ClusterView,
    topics: TopicService,
    produce: ProduceService,
    metadata: AsyncMetadata,
    notifier: AppendNotifier,
    addresses: Addresses,
    outgoing: UnsentReplies | None = None,
) -> dict[str, Handler]:
    """Return the table for ``RequestDispatcher``: one handler for each API served."""
    groups, transactions = coordinators.groups, coordinators.transactions
    described = KafkaMetadata(topics, cluster)
    acls = KafkaAcls()
    quorum = KafkaQuorum(cluster, metadata, clock, store.directory.identity.data_id)
    offsets = KafkaOffsets(topics)
    admin = KafkaAdmin(settings, store, topics, cluster)
    placement = KafkaPlacement(store, topics, cluster)
    own = GroupConfigs(settings, metadata, groups)
    configs = KafkaConfigs(
        settings, topics, own, cluster, addresses=addresses, identity=str(store.directory.identity)
    )
    members = KafkaGroups(groups, cluster)
    consumers = KafkaConsumerGroups(groups, topics)
    commits = KafkaCommits(groups, store.metadata.readers, topics, transactions.unstable)
    txn = KafkaTransactions(
        config=settings.current,
        clock=clock,
        topics=topics,
        coordinator=transactions,
        groups=groups,
    )
    return {
        "Produce": KafkaProduce(topics, produce, TransactionCheck(transactions)).produce,
        "Fetch": KafkaFetch(topics, notifier, clock, outgoing).fetch,
        "ListOffsets": offsets.list_offsets,
        "OffsetForLeaderEpoch": offsets.offset_for_leader_epoch,
        "ApiVersions": described.api_versions,
        "Metadata": described.metadata,
        "DescribeCluster": described.describe_cluster,
        "DescribeTopicPartitions": described.describe_topic_partitions,
        "FindCoordinator": members.find_coordinator,
        "JoinGroup": members.join_group,
        "SyncGroup": members.sync_group,
        "Heartbeat": members.heartbeat,
        "LeaveGroup": members.leave_group,
        "DescribeGroups": members.describe_groups,
        "ListGroups": members.list_groups,
        "DeleteGroups": members.delete_groups,
        "ConsumerGroupHeartbeat": consumers.consumer_group_heartbeat,
        "ConsumerGroupDescribe": consumers.consumer_group_describe,
        "OffsetCommit": commits.offset_commit,
        "OffsetFetch": commits.offset_fetch,
        "OffsetDelete": commits.offset_delete,
        "InitProducerId": txn.init_producer_id,
        "AddPartitionsToTxn": txn.add_partitions_to_txn,
        "AddOffsetsToTxn": txn.add_offsets_to_txn,
        "TxnOffsetCommit": txn.txn_offset_commit,
        "EndTxn": txn.end_txn,
        "WriteTxnMarkers": KafkaTransactionMarkers(topics, transactions).write_txn_markers,
        "DescribeProducers": txn.describe_producers,
        "DescribeTransactions": txn.describe_transactions,
        "ListTransactions": txn.list_transactions,
        "DescribeAcls": acls.describe_acls,
        "CreateAcls": acls.create_acls,
        "DeleteAcls": acls.delete_acls,
        "DescribeQuorum": quorum.describe_quorum,
        "CreateTopics": admin.create_topics,
        "DeleteTopics": admin.delete_topics,
        "CreatePartitions": admin.create_partitions,
        "DeleteRecords": admin.delete_records,
        "DescribeLogDirs": admin.describe_log_dirs,
        "AlterReplicaLogDirs": placement.alter_replica_log_dirs,
        "ElectLeaders": placement.elect_leaders,
        "AlterPartitionReassignments": placement.alter_partition_reassignments,
        "ListPartitionReassignments": placement.list_partition_reassignments,
        "DescribeConfigs": configs.describe_configs,
        "AlterConfigs": configs.alter_configs,
        "IncrementalAlterConfigs": configs.incremental_alter_configs,
        "ListConfigResources": configs.list_config_resources,
    }
