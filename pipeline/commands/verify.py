"""`oneshot-dp verify`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Check a cache (every byte and row), or a head and who vouches for it.

  A receipt's numbers are computed anew; weights, receipt and card are compared;
  and the ledger is asked whether these very bytes were paid for: exit status 1
  if there is a ledger and it does not say so.

  Example: oneshot-dp verify heads/2
  """

  path: Positional[Annotated[str, f.flag("A cache or a head.", "PATH")]]
  ledger: f.LedgerFile = None


def run(flags: Flags) -> Answer:
  """Checks it."""
  path, vouched = Path(flags.path), None
  names = "receipt.json", "head.safetensors"
  is_head = any((path / name).exists() for name in names)
  if is_head:
    from oneshot_dp.pipeline.heads.verify import verify_head
    from oneshot_dp.pipeline.ledger.ledger import open_existing_ledger

    vouched, said, faults = verify_head(
      path, open_existing_ledger(flags.ledger)
    )
  else:
    from oneshot_dp.extract.cache.read import check_cache
    from oneshot_dp.pipeline.commands.inspect import is_cache

    if not is_cache(flags.path):
      raise InputError(
        f"{flags.path} is neither a head nor a finished cache: name one of a"
        " run's heads, or what `extract` or `import` wrote."
      )
    faults = tuple(check_cache(flags.path))
    said = () if faults else ("every byte and every row is what it says",)
  failure = None
  if faults:
    failure = RunError(f"{path}: {len(faults)} fault(s) found.")
  if vouched is False:
    failure = RunError(f"{path} is not vouched for.")
  facts = {"path": flags.path, "kind": "head" if is_head else "cache"}
  facts |= {"ok": failure is None, "vouched": vouched}
  facts |= {"said": said, "faults": faults}
  text = "\n".join(said if failure else (f"ok: {said[0]}", *said[1:]))
  return Answer(text=text, facts=facts, faults=faults, failure=failure)
