"""A backbone by name: a frozen network with its weights, ready to be jitted."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import ComputeDtype, PreprocessConfig
from oneshot_dp.extract.backbones import user_function
from oneshot_dp.extract.backbones.family import FAMILIES
from oneshot_dp.extract.backbones.kinds import BackboneSpec
from oneshot_dp.extract.backbones.names import (
  backbone_spec,
  names_of_same_arrays,
  names_of_timm,
  nearest_names,
)
from oneshot_dp.extract.backbones.network_files import (
  load_network,
  read_without_classifier,
)
from oneshot_dp.extract.backbones.pretrained_config import (
  PublishedConfig,
  published_config,
)
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.extract.known_weights import remember_location
from oneshot_dp.extract.weights import Arrays, local_weights, read_tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backbone:
  """A frozen feature extractor.

  Attributes:
    name: the name that it was loaded by.
    embedding: the layer that is read: "cls", "mean", "pooled" …
    feature_dim: d, the dimension of its embeddings.
    preprocessing: how images are prepared; `apply` normalizes by its mean and
      std, the rest is done before.
    weights_sha256: of the weights file; None for a function without one.
    code_sha256: of the Python file of a user's own function.
    compute_dtype: of matrix products; None where a user's function decides.
    params: tree of arrays, on the host.
    apply: (params, uint8 images [b, s, s, 3]) to float32 embeddings [b, d];
      pure, normalizes, and treats every image alone.
    network: the Flax module; None for a user's function.
    timm: the architecture in timm, such as "vit_tiny_patch16_224", if any.
    weights_path: the weights file on this machine.
    preprocessing_source: what said how images are prepared: the place of a
      config.json, or the backbone's name.
    license: of the published weights, where it is not a permissive one.
    resized_positions: how position embeddings were resized to the image size,
      such as "24 x 24 to 14 x 14"; "" if they were not.
  """

  name: str
  embedding: str
  feature_dim: int
  preprocessing: Preprocessing
  weights_sha256: str | None
  code_sha256: str | None = None
  compute_dtype: ComputeDtype | None
  params: Any = dataclasses.field(repr=False)
  apply: Callable[[Any, UInt8[Array, "b s s 3"]], Float32[Array, "b d"]]
  network: Any = None
  timm: str | None = None
  weights_path: pathlib.Path | None = None
  preprocessing_source: str | None = None
  license: str | None = None
  resized_positions: str = ""
  names_alike: tuple[str, ...] = ()

  @property
  def identity(self) -> dict[str, Any]:
    """Everything that decides its embeddings, as plain JSON values."""
    # The location of the weights is left out: the same file elsewhere is the
    # same network, and the location may be private.
    preprocess: dict[str, Any] = dataclasses.asdict(self.preprocessing)
    for field in ("mean", "std"):
      preprocess[field] = list(preprocess[field])
    # Left out unless it was asked for: caches that were made before the option
    # existed keep their identity.
    if preprocess["bit_depth"] is None:
      del preprocess["bit_depth"]
    return {
      "name": self.name,
      "layer": self.embedding,
      "feature_dim": self.feature_dim,
      "weights_sha256": self.weights_sha256,
      "code_sha256": self.code_sha256,
      "preprocess": preprocess,
    }

  @property
  def summary(self) -> str:
    """One line for people: the layer, how images are prepared, who says so."""
    # Preprocessing that does not fit the weights fails nothing and costs
    # accuracy, so a person reads which one is used, and who says so.
    images = self.preprocessing
    side = images.image_size
    if images.resize == "square":
      resizing = "both sides resized"
    elif images.keep_aspect:
      resizing = f"the shorter side resized to {images.resize}, center crop"
    else:
      resizing = f"both sides resized to {images.resize}, center crop"
    summary = (
      f"{self.name}, embedding {self.embedding}: images of {side} x {side}"
      f" pixels ({resizing}, {images.resample}), mean {_joined(images.mean)},"
      f" std {_joined(images.std)}"
    )
    if images.bit_depth is not None:
      summary += f", {images.bit_depth} bits of 16-bit files"
    if self.preprocessing_source is not None:
      summary += f", as {self.preprocessing_source} says"
    if self.resized_positions:
      summary += f"; position embeddings resized from {self.resized_positions}"
    if self.license is not None:
      summary += f"; license of the weights: {self.license}"
    return summary

  @property
  def doubt(self) -> str:
    """A warning of weights that may be those of another backbone, or ""."""
    if not self.names_alike:
      return ""
    others = " or ".join(self.names_alike)
    if self.name.startswith("vit"):
      others += " (or DINO or MAE, which are prepared as DeiT)"
    return (
      f"nothing but the name says that these are the weights of {self.name}:"
      f" those of {others} have the same shapes, and are computed otherwise"
    )


def _joined(channels: tuple[float, float, float]) -> str:
  return " ".join(f"{value:g}" for value in channels)


# One function for equal settings, so that JAX compiles it once, however often
# the backbone is loaded; few, since what is compiled lives as long.
@functools.lru_cache(maxsize=8)
def apply_function(
  network: Any, preprocessing: Preprocessing
) -> Callable[..., Any]:
  """Returns `Backbone.apply` of a network.

  Images are normalized on the device, by (x/255 − mean)/std.

  Args:
    network: a Flax module, or a function (params, normalized images) → [b, d].
    preprocessing: has mean and std.

  Returns:
    (params, uint8 images [b, s, s, 3]) → float32 embeddings [b, d], to be
    jitted. For equal arguments it is the same function.
  """
  # The constants in float64 first: one rounding instead of four.
  mean = np.array(preprocessing.mean)
  std = np.array(preprocessing.std)
  scale = (1 / (255 * std)).astype(np.float32)
  shift = (-mean / std).astype(np.float32)

  def normalized(images: UInt8[Array, "b s s 3"]) -> Float32[Array, "..."]:
    return jnp.asarray(images, jnp.float32) * scale + shift

  if not isinstance(network, nn.Module):

    def apply_user_function(
      params: Any, images: UInt8[Array, "b s s 3"]
    ) -> Float32[Array, "..."]:
      return jnp.asarray(network(params, normalized(images)), jnp.float32)

    return apply_user_function

  # TPUs and GPUs would round float32 operands of a product to fewer bits.
  precision: Any = None
  module: Any = network
  if module.compute_dtype == "float32":
    precision = "highest"

  def apply(
    params: Any, images: UInt8[Array, "b s s 3"]
  ) -> Float32[Array, "..."]:
    x = normalized(images)
    with jax.default_matmul_precision(precision):
      return module.apply({"params": params}, x)

  return apply


def load_backbone(
  name: str,
  weights: str | None = None,
  weights_sha256: str | None = None,
  embedding: str | None = None,
  compute_dtype: ComputeDtype | None = None,
  preprocess: PreprocessConfig | Preprocessing = PreprocessConfig(),  # noqa: B008
) -> Backbone:
  """Loads a network and its weights, which are downloaded if need be.

  >>> backbone = load_backbone("glyph_vit")
  >>> backbone.feature_dim, backbone.preprocessing.image_size
  (128, 32)

  Args:
    name: a name of `backbone_names()`, or FILE.py:FUNCTION.
    weights: location of the weights; default: the published ones.
    weights_sha256: the SHA-256 that the weights file must have.
    embedding: the layer to read; default: the usual one of this network.
    compute_dtype: of matrix products; default: float32 on a CPU, else bfloat16.
    preprocess: changes to how images are prepared; or how exactly, such as a
      head's receipt states it. By default it is what the config.json of the
      weights says, and without one what the name says.

  Raises:
    InputError: an unknown name; weights that are missing or not those of the
      backbone; an image size or an embedding that it does not have; a user's
      function that fails, or whose embeddings depend on the other images.
    RunError: a download failed.
  """
  if not isinstance(name, str):
    raise InputError(f"name={name!a} must be the name of a backbone.")
  _check_compute_dtype(compute_dtype)
  if ".py:" in name:
    if embedding or compute_dtype:
      raise InputError(
        f"backbone {escaped(name)} decides itself what it returns and how it"
        " computes: leave out embedding and compute dtype."
      )
    return _load_user_function(name, weights, weights_sha256, preprocess)

  # A file that was given counts as the published one does: its arrays must be
  # those of the network that the name means, or it is refused.
  spec = backbone_spec(name)
  location = weights or spec.weights
  if location is None:
    # `vit_b17` follows the pattern of names, but is more likely a slip.
    nearest = nearest_names(name)
    hint = ""
    if nearest and name not in nearest:
      hint = f"did you mean {' or '.join(nearest)}? If not, "
    raise InputError(
      f"backbone {name} has no weights to download: {hint}give its"
      " weights, a path or an address of an npz or safetensors file."
    )
  if compute_dtype is None:
    compute_dtype = _default_compute_dtype()
  path = local_weights(location, weights_sha256)
  # Where a receipt states how images were prepared, nothing else is asked: a
  # head fits that and nothing else.
  published = None
  if isinstance(preprocess, Preprocessing):
    preprocessing = preprocess
    source = "the request"
  else:
    published = published_config(location, path)
    preprocessing, source = _preprocessing_of_weights(spec, published)
    preprocessing = preprocessing.changed(preprocess)
  loaded = load_network(spec, path, embedding, compute_dtype, preprocessing)
  network = loaded.network
  names_alike: list[str] = []
  if weights is not None:
    remember_location(loaded.sha256, weights)
    names_alike = _names_alike(spec, published, is_google=loaded.is_google)
  apply = apply_function(network, preprocessing)
  side = preprocessing.image_size
  # The dimension of embeddings is asked of the network itself, without
  # computing one.
  image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.uint8)
  architecture = None
  if spec.timm is not None:
    architecture = spec.timm.partition(".")[0]
  return Backbone(
    name=name,
    embedding=network.embedding,
    feature_dim=jax.eval_shape(apply, loaded.params, image).shape[1],
    preprocessing=preprocessing,
    weights_sha256=loaded.sha256,
    compute_dtype=compute_dtype,
    params=loaded.params,
    apply=apply,
    network=network,
    timm=architecture,
    weights_path=path,
    preprocessing_source=source,
    license=spec.license,
    resized_positions=loaded.resized_positions,
    names_alike=tuple(names_alike),
  )


def default_preprocessing(spec: BackboneSpec) -> Preprocessing:
  """Returns how images were prepared when the weights were trained."""
  return Preprocessing(
    image_size=spec.image_size,
    resize=spec.resize,
    keep_aspect=spec.keep_aspect,
    resample=spec.resample,
    mean=spec.mean,
    std=spec.std,
  )


def _preprocessing_of_weights(
  spec: BackboneSpec, published: PublishedConfig | None
) -> tuple[Preprocessing, str]:
  """Finds how images are prepared for a weights file, and what states it.

  InputError: what states it says that the weights are of another network.
  """
  by_name = default_preprocessing(spec)
  if published is None:
    return by_name, f"the name {spec.name}"
  _refuse_weights_of_another_name(spec, published)
  preprocessing = published.preprocessing
  if spec.keeps_image_size:
    preprocessing = dataclasses.replace(
      preprocessing,
      image_size=by_name.image_size,
      resize=by_name.resize,
      keep_aspect=by_name.keep_aspect,
    )
  return preprocessing, published.place


def _refuse_weights_of_another_name(
  spec: BackboneSpec, published: PublishedConfig
) -> None:
  """Refuses weights whose config.json names a network of other functions.

  OpenAI's CLIP has quick-GELU, and LAION's has arrays of the same shapes.
  """
  names = names_of_timm(published.timm)
  others = [backbone_spec(name) for name in names]
  if others and all(
    other.model_kwargs != spec.model_kwargs for other in others
  ):
    raise InputError(
      f"backbone {spec.name}: {published.place} says that the weights are"
      f" {escaped(published.timm)[:200]}: give the name"
      f" {' or '.join(names)}."
    )


def _names_alike(
  spec: BackboneSpec, published: PublishedConfig | None, *, is_google: bool
) -> list[str]:
  """Other names that given weights may be of, for all that is known."""
  if is_google or (published and names_of_timm(published.timm)):
    return []
  return names_of_same_arrays(spec, images_are_known=published is not None)


def timm_tensors(backbone: Backbone) -> Arrays:
  """Returns the weights of a backbone as timm has them, without a classifier.

  Returns:
    float32 arrays by timm's names; position embeddings are those of the
    backbone's image size.

  Raises:
    InputError: timm has no such network, or the file has changed since it was
      read.
  """
  path = backbone.weights_path
  if path is None or backbone.network is None or backbone.timm is None:
    raise InputError(f"backbone {backbone.name} has no timm equivalent.")
  spec = backbone_spec(backbone.name)
  family = FAMILIES[spec.family]
  # Read again rather than kept: the network has only what it reads, transposed,
  # and with constants multiplied in.
  file = read_without_classifier(path, family, backbone.preprocessing)
  if file.sha256 != backbone.weights_sha256:
    raise InputError(f"{escaped(str(path))} has changed since it was read.")
  arrays = file.arrays
  if spec.family == "vit":
    side = backbone.preprocessing.image_size
    arrays = family.adapt_weights(backbone.network, arrays, side)
  return {name: array.astype(np.float32) for name, array in arrays.items()}


def _check_compute_dtype(compute_dtype: Any) -> None:
  """Raises InputError for a dtype that no network here computes in."""
  dtypes = get_args(ComputeDtype)
  if compute_dtype is not None and compute_dtype not in dtypes:
    raise InputError(
      f"compute_dtype={compute_dtype!a} must be {' or '.join(dtypes)}."
    )


def _default_compute_dtype() -> ComputeDtype:
  if jax.default_backend() == "cpu":
    return "float32"
  return "bfloat16"


def _load_user_function(
  name: str,
  weights: str | None,
  weights_sha256: str | None,
  preprocess: PreprocessConfig | Preprocessing,
) -> Backbone:
  """Loads a user's function (params, normalized images [b, s, s, 3]) → [b, d].

  `params` are the arrays of the weights file by name, {} without one. The
  function is jitted, so it must be pure.
  """
  place, _, function_name = name.rpartition(":")
  path = None
  params: Arrays = {}
  actual_sha256 = None
  if weights:
    path = local_weights(weights, weights_sha256)
    params, actual_sha256 = read_tensors(path)
    remember_location(actual_sha256, str(path))
  preprocessing = preprocess
  if not isinstance(preprocessing, Preprocessing):
    preprocessing = Preprocessing().changed(preprocessing)
  # The code is the user's own: whatever it raises is reported in one line, as
  # an error of the request.
  try:
    function, code_sha256 = user_function.load_function(place, function_name)
    apply = apply_function(function, preprocessing)
    feature_dim = user_function.check_function(apply, params, preprocessing)
  except InputError:
    raise
  except Exception as error:
    message = " ".join(f"{type(error).__name__}: {error}".split())
    raise InputError(
      f"backbone {escaped(name)}: {escaped(message)[:500]}."
    ) from error
  return Backbone(
    name=f"{pathlib.Path(place).name}:{function_name}",
    embedding="what the function returns",
    feature_dim=feature_dim,
    preprocessing=preprocessing,
    weights_sha256=actual_sha256,
    code_sha256=code_sha256,
    compute_dtype=None,
    params=params,
    apply=apply,
    weights_path=path,
  )
