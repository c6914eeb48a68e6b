"""Split the region off an address."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from secrets import randbits
from typing import Final, cast

import polars as pl

from bansong.engine.address.batches import PreparedStep, TextIndex, scatter, variants
from bansong.engine.address.regions import (
    Head,
    Heads,
    district_words,
    districts_alone,
    fixed_district,
    following,
    heads,
    mistyped_province,
    province_words,
    provinces_by_name,
    regions,
    unspaced_heads,
)
from bansong.engine.registry import KEY, Memo

ADDED: Final[dict[str, type[pl.DataType]]] = {  # columns of `split_head`
    **dict.fromkeys(("sido", "sigungu", "sido_typed", "region_change", "region_typed", "rest", "lead"), pl.String),
    **dict.fromkeys(("sido_given", "region_conflict"), pl.Boolean),
}

_NATION: Final = "대한민국"
NO_DISTRICTS: Final = "세종특별자치시"
_NOT_AFTER_STEM: Final = "^(?:[0-9]|(?:대?로|길)(?:[0-9]|$))"
_NOT_AFTER_NARROW: Final = "^중앙로(?:[0-9]|$)"
_STATE: Final = "r:"


def split_head(frame: pl.LazyFrame, text: str) -> pl.LazyFrame:
    """Split the region off the head of ``text``: lazily add the columns :data:`ADDED`. Slow, for unusual heads."""
    whole = pl.col(text)
    abroad = pl.when(whole.str.starts_with(_NATION)).then(whole)
    within = pl.coalesce(abroad.str.strip_prefix(_NATION).str.strip_chars_start(" ,"), whole)
    work = frame.with_columns(_assign(text=within))
    for find in (_find_exact, _find_unspaced, _find_mistyped_province, _find_district_after):
        work = find(work)
    return _describe_found(work, text).select(pl.exclude(f"^{_STATE}.*$"))


def _col(name: str) -> pl.Expr:
    return pl.col(_STATE + name)


def _assign(**columns: pl.Expr) -> list[pl.Expr]:
    return [value.alias(_STATE + name) for name, value in columns.items()]


@dataclass(frozen=True)
class Catalogue:
    """All tables of heads in one: a position in a table plus the table's offset is the row of ``columns``."""

    offsets: dict[str, int]
    columns: pl.DataFrame

    def find(self, table: Heads, name: str, text: pl.Expr) -> pl.Expr:
        return table.find(text) + self.offsets[name]

    def value(self, name: str, place: pl.Expr) -> pl.Expr:
        return pl.lit(self.columns[name]).gather(place)

    def among(self, name: str, place: pl.Expr) -> pl.Expr:
        names = list(self.offsets)
        after = names[names.index(name) + 1 :]
        below = place < self.offsets[after[0]] if after else pl.lit(True)
        return (place >= self.offsets[name]) & below


@cache
def catalogue() -> Catalogue:
    """Return the table of all spellings of regions, built once a process."""
    tables = {
        "heads": heads(),
        "unspaced": unspaced_heads(),
        "alone": districts_alone(),
        "provinces": provinces_by_name(),
    }
    sizes = [len(table.meanings) for table in tables.values()]
    found = [item for table in tables.values() for item in table.meanings.items()]
    columns = pl.DataFrame(
        {
            **{name: [getattr(head, name) for _, head in found] for name in ("sido", "change", "sido_typed", "given")},
            "sigungu": [
                "" if head.sigungu is None and head.sido == NO_DISTRICTS else head.sigungu for _, head in found
            ],
            "prefix": [_prefix(head) for _, head in found],
            "text": [text for text, _ in found],
            "lonely": [head.sigungu is None for _, head in found],
            "length": [len(text) for text, _ in found],
        },
        schema_overrides=dict.fromkeys(("prefix", "length"), pl.UInt32),
    )
    return Catalogue(dict(zip(tables, accumulate([0, *sizes]), strict=False)), columns)


def _prefix(head: Head) -> int | None:
    if head.sido is None or head.sido == NO_DISTRICTS:
        return None
    return following().first.get(head.sido if head.sigungu is None else f"{head.sido} {head.sigungu}")


