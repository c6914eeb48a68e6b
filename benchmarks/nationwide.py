"""A synthetic nationwide set of the official address files, made from one real province by renaming.

    python benchmarks/nationwide.py OUT_DIR [--scale 1.0]

Every real district of Korea gets a copy of the province of Sejong: its own names of roads and dongs (the syllables are
permuted, so that names that are alike stay alike), its own codes and postal codes within those of the district, the
numbers as they are. About 6.4 million buildings and 1.8 million additional lots in the official shape:
`rnaddrkor_*.txt` and `jibun_rnaddrkor_*.txt`, one of each a province, CP949, `|`, no header. Sejong itself stays as it
is. A tenth of the road names is the same everywhere, as 중앙로 is.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import polars as pl

ADDRESSES = Path(__file__).parents[2] / "shared" / "data" / "address"
COLUMNS = [
    "id",
    "dong_code",
    "sido",
    "sigungu",
    "emd",
    "ri",
    "san",
    "lot_main",
    "lot_sub",
    "road_code",
    "road",
    "under",
    "main",
    "sub",
    "admin_code",
    "admin",
    "zipcode",
    "old",
    "effective",
    "apartment",
    "reason",
    "register_name",
    "building",
    "note",
]
LOT_COLUMNS = [
    "id",
    "dong_code",
    "sido",
    "sigungu",
    "emd",
    "ri",
    "san",
    "lot_main",
    "lot_sub",
    "road_code",
    "under",
    "main",
    "sub",
    "reason",
]
FILES = {
    "서울특별시": ("seoul", 10, 99),
    "부산광역시": ("busan", 460, 499),
    "대구광역시": ("daegu", 410, 439),
    "인천광역시": ("incheon", 210, 239),
    "광주광역시": ("gwangju", 610, 629),
    "대전광역시": ("daejeon", 340, 359),
    "울산광역시": ("ulsan", 440, 459),
    "세종특별자치시": ("sejong", 300, 301),
    "경기도": ("gyunggi", 100, 209),
    "강원특별자치도": ("gangwon", 240, 269),
    "충청북도": ("chungbuk", 270, 299),
    "충청남도": ("chungnam", 310, 339),
    "전북특별자치도": ("jeonbuk", 540, 569),
    "전라남도": ("jeonnam", 570, 599),
    "경상북도": ("gyeongbuk", 360, 409),
    "경상남도": ("gyeongnam", 500, 539),
    "제주특별자치도": ("jeju", 630, 639),
}
KEPT = 0.925  # of the rows of each copy, so that the districts together have as many buildings as the country
NUMBERED = re.compile(r"^(.*?)((?:대로|로|길)?[0-9]*(?:번|가)?(?:대로|로|길)|[0-9]*[읍면동리가])$")


def province() -> pl.DataFrame:
    """The rows of the real file, all columns as text."""
    return official(ADDRESSES / "rnaddrkor_sejong.txt")


def official(path: Path) -> pl.DataFrame:
    """An official file of buildings, all columns as text, nothing null."""
    text = path.read_bytes().decode("cp949").encode()
    frame = pl.read_csv(text, separator="|", has_header=False, new_columns=COLUMNS, quote_char=None, infer_schema=False)
    return frame.with_columns(pl.all().fill_null(""))


def districts() -> list[tuple[str, str, str]]:
    """(five-digit code, province, district) of every district that has no districts below it."""
    lines = (ADDRESSES / "legal_dong_codes_2025.txt").read_bytes().decode("cp949").splitlines()[1:]
    named = {}
    for line in lines:
        code, name, state = line.split("\t")
        if code.endswith("00000") and state.strip() == "존재":
            named[code[:5]] = name.strip()
    found = []
    for code, name in sorted(named.items()):
        sido, _, sigungu = name.partition(" ")
        below = any(other.startswith(f"{name} ") for other in named.values())
        if not below and (sigungu or sido == "세종특별자치시"):
            found.append((code, sido, sigungu))
    return found


def prefixes(wanted: list[tuple[str, str, str]]) -> dict[str, list[int]]:
    """The first three digits of each district's postal codes, as a public register has them; else free ones."""
    seen = pl.read_csv(ADDRESSES / "localdata_vet_half.csv", infer_schema=False).select(
        "도로명전체주소", "도로명우편번호"
    )
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    for address, zipcode in seen.drop_nulls().iter_rows():
        if re.fullmatch(r"\d{5}", zipcode):
            for code, sido, sigungu in wanted:
                if address.startswith(f"{sido} {sigungu} ".replace("  ", " ")):
                    votes[int(zipcode[:3])][code] += 1
    sidos = {code: sido for code, sido, _ in wanted}
    chosen: dict[str, list[int]] = defaultdict(list)
    for prefix, counts in sorted(votes.items()):
        for code, _ in counts.most_common(1):
            if FILES[sidos[code]][1] <= prefix <= FILES[sidos[code]][2]:
                chosen[code].append(prefix)
    taken = {prefix for values in chosen.values() for prefix in values}
    for code, sido, _ in wanted:
        if not chosen[code]:
            free = [prefix for prefix in range(FILES[sido][1], FILES[sido][2] + 1) if prefix not in taken]
            chosen[code].append(free[0])
            taken.add(free[0])
    return chosen


