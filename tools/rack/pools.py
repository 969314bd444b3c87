# SPDX-License-Identifier: Apache-2.0
"""The memory that all hosts share: files of this machine, and the devices that stand before them in each guest."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MIB: Final = 1 << 20
RAM: Final = 640 * MIB
"""Of a guest, apart from pools."""

POOL_STEP: Final = 256 * MIB
"""QEMU takes no other multiples for CXL memory."""

LABEL_BYTES: Final = 1 * MIB
SOFT_RESERVED: Final = 0xEFFFFFFF
"""Linux' own e820 type of memory that firmware reserves for a purpose (EFI_MEMORY_SP)."""

FOUR_GIB: Final = 4 << 30


class Kind(StrEnum):
    """How a host sees a pool."""

    NVDIMM = "nvdimm"
    HMEM = "hmem"
    CXL_RAM = "cxl-ram"
    CXL_PMEM = "cxl-pmem"

    @property
    def is_cxl(self) -> bool:
        """Tell whether it is a memdev behind the switch, which can be unplugged."""
        return self in (Kind.CXL_RAM, Kind.CXL_PMEM)


@dataclass(frozen=True, slots=True)
class Pool:
    """One piece of shared memory; `serial` is a CXL memdev's, the same on every host and at every boot."""

    name: str
    kind: Kind
    size: int = POOL_STEP
    serial: int = 0

    def file(self, folder: Path) -> Path:
        """Give the media: what guests store there is here."""
        return folder / f"{self.name}.media"

    def labels(self, folder: Path) -> Path:
        """Give the label area of a CXL pmem memdev, where its namespaces stand."""
        return folder / f"{self.name}.labels"


DEFAULT: Final = (
    Pool("nvdimm", Kind.NVDIMM),
    Pool("hmem", Kind.HMEM),
    # Serials have 64 bits; this one does not fit into a signed number.
    Pool("ram", Kind.CXL_RAM, serial=0xFEDC_BA98_7654_3210),
    Pool("pmem", Kind.CXL_PMEM, serial=0xE1),
)
"""One of each kind. An nvdimm and hmem, of which a machine here has one at most, and CXL memdevs."""


def create(pools: Sequence[Pool], folder: Path) -> None:
    """Make the media, all zeros; no space is taken before something is written."""
    for pool in pools:
        with pool.file(folder).open("xb") as file:
            file.truncate(pool.size)
        if pool.kind is Kind.CXL_PMEM:
            with pool.labels(folder).open("xb") as file:
                file.truncate(LABEL_BYTES)


def machine_arguments(pools: Sequence[Pool], folder: Path, order: Sequence[str]) -> list[str]:
    """Give QEMU's arguments for the machine and its memory.

    CXL memdevs are found, and so numbered, in the `order` of their pools' names.
    """
    extra = sum(pool.size for pool in pools if pool.kind is Kind.HMEM)
    result = [
        # max-ram-below-4g: the guest's own RAM ends there, and the hmem pool begins at 4 GiB exactly; a range that
        # the BIOS clips is "misaligned" to the driver.
        *("-machine", f"q35,cxl=on,nvdimm=on,max-ram-below-4g={RAM}"),
        *("-m", f"size={RAM + extra}b,slots=4,maxmem={2 * FOUR_GIB}b"),
        *("-object", f"memory-backend-ram,id=own,size={RAM}", "-numa", "node,nodeid=0,cpus=0,memdev=own"),
    ]
    for pool in pools:
        result += _backend(pool.name, pool.file(folder), pool.size)
        if pool.kind is Kind.HMEM:
            result += ["-numa", f"node,nodeid=1,memdev={pool.name}"]
        elif pool.kind is Kind.NVDIMM:
            result += ["-device", f"nvdimm,memdev={pool.name},id={device_id(pool)}"]
        elif pool.kind is Kind.CXL_PMEM:
            result += _backend(f"{pool.name}-labels", pool.labels(folder), LABEL_BYTES)
    by_name = {pool.name: pool for pool in pools}
    memdevs = [by_name[name] for name in order]
    if not memdevs:
        return result
    window = sum(pool.size for pool in memdevs)
    result += [
        # A bridge with a single port gets no decoders of its own unless told to, and then only one region fits below.
        *("-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl,hdm_for_passthrough=on"),
        *("-device", "cxl-rp,port=0,bus=cxl,id=root-port,chassis=0,slot=1"),
        *("-device", "cxl-upstream,bus=root-port,id=switch"),
        # Room for each memdev's region to be in a place of its own, whatever was there before.
        *("-machine", f"cxl-fmw.0.targets.0=cxl,cxl-fmw.0.size={-(-2 * window // FOUR_GIB) * FOUR_GIB}"),
    ]
    for port, pool in enumerate(memdevs):
        result += ["-device", f"cxl-downstream,port={port},bus=switch,id=port-{pool.name},chassis=0,slot={port + 2}"]
        if pool.kind is Kind.CXL_RAM:
            memory = f"volatile-memdev={pool.name}"
        else:
            memory = f"persistent-memdev={pool.name},lsa={pool.name}-labels"
        result += ["-device", f"cxl-type3,bus=port-{pool.name},id={device_id(pool)},sn={pool.serial},{memory}"]
    return result


def _backend(name: str, file: Path, size: int) -> list[str]:
    return ["-object", f"memory-backend-file,id={name},share=on,mem-path={file},size={size}"]


def device_id(pool: Pool) -> str:
    """Give QEMU's id of the device, as QMP commands take it."""
    return f"device-{pool.name}"


def kernel_parameters(pools: Sequence[Pool]) -> list[str]:
    """Give the kernel parameters that the pools need."""
    # Linux turns RAM (e820 type 1) of the hmem pool's range into soft-reserved memory.
    return [
        f"memmap={pool.size // MIB}M%{FOUR_GIB:#x}-1+{SOFT_RESERVED:#x}" for pool in pools if pool.kind is Kind.HMEM
    ]
