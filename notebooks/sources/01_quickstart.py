# %% [markdown] lang="en"
# # Quickstart
#
# Verify a list of business customers before you mail it: is each one still in business, how likely does the letter come back, what should you do, what is the right address, and why.
#
# This notebook uses sample data only. It needs no network and no key. The companies are invented, and their names and addresses are Korean, as in a real file: 상호 is the name, 주소 the address, 사업자등록번호 the business number.
#
# *한국어: [빠른 시작](01_quickstart.ko.ipynb)*
# %% [markdown] lang="ko"
# # 빠른 시작
#
# 우편물을 보내기 전에 거래처 명단을 확인합니다. 영업 중인지, 반송될 확률은 얼마인지, 어떻게 하면 좋은지, 올바른 주소는 무엇인지, 왜 그렇게 판단했는지를 알려 드립니다.
#
# 샘플 자료만 쓰므로 네트워크도 키도 필요 없습니다. 샘플의 업체는 모두 지어낸 것입니다.
#
# *English: [Quickstart](01_quickstart.ipynb)*
# %%
from pathlib import Path
from tempfile import mkdtemp

import altair as alt
import pandas as pd

import bansong as bs

LANG = "en"
bs.set_language(LANG)
alt.renderers.enable("png", ppi=144)
pd.set_option("display.max_colwidth", 200)
sample = Path("../sample_data")
out = Path(mkdtemp())
data = {"registry": sample / "registry.parquet", "gazetteer": sample / "gazetteer.parquet"}
# %% [markdown] lang="en"
# ## A list in pandas
#
# `verify_frame` takes a pandas or polars frame and returns the same type. Your columns and your index stay as they are. Nine columns are added at the end.
# %% [markdown] lang="ko"
# ## 명단을 pandas로
#
# `verify_frame`에 pandas를 주면 pandas로, polars를 주면 polars로 돌려줍니다. 원래 열과 인덱스는 그대로이고, 열 아홉 개가 뒤에 붙습니다.
# %%
customers = pd.read_excel(sample / "customers.xlsx", dtype=str)
verified = bs.verify_frame(customers, **data)
verified[["상호", "biz_status", "bounce_prob", "grade", "action"]].head(8)
# %% [markdown] lang="en"
# The second row has no business number, so nothing is said about it. `row_note` gives the reason for such a row.
#
# Mail the rows whose `action` is `send`. How many letters are there of each action, and how many of them may come back?
# %% [markdown] lang="ko"
# 둘째 행은 사업자번호가 없어 판정하지 않았습니다. 그런 행의 이유는 `row_note`에 있습니다.
#
# 보내도 되는 곳은 `action`이 `send`인 행입니다. 조치마다 우편물이 몇 통이고, 그중 몇 통이 돌아올지 더해 봅니다.
# %%
verified.groupby("action").agg(
    letters=("action", "size"), expected_back=("bounce_prob", "sum")
).round(1)
# %% [markdown] lang="en"
# ## A file, and pictures
#
# `enrich` reads a file and writes it again with the columns added. `headers="en"` writes their titles and values in English words. The list of letters (`letters`) has only what you should mail, in the order of postal codes.
# %% [markdown] lang="ko"
# ## 파일로, 그림으로
#
# `enrich`에 파일을 주면 열을 더한 파일을 만듭니다. `headers="ko"`로 지정하면 더한 열의 제목과 값을 한국어로 씁니다. 발송 명단(`letters`)에는 보낼 우편물만 우편번호 순으로 담습니다.
# %%
report = bs.enrich(
    sample / "customers.xlsx",
    out / "result.xlsx",
    headers=LANG,
    letters=out / "letters.xlsx",
    letter_cost=500,
    **data,
)
report
# %%
report.chart_grades()
# %% [markdown] lang="en"
# A is the lowest risk and E the highest. Rows without a grade have no valid number, or an address that cannot be judged.
#
# Where do most letters come back?
# %% [markdown] lang="ko"
# A가 가장 안전하고 E가 가장 위험합니다. 번호가 잘못되었거나 주소를 판단할 수 없는 행에는 등급이 없습니다.
#
# 시·도별로는 어디에서 많이 돌아올까요?
# %%
report.chart_regions()
# %% [markdown] lang="en"
# The first letters to mail:
# %% [markdown] lang="ko"
# 발송 명단의 처음 몇 통입니다.
# %%
pd.read_excel(out / "letters.xlsx", dtype=str).fillna("").head()
# %% [markdown] lang="en"
# ## Why this answer?
#
# Look at the riskiest business. Its reasons carry points, and the points add up to a score. The higher the score, the likelier the letter comes back.
# %% [markdown] lang="ko"
# ## 왜 그렇게 판단했나요?
#
# 가장 위험한 곳을 골라 봅니다. 판정 근거마다 점수가 있고, 모두 더하면 합계 점수가 됩니다. 점수가 높을수록 반송 확률이 높습니다.
# %%
riskiest = verified.sort_values("bounce_prob", ascending=False).iloc[0]
one = bs.verify(riskiest["사업자등록번호"], riskiest["상호"], riskiest["주소"], **data)
one
# %%
one.waterfall()
# %% [markdown] lang="en"
# ## Addresses that are not certain
#
# Some addresses fit several buildings, or were corrected without a second field that agrees. `review` writes them to a workbook with their candidates, and a person chooses. The next run uses the chosen address (`bs.apply_review`). This is the one row of it, shown as a column:
# %% [markdown] lang="ko"
# ## 확실하지 않은 주소
#
# 해당하는 곳이 여럿인 주소, 보정했으나 다른 항목으로 확인되지 않은 주소가 있습니다. `review`를 지정하면 그런 주소를 후보와 함께 엑셀로 뽑아 사람이 고를 수 있습니다. 한 번 고르면 다음 실행부터 그 주소를 씁니다(`bs.apply_review`). 다음은 그 한 행을 세로로 보인 것입니다.
# %%
bs.enrich(sample / "customers.csv", out / "again.csv", review=out / "review.xlsx", **data)
pd.read_excel(out / "review.xlsx", header=1, dtype=str).dropna(axis=1).T
# %% [markdown] lang="en"
# Next notebook: [Statuses and addresses](02_statuses_and_addresses.ipynb)
#
# Read more: [README](../README.md) · [actions](../docs/actions.md) · [how it works](../docs/how_it_works.md)
# %% [markdown] lang="ko"
# 다음 노트북: [휴·폐업 상태와 주소](02_statuses_and_addresses.ko.ipynb)
#
# 더 읽기: [따라 하기](../docs/ko/tutorial.md) · [조치 안내](../docs/ko/actions.md) · [데이터 준비](../docs/ko/preparing-data.md)
