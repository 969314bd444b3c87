# SPDX-License-Identifier: Apache-2.0
"""Trees of sysfs to read: captured on the rack's hosts (python -m tools.capture_sysfs), or written by hand."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engramdax.devices.reading import read_tree
from engramdax.devices.tree import Tree

DATA: Final = Path(__file__).with_name("data")
MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True)
class Host:
    """A host whose tree was unpacked."""

    sysfs: Path
    dev: Path
    tools: Path
    nodes: list[str]
    """Of dax devices, as it had them."""

    def read(self) -> Tree:
        return read_tree(self.sysfs, self.dev)

    def said(self, tool: str) -> Any:
        """Give what cxl, ndctl or daxctl listed at that moment."""
        return json.loads((self.tools / f"{tool}.json").read_text())

    def place(self, bus: str, name: str) -> Path:
        return (self.sysfs / "bus" / bus / "devices" / name).resolve()


def unpack(archive: Path, folder: Path) -> Host:
    """Unpack a captured tree, with device nodes where this user may make them."""
    with tarfile.open(archive) as file:
        # Debian 12's Python 3.11.2 has no filters yet.
        file.extraction_filter = getattr(tarfile, "tar_filter", None)
        file.extractall(folder)  # noqa: S202 - the archives are our own
    sysfs, dev = folder / "sys", folder / "dev"
    dev.mkdir()
    nodes = json.loads((folder / "machine.json").read_text())["nodes"]
    for name in nodes:
        make_node(dev / name, (sysfs / "bus/dax/devices" / name / "dev").read_text().strip())
    return Host(sysfs, dev, folder / "tools", nodes)


Captured = Callable[[str], Host]
"""Gives one of the captured trees in `data`, which is for all tests and stays as it is."""


def make_node(path: Path, numbers: str) -> bool:
    """Make a character device; tells whether this user may."""
    major, minor = map(int, numbers.split(":"))
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(major, minor))
    except PermissionError:
        return False
    return True


class Sysfs:
    """A sysfs written by hand: as the kernel lays it out, with whatever values a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root / "sys"
        self.dev = root / "dev"
        self.root.mkdir()
        self.dev.mkdir()
        for name in ("device_dax", "kmem"):
            (self.root / "bus/dax/drivers" / name).mkdir(parents=True)

    def read(self) -> Tree:
        return read_tree(self.root, self.dev)

    def device(self, bus: str, path: str, driver: str | None = None, **values: Any) -> Path:
        """Add a device of a bus; a value is text, bytes or a number, "ram__size" the file ram/size."""
        place = self.root / "devices" / path
        place.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            file = place / name.replace("__", "/")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(value if isinstance(value, bytes) else f"{value}\n".encode())
        if driver:
            target = self.root / "bus" / bus / "drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (place / "driver").symlink_to(os.path.relpath(target, place))
        devices = self.root / "bus" / bus / "devices"
        devices.mkdir(parents=True, exist_ok=True)
        (devices / place.name).symlink_to(os.path.relpath(place, devices))
        return place

    def dax(self, name: str, parent: str = "platform/hmem.0", driver: str | None = "device_dax", **values: Any) -> Path:
        """Add a dax device, of 256 MiB unless `values` say otherwise; None leaves an attribute out."""
        number = name.removeprefix("dax").replace(".", "")
        standard = {"size": 256 * MIB, "align": 2 * MIB, "target_node": 1, "numa_node": 0, "dev": f"252:{int(number)}"}
        standard |= {"resource": "0x100000000"}
        chosen = {k: v for k, v in (standard | values).items() if v is not None}
        return self.device("dax", f"{parent}/{name}", driver, **chosen)

    def dax_region(self, parent: str = "platform/hmem.0", **values: Any) -> Path:
        """Add what dax devices of `parent` are cut from."""
        place = self.root / "devices" / parent / "dax_region"
        place.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (place / name).write_text(f"{value}\n")
        return place

    def memdev(self, number: int, serial: Any, **values: Any) -> str:
        """Add a memdev with its endpoint and one decoder; gives the decoder's name."""
        path = f"pci0000:0c/0000:0{number}:00.0/mem{number}"
        standard = {"serial": serial, "ram__size": hex(256 * MIB), "pmem__size": "0x0", "numa_node": -1}
        self.device("cxl", path, "cxl_mem", **(standard | values))
        endpoint = f"platform/ACPI0017:00/root0/port1/endpoint{number + 10}"
        place = self.device("cxl", endpoint, "cxl_port", devtype="cxl_port")
        (place / "uport").symlink_to(os.path.relpath(self.root / "devices" / path, place))
        decoder = f"decoder{number + 10}.0"
        values = {"devtype": "cxl_decoder_endpoint", "locked": 0, "mode": "ram", "interleave_ways": 1}
        self.device("cxl", f"{endpoint}/{decoder}", **values)
        return decoder

    def cxl_region(self, name: str, targets: list[str], driver: str | None = "cxl_region", **values: Any) -> str:
        """Add a region of these decoders; gives the path below devices that its dax region has."""
        self.root_decoder()
        path = f"platform/ACPI0017:00/root0/decoder0.0/{name}"
        standard: dict[str, Any] = {
            "uuid": "",
            "mode": "ram",
            "size": hex(256 * MIB * len(targets)),
            "resource": "0x410000000",
        }
        standard |= {"interleave_ways": len(targets), "interleave_granularity": 256, "commit": 1}
        standard |= {f"target{i}": target for i, target in enumerate(targets)}
        self.device("cxl", path, driver, **(standard | values))
        return f"{path}/dax_region{name.removeprefix('region')}"

    def root_decoder(self) -> None:
        """Add the host's window."""
        if not (self.root / "bus/cxl/devices/root0").exists():
            self.device("cxl", "platform/ACPI0017:00/root0", devtype="cxl_port")
            values: dict[str, Any] = {"devtype": "cxl_decoder_root", "start": "0x410000000", "size": hex(4 * GIB)}
            values |= {"locked": 0, "cap_ram": 1, "cap_pmem": 1}
            self.device("cxl", "platform/ACPI0017:00/root0/decoder0.0", **values)
