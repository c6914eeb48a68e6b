# %% [markdown] lang="en"
# # Ten million rows and Spark
#
# One computer is enough for ten million rows, because a file is read as a stream and never held in memory as a whole. Here 200,000 rows do, so that the notebook takes seconds.
#
# *한국어: [천만 행과 Spark](06_ten_million_rows_and_spark.ko.ipynb)*
# %% [markdown] lang="ko"
# # 천만 행과 Spark
#
# 한 컴퓨터로도 천만 행을 처리합니다. 파일을 한꺼번에 메모리에 올리지 않고 흘려 읽기 때문입니다. 여기서는 몇 초 안에 끝나도록 20만 행으로 해 봅니다.
#
# *English: [Ten million rows and Spark](06_ten_million_rows_and_spark.ipynb)*
# %%
import os
from pathlib import Path
from tempfile import mkdtemp

import polars as pl

import bansong as bs

LANG = "en"
bs.set_language(LANG)
sample = Path("../sample_data")
out = Path(mkdtemp())
os.environ["BANSONG_STATE_DIR"] = str(out)
data = {
    "registry": sample / "registry.parquet",
    "gazetteer": sample / "gazetteer.parquet",
    "status": "none",
}
# %% [markdown] lang="en"
# ## A large file
#
# Repeat the sample to make a Parquet file of 200,000 rows. The report says how many seconds it took. Ten million rows take 50 times as long ([measured figures](../docs/scaling.md)).
# %% [markdown] lang="ko"
# ## 큰 파일
#
# 샘플을 되풀이해 20만 행짜리 Parquet 파일을 만듭니다. 몇 초 걸렸는지는 보고서에 있습니다. 천만 행이면 그 50배가 걸립니다([측정값(영어)](../docs/scaling.md)).
# %%
customers = pl.read_csv(sample / "customers.csv", infer_schema=False)
pl.concat([customers] * (200_000 // customers.height + 1)).head(200_000).write_parquet(
    out / "large.parquet"
)
bs.enrich(out / "large.parquet", out / "result.parquet", **data)
# %% [markdown] lang="en"
# Read the result as a stream, too: only the columns and the rows that you need.
# %% [markdown] lang="ko"
# 결과도 흘려 읽습니다. 필요한 열만, 필요한 행만 읽습니다.
# %%
result = pl.scan_parquet(out / "result.parquet")
mean_risk = pl.col("bounce_prob").mean().round(4)
by_action = result.group_by("action").agg(rows=pl.len(), mean_risk=mean_risk)
answer = by_action.sort("rows", descending=True).collect(engine="streaming")
answer.to_pandas().fillna({"action": ""})
# %% [markdown] lang="en"
# ## Many files, data in partitions
#
# A folder, a pattern (`*.csv`), or Parquet in Hive partitions is one run with one report. The same record in two files is looked up once.
# %% [markdown] lang="ko"
# ## 여러 파일, 나뉜 데이터
#
# 폴더, 파일 이름 패턴(`*.csv`), Hive 방식으로 나뉜 Parquet을 한 번에 처리합니다. 보고서는 하나이고, 같은 것은 파일이 달라도 한 번만 조회합니다.
# %%
months = pl.read_parquet(out / "large.parquet", n_rows=3_000).with_columns(
    month=pl.int_range(pl.len()) % 3 + 1
)
months.write_parquet(out / "parts", partition_by="month")
bs.enrich([out / "parts"], out / "verified parts", **data)
# %% [markdown] lang="en"
# ## In a query of your own
#
# The engine is a part of a lazy query. Only the rows that are left after your filter are verified.
# %% [markdown] lang="ko"
# ## 내 쿼리 안에서
#
# 엔진은 느긋한(lazy) 쿼리의 한 부분입니다. 걸러 낸 행만 확인합니다.
# %%
engine = bs.LocalEngine(registry=sample / "registry.parquet")
names = {"사업자등록번호": "b_no", "상호": "name", "주소": "address", "우편번호": "zipcode"}
rows = pl.scan_parquet(out / "large.parquet").rename(names).head(1_000)
risky = engine.verify(rows).filter(grade="E").select("name", "biz_status", "bounce_prob")
risky.collect(engine="streaming").head(3).to_pandas()
# %% [markdown] lang="en"
# ## Spark
#
# If your data is in a cluster already, use the same engine there. You need Java and the extra `spark`. Engines that are paid are refused, because a cluster may do the same work twice.
#
# The next cell was not run for this page.
# %% [markdown] lang="ko"
# ## Spark
#
# 데이터가 이미 클러스터에 있다면 같은 엔진을 그곳에서 씁니다. Java와 `spark` 추가 설치가 있어야 합니다. 과금되는 엔진은 거부됩니다. 클러스터는 같은 일을 두 번 할 수 있기 때문입니다.
#
# 이 페이지를 만들 때 아래 칸은 실행하지 않았습니다.
# %% tags=["skip-execution"]
from pyspark.sql import SparkSession

from bansong.distributed import spark

session = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
table = session.read.parquet(str(out / "large.parquet")).limit(20_000)
answers = spark.enrich(table, registry=str((sample / "registry.parquet").resolve()))
answers.groupBy("action").count().orderBy("count", ascending=False).show()
session.stop()
# %% [markdown] lang="en"
# Read more: [many rows, many machines](../docs/scaling.md) · [files in buckets](../docs/cloud.md)
# %% [markdown] lang="ko"
# 더 읽기: [천만 행, 여러 컴퓨터(영어)](../docs/scaling.md) · [클라우드 파일(영어)](../docs/cloud.md)
