"""Published top-1 accuracies on ImageNet, to draw beside our own.

Every accuracy, with its epsilon and delta, is from the abstract of the paper
that its citation names. What stands in the papers' tables and figures (the
accuracies at other epsilons, all of those on ImageNet-ReaL) could not be looked
up when this was written, and nothing is read off a plot or filled in. Backbones
and the data that they were pretrained on differ from ours: the numbers say
where the field stood, not which method is better.
"""

import dataclasses

IMAGENET = "imagenet2012"
"""Data sets whose name starts so are what the numbers are about."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
  """The accuracy that a paper states: ε → top-1, a fraction.

  `is_range`: one is stated for all ε from the least to the largest. `setting`
  is the backbone and what it was pretrained on, as far as stated.
  """

  authors: str
  setting: str
  method: str
  delta: float
  top1: dict[float, float]
  is_range: bool = False
  citation: str
  source: str


PUBLISHED = (
  Published(
    authors="Mehta et al. 2023",
    setting="ViT pretrained on JFT",
    method="one LAMB step of the last layer, full batch",
    delta=1e-6,
    top1={4.0: 0.817, 10.0: 0.817},
    is_range=True,
    citation=(
      "Mehta, Thakurta, Kurakin & Cutkosky, Large Scale Transfer Learning for"
      " Differentially Private Image Classification, TMLR 2023"
    ),
    source="arXiv 2205.02973, abstract",
  ),
  Published(
    authors="De et al. 2022",
    setting="NFNet-F3 pretrained on JFT-4B",
    method="DP-SGD fine-tuning",
    delta=8e-7,
    top1={0.5: 0.838, 8.0: 0.867},
    citation=(
      "De, Berrada, Hayes, Smith & Balle, Unlocking High-Accuracy"
      " Differentially Private Image Classification through Scale, 2022"
    ),
    source="arXiv 2204.13650, abstract",
  ),
  Published(
    authors="Mehta et al. 2022 (features)",
    setting="backbone not in the abstract",
    method="DP-FC on frozen features",
    delta=8e-7,
    top1={0.1: 0.843, 8.0: 0.88},
    citation=(
      "Mehta, Krichene, Thakurta, Kurakin & Cutkosky, Differentially Private"
      " Image Classification from Features, 2022"
    ),
    source="arXiv 2211.13403, abstract",
  ),
)


def references_for(
  dataset: str, *, always: bool = False
) -> tuple[Published, ...]:
  """What to draw beside results: all on ImageNet or if `always`, else none."""
  return PUBLISHED if always or dataset.startswith(IMAGENET) else ()
