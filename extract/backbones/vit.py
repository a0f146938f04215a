"""The Vision Transformer: ViT, DeiT, DINOv2, TIPSv2, SigLIP; CLIP by clip.py.

Arranged for speed on every XLA backend: the patch embedding is a matrix product
instead of a strided convolution (2x on a CPU); where only the class token is
read the last block computes only that token; attention runs as batched products
over [batch, heads, tokens, dim] (1.5x), and the softmax is divided by its sum
after the values are mixed (1.1x). The stream of tokens, LayerNorm and softmax
are float32 whatever the dtype of the products.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021),
equations 1 to 4. Distillation token: Touvron et al., "Training data-efficient
image transformers" (ICML 2021). LayerScale: "Going deeper with Image
Transformers" (ICCV 2021). Attention pooling: Zhai et al., "Scaling Vision
Transformers" (CVPR 2022). Registers: Darcet et al., "Vision Transformers Need
Registers" (ICLR 2024).
"""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Float32
from PIL import Image

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.weights import Arrays, Images

Tokens = Float32[Array, "b t width"]

CLASSIFIER_WEIGHTS: tuple[str, ...] = ("head.", "head_dist.", "mask_token")
_PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")
# The module or token that an embedding needs; the preferred embedding first.
_NEEDED_BY_EMBEDDING = {
  "map": "attn_pool",
  "cls": "cls_token",
  "mean": "norm",
  "pre_logits": "pre_logits",
}
_OF_CLASS_TOKEN = ("cls", "pre_logits", "projection")
# By width, where there is not one attention head for every 64 channels.
_HEADS_BY_WIDTH = {1152: 16, 1280: 16}
# By (width, depth).
_SIZE_NAMES = {
  (192, 12): "ti",
  (384, 12): "s",
  (768, 12): "b",
  (1024, 24): "l",
  (1280, 32): "h",
  (1152, 27): "so400m",
  (1536, 40): "g",
}
# The variance by the two-pass formula: it keeps its digits at a large mean.
layer_norm = functools.partial(
  nn.LayerNorm, epsilon=1e-6, dtype=jnp.float32, use_fast_variance=False
)