def _find_exact(work: pl.LazyFrame) -> pl.LazyFrame:
    known = heads()
    work = work.with_columns(_assign(words=_col("text").str.splitn(" ", 4)))
    words = [_col("words").struct.field(f"field_{place}") for place in range(4)]
    two = words[0] + " " + words[1]
    work = work.with_columns(
        _assign(p1=known.find(words[0]), p2=known.find(two), p3=known.find(two + " " + words[2]), word=words[0])
    )
    work = work.with_columns(
        _assign(place=pl.coalesce(*(_unless_road(known, _col(f"p{n}"), words[n]) for n in (3, 2, 1))))
    )
    work = work.drop(_STATE + name for name in ("words", "p1", "p2", "p3"))
    return work.with_columns(_assign(exact=_col("place"), length=catalogue().value("length", _col("place"))))


def _unless_road(known: Heads, place: pl.Expr, following: pl.Expr) -> pl.Expr:
    # a head without a suffix may begin a road: 종로 5길, 강남 대로, 서초 중앙로
    bare = pl.when(place >= known.first_bare)
    nothing = following.is_null() & ~catalogue().value("given", bare.then(place))
    road = bare.then(following).str.contains(_NOT_AFTER_STEM)
    narrow = pl.when(place >= known.first_narrow).then(following).str.contains(_NOT_AFTER_NARROW)
    out = nothing.fill_null(False) | road.fill_null(False) | narrow.fill_null(False)
    return pl.when(~out).then(place)


def _lonely() -> pl.Expr:
    return catalogue().value("lonely", _col("place")).fill_null(True)


def _find_unspaced(work: pl.LazyFrame) -> pl.LazyFrame:
    # 경기도오산시오산로, 서울서초구법원로1길
    sido = catalogue().value("sido", _col("place"))
    text = pl.when(_lonely() & (sido.is_null() | (sido != NO_DISTRICTS))).then(_col("text"))
    work = find_unspaced(work, text, _col("place").is_null())
    place = catalogue().find(unspaced_heads(), "unspaced", _col("found").str.replace_all(" ", "", literal=True))
    other = catalogue().find(heads(), "heads", pl.when(_col("place").is_null()).then(_col("found")))
    work = work.with_columns(_assign(hit=pl.coalesce(place, other)))
    return _override(work, _col("found").str.len_chars()).drop(_STATE + "found")


def _override(work: pl.LazyFrame, length: pl.Expr) -> pl.LazyFrame:
    return work.with_columns(
        _assign(
            place=pl.coalesce(_col("hit"), _col("place")),
            length=pl.when(_col("hit").is_not_null()).then(length).otherwise(_col("length")),
        )
    ).drop(_STATE + "hit")


def _find_mistyped_province(work: pl.LazyFrame) -> pl.LazyFrame:
    # 경상븍도
    word = pl.when(_col("place").is_null() & _col("word").str.contains("^[가-힣]{2,9}[시도]$")).then(_col("word"))
    work = work.with_columns(_assign(hit=mistyped_province(word) + catalogue().offsets["provinces"]))
    return _override(work, _col("word").str.len_chars())


def _find_district_after(work: pl.LazyFrame) -> pl.LazyFrame:
    # after a province typed twice or wrongly, of another province, or with a typo
    prefix = catalogue().value("prefix", _col("place"))
    waiting = pl.when(_lonely() | prefix.is_not_null())
    tail = waiting.then(_col("text")).str.slice(_col("length").fill_null(0)).str.strip_chars_start(" ")
    work = work.with_columns(_assign(prefix=prefix, tail=tail))
    work = work.with_columns(_assign(words=_col("tail").str.splitn(" ", 3)))
    words = [_col("words").struct.field(f"field_{place}") for place in range(2)]
    work = work.with_columns(_assign(**{f"fixed{n}": fixed_district(word) for n, word in enumerate(words)}))
    best = [pl.coalesce(_col(f"fixed{n}"), word) for n, word in enumerate(words)]
    work = work.with_columns(_assign(one=best[0], two=best[0] + " " + best[1]))
    elsewhere = _lonely() & catalogue().value("sido", _col("place")).is_not_null() & _col("fixed0").is_null()
    alone_ok = pl.when(elsewhere | (_col("place").is_null() & _col("fixed0").is_not_null()))
    hits = []
    for names in (_col("two"), _col("one")):
        exact = following().find(_col("prefix"), names)
        hits.append(pl.coalesce(exact, catalogue().find(districts_alone(), "alone", alone_ok.then(names))))
    work = work.with_columns(_assign(base=_col("place"), both=hits[0].is_not_null(), hit=pl.coalesce(*hits)))
    lengths = [word.str.len_chars() for word in words]
    skipped = _col("text").str.len_chars() - _col("tail").str.len_chars()
    taken = skipped + lengths[0] + pl.when("r:both").then(lengths[1] + 1).otherwise(0)
    fixed = _col("fixed0").is_not_null() | (_col("both") & _col("fixed1").is_not_null())
    work = work.with_columns(_assign(mistyped=(fixed & _col("hit").is_not_null()).fill_null(False)))
    return _override(work, taken)


