"""Makes the sample data. Seeded: running it again gives the same rows.

Well-known public companies appear with their public number and address; everybody else is invented, with numbers whose
check digit is right and which are not looked up anywhere. Roads and dongs are real; the buildings on them, their lots
and postal codes are invented: ``rnaddrkor_sample.txt`` and ``jibun_rnaddrkor_sample.txt`` have no more than the form of
the official address files.
Run: ``python sample_data/make.py``.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Collection
from datetime import date, datetime, timedelta
from pathlib import Path

import openpyxl
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side

HERE = Path(__file__).parent
ROWS = 300
TODAY = date(2026, 11, 21)
MAILED = date(2026, 10, 5)

PUBLIC = [
    ("1248100998", "삼성전자(주)", "경기도 수원시 영통구 삼성로 129 (매탄동)", "16677"),
    ("1268103725", "SK하이닉스(주)", "경기도 이천시 부발읍 경충대로 2091", "17336"),
    ("1078614075", "LG전자(주)", "서울특별시 영등포구 여의대로 128", "07336"),
    ("1208147521", "(주)카카오", "제주특별자치도 제주시 첨단로 242 (영평동)", "63309"),
    ("2208162517", "네이버(주)", "경기도 성남시 분당구 불정로 6", "13561"),
    ("1018109147", "현대자동차(주)", "서울특별시 서초구 헌릉로 12", "06797"),
]
CITY_HALL = ("서울특별시 중구 세종대로 110", "04524")
ROADS = [
    ("서울특별시 종로구 종로", "031"),
    ("서울특별시 강남구 테헤란로", "062"),
    ("서울특별시 마포구 월드컵북로", "039"),
    ("부산광역시 해운대구 센텀중앙로", "480"),
    ("대구광역시 수성구 동대구로", "422"),
    ("인천광역시 연수구 송도과학로", "219"),
    ("대전광역시 유성구 대학로", "341"),
    ("경기도 성남시 분당구 판교역로", "134"),
    ("경기도 화성시 동탄대로", "184"),
    ("강원특별자치도 춘천시 중앙로", "242"),
    ("충청남도 천안시 서북구 불당대로", "311"),
    ("전북특별자치도 전주시 완산구 전주천동로", "549"),
    ("경상남도 창원시 성산구 중앙대로", "514"),
    ("제주특별자치도 제주시 연북로", "631"),
]
DONGS = {  # road → one of the legal dongs it runs through, with its code
    "종로": ("종로2가", "1111013800"),
    "테헤란로": ("역삼동", "1168010100"),
    "월드컵북로": ("성산동", "1144012500"),
    "센텀중앙로": ("우동", "2635010500"),
    "동대구로": ("범어동", "2726010100"),
    "송도과학로": ("송도동", "2818510600"),
    "대학로": ("궁동", "3020012200"),
    "판교역로": ("삼평동", "4113510900"),
    "동탄대로": ("오산동", "4159012900"),
    "중앙로": ("중앙로2가", "5111010500"),
    "불당대로": ("불당동", "4413310800"),
    "전주천동로": ("교동", "5211111800"),
    "중앙대로": ("용호동", "4812313500"),
    "연북로": ("연동", "5011013700"),
    "삼성로": ("매탄동", "4111710100"),
    "경충대로": ("부발읍 아미리", "4150025330"),
    "여의대로": ("여의도동", "1156011000"),
    "첨단로": ("영평동", "5011013600"),
    "불정로": ("정자동", "4113510300"),
    "헌릉로": ("양재동", "1165010200"),
    "세종대로": ("태평로1가", "1114010300"),
}
TYPOS = {
    "테헤란로": "테해란로",
    "월드컵북로": "월드컵붑로",
    "센텀중앙로": "샌텀중앙로",
    "송도과학로": "송도과햑로",
    "판교역로": "판교력로",
    "불당대로": "불당데로",
    "전주천동로": "전주천통로",
}
SHORT = {
    "서울특별시": "서울",
    "부산광역시": "부산시",
    "대구광역시": "대구",
    "인천광역시": "인천시",
    "대전광역시": "대전",
    "경기도": "경기",
    "충청남도": "충남",
    "경상남도": "경남",
    "제주특별자치도": "제주",
}
FORMER = {"강원특별자치도": "강원도", "전북특별자치도": "전라북도"}
WORDS = ("가람 나래 다온 라온 미르 바다 새벽 아라 온누리 한빛 푸른 해오름 별하 늘봄 도담 솔내 참빛 한결").split()
TRADES = ("상사 건설 식품 물산 테크 디자인 유통 산업 전자 섬유 인쇄 정밀 약국 공방 서점 물류").split()
SOLE, COMPANY = list(range(1, 80)), [81, 86, 87, 88]
WEIGHTS = (1, 3, 7, 1, 3, 7, 1, 3, 5)
HEADERS = ["고객코드", "사업자등록번호", "상호", "대표자", "주소", "우편번호", "최근거래일", "비고"]


def check_digit(nine: str) -> str:
    digits = [int(digit) for digit in nine]
    total = sum(digit * weight for digit, weight in zip(digits, WEIGHTS, strict=True)) + digits[8] * 5 // 10
    return str((10 - total % 10) % 10)


class Building:
    """A line of the official address file, but for the building's name."""

    def __init__(self, address: str, zipcode: str, place: int) -> None:
        self.address, self.zipcode = address, zipcode
        *region, self.road, self.number = address.split()
        self.dong, self.code = DONGS[self.road]
        if self.dong.split()[0] in region:  # an eup stands before the road, too
            region.remove(self.dong.split()[0])
        self.sido, self.sigungu = region[0], " ".join(region[1:])
        self.lot = f"{100 + place * 7 % 800}-{place % 4 + 1}"
        self.apartment = False

    def line(self) -> str:
        """The 24 columns; the number of the road is invented."""
        emd = self.dong.partition(" ")[0]
        key, place, street = self._parts(self.lot)
        kept = [self.code, emd, self.zipcode, "", "20261031", str(int(self.apartment)), "", "", "", ""]
        return "|".join([key, *place, *street, *kept])

    def additional_lot(self) -> str:
        """The 14 columns of the file of additional lots: a lot that the building stands on, too."""
        main, sub = self.lot.split("-")
        key, place, street = self._parts(f"{int(main) + 900}-{sub}")
        del street[1]
        return "|".join([key, *place, *street, ""])

    def _parts(self, lot: str) -> tuple[str, list[str], list[str]]:
        """The management number, the lot, the street with the number."""
        emd, _, ri = self.dong.partition(" ")
        main, _, sub = self.number.partition("-")
        road = f"9{list(DONGS).index(self.road):06d}"
        key = f"{self.code[:8]}{road}0{int(main):05d}{int(sub or 0):05d}"
        place = [self.code, self.sido, self.sigungu, emd, ri, "0", *lot.split("-")]
        return key, place, [self.code[:5] + road, self.road, "0", main, sub or "0"]


