# SPDX-License-Identifier: Apache-2.0
"""A sysfs as Linux 6.12 lays it out, seen in the guests of tools/rack, as far as the helper walks it."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20


class Tree:
    """Devices below `sysfs`, and files in `dev` that stand for their memory."""

    def __init__(self, sysfs: Path, dev: Path) -> None:
        self.sysfs = sysfs
        self.dev = dev
        for folder in ("bus/dax/devices", "bus/cxl/devices", "devices/platform"):
            (sysfs / folder).mkdir(parents=True)
        dev.mkdir()

    def write(self, folder: str, **attributes: object) -> Path:
        """Make a folder of devices/ with attributes."""
        path = self.sysfs / "devices" / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, value in attributes.items():
            (path / name).write_text(f"{value}\n")
        return path

    def device(
        self, name: str, size: int, *, align: int = 2 * MIB, below: str = "platform/hmem.0", **more: object
    ) -> Path:
        """Make a dax device; gives the path of its memory, which is not there yet."""
        path = self.write(f"{below}/{name}", size=size, align=align, dev="252:0", **more)
        link = self.sysfs / "bus/dax/devices" / name
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(path, link.parent))
        return self.dev / name

    def memdev(self, number: int, serial: object, *, dpa: int = 0) -> str:
        """Make a memdev and the decoder of its endpoint; gives the decoder's name."""
        memdev = self.write(f"pci0000:0c/mem{number}", serial=serial)
        endpoint = f"platform/ACPI0017:00/root0/port1/endpoint{number + 3}"
        decoder = self.write(f"{endpoint}/decoder{number + 3}.0", dpa_resource=f"{dpa:#x}")
        (self.sysfs / "devices" / endpoint / "uport").symlink_to(os.path.relpath(memdev, decoder.parent))
        (self.sysfs / "bus/cxl/devices" / decoder.name).symlink_to(
            os.path.relpath(decoder, self.sysfs / "bus/cxl/devices")
        )
        return decoder.name

    def region(self, number: int, *decoders: str, resource: int = 0x4_1000_0000) -> str:
        """Make a region of volatile CXL memory; gives the folder that its dax devices are in."""
        folder = f"platform/ACPI0017:00/root0/decoder0.0/region{number}"
        targets = {f"target{i}": decoder for i, decoder in enumerate(decoders)}
        self.write(folder, interleave_ways=len(decoders), resource=f"{resource:#x}", **targets)
        self.write("platform/ACPI0017:00/root0/decoder0.0", interleave_ways=1)
        return f"{folder}/dax_region{number}"

    def namespace(self, uuid: str, *ids: int) -> str:
        """Make an nvdimm region of the memdevs with these ids; gives the folder that its dax device is in."""
        bus = "platform/ACPI0017:00/root0/nvdimm-bridge0/ndbus1"
        mappings = {f"mapping{i}": f"nmem{i},0,268435456,{i}" for i in range(len(ids))}
        self.write(f"{bus}/region3", mappings=len(ids), **mappings)
        for i, value in enumerate(ids):
            self.write(f"{bus}/nmem{i}/cxl", id=value)
        self.write(f"{bus}/region3/dax3.0", uuid=uuid, namespace="namespace3.0")
        return f"{bus}/region3/dax3.0"
