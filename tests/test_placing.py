"""Which answer belongs to which row of an upload: never at a wrong row, and at every row where it can be proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.base.schema import Answer
from bansong.purchase.proof import MatchedResults, match_results
from examples import examples

Record = tuple[str, str | None, str | None]

NUMBERS = ("1248100998", "2208162517", "1208147521", "1018100001", "2148111111")
FOREIGN = "9998877777"


@dataclass(frozen=True)
class Item:
    key: int | str | None = None
    b_no: str | None = None
    name: str | None = None
    address: str | None = None
    answer: Answer | None = None
    error: str | None = None


def key_of(b_no: str, name: str | None, address: str | None) -> bytes:
    return "\x1f".join((b_no, (name or "").strip(), (address or "").strip())).encode()


def sent(rows: Sequence[Record]) -> list[tuple[bytes, str]]:
    return [(key_of(*row), row[0]) for row in rows]


def records(rows: Sequence[Record]) -> list[tuple[str | None, str | None]]:
    return [row[1:] for row in rows]


def answer(row: object) -> Answer:
    return Answer(biz_status=f"of {row}")


def rows_placed(placed: MatchedResults) -> list[int]:
    assert {row: answer(row) for row in placed.answers} == placed.answers
    return sorted(placed.answers)


uploads = st.lists(
    st.tuples(st.sampled_from(NUMBERS), st.sampled_from([None, "가", "나"]), st.sampled_from([None, "서울", "부산"])),
    min_size=1,
    max_size=9,
    unique=True,
)
several = st.lists(
    st.tuples(st.integers(10**9, 10**10 - 1).map(str), st.none(), st.none()), min_size=1, max_size=9, unique=True
)
ECHOES = ("none", "number", "formatted", "number and name", "whole", "blanks")
KEYS = (None, "opaque", "hexadecimal", 0, 1, 2)


def echoed(row: Record, echo: str) -> dict[str, str | None]:
    b_no, name, address = row
    return {
        "none": {},
        "number": {"b_no": b_no},
        "formatted": {"b_no": f"{b_no[:3]}-{b_no[3:5]}-{b_no[5:]}"},
        "number and name": {"b_no": b_no, "name": name},
        "whole": {"b_no": b_no, "name": name, "address": address},
        "blanks": {"b_no": b_no, "name": name or "", "address": address or ""},
    }[echo]


def keyed(row: int, keys: object, as_text: bool) -> int | str | None:
    if keys is None:
        return None
    if keys == "opaque":
        return 70_000 + row * 7
    if keys == "hexadecimal":
        return f"{row:x}f{row}"
    assert isinstance(keys, int)
    return str(row + keys) if as_text else row + keys


def rendered(
    rows: Sequence[Record],
    keys: object,
    echo: str | Sequence[str],
    *,
    as_text: bool = False,
    errors: frozenset[int] = frozenset(),
) -> list[Item]:
    """All results in the order of the upload, in a dialect; ``echo`` is one for all, or one for each."""
    items = []
    for row, record in enumerate(rows):
        said: dict[str, Any] = {"key": keyed(row, keys, as_text)}
        said |= echoed(record, echo if isinstance(echo, str) else echo[row])
        told = {"error": f"error {row}"} if row in errors else {"answer": answer(row)}
        items.append(Item(**said, **told))
    return items


def foreign(data: st.DataObject, rows: int) -> Item:
    """An item of another upload: its echo says so, or its key cannot be a row's."""
    if data.draw(st.booleans(), "foreign with echo"):
        key = data.draw(st.one_of(st.none(), st.integers(0, rows + 2), st.just("x1")), "foreign key")
        return Item(key, FOREIGN, "다", "대전", answer("another"))
    return Item(data.draw(st.sampled_from([10**6, -3, "10000", "a3", None]), "foreign key"), answer=answer("another"))


