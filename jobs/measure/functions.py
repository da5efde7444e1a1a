"""Both functions of an operation, as ``cmkernel`` or jax's own ring computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

import cmkernel
from cmkernel import hardware
from cmkernel.config import Op as FunctionName
from cmkernel.config import config_type, to_plain
from jobs.measure import jax_ring
from jobs.measure.inputs import AXIS
from jobs.measure.operations.operation import Functions

if TYPE_CHECKING:
    from jobs.records.case import Case
    from jobs.records.layout import Layout


class _Function:
    """One of cmkernel's functions; ``choice`` is what it runs, once it was traced."""

    def __init__(self, name: FunctionName, options: dict[str, Any], layout: dict[str, Any]) -> None:
        self._name = name
        self._options = {"axis_name": AXIS, **options}
        # Only the gather has a ring over hosts.
        self._layout = layout if name == "all_gather_matmul" else {}
        self.choice: cmkernel.Choice | None = None

    def __call__(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        options = self._options | self._layout
        if self.choice is None:
            self.choice = cmkernel.choose_implementation(lhs, rhs, op=self._name, **options)
        return getattr(cmkernel, self._name)(lhs, rhs, **options)


class Cmkernel:
    """Both functions of cmkernel with one implementation.

    Args:
      case: problem.
      implementation: of ``cmkernel``, or ``auto``.
      config: options that the user or the tuner set. A layer has none.
      table: tuned configs.
      layout: ranks on each host; ``None`` if unknown.
    """

    def __init__(
        self,
        case: Case,
        implementation: str,
        config: dict[str, Any],
        table: cmkernel.Table | None,
        layout: Layout | None,
    ) -> None:
        options: dict[str, Any] = {"implementation": implementation, "table": table}
        options["partial_dtype"] = case.sent_dtype
        if config:
            kernel = "mosaic_gpu" if implementation == "auto" else implementation
            its_type = config_type(kernel, case.op.function)
            assert its_type is not None
            options["config"] = its_type(**config)
        hosts = {"devices_per_host": layout.devices_per_host, "links": layout.links} if layout else {}
        self._gather = _Function("all_gather_matmul", options, hosts)
        self._scatter = _Function("matmul_reduce_scatter", options, hosts)
        self.functions = Functions(self._gather, self._scatter)

    @property
    def _choices(self) -> dict[str, cmkernel.Choice]:
        both = {"all_gather_matmul": self._gather.choice, "matmul_reduce_scatter": self._scatter.choice}
        return {name: choice for name, choice in both.items() if choice is not None}

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, known after the first trace; both names if the halves differ."""
        return "+".join(dict.fromkeys(choice.implementation for choice in self._choices.values()))

    @property
    def reason(self) -> str:
        """Why it was chosen."""
        reasons = {name: choice.reason for name, choice in self._choices.items()}
        if len(set(reasons.values())) == 1:
            return next(iter(reasons.values()))
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    @property
    def config(self) -> dict[str, Any] | None:
        """Its config as plain data; of a layer the config of each half, by the function's name."""
        configs = {name: to_plain(choice.config) for name, choice in self._choices.items() if choice.config is not None}
        if len(self._choices) == 1:
            return next(iter(configs.values()), None)
        return dict(configs) or None


class JaxRing:
    """jax's own ring, which has the gather alone; its config is chosen when it is traced."""

    implementation = jax_ring.NAME
    reason = "named"

    def __init__(self) -> None:
        self._config: Any = None
        self.functions = Functions(self._gather, _no_function)

    @property
    def config(self) -> dict[str, Any]:
        """Its config as plain data."""
        return jax_ring.plain(self._config)

    def _gather(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        if (reason := jax_ring.unsupported_reason(axis_name=AXIS, dtype=lhs.dtype)) is not None:
            raise NotImplementedError(f"{jax_ring.NAME} can't run here: {reason}")
        (m_shard, k), n_shard = lhs.shape, rhs.shape[1]
        self._config = jax_ring.choose_config(m_shard=m_shard, k=k, n_shard=n_shard, num_sms=hardware.num_sms())
        return jax_ring.all_gather_matmul(lhs, rhs, axis_name=AXIS, config=self._config)


def _no_function(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    raise NotImplementedError(f"{lhs.shape=} and {rhs.shape=}: {jax_ring.NAME} has no such function")
