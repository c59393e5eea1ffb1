"""Ours beside what its users would pick instead, on one machine in one run.

``contestants`` starts the servers, each at two levels of durability where it has them, and says
which settings make them equal. ``speech`` holds how each is spoken to over a plain socket,
``client`` the loops that speak (in one child process, the same for all), ``rdkafka`` the same for
librdkafka. A workload is a function in ``workloads`` that looks at one running server; ``plan``
visits the servers in a shuffled order, round after round; ``report`` compares, and ``targets``
says what we promised ourselves. A peer that cannot be had is named with the reason, never left out
in silence.
"""
