"""Privacy units of many rows: a mean row for each of their classes.

For class c of a unit, the mean of its k_c rows counts at the integer weight
⌊W·k_c/k⌋, k = Σ_c k_c, so that a unit of any number of rows weighs W at most:

    ‖Σ_c left_c ⊗ row_c‖ ≤ Σ_c w_c·R ≤ W·R

For class sums, whose blocks are orthogonal, the weight is ⌊W·k_c/√Σk_c²⌋. All
of it is computed from exact integers, so the order of rows changes nothing.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int16, Int32, Int64

_ROWS_AT_ONCE = 2**15


class StoredRows(NamedTuple):
  """Integer rows as they are stored, with the units that they belong to.

  Attributes:
    row: z int16 [r, d].
    label: [r].
    weight: [r]; 0 for rows of zeros, which do not count.
    unit: unit ids, int64 [r].
  """

  row: np.ndarray
  label: np.ndarray
  weight: np.ndarray
  unit: np.ndarray


class UnitRows(NamedTuple):
  """Rows that stand for the classes of whole privacy units.

  Every unit takes the same number of slots m; a unit of fewer classes has rows
  of zeros, of weight 0, behind its own.

  Attributes:
    row: z int16 [u, m, d].
    label: int32 [u, m].
    weight: int32 [u, m].
  """

  row: Int16[np.ndarray, "u m d"]
  label: Int32[np.ndarray, "u m"]
  weight: Int32[np.ndarray, "u m"]


def unit_rows(
  parts: Iterable[StoredRows],
  is_own: Callable[[np.ndarray], np.ndarray],
  unit_weight: int,
  *,
  num_classes: int,
  mean_norm: float | None,
  weight_norm_order: int,
  per_row: bool,
) -> Iterator[UnitRows]:
  """Yields the rows of all units, each unit whole in what is yielded at once.

  Formal guarantees: what a unit contributes is a function of its own rows
  alone; its weights are integers with Σ w^p ≤ W^p, p = `weight_norm_order`;
  rows of zeros do not count. All rows of a unit are in the m slots of one
  place, unless they are asked for one by one.

  Args:
    parts: all stored rows, in any order.
    is_own: tells for each unit id whether this host sums it, [r] → [r].
    unit_weight: W.
    num_classes: K.
    mean_norm: the norm to which means of several rows are brought; None leaves
      them as they are.
    weight_norm_order: p, 1 or 2.
    per_row: yields the rows of units one by one in one slot each, at weight
      ⌊W/k⌋, in place of their means.
  """
  # A unit's rows may lie anywhere in the pass, so all of them are gathered
  # first. This is the memory that units cost; `memory_needed` counts it.
  stored = _concatenate_own(parts, is_own)
  if stored is None:
    return
  row, label, unit = stored
  groups = _groups_of(label, unit, per_row)
  weight = _weights(
    unit_weight, groups.unit, groups.num_rows, weight_norm_order
  )
  # Units of about as many groups lie side by side, in as many slots, so that
  # neither a unit of 10,000 classes nor one of a single row pads the other.
  slots_of_unit = _slot_numbers(groups.num_groups, num_classes)
  for slots in np.unique(slots_of_unit).tolist():
    units = np.flatnonzero(slots_of_unit == slots)
    units_at_once = max(1, _ROWS_AT_ONCE // slots)
    for start in range(0, len(units), units_at_once):
      batch = units[start : start + units_at_once]
      slot = np.arange(slots)
      # The groups of a unit follow each other, so its slots are a range that
      # begins at its first group. Slots behind its last group stay zeros.
      is_filled = slot < groups.num_groups[batch][:, None]
      group = (groups.first_group[batch][:, None] + slot)[is_filled]
      z = _means(
        _sums_of_groups(row, groups, group), groups.num_rows[group], mean_norm
      )
      # A mean may round to zeros. Such a row is nothing, and may not weigh
      # anything either: a count would see its weight.
      columns = (z, groups.label[group], weight[group] * z.any(axis=1))
      yield UnitRows(*[_in_slots(values, is_filled) for values in columns])


class _Groups(NamedTuple):
  """What becomes one row each: the rows of one class of one unit.

  Attributes:
    order: indices of stored rows, sorted by unit and class, [r].
    first_row: where in `order` each group begins, [g].
    num_rows: of each group, [g].
    unit: unit id of each group, [g].
    label: of each group, [g].
    first_group: of each unit, [u].
    num_groups: of each unit, [u].
  """

  order: np.ndarray
  first_row: np.ndarray
  num_rows: np.ndarray
  unit: np.ndarray
  label: np.ndarray
  first_group: np.ndarray
  num_groups: np.ndarray


def _groups_of(
  label: np.ndarray, unit: Int64[np.ndarray, " r"], per_row: bool
) -> _Groups:
  """Groups rows by unit and class.

  With `per_row`, each row is a group, and lies alone like a unit of one row;
  `unit` still says whose it is.
  """
  # Sorted by unit, then by class. Which order equal rows come in does not
  # matter: they are only added up, as integers.
  order = np.lexsort((label, unit))
  label = label[order]
  unit = unit[order]
  # Neighbors are compared, and not subtracted: ids may be any int64.
  is_new_unit = np.ones(len(unit), bool)
  is_new_unit[1:] = unit[1:] != unit[:-1]
  is_new_group = is_new_unit.copy()
  is_new_group[1:] |= label[1:] != label[:-1]
  if per_row:
    is_new_unit[:] = True
    is_new_group[:] = True
  first_row = np.flatnonzero(is_new_group)
  first_group = np.flatnonzero(is_new_unit[first_row])
  return _Groups(
    order=order,
    first_row=first_row,
    num_rows=np.diff(first_row, append=len(order)),
    unit=unit[first_row],
    label=label[first_row],
    first_group=first_group,
    num_groups=np.diff(first_group, append=len(first_row)),
  )


def _slot_numbers(num_groups: np.ndarray, num_classes: int) -> np.ndarray:
  """How many slots each unit gets: 1, 2, 3, 4, 6, 8, 12, … or K.

  As few as hold the unit; a few numbers, because each is a program of its own
  to compile. They must follow from the unit's own rows and public numbers
  alone: how a unit is scaled depends on its slots, and may depend on no other
  unit.
  """
  numbers = [1]
  power = 2
  while numbers[-1] < num_classes:
    numbers.append(power)
    numbers.append(power * 3 // 2)
    power *= 2
  choices = np.array(numbers)
  slots = choices[np.searchsorted(choices, num_groups)]
  return np.minimum(slots, num_classes)


def _sums_of_groups(
  row: np.ndarray, groups: _Groups, group: np.ndarray
) -> Int64[np.ndarray, "g d"]:
  """Σz over the rows of each of these groups, exactly."""
  num_rows = groups.num_rows[group]
  # Only the rows of these groups are copied, in the order of the groups, so
  # that each group is one stretch for `reduceat`, which begins at `begin`.
  begin = np.cumsum(num_rows) - num_rows
  within = np.arange(num_rows.sum()) - np.repeat(begin, num_rows)
  position = np.repeat(groups.first_row[group], num_rows) + within
  return np.add.reduceat(row[groups.order[position]], begin, dtype=np.int64)


def _in_slots(
  values: np.ndarray, is_filled: Bool[np.ndarray, "u m"]
) -> np.ndarray:
  """The values of groups in the slots that they fill; zeros in the others."""
  dtype = np.int16 if values.ndim == 2 else np.int32
  slots = np.zeros((*is_filled.shape, *values.shape[1:]), dtype)
  slots[is_filled] = values
  return slots


def _concatenate_own(
  parts: Iterable[StoredRows], is_own: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
  """This host's rows that are not zeros, their labels and unit ids, if any."""
  rows = []
  labels = []
  units = []
  for part in parts:
    # Rows of zeros are left out before anything is counted: a unit would
    # otherwise share its weight with rows that stand for no image.
    is_kept = (part.weight > 0) & is_own(part.unit)
    rows.append(part.row[is_kept])
    labels.append(part.label[is_kept].astype(int))
    units.append(part.unit[is_kept])
  if not rows:
    return None
  row = np.concatenate(rows)
  rows.clear()  # the largest array, which is not needed twice
  return row, np.concatenate(labels), np.concatenate(units)


