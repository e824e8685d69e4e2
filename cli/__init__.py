"""The ``bootstrap-grpc`` command: runs the service, asks it, registers by hand.

One module for each command; ``main`` finds them by name. This is the only package that puts the
server, the HTTP shim and the client together.
"""

from __future__ import annotations
