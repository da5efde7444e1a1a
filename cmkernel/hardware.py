"""Machine requirements of the Mosaic GPU kernels. Each check names the value it found and the rule."""

from __future__ import annotations

import ctypes
import importlib.util
import os

import jax
from jax import lax

COMPUTE_CAPABILITY = "9.0"
# XLA crashes if a kernel addresses more peers (xla#47283).
MAX_RANKS = 32
# First release with ncclGetPeerDevicePointer, which XLA uses to find another process's memory.
MIN_NCCL_VERSION = (2, 29, 0)
NCCL_LIBRARY = "libnccl.so.2"

_INSTEAD = 'use implementation="ppermute"'


def unsupported_reason(*, axis_name: str) -> str | None:
    """Return why a ring kernel can't run here over mesh axis ``axis_name``, or ``None`` if it can.

    Call it inside ``jax.shard_map``. It can't see the order of the mesh's devices, which must be that of their ids
    (jax#29849): traced code gets an abstract mesh. jax itself refuses another order at lowering, unless
    ``jax.shard_map`` was given an abstract mesh.
    """
    device = jax.local_devices()[0]
    num_ranks, num_devices = lax.axis_size(axis_name), jax.device_count()
    num_processes, num_local_devices = jax.process_count(), jax.local_device_count()
    if device.platform != "gpu":
        return f"platform={device.platform!r} must be 'gpu'; {_INSTEAD}"
    if (capability := device.compute_capability) != COMPUTE_CAPABILITY:
        return (
            f"compute_capability={capability!r} of {device.device_kind} must be {COMPUTE_CAPABILITY!r} (Hopper); "
            f"{_INSTEAD}"
        )
    if num_devices not in (num_processes, num_local_devices):
        return (
            f"{num_devices=} over {num_processes=} with {num_local_devices=} here: the kernel needs one "
            f"device per process, or all devices in one process; {_INSTEAD}"
        )
    if num_ranks != num_devices:
        return f"axis {axis_name!r} has {num_ranks=} and must cover all {num_devices=}; {_INSTEAD}"
    if num_ranks > MAX_RANKS:
        return f"axis {axis_name!r} has {num_ranks=}; XLA supports at most {MAX_RANKS} peers (xla#47283); {_INSTEAD}"
    # With one process, or one rank, a kernel reaches its peers without NCCL.
    if num_processes > 1 and ((version := nccl_version()) is None or version < MIN_NCCL_VERSION):
        loaded = "not found" if version is None else ".".join(map(str, version))
        needed = ".".join(map(str, MIN_NCCL_VERSION))
        return f"NCCL {loaded} ({NCCL_LIBRARY}); several processes need at least {needed}; upgrade it or {_INSTEAD}"
    return None


def nccl_version() -> tuple[int, int, int] | None:
    """Version of the NCCL library that XLA uses, read from the library itself; ``None`` if there is none."""
    for path, mode in _nccl_candidates():
        try:
            library = ctypes.CDLL(path, mode=mode)
        except OSError:
            continue
        code = ctypes.c_int()
        if library.ncclGetVersion(ctypes.byref(code)) != 0:
            continue
        # NCCL_VERSION_CODE since 2.9: major, then two digits each for minor and patch.
        return code.value // 10_000, code.value // 100 % 100, code.value % 100
    return None


def _nccl_candidates() -> list[tuple[str, int]]:
    """Arguments of ``dlopen`` that may find NCCL, best first."""
    # RTLD_NOLOAD finds the copy already loaded in this process, whatever else is installed.
    candidates = [(NCCL_LIBRARY, os.RTLD_NOW | os.RTLD_NOLOAD)]
    # Then the wheel, where jax's CUDA plugin looks first; then the system's copy.
    if importlib.util.find_spec("nvidia") and (spec := importlib.util.find_spec("nvidia.nccl")):
        candidates += [(f"{path}/lib/{NCCL_LIBRARY}", os.RTLD_NOW) for path in spec.submodule_search_locations or ()]
    return [*candidates, (NCCL_LIBRARY, os.RTLD_NOW)]


def device_kind() -> str:
    """Jax's name of the mesh's (or else the first) device: equal in every process, as ranks must choose alike."""
    if (abstract_device := jax.sharding.get_abstract_mesh().abstract_device) is not None:
        return str(abstract_device.device_kind)
    return jax.devices()[0].device_kind


def num_sms() -> int:
    """Number of streaming multiprocessors of the device being traced for.

    Raises:
      NotImplementedError: neither an abstract device nor a GPU gives the number.
    """
    if (abstract_device := jax.sharding.get_abstract_mesh().abstract_device) is not None:
        count, kind = abstract_device.num_cores, abstract_device.device_kind
    else:
        device = jax.local_devices()[0]
        count, kind = getattr(device, "core_count", None), device.device_kind
    if not count:
        raise NotImplementedError(
            f"num_sms is unknown for device_kind={kind!r}; pass num_sms= to trace for another device"
        )
    return int(count)