def _describe_found(work: pl.LazyFrame, text: str) -> pl.LazyFrame:
    place, base = _col("place"), _col("base")
    conflict = (catalogue().among("alone", place) & base.is_not_null()).fill_null(False)
    typo = catalogue().among("provinces", base).fill_null(False) | _col("mistyped")
    typed = pl.coalesce(catalogue().value("sido_typed", base), catalogue().value("sido_typed", place))
    sido = pl.when(conflict).then(catalogue().value("sido", base)).otherwise(catalogue().value("sido", place))
    change = pl.coalesce(catalogue().value("change", place), catalogue().value("change", base))
    exact = (place == _col("exact")).fill_null(False)  # the words looked up are the words typed
    words = pl.when(place.is_not_null() & ~exact).then(_col("text")).str.head(_col("length"))
    return work.with_columns(
        sido.alias("sido"),
        catalogue().value("sigungu", place).alias("sigungu"),
        typed.is_not_null().alias("sido_given"),
        conflict.alias("region_conflict"),
        pl.when(typo).then(pl.lit("typo")).otherwise(change).alias("region_change"),
        pl.when(exact).then(catalogue().value("text", place)).otherwise(words).alias("region_typed"),
        typed.alias("sido_typed"),
        pl.when(place.is_null())
        .then(pl.col(text))
        .otherwise(_col("text").str.slice(_col("length")).str.strip_chars_start(" ,"))
        .alias("rest"),
        pl.lit(None, pl.String).alias("lead"),
    )


# What follows must not make another word of a region: 중구로, 남구청로, 여주시장길, 세종시청로 …
_NOT_AFTER: Final = "^[로길청역장민시0-9]"
_NOT_AFTER_ONE: Final = "^[로길청역장민시립내외계의0-9]"
# … unless it is long enough to be a place of its own: 장군면평기길154-1, 청진동 1, 장안읍좌천리 산12, 시청대로 78
_PLACE: Final = (
    r"^[길청역장민시립내외계의][가-힣]+(?:[읍면동리가]|[0-9][동리])(?:[^가-힣]|$|산 ?[0-9]|[가-힣]+(?:로|길)[0-9 ])"
    r"|^길동(?:[^가-힣]|$)"
)
_OF_CITY: Final = "^시[청장민립][가-힣]*(?:로|길) ?[0-9]"
_SHORT_PLACE: Final = "^[길장시내계외]동(?:[^가-힣]|$)"
_ROAD: Final = "^[길청역장민시립내외계의][가-힣0-9]{2,}(?:로|길) ?[0-9]"
_NO_ROAD: Final = "^(?:청[사역앞뒤년소]|역[전앞사]|장[앞뒤역]|시장|민[회의]|립|의[회료])"

_MAX_SHORT_CHARS: Final = 2
_TEXT: Final = "r:whole_text"
_FOUND: Final = "r:found"
_WORDS: Final = "r:found_words"
_AFTER: Final = "r:found_after"
_DOUBT: Final = "r:found_doubt"