@examples(800, 40)
@given(
    rows=st.one_of(uploads, several),
    keys=st.sampled_from(KEYS),
    echo=st.sampled_from([*ECHOES, "mixed"]),
    as_text=st.booleans(),
    data=st.data(),
)
def test_an_answer_is_never_placed_at_a_wrong_row(
    rows: list[Record], keys: object, echo: str, as_text: bool, data: st.DataObject
) -> None:
    errors = data.draw(st.frozensets(st.integers(0, len(rows) - 1), max_size=2), "errors")
    each = st.lists(st.sampled_from(ECHOES), min_size=len(rows), max_size=len(rows))
    kinds = data.draw(each, "echo of each") if echo == "mixed" else echo
    items = rendered(rows, keys, kinds, as_text=as_text, errors=errors)
    items = data.draw(st.lists(st.sampled_from(items), max_size=2 * len(items)), "any of them") or items
    items += [foreign(data, len(rows)) for _ in range(data.draw(st.integers(0, 2), "foreign items"))]
    items = data.draw(st.permutations(items), "order")
    placed = match_results(items, sent(rows), key_of)
    rows_placed(placed)
    assert all(fault == f"error {row}" or FOREIGN in fault for row, fault in placed.faults.items())
    assert not placed.answers.keys() & placed.faults.keys()
    assert placed.note is None or "fit no row" in placed.note


@examples(300, 20)
@given(
    rows=st.one_of(uploads, several),
    base=st.sampled_from([0, 1, 2]),
    echo=st.sampled_from(ECHOES),
    as_text=st.booleans(),
    data=st.data(),
)
def test_complete_results_with_row_keys_are_all_placed(
    rows: list[Record], base: int, echo: str, as_text: bool, data: st.DataObject
) -> None:
    errors = data.draw(st.frozensets(st.integers(0, len(rows) - 1), max_size=2), "errors")
    items = rendered(rows, base, echo, as_text=as_text, errors=errors)
    items = data.draw(
        st.permutations(items + data.draw(st.lists(st.sampled_from(items), max_size=3), "twice")), "order"
    )
    placed = match_results(items, sent(rows), key_of)
    assert rows_placed(placed) == [row for row in range(len(rows)) if row not in errors]
    assert placed.faults == {row: f"error {row}" for row in errors}
    assert placed.note is None


firms = st.integers(2, 12).map(
    lambda count: [(f"{1_000_000_007 + 13 * row}", f"상사 {row}", None) for row in range(count)]
)
branches = st.lists(
    st.tuples(
        st.sampled_from(NUMBERS), st.sampled_from(["가", "나다", "라마바"]), st.sampled_from(["서울 1", "부산 2"])
    ),
    min_size=2,
    max_size=12,
    unique=True,
)


def some(data: st.DataObject, items: Sequence[Any], why: str) -> list[Any]:
    kept = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)), why)
    return [item for item, keep in zip(items, kept, strict=True) if keep]


@examples(800, 40)
@given(rows=st.one_of(firms, branches), base=st.sampled_from([0, 1, 2]), as_text=st.booleans(), data=st.data())
def test_rows_left_out_and_numbered_anew_are_never_placed_wrongly(
    rows: list[Record], base: int, as_text: bool, data: st.DataObject
) -> None:
    kept = some(data, range(len(rows)), "taken")
    items = []
    for place_, row in enumerate(kept):
        b_no, name, address = rows[row]
        echo = data.draw(st.sampled_from(["", "b", "n", "a", "na", "bn", "bna"]), "echo")
        key = str(place_ + base) if as_text else place_ + base
        said = {"b_no": b_no if "b" in echo else None, "name": name if "n" in echo else None}
        said["address"] = address if "a" in echo else None
        items.append(Item(key, answer=answer(row), **said))
    items = some(data, items, "shown")
    items += data.draw(st.lists(st.sampled_from(items), max_size=4), "twice") if items else []
    items = data.draw(st.permutations(items), "order")
    totals = data.draw(
        st.sampled_from([(), (len(rows), len(kept)), (len(kept), len(kept)), (None, len(items))]), "totals"
    )
    known = data.draw(st.booleans(), "records")
    rows_placed(match_results(items, sent(rows), key_of, totals=totals, records=records(rows) if known else ()))


@examples(800, 40)
@given(rows=st.one_of(firms, branches), data=st.data())
def test_keys_that_say_anything_are_found_out_by_whole_echoes(rows: list[Record], data: st.DataObject) -> None:
    by_text = len({row[1:] for row in rows}) == len(rows)
    items = []
    for row, record in enumerate(rows):
        b_no, name, address = record
        key = data.draw(st.one_of(st.none(), st.integers(-1, len(rows) + 2), st.integers(0, 12).map(str)), "key")
        bare = data.draw(st.booleans(), "without number") and by_text and address is not None
        items.append(Item(key, None if bare else b_no, name, address, answer(row)))
    items = some(data, items, "shown")
    placed = match_results(items, sent(rows), key_of, records=records(rows))
    assert len(rows_placed(placed)) == len(items), "a whole echo is enough, whatever its key"


