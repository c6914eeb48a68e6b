"""Mutated files against the readers, in a process of its own: ``python tests/fuzzing.py FOLDER FIRST LAST``.

The number of a case is printed before it starts, so that a crash names it; FIRST and LAST may be it and the next.
"""

from __future__ import annotations

import faulthandler
import io
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import polars as pl

import bansong as bs
from bansong.errors import BansongError
from bansong.tables.detect import open_table, reading
from memory import peak

SECONDS = 20
MEMORY = 8 << 30
ENRICHED = 40  # one case in so many goes through all of ``enrich``
SLOW = (".xls", ".xlsb", ".ods")  # read in a process of their own: a small share of the cases
RARE = 0.02

TOKENS = [
    b'"', b"'", b",", b"\t", b"\r", b"\n", b"\r\n", b"\x00", b"\xff", b"\xfe", b"\xef\xbb\xbf", b"\xb0\xa1", b"[",
    b"]", b"{", b"}", b":", b"\\", b"\\u0000", b"\\ud800", b"1e999", b"-0", b"NaN", b"99999999999999999999", b"null",
    b"true", b"<", b">", b"&", b"&#0;", b"&a;", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"<!DOCTYPE a>", b"<row>",
    b"</row>", b"<c/>", b'r="XFD1048576"', b'r="A1"', b'r="A0"', b't="s"', b't="str"', b"<v>-1</v>", b"<v>1e308</v>",
    b'ref="A1:XFD1048576"', "사업자등록번호".encode(), "합계".encode("cp949"), b"PAR1", b"PK\x03\x04",
    b"A" * 5000, b"\x00" * 64,
]  # fmt: skip


def flipped(data: bytearray, dice: random.Random) -> bytearray:
    for _ in range(dice.choice((1, 1, 2, 8, 64))):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return data


def cut(data: bytearray, dice: random.Random) -> bytearray:
    start = dice.randrange(len(data))
    del data[start : start + dice.choice((1, 2, 16, 256, len(data)))]
    return data


def doubled(data: bytearray, dice: random.Random) -> bytearray:
    start = dice.randrange(len(data))
    piece = data[start : start + dice.choice((1, 16, 256, 4096))]
    data[start:start] = piece * dice.choice((1, 2, 50))
    return data


def spliced(data: bytearray, dice: random.Random) -> bytearray:
    for _ in range(dice.choice((1, 1, 3))):
        start = dice.randrange(len(data))
        data[start : start + dice.choice((0, 0, 1, 8))] = dice.choice(TOKENS)
    return data


def swapped(data: bytearray, dice: random.Random) -> bytearray:
    one, other = sorted(dice.randrange(len(data)) for _ in range(2))
    return data[:one] + data[other:] + data[one:other]


MUTATIONS: Sequence[Callable[[bytearray, random.Random], bytearray]] = (flipped, cut, doubled, spliced, swapped)


def mutant(seed: bytes, dice: random.Random) -> bytes:
    """Bytes like a seed's, changed in a few places; of a zip mostly one of its parts, zipped up again."""
    if seed.startswith(b"PK") and dice.random() < 0.85:
        return in_part(seed, dice)
    data = bytearray(seed)
    for _ in range(dice.choice((1, 1, 2, 4))):
        data = dice.choice(MUTATIONS)(data, dice) or bytearray(b"\n")
    return bytes(data)


def in_part(seed: bytes, dice: random.Random) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(io.BytesIO(seed)) as old, ZipFile(buffer, "w", ZIP_DEFLATED) as new:
        names = [name for name in old.namelist() if old.getinfo(name).file_size]
        sheets = [name for name in names if "sheet" in name.lower() or name == "content.xml"]
        chosen = dice.choice(sheets or names) if dice.random() < 0.6 else dice.choice(names)
        gone = dice.choice(names) if dice.random() < 0.05 else None
        for name in old.namelist():
            part = bytearray(old.read(name))
            if name == chosen:
                part = dice.choice(MUTATIONS)(part, dice)
            if name != gone:
                new.writestr(name, bytes(part))
    return buffer.getvalue()


def attempt(path: Path, whole: bool) -> str:
    """Read a file as far as its last row; return how that ended."""
    try:
        if whole:
            bs.enrich(path, path.with_name("out" + path.suffix if path.suffix in (".json", ".ndjson") else "out.csv"))
        else:
            with open_table(path) as table, reading(table):
                height = table.frame.collect(engine="streaming").height
                if height != table.count():
                    raise AssertionError(f"{height} rows collected, {table.count()} counted")
    except BansongError as error:
        return type(error).__name__
    return "table"


def main() -> None:
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seeds = sorted(path for path in folder.iterdir() if path.is_file())
    common = [path for path in seeds if path.suffix not in SLOW]
    contents = {path: path.read_bytes() for path in seeds}
    outcomes: dict[str, int] = {}
    for case in range(first, last):
        dice = random.Random(case)
        seed = dice.choice(common if dice.random() > RARE else seeds)
        work = folder / "work" / f"{first}-case{''.join(seed.suffixes)}"
        work.parent.mkdir(exist_ok=True)
        work.write_bytes(mutant(contents[seed], dice))
        print(f"{case} {seed.name}", flush=True)
        signal.alarm(SECONDS)  # not caught: a case that hangs ends the process, its number the last one printed
        try:
            outcome = attempt(work, whole=case % ENRICHED == 0)
        except BaseException:
            print(f"FAILED case {case}, seed {seed.name}\n{traceback.format_exc()}", flush=True)
            raise SystemExit(1) from None
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    signal.alarm(0)
    print(f"DONE {last - first} cases: {outcomes}, peak {peak() >> 20} MB, polars {pl.__version__}", flush=True)


if __name__ == "__main__":
    main()