def find_unspaced(frame: pl.LazyFrame, text: pl.Expr, nothing_before: pl.Expr) -> pl.LazyFrame:
    """Add ``r:found`` (String): the region at the head of a text if the next word is joined to it, else null."""
    # a district or a province alone only with `nothing_before`, when no region was found
    both, alone, province = _region_patterns()
    whole, without_districts = _full_provinces()
    work = frame.with_columns(text.alias(_TEXT), pl.lit(None, pl.String).alias(_FOUND))
    work = _find_kind(work, both, _NOT_AFTER, whole, short_too=True)
    work = work.with_columns(pl.when(nothing_before).then(pl.col(_TEXT)).alias(_TEXT))
    work = _find_kind(work, alone, _NOT_AFTER_ONE)
    work = _find_kind(work, province, _NOT_AFTER_ONE, without_districts)
    return work.drop(_TEXT, _WORDS, _AFTER)


def _find_kind(
    work: pl.LazyFrame, pattern: str, not_after: str, whole: str | None = None, *, short_too: bool = False
) -> pl.LazyFrame:
    # in steps, as a step within a step is done twice
    left = pl.when(pl.col(_FOUND).is_null()).then(pl.col(_TEXT))
    # several times faster than extracting a group of so many words
    work = work.with_columns(left.str.extract_all(pattern).list.first().alias(_WORDS))
    words, after = pl.col(_WORDS), pl.col(_AFTER)
    work = work.with_columns(pl.col(_TEXT).str.slice(words.str.len_chars()).alias(_AFTER))
    work = work.with_columns(after.str.contains(not_after).alias(_DOUBT))
    doubtful = pl.when(_DOUBT).then(after)
    long = doubtful.str.contains(_PLACE) | (words.str.ends_with("시") & doubtful.str.contains(_OF_CITY))
    if whole:
        official = pl.when(words.str.contains(whole)).then(doubtful)
        road = official.str.contains(_ROAD) & ~official.str.contains(_NO_ROAD)
        long = long | (road | official.str.contains(_SHORT_PLACE) if short_too else road).fill_null(False)
    work = work.with_columns(pl.when(~pl.col(_DOUBT) | long).then(words).alias(_WORDS)).drop(_DOUBT)
    return work.with_columns(pl.coalesce(_FOUND, _WORDS).alias(_FOUND))


@cache
def _region_patterns() -> tuple[str, str, str]:
    # a province with a district, a district alone, a province alone, at the head of a text, with or without a space
    provinces, districts = province_words(), district_words()
    by_itself = [word for word in districts if len(word) > _MAX_SHORT_CHARS]
    full = [word for word in provinces if len(word) > _MAX_SHORT_CHARS and word[-1] in "시도"]
    return (
        f"^(?:{'|'.join(provinces)}) ?(?:{'|'.join(districts)})",
        f"^(?:{'|'.join(by_itself)})",
        f"^(?:{'|'.join(full)})",
    )


@cache
def _full_provinces() -> tuple[str, str]:
    # with their whole name; without districts, and nothing after it
    whole = {
        text
        for province in regions().provinces
        for text, (change, _) in province.written.items()
        if change != "abbreviated"
    }
    without = [province.name for province in regions().provinces if "" in province.cities]
    return f"^(?:{'|'.join(sorted(whole))})", f"^(?:{'|'.join(without)})$"


_SHORT_CHARS: Final = 11  # 서울특별시 동대문구 고: a province and a district; few different ones in a batch
_LONG_CHARS: Final = 18  # 경상남도 창원시 마산합포구 완: a ward, or 세종특별자치시 조치원읍

_NO_DISTRICT: Final = "^[가-힣0-9]*[가-힣0-9--시군구]$"


@cache
def _find_usual() -> pl.Expr:
    # made once, for batches of a few rows; whole heads come first, the others need a look at the next word
    texts = heads().meanings
    begun = {" ".join(words[:count]) for words in map(str.split, texts) for count in range(1, len(words))}
    prefix = catalogue().columns["prefix"]
    whole: dict[str, int] = {}
    open_ended: dict[str, int] = {}
    for place, (text, head) in enumerate(texts.items()):
        if head.bare or head.sido is None:  # which 중구 it is may be said further on
            continue
        if head.sigungu is not None and prefix[place] is None and text not in begun:
            whole[text] = place
        elif (head.sigungu is not None and prefix[place] is not None) or head.sido == NO_DISTRICTS:
            open_ended[text] = place
    taken = {word for text in (*texts, *districts_alone().meanings) for word in text.split(" ")}
    taken |= {text for province in regions().provinces for text in province.written}
    found = whole | open_ended
    keys, of_heads = TextIndex(found), TextIndex(taken)
    words, known = [pl.col(f"field_{place}") for place in range(6)], []
    for count in (3, 2, 1):
        joined = words[0] if count == 1 else pl.concat_str(words[:count], separator=" ")
        number = keys.find(pl.when(words[count].is_not_null()).then(joined))
        following = pl.when(words[count + 1].is_not_null()).then(words[count])
        free = ~of_heads.holds(following) & following.str.contains(_NO_DISTRICT)
        known.append(pl.when((number < len(whole)) | free).then(number))
    return pl.lit(pl.Series(list(found.values()), dtype=pl.UInt32)).gather(pl.coalesce(known))


