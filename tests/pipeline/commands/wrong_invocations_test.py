"""What may be typed wrongly: every time one line, and nothing else happens.

No traceback, nothing left behind where --out points, nothing in the ledger.
"""

import os
import pathlib
import shutil
import stat
from typing import Any

import numpy as np
import pytest

from oneshot_dp.extract.cache.identity import BackboneIdentity
from oneshot_dp.extract.cache.writer import begin
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.extract.caches import make_identity
from tests.pipeline.command_line import EXTRACT, SWEEP, TRAIN, one_line
from tests.pipeline.sample_caches import write_clusters

RUN = "--cache {train} --eval-cache {eval} --delta 1e-5 --out {out}"
COMPARE = f"compare {RUN} --epsilons 1"
FIGURES = "figures --cache {train} --eval-cache {eval} --out {out}"
ABLATE = f"ablate {RUN} --epsilon 1"
IMPORT = "import {wrong}/%s.npz --out {out} --num-classes 3"
EVALUATE = "evaluate {head} --cache {eval}"
CAP = "budget set --cache {train} --max-epsilon 2 --max-delta 1e-5"
AUDIT = "audit --epsilon 1 --delta 1e-5"

# (what is typed, part of the line that it ends with)
ASKED_WRONGLY = [
  # Commands and flags.
  ("trian", "there is no command trian; did you mean train?"),
  ("recover", "no command recover any more: run the command that failed again"),
  ("--epsilon 1", "Missing subcommand"),
  ("train", "--cache PATH"),
  (f"{TRAIN} --epsilno 2", "did you mean --epsilon?"),
  (f"{SWEEP} --num-draw 2", "did you mean --num-draws?"),
  (f"{TRAIN} --qiet", "did you mean --quiet?"),
  (f"{EXTRACT} --nope 3", "--nope is neither"),
  (
    f"{EXTRACT} --backbone.nmae x",
    "see its --help. Did you mean --backbone.name?",
  ),
  (f"{EXTRACT} stray", "'stray' is one word too many"),
  (f"{EXTRACT} --a=b c", "'c' is one word too many"),
  ("extract --out {out} {config}", "CONFIG comes first"),
  ("budget sett --cache {train}", "sett"),
  ("completion fish", "fish"),
  # Numbers.
  (f"{TRAIN} --epsilon 0", "epsilon=0.0 must be positive"),
  (f"{TRAIN} --epsilon inf", "epsilon=inf"),
  (f"{TRAIN} --epsilon four", "--epsilon"),
  (f"{TRAIN} --delta 0", "delta=0.0"),
  (f"{TRAIN} --delta 2", "delta=2.0"),
  (f"{TRAIN} --delta tiny", "could not convert string to float: 'tiny'"),
  (f"{TRAIN} --noise-seed x", "--noise-seed"),
  (f"{TRAIN} --noise-seed -1", "noise seed -1 must not be negative"),
  (f"{TRAIN} --l2-clip-norm 0", "--l2-clip-norm=0.0 must be positive"),
  (f"{TRAIN} --l2-clip-norm inf", "--l2-clip-norm=inf must be positive"),
  (f"{TRAIN} --initial-bias nan", "--initial-bias=nan must be finite"),
  (f"{TRAIN} --learning-rate 0", "--learning-rate=0.0 must be positive"),
  (f"{TRAIN} --eps -1", "eps=-1.0 must be finite and not negative"),
  (f"{TRAIN} --eps-in-noise-sds nan", "--eps-in-noise-sds=nan must be finite"),
  (f"{TRAIN} --neighboring-relation any", "any"),
  (f"{TRAIN} --max-rows-per-unit 2", "no unit_id"),
  (f"{SWEEP} --epsilons", "epsilons is empty"),
  (f"{SWEEP} --epsilons 1 1.0", "epsilons=[1.0, 1.0] has an epsilon twice"),
  (f"{SWEEP} --epsilons 1 inf", "--baseline is a flag of sweep"),
  (f"{SWEEP} --release nested --head multi-step", "release='nested'"),
  (f"{ABLATE} --clip-norms 0", "l2_clip_norm"),
  (f"{ABLATE} --axes colour", "colour"),
  (f"{ABLATE} --other-caches {{train}}", "give pairs"),
  (f"{ABLATE} --other-eval-caches {{eval}} {{eval}}", "give pairs"),
  (
    f"{ABLATE} --other-caches {{train}} --other-eval-caches {{train}}",
    "may hold training rows",
  ),
  (f"{AUDIT} --runs 10", "runs=10 are too few"),
  (f"{AUDIT} --confidence 2", "confidence=2.0"),
  (f"{AUDIT} --head whitened --canaries 0", "canaries=0 must be"),
  (
    f"{AUDIT} --head whitened --train-bias",
    "--train-bias is for heads of one step, not for --head",
  ),
  (
    f"{AUDIT} --head whitened --max-rows-per-unit 2",
    "is for heads of one step",
  ),
  (f"{AUDIT} --max-rows-per-unit 2", "no unit_id"),
  (f"{AUDIT} --rows-per-unit -2", "--rows-per-unit=-2 must be"),
  (f"{AUDIT} --private-eval --num-classes 3", "--num-classes is for heads"),
  (f"{AUDIT} --private-eval --canaries 9", "--canaries is for heads"),
  (f"{AUDIT} --public-cache {{train}}", "--public-cache is for"),
  (f"{AUDIT} --cache {{train}} --runs 0", "--runs is for made-up rows"),
  ("budget --cache {train} --delta 2", "delta=2.0 must lie between 0 and 1"),
  (f"{CAP} --max-epsilon 0", "epsilon=0.0"),
  (f"{CAP} --max-delta 2", "delta=2.0 must lie strictly between"),
  (f"{CAP} --sampling-delta 1e-5", "--sampling-delta=1e-05 must be at least"),
  (f"{EXTRACT} --batch-size 0", "--batch-size=0"),
  (f"{EXTRACT} --shard-rows 0", "--shard-rows=0 must be"),
  (f"{EXTRACT} --preprocess.image-size 0", "--preprocess.image-size=0 must be"),
  (f"{EXTRACT} --direct_num_workers many", "invalid int value: 'many'"),
  (f"{FIGURES} --deltas", "deltas=[] must be one or more, all different"),
  (f"{FIGURES} --deltas 1e-6 2", "delta=2.0 must lie strictly between 0"),
  (f"{ABLATE} --axes", "nothing to change: give axes, or other caches"),
  (f"{ABLATE} --axes batch --batch-sizes 181", "not between 1 and the 180"),
  (f"{ABLATE} --axes init --init-scales nan", "init_scale=nan is not 0 or"),
  (f"{ABLATE} --axes epochs --learning-rate 0", "--learning-rate=0.0 must be"),
  (
    f"{ABLATE} --axes batch --neighboring-relation replace-one",
    "leave out --neighboring-relation replace-one",
  ),
  (f"{ABLATE} --axes batch --delta 1e-13", "too small to account for random"),
  (f"{EVALUATE} --delta 1e-5", "are for --private-eval"),
  (f"{EVALUATE} --noise-seed 1", "are for --private-eval"),
  (f"{EVALUATE} --private-eval inf --delta 1e-5", "epsilon=inf must be"),
  (f"{EVALUATE} --private-eval 1 --delta 2", "delta=2.0 must lie strictly"),
  # Names.
  ("extract cifar10_vit_ti61 --out {out}", "did you mean cifar10_vit_ti16"),
  ("backbones vit_x16", "did you mean vit_"),
  (f"{EXTRACT} --backbone.name vit_zz", "'vit_zz' is unknown"),
  (f"{EXTRACT} --runner NoSuchRunner", "Beam: Unexpected pipeline runner"),
  (f"{TRAIN} --head lamd", "lamd"),
  (f"{COMPARE} --heads lamb lamd", "lamd"),
  (f"{COMPARE} --private-eval 1", "--private-eval"),
  (f"{EXTRACT} --embedding-dtype int8", "int8"),
  (f"{EXTRACT} --backbone.name vit_ti8", "needs pretrained weights: set"),
  ("extract zzz --out {out}", "there are: arrays_vit_ti16, cifar100_vit"),
  ("extract --out {out}", "Experiment name or Python file. (required)"),
  # What is not there, or is something else.
  ("inspect {tmp}/none", "none"),
  ("inspect {wrong}", "not a feature cache"),
  ("inspect {wrong}/text.txt", "text.txt"),
  ("inspect {wrong}/corrupt", "cache_info.json"),
  ("verify {wrong}/truncated", "fault(s) found"),
  ("verify {train} --min-cosine 0.9", "add it"),
  ("verify {train} --duplicates --min-cosine 2", "--min-cosine=2.0"),
  ("verify {train} --against {train}", "are for --duplicates; add it"),
  ("verify {train} --out {out}", "are for --duplicates; add it"),
  ("verify {train} --duplicates --against {train}", "is the cache itself"),
  ("verify {train} --duplicates --against {tmp}/none", "no such directory"),
  (
    "verify {eval} --duplicates --against {wrong}/other",
    "extract both in the same way",
  ),
  ("verify {train} --duplicates --out {config}", "is there already"),
  ("verify {train} --duplicates --out s3://b/p.csv", "is no place on a disk"),
  ("demo --out s3://b/demo", "s3://b/demo is no place on a disk"),
  ("verify {head} --duplicates", "not a feature cache"),
  (f"{TRAIN} --cache {{wrong}}", "not a feature cache (no cache_info.json)"),
  (f"{TRAIN} --cache {{wrong}}/unfinished", "not a finished cache; re-run"),
  (f"{SWEEP} --eval-cache {{wrong}}/unfinished", "not a finished cache"),
  (f"{TRAIN} --cache {{wrong}}/edited", "the file was edited"),
  (f"{TRAIN} --cache {{wrong}}/truncated", "array_record"),
  (f"{TRAIN} --out {{head}}", "already holds something"),
  (f"{SWEEP} --eval-cache {{wrong}}/other", "backbone"),
  (f"{EVALUATE} --cache {{wrong}}/other", "backbone"),
  ("evaluate {wrong}/no-receipt --cache {eval}", "is not a head"),
  (f"{EVALUATE} --cache {{train}}", "may hold training rows"),
  (f"{EVALUATE} --private-eval 1", "needs a --delta, well below 1/n = 0.01"),
  (f"{EVALUATE} --real-labels {{wrong}}/text.txt", "ids are places"),
  (
    f"{EVALUATE} --cache {{wrong}}/numbered --real-labels {{wrong}}/text.txt",
    "text.txt is damaged",
  ),
  (
    f"{EVALUATE} --real-labels {{config}} --private-eval 1 --delta 1e-6",
    "--real-labels are public, and --private-eval",
  ),
  ("verify {wrong}/receipt", "receipt.json"),
  (f"{TRAIN} --ledger-dir {{wrong}}/ledgers", "damaged or edited"),
  ("report {wrong}", "wrong"),
  (
    "report {head}",
    "is a head, not what `report` is for: try `oneshot-dp verify",
  ),
  ("report {train}", "is a feature cache, not what `report` is for: try"),
  (
    "verify {head}/../..",
    "wrote, not what `verify` is for: try `oneshot-dp report",
  ),
  ("report {wrong}/text.txt", "text.txt"),
  ("extract {wrong}/raises.py --out {out}", "no reason"),
  (f"{EXTRACT} --source.path {{wrong}}/none.npz", "none.npz"),
  (f"{EXTRACT} --out {{train}}", "another job"),
  (f"{EXTRACT} --out {{wrong}}/text.txt", "not a directory"),
  (f"{EXTRACT} --out {{wrong}}/text.txt/out", "not a directory"),
  # Arrays.
  (IMPORT % "range" + " --out {train}", "label outside"),
  ("import-features {wrong} --out {out}", "no such file"),  # an earlier name
  (IMPORT % "sound" + " --split train[1%:2%]", "no row is in split"),
  ("import --out {out}", "file"),
]
RUN_FAILS = [
  (f"{TRAIN} --out {{wrong}}/text.txt/head", "not writable"),
  (f"{SWEEP} --out {{wrong}}/text.txt/results", "not writable"),
  (f"{TRAIN} --ledger-dir {{wrong}}/text.txt", "text.txt"),
  ("demo --quiet --out {wrong}/text.txt", "text.txt"),
]