class ViT(nn.Module):
  """A Vision Transformer, from normalized images to embeddings.

  Attributes:
    width: channels of a token.
    depth: number of blocks.
    hidden: units of a block's MLP.
    patch: side of a patch in pixels. Pixels at the right and lower border that
      fill no patch are ignored.
    heads: of attention.
    tokens: names and numbers of the tokens in front of the patches.
    token_positions: whether these have position embeddings, too.
    mlp: "gelu" (exact), "gelu_tanh", "quick_gelu" (x·sigmoid(1.702 x)), or
      "swiglu", the gate silu(a)·b.
    layer_scale: whether each branch is scaled before it is added.
    embedding: what is read after the last LayerNorm. "cls": the class token;
      "mean": the mean of the patch tokens; "pre_logits": the class token
      through a dense layer and tanh; "map": attention pooling of all tokens;
      "projection": the class token through CLIP's projection.
    pre_norm: whether there is a LayerNorm before the blocks; the embedding of
      patches has no bias then.
    epsilon: of LayerNorm.
    projection_dim: channels of CLIP's projection.
    compute_dtype: dtype of matrix products.
  """

  width: int
  depth: int
  hidden: int
  patch: int
  heads: int
  tokens: tuple[tuple[str, int], ...] = (("cls_token", 1),)
  token_positions: bool = True
  mlp: str = "gelu"
  layer_scale: bool = False
  embedding: str = "cls"
  pre_norm: bool = False
  epsilon: float = 1e-6
  projection_dim: int | None = None
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(self, images: Images) -> Float32[Array, "b d"]:
    dtype = jnp.dtype(self.compute_dtype)
    mlp = functools.partial(Mlp, self.hidden, self.mlp, dtype)
    norm = functools.partial(layer_norm, epsilon=self.epsilon)
    x = self._add_positions(self._prepend_tokens(self._embed_patches(images)))
    if self.pre_norm:
      x = norm(name="norm_pre")(x)

    # Of the last block nothing but the class token is computed if nothing else
    # is read.
    for index in range(self.depth):
      num_outputs = None
      if index == self.depth - 1 and self.embedding in _OF_CLASS_TOKEN:
        num_outputs = 1
      block = Block(
        self.heads, mlp, norm, self.layer_scale, dtype, name=f"blocks.{index}"
      )
      x = block(x, num_outputs)
    x = norm(name="norm")(x)

    match self.embedding:
      case "map":
        return AttentionPooling(self.heads, mlp, dtype, name="attn_pool")(x)
      case "mean":
        return x[:, self.num_prefix_tokens :].mean(axis=1)
      case "pre_logits":
        dense = nn.Dense(self.width, dtype=dtype, name="pre_logits.fc")
        return nn.tanh(dense(x[:, 0])).astype(jnp.float32)
      case "projection":
        project = nn.Dense(self.projection_dim or 0, dtype=dtype, name="head")
        return project(x[:, 0]).astype(jnp.float32)
      case _:
        return x[:, 0]

  @property
  def num_prefix_tokens(self) -> int:
    """Tokens in front of the patches'."""
    return sum(number for _, number in self.tokens)

  def _embed_patches(self, images: Images) -> Tokens:
    """One token for each patch, row by row."""
    x = patches_of(images, self.patch)
    project = nn.DenseGeneral(
      self.width,
      axis=(3, 4, 5),
      use_bias=not self.pre_norm,
      name="patch_embed.proj",
      dtype=jnp.dtype(self.compute_dtype),
    )
    x = project(x).reshape(len(images), -1, self.width)
    return x.astype(jnp.float32)

  def _prepend_tokens(self, x: Tokens) -> Float32[Array, "b t_all width"]:
    """Puts the learned tokens in front of the patches'."""
    parts = []
    for name, number in self.tokens:
      shape = (1, number, self.width)
      token = self.param(name, nn.initializers.zeros, shape)
      parts.append(jnp.repeat(token, len(x), axis=0))
    return jnp.concatenate([*parts, x], axis=1)

  def _add_positions(self, x: Tokens) -> Tokens:
    """Adds the learned position embeddings, to patches or to all tokens."""
    without = self.num_prefix_tokens
    if self.token_positions:
      without = 0
    shape = (1, x.shape[1] - without, self.width)
    positions = self.param("pos_embed", nn.initializers.zeros, shape)
    return x + jnp.pad(positions, ((0, 0), (without, 0), (0, 0)))


def patches_of(images: Images, patch: int) -> Float32[Array, "b g g p p 3"]:
  """Cuts images into squares of `patch` pixels; the remainder is left out."""
  grid = images.shape[1] // patch
  side = grid * patch
  squares = images[:, :side, :side].reshape(-1, grid, patch, grid, patch, 3)
  return squares.swapaxes(2, 3)


class Block(nn.Module):
  """Attention and MLP, each after a LayerNorm and beside a residual.

  With `num_outputs` only that many tokens from the front are returned, and only
  for them is anything but keys and values computed.
  """

  heads: int
  mlp: Any
  norm: Any
  layer_scale: bool
  dtype: Any

  @nn.compact
  def __call__(
    self, x: Tokens, num_outputs: int | None
  ) -> Float32[Array, "b out width"]:
    width = x.shape[-1]
    qkv = nn.Dense(3 * width, name="attn.qkv", dtype=self.dtype)
    q, k, v = jnp.split(qkv(self.norm(name="norm1")(x)), 3, axis=-1)
    mixed = attention(q[:, :num_outputs], k, v, self.heads, self.dtype)
    mixed = nn.Dense(width, name="attn.proj", dtype=self.dtype)(mixed)
    x = x[:, :num_outputs] + self._scale("ls1.gamma", mixed)
    hidden = self.mlp(name="mlp")(self.norm(name="norm2")(x))
    return x + self._scale("ls2.gamma", hidden)

  def _scale(self, name: str, branch: Array) -> Array:
    """LayerScale, where the network has it."""
    if not self.layer_scale:
      return branch
    return branch * self.param(name, nn.initializers.ones, branch.shape[-1:])