class Business:
    """An invented business and what is really true of it."""

    def __init__(self, chance: random.Random) -> None:
        kind = chance.choice(chance.choices([SOLE, COMPANY, [82], [80]], [55, 38, 5, 2])[0])
        nine = f"{chance.randint(101, 899)}{kind:02d}{chance.randint(1, 9999):04d}"
        self.b_no = nine + check_digit(nine)
        title = f"{chance.choice(WORDS)}{chance.choice(WORDS)}{chance.choice(TRADES)}"
        company = kind in COMPANY
        self.name = chance.choice(["(주){}", "주식회사 {}", "{}(주)"]).format(title) if company else title
        self.owner = chance.choice("김이박최정강조윤") + chance.choice(["민준", "서연", "도윤", "하은", "지호", "수아"])
        self.road, zone = chance.choice(ROADS)
        unit = f", {chance.randint(1, 12)}층 {chance.randint(1, 12) * 100 + chance.randint(1, 9)}호"
        self.building = f"{self.road} {chance.randint(1, 480)}"
        self.unit = unit if chance.random() < 0.5 else ""
        self.address = self.building + self.unit
        self.at: Building
        self.zipcode = f"{zone}{chance.randint(0, 99):02d}"
        self.status = chance.choices(["계속사업자", "폐업자", "휴업자"], [84, 12, 4])[0]
        self.opened = TODAY - timedelta(days=chance.randint(100, 9000))
        self.since = None if self.status == "계속사업자" else TODAY - timedelta(days=chance.randint(20, 1200))


