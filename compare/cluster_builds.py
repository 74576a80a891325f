"""Builds spread over the CPUs of a cluster's workers, and handed to those that lack them.

A worker builds into its own cache; what the machine that gave the command does not find in its own is fetched
from there. Workers that then lack anything are sent a bundle, whose manifest decides, as on any GPU machine,
what of it belongs to the sources that they have.
"""

from __future__ import annotations

import functools
import io
import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.building import Built, kernels_of, say_what_failed, units_of
from compare.cluster import Cluster
from compare.cluster_workers import Member, compiler
from compare.contenders import Contender, contenders, every_contender
from kernel.contract import Artifact, Unit
from kernel.errors import BuildError, MissingToolError

SUPPLY_LIMIT_S = 300.0
"""Longest that a worker may take to say what it lacks, or to take in a bundle."""

Model = tuple[str, int]
"""A kind of GPU: its name and SM count, which some contenders plan for; ("", 0) where there is none."""


@dataclass(frozen=True)
class Packed:
    """A contender on its way to another process."""

    name: str
    model: Model
    itself: Contender | None = None
    """Only where the catalogs do not have it."""


def pack(contender: Contender, model: Model) -> Packed:
    """By name where it is a catalog's own: rules are functions, and files have another place elsewhere.

    Args:
        contender: as it was chosen for ``model``.
        model: the kind of GPU that it is to run on.
    """
    known = {one.name: one for one in every_contender()}.get(contender.name)
    ours = known is not None and suited([known], model)[0] == contender
    return Packed(contender.name, model, None if ours else contender)


def unpack(packed: Packed) -> Contender:
    """The contender that :func:`pack` was given, as this process knows it."""
    if packed.itself is not None:
        return packed.itself
    (found,) = (one for one in contenders([packed.name]) if one.name == packed.name)
    return suited([found], packed.model)[0]


def suited(chosen: Iterable[Contender], model: Model) -> tuple[Contender, ...]:
    """Contenders as they plan for a kind of GPU."""
    return tuple(contender.on(*model) if model[0] else contender for contender in chosen)


@dataclass(frozen=True)
class Order:
    """One unit to build: by name, as one of a contender's, or of the ceilings of an architecture."""

    unit: str
    of: Packed | None = None
    arch: str = ""

    def resolve(self) -> Unit:
        """The unit, as this process' sources have it."""
        from compare import ceilings

        among = units_of([unpack(self.of)]) if self.of else ceilings.units(self.arch)
        return next(unit for unit in among if unit.name == self.unit)


def orders_for(chosen: Iterable[Contender], archs: Iterable[str], model: Model) -> dict[str, Order]:
    """Everything that a comparison launches, by unit: contenders' kernels, and ceilings and probes for ``archs``."""
    from compare import ceilings

    found: dict[str, Order] = {}
    for contender in kernels_of(chosen):
        for unit in units_of([contender]):
            found.setdefault(unit.name, Order(unit.name, of=pack(contender, model)))
    for arch in archs:
        for unit in ceilings.units(arch):
            found.setdefault(unit.name, Order(unit.name, arch=arch))
    return found


# What runs on workers.


def build_here(order: Order) -> tuple[str, Exception | None]:
    """Build one unit into this worker's cache; (its address, why it was not built)."""
    from distributed import get_worker

    from kernel.build import artifact

    try:
        artifact(order.resolve())
    except (BuildError, MissingToolError) as error:
        return get_worker().address, error
    return get_worker().address, None


def fetch_here(order: Order) -> dict[str, bytes]:
    """The files of a unit that this worker has."""
    from kernel.build import artifact, packed

    return packed(artifact(order.resolve()))


def lacking_here(orders: Sequence[Order], chosen: Sequence[Packed]) -> list[str]:
    """What this worker neither has nor can make, by name. Makes the packer libraries, which one build each is for."""
    from kernel.build import lookup

    lacking = [order.unit for order in orders if lookup(order.resolve()) is None]
    try:
        packers_of(map(unpack, chosen))
    except (BuildError, MissingToolError) as error:
        lacking.append(str(error))
    return lacking


def install_here(bundle: bytes) -> None:
    """Take in a bundle; from now on this process finds what is in it."""
    from kernel.build import content_folder, digest

    def write(folder: Path) -> None:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            archive.extractall(folder)

    key = digest(bundle.hex())
    os.environ["GEMM_TRACKS_BUNDLE"] = str(content_folder("bundles/cluster", key, write))


