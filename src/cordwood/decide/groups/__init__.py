"""Kafka's consumer groups: a pure state machine from events to instructions.

``GroupDirectory`` holds all groups of a broker; ``Group`` is the state machine of one group;
``messages`` defines its events, replies and instructions. ``membership`` answers the requests of
members, ``generations`` rebalances them, ``members`` keeps them and selects their protocol;
``subscription`` reads the topics from a member's metadata. Groups of KIP-848 have rules of their
own in ``consumer``; ``migration`` changes a group from one kind to the other.

The states of a classic group, with Kafka's names::

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                 │      ▲  ▲                            │                                │
      └──nobody left────┘      │  └──── member gone, changed or new, sync not in time ──────────┘
      │                        └───────────────────────────────┘
      └──delete──▶ Dead

The caller executes instructions strictly in order, one list after the other. A write is durable
before the next instruction starts, so a ``Reply`` never reports something that a crash could undo.
If a durable write fails, the caller drops the rest of that list, answers its tokens with an error
and continues. This is safe because offsets are kept by the caller, never by the group; a KIP-848
group stores all its members again with its next change (``mark_unsaved``).

Never here: sockets, files, the clock, logging, randomness. Time and new member ids come with the
event. After a restart classic groups are restored as Empty; members from before the restart get
``UNKNOWN_MEMBER_ID`` for their first request and join again.
"""
