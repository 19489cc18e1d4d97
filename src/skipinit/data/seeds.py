"""One seed out of several numbers, so that each use of randomness has a stream of its own."""

from __future__ import annotations

import hashlib


def mix(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part and on their order, the same on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
