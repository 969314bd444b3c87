# SPDX-License-Identifier: Apache-2.0
"""Engram addressing: from token ids to the rows of the n-gram tables, bit for bit as the models do it.

A `Layout` says how the rows of each Engram layer are divided among heads, and how an n-gram is hashed;
a `Hasher` applies it. The rule is that of the public Engram demo code and of the reference inference code
published with DeepSeek-V4.1-Flash:

1. Raw token ids become compressed ids, so that " The", "the" and "THE" are one (`build_token_map`).
2. Each layer has one odd multiplier for each position of the look-back, drawn from
   `numpy.random.default_rng(seed + 10007 * layer_id)` and small enough that a product stays within int64.
3. Each head of each order of each layer has a prime of its own, its size in rows. The search ascends
   over layers, then orders, then heads; it starts at each order's vocabulary size and never takes a
   prime twice.
4. The n-gram that ends in token t mixes to t[0]*m[0] ^ t[-1]*m[1] ^ ... ^ t[-(n-1)]*m[n-1]; its row for a
   head is that mix modulo the head's prime, plus the rows of the heads before it. Looking back from a
   token, itself included, the first blocked token (such as one of an image) or the start of the sequence
   turns itself and all that is older into the pad id.

Heads are numbered order by order: with orders (2, 3, 4) and 8 heads, columns 0 to 7 are the 2-gram heads.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engramdax.errors import ParameterError
from engramdax.ngram.arrays import vector
from engramdax.ngram.primes import find_primes

if TYPE_CHECKING:
    from engramdax.table import Table

_INT64_MAX = 2**63 - 1
# Far above any model, and low enough that a nonsensical config is refused and not searched for hours.
_MOST_HEADS = 65_536


@dataclass(frozen=True)
class Layout:
    """How the Engram layers of one model are addressed; immutable, hashable, safe to share among threads.

    The constructor takes everything by hand; `make` draws multipliers and finds primes by the rule;
    `from_config` reads a model's configuration. "Layer" arguments of the methods are positions in
    `layer_ids`, not layer numbers of the model.

    Two layouts are equal when they send equal compressed ids to equal rows: the token map, which belongs
    to the tokenizer, is not compared.

    Attributes:
        layer_ids: Layer numbers of the model, one for each table.
        orders: N-gram lengths, ascending.
        heads_per_order: Heads of each order.
        primes: Head sizes in rows, [layers][heads]; in a layout of the model's own they are primes.
        multipliers: Odd multipliers, [layers][longest order]; the first belongs to the newest token.
        pad_id: Compressed id that stands where there is no token to look back to.
        compressed_vocab: Number of compressed ids.
        token_map: int32 [raw vocabulary] of compressed ids, read-only, a private copy; None when the
            tokens to hash are compressed already.

    Raises:
        ParameterError: A field is no integer, out of range, or does not fit the others.

    """

    layer_ids: tuple[int, ...]
    orders: tuple[int, ...]
    heads_per_order: int
    primes: tuple[tuple[int, ...], ...]
    multipliers: tuple[tuple[int, ...], ...]
    pad_id: int
    compressed_vocab: int
    token_map: npt.NDArray[np.int32] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        layer_ids = _integers("layer_ids", self.layer_ids, least=0)
        orders = _integers("orders", self.orders, least=1)
        if len(set(layer_ids)) != len(layer_ids):
            raise ParameterError(f"layer_ids names a layer twice: {list(layer_ids)}")
        if list(orders) != sorted(set(orders)):
            raise ParameterError(f"orders are {list(orders)}; expected ascending and each once")
        heads = _integer("heads_per_order", self.heads_per_order, least=1)
        vocab = _integer("compressed_vocab", self.compressed_vocab, least=1, most=2**31 - 1)
        pad = _integer("pad_id", self.pad_id, least=0, most=vocab - 1)
        primes = _grid("primes", self.primes, layers=len(layer_ids), width=len(orders) * heads)
        multipliers = _grid("multipliers", self.multipliers, layers=len(layer_ids), width=orders[-1])
        for layer_id, sizes, factors in zip(layer_ids, primes, multipliers, strict=True):
            if sum(sizes) > _INT64_MAX:
                raise ParameterError(f"the heads of layer {layer_id} hold {sum(sizes)} rows, beyond int64")
            if max(factors) * (vocab - 1) > _INT64_MAX:
                raise ParameterError(
                    f"multiplier {max(factors)} of layer {layer_id} times compressed id {vocab - 1} "
                    f"is beyond int64; expected at most {_INT64_MAX // (vocab - 1)}"
                )
        values = {
            "layer_ids": layer_ids,
            "orders": orders,
            "heads_per_order": heads,
            "primes": primes,
            "multipliers": multipliers,
            "pad_id": pad,
            "compressed_vocab": vocab,
            "token_map": None if self.token_map is None else _checked_map(self.token_map, vocab),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def make(
        cls,
        *,
        layer_ids: Sequence[int],
        max_ngram: int,
        heads_per_order: int,
        vocab_size: int | Sequence[int],
        pad_id: int,
        compressed_vocab: int,
        seed: int = 0,
        token_map: npt.NDArray[np.integer[Any]] | None = None,
    ) -> Layout:
        """Make the layout of orders 2 to `max_ngram` by the rule.

        Args:
            layer_ids: Layer numbers of the model.
            max_ngram: Longest n-gram, at least 2.
            heads_per_order: Heads of each order.
            vocab_size: Where the search for primes starts, for all orders or for each.
            pad_id: Compressed pad id.
            compressed_vocab: Number of compressed ids.
            seed: Seed of the multipliers.
            token_map: Raw to compressed ids, as `build_token_map` makes it.

        Raises:
            ParameterError: An argument is no integer, out of range, or does not fit the others.

        """
        layers = _integers("layer_ids", layer_ids, least=0)
        longest = _integer("max_ngram", max_ngram, least=2, most=_MOST_HEADS)
        heads = _integer("heads_per_order", heads_per_order, least=1, most=_MOST_HEADS)
        vocab = _integer("compressed_vocab", compressed_vocab, least=1, most=2**31 - 1)
        first_seed = _integer("seed", seed, least=0)
        orders = tuple(range(2, longest + 1))
        if (total := len(layers) * len(orders) * heads) > _MOST_HEADS:
            raise ParameterError(f"{total} heads in all; expected at most {_MOST_HEADS}")
        starts = _per_order("vocab_size", vocab_size, len(orders))
        return cls(
            layer_ids=layers,
            orders=orders,
            heads_per_order=heads,
            primes=find_primes(len(layers), starts, heads),
            multipliers=tuple(_draw_multipliers(first_seed, layer, vocab, longest) for layer in layers),
            pad_id=pad_id,
            compressed_vocab=vocab,
            token_map=token_map,  # type: ignore[arg-type]  # the constructor narrows it to int32
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, token_map: npt.NDArray[np.integer[Any]] | None) -> Layout:
        """Make the layout that a model's `config.json` describes.

        Args:
            config: The parsed file. Its `engram_*` fields may stand at the top or in `text_config`, as they
                do in V4.1's. Read are `engram_layer_ids`, `engram_max_ngram_size`, `engram_n_heads`,
                `engram_vocab_size` (one number or one for each order), `engram_num_embeddings` (rows of
                each layer, checked against the primes), `engram_pad_token_id`,
                `engram_compressed_vocab_size` and, where present, `engram_seed`.
            token_map: Raw to compressed ids, as `build_token_map` makes it. None says that the tokens to
                hash, and the config's pad token, are compressed ids.

        Raises:
            ParameterError: A field is missing, no integer, out of range or does not fit the others, or the
                token map is not of this model's tokenizer.

        """
        section = _engram_section(config)
        layers, longest, heads, starts, vocab, raw_pad, stated = (
            _required(section, f"engram_{name}")
            for name in (
                "layer_ids",
                "max_ngram_size",
                "n_heads",
                "vocab_size",
                "compressed_vocab_size",
                "pad_token_id",
                "num_embeddings",
            )
        )
        vocab = _integer("engram_compressed_vocab_size", vocab, least=1, most=2**31 - 1)
        pad = _integer("engram_pad_token_id", raw_pad, least=0)
        if token_map is not None:
            token_map = _checked_map(token_map, vocab)
            if pad >= token_map.size:
                raise ParameterError(f"engram_pad_token_id is {pad}; the token map holds ids 0 to {token_map.size - 1}")
            pad = int(token_map[pad])
        longest = _integer("engram_max_ngram_size", longest, least=2, most=_MOST_HEADS)
        layout = cls.make(
            layer_ids=_integers("engram_layer_ids", layers, least=0),
            max_ngram=longest,
            heads_per_order=_integer("engram_n_heads", heads, least=1, most=_MOST_HEADS),
            vocab_size=_per_order("engram_vocab_size", starts, longest - 1),
            pad_id=pad,
            compressed_vocab=vocab,
            seed=_integer("engram_seed", section.get("engram_seed", 0), least=0),
            token_map=token_map,
        )
        stated = _integers("engram_num_embeddings", stated, least=1)
        found = tuple(layout.rows(layer) for layer in range(len(layout.layer_ids)))
        if stated != found:
            raise ParameterError(
                f"engram_num_embeddings is {list(stated)}, but the primes of layers "
                f"{list(layout.layer_ids)} add up to {list(found)}",
                remedy="take every engram_* field from the config.json of one model",
            )
        return layout

    @property
    def heads(self) -> int:
        """Heads of a layer, all orders together: the ids that a token has there."""
        return len(self.orders) * self.heads_per_order

    @property
    def max_ngram(self) -> int:
        """Length of the longest n-gram."""
        return self.orders[-1]

    @property
    def vocab(self) -> int:
        """Number of token ids that a `Hasher` of this layout accepts, from 0."""
        return self.compressed_vocab if self.token_map is None else self.token_map.size

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """First row of each head within its layer's table, [layers][heads]."""
        return tuple(tuple(accumulate(sizes[:-1], initial=0)) for sizes in self.primes)

    def head_sizes(self, layer: int) -> tuple[int, ...]:
        """Rows of each head of the layer at position `layer`."""
        return self.primes[layer]

    def addressing(self, layer: int) -> dict[str, Any]:
        """Give what, with the head sizes, addresses the layer at position `layer`: JSON for a pool's directory.

        The token map is not in it: it belongs to the tokenizer, and is larger than all else. Nor is the pad id,
        which the map makes of the raw one.
        """
        return {
            "layer_id": self.layer_ids[layer],
            "orders": list(self.orders),
            "heads_per_order": self.heads_per_order,
            "multipliers": list(self.multipliers[layer]),
            "compressed_vocab": self.compressed_vocab,
        }

    def layer_of(self, table: Table) -> int:
        """Give the position of the layer that `table` holds; ParameterError if it is of another model.

        A table that was loaded without its config is known by its head sizes alone, or, without those, by its
        number of rows.
        """
        for layer in range(len(self.layer_ids)):
            if table.addressing is not None:
                known = {key: table.addressing.get(key) for key in self.addressing(layer)}
                same = known == self.addressing(layer) and table.heads == self.head_sizes(layer)
            elif table.heads is not None:
                same = table.heads == self.head_sizes(layer)
            else:
                same = table.rows == self.rows(layer)
            if same:
                return layer
        raise ParameterError(
            f"table {table.name} of {table.rows} rows is no layer of this layout, whose layers "
            f"{list(self.layer_ids)} have {[self.rows(i) for i in range(len(self.layer_ids))]}",
            remedy="use the config.json that was published with the table's model",
        )

    @classmethod
    def of_table(cls, table: Table, *, token_map: npt.NDArray[np.integer[Any]] | None = None) -> Layout:
        """Give the layout, of one layer, that was stored with a table when it was loaded.

        token_map: as for `from_config`. Raises ParameterError where no layout was stored, or the map is another
        tokenizer's.
        """
        a = table.addressing
        if a is None or table.heads is None:
            raise ParameterError(
                f"table {table.name} was loaded without its model's config.json",
                remedy="make the layout with Layout.from_config",
            )
        try:
            pad = a["pad_token_id"]
            if token_map is not None:
                pad = int(_checked_map(token_map, a["compressed_vocab"])[pad])
            return cls(
                layer_ids=(a["layer_id"],),
                orders=a["orders"],
                heads_per_order=a["heads_per_order"],
                primes=(table.heads,),
                multipliers=(a["multipliers"],),
                pad_id=pad,
                compressed_vocab=a["compressed_vocab"],
                token_map=token_map,  # type: ignore[arg-type]  # the constructor narrows it to int32
            )
        except (KeyError, IndexError, TypeError) as e:
            raise ParameterError(f"the addressing stored with table {table.name} is incomplete: {e!r}") from None

    def rows(self, layer: int) -> int:
        """Rows of the table of the layer at position `layer`."""
        return sum(self.primes[layer])


