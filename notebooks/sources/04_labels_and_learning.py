# %% [markdown] lang="en"
# # Labels and learning
#
# After a mailing, record which letters came back. Then you see whether the predictions were right. With enough records the scorecard improves itself, and only if the improvement is certain.
#
# *한국어: [반송 기록과 학습](04_labels_and_learning.ko.ipynb)*
# %% [markdown] lang="ko"
# # 반송 기록과 학습
#
# 우편물을 보낸 뒤 무엇이 돌아왔는지 등록하면 예측이 맞았는지 볼 수 있습니다. 기록이 충분히 쌓이면 점수표가 스스로 나아지며, 확실히 나아질 때만 바뀝니다.
#
# *English: [Labels and learning](04_labels_and_learning.ipynb)*
# %%
import os
import random
import sys
from pathlib import Path
from tempfile import mkdtemp

import altair as alt
import polars as pl

import bansong as bs
from bansong.learning.report import store_calibration

LANG = "en"
bs.set_language(LANG)
alt.renderers.enable("png", ppi=144)
sample = Path("../sample_data")
out = Path(mkdtemp())
os.environ["BANSONG_STATE_DIR"] = str(out)
data = {"registry": sample / "registry.parquet", "gazetteer": sample / "gazetteer.parquet"}
# %% [markdown] lang="en"
# ## Record what came back
#
# Give the file that was mailed and the list of returns. A row is found by its number and address, and without a number by the customer code (고객코드). Rows that are not found are reported with a reason.
# %% [markdown] lang="ko"
# ## 반송 등록
#
# 발송한 파일과 반송 목록을 줍니다. 번호와 주소로, 번호가 없으면 고객코드로 맞는 행을 찾습니다. 찾지 못한 행은 이유와 함께 알려 드립니다.
# %%
bs.enrich(sample / "customers.csv", out / "mailed.csv", today="2026-10-05", **data)
bs.label(
    sample / "outcomes.csv",
    file=out / "mailed.csv",
    returns_requested=True,
    complete=True,
    sent="all",
)
# %% [markdown] lang="en"
# ## Were the predictions right?
#
# A point on the dashed line: as many letters came back as predicted. The vertical lines are 95 % intervals.
# %% [markdown] lang="ko"
# ## 예측이 맞았나요?
#
# 점이 점선 위에 있으면 예측한 만큼 돌아온 것입니다. 세로선은 95% 구간입니다.
# %%
_, compared = store_calibration()
compared.chart_reliability()
# %%
compared.groups["grade"].to_pandas().set_index("group")[
    ["n", "bounced", "expected", "rate"]
].round(3)
# %% [markdown] lang="en"
# ## Learning
#
# 251 letters are too few to judge. The scorecard stays, and the report says why.
# %% [markdown] lang="ko"
# ## 학습
#
# 251통으로는 판단할 수 없습니다. 점수표는 그대로이고, 이유를 말해 줍니다.
# %%
bs.calibrate()
# %% [markdown] lang="en"
# ## With more records
#
# Suppose that you mail 2,000 letters a month for three months, and that these customers differ from what the scorecard expects: letters to sole traders come back far more often than letters to companies. (The numbers and the outcomes are invented.)
# %% [markdown] lang="ko"
# ## 기록이 쌓이면
#
# 한 달에 2,000통씩 석 달을 보냈다고 해 봅니다. 이 거래처들은 점수표가 생각하는 것과 다릅니다. 개인사업자에게 보낸 우편물이 법인보다 훨씬 많이 돌아옵니다. (번호와 결과는 지어낸 것입니다.)
# %%
chance = random.Random(7)
RETURNED = {"company": 0.02, "sole trader": 0.2, "closed": 0.9}


def invented_number(kind: str) -> str:
    middle = "81" if kind == "company" else "25"
    first = f"{chance.randrange(101, 900)}{middle}{chance.randrange(1, 10_000):04d}"
    weights = (1, 3, 7, 1, 3, 7, 1, 3, 5)
    total = sum(int(digit) * weight for digit, weight in zip(first, weights, strict=True))
    return first + str(-(total + int(first[8]) * 5 // 10) % 10)


def invented_month(day: str) -> pl.DataFrame:
    kinds = chance.choices(list(RETURNED), weights=(45, 45, 10), k=2_000)
    return pl.DataFrame(
        {
            "사업자번호": [invented_number(kind) for kind in kinds],
            "상호": "가나상사",
            "주소": [
                f"서울특별시 강남구 테헤란로 {chance.randrange(1, 999)}" for _ in kinds
            ],
            "사업자상태": [
                "폐업자" if kind == "closed" else "계속사업자" for kind in kinds
            ],
            "폐업일자": ["2024-03-02" if kind == "closed" else None for kind in kinds],
            "기준일자": day,
            "came back": [chance.random() < RETURNED[kind] for kind in kinds],
        }
    )


# %%
for day in ("2026-07-01", "2026-08-01", "2026-09-01"):
    month = invented_month(day)
    file = out / f"{day}.csv"
    month.drop("came back").write_csv(file)
    bs.build_registry([file], out / "registry.parquet")
    mailed = bs.enrich(
        file,
        out / f"{day}.mailed.csv",
        registry=out / "registry.parquet",
        today=day,
        status="none",
    )
    returned = month.filter("came back").select(
        "사업자번호", "주소", pl.lit("이사").alias("반송사유")
    )
    returned.write_csv(out / f"{day}.returned.csv")
    bs.label(
        out / f"{day}.returned.csv",
        run=mailed.run_id,
        mailed=day,
        returns_requested=True,
        complete=True,
        sent="all",
        today="2026-11-20",
    )

learned = bs.calibrate(today="2026-11-20")
learned
# %% [markdown] lang="en"
# The points show what was learned: 10 more points double the odds of a return. `before` is the old scorecard and `after` the new one.
# %% [markdown] lang="ko"
# 무엇을 배웠는지는 점수로 보입니다. 10점 오를 때마다 반송 가능성(오즈)이 두 배입니다. `before`가 이전 점수, `after`가 새 점수입니다.
# %%
changed = learned.frame.with_columns(change=pl.col("after") - pl.col("before"))
changed = changed.sort(
    pl.col("change").abs(), "feature", "level", descending=[True, False, False]
).head(8)
changed.drop("expert").to_pandas().round(1)
# %% [markdown] lang="en"
# The new scorecard counts at once:
# %% [markdown] lang="ko"
# 새 점수표는 바로 쓰입니다.
# %%
bs.verify(
    invented_number("sole trader"),
    "가나상사",
    "서울특별시 강남구 테헤란로 10",
    status="none",
).waterfall()
# %% [markdown] lang="en"
# If you do not like it, `bansong model rollback` goes back to the scorecard before. Nothing is deleted.
# %% [markdown] lang="ko"
# 마음에 들지 않으면 `bansong model rollback`으로 이전 점수표로 돌아갑니다. 지워지는 것은 없습니다.
# %%
bansong = f"{sys.executable} -m bansong"
# !{bansong} model history
# %% [markdown] lang="en"
# Next notebook: [Watch and changes](05_watch_and_changes.ipynb)
#
# Read more: [labels](../docs/labels.md) · [how right the risks are](../docs/risk-accuracy.md)
# %% [markdown] lang="ko"
# 다음 노트북: [감시와 변경](05_watch_and_changes.ko.ipynb)
#
# 더 읽기: [반송 등록](../docs/ko/outcomes.md) · [예측이 얼마나 맞는지(영어)](../docs/risk-accuracy.md)
