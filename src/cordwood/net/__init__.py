"""The doors: sockets, deadlines and back-pressure, and nothing that decides.

Each door feeds bytes to a sans-IO interpreter of ``wire`` and hands what comes out to a desk
of ``broker``. ``server`` opens and closes them all; ``ingress``, ``control``, ``kafka`` and
``http`` are one each. A door never touches a file and never waits for anything but its peer or a
desk.
"""
