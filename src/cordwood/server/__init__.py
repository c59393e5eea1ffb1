"""The listeners: sockets, deadlines and back-pressure, and nothing that decides.

Each listener feeds bytes to a sans-IO interpreter of ``wire`` and hands what comes out to a service
of ``broker``. ``server`` opens and closes them all; ``ingress``, ``control``, ``kafka`` and
``http`` are one each. A listener never touches a file and never waits for anything but its peer or
a service.
"""
