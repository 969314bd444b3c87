# SPDX-License-Identifier: Apache-2.0
"""The order in which metadata reach the media, and what a crash at any line leaves."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from simulated_media import SimulatedMedia, crashes

from engramdax.errors import FormatError, NotAPoolError
from engramdax.format.directory import Directory, Host, Retired, TableEntry
from engramdax.format.geometry import Extent, Geometry
from engramdax.format.layout import RowLayout
from engramdax.format.superblock import Superblock
from engramdax.pool.provision import initialise
from engramdax.pool.volume import (
    publish,
    read_directory,
    read_superblock,
    void_slots,
    void_superblocks,
    write_superblock,
)

GEOMETRY = Geometry((0, 4096), (8192, 10240), slot_bytes=2048, unit=1024, block=256)
SIZE = 32 << 10
OWNER = Host(UUID(int=77), "alpha")


def superblock(number: int = 1) -> Superblock:
    return Superblock(UUID(int=number), UUID(int=number + 1), f"pool{number}", SIZE, GEOMETRY, shared=False, created=1)


def table(name: str, at: int) -> TableEntry:
    layout = RowLayout.packed(("row", "uint8", 64))
    extents = Extent(at, 1024), Extent(at + 1024, 1024)
    return TableEntry(name, UUID(int=at), "published", 8, layout, *extents, 0, None, {})


def fresh() -> tuple[SimulatedMedia, Directory]:
    """A pool of one generation with a table in it."""
    media = SimulatedMedia(bytearray(SIZE))
    initialise(media, superblock(), OWNER)
    directory = Directory(superblock().pool, 2, 1, OWNER.id, (OWNER,), (table("a", 16384),))
    publish(media, superblock(), directory)
    media.log.clear()
    return media, directory


def successor(directory: Directory) -> Directory:
    """The generation after it: a table more and one retired."""
    return replace(
        directory,
        generation=directory.generation + 1,
        tables=(table("b", 20480),),
        retired=(Retired("a", UUID(int=16384), 3, (Extent(16384, 2048),)),),
    )


def opened(image: bytes) -> tuple[Superblock, Directory]:
    media = SimulatedMedia(bytearray(image))
    found = read_superblock(media, GEOMETRY.superblocks).value
    return found, read_directory(media, found, patient=False).value


def test_a_publication_is_payload_fence_header_fence_in_slot_0_and_then_in_slot_1() -> None:
    media, directory = fresh()
    new = successor(directory)
    header, payload = new.to_slot(2048)
    publish(media, superblock(), new)
    assert media.log == [
        (8192 + 64, payload),
        None,
        (8192, header),
        None,
        (10240 + 64, payload),
        None,
        (10240, header),
        None,
    ]


def test_the_first_copy_of_the_superblock_is_written_last_and_voided_first() -> None:
    media = SimulatedMedia(bytearray(SIZE))
    write_superblock(media, superblock())
    assert media.stores() == [(4096, 4096), None, (0, 4096), None]
    media.log.clear()
    void_superblocks(media, superblock())
    assert media.stores() == [(0, 4096), None, (4096, 4096), None]
    assert not any(media.content)


def test_provisioning_voids_everything_and_writes_the_superblock_last() -> None:
    media = SimulatedMedia(bytearray(SIZE))
    initialise(media, superblock(), OWNER)
    copies, slots = list(GEOMETRY.superblocks), list(GEOMETRY.slots)
    stores = [s for s in media.stores() if s]
    assert [s[0] for s in stores[:4]] == copies + slots
    assert stores[:2] == [(0, 4096), (4096, 4096)]
    assert [s[0] for s in stores[-2:]] == copies[::-1]
    assert media.log[-1] is None


def test_a_crash_at_any_line_of_a_publication_leaves_the_old_or_the_new_directory() -> None:
    media, old = fresh()
    before = bytes(media.content)
    new = successor(old)
    publish(media, superblock(), new)
    seen = []
    for image in crashes(before, media.log):
        _, found = opened(image)
        assert found in (old, new)
        seen.append(found == new)
    assert set(seen) == {False, True}
    assert not seen[0]
    assert seen[-1]


def test_once_the_new_directory_was_seen_no_later_crash_takes_it_back() -> None:
    media, old = fresh()
    before = bytes(media.content)
    publish(media, superblock(), successor(old))
    generations = [opened(image)[1].generation for image in crashes(before, media.log, torn=0)]
    assert generations == sorted(generations)


def test_a_crash_while_a_bad_slot_is_repaired_loses_nothing() -> None:
    for bad in GEOMETRY.slots:
        for damage in (0, 64):
            media, old = fresh()
            media.content[bad + damage : bad + damage + 8] = bytes(range(8))
            before = bytes(media.content)
            new = replace(successor(old), generation=old.generation + 2)
            publish(media, superblock(), new)
            for image in crashes(before, media.log):
                assert opened(image)[1] in (old, new)


def test_a_second_crash_never_brings_back_a_directory_older_than_one_that_was_seen() -> None:
    media, old = fresh()
    before = bytes(media.content)
    publish(media, superblock(), successor(old))
    for image in set(crashes(before, media.log, torn=1)):
        again = SimulatedMedia(bytearray(image))
        seen = opened(image)[1]
        publish(again, superblock(), replace(seen, generation=seen.generation + 2))
        for later in crashes(image, again.log, torn=0):
            assert opened(later)[1].age >= seen.age


def test_a_crash_at_any_line_of_provisioning_leaves_no_pool_or_a_whole_one() -> None:
    for before in (bytes(SIZE), bytes(range(256)) * (SIZE // 256)):
        media = SimulatedMedia(bytearray(before))
        initialise(media, superblock(), OWNER)
        outcomes = set()
        for image in crashes(before, media.log):
            try:
                found, directory = opened(image)
            except FormatError:
                outcomes.add("none")
                continue
            assert found == superblock()
            assert directory == Directory(superblock().pool, 1, 1, OWNER.id, (OWNER,))
            outcomes.add("whole")
        assert outcomes == {"none", "whole"}


def test_a_crash_while_a_pool_is_made_over_an_old_one_never_mixes_them() -> None:
    media, directory = fresh()
    before = bytes(media.content)
    initialise(media, superblock(2), OWNER)
    outcomes = set()
    for image in crashes(before, media.log):
        try:
            found, now = opened(image)
        except FormatError:
            outcomes.add("none")
            continue
        assert now.pool == found.pool
        assert now.tables == (directory.tables if found == superblock() else ())
        outcomes.add(found.name)
    assert outcomes == {"none", "pool1", "pool2"}


def test_a_crash_while_a_pool_is_voided_leaves_it_whole_or_none() -> None:
    media, directory = fresh()
    before = bytes(media.content)
    void_superblocks(media, superblock())
    void_slots(media, superblock())
    outcomes = []
    for image in crashes(before, media.log):
        try:
            assert opened(image) == (superblock(), directory)
        except FormatError:
            outcomes.append("none")
        else:
            outcomes.append("whole")
    assert outcomes[0] == "whole"
    assert outcomes[-1] == "none"
    with pytest.raises(NotAPoolError):
        read_superblock(media, GEOMETRY.superblocks)


def test_the_slot_with_the_highest_epoch_and_then_generation_is_current() -> None:
    media, directory = fresh()
    for first, second, winner in (((1, 9), (2, 1), 1), ((2, 1), (1, 9), 0), ((1, 3), (1, 4), 1), ((1, 4), (1, 3), 0)):
        ages = [replace(directory, epoch=epoch, generation=generation) for epoch, generation in (first, second)]
        for place, slot in zip(GEOMETRY.slots, ages, strict=True):
            header, payload = slot.to_slot(2048)
            media.store(place, header + payload)
        assert read_directory(media, superblock(), patient=False).value == ages[winner]


def test_a_slot_of_another_pool_is_told_and_passed_over() -> None:
    media, directory = fresh()
    header, payload = replace(directory, pool=UUID(int=999), generation=50).to_slot(2048)
    media.store(GEOMETRY.slots[0], header + payload)
    found = read_directory(media, superblock(), patient=False)
    assert found.value == directory
    assert found.problems == (f"directory slot 0: the slot belongs to another pool, {UUID(int=999)}",)


def test_two_bad_slots_are_reported_with_both_causes() -> None:
    media, _ = fresh()
    media.content[GEOMETRY.slots[0]] ^= 1
    media.content[GEOMETRY.slots[1] + 64] ^= 1
    with pytest.raises(FormatError) as caught:
        read_directory(media, superblock(), patient=False)
    assert "slot 0: the slot's header line is damaged" in caught.value.problem
    assert "slot 1: the slot's payload is damaged" in caught.value.problem


def test_every_copy_of_the_superblock_alone_is_enough() -> None:
    media, _ = fresh()
    for lost, kept in ((0, 4096), (4096, 0)):
        image = SimulatedMedia(bytearray(media.content))
        image.content[lost + 100] ^= 0x10
        found = read_superblock(image, GEOMETRY.superblocks)
        assert found.value == superblock()
        assert found.problems == (f"superblock copy at {lost}: the superblock's checksum is wrong",)
        image.content[kept] ^= 1
        with pytest.raises(FormatError, match="no usable superblock"):
            read_superblock(image, GEOMETRY.superblocks)


def test_copies_of_different_superblocks_are_told_and_the_first_one_counts() -> None:
    media, _ = fresh()
    media.store(4096, superblock(2).to_bytes())
    found = read_superblock(media, GEOMETRY.superblocks)
    assert found.value == superblock()
    assert found.problems == ("superblock copy at 4096: it is another pool's",)


def test_media_smaller_than_a_superblock_hold_no_pool() -> None:
    with pytest.raises(NotAPoolError, match="there is no pool here"):
        read_superblock(SimulatedMedia(bytearray(2048)))