def customers(chance: random.Random) -> tuple[list[Business], list[Building], list[list[object]]]:
    """The businesses, their buildings, and the list as people keep it: spelled every way, with gaps and repeats."""
    businesses = [Business(chance) for _ in range(ROWS - len(PUBLIC) - 30)]
    buildings = addressed(businesses)
    rows: list[list[object]] = []
    rows += [
        [f"{number[:3]}-{number[3:5]}-{number[5:]}", name, "", address, zipcode, ""]
        for number, name, address, zipcode in PUBLIC
    ]
    rows += [
        [spelled(business.b_no, chance), business.name, business.owner, business.address, business.zipcode, ""]
        for business in businesses
    ]
    twice = chance.sample(rows, 20)
    rows += [[respelled(str(row[0])), *row[1:5], "중복 입력?"] for row in twice]
    misspell(rows, businesses, buildings)
    spoil(rows, chance)
    while len(rows) < ROWS:
        rows.append(["", chance.choice(WORDS) + "협회", "", *CITY_HALL, "번호 확인 요망"])
    chance.shuffle(rows)
    listed = [
        [f"{place:06d}", *row[:5], TODAY - timedelta(days=chance.randint(1, 700)), row[5]]
        for place, row in enumerate(rows, 1)
    ]
    return businesses, buildings, listed


def spelled(number: str, chance: random.Random) -> str:
    hyphened = f"{number[:3]}-{number[3:5]}-{number[5:]}"
    wide = hyphened.translate(str.maketrans("0123456789-", "０１２３４５６７８９－"))
    ways = [hyphened, number, number + ".0", hyphened.replace("-", " "), hyphened.replace("-", "."), wide, f"'{number}"]
    return chance.choices(ways, [60, 20, 5, 4, 3, 4, 4])[0]


def respelled(written: str) -> str:
    return written.replace("-", "") if "-" in written else written


def spoil(rows: list[list[object]], chance: random.Random) -> None:
    """Put in what goes wrong in real lists."""

    def some(count: int) -> list[list[object]]:
        return chance.sample(rows[len(PUBLIC) :], count)

    def wrong_digit(number: str) -> str:
        digits = "".join(character for character in number if character.isdecimal())[:10]
        return digits[:-1] + str((int(digits[-1]) + 3) % 10) if len(digits) == 10 else number

    spoilers: list[tuple[int, int, Callable[[str], str]]] = [
        (3, 0, lambda _: "1.248E+09"),
        (3, 0, lambda number: number.replace("-", "")[1:10]),
        (2, 0, lambda _: f"{chance.randint(50, 99)}0101-1{chance.randint(100000, 999999)}"),
        (4, 0, wrong_digit),
        (2, 0, lambda _: "확인중"),
        (8, 3, lambda _: ""),
        (6, 3, lambda address: address.rsplit(" ", 1)[0].replace("로", "로 ***", 1)),
        (6, 3, lambda address: " ".join(address.split()[:2])),
        (8, 4, lambda _: f"{chance.randint(100, 799)}-{chance.randint(100, 899)}"),
        (10, 4, lambda _: ""),
        (5, 1, lambda _: ""),
        (4, 1, lambda name: name[:1] + "**"),
    ]
    for count, column, spoiled in spoilers:
        for row in some(count):
            row[column] = spoiled(str(row[column]))


