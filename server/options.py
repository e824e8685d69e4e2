"""The gRPC arguments of the server, one reason each (``docs/decisions/0003-grpc-arguments.md``)."""

from __future__ import annotations

__all__ = ["server_options"]


def server_options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Arguments for ``grpc.aio.server(options=...)``."""
    return [
        # On by default, it lets a second server bind the same port and take half of the peers.
        ("grpc.so_reuseport", 0),
        # A peer that lost its network or froze is noticed within 40 s, and its holds end.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Without it a frozen peer whose kernel still answers is noticed after 60 s only.
        ("grpc.http2.ping_timeout_ms", 10_000),
        # Clients ping every 10 s whether or not a call is open. The defaults would answer with
        # GOAWAY too_many_pings.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # From grpcio 1.82 on, more than 1,000 calls that wait to be accepted are cancelled at
        # random: a fleet that reconnects at once would lose registrations.
        ("grpc.server.max_pending_requests", 100_000),
        ("grpc.server.max_pending_requests_hard_limit", 200_000),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    ]