A, B, C, D = NUMBERS[:4]
BRANCHES: list[Record] = [(A, "가", "서울"), (B, "나", None), (A, "가", "부산"), (C, None, None), (A, None, None)]
OWN: list[Record] = [(number, "가", "서울") for number in NUMBERS]
TWO_NAMES: list[Record] = [(A, "가나상사", "서울"), (A, "다라물산", "부산")]
ONE_FIRM: list[Record] = [(A, "가", f"서울 {street}") for street in range(9)]
WHOLE, ONE_WHOLE = rendered(BRANCHES, None, "whole"), rendered(ONE_FIRM, 1, "whole")
NUMBERED = [Item(row, b_no, answer=answer(row)) for row, (b_no, _, _) in enumerate(BRANCHES)]
BETWEEN = [ONE_WHOLE[2], replace(ONE_WHOLE[4], b_no=None), ONE_WHOLE[6]]
SHOWN_TWICE = [Item(1, A, answer=answer(0)), Item(2, B, answer=answer(1)), Item(2, B, answer=answer("b"))]
HEADER = Item(0, error="b_no is not a number")
FROM_ZERO, FROM_ONE = (rendered(BRANCHES, base, "none") for base in (0, 1))
LATER = [Item(1, answer=answer(0)), Item(3, answer=answer(2)), Item(4, C, answer=answer(3))]
LAST_MONTH = [
    Item(0, A, "가", "광주", answer("old")),
    Item(1, B, "나", "부산", answer(1)),
    Item(2, C, answer=answer(2)),
]
PLACES: list[Record] = [(A, "가", "서울"), (B, "나", "부산"), (C, "다", "대전")]
ERRORS = [Item(0, error="주소 없음"), Item(1, answer=answer(1)), Item(1), Item(3)]
ERRORS += [Item(2, answer=answer(2), error="timeout"), Item(4, answer=answer(4), error="")]
SHORT = [Item(b_no=number, answer=answer(row)) for row, number in ((0, A), (1, B), (3, C))]
BY_NAME = [Item(b_no=A, name="다라물산", answer=answer(1))]
B_AND_A: list[Record] = [(B, None, None), (A, None, None)]
TWO_ANSWERS = [Item(key, answer=answer(text)) for key, text in ((0, "a"), (1, "b"), (1, "c"))]
FOREIGN_KEYED = [Item(row + 1, b_no, answer=answer(row)) for row, (b_no, _, _) in enumerate(BRANCHES)]
FOREIGN_KEYED[3] = Item(4, FOREIGN, answer=answer("another"))
EXCHANGED = [*NUMBERED]
EXCHANGED[1], EXCHANGED[3] = replace(EXCHANGED[1], key=3), replace(EXCHANGED[3], key=1)

