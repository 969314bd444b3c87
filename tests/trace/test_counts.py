# SPDX-License-Identifier: Apache-2.0
"""Hot rows against a plain count of every read."""

from __future__ import annotations

import numpy as np
import pytest
from zipf import LAYOUT, exact_counts, hottest, zipf_trace

from engramdax._core import ffi, lib
from engramdax.errors import ParameterError
from engramdax.ngram import Hasher, Layout
from engramdax.trace import counts
from engramdax.trace.counts import BASE_BYTES, COUNTER_BYTES, KEY_BYTES, head_groups, hot_rows
from engramdax.trace.shares import own_shares, shares_of
from engramdax.trace.tokens import Trace

HASHER = Hasher(LAYOUT)
ENOUGH = 1 << 30


def check_exact(trace, most, memory=ENOUGH, layout=LAYOUT):
    for layer in range(len(layout.layer_ids)):
        hot = hot_rows(Hasher(layout), layer, trace, most=most, memory=memory)
        plain = exact_counts(trace, layer, layout)
        expected = hottest(plain)[:most]
        assert hot.row_ids.dtype == hot.counts.dtype == np.int64
        np.testing.assert_array_equal(hot.row_ids, expected)
        np.testing.assert_array_equal(hot.counts, plain[expected])
        assert hot.accesses == plain.sum()


def few_heads_at_once(trace, most, heads, layout=LAYOUT):
    """Memory that the counters of so many heads fit, but not of more."""
    listed = min(most, layout.rows(0), layout.heads * trace.tokens.size)
    most_rows = max(max(layout.head_sizes(layer)) for layer in range(len(layout.layer_ids)))
    return BASE_BYTES + trace.tokens.nbytes + 2 * KEY_BYTES * listed + heads * most_rows * COUNTER_BYTES


@pytest.mark.parametrize("most", [1, 2, 7, 100, 1000, 100_000])
def test_counts_are_exact_and_ties_go_to_the_lower_row(most):
    check_exact(zipf_trace(5000), most)


@pytest.mark.parametrize("most", [1, 50, 100_000])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_counts_are_exact_when_memory_holds_few_heads_at_once(most, heads):
    trace = zipf_trace(5000)
    memory = few_heads_at_once(trace, most, heads)
    check_exact(trace, most, memory)


def test_every_tie_at_the_threshold_is_decided_alike():
    # Every row is read once or twice: the cut goes through equal counts, in every group of heads.
    tokens = np.arange(400, dtype=np.int32)
    trace = Trace(tokens, np.array([0, 400]), compressed=True)
    for most in range(1, 1700, 53):
        check_exact(trace, most, few_heads_at_once(trace, most, 1))


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64, 1000])
def test_blocks_that_begin_inside_sequences_change_nothing(block, monkeypatch):
    monkeypatch.setattr(counts, "TOKENS_AT_ONCE", block)
    check_exact(zipf_trace(300), 1000)


def test_counters_are_looked_through_in_pieces(monkeypatch):
    monkeypatch.setattr(counts, "ROWS_AT_ONCE", 97)
    for most in (1, 30, 500, 5000):
        check_exact(zipf_trace(3000), most)


@pytest.mark.parametrize("highest", [1, 2, 3, 10])
def test_counts_too_high_for_the_histogram_are_told_apart(highest, monkeypatch):
    monkeypatch.setattr(counts, "HIGHEST_SINGLE_COUNT", highest)
    trace = zipf_trace(3000)
    for most in (1, 2, 5, 40, 300, 10_000):
        check_exact(trace, most)
        check_exact(trace, most, few_heads_at_once(trace, most, 1))


def test_padding_reads_nothing():
    trace = zipf_trace(500)
    trace.tokens[[0, 5, 6, 499]] = -1
    check_exact(trace, 10_000)
    assert hot_rows(HASHER, 0, trace, most=9, memory=ENOUGH).accesses == 496 * LAYOUT.heads