def find_usual_heads(texts: pl.Series) -> pl.Series:
    """Return the position in :func:`heads` (UInt32) of the head of each text; null for an unusual head."""
    short = _SHORT_BEGINNINGS.find(texts)
    if not short.null_count():
        return short
    left = short.is_null() & texts.is_not_null()
    long = _LONG_BEGINNINGS.find(texts.filter(left))
    return pl.select(pl.coalesce(short, scatter(long, left)).alias("place")).to_series()


def split_batch(texts: pl.Series) -> pl.Series:
    """Split the region off texts whose words are one space apart; return the columns :data:`ADDED` as a Struct."""
    place = find_usual_heads(texts)
    frame = pl.DataFrame({"text": texts, "place": place})
    if not place.null_count():
        return frame.select(_describe_place()).to_series()
    left = place.is_null()
    slow = split_anywhere(texts.filter(left)).select(pl.struct(*ADDED).alias("slow"))
    if len(slow) == len(texts):
        return slow.to_series()
    lines = left.cum_sum().cast(pl.UInt32) + (len(texts) - 1)
    lines = lines.zip_with(left, pl.int_range(len(texts), dtype=pl.UInt32, eager=True))
    return pl.concat([frame.select(_describe_place()).to_series(), slow.to_series()]).gather(lines)


@cache
def _describe_place() -> pl.Expr:
    place = pl.col("place")
    value = catalogue().value
    columns = {
        "sido": value("sido", place),
        "sigungu": value("sigungu", place),
        "sido_given": value("sido_typed", place).is_not_null(),
        "region_conflict": pl.lit(False),
        "region_change": value("change", place),
        "region_typed": value("text", place),
        "sido_typed": value("sido_typed", place),
        "rest": pl.col("text").str.slice(value("length", place)).str.strip_chars_start(" ,"),
        "lead": pl.lit(None, pl.String),
    }
    return pl.struct(columns[name].alias(name) for name in ADDED).alias("region")


_SEED: Final = randbits(64)


class BeginningsRead:
    """Finds heads by the first characters of a text; each distinct beginning is parsed once per process."""

    # found by their hash, faster than distinct values; its seed is new in each process, against crafted addresses

    def __init__(self, length: int, most: int = 1 << 16) -> None:
        self._beginning = pl.col("text").str.head(length)
        self._memo = Memo(most)

    def find(self, texts: pl.Series) -> pl.Series:
        read = texts.to_frame("text").select(self._beginning, self._beginning.hash(_SEED).alias(KEY))
        found = self._memo.look_up(read[KEY], lambda new: _read_beginnings(read["text"].filter(new)))
        return cast("pl.DataFrame", found)["place"]  # never None: all that is read is worth keeping


def _read_beginnings(beginnings: pl.Series) -> pl.DataFrame:
    each = beginnings.unique().alias("each")
    words = each.str.splitn(" ", 5).struct.unnest().with_columns(field_5=pl.lit(None, pl.String))
    return words.select(each.hash(_SEED).alias(KEY), _find_usual().alias("place"))


_SHORT_BEGINNINGS: Final = BeginningsRead(_SHORT_CHARS)
_LONG_BEGINNINGS: Final = BeginningsRead(_LONG_CHARS)


