"""Which SGLang decode reads which SGLang prefill: through this service, and by SGLang's servers.

Drives the bootstrap code of every release of ``support.sglang_members``, installed unmodified into
a cache folder, and rewrites the generated parts of ``docs/compatibility.md`` with ``--write``.

Exit status: 0 where inside each dialect every decode reads every prefill through this service, 1
where not, 2 where a release cannot be had here.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import product

from harness import ROOT
from rich.console import Console
from rich.progress import track

# isort: split
# The harness makes these importable.
from contract.differences import DIFFERENCES, Difference
from contract.traps import COVERED, Covered

from support.sglang_matrix import Cell, Peers, served_by_sglang, served_by_us
from support.sglang_members import MEMBERS, Member
from support.sglang_release import ReleaseUnavailableError
from support.sglang_servers import HttpServer

_DOCUMENT = ROOT / "docs" / "compatibility.md"
_OMITTED = "prefill_http_port"

Matrix = Mapping[tuple[Member, Member], Cell]
Serve = Callable[[Peers, Member], AbstractContextManager[HttpServer]]

OF_E = tuple(member for member in MEMBERS if member.family == "E")


def _ours(peers: Peers, prefill: Member) -> AbstractContextManager[HttpServer]:
    return served_by_us(peers, prefill, omit=(_OMITTED,))


def measure(
    peers: Peers, serve: Serve, members: tuple[Member, ...], title: str
) -> dict[tuple[Member, Member], Cell]:
    """Return the cell of every pair (prefill, decode)."""
    cells: dict[tuple[Member, Member], Cell] = {}
    for prefill in track(members, title, console=Console(stderr=True), transient=True):
        with serve(peers, prefill) as server:
            for decode in members:
                cells[prefill, decode] = peers.read(prefill, decode, server.address)
    return cells


def drawn(matrix: Matrix, members: tuple[Member, ...]) -> str:
    """Rows are prefills, columns decodes, numbered as the rows."""
    width = max(len(member.name) for member in members)
    numbers = " ".join(f"{number:>3}" for number in range(1, len(members) + 1))
    lines = [f"{'prefill':{width + 7}} {numbers}"]
    for number, prefill in enumerate(members, start=1):
        cells = " ".join(str(matrix[prefill, decode]) for decode in members)
        lines.append(f"{number:2} {prefill.dialect:2} {prefill.name:{width}}  {cells}")
    return "\n".join(["```", *lines, "```"])


def counted(matrix: Matrix) -> tuple[int, int]:
    """Return how many pairs work, and how many there are."""
    return sum(cell.works for cell in matrix.values()), len(matrix)


def summary(columns: Mapping[str, Matrix]) -> str:
    """A table of how many pairs work: a row for each dialect, and one for all."""
    lines = [f"| pairs that work | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]

    def row(title: str, inside: Callable[[Member, Member], bool]) -> None:
        parts = (
            counted({pair: cell for pair, cell in matrix.items() if inside(*pair)})
            for matrix in columns.values()
        )
        lines.append(f"| {title} | {' | '.join(f'{ok} of {total}' for ok, total in parts)} |")

    for family in sorted({member.family for member in MEMBERS}):
        row(f"inside {family}", lambda a, b, f=family: a.family == b.family == f)
    row("of different dialects", lambda a, b: a.family != b.family)
    row("all", lambda _a, _b: True)
    return "\n".join(lines)


def origin() -> str:
    libraries = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("bootstrap-grpc", "aiohttp", "requests", "grpcio")
    )
    today = dt.datetime.now(dt.timezone.utc).date()
    return (
        f"Written by `make compatibility` on {today}: {libraries}, "
        f"Python {platform.python_version()}."
    )


def differences() -> str:
    """The deliberate differences: the table that ``tests/contract/test_releases.py`` checks."""
    by_reason: dict[str, list[Difference]] = {}
    for row in DIFFERENCES:
        by_reason.setdefault(row.reason, []).append(row)
    lines: list[str] = []
    for reason, rows in by_reason.items():
        lines += ["", reason, "", "| scenario: step | dialects | SGLang | here |"]
        lines.append("| --- | --- | ---: | ---: |")
        for row in rows:
            steps = "<br>".join(row.steps.split("|"))
            scenario = row.scenario.replace("_", " ")
            lines.append(f"| {scenario}: {steps} | {row.dialects} | {row.theirs} | {row.ours} |")
    return "\n".join(lines[1:])


def covered(kind: str) -> str:
    """What covers each trap or weakness of the protocol."""
    lines = ["| no. | what | covered by |", "| ---: | --- | --- |"]
    lines += [
        f"| {row.number} | {row.what} | {_proof(row)} |" for row in COVERED if row.kind == kind
    ]
    return "\n".join(lines)


def _proof(row: Covered) -> str:
    tests = [f"`{test.replace('::', '`: `')}`" for test in row.tests]
    return "<br>".join([*tests, row.note] if row.note else tests)


def write(sections: Mapping[str, str]) -> None:
    """Replace what stands between the marker comments of each section."""
    text = _DOCUMENT.read_text(encoding="utf-8")
    for name, body in sections.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        head, found, rest = text.partition(begin)
        _, found_end, tail = rest.partition(end)
        if not found or not found_end:
            raise ValueError(f"{_DOCUMENT} has no section {name!r}")
        text = f"{head}{begin}{body}\n{end}{tail}"
    _DOCUMENT.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite docs/compatibility.md")
    parser.add_argument(
        "--tables-only", action="store_true", help="rewrite what needs no measurement"
    )
    arguments = parser.parse_args()
    sections = {
        "differences": differences(),
        "traps": covered("trap"),
        "weaknesses": covered("weakness"),
    }
    if arguments.tables_only:
        write(sections)
        return 0
    with Peers() as peers:
        try:
            for member in MEMBERS:
                peers.root(member)
        except ReleaseUnavailableError as error:
            Console(stderr=True).print(str(error))
            return 2
        ours = measure(peers, _ours, MEMBERS, "this service")
        theirs = measure(peers, served_by_sglang, MEMBERS, "SGLang's servers")
        unomitted = measure(peers, served_by_us, OF_E, "nothing omitted")
    theirs_e = {pair: theirs[pair] for pair in product(OF_E, OF_E)}
    sections |= {
        "origin": origin(),
        "summary": summary({"this service": ours, "SGLang's own servers": theirs}),
        "ours": drawn(ours, MEMBERS),
        "theirs": drawn(theirs, MEMBERS),
        "unomitted": drawn(unomitted, OF_E),
        "theirs-e": drawn(theirs_e, OF_E),
    }
    for name in ("origin", "summary", "ours", "theirs", "unomitted", "theirs-e"):
        sys.stdout.write(f"{name}\n{sections[name]}\n\n")
    if arguments.write:
        write(sections)
    inside = {pair: cell for pair, cell in ours.items() if pair[0].family == pair[1].family}
    ok, total = counted(inside)
    return 0 if ok == total else 1


if __name__ == "__main__":
    sys.exit(main())
