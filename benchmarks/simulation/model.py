"""What is simulated: the sizes, and the trace of requests that all processes know.

Times are in seconds. Points in time are read from ``time.monotonic``, one clock for all processes
of a machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["LOOPS", "STEPS", "Request", "Settings", "trace"]

STEPS = ("sleep", "cpu")
LOOPS = ("overlap", "normal")


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of a run."""

    prefill: int = 2
    """Prefill schedulers, the DP ranks of one prefill server. With one, a decode need not ask."""
    decode: int = 2
    """Decode schedulers."""
    rate: float = 60.0
    """Requests a second, all together; their distances are exponential."""
    duration: float = 8.0
    """How long requests arrive."""
    step: float = 0.02
    """A decode step: one token for each running request."""
    prefill_step: float = 0.06
    """A prefill step: one batch of prompts."""
    prefill_batch: int = 4
    """Most prompts in a prefill step."""
    slots: int = 48
    """Most running requests of a decode scheduler."""
    tokens: int = 16
    """Tokens of a request: decode steps from its first token on, that one included."""
    step_kind: str = "sleep"
    """One of ``STEPS``: wait, as for a GPU, or compute in Python meanwhile."""
    loop: str = "overlap"
    """One of ``LOOPS``, SGLang's two event loops: results are awaited after, or before, the next
    step is launched. ``cpu`` steps leave nothing to overlap."""
    wait: float = 0.0
    """How long this project's decode waits for the ranks of requests that it has just taken in,
    which ``poll`` itself never does."""
    seed: int = 1
    """Of the trace."""

    def __post_init__(self) -> None:
        least = {"prefill": 2, "decode": 1, "prefill_batch": 1, "slots": 1, "tokens": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {minimum}")
        for name in ("rate", "duration", "step", "prefill_step"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be more than 0")
        if self.wait < 0:
            raise ValueError(f"wait is {self.wait}, must be at least 0")
        if self.duration > 45:
            # The kernel forgets a TIME-WAIT after 60 s, and it is counted at the end.
            raise ValueError(f"duration is {self.duration}, must be at most 45")
        for name, known in (("step_kind", STEPS), ("loop", LOOPS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be one of {known}")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the router sends it to a prefill and a decode scheduler at once."""

    number: int
    room: int
    arrival: float
    """After the start of the run."""
    prefill: int
    """The prefill scheduler, which is the DP rank that the decode has to learn."""
    decode: int


def trace(settings: Settings) -> list[Request]:
    """Return the requests in the order of arrival; equal settings give equal traces."""
    chance = random.Random(settings.seed)
    requests: list[Request] = []
    arrival = chance.expovariate(settings.rate)
    while arrival < settings.duration or not requests:
        number = len(requests)
        room = chance.getrandbits(63)
        # SGLang's default hands requests to the DP ranks of a server in turns.
        prefill, decode = number % settings.prefill, chance.randrange(settings.decode)
        requests.append(Request(number, room, arrival, prefill, decode))
        arrival += chance.expovariate(settings.rate)
    return requests
