import contextlib
import hashlib
import json
import pickle
import stat
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.private_head import PrivateHead
from oneshot_dp.pipeline.heads import head_folder
from oneshot_dp.pipeline.heads.head_folder import (
  load_head,
  read_head,
  save_head,
  write_head,
)
from tests.faults.harness import damaged_copies, everything_in, odd_files
from tests.pipeline.sample_heads import D, K, fit, sample_info, trained_head

FILES = (
  "README.md",
  "head.safetensors",
  "receipt.json",
  "releases.safetensors",
)
CLASS_NAMES = ("cat", "dog", "rat")


@pytest.fixture
def folder(tmp_path):
  write_head(tmp_path / "head", trained_head(), sample_info())
  return tmp_path / "head"


@pytest.fixture
def notebook_head():
  """A head as `train_head` returns it."""
  return PrivateHead(
    trained=trained_head(), num_examples=300, class_names=CLASS_NAMES
  )


def replace_weights(folder, weights, **stated):
  """Puts other weights there, with a receipt and a card that fit them."""
  if isinstance(weights, dict):
    weights = safetensors.numpy.save(weights)
  (folder / "head.safetensors").write_bytes(weights)
  fit(folder, weights_sha256=hashlib.sha256(weights).hexdigest(), **stated)


class TestWriteAndRead:
  def test_what_is_written_is_read(self, tmp_path):
    trained = trained_head(3.0)
    receipt = write_head(tmp_path / "a", trained, sample_info())

    saved = read_head(tmp_path / "a")

    assert tuple(sorted(everything_in(tmp_path / "a"))) == FILES
    assert saved.receipt == receipt
    assert saved.trained.private
    assert saved.trained.name == "auto"
    assert saved.trained.mu_squared == receipt["follows"]["mu_squared"]
    np.testing.assert_array_equal(saved.head.kernel, trained.head.kernel)
    assert saved.trained.state.keys() == trained.state.keys()
    for name, value in trained.state.items():
      np.testing.assert_array_equal(saved.trained.state[name], value)

  def test_releases_are_read_as_many_as_were_written(self, tmp_path):
    trained = trained_head(3.0)
    write_head(tmp_path / "a", trained, sample_info())

    mean, gradients = read_head(tmp_path / "a").trained.releases

    assert mean == trained.releases[0]
    assert gradients == trained.releases[1]._replace(count=5)

  def test_arrays_of_any_strides_are_written_as_they_mean(self, tmp_path):
    trained = trained_head()
    kernel = np.asfortranarray(trained.head.kernel)
    state_kernel = trained.state["kernel"].T[::-1].T
    trained.head.__dict__["kernel"] = kernel  # its dataclass is frozen
    trained.__dict__["state"] = {**trained.state, "kernel": state_kernel}
    write_head(tmp_path / "a", trained, sample_info())

    saved = read_head(tmp_path / "a")

    np.testing.assert_array_equal(saved.head.kernel, kernel)
    np.testing.assert_array_equal(saved.trained.state["kernel"], state_kernel)

  def test_the_receipts_digest_is_that_of_its_bytes(self, folder):
    content = (folder / "receipt.json").read_bytes()

    digest = hashlib.sha256(content).hexdigest()
    assert read_head(folder).receipt_sha256 == digest

  @pytest.mark.parametrize("source", [{"noise": False}, {"seed": 1}])
  def test_what_is_not_private_is_its_owners_alone(
    self, tmp_path, source, umask
  ):
    umask(0)
    folder = tmp_path / "head"
    write_head(folder, trained_head(**source), sample_info())

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
      assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "NOT PRIVATE" in (folder / "README.md").read_text()

  def test_what_is_private_has_the_modes_of_the_umask(self, tmp_path, umask):
    umask(0)
    folder = tmp_path / "head"
    write_head(folder, trained_head(), sample_info())

    assert stat.S_IMODE(folder.stat().st_mode) == 0o777
    for file in folder.iterdir():
      assert stat.S_IMODE(file.stat().st_mode) == 0o666


class TestDamage:
  @pytest.mark.parametrize("name", FILES)
  def test_a_missing_file_is_named(self, folder, name):
    (folder / name).unlink()

    with pytest.raises(InputError, match=name):
      read_head(folder)

  @pytest.mark.parametrize("name", FILES)
  def test_what_is_not_a_file_is_refused_at_once(self, folder, tmp_path, name):
    for odd in odd_files(tmp_path / "odd").values():
      (folder / name).unlink(missing_ok=True)
      (folder / name).symlink_to(odd)
      with pytest.raises(InputError) as refused:
        read_head(folder)
      assert "\n" not in str(refused.value)

  @pytest.mark.parametrize("name", FILES)
  def test_no_damage_of_a_file_is_passed_over(self, folder, name):
    whole = (folder / name).read_bytes()
    digest_line = (folder / "README.md").read_bytes().splitlines()[-1]
    for data in damaged_copies(whole, 60):
      (folder / name).write_bytes(data)
      with contextlib.suppress(ValueError):
        if name == "receipt.json" and json.loads(data) == json.loads(whole):
          continue
      if name == "README.md" and digest_line in data:
        assert read_head(folder).has_edited_card  # which `verify` says
        continue
      with pytest.raises(InputError) as refused:
        read_head(folder)
      assert "\n" not in str(refused.value)
      assert len(str(refused.value)) < 800

  def test_fitting_weights_of_the_right_form_are_read(self, folder):
    kernel = np.ones((D, K), np.float32)
    bias = np.zeros(K, np.float32)
    replace_weights(folder, {"kernel": kernel, "bias": bias})

    np.testing.assert_array_equal(read_head(folder).head.kernel, kernel)

  def test_weights_of_another_form_are_refused(self, folder):
    kernel = np.ones((D, K), np.float32)
    bias = np.zeros(K, np.float32)
    with_nan = kernel.copy()
    with_nan[1, 1] = np.nan
    with_infinity = bias.copy()
    with_infinity[2] = -np.inf
    for weights in (
      {"kernel": kernel.T.copy(), "bias": bias},
      {"kernel": kernel},
      {"kernel": kernel, "bias": bias, "more": bias},
      {"kernel": kernel.astype(np.float64), "bias": bias},
      {"kernel": with_nan, "bias": bias},
      {"kernel": kernel, "bias": with_infinity},
      pickle.dumps({"kernel": kernel, "bias": bias}),
      safetensors.numpy.save({"kernel": kernel, "bias": bias})[:-1],
      b"",
      (2**60).to_bytes(8, "little") + b"{}",
    ):
      replace_weights(folder, weights)
      with pytest.raises(InputError, match=r"head\.safetensors is damaged"):
        read_head(folder)