def _weights(
  unit_weight: int,
  unit: Int64[np.ndarray, " P"],
  count: np.ndarray,
  weight_norm_order: int,
) -> Int64[np.ndarray, " P"]:
  """⌊W·k_c/k⌋ for each class of each unit, or with order 2 ⌊W·k_c/√Σk_c²⌋.

  In Python's integers: (W·k_c)² may exceed int64.
  """
  # Rounded down, so that the weights of a unit add up to W at most, and their
  # squares to W² with order 2: that is the bound which lemma 1 needs.
  pairs = list(zip(unit.tolist(), count.tolist(), strict=True))
  total: dict[int, int] = {}
  for unit_id, rows in pairs:
    total[unit_id] = total.get(unit_id, 0) + rows**weight_norm_order
  weights = []
  for unit_id, rows in pairs:
    power = (unit_weight * rows) ** weight_norm_order // total[unit_id]
    weights.append(math.isqrt(power) if weight_norm_order == 2 else power)
  return np.array(weights, int)


def _means(
  total: Int64[np.ndarray, "P d"], count: np.ndarray, mean_norm: float | None
) -> Int16[np.ndarray, "P d"]:
  """The mean rows of sums Σz of k rows.

  They are trunc(Σz/k), or, where rows are directions, Σz brought to
  `mean_norm`. A single row stays what it is.
  """
  # A mean of integer vectors of norm ≤ R has norm ≤ R, and truncation toward
  # zero makes it no longer. Directions are brought to `mean_norm`, which leaves
  # room for rounding; both are checked again where the row is added.
  k = count[:, None]
  if mean_norm is None:
    return (np.sign(total) * (np.abs(total) // k)).astype(np.int16)
  # Shifted so that squares, of numbers below 2²⁵, add up exactly in float64.
  bits = np.frexp(k.astype(np.float64))[1].astype(np.int64)
  part = (total >> np.maximum(bits - 10, 0)).astype(np.float64)
  norm = np.sqrt(np.square(part).sum(axis=1, keepdims=True))
  z = np.rint(part * (mean_norm / np.maximum(norm, 1)))
  return np.where(k == 1, total, z).astype(np.int16)


def place_whole_units(
  units: UnitRows, num_rows: int, num_devices: int
) -> Iterator[list[np.ndarray]]:
  """Yields columns of units for the devices, each unit whole on one device.

  A unit that was cut in two could be scaled to norm W·R twice, and move a sum
  by 2·W·R. Therefore each device takes as many whole units as fit in its part
  of a chunk, and its part is as large as a unit at least.

  Args:
    units: u units in m slots each.
    num_rows: how many rows a chunk is to have, if no unit has more.
    num_devices: how many devices share a chunk, in equal parts.

  Yields:
    row [c, d], label [c] and weight [c]; zeros behind the units of a device.
  """
  num_units, slots = units.label.shape
  rows_per_device = max(num_rows // num_devices, slots)
  units_per_device = rows_per_device // slots
  for start in range(0, num_units, units_per_device * num_devices):
    # All chunks have one shape, the last one included, so that one program is
    # compiled.
    columns = []
    for column in units:
      chunk_column = np.zeros(
        (num_devices, rows_per_device, *column.shape[2:]), column.dtype
      )
      for device in range(num_devices):
        first = start + device * units_per_device
        own = column[first : first + units_per_device]
        # Units one after the other, their slots side by side.
        own_rows = own.reshape(-1, *column.shape[2:])
        chunk_column[device, : len(own_rows)] = own_rows
      columns.append(chunk_column.reshape(-1, *column.shape[2:]))
    yield columns
