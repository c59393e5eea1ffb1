"""Kafka's classic consumer groups: an event in, instructions out.

``GroupDirectory`` is the directory a broker holds; ``Group`` is one group's state machine;
``messages`` are the events it takes, the replies it gives and the instructions it returns.
``members`` is the roster of a group and its vote, ``subscription`` the one thing read out of a
member's metadata.

The machine's life, with Kafka's names::

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                 │      ▲  ▲                            │                                │
      └──nobody left────┘      │  └──── member gone, changed or new, sync not in time ──────────┘
      │                        └───────────────────────────────┘
      └──delete──▶ Dead

The caller carries instructions out strictly in order, one list after the other: what is to be
durable is durable before the next instruction is begun, so a ``Reply`` never tells of something a
crash could take back. If making something durable fails, the caller drops what is left of that
list, answers its tokens with an error and goes on: offsets are the caller's, the group holds none.

Never here: sockets, files, the clock, logging, chance. Time and new member ids come with the event.
After a restart groups are restored Empty; members of the time before get ``UNKNOWN_MEMBER_ID`` from
the first thing they send, and join again.
"""

from cordwood.decide.groups.directory import GroupDirectory, refusal
from cordwood.decide.groups.expiry import is_expired
from cordwood.decide.groups.group import Group
from cordwood.decide.groups.messages import (
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    DeleteReply,
    EraseGroup,
    EraseOffsets,
    Event,
    Forget,
    GroupDescription,
    GroupSettings,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Instruction,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Left,
    MemberDescription,
    MemberMetadata,
    PersistGroup,
    PersistOffsets,
    Reply,
    SetTimer,
    Sync,
    SyncReply,
    Tick,
)
from cordwood.decide.groups.subscription import parse_subscription

__all__ = [
    "CommitOffsets",
    "CommitReply",
    "DeleteGroup",
    "DeleteOffsets",
    "DeleteOffsetsReply",
    "DeleteReply",
    "EraseGroup",
    "EraseOffsets",
    "Event",
    "Forget",
    "Group",
    "GroupDescription",
    "GroupDirectory",
    "GroupSettings",
    "GroupState",
    "Heartbeat",
    "HeartbeatReply",
    "Instruction",
    "Join",
    "JoinReply",
    "Leave",
    "LeaveReply",
    "Leaver",
    "Left",
    "MemberDescription",
    "MemberMetadata",
    "PersistGroup",
    "PersistOffsets",
    "Reply",
    "SetTimer",
    "Sync",
    "SyncReply",
    "Tick",
    "is_expired",
    "parse_subscription",
    "refusal",
]