# What runs where the command was given.


def packers_of(chosen: Iterable[Contender]) -> dict[str, Path]:
    """The packer libraries that contenders from CUTLASS need, made if they are not there."""
    from cutlass_ref.catalog import CutlassKernel, bundle_files

    kernels = (contender.kernel for contender in kernels_of(chosen))
    return bundle_files([kernel for kernel in kernels if isinstance(kernel, CutlassKernel)])


def build_over(cluster: Cluster, chosen: Sequence[Contender], archs: Iterable[str], model: Model) -> Built:
    """Build what contenders need on the cluster, and see to it that every worker has it, also those that join later.

    Returns:
        By unit name what was built, or why it was not.
    """
    from compare.console import progress
    from kernel.build import build_all, lookup

    orders = orders_for(chosen, archs, model)
    units = {name: order.resolve() for name, order in orders.items()}
    found: dict[str, Artifact | BuildError | MissingToolError] = {}
    for name, unit in units.items():
        if (there := lookup(unit)) is not None:
            found[name] = there
    wanted = [name for name in units if name not in found]
    with progress("building", len(units)) as advance:
        for name, result in _built_by_workers(cluster, {name: orders[name] for name in wanted}, units):
            found[name] = result
            advance(len(found), name)
        rest = [name for name in wanted if not isinstance(found.get(name), Artifact | BuildError)]
        if rest and compiler():
            found |= build_all(units[name] for name in rest)
    for name in wanted:
        found.setdefault(name, MissingToolError(f"{name}: neither this machine nor any worker can build it"))
    say_what_failed(found)
    ready = [orders[name] for name, one in found.items() if isinstance(one, Artifact)]
    supply = _supplier(cluster, chosen, ready, model)
    for member in list(cluster.members.values()):
        supply(member)
    cluster.on_join.append(supply)
    return found


def builders(cluster: Cluster) -> list[str]:
    """Workers that build with the compiler of this machine, or where it has none with the commonest one."""
    versions = Counter(member.compiler for member in cluster.members.values() if member.compiler)
    version = compiler() or next((name for name, _ in versions.most_common(1)), "")
    return [member.address for member in cluster.members.values() if member.compiler == version and version]


def _built_by_workers(
    cluster: Cluster, orders: dict[str, Order], units: dict[str, Unit]
) -> Iterable[tuple[str, Artifact | BuildError | MissingToolError]]:
    """(unit, what came of it) as builds end; units whose worker was lost are left out."""
    from distributed import as_completed

    from kernel.build import keep, lookup

    able = builders(cluster)
    if not able:
        return
    futures = {cluster.submit(build_here, order, workers=able): name for name, order in orders.items()}
    try:
        for future in as_completed(futures):
            name = futures[future]
            if future.exception() is not None:
                continue
            address, error = future.result()
            if isinstance(error, BuildError | MissingToolError):
                yield name, error
                continue
            there = lookup(units[name])
            if there is None:
                fetched = cluster.submit(fetch_here, orders[name], workers=[address])
                there = keep(units[name], fetched.result(timeout=SUPPLY_LIMIT_S))
            yield name, there
    finally:
        cluster.client.cancel(list(futures), force=True)


def _supplier(
    cluster: Cluster, chosen: Sequence[Contender], orders: Sequence[Order], model: Model
) -> Callable[[Member], None]:
    """What sends a worker that lacks something the bundle, written when the first one does."""
    from kernel.build import write_bundle

    names = [pack(contender, model) for contender in kernels_of(chosen)]

    @functools.cache
    def bundle() -> Any:
        with tempfile.TemporaryDirectory(prefix="gemm-tracks-bundle-") as scratch:
            try:
                files = packers_of(chosen)
            except (BuildError, MissingToolError):
                files = {}
            folder = write_bundle((order.resolve() for order in orders), Path(scratch) / "bundle", files)
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(folder.rglob("*")):
                    if path.is_file():  # without its time, so that equal bundles are one
                        archive.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes())
        return packed.getvalue()

    def supply(member: Member) -> None:
        asked = cluster.submit(lacking_here, orders, names, workers=[member.address])
        if asked.result(timeout=SUPPLY_LIMIT_S):
            sent = cluster.submit(install_here, bundle(), workers=[member.address])
            sent.result(timeout=SUPPLY_LIMIT_S)

    return supply