# name → rows, items, options of the call, rows placed, faults by row ("": one that names both numbers)
CASES: dict[str, tuple[list[Record], list[Item], dict[str, Any], list[int], dict[int, str]]] = {
    "nothing answered": (BRANCHES, [], {}, [], {}),
    "nothing sent": ([], [Item(0, A, answer=answer(0))], {}, [], {}),
    # last month's upload has the same numbers, but other addresses; an echo without address has only its number
    "a job that is shared": (PLACES, LAST_MONTH, {"shared": True}, [1, 2], {0: ""}),
    "a job named by hand": (PLACES, LAST_MONTH, {"by_hand": True}, [1, 2], {0: ""}),
    # without the first, they may count from 2, with one left out between
    "one echo proves the base": (BRANCHES, LATER, {}, [0, 2, 3], {}),
    "one echo proves no base alone": (BRANCHES, LATER[1:], {}, [3], {}),
    # 0 and 1 may as well be no and yes
    "a key with two answers": (BRANCHES, TWO_ANSWERS, {}, [], {}),
    "all keys, one with two answers": (BRANCHES, [*FROM_ZERO, Item(3, answer=answer("b"))], {}, [], {}),
    # proven by the echoes; the row that was answered twice is not guessed at, the others stand
    "a row with two answers": (BRANCHES, SHOWN_TWICE, {}, [0], {1: "two different answers"}),
    "the same answer twice": (BRANCHES, [Item(b_no=B, answer=answer(1))] * 2, {}, [1], {}),
    # an error outweighs an answer; an empty item says nothing against one
    "errors and empty items": (
        BRANCHES,
        ERRORS,
        {},
        [1, 4],
        {0: "주소 없음", 2: "timeout", 3: "the service gave no answer"},
    ),
    # an error that repeats nothing may be nobody's
    "a header read as a row": (BRANCHES, [HEADER, *FROM_ONE], {}, [0, 1, 2, 3, 4], {}),
    "a header and some rows": (BRANCHES, [HEADER, FROM_ONE[2], FROM_ONE[3]], {}, [], {}),
    # neither its key nor its answer counts
    "a foreign item with a row key": (BRANCHES, FOREIGN_KEYED, {}, [0, 1, 2, 4], {3: ""}),
    # numbers sent once still place their answers, the branches stay open
    "two keys are exchanged": (BRANCHES, EXCHANGED, {}, [1, 3], {}),
    # no addresses are repeated, so a branch looks like the row that was sent without name and address
    "a short echo": (BRANCHES, SHORT, {}, [1, 3], {}),
    # A without name and address stays open as long as another of A is missing
    "whole echoes, one of A missing": (BRANCHES, [WHOLE[4], WHOLE[2], WHOLE[3]], {}, [2, 3], {}),
    "whole echoes of all of A": (BRANCHES, [WHOLE[4], WHOLE[2], WHOLE[0]], {}, [0, 2, 4], {}),
    # one firm with many branches: the number says nothing, the address does; a row before may be left out
    "one firm, whole echoes": (ONE_FIRM, BETWEEN, {}, [2, 4, 6], {}),
    "one firm, fewer": (ONE_FIRM, BETWEEN[:2], {}, [2], {}),
    "one firm, fewer, with its records": (ONE_FIRM, BETWEEN[:2], {"records": records(ONE_FIRM)}, [2, 4], {}),
    "one firm, another name": (TWO_NAMES, BY_NAME, {"records": records(TWO_NAMES)}, [1], {}),
    # a number may be echoed in any notation; one that cannot be read neither places nor speaks against a key
    **{
        f"the number as {b_no!r}": (B_AND_A, [Item(b_no=b_no, answer=answer(1))], {}, [1], {})
        for b_no in ("124-81-00998", " 124 81 00998", "１２４８１００９９８", "1248100998.0")
    },
    **{
        f"no number {b_no!r}": (BRANCHES, [Item(b_no=b_no, answer=answer(0))], {}, [], {})
        for b_no in ("", "-", "124-81-*****", "0000000000", "1.248E+09")
    },
    "no number beside keys": (BRANCHES, [Item(0, "-", answer=answer(0)), Item(4, answer=answer(4))], {}, [0, 4], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_placed_where_it_is_proven_and_nowhere_else(name: str) -> None:
    rows, items, options, wanted, faults = CASES[name]
    placed = match_results(items, sent(rows), key_of, **options)
    assert rows_placed(placed) == wanted
    assert placed.faults == {row: said or placed.faults[row] for row, said in faults.items()}


def test_an_answer_to_another_number_under_a_rows_key_is_a_fault_that_names_both() -> None:
    """The row is not left as if it had not been answered, which would buy it again; it got nothing of the answer."""
    items = [Item(place, *row, answer=answer(row)) for place, row in enumerate(OWN)]
    items[2] = Item(2, FOREIGN, answer=answer("another"))
    placed = match_results(items, sent(OWN), key_of, records=records(OWN))
    assert (sorted(placed.answers), list(placed.faults)) == ([0, 1, 3, 4], [2])
    assert FOREIGN in placed.faults[2]
    assert NUMBERS[2] in placed.faults[2]


def test_ranks_are_no_row_keys() -> None:
    rows: list[Record] = [(f"{1_000_000_007 + 13 * row}", None, None) for row in range(30)]
    risks = [Answer("active", bounce_prob=(row * 7) % 30 / 30) for row in range(30)]
    ranked = sorted(risks, key=lambda risk: -(risk.bounce_prob or 0))
    by_rank, own, in_order = (
        [Item(key, answer=risk) for key, risk in keyed]
        for keyed in (enumerate(ranked), ((risks.index(risk), risk) for risk in ranked), enumerate(risks))
    )
    found = [len(match_results(items, sent(rows), key_of).answers) for items in (by_rank, own, in_order)]
    assert found == [0, 30, 30], "sorted, but with the rows' own keys, they are placed"


@pytest.mark.parametrize(
    ("keys", "base"),
    [
        ([0], None),  # of rows left out and the others numbered anew, any
        ([6], 2),
        ([1, 5], 1),
        ([0, 4], 0),
        (["0002", "0006"], 2),
        ([1], None),  # 0 or 1
        ([5], None),  # 1 or 2
        ([1, 2, 3, 4], None),
        ([0, 5], None),  # no base at all
        ([7], None),
        ([-1], None),
        (["0", "1a"], None),  # opaque
        ([True, 5], None),
        (["9" * 5000], None),
    ],
)
def test_keys_without_echo_count_only_if_one_base_is_left(keys: list[int | str], base: int | None) -> None:
    rows = [int(key) - base if base is not None else 0 for key in keys]
    items = [Item(key, answer=answer(row)) for key, row in zip(keys, rows, strict=True)]
    placed = match_results(items, sent(BRANCHES), key_of)
    assert rows_placed(placed) == (rows if base is not None else [])
    assert (placed.note is None) == (base is not None)


@pytest.mark.parametrize(
    ("keys", "totals", "shared", "believed"),
    [
        ([0, 1, 2, 3], (5, 4), False, False),  # a row was left out, and the others may be numbered anew
        ([0, 1, 2, 4], (5, 4), False, True),  # one was left out, and the others kept their numbers
        ([0, 1, 2, 3, 4], (None, 500), False, False),  # the first of another's job
        ([0, 1, 2], (0, 5), False, False),  # not all are shown, or others than these
        ([0, 1, 2, 3, 4], (6, None), False, True),  # the header counts
        ([0, 1, 2, 3, 4], (5, 5), True, False),
    ],
)
def test_keys_that_may_count_other_rows_need_an_echo(
    keys: list[int], totals: tuple[int | None, ...], shared: bool, believed: bool
) -> None:
    items = [Item(key, answer=answer(key)) for key in keys]
    placed = match_results(items, sent(BRANCHES), key_of, totals=totals, shared=shared)
    assert rows_placed(placed) == (keys if believed else [])
    said = [replace(item, b_no=BRANCHES[key][0]) for item, key in zip(items, keys, strict=True)]
    proven = [key for key in keys if key < 2 or {3, 4} & {*keys}]  # the third is a branch of A, which one is open
    assert rows_placed(match_results(said, sent(BRANCHES), key_of, totals=totals, shared=shared)) == proven


def many(count: int) -> list[Record]:
    """Distinct numbers in no order, but for two of them that are there three times, side by side and apart."""
    numbers = [f"{1 + row * 7919 % 899:03}81{row * 104_729 % 99_991:05}" for row in range(count)]
    for row in (3, 4, count - 1):
        numbers[row] = numbers[2]
    return [(b_no, "가", f"서울 {row}") for row, b_no in enumerate(numbers)]


def test_the_position_counts_only_where_many_rows_prove_the_order() -> None:
    """Only numbers are repeated: then a hundred rows in a place of their own prove that of the rest."""
    rows, few_rows = many(150), many(60)
    items, ascending = rendered(rows, None, "number"), sorted(rows)
    with_keys = rendered(rows, 0, "number")
    with_keys[3], with_keys[4], with_keys[149] = with_keys[4], with_keys[3], replace(with_keys[149], key=None)
    for given_rows, given_items, placed in (
        (rows, items, 150),
        (few_rows, rendered(few_rows, None, "number"), 56),
        (rows, [*items[:10], items[11], items[10], *items[12:]], 146),  # one exchange
        (rows, items[:-2], 145),  # one item short
        (rows, [*items[:-2], Item(), items[-1]], 145),  # one without echo
        (ascending, rendered(ascending, None, "number"), 146),  # branches may have changed places
        (rows, with_keys, 149),  # two branches came in exchanged, which only their keys tell
    ):
        assert len(rows_placed(match_results(given_items, sent(given_rows), key_of))) == placed


def test_five_thousand_branches_are_placed_in_the_usual_order_of_work() -> None:
    """One number five thousand times over: no step may look at every row for every item."""
    rows: list[Record] = [(A, "가", f"서울 {street}") for street in range(5_000)]
    items = rendered(rows, None, "whole")
    Random(1).shuffle(items)
    calls = 0

    def counted(*record: str | None) -> bytes:
        nonlocal calls
        calls += 1
        return key_of(*record)  # type: ignore[arg-type]

    assert len(rows_placed(match_results(items, sent(rows), counted))) == 5_000
    assert calls == 5_000
