"""What a publisher has said and must say again: the bookkeeping of one publish stream.

Without threads or I/O. Not thread-safe: its driver calls it from one task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from bootstrap_grpc.client.recent import RecentRooms
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.model import MAX_MESSAGE_ROOMS

__all__ = ["PublisherLogic"]


MOST_IN_FLIGHT = 16
"""Messages that may wait for their acknowledgement. Past it rooms gather here, in few messages,
rather than in the buffers of the connection, in many."""


class PublisherLogic:
    """The newest rooms of this publisher, and what the service has acknowledged of them.

    A room that is sent again after a break is marked ``resend``, so that it never overwrites a
    newer rank of another publisher. Not so a room whose rank this publisher has changed: there
    the service may hold the older rank of this very publisher.
    """

    def __init__(
        self, clock: Callable[[], float], *, lifetime: float = 360.0, capacity: int = 200_000
    ) -> None:
        """``lifetime`` in seconds is the service's: older rooms need not be sent again."""
        self._clock = clock
        self._kept = RecentRooms(capacity, lifetime)
        self._unsent: dict[int, None] = {}
        self._again: dict[int, None] = {}
        self._in_flight: deque[tuple[int, list[int]]] = deque()
        self._sequence = 0
        self._server_id: str | None = None
        self.dropped = 0
        """Rooms given up unsent because more than ``capacity`` came during an outage."""

    @property
    def unacknowledged(self) -> int:
        """Rooms that the service has not confirmed; one published again counts again."""
        waiting = len(self._unsent) + len(self._again)
        return waiting + sum(len(rooms) for _, rooms in self._in_flight)

    @property
    def is_settled(self) -> bool:
        """Whether everything that was published is acknowledged."""
        return not self._unsent and not self._again and not self._in_flight

    def publish(self, room: int, dp_rank: int) -> None:
        now = self._clock()
        self._kept.put(room, dp_rank, now)
        self._again.pop(room, None)  # said anew below
        self._unsent[room] = None
        self._forget_old(now)

    def on_connect(self, server_id: str) -> None:
        """A new stream to the service that calls itself ``server_id``."""
        self._forget_old(self._clock())
        same = server_id == self._server_id
        lost = [room for _, rooms in self._in_flight for room in rooms] if same else self._kept
        self._server_id = server_id
        again = (*self._again, *lost)
        self._again = {}
        for room in again:
            kept = self._kept.get(room)
            if kept is None or room in self._unsent:
                continue
            _dp_rank, _published_at, changed = kept
            (self._unsent if changed else self._again)[room] = None
        self._in_flight.clear()

    def on_acknowledged(self, sequence: int) -> None:
        """The service has stored every message up to ``sequence``."""
        while self._in_flight and self._in_flight[0][0] <= sequence:
            self._in_flight.popleft()

    def take_message(self) -> pb.PublishDpRanksRequest | None:
        """The next message; ``None`` where everything is on its way, or enough is."""
        if len(self._in_flight) >= MOST_IN_FLIGHT:
            return None
        resend = bool(self._again)
        source = self._again if resend else self._unsent
        if not source:
            return None
        rooms = list(islice(source, MAX_MESSAGE_ROOMS))
        if len(rooms) == len(source):
            source.clear()
        else:
            for room in rooms:
                del source[room]
        self._sequence += 1
        self._in_flight.append((self._sequence, rooms))
        return pb.PublishDpRanksRequest(
            sequence=self._sequence,
            rooms=rooms,
            dp_ranks=self._kept.dp_ranks(rooms),
            resend=resend,
        )

    def _forget_old(self, now: float) -> None:
        for room in self._kept.forget_old(now):
            self._again.pop(room, None)
            if room in self._unsent:
                del self._unsent[room]
                self.dropped += 1
