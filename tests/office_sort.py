"""Sorts sheets as clicks do, in one LibreOffice: run by a Python that has ``uno``, for ``office.py``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import uno  # type: ignore[import-not-found]
from com.sun.star.beans import PropertyValue  # type: ignore[import-not-found]


def main() -> None:
    asked = json.load(sys.stdin)
    pipe = f"bansong{time.monotonic_ns()}"
    accept = f"--accept=pipe,name={pipe};urp;"
    command = ["soffice", f"-env:UserInstallation={asked['profile']}", "--headless", "--norestore", accept]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    office = subprocess.Popen(command, start_new_session=True, **quiet)
    try:
        services = connected(pipe).ServiceManager
        json.dump([sorted_in_every_way(services, *file) for file in asked["files"]], sys.stdout)
    finally:
        os.killpg(office.pid, signal.SIGKILL)  # the office is a child of the script that starts it
        office.wait()


def connected(pipe: str) -> Any:
    local = uno.getComponentContext()
    resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
    until = time.monotonic() + 60
    while True:
        try:
            return resolver.resolve(f"uno:pipe,name={pipe};urp;StarOffice.ComponentContext")
        except Exception:  # NoConnectException, a class of the office's own
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def sorted_in_every_way(services: Any, url: str, cell: str) -> list[list[list[str]]]:
    desktop, dispatcher = (
        services.createInstance(f"com.sun.star.frame.{name}") for name in ("Desktop", "DispatchHelper")
    )
    document = desktop.loadComponentFromURL(url, "_blank", 0, (option("Hidden", True),))
    sheet = document.Sheets.getByIndex(0)
    states = [shown(sheet)]
    clicked = sheet.getCellRangeByName(cell).CellAddress
    of_filter, named = document.getPropertyValue("UnnamedDatabaseRanges"), document.DatabaseRanges
    ranges = [of_filter.getByTable(0)] if of_filter.hasByTable(0) else []
    for area in (one.DataArea for one in (*ranges, *map(named.getByIndex, range(named.Count)))):
        field = uno.createUnoStruct("com.sun.star.table.TableSortField")
        field.Field, field.IsAscending = clicked.Column - area.StartColumn, True
        fields = uno.Any("[]com.sun.star.table.TableSortField", (field,))
        range_ = sheet.getCellRangeByPosition(area.StartColumn, area.StartRow, area.EndColumn, area.EndRow)
        # by the any's own type, which a tuple does not have
        uno.invoke(range_, "sort", ((option("ContainsHeader", True), option("SortFields", fields)),))
        states.append(shown(sheet))
    document.CurrentController.select(sheet.getCellRangeByName(cell))
    dispatcher.executeDispatch(document.CurrentController.Frame, ".uno:SortDescending", "", 0, ())
    states.append(shown(sheet))
    document.close(True)
    return states


def shown(sheet: Any) -> list[list[str]]:
    cursor = sheet.createCursor()
    cursor.gotoEndOfUsedArea(False)
    last = cursor.RangeAddress
    area = sheet.getCellRangeByPosition(0, 0, last.EndColumn, last.EndRow)
    return [[str(value) for value in row] for row in area.DataArray]


def option(name: str, value: object) -> Any:
    made = PropertyValue()
    made.Name, made.Value = name, value
    return made


main()
