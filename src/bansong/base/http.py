"""The only import of httpx and of httpcore below it: a fork with the same names takes their place here.

Import this module only where something is sent: that takes 0.1 s. ``.ci/httpx2`` tests it with httpx2.
"""

import httpcore
import httpx

__all__ = ["httpcore", "httpx"]
