"""Settings that cannot be, experiments, parts, starts, names and errors."""

import itertools
import os
from typing import Any

import numpy as np
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
  SourceConfig,
  load_experiment,
)
from oneshot_dp.configs.head_config import HeadOptions, PublicStart
from oneshot_dp.configs.parts import WHOLE, Part
from oneshot_dp.extract.backbones.names import backbone_names
from oneshot_dp.extract.images import Preprocessing
from tests.extract.cache.caches import make_info
from tests.extract.refusals import refused

NO_PARTS = {"[80:]": "80%:", "[:1000]": ":1000%", "[10:20%]": "10%:20%"}
NO_PARTS |= {"80%:": "80%:"} | dict.fromkeys(
  ["[80%]", "train[:80%]", "[:1.5%]", "[-20%:]", "\x1b[2J"], ":80%"
)
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
      source((f"cat{c}dog",))
    if c not in "\t\n":  # which tables are made of
      assert escaped(f"cat{c}dog").isascii()
      assert escaped(f"cat{c}dog").isprintable()
    assert one_line(ValueError(f"cat{c}dog")).isprintable()
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
  with refused("it makes 1000001 classes: at most 1000000 are possible"):
    check_num_classes(1_000_001, "it")


def source(location: Any = ("x",), **settings: Any):
  return SourceConfig(location=location, **settings)


def job(**settings: Any):
  return ExtractConfig(source=source(), **settings)


def start(vectors, names=("a", "b", "c"), **settings):
  return PublicStart.of(
    vectors, num_classes=3, feature_dim=4, names=names, **settings
  )


@pytest.mark.parametrize(
  ("make", "settings", "said"),
  [
    (source, {"num_classes": 0}, "--num-classes=0 must be at least 1"),
    (source, {"split": "train[:80%]"}, r"--rows '\[:80%\]'"),
    (source, {"class_names": ("a", " ")}, "non-empty"),
    (source, {"name": "\x1b"}, "control characters"),
    (source, {"location": ()}, "location"),
    (job, {"views": 0}, "--views=0 must be at least 1"),
    (job, {"batch_size": -1}, "--batch-size=-1"),
    (PreprocessConfig, {"image_size": 0}, "--image-size=0"),
    (PreprocessConfig, {"resize": 0}, "--resize=0"),
    (start, {"vectors": np.ones((4, 3))}, r"float64 \(4, 3\): give numbers of"),
    (start, {"vectors": np.full((3, 4), "a")}, r"start is <U1"),
    (start, {"vectors": np.full((3, 4), 1j)}, r"start is complex128"),
    (start, {"vectors": np.eye(3, 4, 1) * [0, 1, 1, 0]}, "'c' is zeros only"),
    (start, {"vectors": [[1] * 4, [np.nan] * 4, [2] * 4]}, "'b' is not finite"),
    (start, {"vectors": np.ones((3, 4))}, "one vector for all classes"),
    (start, {"vectors": np.full((3, 4), 1e300)}, "one vector for all classes"),
    *(
      (Part.parse, {"text": text}, rf"such as '\[{fix}\]'")
      for text, fix in NO_PARTS.items()
    ),
    (Part.parse, {"text": "[:101%]"}, "must rise"),
    (Part.parse, {"text": "[50%:50%]"}, "must rise"),
    (Part.parse, {"text": "[60%:40%]"}, "must rise"),
    (make_info, {"n": 0}, "source_num_examples=0"),
    (make_info, {"d": -1}, "feature_dim=-1"),
    (
      make_info,
      {"shard_rows": 10**6},
      "shard_rows=1000000 must be at most 65536",
    ),
    (make_info, {"class_names": ()}, "class_names is empty"),
    (make_info, {"class_names": ("a", "b\n")}, "control characters"),
    (make_info, {"dataset": " "}, "must be a non-empty string"),
    (make_info, {"unit": "x\x1b[1m"}, "unit name"),
    (make_info, {"backbone": {}}, "backbone=None"),
    (load_experiment, {"name": "cifar10_vit_ti61"}, "mean cifar10_vit_ti16"),
    (load_experiment, {"name": ""}, "experiments are imagenet_v"),
    (
      load_experiment,
      {"name": "os.path\x1b"},
      r"'os.path\\x1b' does not exist",
    ),
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


def test_the_digits_come_along():
  from oneshot_dp.extract.sources.open_source import open_source

  place = EXPERIMENTS["digits"].source.location
  for split, size in ("train", 1437), ("test", 360):
    found = open_source(source(place, split=split))
    assert len(found) == size
    assert found.class_names == tuple("0123456789")


def test_a_part_is_read_as_it_is_written_and_its_mean_is_public():
  for text, *numbers in (
    ("", 0, 100),
    ("[:80%]", 0, 80),
    ("[80%:]", 80, 100),
    (" [10% : 20%] ", 10, 20),
    ("[:]", 0, 100),
    ("[0%:100%]", 0, 100),
  ):
    part = Part.parse(text)
    assert [part.first, part.last] == numbers
    assert Part.parse(str(part)) == part
    assert part.is_whole == (part == WHOLE) == (str(part) == "")
  parts = [Part(10 * i, 10 * i + 10) for i in range(10)]
  assert sum(part.mean_of(1000) for part in parts) == 1000
  assert Part(0, 1).mean_of(3) == 1  # never nothing
  assert WHOLE.mean_of(17) == 17


def test_a_start_ranks_by_what_differs_between_classes():
  vectors = np.random.default_rng(0).standard_normal((3, 4))
  kernel = start(vectors).kernel()
  x = np.random.default_rng(1).standard_normal((50, 4))
  np.testing.assert_array_equal(
    (x @ kernel).argmax(axis=1), (x @ vectors.T).argmax(axis=1)
  )
  np.testing.assert_allclose(kernel.sum(axis=1), 0, atol=1e-12)
  assert np.isfinite(start(1e300 * vectors).kernel()).all()
  assert start(vectors).sha256 != start(2 * vectors).sha256
  assert start(vectors, sha256="ab").sha256 == "ab"
  assert HeadOptions().as_json() == {"balanced": False}
  said = HeadOptions(balanced=True, start=start(vectors)).as_json()
  assert said == {"balanced": True, "start_sha256": start(vectors).sha256}
