# SPDX-License-Identifier: Apache-2.0
"""The CXL memory devices behind a pool: driver, firmware, what they say of their own health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from engramdax.health import cxl
from engramdax.health.finding import Finding, State, critical, ok, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.devices.tree import Memdev
    from engramdax.health.cxl import Listing
    from engramdax.health.subject import Subject

REPLACE: Final = "save the tables, and have the device replaced"
ASK_ROOT: Final = "run as root"
FAILED: Final = ("hw_replacement_needed", "media_not_ready", "media_persistence_lost", "media_data_lost")
FAILING: Final = (
    "maintenance_needed",
    "performance_degraded",
    "media_persistence_loss_imminent",
    "media_data_loss_imminent",
    "media_powerloss_persistence_loss",
    "media_shutdown_persistence_loss",
    "media_powerloss_data_loss",
    "media_shutdown_data_loss",
)
"""Flags of Get Health Info (CXL 3.1, 8.2.10.9.3.1), as `cxl list -H` calls them."""

STATES: Final = {"normal": State.OK, "warning": State.WARNING, "critical": State.CRITICAL}


def object_name(memdev: Memdev) -> str:
    """Name a memdev so that it is the same one on every host and boot, as far as it has a serial."""
    return f"{memdev.serial:#x}" if memdev.serial else f"{memdev.name} at {memdev.parent}"


def probe(subject: Subject) -> Iterator[Finding]:
    """Look at the memdevs behind the pool; of a pool without any there is nothing to say."""
    device = subject.device
    if device is None:
        return
    region = device.cxl_region
    if region is not None:
        missing = [str(i) for i, target in enumerate(region.targets) if target.memdev is None]
        if missing:
            text = f"target {', '.join(missing)} of {region.name} is missing"
            yield critical("memdev.present", text, object=region.name, remedy="look at the device and its link")
    if not device.memdevs:
        return
    listing = cxl.listing(cxl.HEALTH, device.memdevs)
    for memdev in device.memdevs:
        yield from _memdev(memdev, listing, root=subject.root)


def _memdev(memdev: Memdev, listing: Listing, *, root: bool) -> Iterator[Finding]:
    name = object_name(memdev)
    if memdev.driver is None:
        remedy = f"`cxl enable-memdev {memdev.name}`"
        yield critical("memdev.present", f"{memdev.name} is disabled", object=name, remedy=remedy)
    else:
        yield ok("memdev.present", f"{memdev.name} at {memdev.parent}, driver {memdev.driver}", object=name)
    if memdev.serial:
        yield ok("memdev.serial", name, object=name)
    else:
        yield unknown("memdev.serial", "it says none, so that hosts cannot tell it from others", object=name)
    if memdev.firmware:
        yield ok("memdev.firmware", memdev.firmware, object=name)
    else:
        yield unknown("memdev.firmware", "the kernel does not tell its version", object=name)
    said = listing.of(memdev)
    health = said.get("health") if said is not None else None
    if not isinstance(health, dict):
        # The object is left out where the device does not know the command, and where this user may not ask.
        why = listing.problem or ("only root may ask it" if not root else f"`{' '.join(cxl.HEALTH)}` has none of it")
        remedy = listing.remedy or (ASK_ROOT if not root else "")
        for what in ("health", "temperature", "life_used"):
            yield unknown(f"memdev.{what}", why, object=name, remedy=remedy)
        return
    alerts = said.get("alert_config") if said is not None else None
    yield _health(name, health)
    yield _temperature(name, health, alerts if isinstance(alerts, dict) else {})
    yield _life_used(name, health)
    yield from _errors(name, health)


def _health(name: str, health: dict[str, Any]) -> Finding:
    failed = [flag.replace("_", " ") for flag in FAILED if health.get(flag) is True]
    failing = [flag.replace("_", " ") for flag in FAILING if health.get(flag) is True]
    if failed:
        return critical("memdev.health", ", ".join(failed + failing), object=name, remedy=REPLACE)
    if failing:
        return warning("memdev.health", ", ".join(failing), object=name, remedy="have it looked after")
    if health.get("media_normal") is True:
        return ok("memdev.health", "media normal", object=name)
    if health.get("media_normal") is False:
        return warning("memdev.health", "its media are not in the normal state", object=name, remedy=REPLACE)
    return unknown("memdev.health", "it does not say how its media are", object=name)


def _temperature(name: str, health: dict[str, Any], alerts: dict[str, Any]) -> Finding:
    degrees = cxl.plain_number(health.get("temperature"))
    if degrees is None:
        return unknown("memdev.temperature", "it does not tell its temperature", object=name)
    state = STATES.get(str(health.get("ext_temperature")), State.UNKNOWN)
    limit = cxl.plain_number(alerts.get("dev_over_temperature_crit_alert_threshold"))
    if state is State.UNKNOWN and limit:
        state = State.CRITICAL if degrees >= limit else State.OK
    text = f"{degrees} degrees Celsius" + (f", alarm from {limit} on" if limit else "")
    if state is State.UNKNOWN:
        text += "; it says neither whether that is normal nor from where on it is not"
    remedy = "cool it" if state in (State.WARNING, State.CRITICAL) else ""
    return Finding("memdev.temperature", state, text, object=name, figure=degrees, unit="celsius", remedy=remedy)


def _life_used(name: str, health: dict[str, Any]) -> Finding:
    percent = cxl.plain_number(health.get("life_used_percent"))
    state = STATES.get(str(health.get("ext_life_used")), State.UNKNOWN)
    if percent is None and state is State.UNKNOWN:
        return unknown("memdev.life_used", "it does not tell how much of its life is used", object=name)
    if percent is not None and state is State.UNKNOWN:
        state = State.OK if percent < 90 else State.WARNING if percent < 100 else State.CRITICAL
    text = (
        f"{percent} % of its life are used"
        if percent is not None
        else f"life used: {cxl.excerpt(health.get('ext_life_used'))}"
    )
    remedy = REPLACE if state in (State.WARNING, State.CRITICAL) else ""
    figure = None if percent is None else percent / 100
    return Finding("memdev.life_used", state, text, object=name, figure=figure, unit="ratio", remedy=remedy)


def _errors(name: str, health: dict[str, Any]) -> Iterator[Finding]:
    for key, what in (("volatile_errors", "volatile"), ("pmem_errors", "persistent")):
        count = cxl.number(health.get(key))
        if count is None:
            continue
        state = STATES.get(str(health.get(f"ext_corrected_{what}")), State.OK)
        text = f"{count} errors of its {what} memory were corrected"
        remedy = REPLACE if state is not State.OK else ""
        yield Finding("memdev.corrected", state, text, object=f"{name} {what}", figure=count, remedy=remedy)
