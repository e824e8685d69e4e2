"""Reproduce the ephemeral-port exhaustion of SGLang's PD bootstrap, and show that it is gone.

Builds two network namespaces joined by veth. The client's has few ephemeral ports (200), so that
what takes a production host minutes shows in seconds. Processes of unmodified SGLang client code
query SGLang's own server, then this project's HTTP port; then this project's clients query its
gRPC port. Needs root and the ``ip`` command; exits with 2 and the reason where it may not.

Exit status: 0 where this project's rows hold what they promise (no failed query, at most 2
client-side TIME-WAIT sockets an address, one connection per pooling process), 1 where not.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass

from harness.ending import ended_by_sigterm
from harness.load import LoadProcess, Outcome
from harness.netns import (
    NamespacePair,
    NamespacesUnavailableError,
    Path4,
    SocketCount,
    count_sockets,
)
from harness.report import ReportTable, write_section
from harness.servers import Ports, run_service, run_sglang
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from support.sglang_release import (
    NEWEST,
    UNPOOLED,
    ReleaseUnavailableError,
    install_release,
)

SERVICE = "bootstrap-grpc"
GRPC = "bootstrap-grpc client"
MAX_TIME_WAIT = 2
SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class Group:
    """Processes that do the same, from one client address."""

    label: str
    client: str
    """An SGLang release, or ``GRPC``."""
    kinds: tuple[str, ...]
    count: int
    """Queries of each kind and process."""
    pools: bool
    """Whether each process is expected to use one connection."""


@dataclass(frozen=True)
class Scenario:
    """One server, new and on a network of its own, with the groups that query it at once."""

    server: str
    """An SGLang release, or ``SERVICE``."""
    groups: tuple[Group, ...]
    busy_us: int = 0


@dataclass(frozen=True)
class Row:
    """What a group's queries came to."""

    client: str
    server: str
    kinds: str
    processes: int
    queries: int
    failures: int
    errno_99: int
    time_wait: int
    """Most client-side TIME-WAIT sockets at once; each lasts a minute."""
    established: int
    """Connections still open when all queries were done."""
    seconds: float
    promised: bool
    """Whether this project answers for the row."""
    pools: bool

    @property
    def kept(self) -> bool:
        """Whether the row holds what the project promises."""
        one_each = self.established == self.processes if self.pools else True
        return self.failures == 0 and self.time_wait <= MAX_TIME_WAIT and one_each


def scenarios(queries: int, grpc_queries: int, busy_us: int) -> list[Scenario]:
    """Return what is run, in the order of the table.

    ``query`` and ``route`` are a decode's, ``topology`` is its first contact, ``register`` is a
    prefill's call per request, ``rank`` its call at start. Newer releases pool the first two only.
    ``rank`` is left out where ports run out: SGLang retries it with pauses of up to 8 s.
    """
    per_request = ("topology", "route", "query", "register")
    unpooled = Group(f"SGLang {UNPOOLED}, unpooled", UNPOOLED, per_request, queries, pools=False)
    with_rank = (*per_request, "rank")
    unpooled_all = Group(unpooled.label, UNPOOLED, with_rank, queries, pools=False)
    pooled = Group(f"SGLang {NEWEST}, pooled", NEWEST, ("route", "query"), queries, pools=True)
    not_pooled = ("topology", "register")
    rest = Group(f"SGLang {NEWEST}, its unpooled calls", NEWEST, not_pooled, queries, pools=False)
    rest_all = Group(rest.label, NEWEST, (*not_pooled, "rank"), queries, pools=False)
    grpc = Group(GRPC, GRPC, per_request, grpc_queries, pools=True)
    ours = (unpooled_all, pooled, rest_all)
    found = [
        Scenario(UNPOOLED, (unpooled,)),
        Scenario(NEWEST, (pooled, rest)),
        Scenario(SERVICE, ours),
        Scenario(SERVICE, (grpc,)),
    ]
    if busy_us:
        found.insert(3, Scenario(SERVICE, ours, busy_us))
    return found


class SocketWatch:
    """Samples the sockets of a group while its queries run."""

    def __init__(self, pid: int, server: str) -> None:
        self._pid, self._server = pid, server
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def finish(self) -> SocketCount:
        """Stop; return the most TIME-WAIT sockets seen and the connections open now."""
        self._stop.set()
        self._thread.join()
        last = count_sockets(self._pid, self._server)
        return SocketCount(max(self._peak, last.time_wait), last.established)

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, count_sockets(self._pid, self._server).time_wait)


def run_scenario(
    scenario: Scenario, processes: int, ports: int, progress: Progress
) -> Iterator[Row]:
    """Run one scenario on namespaces of its own, so that no TIME-WAIT of another is counted."""
    with NamespacePair(ports=ports, paths=len(scenario.groups)) as net, ExitStack() as stack:
        served = stack.enter_context(_serve(scenario, net))
        teams: list[list[LoadProcess]] = []
        for group, path in zip(scenario.groups, net.paths, strict=True):
            team = [_load_process(group, path, served, net) for _ in range(processes)]
            for child in team:
                stack.callback(child.close)
            teams.append(team)
        for child in (child for team in teams for child in team):
            child.start()
        rows: list[Row | BaseException | None] = [None] * len(teams)

        def run(number: int) -> None:
            group, path = scenario.groups[number], net.paths[number]
            try:
                rows[number] = _run_group(scenario, group, path, teams[number], progress)
            except BaseException as error:
                rows[number] = error

        threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(teams))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for row in rows:
        if isinstance(row, BaseException):
            raise row
        if row is not None:
            yield row


