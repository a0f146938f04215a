"""Builds the image of workers without a daemon, and extracts with its pool.

    python -m tests.cluster.image

`buildah bud` runs every line of extract/Dockerfile, in chroots. The image that
it begins with is Beam's if it can be pulled. If not, a Debian that debootstrap
makes stands in for it: other versions of Python and of the system, and no entry
point, so that of Dataflow is not tested. Private files lie in the folder that
is built from, and none may be in the image. Then Prism gets its workers from
the image's pool, and the cache must have the bytes of a loop.

It takes root, a quarter of an hour and 8 GB of the disk; `--storage` keeps what
was built for the next run. Without debootstrap or buildah nothing is tested.
"""

import argparse
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

from tests.cluster.dockerfile_test import copied
from tests.cluster.job_servers import JOB_SECONDS, prism, start
from tests.cluster.processes import (
  POOL,
  ROOT,
  CannotRun,
  free_port,
  listens,
  stop_when_told,
)
from tests.extract.cache.caches import digest
from tests.extract.job.jobs import write_folder

DOCKERFILE = ROOT / "extract" / "Dockerfile"
BEAM = DOCKERFILE.read_text().partition("ARG BEAM=")[2].partition("\n")[0]
BASE = f"apache/beam_python3.12_sdk:{BEAM}"
IMAGE = "localhost/oneshot-dp"
POOL_SECONDS = 120
# What the steps of the Dockerfile write beside what they copy.
MADE = {"build.lock", "other.lock"}


class Builder:
  """buildah, with images and containers in a folder of its own."""

  def __init__(self, storage: pathlib.Path):
    self._words = [
      *("buildah", "--storage-driver", "vfs"),
      *("--root", str(storage / "images"), "--runroot", str(storage / "run")),
    ]

  def command(self, *words: object) -> list[str]:
    return [*self._words, *(str(word) for word in words)]

  def run(self, *words: object) -> str:
    """What a command prints; what it complains of ends the test."""
    ran = subprocess.run(
      self.command(*words), capture_output=True, text=True, check=False
    )
    if ran.returncode:
      sys.exit(f"buildah {words[0]}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout.strip()

  def has(self, image: str) -> bool:
    words = self.command("inspect", "--type", "image", image)
    return not subprocess.run(
      words, capture_output=True, check=False
    ).returncode

  def pull(self, image: str) -> bool:
    words = self.command("pull", "--quiet", image)
    return not subprocess.run(
      words, capture_output=True, check=False
    ).returncode


def check_tools() -> None:
  for tool in ("buildah", "debootstrap"):
    if shutil.which(tool) is None:
      raise CannotRun(f"there is no {tool} here")
  if os.geteuid():
    raise CannotRun("debootstrap and chroots take root")


def make_base(builder: Builder, place: pathlib.Path) -> None:
  """Puts a Debian in the place of Beam's image, with `python` and `pip`."""
  root = place / "debian"
  targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
  mirrors = subprocess.run(targets, capture_output=True, text=True, check=True)
  release = platform.freedesktop_os_release()["VERSION_CODENAME"]
  made = subprocess.run(
    [
      *(
        "debootstrap",
        "--variant=minbase",
        "--include=python3-venv,python3-pip",
      ),
      *(release, root, mirrors.stdout.splitlines()[0]),
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  if made.returncode:
    raise CannotRun(f"debootstrap fails: {made.stdout[-200:]}")
  # Debian's own Python lets nobody install packages beside its own.
  subprocess.run(
    ["chroot", root, "python3", "-m", "venv", "/opt/venv"], check=True
  )
  container = builder.run("from", "scratch")
  builder.run("copy", container, root, "/")
  path = "/opt/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  builder.run("config", "--env", f"PATH={path}", container)
  builder.run("commit", "--rm", "--quiet", container, BASE)


def build(builder: Builder, place: pathlib.Path) -> None:
  """Builds in a copy of the repository in which private files lie, too."""
  source = place / "source"
  ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__")
  shutil.copytree(ROOT, source, ignore=ignored, symlinks=True)
  for name in ("caches/train/private", "demo/private", "ledger"):
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_text("private")
  # How this machine reaches its package index.
  mounts = []
  for file in ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
    if pathlib.Path(file).exists():
      mounts.append(f"--volume={file}:{file}:ro")
  builder.run(
    *("bud", "--isolation", "chroot", "--pull-never", *mounts),
    *("--file", source / "extract" / "Dockerfile", "--tag", IMAGE, source),
  )


def check_files(root: pathlib.Path) -> int:
  """Nothing but what the Dockerfile names is in the image."""
  folder = root / "opt" / "oneshot-dp"
  names = {path.name for path in folder.iterdir()}
  if names != copied() | MADE:
    sys.exit(f"The image has {sorted(names)}, not what the Dockerfile copies.")
  return len(list(folder.rglob("*.py")))


def extract_with_pool(
  builder: Builder, container: str, place: pathlib.Path
) -> str:
  """A job of Prism whose workers are those of the image's pool."""
  _, flags = prism()
  write_folder(place / "photos", 60, side=32)
  if start(place, "loop", []).wait(JOB_SECONDS):
    sys.exit((place / "loop.log").read_text())
  port = free_port()
  module = POOL[:-1]
  with (place / "pool.log").open("wb") as log:
    pool = subprocess.Popen(
      builder.command(
        *("run", "--isolation", "chroot", f"--volume={place}:{place}"),
        *(container, "python", *module, f"--service_port={port}"),
      ),
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
    )
  try:
    deadline = time.monotonic() + POOL_SECONDS
    while not listens(port):
      if pool.poll() is not None or time.monotonic() > deadline:
        sys.exit(f"{(place / 'pool.log').read_text()}\nThere is no pool.")
      time.sleep(0.3)
    begin = time.monotonic()
    external = [
      "--environment_type=EXTERNAL",
      f"--environment_config=localhost:{port}",
    ]
    if start(place, "pool", [*flags, *external]).wait(JOB_SECONDS):
      sys.exit(f"{(place / 'pool.log').read_text()}\nIt did not run.")
    took = time.monotonic() - begin
  finally:
    pool.terminate()
    pool.wait()
  if digest(place / "pool") != digest(place / "loop"):
    sys.exit("The image's workers made other bytes than a loop.")
  return f"Prism with the image's pool: the bytes of a loop in {took:.0f} s"


def test(storage: pathlib.Path, place: pathlib.Path) -> None:
  check_tools()
  builder = Builder(storage)
  base = "there already"
  if not builder.has(BASE):
    base = "pulled"
    if not builder.pull(BASE):
      base = "a Debian of debootstrap in its place"
      make_base(builder, place)
  print(f"{BASE}: {base}", flush=True)
  begin = time.monotonic()
  build(builder, place)
  took = time.monotonic() - begin
  print(f"every line of extract/Dockerfile ran, {took:.0f} s", flush=True)
  container = builder.run("from", IMAGE)
  files = check_files(pathlib.Path(builder.run("mount", container)))
  print(f"the image has what it copies ({files} .py files), nothing private")
  print(extract_with_pool(builder, container, place), flush=True)
  builder.run("rm", container)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--storage", type=pathlib.Path)
  asked = parser.parse_args()
  stop_when_told()
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    try:
      test(asked.storage or place / "storage", place)
    except CannotRun as reason:
      print(f"The image is not tested: {reason}.")


if __name__ == "__main__":
  main()