_SEPARATORS: Final = r"[,/:.()]"
_NUMBERED: Final = r"(?:[로길리가]|[^0-9]동) ?(?:산|지하|공중)? ?[0-9]"
_MAX_BYTES: Final = 1200
_MAX_WORDS: Final = 8
_SHORT_NAME_CHARS: Final = 2
_LABEL: Final = r"^(?:(?:[신구새현]|도로명|지번|사업장|본점|본사) ?)?(?:주소지?|소재지)$|^[0-9]{1,2}$"
_EDGES: Final = " ,/:.()-·"


def split_anywhere(texts: pl.Series) -> pl.DataFrame:
    """Split off the region, wherever it stands in a text of single spaces; return :data:`ADDED`."""
    frame = pl.DataFrame({"text": texts})
    found_at_head = _AT_HEAD.run(frame)
    lines = found_at_head.with_row_index("line")
    readable = texts.str.len_bytes() <= _MAX_BYTES
    without = frame.hstack(lines.select("line", "sigungu")).filter(found_at_head["sido"].is_null() & readable)
    words = _find_region_words(without)
    if words.is_empty():
        return found_at_head
    found = _choose_found(pl.concat([_behind_a_name(words), _at_the_end(words), _province_at_the_end(words)]))
    kept = lines.join(found, on="line", how="anti")
    return pl.concat([kept, found.select(lines.columns)]).sort("line").drop("line")


_AT_HEAD: Final = PreparedStep(lambda texts: split_head(texts, "text").select(*ADDED))


def names_region(word: pl.Expr) -> pl.Expr:
    """Whether a word is the name of a province or a district."""
    return _province_index().holds(word) | _district_index().holds(word)


def _find_region_words(texts: pl.DataFrame) -> pl.DataFrame:
    word, length = pl.col("word"), pl.col("word").str.len_chars()
    words = texts.with_columns(word=pl.col("text").str.replace_all(_SEPARATORS, " ").str.split(" ")).explode("word")
    words = words.with_columns(place=(length + 1).cum_sum().over("line") - length - 1).filter(word != "")
    words = words.with_columns(
        following=word.shift(-1).over("line"), end=(pl.col("place") + length).shift(-1).over("line")
    ).with_columns(
        is_province=_province_index().holds(word),
        is_district=_district_index().holds(word),
        follows_province=_province_index().holds(pl.col("following")),
    )
    unspaced = word.str.contains(_region_patterns()[0])
    words = words.filter((pl.col("place") > 0) & (pl.col("is_province") | pl.col("is_district") | unspaced))
    words = words.filter(pl.int_range(pl.len()).over("line") < _MAX_WORDS)
    return words.with_columns(
        before=pl.col("text").str.head(pl.col("place")).str.strip_chars_end(_EDGES),
        after=pl.col("text").str.slice(pl.col("place")),
    ).with_columns(
        numbered=pl.col("before").str.contains(_NUMBERED), numbered_after=pl.col("after").str.contains(_NUMBERED)
    )


def _behind_a_name(words: pl.DataFrame) -> pl.DataFrame:
    # `가나상사 부산 해운대구 센텀중앙로 90`: the first words are no part of the address, and are kept
    lead = pl.col("before").str.strip_chars(_EDGES)
    compact = lead.str.replace_all(" ", "")
    region = names_region(lead) | lead.is_in(_mistyped_provinces()) | compact.str.contains(_broken_provinces())
    kept = pl.when(~region & ~lead.str.contains(_LABEL)).then(lead).otherwise(pl.lit(""))
    found = words.filter(pl.col("sigungu").is_null() & ~pl.col("numbered"))
    return _as_found(found, pl.col("after"), lead=kept)


def _at_the_end(words: pl.DataFrame) -> pl.DataFrame:
    # `센텀중앙로 90, 해운대구, 부산`; not a short name of a province amid other words (부산 횟집)
    apart = ~pl.col("text").str.head(pl.col("place")).str.ends_with(".")  # 643.경기 is cut off
    turned = pl.col("is_district") & pl.col("follows_province")
    province_first = pl.concat_str("following", pl.lit(" "), "word")
    rest = pl.col("text").str.slice(pl.col("end")).str.strip_chars(_EDGES)
    head = pl.when(turned).then(pl.concat_str(province_first, rest, separator=" ")).otherwise("after")
    found = words.filter(pl.col("sigungu").is_null() & apart & pl.col("numbered") & ~pl.col("numbered_after"))
    sure = ~pl.col("is_province") | (pl.col("word").str.len_chars() > _SHORT_NAME_CHARS)
    return _as_found(found, head, body=pl.col("before"), behind=pl.col("text"), sure=sure)