def attention(q: Array, k: Array, v: Array, heads: int, dtype: Any) -> Array:
  """Multi-head attention, softmax(q kᵀ/√dim) v, accumulated in float32.

  Args:
    q: queries [b, q, width].
    k: keys [b, t, width].
    v: values [b, t, width].
    heads: number of heads, of dim = width / heads each.
    dtype: of the products.

  Returns:
    [b, q, width].
  """
  dim = q.shape[-1] // heads
  matmul = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)

  def by_head(x: Array) -> Array:
    return x.reshape(*x.shape[:2], heads, dim).swapaxes(1, 2)

  # The largest score is taken off, so that no exponential overflows. The sum of
  # the weights divides what is mixed, [q, dim], and not the weights, [q, t].
  scores = matmul(by_head(q) * dim**-0.5, by_head(k).swapaxes(2, 3))
  weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
  mixed = matmul(weights.astype(dtype), by_head(v))
  mixed = (mixed / weights.sum(axis=-1, keepdims=True)).swapaxes(1, 2)
  return mixed.reshape(q.shape)


class Mlp(nn.Module):
  """The MLP of a block: two dense layers with GELU or a gate in between."""

  hidden: int
  kind: str
  dtype: Any

  @nn.compact
  def __call__(self, x: Array) -> Array:
    width = x.shape[-1]
    if self.kind == "swiglu":
      x = nn.Dense(2 * self.hidden, name="fc1", dtype=self.dtype)(x)
      gate, value = jnp.split(x, 2, axis=-1)
      x = nn.silu(gate) * value
    else:
      x = nn.Dense(self.hidden, name="fc1", dtype=self.dtype)(x)
      if self.kind == "quick_gelu":
        x = x * nn.sigmoid(1.702 * x)
      else:
        x = nn.gelu(x, approximate=self.kind == "gelu_tanh")
    return nn.Dense(width, name="fc2", dtype=self.dtype)(x)


class AttentionPooling(nn.Module):
  """A learned query attends to all tokens; then an MLP beside a residual."""

  heads: int
  mlp: Any
  dtype: Any

  @nn.compact
  def __call__(self, x: Tokens) -> Float32[Array, "b width"]:
    width = x.shape[-1]
    latent = self.param("latent", nn.initializers.zeros, (1, 1, width))
    query = jnp.repeat(latent, len(x), axis=0)
    q = nn.Dense(width, name="q", dtype=self.dtype)(query)
    kv = nn.Dense(2 * width, name="kv", dtype=self.dtype)(x)
    k, v = jnp.split(kv, 2, axis=-1)
    x = attention(q, k, v, self.heads, self.dtype)
    x = nn.Dense(width, name="proj", dtype=self.dtype)(x).astype(jnp.float32)
    return (x + self.mlp(name="mlp")(layer_norm(name="norm")(x)))[:, 0]


