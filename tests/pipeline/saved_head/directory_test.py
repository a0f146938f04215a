import dataclasses
import os
import pathlib
import stat

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.trainer import AS_STORED, UNIT_NORM, TrainedHead
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.training.train_heads import make_plan, train_heads
from tests.pipeline.command_line import SWEEP, TRAIN, succeeds


def test_the_weights_are_what_other_tools_read(head):
  tensors = safetensors.numpy.load_file(head / "head.safetensors")
  assert {k: (v.shape, v.dtype.name) for k, v in tensors.items()} == {
    "kernel": ((6, 4), "float32"),
    "bias": ((4,), "float32"),
  }
  saved = read_head(head)
  np.testing.assert_array_equal(saved.head.kernel, tensors["kernel"])
  np.testing.assert_array_equal(saved.head.bias, [-10] * 4)


@pytest.fixture(scope="module")
def trained_head(train_cache, tmp_path_factory) -> TrainedHead:
  privacy = PrivacyConfig(delta=1e-5)
  plan = make_plan((1.0,), privacy)
  ledgers = tmp_path_factory.mktemp("ledgers")
  (head,) = train_heads(
    train_cache, plan, HeadConfig(), privacy, ledger_dir=ledgers
  )
  return head


LAYOUTS = {
  "rows": np.ascontiguousarray,
  "columns": np.asfortranarray,
  "transposed": lambda a: np.ascontiguousarray(a.T).T,
  "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
  "every second": lambda a: np.repeat(a, 2, axis=0)[::2],
  "of jax": jnp.asarray,
}


@pytest.mark.parametrize(
  ("layout", "unit_norm"),
  [(layout, i % 2 == 0) for i, layout in enumerate(sorted(LAYOUTS))],
)
def test_weights_are_read_back_however_they_lie_in_memory(
  trained_head, train_cache, tmp_path, layout, unit_norm
):
  rng = np.random.default_rng(0)
  kernel = rng.standard_normal((6, 4)).astype(np.float32)
  bias = rng.standard_normal(4).astype(np.float32)
  laid = LAYOUTS[layout]
  head = LinearHead(kernel=laid(kernel), bias=laid(bias), unit_norm=unit_norm)
  np.testing.assert_array_equal(head.kernel, kernel)
  trained = dataclasses.replace(trained_head, head=head)
  write_head(tmp_path / "head", trained, train_cache.info)
  found = read_head(tmp_path / "head").head
  np.testing.assert_array_equal(found.kernel, kernel)
  np.testing.assert_array_equal(found.bias, bias)
  assert found.unit_norm is unit_norm


def modes(folder: pathlib.Path) -> dict[str, int]:
  return {
    str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
    for path in [folder, *folder.rglob("*")]
  }


@pytest.fixture
def umask_022():
  before = os.umask(0o022)
  yield
  os.umask(before)


@pytest.mark.usefixtures("umask_022")
def test_a_head_that_is_not_private_is_its_owner_s_alone(
  place, capsys, tmp_path
):
  """Exact sums, and noise that whoever knows the seed can take off again."""
  files = ("README.md", "head.safetensors", "receipt.json")
  open_to_all = {".": 0o755} | dict.fromkeys(files, 0o644)
  owner_s = {".": 0o700} | dict.fromkeys(files, 0o600)
  succeeds(capsys, *place(TRAIN))
  assert modes(tmp_path / "out") == open_to_all
  train = TRAIN.replace("{out}", "{tmp}/seeded") + " --noise-seed 3"
  succeeds(capsys, *place(train))
  assert modes(tmp_path / "seeded") == owner_s
  sweep = SWEEP.replace("{out}", "{tmp}/sweep") + " --baseline"
  succeeds(capsys, *place(sweep))
  heads = tmp_path / "sweep" / "heads"
  assert modes(heads / "baseline-NOT-PRIVATE") == owner_s
  assert modes(heads / "epsilon-1-draw-0") == open_to_all
  # Its table and picture show the baseline.
  assert modes(tmp_path / "sweep")["."] == 0o700


@pytest.mark.usefixtures("umask_022")
def test_no_moment_in_which_others_can_read_it(monkeypatch, place, capsys):
  """Modes are those of the file's making, not of a later change."""
  made = []
  real = os.open

  def note(path, flags, mode=0o777, **options):
    makes = flags & os.O_CREAT
    if makes and str(path).endswith(("head.safetensors", "receipt.json")):
      folder = stat.S_IMODE(pathlib.Path(path).parent.stat().st_mode)
      made.append((oct(folder), oct(mode)))
    return real(path, flags, mode, **options)

  monkeypatch.setattr(os, "open", note)
  succeeds(capsys, *place(TRAIN + " --noise-seed 3"))
  assert made == [("0o700", "0o600")] * 2


@pytest.mark.parametrize("name", ["head.safetensors", "receipt.json"])
def test_a_missing_file(head, name):
  (head / name).unlink()
  with pytest.raises(InputError, match=f"is not a head: it has no {name}"):
    read_head(head)


ROW = np.zeros(4, np.float32)
SQUARE = np.zeros((4, 4), np.float32)


def tensors(
  metadata: dict[str, str] | None = None, **arrays: np.ndarray
) -> bytes:
  of_rows = {"input": AS_STORED} if metadata is None else metadata
  whole = {"kernel": SQUARE, "bias": ROW} | arrays
  return safetensors.numpy.save(whole, of_rows)


@pytest.mark.parametrize(
  "content",
  [
    b"",
    b"\xff" * 400,
    tensors()[:-7],
    safetensors.numpy.save({"kernel": SQUARE}, {"input": AS_STORED}),
    tensors(bias=SQUARE),
    tensors(kernel=ROW),
    tensors(bias=ROW[:3]),
    safetensors.numpy.save({"kernel": SQUARE, "bias": ROW}),
    tensors({"output": AS_STORED}),
    tensors({"input": ""}),
    tensors({"input": f"{UNIT_NORM} "}),
    tensors({"input": "a\nb"}),
  ],
  ids=[
    *("empty", "noise", "cut", "no bias", "bias 2-D", "kernel 1-D", "K"),
    *("no metadata", "another key", "input empty"),
    *("input nearly right", "input of two lines"),
  ],
)
def test_damaged_weights(head, content):
  (head / "head.safetensors").write_bytes(content)
  with pytest.raises(
    InputError, match=r"head.safetensors is damaged \(.*\);"
  ) as caught:
    read_head(head)
  assert "\n" not in str(caught.value)
  (head / "head.safetensors").write_bytes(tensors())
  assert not read_head(head).head.unit_norm


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_damaged_receipt(head, content):
  (head / "receipt.json").write_text(content)
  with pytest.raises(InputError, match=r"receipt.json is damaged \(.*\);"):
    read_head(head)
