# SPDX-License-Identifier: Apache-2.0
"""What a benchmark gathers: contents of its tables, and ids of real text."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from engramdax.bench.ids import Cached, Trace, Uniform
from engramdax.bench.pattern import FACTOR, PatternSource
from engramdax.errors import SourceError


def test_pattern_is_the_word_number_times_a_factor() -> None:
    source = PatternSource(40_000, 40)
    found = np.empty(source.nbytes, np.uint8)
    source.read_into(0, found)
    words = [number * FACTOR % 2**64 for number in range(source.nbytes // 8)]
    assert found.view(np.uint64).tolist() == words


def test_pattern_is_the_same_in_pieces() -> None:
    source = PatternSource(700_001, 3)
    whole, part = np.empty(source.nbytes, np.uint8), np.empty(source.nbytes - (1 << 20), np.uint8)
    source.read_into(0, whole)
    source.read_into(1 << 20, part)
    assert np.array_equal(whole[1 << 20 :], part)


def test_no_two_rows_of_a_pattern_are_alike() -> None:
    source = PatternSource(5000, 264)
    rows = np.empty((5000, 264), np.uint8)
    source.read_into(0, rows.reshape(-1))
    assert len(np.unique(rows, axis=0)) == 5000


def test_uniform_ids_are_fresh_in_each_call_and_the_same_for_a_seed() -> None:
    ids = Uniform(1000).draw(5, 64, [1, 2])
    assert ids.shape == (5, 64)
    assert len(np.unique(ids, axis=0)) == 5
    assert np.array_equal(ids, Uniform(1000).draw(5, 64, [1, 2]))
    assert not np.array_equal(ids, Uniform(1000).draw(5, 64, [1, 3]))


def test_cached_ids_are_the_same_in_each_call() -> None:
    ids = Cached(1000).draw(5, 64, [1])
    assert (ids == ids[0]).all()


def test_ids_of_a_trace_fit_the_table_and_do_not_reach_across_texts(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    # The second text begins as the first does, so its first tokens have the first text's rows again.
    text = np.random.default_rng(0).integers(0, 90_000, 50, np.uint32)
    np.savez(path, compressed_ids=np.tile(text, 2), doc_lengths=np.array([50, 50], np.uint32))
    ids = Trace(path, 10_000).draw(100, 24, [0])
    assert ids.shape == (100, 24)
    assert ids.min() >= 0
    assert 9_000 < ids.max() < 10_000
    assert np.array_equal(ids[:50], ids[50:])


def test_trace_of_raw_tokens_goes_through_its_map(tmp_path: Path) -> None:
    raw, compressed = tmp_path / "raw.npz", tmp_path / "compressed.npz"
    token_map = np.random.default_rng(0).permutation(np.arange(3000) % 1000).astype(np.int32)
    tokens = np.random.default_rng(1).integers(0, 3000, 200)
    np.savez(raw, token_ids=tokens, token_map=token_map)
    np.savez(compressed, compressed_ids=token_map[tokens])
    found = Trace(raw, 5000).draw(4, 100, [0])
    assert found.shape == (4, 100)
    assert found.max() < 5000


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"tokens": np.arange(3)}, "neither compressed_ids nor token_ids"),
        ({"token_ids": np.zeros((3, 3), np.int64)}, "expected integers"),
        ({"token_ids": np.array([5]), "token_map": np.array([0, 1, 2], np.int32)}, "vocabulary"),
        ({"token_ids": np.array([0]), "doc_lengths": np.array([0.5])}, "doc_lengths is float64"),
        ({"token_ids": np.array([0]), "token_map": np.array([0, 1])}, "2 ids, and none for the padding"),
        ({"token_ids": np.array([0]), "token_map": np.zeros((3, 3), np.int32)}, r"token_map is int32 \[3, 3\]"),
    ],
    ids=["no-tokens", "two-dimensions", "outside-the-map", "lengths-no-integers", "map-without-padding", "map-of-two"],
)
def test_file_that_is_no_trace_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    path = tmp_path / "trace.npz"
    np.savez(path, **arrays)
    with pytest.raises(SourceError, match=said) as e:
        Trace(path, 10_000)
    assert str(path) in str(e.value)


def test_single_array_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.npy"
    np.save(path, np.arange(9))
    with pytest.raises(SourceError, match=f"{path} is one array; write it with numpy.savez"):
        Trace(path, 10_000)


@pytest.mark.parametrize(
    "header",
    [b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,\0 ", b"{'descr': ", b"(" * 3000],
    ids=["null-byte", "cut-off", "deep"],
)
def test_trace_whose_header_cannot_be_parsed_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "trace.npy"
    path.write_bytes(b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(SourceError, match=f"{path} is no .npz file of token ids"):
        Trace(path, 10_000)


def test_member_of_a_trace_that_is_no_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("token_ids.npy", b"no array")
    with pytest.raises(SourceError, match="its token_ids is no array"):
        Trace(path, 10_000)
