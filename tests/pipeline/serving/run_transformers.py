"""Runs exported models where PyTorch and transformers are, and nothing of ours.

    PYTHON run_transformers.py FOLDER

writes FOLDER/CASE/logits.npy of the images in FOLDER/CASE/images.npy.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

for case in sorted(pathlib.Path(sys.argv[1]).iterdir()):
  config = json.loads((case / "model/config.json").read_text())
  trust = {"trust_remote_code": True} if "auto_map" in config else {}
  model, loading = AutoModelForImageClassification.from_pretrained(
    case / "model", output_loading_info=True, **trust
  )
  wrong = {kind: list(keys) for kind, keys in loading.items() if keys}
  assert not wrong, (case.name, wrong)
  processor = AutoImageProcessor.from_pretrained(case / "model")
  images = [Image.fromarray(image) for image in np.load(case / "images.npy")]
  with torch.no_grad():
    logits = model.eval()(**processor(images, return_tensors="pt")).logits
  np.save(case / "logits.npy", logits.numpy())