def renamed(names: list[str], syllables: list[str], common: set[str], seed: str) -> dict[str, str]:
    """A name of its own for each name; those of ``common`` and all numbers and endings stay."""
    dice = random.Random(seed)
    shuffled = dice.sample(syllables, len(syllables))
    swap = dict(zip(syllables, shuffled, strict=True))
    given = {}
    for name in names:
        found = NUMBERED.match(name)
        root, ending = found.groups() if found and found[1] else (name, "")
        if root in common:
            given[name] = name
            continue
        root = "".join(swap.get(letter, letter) for letter in root)
        given[name] = f"신{root}{ending}" if root in common else root + ending
    return given


def root(name: str) -> str:
    found = NUMBERED.match(name)
    return found[1] if found and found[1] else name


def copied(
    base: pl.DataFrame, district: tuple[str, str, str], firsts: list[int], words: dict[str, list[str]]
) -> pl.DataFrame:
    """The province as ``district``."""
    code, sido, sigungu = district
    roads = renamed(words["roads"], words["syllables"], set(words["common"]), f"road {code}")
    dongs = renamed(words["dongs"], words["syllables"], set(), f"dong {code}")
    codes = sorted(set(base["zipcode"].to_list()))
    each = -(-len(codes) // len(firsts))
    step = max(each // 100 + 1, 1)
    zips = {zipcode: f"{firsts[place // each]:03d}{(place % each) // step:02d}" for place, zipcode in enumerate(codes)}
    kept = base.filter(pl.Series(random.Random(f"rows {code}").choices((True, False), (KEPT, 1 - KEPT), k=base.height)))
    return kept.with_columns(
        pl.lit(sido).alias("sido"),
        pl.lit(sigungu).alias("sigungu"),
        pl.col("road").replace(roads),
        pl.col("emd", "ri", "admin").replace(dongs),
        pl.col("zipcode").replace(zips),
        *(
            pl.when(pl.col(name) == "").then(pl.lit("")).otherwise(pl.lit(code) + pl.col(name).str.slice(5)).alias(name)
            for name in ("id", "dong_code", "road_code", "admin_code")
        ),
    )


def additional(rows: pl.DataFrame, seed: str) -> pl.DataFrame:
    """Lots beside the representative ones: about a sixth of the buildings have some, few have many."""
    dice = random.Random(seed)
    counts = pl.Series("more", dice.choices((0, 1, 2, 3, 9), (840, 88, 36, 24, 12), k=rows.height))
    more = (
        rows.with_columns(counts)
        .filter(pl.col("more") > 0)
        .with_columns(pl.int_ranges(1, pl.col("more") + 1).alias("more"))
        .explode("more")
        .with_columns((pl.col("lot_sub").cast(pl.Int64) + pl.col("more")).cast(pl.String).alias("lot_sub"))
    )
    lot = ["dong_code", "san", "lot_main", "lot_sub"]
    return more.join(rows.select(lot).unique(), on=lot, how="anti", maintain_order="left").select(LOT_COLUMNS)


def make(folder: str | Path, scale: float = 1.0) -> tuple[int, int]:
    """Write the set into ``folder``; ``scale`` is the share of the districts. Returns buildings and additional lots."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    base = province()
    names = sorted(set(base["road"].to_list()))
    dongs = sorted(set(base["emd"].to_list() + base["ri"].to_list() + base["admin"].to_list()) - {""})
    roots = sorted({root(name) for name in names})
    hangul = {letter for name in [*roots, *map(root, dongs)] for letter in name if "가" <= letter <= "힣"}
    words = {
        "roads": names,
        "dongs": dongs,
        "syllables": sorted(hangul),
        "common": random.Random("common").sample(roots, len(roots) // 10),
    }
    every = districts()
    firsts = prefixes(every)
    wanted = [one for place, one in enumerate(every) if int((place + 1) * scale) > int(place * scale)]
    buildings = lots = 0
    for sido, (file, _, _) in FILES.items():
        mine = [one for one in wanted if one[1] == sido]
        if not mine:
            continue
        with (
            (folder / f"rnaddrkor_{file}.txt").open("wb") as main,
            (folder / f"jibun_rnaddrkor_{file}.txt").open("wb") as more,
        ):
            for one in mine:
                rows = base if sido == "세종특별자치시" else copied(base, one, firsts[one[0]], words)
                others = additional(rows, f"lots {one[0]}")
                for frame, target in ((rows, main), (others, more)):
                    text = frame.write_csv(separator="|", include_header=False, quote_style="never")
                    target.write(text.encode("cp949"))
                buildings, lots = buildings + rows.height, lots + others.height
    return buildings, lots


def truth(folder: str | Path, rows: int, seed: int = 0) -> pl.DataFrame:
    """``rows`` buildings drawn from the set: the official columns, and ``address`` as it is officially written."""
    files = sorted(Path(folder).glob("rnaddrkor_*.txt"))
    sizes = [file.stat().st_size for file in files]
    drawn = []
    for place, (file, size) in enumerate(zip(files, sizes, strict=True)):
        share = round(rows * sum(sizes[: place + 1]) / sum(sizes)) - round(rows * sum(sizes[:place]) / sum(sizes))
        frame = official(file)
        drawn.append(frame.sample(share, seed=seed + place, with_replacement=share > frame.height) if size else frame)
    return pl.concat(drawn).with_columns(written().alias("address"))


def written() -> pl.Expr:
    """The official form of a road address, from the official columns."""
    town = pl.when(pl.col("emd").str.contains("[읍면]$")).then(pl.col("emd")).otherwise(pl.lit(""))
    number = pl.col("main") + pl.when(pl.col("sub") == "0").then(pl.lit("")).otherwise("-" + pl.col("sub"))
    below = pl.when(pl.col("under") == "1").then(pl.lit("지하 ")).otherwise(pl.lit(""))
    dong = pl.when(town == "").then(pl.col("emd")).otherwise(pl.lit(""))
    house = pl.when(pl.col("apartment") == "1").then(pl.col("building")).otherwise(pl.lit(""))
    inside = pl.concat_str(dong, pl.when((dong != "") & (house != "")).then(pl.lit(", ")).otherwise(pl.lit("")), house)
    bracket = pl.when(inside == "").then(pl.lit("")).otherwise(pl.concat_str(pl.lit(" ("), inside, pl.lit(")")))
    words = pl.concat_str("sido", "sigungu", town, "road", separator=" ").str.replace_all(" +", " ")
    return pl.concat_str(words, pl.lit(" "), below, number, bracket)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    chosen = parser.parse_args()
    if not ADDRESSES.is_dir():
        sys.exit(f"skipped: the shared evaluation data is not at {ADDRESSES}")
    started = time.perf_counter()
    buildings, lots = make(chosen.folder, chosen.scale)
    print(
        f"{buildings:,} buildings, {lots:,} additional lots in {time.perf_counter() - started:.0f} s: {chosen.folder}"
    )


if __name__ == "__main__":
    main()
