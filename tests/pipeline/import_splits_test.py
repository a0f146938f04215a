"""Which files of a folder are imported, and that they agree on the classes."""

from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.import_table import import_table
from tests.pipeline.vector_tables import (
  K,
  N,
  npz,
  parquet,
  vectors,
  write_parquet_split,
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
  """Relative names, since a split is also looked for in folders' names."""
  monkeypatch.chdir(tmp_path)


@pytest.fixture
def two_splits():
  """A folder of two files, each named after its split."""
  folder = Path("vectors")
  write_parquet_split(folder, "train-0.parquet", [0, 1, 2])
  write_parquet_split(folder, "test-0.parquet", [0, 1])
  return folder


def test_files_of_another_split_are_not_imported(two_splits):
  cache = import_table(two_splits, Path("c"), split="test", num_classes=K)

  assert cache.info.split == "test"
  assert cache.info.source_num_examples == 2


def test_one_of_several_splits_has_to_be_named(two_splits):
  with pytest.raises(InputError, match="--split"):
    import_table(two_splits, Path("c"), num_classes=K)


@pytest.mark.parametrize("column", ["split", "Split", "subset"])
def test_partitions_of_another_split_are_not_imported(column):
  folder = Path("vectors")
  for split, labels in {"train": [0, 1, 2], "test": [0, 1]}.items():
    write_parquet_split(folder / f"{column}={split}", "0.parquet", labels)

  cache = import_table(folder, Path("c"), split="train", num_classes=K)

  assert cache.info.source_num_examples == 3


@pytest.mark.parametrize("column", ["split", "Split", "subset"])
def test_import_of_a_column_that_says_several_splits_is_refused(column):
  embedding, label = vectors()
  splits = ["train"] * (N - 100) + ["test"] * 100
  columns = {column: splits}
  file = parquet(Path("all.parquet"), list(embedding), label, **columns)

  with pytest.raises(InputError, match=r"several splits .*'test', 'train'"):
    import_table(file, Path("c"), split="train", num_classes=K)


@pytest.mark.filterwarnings("ignore:.*not used")
def test_import_of_files_that_say_a_split_each_is_refused():
  embedding, label = vectors()
  Path("vectors").mkdir()
  for split in ("train", "test"):
    file = Path("vectors") / f"of-{ord(split[1])}.parquet"
    parquet(file, list(embedding), label, split=[split] * N)

  with pytest.raises(InputError, match=r"several splits .*'test', 'train'"):
    import_table(Path("vectors"), Path("c"), num_classes=K)


def test_import_of_a_column_that_says_one_split_is_of_all_rows():
  embedding, label = vectors()
  splits = ["train"] * N
  file = parquet(Path("all.parquet"), list(embedding), label, split=splits)

  with pytest.warns(UserWarning, match="'split' not used"):
    cache = import_table(file, Path("c"), num_classes=K)

  assert cache.info.source_num_examples == N


def test_import_of_a_folder_of_images_names_extract():
  Path("photos/cat").mkdir(parents=True)
  Path("photos/cat/0.png").write_bytes(b"an image")

  with pytest.raises(InputError, match=r"'photos' has no .* `oneshot-dp extr"):
    import_table(Path("photos"), Path("c"), num_classes=K)


def test_a_file_that_says_its_split_is_of_no_other():
  write_parquet_split(Path(), "vectors-test.parquet", [0, 1])

  with pytest.raises(InputError, match="--split 'train' is none of"):
    import_table(
      Path("vectors-test.parquet"), Path("c"), split="train", num_classes=K
    )


def test_files_with_classes_in_another_order_are_refused():
  """A label would be another class in one file than in the other."""
  folder = Path("vectors")
  write_parquet_split(folder, "a.parquet", [0, 1], ["cat", "dog"])
  write_parquet_split(folder, "b.parquet", [0, 1], ["dog", "cat"])

  with pytest.raises(InputError, match="defines different classes"):
    import_table(folder, Path("c"))


@pytest.mark.filterwarnings("ignore:.*not used")
@pytest.mark.parametrize("column", ["is_test", "train_mask", "mode"])
@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_import_of_a_column_that_flags_test_rows_is_refused(kind, column):
  embedding, label = vectors()
  flags = np.arange(N) < 100
  if column == "mode":
    flags = np.where(flags, "train", "test")
  if kind == "npz":
    file = npz(Path("all.npz"), **{column: flags})
  else:
    file = parquet(
      Path("all.parquet"), list(embedding), label, **{column: flags}
    )

  with pytest.raises(InputError, match=f"several splits .*'{column}'"):
    import_table(file, Path("c"), num_classes=K)


@pytest.mark.filterwarnings("ignore:.*not used")
def test_import_passes_over_floats_and_gaps_in_other_columns():
  """They are named as splits, and are measurements."""
  embedding, label = vectors()
  flags = [None, *[True] * (N - 1)]
  file = parquet(
    Path("all.parquet"),
    list(embedding),
    label,
    test_loss=np.linspace(0, 1, N),
    is_test=flags,
  )

  assert import_table(file, Path("c"), num_classes=K).num_rows == N


@pytest.mark.filterwarnings("ignore:.*not used")
def test_import_of_embeddings_and_labels_of_different_splits_is_refused():
  """They may have as many rows, and each label is that of another image."""
  embedding, label = vectors()
  arrays = {"X_train": embedding, "y_train": label, "y_test": label[::-1]}
  np.savez("all.npz", **arrays)

  with pytest.raises(InputError, match="'X_train', 'y_test' are of different"):
    import_table(
      Path("all.npz"),
      Path("c"),
      embedding="X_train",
      label="y_test",
      num_classes=K,
    )


def test_import_of_columns_that_tell_their_split_is_of_that_split():
  embedding, label = vectors()
  np.savez("all.npz", X_test=embedding, y_test=label)

  cache = import_table(
    Path("all.npz"),
    Path("c"),
    embedding="X_test",
    label="y_test",
    num_classes=K,
  )

  assert cache.info.split == "test"


def test_import_of_one_user_for_each_class_is_warned_of(capsys):
  _, label = vectors()
  file = npz(Path("all.npz"), user=label + 7)

  import_table(file, Path("c"), num_classes=K, unit_name="user")

  assert "each class has one user, as if that" in capsys.readouterr().err


def test_import_of_a_file_too_few_is_warned_of(capsys):
  write_parquet_split(Path("v"), "train-00000-of-00002.parquet", [0, 1, 2])

  import_table(Path("v"), Path("c"), num_classes=K)

  assert "1 of 2 files are missing" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("name", "expected"), [("all.npz", "train"), ("eval.npz", "eval")]
)
def test_import_of_an_npz_is_of_the_split_of_its_name(name, expected):
  cache = import_table(npz(Path(name)), Path("c"), num_classes=K)

  assert cache.info.split == expected


def test_import_of_an_npz_of_another_split_is_refused():
  with pytest.raises(InputError, match=r"'test\.npz', '--split train' are of"):
    import_table(npz(Path("test.npz")), Path("c"), split="train", num_classes=K)


@pytest.mark.filterwarnings("ignore:.*not used")
def test_import_of_owners_of_two_kinds_in_two_files_is_refused():
  Path("v").mkdir()
  users = np.arange(N)
  npz(Path("v/a.npz"), user=users)
  npz(Path("v/b.npz"), user=users.astype(str))

  with pytest.raises(InputError, match=r"'user' must be all .* in all files"):
    import_table(Path("v"), Path("c"), num_classes=K, unit_name="user")


def test_import_of_one_class_is_warned_of(capsys):
  file = npz(Path("all.npz"), label=np.zeros(N, int))

  import_table(file, Path("c"), num_classes=1)

  assert "has one class, '0', and no head can" in capsys.readouterr().err
