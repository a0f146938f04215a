"""Opens a source: the location says of what kind it is."""

from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources.source import Source


def open_source(settings: SourceSettings) -> Source:
  """Opens one split of a data set; `settings.split` says which."""
  raise NotImplementedError


def listing_of(source: Source) -> bytes:
  """What a source consists of, as JSON; private."""
  raise NotImplementedError


def reopened(listing: bytes) -> Source:
  """The source of a listing, in another process."""
  raise NotImplementedError
