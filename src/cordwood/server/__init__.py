"""Listeners: sockets, deadlines and backpressure. Nothing here decides what a request means.

Each listener feeds bytes to a sans-I/O parser from ``protocol`` and hands the parsed requests to a
service of ``broker``. ``listeners`` opens and closes all of them; there is one module for each
protocol (ingress, control, Kafka, HTTP). A listener never touches a file and never waits for
anything but its peer or a service.
"""