def addressed(businesses: list[Business]) -> list[Building]:
    """The building of each business; where two are in one, they have one postal code."""
    buildings: dict[str, Building] = {}
    for address, zipcode in [*((address, zipcode) for _, _, address, zipcode in PUBLIC), CITY_HALL]:
        plain = address.partition(" (")[0]
        buildings[plain] = Building(plain, zipcode, len(buildings))
    for business in businesses:
        own = Building(business.building, business.zipcode, len(buildings))
        business.at = buildings.setdefault(business.building, own)
        business.zipcode = business.at.zipcode
    return list(buildings.values())


Noise = tuple[int, Collection[str], Callable[[Business], str]]
NOISE: list[Noise] = [  # how many, of which provinces or roads (none: of all), what is written
    (24, SHORT, lambda of: of.address.replace(of.at.sido, SHORT[of.at.sido], 1)),
    (8, FORMER, lambda of: of.address.replace(of.at.sido, FORMER[of.at.sido], 1)),
    (12, (), lambda of: of.address.partition(" ")[2]),
    (4, (), lambda of: of.building.replace(" ", "") + of.unit),
    (16, (), lambda of: f"{of.at.sido} {of.at.sigungu} {of.at.dong} {of.at.lot}{of.unit}"),
    (10, TYPOS, lambda of: of.address.replace(of.at.road, TYPOS[of.at.road])),
    (5, (), lambda of: f"{of.road} 9{of.at.number[-2:]:0>2}{of.unit}"),
    (3, (), lambda of: f"{of.building}-17{of.unit}"),
]


def misspell(rows: list[list[object]], businesses: list[Business], buildings: list[Building]) -> None:
    """Write addresses as people do, repeated rows alike, by a chance of its own, which nothing else depends on."""
    chance = random.Random(20261122)
    left = list(businesses)
    written: dict[tuple[object, object], list[object]] = {}

    def some(count: int, fits: Collection[str] = ()) -> list[Business]:
        chosen = chance.sample([of for of in left if not fits or of.at.sido in fits or of.at.road in fits], count)
        left[:] = [of for of in left if of not in chosen]
        return chosen

    for count, fits, noisy in NOISE:
        for of in some(count, fits):
            written[of.name, of.address] = [noisy(of), of.zipcode]
    for count, same_road in ((12, False), (8, True)):
        for of in some(count):
            others = {at.zipcode for at in buildings if (at.road == of.at.road) == same_road} - {of.zipcode}
            written[of.name, of.address] = [of.address, chance.choice(sorted(others))]
    for of in some(12):
        of.at.apartment = True
    for row in rows:
        row[3:5] = written.get((row[1], row[3]), row[3:5])


def as_text(row: list[object]) -> list[str]:
    return [value.isoformat() if isinstance(value, date) else str(value) for value in row]


def write_csv(path: Path, header: list[str], rows: list[list[str]], encoding: str) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, lineterminator="\r\n" if encoding == "cp949" else "\n").writerows([header, *rows])


