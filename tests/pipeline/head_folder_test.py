import contextlib
import hashlib
import json
import pickle
import stat

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

FILES = "README.md", "head.safetensors", "receipt.json", "releases.safetensors"


@pytest.fixture
def folder(tmp_path):
  write_head(tmp_path / "head", trained_head(), sample_info())
  return tmp_path / "head"


def test_what_is_written_is_read(tmp_path):
  made = trained_head(3.0)
  # Of any strides, as they mean.
  made.head.__dict__["kernel"] = np.asfortranarray(made.head.kernel)
  kernel = made.state["kernel"].T[::-1].T
  made.__dict__["state"] = {**made.state, "kernel": kernel}
  receipt = write_head(tmp_path / "a", made, sample_info(), charge_id="c" * 32)
  saved = read_head(tmp_path / "a")
  assert tuple(sorted(everything_in(tmp_path / "a"))) == FILES
  assert saved.receipt == receipt
  assert saved.trained.private
  content = (tmp_path / "a" / "receipt.json").read_bytes()
  assert saved.receipt_sha256 == hashlib.sha256(content).hexdigest()
  np.testing.assert_array_equal(saved.head.kernel, made.head.kernel)
  assert {*saved.trained.state} == {*made.state}
  for name, value in made.state.items():
    np.testing.assert_array_equal(saved.trained.state[name], value)
  before = saved.trained
  assert before.releases == made.releases
  assert before.name == "auto"
  assert before.mu_squared == receipt["follows"]["mu_squared"]


@pytest.mark.parametrize("changes", [{"noise": False}, {"seed": 1}])
def test_what_is_not_private_is_its_owners_alone(tmp_path, changes, umask):
  umask(0)
  write_head(tmp_path / "own", trained_head(**changes), sample_info())
  write_head(tmp_path / "all", trained_head(), sample_info())
  for name, modes in ("own", (0o700, 0o600)), ("all", (0o777, 0o666)):
    for each in tmp_path / name, *(tmp_path / name).iterdir():
      assert stat.S_IMODE(each.stat().st_mode) == modes[each.is_file()]
  assert "NOT PRIVATE" in (tmp_path / "own" / "README.md").read_text()


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_refused_at_once(folder, tmp_path, name):
  (folder / name).unlink()
  with pytest.raises(InputError, match=name):
    read_head(folder)
  for odd in odd_files(tmp_path / "odd").values():
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(odd)
    with pytest.raises(InputError) as refused:
      read_head(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", FILES)
def test_no_damage_of_a_file_is_passed_over(folder, name):
  whole = (folder / name).read_bytes()
  for data in damaged_copies(whole, 60):
    (folder / name).write_bytes(data)
    with contextlib.suppress(ValueError):
      if name == "receipt.json" and json.loads(data) == json.loads(whole):
        continue
    with pytest.raises(InputError) as refused:
      read_head(folder)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 800


def fitted(folder, data, **more):
  """Puts other weights there, with a receipt and a card that fit them."""
  data = data if isinstance(data, bytes) else safetensors.numpy.save(data)
  (folder / "head.safetensors").write_bytes(data)
  fit(folder, weights_sha256=hashlib.sha256(data).hexdigest(), **more)


def test_weights_of_another_form_are_refused(folder):
  kernel, bias = np.ones((D, K), np.float32), np.zeros(K, np.float32)
  fitted(folder, {"kernel": kernel, "bias": bias})
  read_head(folder)
  nan, inf = kernel.copy(), bias.copy()
  nan[1, 1], inf[2] = np.nan, -np.inf
  for weights in (
    {"kernel": kernel.T.copy(), "bias": bias},
    {"kernel": kernel},
    {"kernel": kernel, "bias": bias, "more": bias},
    {"kernel": kernel.astype(np.float64), "bias": bias},
    {"kernel": nan, "bias": bias},
    {"kernel": kernel, "bias": inf},
    pickle.dumps({"kernel": kernel, "bias": bias}),
    safetensors.numpy.save({"kernel": kernel, "bias": bias})[:-1],
    b"",
    (2**60).to_bytes(8, "little") + b"{}",
  ):
    fitted(folder, weights)
    with pytest.raises(InputError, match=r"head\.safetensors is damaged"):
      read_head(folder)
  fitted(folder, {"kernel": kernel}, feature_dim=2**40)  # takes no memory
  with pytest.raises(InputError, match="damaged"):
    read_head(folder)


def test_a_notebook_s_head_is_saved_whole_or_not_at_all(tmp_path, monkeypatch):
  names, place = ("cat", "dog", "rat"), tmp_path / "deep" / "head"
  made = trained_head()
  head = PrivateHead(trained=made, num_examples=300, class_names=names)
  with pytest.raises(InputError, match="control characters"):
    save_head(head, place, dataset="a\nb")
  with monkeypatch.context() as patch:  # after three files of four
    patch.setattr(head_folder, "CARD_FILE", "no/where")
    with pytest.raises(RunError, match="cannot be written"):
      save_head(head, place, dataset="pets")
  assert not [*tmp_path.rglob("*head*")]
  save_head(head, place, dataset="pets", backbone="mine")
  before = read_head(place).receipt
  with pytest.raises(InputError, match="already exists"):
    save_head(head, place, dataset="pets")
  assert everything_in(place.parent) == {"head", *(f"head/{f}" for f in FILES)}
  assert read_head(place).receipt == before
  text = " ".join((place / "README.md").read_text().split())
  assert "No ledger was charged" in text
  assert "mine embeddings" in text
  again = load_head(place)
  assert not again.is_charged
  assert again.class_names == names
  assert again.num_examples == 300
  rows = np.random.default_rng(0).normal(size=(9, D)).astype(np.float32)
  np.testing.assert_array_equal(again.predict(rows), head.predict(rows))
  np.testing.assert_array_equal(again.logits(rows), head.logits(rows))
