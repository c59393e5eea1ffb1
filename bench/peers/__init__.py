"""Compares cordwood with the systems that users would choose instead, on one machine in one run.

``contestants`` starts the servers, each at two levels of durability if it supports them, and names
the settings that make them equal. ``speech`` implements each protocol over a plain socket,
``client`` holds the client loops (in one child process, the same for all), and ``rdkafka`` does the
same for librdkafka. A workload is a function in ``workloads`` that measures one running server;
``plan`` visits the servers in a shuffled order, round after round; ``report`` compares the results,
and ``targets`` lists our goals. A peer that is not available is named with the reason, never left
out silently.
"""
