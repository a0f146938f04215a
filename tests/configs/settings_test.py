"""Settings that cannot be, experiments, parts and starts."""

from typing import Any

import numpy as np
import pytest

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

# What is not a part, and what the error says to write.
NO_PARTS = {
  "[80:]": "80%:",
  "[:1000]": ":1000%",
  "[10:20%]": "10%:20%",
  "80%:": "80%:",
  "[80%]": ":80%",
  "train[:80%]": ":80%",
  "[:1.5%]": ":80%",
  "[-20%:]": ":80%",
  "\x1b[2J": ":80%",
}


def source(location: Any = ("x",), **settings: Any):
  return SourceConfig(location=location, **settings)


def job(**settings: Any):
  return ExtractConfig(source=source(), **settings)


def start(vectors, names=("a", "b", "c"), **settings):
  return PublicStart.of(
    vectors, num_classes=3, feature_dim=4, names=names, **settings
  )


@pytest.mark.parametrize(
  ("make", "settings", "message"),
  [
    (source, {"num_classes": 0}, "num_classes=0 must be at least 1"),
    (source, {"split": "train[:80%]"}, r"--rows '\[:80%\]'"),
    (source, {"class_names": ("a", " ")}, "non-empty"),
    (source, {"name": "\x1b"}, "control characters"),
    (source, {"location": ()}, "location"),
    (PreprocessConfig, {"bit_depth": 11}, "^bit_depth=11 must be one of 8"),
    (job, {"views": 0}, "views=0 must be at least 1"),
    (job, {"batch_size": -1}, "batch_size=-1"),
    (PreprocessConfig, {"image_size": 0}, "image_size=0"),
    (PreprocessConfig, {"resize": 0}, "resize=0"),
    (start, {"vectors": np.ones((4, 3))}, r"float64 \(4, 3\): give numbers of"),
    (start, {"vectors": np.full((3, 4), "a")}, r"start is <U1"),
    (start, {"vectors": np.full((3, 4), 1j)}, r"start is complex128"),
    (start, {"vectors": np.eye(3, 4, 1) * [0, 1, 1, 0]}, "'c' is zeros only"),
    (start, {"vectors": [[1] * 4, [np.nan] * 4, [2] * 4]}, "'b' is not finite"),
    (start, {"vectors": np.ones((3, 4))}, "one vector for all classes"),
    (start, {"vectors": np.full((3, 4), 1e300)}, "one vector for all classes"),
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
def test_settings_that_cannot_be_are_refused(make, settings, message):
  with refused(message):
    make(**settings)


# Experiments.


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_names_a_backbone_and_an_image_size_that_there_are(name):
  config = load_experiment(name)

  assert config is EXPERIMENTS[name]
  assert config.backbone in {*backbone_names(), "bit_r50x4"}
  changed = Preprocessing().changed(config.preprocess)
  assert changed.image_size <= 256


def test_experiments_of_the_paper_are_five_and_have_its_sizes():
  of_paper = [name for name in EXPERIMENTS if name.startswith("imagenet_")]
  preprocess = EXPERIMENTS["imagenet_vit_b16"].preprocess

  assert len(of_paper) == 5
  assert (preprocess.image_size, preprocess.resize) == (256, 384)


@pytest.mark.parametrize(("split", "size"), [("train", 1437), ("test", 360)])
def test_digits_come_with_the_package(split, size):
  from oneshot_dp.extract.sources.open_source import open_source

  place = EXPERIMENTS["digits"].source.location

  digits = open_source(source(place, split=split))

  assert len(digits) == size
  assert digits.class_names == tuple("0123456789")


# Parts.


@pytest.mark.parametrize(
  ("text", "first", "last"),
  [
    ("", 0, 100),
    ("[:80%]", 0, 80),
    ("[80%:]", 80, 100),
    (" [10% : 20%] ", 10, 20),
    ("[:]", 0, 100),
    ("[0%:100%]", 0, 100),
  ],
)
def test_part_is_read_and_written_as_the_same_numbers(text, first, last):
  part = Part.parse(text)

  assert (part.first, part.last) == (first, last)
  assert Part.parse(str(part)) == part


def test_part_of_everything_is_whole_and_written_as_nothing():
  part = Part.parse("[0%:100%]")

  assert part == WHOLE
  assert part.is_whole
  assert str(part) == ""


def test_part_of_less_than_everything_is_not_whole():
  part = Part.parse("[:80%]")

  assert part != WHOLE
  assert not part.is_whole
  assert str(part) != ""


@pytest.mark.parametrize(("text", "fix"), NO_PARTS.items())
def test_part_that_cannot_be_read_is_refused_with_one_that_can(text, fix):
  with refused(rf"such as '\[{fix}\]'"):
    Part.parse(text)


def test_part_means_of_all_parts_add_up_to_all_rows():
  tenths = [Part(10 * i, 10 * i + 10) for i in range(10)]

  assert sum(part.mean_of(1000) for part in tenths) == 1000
  assert WHOLE.mean_of(17) == 17


def test_part_mean_is_never_nothing():
  assert Part(0, 1).mean_of(3) == 1


# Starts.


@pytest.fixture
def vectors():
  return np.random.default_rng(0).standard_normal((3, 4))


def test_start_ranks_classes_as_its_vectors_do(vectors):
  rows = np.random.default_rng(1).standard_normal((50, 4))

  ranked = (rows @ start(vectors).kernel()).argmax(axis=1)

  np.testing.assert_array_equal(ranked, (rows @ vectors.T).argmax(axis=1))


def test_start_has_a_kernel_that_is_zero_on_average(vectors):
  kernel = start(vectors).kernel()

  np.testing.assert_allclose(kernel.sum(axis=1), 0, atol=1e-12)


def test_start_of_huge_vectors_has_a_finite_kernel(vectors):
  assert np.isfinite(start(1e300 * vectors).kernel()).all()


def test_start_has_the_digest_of_its_vectors_or_of_its_file(vectors):
  assert start(vectors).sha256 != start(2 * vectors).sha256
  assert start(vectors, sha256="ab").sha256 == "ab"


def test_options_that_nobody_chose_are_not_stated():
  assert HeadOptions().as_json() == {"balanced": False}


def test_options_state_the_digest_of_a_start(vectors):
  options = HeadOptions(balanced=True, start=start(vectors)).as_json()

  assert options == {"balanced": True, "start_sha256": start(vectors).sha256}
