"""Reading the pickles of CIFAR's python version without running what may be hidden in a pickle.

A pickle is a program that may call any importable name. Here it may call four, none of which does more
than build an array of bytes or a bytes object; what else it can make is numbers, strings, lists and dicts.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np


def _byte_dtype(code: str | bytes, *_layout: Any) -> np.dtype[np.uint8]:
    # The official files were written by Python 2, whose 0 and 1 for "align" and "copy" numpy deprecates.
    if code not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"holds an array of {code!r}, not of bytes")
    return np.dtype(np.uint8)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"holds bytes encoded as {encoding!r}")
    return text.encode("latin1")


_reconstruct = np.ndarray(0).__reduce__()[0]
_from_buffer = np.zeros(1).__reduce_ex__(5)[0]

_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _byte_dtype,
    ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes in Python 2's protocol
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which is not needed to build arrays")
        return _ALLOWED[module, name]


def load_arrays(raw: bytes) -> Any:
    """The value pickled in `raw`: byte arrays, bytes, numbers, strings, lists, tuples and dicts."""
    return _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
