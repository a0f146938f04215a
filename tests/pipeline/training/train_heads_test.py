import contextlib

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  make_plan,
  train_heads,
)
from tests.pipeline.sample_caches import write_clusters

PRIVACY = PrivacyConfig(delta=1e-5)


def train(cache, *epsilons: float, config=None, privacy=PRIVACY, **options):
  plan = make_plan(epsilons or (1.0,), privacy, **options)
  return train_heads(
    cache, plan, config or HeadConfig(), privacy, ledger_dir=None
  )


def test_a_plan_is_what_was_asked():
  privacy = PrivacyConfig(delta=1e-6, neighboring_relation="replace-one")
  plan = make_plan((2.0, 1.0), privacy, order="independent", num_draws=3)
  assert plan.neighboring_relation is NeighboringRelation.REPLACE_ONE
  assert (plan.epsilons, plan.delta) == ((2.0, 1.0), 1e-6)
  assert (plan.order, plan.num_draws) == ("independent", 3)


def test_a_head_for_each_draw_and_epsilon_of_one_charge_and_pass(
  train_cache, capsys, monkeypatch
):
  reads = []
  blocks = type(train_cache).blocks
  monkeypatch.setattr(
    type(train_cache),
    "blocks",
    lambda self, *args: reads.append(1) or blocks(self, *args),
  )
  trained = train(train_cache, 1.0, 4.0, num_draws=2)
  assert reads == [1]
  assert [(t.draw, t.statement.epsilon) for t in trained] == [
    (0, 4.0),
    (0, 1.0),
    (1, 4.0),
    (1, 1.0),
  ]
  assert len({np.asarray(t.head.kernel).tobytes() for t in trained}) == 4
  ledger = cache_ledger(train_cache, None)
  (entry,) = ledger.entries()
  assert {t.ledger_entry for t in trained} == {entry["entry"]}
  assert entry["cache_fingerprint"] == train_cache.fingerprint
  assert entry["num_draws"] == 2
  assert capsys.readouterr().err == (
    f"charged to {ledger.path}\nits first charge: what was released of"
    " 'pets' before, if anything, is not counted\n"
  )


def test_the_baseline_comes_last_and_is_owned_up_to(train_cache):
  plan = make_plan((1.0,), PRIVACY)
  private, baseline = train_heads(
    train_cache, plan, HeadConfig(), PRIVACY, ledger_dir=None, baseline=True
  )
  assert private.statement.is_private
  assert not baseline.statement.is_private
  ledger = cache_ledger(train_cache, None)
  charge, note = ledger.entries()
  assert charge["epsilons"] == [1.0]
  assert (charge["private"], note["private"]) == (True, False)
  assert note["noise_source"] == "none: NOT PRIVATE"
  assert baseline.ledger_entry == note["entry"]
  spent = ledger.spending(NeighboringRelation.REPLACE_SPECIAL)
  assert (spent.charges, spent.not_private) == (2, 1)


def test_a_ledger_of_ones_own(train_cache, tmp_path, ledger_dir):
  plan = make_plan((1.0,), PRIVACY)
  train_heads(
    train_cache, plan, HeadConfig(), PRIVACY, ledger_dir=tmp_path / "mine"
  )
  found = {path.suffix for path in (tmp_path / "mine").iterdir()}
  assert found == {".jsonl", ".head", ""}  # and a lock
  assert not ledger_dir.exists()


def test_the_noise_comes_from_the_system_or_a_seed_that_is_warned_of(
  train_cache, capsys
):
  (one,), (two,) = train(train_cache), train(train_cache)
  assert not np.array_equal(one.head.kernel, two.head.kernel)
  assert one.statement.noise_source == "os.urandom"
  assert "NOT PRIVATE" not in capsys.readouterr().err
  privacy = PrivacyConfig(delta=1e-5, noise_seed=7)
  (one,), (two,) = (train(train_cache, privacy=privacy) for _ in range(2))
  np.testing.assert_array_equal(one.head.kernel, two.head.kernel)
  assert not one.statement.is_private
  warning = (
    "warning: the noise comes from a seed: these heads are NOT PRIVATE.\n"
  )
  assert warning in capsys.readouterr().err


@pytest.mark.parametrize(
  ("delta", "refused"), [(1 / 180, True), (0.5, True), (1 / 181, False)]
)
def test_a_delta_that_protects_nobody_is_insisted_on(
  train_cache, delta, refused
):
  said = pytest.raises(InputError, match=f"delta={delta:g} is not below 1/n")
  with said if refused else contextlib.nullcontext():
    train(train_cache, privacy=PrivacyConfig(delta=delta))
  train(train_cache, privacy=PrivacyConfig(delta=delta, large_delta=True))


def test_nothing_is_charged_for_a_head_that_cannot_be(train_cache):
  with pytest.raises(InputError):
    train(train_cache, config=HeadConfig(l2_clip_norm=0.0))
  assert cache_ledger(train_cache, None).entries() == []


def test_nor_for_a_cache_that_is_damaged(tmp_path):
  cache = write_clusters(tmp_path / "cache")
  shard = cache.path / cache.shards[1].file
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 1
  shard.write_bytes(content)
  with pytest.raises(InputError, match="damaged"):
    train(cache)
  assert cache_ledger(cache, None).entries() == []


def test_classes_read_off_the_labels_are_warned_of(tmp_path, capsys):
  rng = np.random.default_rng(0)
  rows = rng.standard_normal((40, 3)).astype(np.float32)
  np.savez(tmp_path / "x.npz", embedding=rows, label=np.arange(40) % 4)
  with pytest.warns(UserWarning, match="treated as public"):
    cache = import_features(tmp_path / "x.npz", tmp_path / "cache")
  plan = make_plan((1.0,), PRIVACY)
  train_heads(cache, plan, HeadConfig(), PRIVACY, ledger_dir=None)
  assert "read off the private labels" in capsys.readouterr().err
