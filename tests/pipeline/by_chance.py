"""What chance writes and draws, kept out of what a test looks for."""

import os
import pathlib
import random
import re

import pytest


def same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
  """The system's random bits are the same in every run, and still private."""
  monkeypatch.setattr(os, "urandom", random.Random(0).randbytes)


def without_names(text: str, place: pathlib.Path) -> str:
  """Less digests and the folder of this run: any digits may be in those."""
  digest = r"(?<![\w.])(?=\d*[a-f])(?:[\da-f]{64}|[\da-f]{12})\b"
  return re.sub(digest, "", text.replace(str(place), ""))