@pytest.mark.parametrize("orders", [(1,), (1, 4)])
def test_other_orders_are_counted_too(orders):
    layout = Layout(
        layer_ids=(0,),
        orders=orders,
        heads_per_order=1,
        primes=((11, 9001)[: len(orders)],),
        multipliers=((1, 3, 5, 7)[: orders[-1]],),
        pad_id=0,
        compressed_vocab=400,
    )
    check_exact(zipf_trace(500), 40, layout=layout)


def test_counters_stay_at_their_maximum():
    counters = np.array([0, 2**32 - 2, 5], np.uint32)
    ids = np.array([[11], [11], [11], [-1], [12]])
    lib.ed_count(ffi.cast("int64_t *", ids.ctypes.data), 5, 1, 1, 10, ffi.cast("uint32_t *", counters.ctypes.data))
    assert counters.tolist() == [0, 2**32 - 1, 6]


def test_heads_are_divided_among_as_few_passes_as_memory_allows():
    assert head_groups((10, 10, 10), 120, 0) == [(0, 3)]
    assert head_groups((10, 10, 10), 119, 0) == [(0, 2), (2, 3)]
    assert head_groups((10, 20, 10), 1080, 1000) == [(0, 1), (1, 2), (2, 3)]
    assert head_groups((10,), 40, 0) == [(0, 1)]


def test_memory_that_no_head_fits_is_refused_and_what_is_asked_for_is_enough():
    trace = zipf_trace(100)
    with pytest.raises(ParameterError, match=r"head of 503 rows .* at least --memory 193M, or fewer --rows"):
        hot_rows(HASHER, 0, trace, most=10, memory=BASE_BYTES)
    hot_rows(HASHER, 0, trace, most=10, memory=193 << 20)


def test_a_trace_too_long_for_exact_counts_is_refused():
    endless = Trace(np.broadcast_to(np.int32(1), 1 << 32), np.array([0, 1 << 32]), compressed=True)
    with pytest.raises(ParameterError, match="4294967296 tokens is too long to count exactly"):
        hot_rows(HASHER, 0, endless, most=10, memory=ENOUGH)


def test_shares_of_the_trace_itself_are_those_of_its_counts():
    trace = zipf_trace(5000)
    for layer in (0, 1):
        hot = hot_rows(HASHER, layer, trace, most=900, memory=ENOUGH)
        lengths = [0, 1, 10, 10, 333, 900]
        shares = own_shares(LAYOUT, layer, hot, lengths)
        assert shares.shape == (6, 3)
        # The same as of a trace that happens to be equal.
        np.testing.assert_allclose(shares, shares_of(HASHER, layer, trace, hot.row_ids, lengths))
        for length, share in zip(lengths, shares, strict=True):
            assert share[-1] == pytest.approx(hot.share(length))


def test_shares_of_another_trace_are_those_of_its_reads():
    hot = hot_rows(HASHER, 1, zipf_trace(4000), most=500, memory=ENOUGH)
    other = zipf_trace(900, seed=5)
    other.tokens[7] = -1
    shares = shares_of(HASHER, 1, other, hot.row_ids, [40, 500])
    ids = HASHER(other.tokens, starts=other.starts)[:, 1]
    for length, share in zip((40, 500), shares, strict=True):
        served = np.isin(ids, hot.row_ids[:length])
        real = ids >= 0
        expected = [served[:, columns].sum() / real[:, columns].sum() for columns in (slice(0, 2), slice(2, 4))]
        np.testing.assert_allclose(share, [*expected, served.sum() / real.sum()])


def test_a_list_of_nine_tenths_serves_the_last_tenth_as_an_exact_count_does():
    first, rest = zipf_trace(20_000).split(0.9)
    assert (first.tokens.size, rest.tokens.size) == (18_000, 2000)
    for layer in (0, 1):
        hot = hot_rows(HASHER, layer, first, most=300, memory=few_heads_at_once(first, 300, 1))
        exact = hottest(exact_counts(first, layer))[:300]
        reads = exact_counts(rest, layer)
        served = shares_of(HASHER, layer, rest, hot.row_ids, [300])[0, -1]
        assert served == pytest.approx(reads[exact].sum() / reads.sum())
        assert served > 0.3