def _province_at_the_end(words: pl.DataFrame) -> pl.DataFrame:
    # `중구 중앙로 3, 대구`: the province of a district that several have
    of_district = pl.col("sigungu").is_not_null() & pl.col("is_province") & ~pl.col("numbered_after")
    last = pl.col("after").str.strip_chars_end(_EDGES) == pl.col("word")
    found = words.filter(of_district & (last | (pl.col("word").str.len_chars() > _SHORT_NAME_CHARS)))
    return _as_found(found, pl.concat_str("word", pl.when(last).then("before").otherwise("text"), separator=" "))


_NO_TEXT: Final = pl.lit(None, pl.String)
_UNLESS_FOUND: Final = {"lead": pl.lit(""), "body": _NO_TEXT, "behind": _NO_TEXT, "sure": pl.lit(True)}


def _as_found(words: pl.DataFrame, head: pl.Expr, **found: pl.Expr) -> pl.DataFrame:
    return words.select("line", "place", head=head, **(_UNLESS_FOUND | found))


def _choose_found(found: pl.DataFrame) -> pl.DataFrame:
    # `head`: the text as if it began with its region; the rest of the address is `body`, if given, or the whole text
    # (`behind`) if something stands after the region
    found = found.with_columns(_AT_HEAD.run(found.select(text="head")).drop("lead"))
    named = pl.col("sido").is_not_null() | pl.col("sigungu").is_not_null()
    # 세종시, which has no districts, is as sure as one in front; at the end, or 세종 alone, it is not
    in_full = pl.col("body").is_null() & (pl.col("region_typed").str.len_chars() > _SHORT_NAME_CHARS)
    district = pl.when(pl.col("sigungu") == "").then(in_full).otherwise(pl.col("sigungu").is_not_null())
    district = district.fill_null(False)
    last = pl.col("rest").str.strip_chars(_EDGES) == ""
    found = found.filter(named & (pl.col("sure") | district | last)).with_columns(
        rest=pl.coalesce(pl.when(last).then("body"), "behind", "rest")
    )
    return found.sort("line", ~district, "place").unique("line", keep="first", maintain_order=True)


@cache
def _province_index() -> TextIndex:
    return TextIndex(province_words())


@cache
def _district_index() -> TextIndex:
    return TextIndex(dict.fromkeys(word for text in districts_alone().meanings for word in text.split(" ")))


@cache
def _broken_provinces() -> str:
    # 서울특별구, 울특별시
    begun = sorted({word[:4] for word in province_words() if len(word) > 4})
    return f"^(?:{'|'.join(begun)}).{{0,2}}$|^[가-힣]{{0,3}}(?:특별시|광역시|특별자치[시도])$"


@cache
def _mistyped_provinces() -> list[str]:
    # 서을 종로구 names no 서을
    short = [word for word in province_words() if len(word) == _SHORT_NAME_CHARS]
    typos = {other[:-1] for word in short for other in variants(word + "시") if len(other) > _SHORT_NAME_CHARS}
    return sorted(typos - set(short))


def split_region(frame: pl.LazyFrame, text: str = "text") -> pl.LazyFrame:
    """Split the region off each ``text`` (String, single spaces), usually off its head; rows and order stay.

    ``sido``, ``sigungu``: today's names, typed or the only possible; ``sigungu`` is "" in a province without districts,
    null if none is named. ``sido_given``: a province was typed; ``region_conflict``: it lacks that district.
    ``region_change``: ``typo``, ``renamed``, ``abbreviated`` or null. ``region_typed``: the words taken off;
    ``sido_typed``: the typed province's full name of its time. ``rest``, ``lead``: the text after and before it.
    """
    region = pl.col(text).map_batches(split_batch, return_dtype=pl.Struct(ADDED), is_elementwise=True)
    work = frame.with_columns(region.alias("r:region"))
    return work.with_columns(pl.col("r:region").struct.field(*ADDED)).drop("r:region")
