"""`oneshot-dp backbones`."""

import dataclasses

from tyro.conf import Positional

from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """List the backbones, or say all about one.

  Of one: its weights files, the embeddings that can be read from it, how many
  numbers each has, and the preprocessing that its weights were made for.

  Example: oneshot-dp backbones vit_b16
  """

  name: Positional[str | None] = None
  """A name such as vit_b16; default: all."""


def run(flags: Flags) -> Answer:
  """Lists them."""
  from oneshot_dp.pipeline.commands.data.backbone_list import backbones

  return backbones(flags.name)
