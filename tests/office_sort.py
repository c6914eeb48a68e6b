"""Sorts sheets as a click does, in one LibreOffice; run by the Python that LibreOffice comes with, which has ``uno``.

Reads JSON from stdin: ``{"profile": URL, "files": [{"path", "cell"}, …]}``. In each file, each range that the first
sheet declares, its filter's and its tables', is sorted by the cell's column, ascending, as the button in its header
does. Then the cursor is put into the cell and "sort descending" is clicked: LibreOffice itself decides what is sorted
along. Writes JSON to stdout: for each file the cells before, after each sort of a declared range, and at the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uno  # type: ignore[import-not-found]
from com.sun.star.beans import PropertyValue  # type: ignore[import-not-found]

DEADLINE = 60


def main() -> None:
    asked = json.load(sys.stdin)
    pipe = f"bansong{time.monotonic_ns()}"
    command = ["soffice", f"-env:UserInstallation={asked['profile']}", "--headless", "--norestore"]
    command.append(f"--accept=pipe,name={pipe};urp;")
    none = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    office = subprocess.Popen(command, **none, start_new_session=True)
    try:
        context = connected(pipe)
        desktop = context.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", context)
        dispatcher = context.ServiceManager.createInstanceWithContext("com.sun.star.frame.DispatchHelper", context)
        json.dump([sorted_in_every_way(desktop, dispatcher, **file) for file in asked["files"]], sys.stdout)
    finally:
        os.killpg(office.pid, signal.SIGKILL)  # the office is a child of the script that starts it
        office.wait()


def connected(pipe: str) -> Any:
    """The office's context, as soon as it is up."""
    local = uno.getComponentContext()
    resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
    until = time.monotonic() + DEADLINE
    while True:
        try:
            return resolver.resolve(f"uno:pipe,name={pipe};urp;StarOffice.ComponentContext")
        except Exception:  # NoConnectException, a class of the office's own
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def sorted_in_every_way(desktop: Any, dispatcher: Any, path: str, cell: str) -> list[list[list[str]]]:
    document = desktop.loadComponentFromURL(Path(path).as_uri(), "_blank", 0, (option("Hidden", True),))
    try:
        sheet = document.Sheets.getByIndex(0)
        states = [shown(sheet)]
        clicked = sheet.getCellRangeByName(cell).CellAddress
        for area in declared(document):
            field = uno.createUnoStruct("com.sun.star.table.TableSortField")
            field.Field, field.IsAscending = clicked.Column - area.StartColumn, True
            fields = uno.Any("[]com.sun.star.table.TableSortField", (field,))
            range_ = sheet.getCellRangeByPosition(area.StartColumn, area.StartRow, area.EndColumn, area.EndRow)
            # by the any's own type, which a tuple does not have
            uno.invoke(range_, "sort", ((option("ContainsHeader", True), option("SortFields", fields)),))
            states.append(shown(sheet))
        document.CurrentController.select(sheet.getCellRangeByName(cell))
        dispatcher.executeDispatch(document.CurrentController.Frame, ".uno:SortDescending", "", 0, ())
        return [*states, shown(sheet)]
    finally:
        document.close(True)


def declared(document: Any) -> list[Any]:
    """The ranges that the first sheet declares: its filter's and its tables'."""
    named = [document.DatabaseRanges.getByIndex(number) for number in range(document.DatabaseRanges.Count)]
    of_filter = document.getPropertyValue("UnnamedDatabaseRanges")
    unnamed = [of_filter.getByTable(0)] if of_filter.hasByTable(0) else []
    return [range_.DataArea for range_ in (*unnamed, *named) if range_.DataArea.Sheet == 0]


def shown(sheet: Any) -> list[list[str]]:
    """The cells of a sheet, from A1 to the last that is used, as texts."""
    cursor = sheet.createCursor()
    cursor.gotoEndOfUsedArea(False)
    last = cursor.RangeAddress
    area = sheet.getCellRangeByPosition(0, 0, last.EndColumn, last.EndRow)
    return [[str(value) for value in row] for row in area.DataArray]


def option(name: str, value: object) -> Any:
    made = PropertyValue()
    made.Name, made.Value = name, value
    return made


if __name__ == "__main__":
    main()
