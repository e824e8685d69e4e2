"""The contract: messages, service, vocabulary of values and errors.

Everything here is shared by the server and the clients; nothing here imports either. The
generated stubs are ``bootstrap_grpc.protos.bootstrap_pb2`` and ``bootstrap_pb2_grpc``.
"""

from __future__ import annotations
