# SPDX-License-Identifier: Apache-2.0
"""The compression of token ids: which raw ids of a tokenizer count as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engramdax.errors import ParameterError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def build_token_map(tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """Compressed id of each raw token id of a tokenizer, int32 [vocabulary].

    A token's key is its text after NFKC, NFD, stripping of accents, lower-casing, and reduction of white
    space, so that tokens that a reader would call one word share an id. A text that this leaves empty is
    its own key; a token that is no whole UTF-8 text is keyed by its name in the vocabulary. Keys are
    numbered in the order in which the ids bring them up. Needs the `tokenizers` package.

    Raises:
        ParameterError: Not a `tokenizers.Tokenizer`, or its ids leave gaps.

    """
    from tokenizers import Regex, normalizers  # noqa: PLC0415  # optional, and slow to import
    from tokenizers import Tokenizer as Expected  # noqa: PLC0415

    if not isinstance(tokenizer, Expected):
        raise ParameterError(
            f"the tokenizer is a {type(tokenizer).__name__}; expected a tokenizers.Tokenizer",
            remedy="load tokenizer.json with tokenizers.Tokenizer.from_file",
        )
    # A token that is nothing but a space has to outlive Strip.
    space = "\ue000"
    normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), space),
            normalizers.Strip(),
            normalizers.Replace(space, " "),
        ]
    )
    vocab = tokenizer.get_vocab_size(with_added_tokens=True)
    texts = tokenizer.decode_batch([[token] for token in range(vocab)], skip_special_tokens=False)
    keys: dict[str, int] = {}
    token_map = np.empty(vocab, np.int32)
    for token, text in enumerate(texts):
        name = tokenizer.id_to_token(token)
        if name is None:
            raise ParameterError(f"the tokenizer has {vocab} tokens, but none of id {token}")
        key = name if "\ufffd" in text else normalizer.normalize_str(text) or text
        token_map[token] = keys.setdefault(key, len(keys))
    return token_map
