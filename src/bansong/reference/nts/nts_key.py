"""The key of the tax authority's open API, which the portal data.go.kr shows in two forms.

>>> NtsKey("ab%2Bcd%3D%3D") == NtsKey("ab+cd=="), NtsKey("ab+cd==")
(True, NtsKey(…))
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from bansong.client.key import SecretKey
from bansong.options import ENV_NTS_KEY as ENV_NTS_KEY
from bansong.options import ENV_NTS_KEY_FILE as ENV_NTS_KEY_FILE
from bansong.translation import gettext_noop

_PASTED: Final = re.compile(
    r"""^\s*["'“‘]?(?:.*\bserviceKey=)?["'“‘]?(?P<key>[^"'”’&]*)["'”’]?(?:&.*)?\s*$""", re.IGNORECASE | re.DOTALL
)
"""A key as people copy it: in quotation marks, or out of a URL."""


class NtsKey(SecretKey):
    """A key (일반 인증키) of the portal data.go.kr, in its Encoding or its Decoding form.

    The encoded form is decoded once, as the header takes no other. Quotation marks and ``serviceKey=`` around it are
    dropped. From BANSONG_NTS_KEY, or a file.
    """

    NAME = gettext_noop("NTS API key")
    ORIGIN = "data.go.kr (마이페이지 → 인증키)"
    ENV = ENV_NTS_KEY
    ENV_FILE = ENV_NTS_KEY_FILE
    HEADER = "Authorization"
    SCHEME = "Infuser "

    __slots__ = ()

    def __init__(self, value: str) -> None:
        try:
            value = _PASTED.sub(r"\g<key>", value).strip() if isinstance(value, str) else value
            super().__init__(unquote(value) if isinstance(value, str) else value)
            if value not in self._forms:
                self._forms.insert(0, value)  # encoded in a way of its own, and as long as any form
        finally:
            del value  # a traceback may be shown with the variables of its frames
