"""The recipes of docs/scaling.md, as they stand there. Not in the default suite (``pytest -m scale``)."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pytest

import bansong as bs
from conftest import NOTHING_CHECKED, ROOT, SAMPLE
from test_distributed import TODAY, customers

pytestmark = [
    pytest.mark.scale,
    NOTHING_CHECKED,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]

OPTIONS: dict[str, Any] = {name: SAMPLE / f"{name}.parquet" for name in ("registry", "gazetteer")}
OPTIONS |= {"today": TODAY, "labels": False}
ROWS = 20_000


def run_recipe(title: str, **given: Any) -> Any:
    """Run the code below a heading of the page; return what it calls ``enriched``."""
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    names = {**given, "options": OPTIONS, "__name__": "recipe"}
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.S):
        exec(block, names)
    return names["enriched"]


def test_the_recipe_for_daft_gives_what_one_machine_does() -> None:
    daft = pytest.importorskip("daft", reason="Daft is not installed: pip install daft")
    frame = customers(ROWS)
    found = run_recipe("Daft", df=daft.from_arrow(frame.to_arrow()).into_batches(5000)).to_arrow()
    assert pl.DataFrame(found).sort("고객번호").equals(bs.verify_frame(frame, **OPTIONS))


def test_the_recipe_for_ray_data_gives_what_one_machine_does() -> None:
    ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "ray[data]"')
    frame = customers(ROWS)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        ds = ray.data.from_arrow([part.to_arrow() for part in frame.iter_slices(ROWS // 4)])
        found = pl.concat([pl.DataFrame(ray.get(ref)) for ref in run_recipe("Ray Data", ds=ds).to_arrow_refs()])
    finally:
        ray.shutdown()
    assert found.height == ROWS
    whole = bs.verify_frame(frame, **OPTIONS)
    alone = ~whole["reasons"].list.join(" ").fill_null("").str.contains("[place ", literal=True)
    assert 0 < alone.sum() < ROWS
    assert found.sort("고객번호").filter(alone).equals(whole.filter(alone))