def _draw_multipliers(seed: int, layer_id: int, compressed_vocab: int, count: int) -> tuple[int, ...]:
    bound = max(1, _INT64_MAX // compressed_vocab // 2)
    draws = np.random.default_rng(seed + 10007 * layer_id).integers(0, bound, size=count, dtype=np.int64)
    return tuple((draws * 2 + 1).tolist())


def _integer(name: str, value: object, *, least: int, most: int = _INT64_MAX) -> int:
    if isinstance(value, bool | np.bool_):
        raise ParameterError(f"{name} is {value}; expected an integer")
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # a wrong type is what is looked for
    except TypeError:
        raise ParameterError(f"{name} is {value!r:.60}; expected an integer") from None
    if not least <= number <= most:
        raise ParameterError(f"{name} is {number}; expected {least} to {most}")
    return number


def _integers(name: str, values: object, *, least: int) -> tuple[int, ...]:
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
        raise ParameterError(f"{name} is {values!r:.60}; expected a list of integers")
    if len(values) == 0:
        raise ParameterError(f"{name} is empty; expected at least one integer")
    return tuple(_integer(f"{name}[{place}]", value, least=least) for place, value in enumerate(values))


def _grid(name: str, values: object, *, layers: int, width: int) -> tuple[tuple[int, ...], ...]:
    if not isinstance(values, Sequence | np.ndarray) or len(values) != layers:
        raise ParameterError(f"{name} is {values!r:.60}; expected one list for each of {layers} layers")
    grid = tuple(_integers(f"{name}[{layer}]", row, least=1) for layer, row in enumerate(values))
    for layer, row in enumerate(grid):
        if len(row) != width:
            raise ParameterError(f"{name}[{layer}] has {len(row)} entries; expected {width}")
    return grid


def _per_order(name: str, value: object, orders: int) -> tuple[int, ...]:
    if not isinstance(value, Sequence | np.ndarray):
        return (_integer(name, value, least=2),) * orders
    values = _integers(name, value, least=2)
    if len(values) != orders:
        raise ParameterError(f"{name} has {len(values)} entries; expected one for each of {orders} orders")
    return values


def _engram_section(config: object) -> Mapping[str, Any]:
    """Return the part of a `config.json` that holds the engram fields: the whole, or `text_config`."""
    if not isinstance(config, Mapping):
        raise ParameterError(f"the config is a {type(config).__name__}; expected a JSON object")
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "engram_layer_ids" not in config:
        return inner
    return config


def _required(section: Mapping[str, Any], name: str) -> Any:
    if name not in section:
        raise ParameterError(
            f"the config has no field {name}", remedy="take the config.json of a model with Engram tables"
        )
    return section[name]


def _checked_map(token_map: object, compressed_vocab: int) -> npt.NDArray[np.int32]:
    """Return a private, read-only copy of a token map that uses each compressed id."""
    array = vector("token_map", token_map, np.int32)
    if array.dtype.kind not in "iu":
        raise ParameterError(f"token_map has dtype {array.dtype}; expected integers")
    if array.size == 0 or int(array.min()) < 0:
        raise ParameterError("token_map is empty or holds a negative id; expected an id for each raw token")
    used = np.unique(array)
    if used.size != compressed_vocab or int(used[-1]) != compressed_vocab - 1:
        raise ParameterError(
            f"the token map leads to {used.size} compressed ids, the largest {used[-1]}, but the model's "
            f"vocabulary has {compressed_vocab}: it is the map of another tokenizer, and every row would be "
            f"the wrong one",
            remedy="build the map from the tokenizer.json that was published with the model",
        )
    copy = array.astype(np.int32)
    copy.setflags(write=False)
    return copy
