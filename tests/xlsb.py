"""The smallest workbook in Excel's binary format (.xlsb): no library writes one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_LINKS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.bin"/>'
    f'<Relationship Id="rId2" Type="{_OFFICE}/styles" Target="styles.bin"/></Relationships>'
)


def binary_workbook(path: Path, rows: Sequence[Sequence[str | float]], number_format: int) -> Path:
    """Write one sheet: texts, and numbers in the built-in number format."""
    book = _record(131) + _record(143)
    book += _record(156, struct.pack("<II", 0, 1) + _text("rId1") + _text("S")) + _record(144) + _record(132)
    plain, shown = (struct.pack("<HHHHHBBH", 0, format, 0, 0, 0, 0, 0, 0) for format in (0, number_format))
    styles = _record(278) + _record(617, struct.pack("<I", 2)) + _record(47, plain) + _record(47, shown) + _record(618)
    sheet = _record(129) + _record(148, struct.pack("<4I", 0, len(rows) - 1, 0, len(rows[0]) - 1)) + _record(145)
    for number, row in enumerate(rows):
        sheet += _record(0, struct.pack("<IIHBBBI", number, 0, 300, 0, 0, 0, 0))
        for column, value in enumerate(row):
            if isinstance(value, str):
                sheet += _record(6, struct.pack("<II", column, 0) + _text(value))
            else:
                sheet += _record(5, struct.pack("<IId", column, 1, value))
    sheet += _record(146) + _record(130)
    with ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/_rels/workbook.bin.rels", _LINKS)
        for part, data in {"workbook": book, "styles": styles, "worksheets/sheet1": sheet}.items():
            archive.writestr(f"xl/{part}.bin", data)
    return path


def _record(kind: int, data: bytes = b"") -> bytes:
    head = bytes([kind]) if kind < 128 else bytes([kind & 0x7F | 0x80, kind >> 7])
    return (
        head
        + bytes([len(data) & 0x7F | (0x80 if len(data) > 127 else 0)])
        + (bytes([len(data) >> 7]) if len(data) > 127 else b"")
        + data
    )


def _text(text: str) -> bytes:
    return struct.pack("<I", len(text)) + text.encode("utf-16-le")
