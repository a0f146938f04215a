"""The report of `inspect` about a location of images."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from oneshot_dp.configs.errors import escaped, format_count

_DUPLICATES_ADVICE = (
  "epsilon is about one row, and is more for these; `extract --units"
  " same-image` protects all copies of an image together"
)


@dataclasses.dataclass(kw_only=True)
class ImagesReport:
  """What is at a location, with control characters escaped.

  Attributes:
    location: as it was given.
    classes: of each split that can be extracted, the images of each class.
    owners: of each split with units: the name of the unit, how many there are,
      and how many images one has at most.
    num_images: of all splits, broken ones included.
    sizes: smallest, median and largest width and height of all images.
    faults: what makes an extraction fail, of this split or of another, each
      named.
    warnings: photographs that are left out, and what is odd about images that
      can be read.
    passed_over: files that are not images.
    duplicates: places of images of the same bytes.
    label_conflicts: those of them that are in several classes, with these.
    notes: what a flag of `extract` has to say.
  """

  location: str
  classes: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
  owners: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
  num_images: int = 0
  sizes: list[str] = dataclasses.field(default_factory=list)
  faults: list[str] = dataclasses.field(default_factory=list)
  warnings: list[str] = dataclasses.field(default_factory=list)
  passed_over: list[str] = dataclasses.field(default_factory=list)
  duplicates: list[str] = dataclasses.field(default_factory=list)
  label_conflicts: list[str] = dataclasses.field(default_factory=list)
  notes: list[str] = dataclasses.field(default_factory=list)

  @property
  def text(self) -> str:
    """All of it, PRIVATE but for the names of the classes."""
    # What can be extracted comes first, then what would make it fail, then what
    # may be meant otherwise: a person reads until it is enough.
    lines = [f"{self.location}: PRIVATE but for the names of its classes"]
    for split, counts in self.classes.items():
      lines.append(f"split {split}: {sum(counts.values()):,} images in classes")
      width = max(len(name) for name in counts)
      for name, count in counts.items():
        lines.append(f"  {name:{width}}  {count:,}")
      if split in self.owners:
        owners = self.owners[split]
        lines.append(
          f"  owners ({owners['unit']}): {owners['number']:,}, each with at"
          f" most {format_count(owners['most'], 'image')}"
        )
    lines.append(f"all images: {self.num_images:,}")
    if self.sizes:
      smallest, median, largest = self.sizes
      lines.append(
        f"width x height: smallest {smallest}, median {median}, largest"
        f" {largest}"
      )
    lines += _list_of("problems", self.faults)
    for warning in self.warnings:
      lines.append(f"WARNING: {warning}")
    lines += _list_of("skipped (not images)", self.passed_over)
    lines += _list_of("exact duplicates", self.duplicates)
    if self.duplicates:
      lines.append(f"  {_DUPLICATES_ADVICE}")
    conflicts = "label conflicts (one image in several classes)"
    # Images that no split of a known class took were compared with nothing.
    if self.duplicates and self._num_labeled() < self.num_images:
      conflicts += ", among images whose class is known"
    lines += _list_of(conflicts, self.label_conflicts)
    lines += _list_of("flags required", self.notes)
    return "\n".join(lines)

  def _num_labeled(self) -> int:
    """How many images an extraction would give a class."""
    counts = [sum(split.values()) for split in self.classes.values()]
    return sum(counts)

  def escaped(self) -> "ImagesReport":
    """Returns the report with control characters escaped."""
    return dataclasses.replace(
      self,
      location=escaped(self.location, but=""),
      sizes=_escaped_all(self.sizes),
      faults=_escaped_all(self.faults),
      warnings=_escaped_all(self.warnings),
      passed_over=_escaped_all(self.passed_over),
      duplicates=_escaped_all(self.duplicates),
      label_conflicts=_escaped_all(self.label_conflicts),
      notes=_escaped_all(self.notes),
    )


def _list_of(title: str, items: Sequence[str]) -> list[str]:
  if not items:
    return [f"{title}: none"]
  return [f"{title}: {len(items):,}", *(f"  {item}" for item in items)]


def _escaped_all(lines: Sequence[str]) -> list[str]:
  return [escaped(line, but="") for line in lines]
