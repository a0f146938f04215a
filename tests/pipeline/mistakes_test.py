"""Mistakes that a newcomer makes: one line, with the fix; nothing is left."""

import dataclasses
import os

import numpy as np
import pytest

from oneshot_dp.extract.cache import write
from oneshot_dp.extract.cache.write import write_cache
from tests.pipeline.command_line import fails, succeeds
from tests.sample_caches import DIM, clusters, write_clusters

SHORT = {
  "TRAIN": "train --cache train --epsilon 1 --delta 1e-5 --out o",
  "SWEEP": "sweep --cache train --eval-cache test --delta 1e-5 --out o",
  "EVALUATE": "evaluate head --cache test",
  "AUDIT": "audit --epsilon 1 --delta 1e-5",
  "CAP": "budget --cache train --max-delta 1e-5",
}
# What is typed -> what the line has in it.
MISTAKES = """
trian --cache train -> there is no command trian; did you mean train?
xyz -> there is no command xyz; see oneshot-dp --help.
train a\x1b[31m -> 'a\\x1b[31m' has control characters: leave them out.
train --epsilon 1 -> train needs --cache CACHE --delta DELTA --out DIR; see
TRAIN --headd lamb -> '--headd' is not a flag of train: did you mean --head? See
extract a --weight x --out o -> a flag of extract: did you mean --weights?
train -cache train -> flags begin with two dashes: --cache.
TRAIN --out -> --out: expected one argument; see oneshot-dp train --help.
TRAIN --head svm -> --head 'svm' is not one of auto, lamb, adam, momentum,
TRAIN --head Atuo -> prototypes, least_squares: did you mean auto?
TRAIN --head lamb auto -> 'auto' is one argument too many for train; see
TRAIN --cache file://host/x -> file://host/x is a file of a machine called host
TRAIN --epsilon one -> --epsilon 'one' is not a number:
TRAIN --epsilon 0.5,2 -> train takes one epsilon, and sweep --epsilons 0.5 2 ta
TRAIN --epsilon 0 -> --epsilon=0 must be positive
TRAIN --epsilon inf -> `oneshot-dp sweep --baseline` makes a head without
TRAIN --epsilon 30 -> --epsilon=30 is more than 20 and protects almost nobody:
TRAIN --delta 0 -> delta=0.0 must lie strictly between 0 and 1.
TRAIN --delta 0.1 -> delta=0.1 is not below 1/n = 0.0056: such a
TRAIN --cache nowhere -> nowhere: no such directory, or it is empty; give a
TRAIN --cache head -> head is a head: give the cache
TRAIN --cache photos -> photos is a folder of images: give a cache, which `ones
TRAIN --cache good.npz -> good.npz is a file: give a cache, which `oneshot-dp ex
TRAIN --cache https://x.org/c -> is an address that is not read here: download
TRAIN --out head -> head already exists; choose another place.
TRAIN --out az://bucket/o -> is an address that is not read here: download
TRAIN --rows 80% -> give percentages in brackets, such as '[:80%]'
TRAIN --noise-seed x -> --noise-seed 'x' is not an integer.
TRAIN --from nowhere -> give a folder that `oneshot-dp train` wrote.
TRAIN --from head --head auto -> --from needs the same kind of head: give --head
TRAIN --from head --head lamb -> epsilon=1 must be larger than that of the head
TRAIN --start start.npz -> must hold one vector for each class of the cache
TRAIN --start text.txt -> 'text.txt' is not a readable npz
TRAIN --balanced --head lamb -> balanced is for head 'auto', not for 'lamb';
TRAIN --from head --epsilon 8 --delta 1e-6 -> its delta is 1e-05; pass the same
TRAIN --from head --epsilon 8 --rows [:80%] -> on all rows; leave --rows out
TRAIN --from head --epsilon 8 --cache one -> cannot continue from head: it is
TRAIN --from head --epsilon 8 --ledger no -> cannot continue from head: NOT VE
TRAIN --from seeded --epsilon 8 -> continue from seeded: it is NOT PRIVATE
TRAIN --cache fifo -> fifo
TRAIN --cache damaged -> is damaged
TRAIN --cache twice -> more than once
TRAIN --start fifo -> fifo
TRAIN --start fewer.npz -> see 'class 1', and 0 others
TRAIN --start more.npz -> see 'cat', and 0 others
TRAIN --start shape.npz -> 'class 0' has shape (3,)
TRAIN --start zeros.npz -> start of class 'class 0' is zeros only
TRAIN --start objects.npz -> Python objects
TRAIN --hosts 5 -> must be auto, or INDEX/COUNT@HOST:PORT, such as
TRAIN --ledger text.txt -> the ledger text.txt is damaged
TRAIN --ledger empty -> empty cannot be a ledger: it is not a file; choose ano
SWEEP --epsilons -> epsilons=[]: give one or more, without duplicates.
SWEEP --epsilons 0.5,2 -> leave spaces between them: --epsilons 0.5 2.
SWEEP --epsilons 1 1 -> epsilons=[1.0, 1.0]: give one or more, without
SWEEP --epsilons 1 --num-draws 0 -> --num-draws=0 must be at least 1.
SWEEP --epsilons 1 --head lamb lamb -> --head lamb lamb: name one or more, wi
SWEEP --epsilons 1 --eval-cache train -> or score them with --private-eval.
SWEEP --epsilons 1 --eval-cache other -> come from different backbones
SWEEP --epsilons 1 --eval-rows [:101%] -> within 0% and 100%
SWEEP --epsilons 1 --eval-rows 80% -> --eval-rows '80%' is not a part of a
SWEEP --epsilons 1 --head lamb --start good.npz -> for head 'auto', not for 'lam
SWEEP --epsilons 1 --private-eval 30 -> --private-eval=30 is more than 20
evaluate test --cache head -> test is not a head: it has no receipt.json; give a
evaluate nowhere --cache test -> nowhere does not exist; give a folder that `one
predict nowhere photos --out p.csv -> nowhere does not exist; give a folder
export nowhere --to o -> nowhere does not exist; give a folder that `oneshot-dp
report nowhere -> nowhere does not exist: give the directory that
verify nowhere -> nowhere does not exist: name
EVALUATE --ledger no -> --ledger no does not exist: name the ledger
EVALUATE --out text.txt -> --out text.txt already exists: name a new file.
EVALUATE --delta 1e-5 -> --delta and --noise-seed are for --private-eval only.
EVALUATE --cache train -> head was trained on rows of --cache
EVALUATE --cache other -> come from different backbones
EVALUATE --cache names -> class 0 is 'class 0' and 'a'
EVALUATE --private-eval 1 -> --private-eval needs --delta, too.
EVALUATE --private-eval 1 --delta 0.1 -> or allow it with --weak-privacy.
predict head empty --out p.csv -> head was trained on imported features, and
predict head empty --out text.txt -> text.txt already exists: name a new file,
predict head empty --out az://b/p.csv -> is an address that is not read here
predict head empty --out p.csv --rows [:5%] -> --rows is for a cache, and these
predict head train empty --out p.csv -> is a cache: give it alone, without
predict head train --out p.csv --top-k 5 -> --top-k 5 must be from 1 to 4, the
export seeded --to o -> NOT PRIVATE
export head --to test -> test already exists; choose another place.
report train -> give the directory that `train` or `sweep` wrote with --out.
budget --max-epsilon 8 -> give --cache, --max-epsilon and --max-delta.
budget --cache train --max-epsilon 8 -> a cap belongs to one data set and has tw
CAP --max-epsilon 0 -> epsilon=0 must be positive
budget --ledger no -> --ledger no does not exist: name the ledger that
verify head --ledger no -> --ledger no does not exist: name the ledger that
export head --to o --ledger no -> --ledger no does not exist: name
verify empty -> empty is neither a head, nor a run, nor a finished cache: name
AUDIT --epsilon 30 -> or allow it with --weak-privacy.
AUDIT --canaries 5 -> --canaries 5: give 100 to 20000.
AUDIT --rows [:80%] -> --rows and --ledger go with --cache: give it, too.
AUDIT --head lamb --balanced -> --balanced goes with --head auto: leave it out.
AUDIT --cache train --canaries 1000000000 -> --canaries 1000000000: give 100 to
AUDIT --cache one -> one has one class, so there is nothing to tell apart: give
TRAIN --cache one -> one has one class, so there is nothing to tell apart: give
demo --out gs://bucket/d -> name a folder on a disk.
demo --out head -> --out head holds other files: name a new folder.
import empty.npz --out o -> is not a readable npz (write it again): File is not
import start.npz --out o -> has no column embedding (or train_embedding): it has
import empty --out o -> has no .npz or .parquet of embeddings
import fifo.npz --out o -> not a regular file
import https://x.org/a.npz --out o -> address that is not read here: download it
import train --out o -> 'train' is a feature cache, and no source of one: give i
extract https://x.org/a.tar --out o -> address that is not read here: download
extract train --out o -> 'train' is a feature cache, and no source of one: give
extract tfds/1.0.0 --out o -> a data set that TFDS has prepared: extract tfds:
extract saved --out o -> load_from_disk('saved/train').to_parquet('train.parquet
inspect hf://owner/pets -> is not a data set: give hf://datasets/OWNER/NAME[@RE
inspect https://x.org/a.tar -> address that is not read here: download it
inspect tfds:mnist -> tfds:mnist is not inspected: TFDS checks what it prepares
inspect nowhere -> nowhere does not exist: name a folder or a file.
extract empty -> extract needs --out CACHE; see
extract nowhere --out o -> 'nowhere' does not exist: there is no such file
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with caches, a head, and what is none of these."""
  folder = tmp_path_factory.mktemp("place")
  write_clusters(folder / "train")
  write_clusters(folder / "test", (20,) * 4, seed=1, split="test")
  write_clusters(folder / "one", (50,))
  write_clusters(folder / "other", backbone={"name": "other"}, dataset="o")
  write_clusters(folder / "names", class_names=tuple("abcd"), dataset="o")
  cache = write_clusters(folder / "damaged", seed=9, dataset="d", split="test")
  shard = folder / "damaged" / cache.info.shards[-1].file
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 1
  shard.write_bytes(content)
  x, y = clusters()
  rows = {"embedding": x, "label": y, "example_id": np.zeros(len(y), np.int64)}
  info = dataclasses.replace(cache.info, source_num_examples=180, shards=())
  # As no writer of this package makes it: an id of another shard again.
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(write, "_check_ids", lambda blocks, place: None)
    write_cache(str(folder / "twice"), info, [rows])
  (folder / "empty").mkdir()
  (folder / "photos" / "cat").mkdir(parents=True)
  (folder / "photos" / "cat" / "1.png").touch()
  (folder / "saved" / "train").mkdir(parents=True)
  for name in ("data-00000-of-00001.arrow", "dataset_info.json", "state.json"):
    (folder / "saved" / "train" / name).write_text("{}")
  (folder / "tfds" / "1.0.0").mkdir(parents=True)
  for name in "dataset_info.json", "features.json":
    (folder / "tfds" / "1.0.0" / name).write_text("{}")
  os.mkfifo(folder / "fifo")
  os.mkfifo(folder / "fifo.npz")
  (folder / "empty.npz").touch()
  (folder / "text.txt").write_text("hello")
  np.savez(folder / "start.npz", a=np.zeros(3))
  vectors = {f"class {i}": np.eye(DIM)[i] for i in range(4)}
  for name, value in (
    ("shape", np.ones(3)),
    ("zeros", np.zeros(DIM)),
    ("objects", np.array([None] * DIM)),
  ):
    np.savez(folder / f"{name}.npz", **vectors | {"class 0": value})
  np.savez(folder / "good.npz", **vectors)
  np.savez(folder / "more.npz", **vectors, cat=np.ones(DIM))
  del vectors["class 1"]
  np.savez(folder / "fewer.npz", **vectors)
  return folder


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_a_mistake_is_one_line_and_leaves_nothing(
  mistake, place, monkeypatch, capsys
):
  monkeypatch.chdir(place)
  monkeypatch.setenv("ONESHOT_DP_LEDGER", "ledger.sqlite")
  if not (place / "head").exists():
    for name in "head", "seeded --noise-seed 1":
      line = f"{SHORT['TRAIN']} --head lamb --out {name}"
      succeeds(capsys, *line.split())
  before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
  words, said = mistake.split(" -> ")
  first, _, more = words.partition(" ")
  assert said in fails(capsys, *f"{SHORT.get(first, first)} {more}".split())
  after = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
  assert after == before