class TestMemory:
  """What a receipt states takes no memory that it does not have itself."""

  @pytest.fixture
  def peak_bytes(self):
    def measure(function, *arguments):
      tracemalloc.start()
      try:
        result = function(*arguments)
        return result, tracemalloc.get_traced_memory()[1]
      finally:
        tracemalloc.stop()

    return measure

  @pytest.fixture
  def counted_folder(self, folder):
    release = {
      "name": "mean",
      "shape": [1, D],
      "noise_multiplier": 1e6,
      "count": 10**9,
    }
    fit(folder, releases=[release])
    return folder

  def test_a_billion_releases_stay_a_count_when_read(
    self, counted_folder, peak_bytes
  ):
    saved, peak = peak_bytes(read_head, counted_folder)

    (release,) = saved.trained.releases
    assert release.count == 10**9
    assert peak < 10 << 20

  def test_a_billion_releases_stay_a_count_when_written(
    self, counted_folder, peak_bytes, tmp_path
  ):
    trained = read_head(counted_folder).trained

    receipt, peak = peak_bytes(
      write_head, tmp_path / "again", trained, sample_info()
    )

    (release,) = receipt["stated"]["releases"]
    assert release["count"] == 10**9
    assert peak < 10 << 20

  def test_a_loaded_heads_receipt_states_the_count(self, counted_folder):
    (release,) = load_head(counted_folder).receipt()["stated"]["releases"]

    assert release["count"] == 10**9

  def test_a_huge_dimension_is_refused_before_it_takes_memory(
    self, folder, peak_bytes
  ):
    kernel = np.ones((D, K), np.float32)
    replace_weights(folder, {"kernel": kernel}, feature_dim=2**40)

    def read():
      with pytest.raises(InputError, match="damaged"):
        read_head(folder)

    _, peak = peak_bytes(read)
    assert peak < 10 << 20


class TestSaveHead:
  def test_a_saved_head_predicts_as_before(self, tmp_path, notebook_head):
    save_head(notebook_head, tmp_path / "head", dataset="pets")

    loaded = load_head(tmp_path / "head")

    rows = np.random.default_rng(0).normal(size=(9, D)).astype(np.float32)
    np.testing.assert_array_equal(
      loaded.predict(rows), notebook_head.predict(rows)
    )
    np.testing.assert_array_equal(
      loaded.logits(rows), notebook_head.logits(rows)
    )
    assert loaded.class_names == CLASS_NAMES
    assert loaded.num_examples == 300

  def test_it_says_that_no_ledger_was_charged(self, tmp_path, notebook_head):
    save_head(notebook_head, tmp_path / "head", dataset="pets", backbone="mine")

    card = " ".join((tmp_path / "head" / "README.md").read_text().split())
    assert "No ledger was charged" in card
    assert "mine embeddings" in card
    assert not load_head(tmp_path / "head").is_charged

  def test_a_name_with_control_characters_is_refused(
    self, tmp_path, notebook_head
  ):
    with pytest.raises(InputError, match="control characters"):
      save_head(notebook_head, tmp_path / "head", dataset="a\nb")

    assert not list(tmp_path.rglob("*head*"))

  def test_a_disk_that_refuses_in_the_middle_leaves_nothing(
    self, tmp_path, notebook_head, monkeypatch
  ):
    monkeypatch.setattr(head_folder, "CARD_FILE", "no/where")  # the last of 4

    with pytest.raises(RunError, match="cannot be written"):
      save_head(notebook_head, tmp_path / "deep" / "head", dataset="pets")

    assert not list(tmp_path.rglob("*head*"))

  def test_what_exists_stays(self, tmp_path, notebook_head):
    place = tmp_path / "head"
    save_head(notebook_head, place, dataset="pets")
    receipt = read_head(place).receipt

    with pytest.raises(InputError, match="already exists"):
      save_head(notebook_head, place, dataset="cats")

    assert read_head(place).receipt == receipt
    files = {f"head/{name}" for name in FILES}
    assert {"head", *files} <= everything_in(tmp_path)
    assert not list(tmp_path.glob(".head*"))
