# SPDX-License-Identifier: Apache-2.0
"""Token traces out of files of each kind, and files that are none."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tokenizers
from zipf import words, zipf_trace

from engramdax.errors import ParameterError, SourceError
from engramdax.trace import tokens
from engramdax.trace.tokens import Trace, read_traces


@pytest.fixture
def tokenizer():
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "b": 1, "c": 2, "<s>": 3, "?": 4}, unk_token="?")  # noqa: S106
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    return made


@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "u8", ">i4"])
def test_a_vector_is_one_sequence_of_raw_ids(tmp_path, dtype):
    np.save(tmp_path / "t.npy", np.arange(100).astype(dtype))
    trace = read_traces([tmp_path / "t.npy"])
    assert trace.tokens.tolist() == list(range(100))
    assert trace.starts.tolist() == [0, 100]
    assert not trace.compressed


def test_ids_keep_their_value_whatever_their_size(tmp_path):
    for value in (-5, -(2**31), 2**31, -(2**63), 2**63 - 1):
        np.save(tmp_path / "t.npy", np.array([0, value]))
        assert read_traces([tmp_path / "t.npy"]).tokens.tolist() == [0, value]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_says_whether_ids_are_compressed_and_where_sequences_end(tmp_path, save):
    save(tmp_path / "a.npz", token_ids=np.arange(5))
    save(tmp_path / "b.npz", compressed_ids=np.arange(9, dtype=np.uint32), doc_lengths=np.array([2, 0, 7], np.uint32))
    raw, compressed = read_traces([tmp_path / "a.npz"]), read_traces([tmp_path / "b.npz"])
    assert (raw.compressed, raw.starts.tolist()) == (False, [0, 5])
    assert (compressed.compressed, compressed.starts.tolist()) == (True, [0, 2, 2, 9])


def test_several_files_are_one_trace_of_more_sequences(tmp_path, tokenizer):
    np.save(tmp_path / "a.npy", np.array([7, 8, 9]))
    np.savez(tmp_path / "b.npz", token_ids=np.array([1, 2]), doc_lengths=np.array([1, 1]))
    (tmp_path / "c.txt").write_text("a b\nc\n")
    trace = read_traces([tmp_path / name for name in ("a.npy", "b.npz", "c.txt")], tokenizer=tokenizer)
    assert trace.tokens.tolist() == [7, 8, 9, 1, 2, 0, 1, 2]
    assert trace.starts.tolist() == [0, 3, 4, 5, 8]


def test_text_gets_no_special_tokens_wherever_it_is_cut(tmp_path, tokenizer, monkeypatch):
    (tmp_path / "t.txt").write_text("a b c\n" * 50 + "a")
    whole = read_traces([tmp_path / "t.txt"], tokenizer=tokenizer)
    assert whole.tokens.tolist() == [0, 1, 2] * 50 + [0]
    monkeypatch.setattr(tokens, "TEXT_PIECE", 10)
    assert read_traces([tmp_path / "t.txt"], tokenizer=tokenizer).tokens.tolist() == whole.tokens.tolist()


def test_text_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("a b c")
    with pytest.raises(ParameterError, match=r"t\.txt is text; give the model's --tokenizer"):
        read_traces([tmp_path / "t.txt"])


def test_raw_and_compressed_ids_do_not_mix(tmp_path):
    np.savez(tmp_path / "a.npz", token_ids=np.arange(5))
    np.savez(tmp_path / "b.npz", compressed_ids=np.arange(5))
    with pytest.raises(ParameterError, match="some of the files hold raw token ids and some compressed"):
        read_traces([tmp_path / "a.npz", tmp_path / "b.npz"])


@pytest.mark.parametrize("content", [np.empty(0, np.int32), np.full(9, -1)])
def test_a_trace_without_a_token_is_empty(tmp_path, content):
    np.save(tmp_path / "t.npy", content)
    with pytest.raises(SourceError, match=r"the trace is empty: .*t\.npy"):
        read_traces([tmp_path / "t.npy"])


def floats(path):
    np.save(path.with_suffix(".npy"), np.zeros(4))
    return path.with_suffix(".npy")


def two_dimensional(path):
    np.save(path.with_suffix(".npy"), np.zeros((4, 2), int))
    return path.with_suffix(".npy")


def huge(path):
    np.save(path.with_suffix(".npy"), np.array([2**63], np.uint64))
    return path.with_suffix(".npy")


def pickled(path):
    np.save(path.with_suffix(".npy"), np.array([{}], object), allow_pickle=True)
    return path.with_suffix(".npy")


def truncated_vector(path):
    np.save(path.with_suffix(".npy"), np.arange(1000))
    os.truncate(path.with_suffix(".npy"), 700)
    return path.with_suffix(".npy")


def truncated_archive(path):
    np.savez(path.with_suffix(".npz"), token_ids=np.arange(1000))
    os.truncate(path.with_suffix(".npz"), 700)
    return path.with_suffix(".npz")


def damaged_archive(path):
    np.savez_compressed(path.with_suffix(".npz"), token_ids=np.arange(10_000))
    data = bytearray(path.with_suffix(".npz").read_bytes())
    data[200:400] = os.urandom(200)
    path.with_suffix(".npz").write_bytes(data)
    return path.with_suffix(".npz")


def vector_named_archive(path):
    with path.with_suffix(".npz").open("wb") as file:
        np.save(file, np.arange(4))
    return path.with_suffix(".npz")


def archive_named_vector(path):
    with path.with_suffix(".npy").open("wb") as file:
        np.savez(file, token_ids=np.arange(4))
    return path.with_suffix(".npy")


def other_archive(path):
    np.savez(path.with_suffix(".npz"), ids=np.arange(4))
    return path.with_suffix(".npz")


def both_kinds(path):
    np.savez(path.with_suffix(".npz"), token_ids=np.arange(4), compressed_ids=np.arange(4))
    return path.with_suffix(".npz")


def lengths_short(path):
    np.savez(path.with_suffix(".npz"), token_ids=np.arange(4), doc_lengths=np.array([1, 2]))
    return path.with_suffix(".npz")


def lengths_negative(path):
    np.savez(path.with_suffix(".npz"), token_ids=np.arange(4), doc_lengths=np.array([5, -1]))
    return path.with_suffix(".npz")


def lengths_beyond_int64(path):
    lengths = np.array([1 << 62] * 4 + [4])
    np.savez(path.with_suffix(".npz"), token_ids=np.arange(4), doc_lengths=lengths)
    return path.with_suffix(".npz")


def header_cut_off(path):
    path.with_suffix(".npy").write_bytes(b"\x93NUMPY\x01\x00\x0b\x00{'descr': (")
    return path.with_suffix(".npy")


def header_badly_indented(path):
    path.with_suffix(".npy").write_bytes(b"\x93NUMPY\x01\x00\x06\x00  {\n 1")
    return path.with_suffix(".npy")


def no_utf8(path):
    path.with_suffix(".txt").write_bytes(b"\xff\xfe\xff")
    return path.with_suffix(".txt")


def absent(path):
    return path.with_suffix(".npy")


def directory(path):
    path.mkdir()
    return path


@pytest.mark.parametrize(
    "make",
    [
        floats, two_dimensional, huge, pickled, truncated_vector, truncated_archive, damaged_archive,
        vector_named_archive, archive_named_vector, other_archive, both_kinds, lengths_short, lengths_negative,
        lengths_beyond_int64, header_cut_off, header_badly_indented, no_utf8, absent, directory,
    ],
)  # fmt: skip
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path, tokenizer, make):
    path = make(tmp_path / "bad")
    with pytest.raises(SourceError) as caught:
        read_traces([path], tokenizer=tokenizer)
    assert str(path) in caught.value.problem
    assert caught.value.remedy


def test_a_bad_token_is_named_with_its_file_and_place(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 2, 3]))
    np.save(tmp_path / "b.npy", np.array([1, -1, 9, 4]))
    np.save(tmp_path / "c.npy", np.array([1, 3, -2]))
    trace = read_traces([tmp_path / "a.npy", tmp_path / "b.npy"])
    trace.check(10)
    with pytest.raises(SourceError, match=r"b\.npy: token 2 is 9; the vocabulary has ids 0 to 8"):
        trace.check(9)
    with pytest.raises(SourceError, match=r"c\.npy: token 2 is -2; the vocabulary has ids 0 to 9"):
        read_traces([tmp_path / "a.npy", tmp_path / "c.npy"]).check(10)


def test_a_trace_is_cut_where_asked_and_sequences_begin_anew():
    trace = Trace(words(10).astype(np.int32), np.array([0, 4, 4, 8, 10]), compressed=True)
    for share, first, second in (
        (0.6, [0, 4, 4, 6], [0, 2, 4]),
        (0.4, [0, 4], [0, 4, 6]),
        (0.8, [0, 4, 4, 8], [0, 2]),
    ):
        before, after = trace.split(share)
        assert before.starts.tolist() == first
        assert after.starts.tolist() == second
        np.testing.assert_array_equal(np.concatenate([before.tokens, after.tokens]), trace.tokens)


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_cut_that_leaves_nothing_is_refused(share):
    with pytest.raises(ParameterError, match="leaves nothing"):
        zipf_trace(10).split(share)


def test_names_in_another_archive_are_shown_printable(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, **{"\x1b[2J": np.arange(4)}, **{f"a{n}": np.arange(1) for n in range(20)})
    with pytest.raises(SourceError) as caught:
        read_traces([path])
    assert caught.value.problem.isprintable()
    assert caught.value.problem.endswith("a6, ...")
