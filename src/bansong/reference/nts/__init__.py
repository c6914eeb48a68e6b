"""The tax authority's open API (국세청 사업자등록정보 상태조회): the status of any business number, with a free key."""

from bansong.engine.registry import STATUS_SCHEMA
from bansong.reference.nts.nts_client import MAX_NUMBERS, NtsClient
from bansong.reference.nts.nts_key import NtsKey
from bansong.reference.nts.replies import StatusReply

__all__ = ["MAX_NUMBERS", "STATUS_SCHEMA", "NtsClient", "NtsKey", "StatusReply"]
