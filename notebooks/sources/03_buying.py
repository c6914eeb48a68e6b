# %% [markdown] lang="en"
# # Buying from the service
#
# An outside service knows what the built-in engine cannot know. Each lookup is paid from a monthly quota. This notebook shows a plan, buys within a budget, goes on, reads the ledger of purchases, and settles a lookup whose result is unknown.
#
# It asks a fake service that runs on this computer, so nothing is paid. The answers of the fake are invented: a status and an action need not agree.
#
# *한국어: [서비스에서 구매하기](03_buying.ko.ipynb)*
# %% [markdown] lang="ko"
# # 서비스에서 구매하기
#
# 내장 엔진이 알 수 없는 것은 외부 검증 서비스가 압니다. 한 건 조회할 때마다 월 조회 한도에서 한 건이 과금됩니다. 이 노트북에서는 계획을 보고, 예산 안에서 사고, 이어서 사고, 구매 장부를 보고, 결과를 모르는 건을 정리합니다.
#
# 이 컴퓨터에서 실행되는 모형에 물으므로 아무것도 과금되지 않습니다. 모형의 답은 지어낸 것이므로 상태와 조치가 서로 맞지 않을 수 있습니다.
#
# *English: [Buying from the service](03_buying.ipynb)*
# %%
import os
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

import pandas as pd

import bansong as bs
from bansong.testing import FakeService, Fault, Reset, serve

LANG = "en"
bs.set_language(LANG)
pd.set_option("display.max_colwidth", 200)
sample = Path("../sample_data/customers.csv")
out = Path(mkdtemp())
key = secrets.token_urlsafe()
service = FakeService(key, quota=300)
running = ExitStack()
# %% [markdown] lang="en"
# For the real service, too, give its address and your key as environment variables, so that they do not stay in the notebook. The ledger remembers what was paid. It is usually in the state directory; here it is a file of its own.
# %% [markdown] lang="ko"
# 실제 서비스에서도 주소와 키는 환경 변수로 주어 노트북에 남지 않게 합니다. 구매 장부는 무엇에 과금되었는지 기억합니다. 평소에는 상태 폴더에 있고, 여기서는 따로 만듭니다.
# %%
os.environ["BANSONG_BASE_URL"] = running.enter_context(serve(service))
os.environ["BANSONG_API_KEY"] = key
os.environ["BANSONG_LEDGER"] = str(out / "ledger.sqlite")
os.environ["BANSONG_STATE_DIR"] = str(out)

with bs.BlockingClient() as client:
    print(client.me())
# %% [markdown] lang="en"
# ## A plan
#
# Rows with the same content are one lookup. A row whose number cannot be a business number is not looked up.
# %% [markdown] lang="ko"
# ## 계획
#
# 내용이 같은 행은 한 건으로 조회합니다. 사업자번호가 될 수 없는 행은 조회하지 않습니다.
# %%
bs.plan(sample, engine="verify")
# %% [markdown] lang="en"
# ## Buy within a budget
#
# Buy only 50 lookups, first those of which the built-in engine is least sure. The other rows are `pending`: the run has paused, it has not failed.
# %% [markdown] lang="ko"
# ## 예산 안에서 사기
#
# 50건만, 내장 엔진이 가장 확신하지 못하는 것부터 삽니다. 나머지 행은 미처리(`pending`)입니다. 실패가 아니라 멈춘 것입니다.
# %%
report = bs.enrich(sample, out / "customers.csv", engine="verify", budget=50)
report
# %% [markdown] lang="en"
# The exit code is 5, which means paused. The service agrees that 50 lookups were paid.
# %% [markdown] lang="ko"
# 종료 코드 5는 멈췄다는 뜻입니다. 서비스도 50건을 과금했다고 셉니다.
# %%
report.exit_code, service.paid_total
# %% [markdown] lang="en"
# ## Go on
#
# The same call goes on. What is in the ledger is not bought again, whatever engine bought it. This time one answer is lost on its way.
# %% [markdown] lang="ko"
# ## 이어서 사기
#
# 같은 호출을 다시 하면 이어집니다. 장부에 있는 것은 어느 엔진으로 샀든 다시 사지 않습니다. 이번에는 답 하나를 도중에 잃어버려 봅니다.
# %%
service.faults.add(Fault("verify", Reset("after"), at=100))
bs.enrich(sample, out / "customers.csv", engine="verify", rate=500, concurrency=1)
# %% [markdown] lang="en"
# One lookup was sent and not answered. It may have been paid, so it is not sent again by itself. Its row is `in_doubt`, with a note.
# %% [markdown] lang="ko"
# 한 건은 보냈지만 답이 없습니다. 과금되었을 수 있으므로 저절로 다시 묻지 않습니다. 그 행은 `in_doubt`이고 이유가 적혀 있습니다.
# %%
customers = pd.read_csv(out / "customers.csv", dtype=str)
customers.loc[customers["row_status"] == "in_doubt", ["상호", "row_status", "row_note"]]
# %% [markdown] lang="en"
# ## The ledger
#
# The command shows the ledger, too: when, for which file, and how many lookups were paid.
# %% [markdown] lang="ko"
# ## 구매 장부
#
# 장부는 명령으로도 볼 수 있습니다. 언제, 어느 파일에, 몇 건이 과금되었는지 나옵니다.
# %%
bansong = f"{sys.executable} -m bansong"
# !{bansong} ledger
# %% [markdown] lang="en"
# ## Settle what is in doubt
#
# `resolve` shows what is to be settled. With `--lost` it stays without an answer, with `--resend` it is bought again. A person decides.
# %% [markdown] lang="ko"
# ## 결과를 모르는 건 정리하기
#
# `resolve`는 정리할 것을 보여 줍니다. `--lost`는 답 없이 두고, `--resend`는 다시 삽니다. 결정은 사람이 합니다.
# %%
# !{bansong} resolve
# !{bansong} resolve --all --resend
# %%
bs.enrich(sample, out / "customers.csv", engine="verify").counts
# %% [markdown] lang="en"
# Was that right? The service knows: the lost lookup had been paid, and it was paid again because we said so. Everything else was paid once.
# %% [markdown] lang="ko"
# 다시 사는 것이 맞았을까요? 서비스는 압니다. 잃어버린 조회는 이미 과금되었고, 우리가 다시 사라고 해서 두 번 과금되었습니다. 다른 것은 모두 한 번만 과금되었습니다.
# %%
{"paid": service.paid_total, "paid again": service.paid_again}
# %% [markdown] lang="en"
# ## One business, one table
#
# They use the same ledger, so these are not paid again.
# %% [markdown] lang="ko"
# ## 한 곳, 한 표
#
# 같은 장부를 쓰므로 다시 과금되지 않습니다.
# %%
table = pd.read_csv(sample, dtype=str).head(5)
bs.verify_frame(table, engine="verify")[
    ["상호", "biz_status", "action", "row_status"]
].fillna("")
# %%
row = table.iloc[0]
bs.verify(row["사업자등록번호"], row["상호"], row["주소"], engine="verify")
# %%
running.close()
# %% [markdown] lang="en"
# Next notebook: [Labels and learning](04_labels_and_learning.ipynb)
#
# Read more: [buying](../docs/buying.md)
# %% [markdown] lang="ko"
# 다음 노트북: [반송 기록과 학습](04_labels_and_learning.ko.ipynb)
#
# 더 읽기: [구매(영어)](../docs/buying.md)
