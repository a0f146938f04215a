"""Settings that cannot be, experiments, names and errors."""

import itertools
import os
from typing import Any

import pytest

from oneshot_dp.configs.errors import (
  check_name,
  check_num_classes,
  escaped,
  one_line,
)
from oneshot_dp.configs.extract_config import (
  EXPERIMENTS,
  ExtractConfig,
  PreprocessConfig,
  SourceSettings,
  load_experiment,
)
from oneshot_dp.extract.backbones.names import backbone_names
from oneshot_dp.extract.images import Preprocessing
from tests.extract.refusals import refused

SOURCE = SourceSettings(location=("x",))
BAD = [
  *map(chr, itertools.chain(range(32), range(127, 160))),  # C0, DEL, C1
  *os.fsdecode(b"\xff\x80"),
  *"\u2028\u2029",  # break lines
  *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))),  # turn them
]


def test_what_forges_a_line():
  for c in BAD:
    with refused("control characters"):
      check_name("a word", f"cat{c}dog")
    with refused("control characters|UTF-8"):
      SourceSettings(location=(f"cat{c}dog",))
    if c not in "\t\n":  # which tables are made of
      assert escaped(f"cat{c}dog").isascii() or c in "\t\n"
      assert escaped(f"cat{c}dog").isprintable()
    assert one_line(ValueError(f"cat{c}dog")).isprintable()


def test_what_forges_none():
  for text in ("", "žlutý kůň", "猫 🐈", "\N{RIGHT-TO-LEFT MARK}\u200d\xa0"):
    check_name("a word", f"x{text}")
    assert escaped(f"{text}\tx\ny") == f"{text}\tx\ny"


def test_what_is_no_name_and_errors_without_words():
  for name in ("", "  ", "x" * 1001, None, 3, "a\nb"):
    with refused("class"):
      check_name("class", name)
  assert one_line(KeyError()) == "KeyError"
  assert one_line(ValueError("a\n  b.")) == "a b"
  assert len(one_line(ValueError("x" * 9999))) == 200
  check_num_classes(1_000_000, "it")
  with refused("it makes 1000001 classes: there are 1000000 at most"):
    check_num_classes(1_000_001, "it")


def source(location: Any = ("x",), **settings: Any):
  return SourceSettings(location=location, **settings)


def job(**settings: Any):
  return ExtractConfig(source=SOURCE, **settings)


@pytest.mark.parametrize(
  ("make", "settings", "said"),
  [
    (source, {"num_classes": 0}, "--num-classes=0 must be at least 1"),
    (source, {"split": "train[:80%]"}, r"--rows '\[:80%\]'"),
    (source, {"class_names": ("a", " ")}, "not blank"),
    (source, {"name": "\x1b"}, "control characters"),
    (source, {"location": ()}, "location"),
    (job, {"views": 0}, "--views=0 must be at least 1"),
    (job, {"batch_size": -1}, "--batch-size=-1"),
    (PreprocessConfig, {"image_size": 0}, "--image-size=0"),
    (PreprocessConfig, {"resize": 0}, "--resize=0"),
  ],
)
def test_settings_that_cannot_be(make, settings, said):
  with refused(said):
    make(**settings)


def test_every_experiment_names_what_there_is():
  assert sum(name.startswith("imagenet_") for name in EXPERIMENTS) == 5
  known = set(backbone_names())
  for name, config in EXPERIMENTS.items():
    assert load_experiment(name) is config
    assert config.backbone in known or config.backbone == "bit_r50x4"
    changed = Preprocessing().changed(config.preprocess)
    assert changed.image_size <= 256
  paper = EXPERIMENTS["imagenet_vit_b16"].preprocess
  assert (paper.image_size, paper.resize) == (256, 384)

  for name, said in (
    ("cifar10_vit_ti61", "did you mean cifar10_vit_ti16"),
    ("", "nor an experiment: there are imagenet_vit_b16"),
    ("os.path\x1b", r"'os.path\\x1b' is no file"),
  ):
    with refused(said):
      load_experiment(name)


def test_the_digits_come_along():
  from oneshot_dp.extract.sources.open_source import open_source

  place = EXPERIMENTS["digits"].source.location
  for split, size in ("train", 1437), ("test", 360):
    source = open_source(SourceSettings(location=place, split=split))
    assert len(source) == size
    assert source.class_names == tuple("0123456789")
