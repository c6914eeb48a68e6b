# %% [markdown] lang="en"
# # Statuses and addresses
#
# The status of a business comes from two places: a status file of your own (the registry), and the free API of the National Tax Service. An address is compared with the official road names (the gazetteer).
#
# This notebook asks a fake of the tax service that runs on this computer. It needs no key and no internet.
#
# *한국어: [휴·폐업 상태와 주소](02_statuses_and_addresses.ko.ipynb)*
# %% [markdown] lang="ko"
# # 휴·폐업 상태와 주소
#
# 사업자 상태는 두 곳에서 옵니다. 파일로 받은 상태 자료(registry)와 국세청의 무료 API입니다. 주소는 도로명주소 자료(gazetteer)와 맞춰 봅니다.
#
# 이 노트북은 국세청 대신 이 컴퓨터에서 실행되는 모형에 물으므로 키도 인터넷도 필요 없습니다.
#
# *English: [Statuses and addresses](02_statuses_and_addresses.ipynb)*
# %%
import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

import altair as alt
import pandas as pd

import bansong as bs
from bansong.testing import FakeNts, serve

LANG = "en"
bs.set_language(LANG)
alt.renderers.enable("png", ppi=144)
pd.set_option("display.max_colwidth", 200)
sample = Path("../sample_data")
out = Path(mkdtemp())
running = ExitStack()
os.environ["BANSONG_STATE_DIR"] = str(out)
# %% [markdown] lang="en"
# ## Build a registry
#
# Any table with numbers and statuses will do. If a number occurs more than once, the row with the latest date counts.
# %% [markdown] lang="ko"
# ## 상태 자료 만들기
#
# 번호와 상태가 있는 표라면 무엇이든 됩니다. 같은 번호가 여러 번 나오면 기준일이 가장 최근인 행을 씁니다.
# %%
bs.build_registry([sample / "registry_source.csv"], out / "registry.parquet")
# %% [markdown] lang="en"
# ## Ask the tax service
#
# With a free key from data.go.kr in `BANSONG_NTS_KEY`, the real service is asked. Here a fake says that two active businesses have closed. An answer is kept, and the same number is not asked again for 30 days.
# %% [markdown] lang="ko"
# ## 국세청에 묻기
#
# data.go.kr에서 무료로 받은 인증키를 `BANSONG_NTS_KEY`에 지정하면 국세청에 직접 묻습니다. 여기서는 영업 중이던 두 곳이 폐업했다고 답하는 모형을 세웁니다. 한 번 받은 답은 저장해 두고, 같은 번호는 30일 동안 다시 묻지 않습니다.
# %%
known = pd.read_parquet(out / "registry.parquet")
statuses = dict(zip(known["b_no"].astype(str), known["biz_status"], strict=True))
closed = [number for number, status in statuses.items() if status == "active"][:2]
nts = FakeNts(statuses=statuses | dict.fromkeys(closed, "closed"))
os.environ["BANSONG_NTS_URL"] = running.enter_context(serve(nts))
os.environ["BANSONG_NTS_KEY"] = nts.api_key
bs.fetch_status(closed).to_pandas()[["b_no", "biz_status", "taxation", "as_of"]]
# %%
report = bs.enrich(
    sample / "customers.csv",
    out / "statuses.csv",
    status="nts",
    registry=out / "registry.parquet",
)
print(report.statuses.summary)
# %% [markdown] lang="en"
# The newer of two answers counts. `reasons` says which source was asked, and when: `nts` is the tax service.
# %% [markdown] lang="ko"
# 둘 중 더 최근의 답을 씁니다. 어느 자료에서 언제 확인했는지는 `reasons`에 남습니다. `nts`가 국세청입니다.
# %%
result = pd.read_csv(out / "statuses.csv", dtype=str)
result["why"] = result["reasons"].str.split(" | ", regex=False).str[0]
result.loc[result["biz_status"] == "closed", ["상호", "biz_status", "action", "why"]].head(
    3
)
# %% [markdown] lang="en"
# ## How an address is corrected
#
# Build the gazetteer from the full data of the Ministry of the Interior. Here it is a sample of invented buildings. It recognises spelling mistakes, lot numbers, former names of regions, and addresses without blanks.
# %% [markdown] lang="ko"
# ## 주소가 고쳐지는 과정
#
# 도로명주소 자료는 행정안전부의 전체 자료로 만듭니다. 여기서는 지어낸 건물로 된 견본을 씁니다. 오타, 지번, 옛 지역 이름, 붙여 쓴 주소를 알아봅니다.
# %%
bs.build_gazetteer(
    [sample / "rnaddrkor_sample.txt", sample / "jibun_rnaddrkor_sample.txt"],
    out / "gazetteer.parquet",
)
# %% [markdown] lang="en"
# Six addresses: a right one, one with a spelling mistake (송도과햑로), one without blanks, one with the former name of its province (전라북도), one with a lot number (499-2), and one without a building number.
# %% [markdown] lang="ko"
# 주소 여섯 개를 봅니다. 차례로 올바른 주소, 오타가 있는 주소(송도과햑로), 붙여 쓴 주소, 옛 도 이름(전라북도)으로 쓴 주소, 지번(499-2)으로 쓴 주소, 건물번호가 없는 주소입니다.
# %%
addresses = pd.DataFrame(
    {
        "사업자번호": ["124-81-00998"] * 6,
        "주소": [
            "대전광역시 유성구 대학로 313",
            "인천광역시 연수구 송도과햑로 416, 2층",
            "충청남도천안시서북구불당대로290",
            "전라북도 전주시 완산구 전주천동로 46",
            "대구광역시 수성구 범어동 499-2",
            "유성구 대학로",
        ],
    }
)
reference = {
    "registry": out / "registry.parquet",
    "gazetteer": out / "gazetteer.parquet",
    "status": "none",
}
found = bs.verify_frame(addresses, extra_columns=["match_level"], **reference)
found[["주소", "fixed_zipcode", "fixed_address", "match_level", "bounce_prob"]].fillna("")
# %% [markdown] lang="en"
# An address is corrected only if it is certainly one building. Otherwise the two `fixed_` columns stay empty, and the reasons say why.
# %% [markdown] lang="ko"
# 한 건물로 확실할 때만 고칩니다. 확실하지 않으면 `fixed_` 두 열은 비어 있고, 판정 근거에 이유가 있습니다.
# %%
one = bs.verify(
    "124-81-00998", address="인천광역시 연수구 송도과햑로 416, 2층", **reference
)
one
# %%
one.waterfall()
# %% [markdown] lang="en"
# ## Addresses that a person chooses
#
# Addresses that a person must look at go to a workbook. Write the number of a candidate into the column `choice`. `bs.apply_review` reads the workbook, and later runs use the chosen address. This is one row of it, shown as a column:
# %% [markdown] lang="ko"
# ## 사람이 고르는 주소
#
# 사람이 봐야 하는 주소는 엑셀로 뽑아 고릅니다. `선택` 칸에 후보 번호를 적고 `bs.apply_review`로 읽으면 다음 실행부터 그 주소를 씁니다. 다음은 그 가운데 한 행을 세로로 보인 것입니다.
# %%
bs.enrich(
    sample / "customers.csv", out / "result.csv", review=out / "review.xlsx", **reference
)
pd.read_excel(out / "review.xlsx", header=1, dtype=str).fillna("").head(1).T
# %%
running.close()
# %% [markdown] lang="en"
# Next notebook: [Buying](03_buying.ipynb)
#
# Read more: [statuses](../docs/status.md) · [where data comes from](../docs/data-sources.md)
# %% [markdown] lang="ko"
# 다음 노트북: [서비스에서 구매하기](03_buying.ko.ipynb)
#
# 더 읽기: [데이터 준비](../docs/ko/preparing-data.md) · [휴·폐업 상태(영어)](../docs/status.md) · [데이터의 출처(영어)](../docs/data-sources.md)