def infer_network(arrays: Arrays, embedding: str | None) -> ViT:
  """Returns the network that a weights file belongs to; see `Family`.

  No array tells the number of heads (the published one is taken) or which GELU
  (the exact one). The default embedding is attention pooling, else the class
  token, else the mean.
  """
  # Nearly everything follows from names and shapes of the arrays, so that a
  # file itself tells which network it belongs to.
  width, _, patch, _ = arrays["patch_embed.proj.weight"].shape
  hidden = arrays["blocks.0.mlp.fc2.weight"].shape[1]
  mlp = "gelu"
  if len(arrays["blocks.0.mlp.fc1.bias"]) == 2 * hidden:
    mlp = "swiglu"
  block_indices = set()
  for name in arrays:
    if name.startswith("blocks."):
      block_indices.add(name.split(".")[1])
  tokens = []
  for name in _PREFIX_TOKENS:
    if name in arrays:
      tokens.append((name, arrays[name].shape[1]))
  return ViT(
    width=width,
    depth=len(block_indices),
    hidden=hidden,
    patch=patch,
    heads=_HEADS_BY_WIDTH.get(width, max(1, width // 64)),
    tokens=tuple(tokens),
    token_positions=_tokens_have_positions(arrays, tokens),
    mlp=mlp,
    layer_scale="blocks.0.ls1.gamma" in arrays,
    embedding=choose_embedding(arrays, embedding),
  )


def _tokens_have_positions(
  arrays: Arrays, tokens: list[tuple[str, int]]
) -> bool:
  """Whether there are more positions than the patches' square."""
  positions = arrays["pos_embed"].shape[1]
  num_tokens = sum(number for _, number in tokens)
  if _is_square(positions):
    return False
  if _is_square(positions - num_tokens):
    return True
  raise ValueError(f"positions of {positions} tokens are no square of patches")


def _is_square(number: int) -> bool:
  return number > 0 and math.isqrt(number) ** 2 == number


def choose_embedding(arrays: Arrays, embedding: str | None) -> str:
  """Chooses the embedding asked for, or the default; ValueError: none such."""
  modules = {name.partition(".")[0] for name in arrays}
  choices = []
  for choice, needed in _NEEDED_BY_EMBEDDING.items():
    if needed in modules:
      choices.append(choice)
  if embedding is None:
    return choices[0]
  if embedding not in choices:
    raise ValueError(f"embedding {embedding!a} is none of {', '.join(choices)}")
  return embedding


def inferred_name(network: ViT) -> str:
  """Returns the backbone name of a network of this kind and size."""
  names = {name for name, _ in network.tokens}
  if "dist_token" in names:
    kind = "deit_distilled"
  elif network.layer_scale:
    kind = "dinov2"
  elif names:
    kind = "vit"
  else:
    kind = "siglip"
  if "reg_token" in names:
    kind += "_reg"
  size = _SIZE_NAMES.get((network.width, network.depth))
  if size is None:
    return describe_size(kind, network.width, network.depth, network.patch)
  return f"{kind}_{size}{network.patch}"


def describe_size(kind: str, width: int, depth: int, patch: int) -> str:
  """Describes a network of a size that nobody published, for messages."""
  return f"{kind} of width {width}, {depth} blocks and patches of {patch}"


def adapt_weights(network: ViT, arrays: Arrays, image_size: int) -> Arrays:
  """Returns the arrays that are read, with positions for the image size.

  Positions are resized by Pillow's bicubic filter, which is that of timm, on
  the host: their bits do not depend on the device. ValueError: the image size
  is smaller than a patch.
  """
  # Positions were learned on one grid of patches, and those of another lie
  # between them. Tokens in front lie nowhere: theirs stay as they are.
  grid_side = image_size // network.patch
  if grid_side == 0:
    raise ValueError(f"image size {image_size} is below a patch's")
  unread_modules = set()
  for embedding in ("map", "pre_logits"):
    if embedding != network.embedding:
      unread_modules.add(_NEEDED_BY_EMBEDDING[embedding])
  adapted = {}
  for name, array in arrays.items():
    if name.split(".")[0] not in unread_modules:
      adapted[name] = array
  num_tokens = 0
  if network.token_positions:
    num_tokens = network.num_prefix_tokens
  token_positions, grid = np.split(adapted["pos_embed"], [num_tokens], axis=1)
  grid = _resize_positions(grid, grid_side)
  adapted["pos_embed"] = np.concatenate([token_positions, grid], axis=1)
  return adapted


def _resize_positions(
  grid: Float[np.ndarray, "1 patches width"], side: int
) -> Float32[np.ndarray, "1 resized width"]:
  """Resizes a square of position embeddings, one channel at a time."""
  old_side = math.isqrt(grid.shape[1])
  channels = grid[0].T.astype(np.float32, order="C")
  resized = []
  for channel in channels.reshape(-1, old_side, old_side):
    image = Image.fromarray(channel)
    image = image.resize((side, side), Image.Resampling.BICUBIC)
    resized.append(np.asarray(image).ravel())
  return np.stack(resized, axis=-1)[None]