@pytest.fixture(scope="module")
def wrong(tmp_path_factory, train_cache, finished_sweep) -> pathlib.Path:
  """Files and folders that are not what a command wants."""
  folder = tmp_path_factory.mktemp("wrong") / "wrong"
  folder.mkdir()
  (folder / "text.txt").write_text("words")
  (folder / "no-receipt").mkdir()
  (folder / "raises.py").write_text(
    "def get_config():\n  raise KeyError('no reason')\n"
  )
  embedding = np.ones((4, 2), np.float32)
  label = np.array([0, 1, 2, 0])
  found: dict[str, dict[str, Any]] = {
    "range": {"embedding": embedding, "label": label + 1},
    "sound": {"embedding": embedding, "label": label},
  }
  for name, arrays in found.items():
    np.savez(folder / f"{name}.npz", **arrays)
  other = BackboneIdentity(name="another")
  write_clusters(folder / "other", split="test", backbone=other)
  write_clusters(folder / "numbered", split="test", id_source="example_id")
  shutil.copytree(
    finished_sweep.path / "heads/epsilon-2-draw-0", folder / "receipt"
  )
  (folder / "receipt" / "receipt.json").write_text("{")
  ledger = Ledger(train_cache.info.dataset, folder / "ledgers")
  ledger.charge(Charge.of_baseline())
  ledger.path.write_text(ledger.path.read_text().replace("baseline", "b"))
  begin(folder / "unfinished", make_identity())
  for name in ("corrupt", "edited", "truncated"):
    shutil.copytree(train_cache.path, folder / name)
  info = folder / "edited" / "cache_info.json"
  info.write_text(info.read_text().replace('"pets"', '"toys"'))
  (folder / "corrupt" / "cache_info.json").write_text('{"dataset": ')
  shard = next((folder / "truncated").glob("*.array_record-*"))
  os.truncate(shard, shard.stat().st_size // 2)
  return folder


@pytest.fixture
def typed(place, wrong, images):
  def fill(words: str) -> list[str]:
    return place(words.replace("{wrong}", str(wrong)))

  return fill


def everything_in(folder: pathlib.Path) -> dict[str, bytes]:
  """Files with something in them: a look at a ledger makes an empty one.

  Nor does Python's own cache of a config count.
  """
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob("*"))
    if path.is_file() and path.stat().st_size and path.suffix != ".pyc"
  }


@pytest.mark.parametrize(
  ("words", "said", "status"),
  [(*row, 2) for row in ASKED_WRONGLY] + [(*row, 1) for row in RUN_FAILS],
  ids=[words for words, _ in (*ASKED_WRONGLY, *RUN_FAILS)],
)
def test_one_line_and_nothing_else(
  typed, capsys, tmp_path, wrong, words, said, status
):
  argv = typed(words)
  before = everything_in(tmp_path), everything_in(wrong)
  assert main(argv) == status
  out, err = capsys.readouterr()
  assert out == ""
  *others, error = err.splitlines()
  assert said in one_line(error)
  assert len(error) < 1200
  assert ".;" not in error
  assert "Traceback" not in err
  if words == "verify {wrong}/truncated":
    assert others, "each fault has a line"
  else:
    assert all(line.startswith(("warning: ", "runs ")) for line in others)
  assert (everything_in(tmp_path), everything_in(wrong)) == before
  assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(typed, capsys, tmp_path):
  folder = tmp_path / "locked"
  folder.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
  assert main(typed(f"{TRAIN} --out {folder}/head")) == 1
  assert "not writable" in one_line(capsys.readouterr().err)
  assert not Ledger("pets").entries()