def write_json(path: Path, rows: list[list[object]]) -> None:
    items = [dict(zip(HEADERS, as_text(row), strict=True)) for row in rows]
    for item in items:
        for key in [key for key, value in item.items() if not value]:
            del item[key]
    path.write_text(
        json.dumps({"total": len(items), "data": items}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


def write_workbook(path: Path, rows: list[list[object]]) -> None:
    book = openpyxl.Workbook()
    book.properties.created = book.properties.modified = datetime(2026, 11, 21)
    sheet = book.active
    sheet.title = "고객명단"
    line = Side(style="thin", color="BFBFBF")
    for place, header in enumerate(HEADERS, 1):
        cell = sheet.cell(1, place, header)
        cell.font = Font(bold=True, color="FFFFFF")
        cell.fill = PatternFill("solid", fgColor="1F4E78")
        cell.alignment = Alignment(horizontal="center")
    for number, row in enumerate(rows, 2):
        for place, value in enumerate(row, 1):
            cell = sheet.cell(number, place, value if value != "" else None)
            cell.border = Border(bottom=line)
            if isinstance(value, date):
                cell.number_format = "yyyy-mm-dd"
            plain = isinstance(value, str) and value.endswith(".0")
            if place == 2 and plain:  # a number that Excel took for a number
                cell.value = int(value[:-2])
    for place, width in enumerate((10, 17, 24, 9, 52, 10, 13, 14), 1):
        sheet.column_dimensions[sheet.cell(1, place).column_letter].width = width
    sheet.freeze_panes = "C2"
    sheet.auto_filter.ref = f"A1:H{len(rows) + 1}"
    notes = book.create_sheet("안내")
    notes["A1"] = "비즈베리파이 예제: 잘 알려진 회사를 뺀 나머지는 모두 지어낸 업체입니다."
    book.save(path)


def registry_rows(businesses: list[Business], chance: random.Random) -> list[list[str]]:
    """What a status list says of nine in ten of them, with an older row for some."""
    rows = [[number, "계속사업자", "", "", "2026-11-01"] for number, *_ in PUBLIC]
    for business in businesses:
        if chance.random() < 0.1:
            continue
        since = business.since.isoformat() if business.since else ""
        rows.append([business.b_no, business.status, since, business.opened.isoformat(), "2026-11-01"])
        if chance.random() < 0.1:
            rows.append([business.b_no, "계속사업자", "", business.opened.isoformat(), "2025-05-01"])
    chance.shuffle(rows)
    return rows


def outcomes(rows: list[list[object]], businesses: list[Business], chance: random.Random) -> list[list[str]]:
    """Which letters of a mailing came back, and why: for the commands that learn from it."""
    closed = {business.name for business in businesses if business.status == "폐업자"}
    fates: dict[tuple[object, object], list[str]] = {}
    found = []
    for row in rows:
        code, number, name, _, address, *_ = row
        if not address or "*" in str(address):
            continue
        likely = 0.8 if name in closed else 0.25 if not any(map(str.isdecimal, str(address))) else 0.03
        bounced = chance.random() < likely
        reason = chance.choice(
            ["폐업", "수취인불명", "이사불명"] if name in closed else ["이사불명", "주소불명", "폐문부재"]
        )
        back = (MAILED + timedelta(days=chance.randint(6, 30))).isoformat()
        fate = ["Y", reason, back] if bounced else ["N", "", ""]
        fate = fates.setdefault((name, address), fate)  # who stands in the list twice gets one letter
        found.append([str(code), str(number), str(address), *fate, MAILED.isoformat()])
    return found


def main() -> None:
    chance = random.Random(20261121)
    businesses, buildings, rows = customers(chance)
    texts = [as_text(row) for row in rows]
    write_csv(HERE / "customers.csv", HEADERS, texts, "utf-8")
    write_csv(HERE / "customers_cp949.csv", HEADERS, texts, "cp949")
    write_json(HERE / "customers.json", rows)
    write_workbook(HERE / "customers.xlsx", rows)
    status_header = ["사업자등록번호", "사업자상태", "폐업일자", "개업일자", "기준일자"]
    write_csv(HERE / "registry_source.csv", status_header, registry_rows(businesses, chance), "utf-8")
    official = "".join(f"{building.line()}\r\n" for building in buildings)
    (HERE / "rnaddrkor_sample.txt").write_bytes(official.encode("cp949"))
    more = "".join(f"{building.additional_lot()}\r\n" for building in buildings[::10])
    (HERE / "jibun_rnaddrkor_sample.txt").write_bytes(more.encode("cp949"))
    outcome_header = ["고객코드", "사업자등록번호", "주소", "반송여부", "반송사유", "반송일자", "발송일"]
    write_csv(HERE / "outcomes.csv", outcome_header, outcomes(rows, businesses, chance), "utf-8")


if __name__ == "__main__":
    main()
