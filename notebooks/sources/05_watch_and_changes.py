# %% [markdown] lang="en"
# # Watch and changes
#
# A customer who closes next month is a letter that comes back. A watch list checks your customers again and again, and tells you each closure once.
#
# Here the list is a file on this computer. To keep it at the service, use `base_url=` and `api_key=` in place of `local=`.
#
# *한국어: [감시와 변경](05_watch_and_changes.ko.ipynb)*
# %% [markdown] lang="ko"
# # 감시와 변경
#
# 다음 달에 문을 닫는 거래처는 돌아올 우편물입니다. 감시 목록은 거래처를 거듭 확인하고, 폐업을 한 번씩만 알려 드립니다.
#
# 여기서는 목록을 이 컴퓨터의 파일에 둡니다. 서비스에 둘 때는 `local=` 대신 `base_url=`과 `api_key=`를 씁니다.
#
# *English: [Watch and changes](05_watch_and_changes.ipynb)*
# %%
import json
import os
from pathlib import Path
from tempfile import mkdtemp

import altair as alt
import polars as pl

import bansong as bs
from bansong import watch

LANG = "en"
bs.set_language(LANG)
alt.renderers.enable("png", ppi=144)
sample = Path("../sample_data")
out = Path(mkdtemp())
os.environ["BANSONG_STATE_DIR"] = str(out)
watched = out / "watch.sqlite"
gazetteer = sample / "gazetteer.parquet"
# %% [markdown] lang="en"
# ## Bring a file and the list together
#
# Without `apply` nothing is changed: you see what would be. Rows without a business number are reported, and no number is guessed.
# %% [markdown] lang="ko"
# ## 파일과 목록 맞추기
#
# `apply` 없이 부르면 보기만 합니다. 사업자번호가 없는 행은 짐작하지 않고 알려 드립니다.
# %%
watch.sync(sample / "customers.csv", local=watched)
# %% [markdown] lang="en"
# With `apply=True` the list is changed. The same customers from a workbook change nothing more:
# %% [markdown] lang="ko"
# `apply=True`로 부르면 목록을 고칩니다. 같은 명단을 엑셀 파일로 다시 맞추면 더 바꿀 것이 없습니다.
# %%
watch.sync(sample / "customers.csv", apply=True, local=watched)
watch.sync(sample / "customers.xlsx", apply=True, local=watched).to_do
# %% [markdown] lang="en"
# ## Check
#
# The first check finds the present status. Run `bansong watch check` every morning. A business that was checked is due again a day later.
# %% [markdown] lang="ko"
# ## 확인
#
# 첫 확인은 지금 상태를 알아냅니다. 매일 아침 `bansong watch check`를 실행하면 됩니다. 확인한 곳은 하루 뒤에 다시 확인합니다.
# %%
watch.check(local=watched, registry=sample / "registry.parquet", gazetteer=gazetteer)
# %% [markdown] lang="en"
# Later one business closes. A new registry says so, and the closure is told once. `notify` also writes it to a file, one line for each closure.
# %% [markdown] lang="ko"
# 얼마 뒤 한 곳이 문을 닫습니다. 새 상태 자료를 보고 한 번만 알립니다. `notify`로 지정한 파일에도 한 줄에 하나씩 적습니다.
# %%
one = watch.entries(local=watched).filter(biz_status="active", grade="A").row(0, named=True)
source = pl.read_csv(sample / "registry_source.csv", infer_schema=False)
closes = pl.col("사업자등록번호").str.replace_all("-", "") == one["biz_no"]
status = pl.when(closes).then(pl.lit("폐업자")).otherwise("사업자상태")
source.with_columns(status.alias("사업자상태")).write_csv(out / "registry.csv")
bs.build_registry([out / "registry.csv"], out / "registry.parquet")

newer = {"registry": out / "registry.parquet", "gazetteer": gazetteer, "everything": True}
watch.check(local=watched, notify=out / "closed.jsonl", **newer)
# %%
line = json.loads((out / "closed.jsonl").read_text(encoding="utf-8"))
fields = ("event", "biz_no", "status_before", "biz_status", "grade_before", "grade_after")
{name: line[name] for name in fields}
# %% [markdown] lang="en"
# The next check has nothing to tell: a closure is not told twice.
# %% [markdown] lang="ko"
# 다음 확인에서는 알릴 것이 없습니다. 같은 폐업을 두 번 알리지 않습니다.
# %%
watch.check(local=watched, **newer).quiet
# %%
history = watch.history(one["biz_no"], local=watched)
print(history)
history.chart()
# %% [markdown] lang="en"
# ## What changed from night to night
#
# A job file describes work that runs at a fixed hour. From the second run on, only new and changed rows are verified, and you are told what is different.
# %% [markdown] lang="ko"
# ## 밤마다 무엇이 바뀌었나
#
# 정해진 시각에 실행할 일은 작업 파일 하나로 적습니다. 두 번째 실행부터는 새로 생긴 행과 바뀐 행만 확인하고, 무엇이 달라졌는지 알려 드립니다.
# %%
(out / "job.toml").write_text(
    f"""
lang = "{LANG}"
[[inputs]]
path = '{out / "customers.csv"}'
[reference]
registry = '{out / "tonight.parquet"}'
gazetteer = '{gazetteer.resolve()}'
[status]
source = "none"
[output]
path = '{out}/result.{{ext}}'
changes = '{out}/changes.xlsx'
""",
    encoding="utf-8",
)
customers = pl.read_csv(sample / "customers.csv", infer_schema=False)
customers.write_csv(out / "customers.csv")
bs.build_registry([sample / "registry_source.csv"], out / "tonight.parquet")
bs.run_job(out / "job.toml")
# %% [markdown] lang="en"
# The next day one business has closed, and two rows are no longer in the file.
# %% [markdown] lang="ko"
# 다음 날: 한 곳이 문을 닫았고, 명단에서 두 행이 빠졌습니다.
# %%
customers.filter(~pl.int_range(pl.len()).is_in([5, 8])).write_csv(out / "customers.csv")
bs.build_registry([out / "registry.csv"], out / "tonight.parquet")
night = bs.run_job(out / "job.toml")
night
# %%
changes = night.changes.with_columns(pl.col("changes").list.join(", "))
columns = ("changes", "name", "biz_status_before", "biz_status", "action_before", "action")
changes.select(columns).to_pandas().fillna("")
# %% [markdown] lang="en"
# Next notebook: [Ten million rows and Spark](06_ten_million_rows_and_spark.ipynb)
#
# Read more: [the watch list](../docs/watch.md) · [every night](../docs/scheduling.md)
# %% [markdown] lang="ko"
# 다음 노트북: [천만 행과 Spark](06_ten_million_rows_and_spark.ko.ipynb)
#
# 더 읽기: [예약 작업](../docs/ko/scheduled-jobs.md) · [감시 목록(영어)](../docs/watch.md)