def _run_group(
    scenario: Scenario,
    group: Group,
    path: Path4,
    team: Sequence[LoadProcess],
    progress: Progress,
) -> Row:
    watch = SocketWatch(team[0].pid, path.server)
    server = _server_label(scenario)
    task = progress.add_task(f"{group.label} → {server}", total=len(group.kinds))
    outcomes: list[Outcome] = []
    seconds = 0.0
    for kind in group.kinds:
        for child in team:
            child.begin(kind, group.count)
        answers = [child.finish() for child in team]
        outcomes += answers
        seconds += max(answer.seconds for answer in answers)
        progress.advance(task)
        if not progress.console.is_terminal:  # where no bar is drawn until the end
            progress.console.print(f"{group.label} → {server}: {kind} done in {seconds:.1f} s")
    sockets = watch.finish()
    return Row(
        client=group.label,
        server=server,
        kinds=", ".join(group.kinds),
        processes=len(team),
        queries=sum(o.queries for o in outcomes),
        failures=sum(o.failures for o in outcomes),
        errno_99=sum(o.errno_99 for o in outcomes),
        time_wait=sockets.time_wait,
        established=sockets.established,
        seconds=round(seconds, 1),
        promised=scenario.server == SERVICE,
        pools=group.pools,
    )


def _serve(scenario: Scenario, net: NamespacePair) -> AbstractContextManager[Ports]:
    if scenario.server == SERVICE:
        return run_service(NEWEST, host="0.0.0.0", prefix=net.on_server, busy_us=scenario.busy_us)
    return run_sglang(scenario.server, host="0.0.0.0", prefix=net.on_server)


def _server_label(scenario: Scenario) -> str:
    if scenario.server != SERVICE:
        return f"SGLang {scenario.server}"
    return f"{SERVICE}, busy loop" if scenario.busy_us else SERVICE


def _load_process(group: Group, path: Path4, served: Ports, net: NamespacePair) -> LoadProcess:
    if group.client == GRPC:
        return LoadProcess(f"{path.server}:{served.grpc}", None, prefix=net.on_client)
    root = install_release(group.client)
    return LoadProcess(f"{path.server}:{served.http}", root, prefix=net.on_client)


def table_of(rows: Sequence[Row]) -> ReportTable:
    """Return the rows as the one table of this benchmark."""
    table = ReportTable(
        "client code",
        "processes",
        "server",
        "calls",
        "queries",
        "failures",
        "Errno 99",
        "TIME-WAIT",
        "established",
        "seconds",
    )
    for row in rows:
        table.add(
            row.client,
            str(row.processes),
            row.server,
            row.kinds,
            f"{row.queries:,}",
            f"{row.failures:,}",
            f"{row.errno_99:,}",
            str(row.time_wait),
            str(row.established),
            f"{row.seconds:.1f}",
        )
    return table


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--processes", type=int, default=8, help="client processes per group (8)")
    add("--queries", type=int, default=1000, help="queries per process and call (1000)")
    add(
        "--grpc-queries",
        type=int,
        default=20_000,
        help="queries of each gRPC process, shared out among the calls (20000)",
    )
    add("--ports", type=int, default=200, help="ephemeral ports of the client's host (200)")
    add("--busy-us", type=int, default=200, help="step of the busy event loop, 0: leave out (200)")
    add("--quick", action="store_true", help="4 processes, 100 queries, 400 over gRPC")
    add("--json", action="store_true", help="print JSON instead of the table")
    add("--write", action="store_true", help="rewrite the section of benchmarks/README.md")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.processes, arguments.queries, arguments.grpc_queries = 4, 100, 400
    return arguments


def main() -> int:
    arguments = parse_arguments()
    rows: list[Row] = []
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("calls"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    wanted = scenarios(arguments.queries, max(1, arguments.grpc_queries // 4), arguments.busy_us)
    try:
        with ended_by_sigterm(), progress:
            for scenario in wanted:
                rows += run_scenario(scenario, arguments.processes, arguments.ports, progress)
    except (NamespacesUnavailableError, ReleaseUnavailableError) as error:
        print(f"port_exhaustion: cannot run here: {error}", file=sys.stderr)
        return 2
    broken = [row for row in rows if row.promised and not row.kept]
    table = table_of(rows)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        table.show(f"{arguments.ports} ephemeral ports on the client's host")
    if arguments.write:
        write_section(
            "port_exhaustion", [table.markdown()], command=" ".join(["python", *sys.argv])
        )
    for row in broken:
        print(f"not as promised: {row.client} → {row.server}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
