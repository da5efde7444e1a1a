"""Programs that end on all ranks at the same moment: what is timed next starts together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jobs.measure.inputs import AXIS
from jobs.measure.pulse import PULSE

# Rows of a square multiply that keeps a GPU busy for over a millisecond, long enough to enqueue the timed call.
BUSY_ROWS = 8192


class Aligner:
    """Aligns the ranks of ``mesh``, seen from the host or on the device."""

    program_name = "jit_cmkernel_align"
    """Name of the program in a trace."""

    def __init__(self, mesh: Mesh, *, on_gpu: bool) -> None:
        self._on_host = _compile(mesh, 1)
        self._on_device = _compile(mesh, BUSY_ROWS if on_gpu else 1)
        self.last: jax.Array = self._on_device[1]
        """Result of the latest run on the device; it is ready when the ranks are aligned."""

    def align_hosts(self) -> None:
        """Wait until all ranks have arrived here."""
        program, x = self._on_host
        program(x).block_until_ready()
        PULSE.beat()

    def align_devices(self) -> str:
        """Enqueue busy work that ends on all ranks at once; return the program's name."""
        program, x = self._on_device
        self.last = program(x)
        PULSE.beat()
        return self.program_name


def _compile(mesh: Mesh, rows: int) -> tuple[jax.stages.Compiled, jax.Array]:
    """Multiply of ``[rows, rows]`` per rank and a sum over the ranks, with its operand."""
    spec = PartitionSpec(AXIS, None)

    def cmkernel_align(x: jax.Array) -> jax.Array:
        return jax.lax.psum((x @ x)[:1, :1], AXIS)

    function = jax.shard_map(
        cmkernel_align, mesh=mesh, in_specs=spec, out_specs=PartitionSpec(None, None), check_vma=False
    )
    sharding = jax.sharding.NamedSharding(mesh, spec)
    shape = (rows * mesh.size, rows)
    x = jax.make_array_from_callback(shape, sharding, lambda _: jnp.ones((rows, rows), jnp.bfloat16))
    return jax.jit(function).lower(x).compile(), x
