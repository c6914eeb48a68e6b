"""The tax authority's open API (국세청 사업자등록정보 상태조회): the status of any business number, free, with a key.

- ``nts_client``: :class:`NtsClient` asks for up to 100 numbers a call
- ``nts_key``: :class:`NtsKey`, which is used and never shown
- ``replies``: what the body of a reply means
- ``reply_errors``: the error, in one sentence with a remedy, that any other reply stands for
"""

from bansong.engine.registry import STATUS_SCHEMA
from bansong.reference.nts.nts_client import MAX_NUMBERS, NtsClient
from bansong.reference.nts.nts_key import NtsKey
from bansong.reference.nts.replies import StatusReply

__all__ = ["MAX_NUMBERS", "STATUS_SCHEMA", "NtsClient", "NtsKey", "StatusReply"]
