"""Schema of conf/: every option of a job with its type, default, meaning and rule.

Hydra composes the YAML files into these dataclasses, so a typo or a wrong type is an error that names the option.
Actors get plain objects, never Hydra's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from cmkernel.config import MatmulDimension
from jobs.config.choices import ClusterMode, Columns, Fault, Implementation, WandbMode, World
from jobs.config.options import option
from jobs.records.op import Op


@dataclass
class LayerSettings:
    """One layer of a model, by the size ``[k, n]`` of its whole weight, which is split over the ranks."""

    name: str = MISSING
    k: int = MISSING
    n: int = MISSING
    m_shard: list[int] = field(default_factory=list)
    """Rows of each rank's shard: one case for each value."""
    op: Op = Op.all_gather_matmul
    """all_gather_matmul: every rank holds ``n / num_ranks`` columns. matmul_reduce_scatter: ``k / num_ranks`` rows.
    mlp: n is the width of gate, up and down, and every rank holds ``n / num_ranks``; mlp_grad takes the same layers."""


@dataclass
class ProblemSettings:
    """Cases to run: every combination of the lists below, or every layer.

    ``problem=auto`` takes the sizes of ``article`` on GPUs, of ``tiny`` on CPU ranks.
    """

    name: str = MISSING
    op: Any = None
    """all_gather_matmul, matmul_reduce_scatter, mlp (a Llama MLP, forward) or mlp_grad (forward and backward), or a
    list of them; null: all_gather_matmul. With layers, takes those of the operation."""
    m_shard: Any = None
    """Rows of each rank's shard, of lhs or, with matmul_reduce_scatter, of the result: an integer or a list. With
    layers, replaces their ``m_shard``."""
    k: Any = None
    """Rows of rhs on each rank, the size that is summed over: an integer or a list. With mlp, the model's width."""
    n_shard: Any = None
    """Columns of rhs on each rank: an integer or a list. With mlp, of gate and of up."""
    dtype: Any = None
    """bfloat16, float16 or float32 (bf16, f16, f32), or a list of them; null: bfloat16."""
    partial_dtype: Any = None
    """Type of the partial sums that a reduce-scatter sends, float32 or that of ``dtype``, or a list of them; null: that
    of ``dtype``."""
    layers: list[LayerSettings] = field(default_factory=list)
    """Layers of a model, instead of the combinations."""


@dataclass
class KernelSettings:
    """Implementation to measure, and its config (null: chosen from the shape). See ``cmkernel.config``.

    ``grid_minor_dim`` is for ``mosaic_gpu_simple``; the options from ``num_chunks`` on are for ``mosaic_gpu``.
    ``ppermute`` has ``num_chunks`` alone.
    """

    implementation: Implementation = Implementation.auto
    table: str | None = None
    """File of tuned configs, written by ``jobs.tune``; null: the table that ships with cmkernel."""
    tile_m: int | None = None
    tile_n: int | None = None
    tile_k: int | None = None
    max_concurrent_steps: int | None = None
    epi_tile_m: int | None = None
    epi_tile_n: int | None = None
    grid_minor_dim: MatmulDimension | None = None
    grid_tile_width: int | None = None
    wg_dimension: MatmulDimension | None = None
    num_chunks: int | None = None
    num_comm_ctas: int | None = None
    num_in_tile_chunks: int | None = None
    split_last_wave: bool | None = None
    wait_ahead: bool | None = None

    @property
    def config_name(self) -> str:
        """Implementation that the options are for; with ``auto``: ``mosaic_gpu``."""
        return "mosaic_gpu" if self.implementation is Implementation.auto else self.implementation.value

    @property
    def config(self) -> dict[str, Any]:
        """Options that the user set, as keyword arguments of the implementation's config."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("implementation", "table")]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass
class ClusterSettings:
    """Placement of the ranks, and limits on waiting for them."""

    mode: ClusterMode = option(ClusterMode.auto, may_change=True)
    """auto: the cluster of RAY_ADDRESS if that is set, else a local Ray."""
    address: str | None = option(None, may_change=True)
    """host:port of a cluster; null: RAY_ADDRESS."""
    world: World = World.whole
    """whole: all ranks are one gang. per_island: a gang for each NVLink domain (on CPUs: each host), all at once on the
    same cases; rows name their island, and a slow island or rank ends the job with exit code 1."""
    num_ranks: int | None = option(None, "> 0")
    """null: every GPU of the cluster, or 4 CPU ranks without GPUs. With per_island: the ranks of each island; a large
    domain holds several islands; null: one island a domain, of all its GPUs (or of at most 4 CPU ranks)."""
    outlier_z: float = option(3.5, "> 0")
    """An island, a rank or an iteration of a soak with a robust z-score above this is an outlier."""
    gpus_per_host: int | None = option(None, "> 0")
    """GPUs to take on each host; null: as many as the ranks need."""
    connect_timeout_s: float = option(8.0, "> 0", may_change=True)
    """Limit for reaching the cluster's address."""
    placement_timeout_s: float = option(60.0, "> 0", may_change=True)
    """Limit for getting the resources."""
    setup_timeout_s: float = option(180.0, "> 0", may_change=True)
    """Limit for starting the actors, and for jax.distributed to connect them."""
    step_timeout_s: float = option(600.0, "> 0", may_change=True)
    """Limit for one step of a case (inputs, one check, one burst of timing), compilation included."""
    stall_timeout_s: float | None = option(300.0, "> 0", may_change=True)
    """A step hangs and its gang is killed if no rank finishes a call or a compilation for this long; while XLA
    compiles, only ``step_timeout_s`` counts. null: no such limit."""
    max_restarts: int = option(2, ">= 0", may_change=True)
    """Number of lost gangs (a rank or node died, or a step hangs) that a fresh gang replaces."""
    reuse_gang: bool = True
    """true: points of a multirun with the same ``cluster`` settings share a gang. false: each starts its own, to see
    how gangs differ. With per_island each point always starts its own."""
    heartbeat_timeout_s: int = option(10, "> 0", may_change=True)
    """The driver and jax.distributed give up a rank that is silent for this long, because it is frozen or cut off."""
    link_gbytes_per_s: float | None = option(None, "> 0")
    """GB/s between two ranks of a host, in one direction; null: the rate that ``cmkernel.cost`` has, else 10. By this
    and the next two options ``auto`` chooses between the flat and the two-level ring."""
    nic_gbytes_per_s: float | None = option(None, "> 0")
    """GB/s of one network card, in one direction; null: 50 with known GPUs, else 1.25."""
    nics_per_host: int | None = option(None, "> 0")
    """Network cards that the ranks of a host share; null: 8 with known GPUs, else 1."""
    gpu_memory_fraction: float = option(0.1, "(0, 1]")
    """Fraction of GPU memory that XLA's arena takes; each executable with symmetric memory maps the whole arena."""


@dataclass
class TimingSettings:
    """Amount of measurement; docs/measuring.md defines the times."""

    warmup: int = option(3, ">= 1", why="the first call compiles")
    """Untimed calls of each implementation before the timed ones; the first one compiles."""
    bursts: int = option(6, "> 0")
    """Rounds in which the implementations take turns."""
    iterations: int = option(60, "> 0")
    """Timed calls of each implementation over all bursts (``call_us``)."""
    chain_length: int = option(16, "> 0")
    """Dependent calls inside one program (``in_graph_us``)."""
    chains: int = option(12, "> 0")
    """Timed samples of that program over all bursts."""
    chain_repeats: int = option(4, "> 0")
    """Back-to-back runs of the program in a sample; only the first run's dispatch isn't hidden by the run before it."""
    profiled_calls: int = option(20, "> 0")
    """Calls under the profiler (``kernel_us``, ``device_us``); GPUs only."""
    timeline: bool = True
    """Record when the CTAs of ``mosaic_gpu`` multiply, wait and send, for a picture; adds 2 s of compilation a case."""
    soak_minutes: float | None = option(None, "> 0")
    """Repeat the cases for this long after the measurement, with ``kernel.implementation`` alone: fresh data and a
    check in every iteration; soak.jsonl records times and memory. May be a fraction; null: no soak."""
    baselines: list[str] = field(default_factory=lambda: ["xla", "local"])
    """Implementations to measure beside ``kernel.implementation``: any of mosaic_gpu, mosaic_gpu_simple, ppermute,
    ppermute_two_level; xla and xla_cublas, all-gather then dot, as XLA compiles it and by cuBLAS (GPUs only); local and
    local_cublas, the multiply alone in both ways; jax_ring, jax's own Pallas ring; torch_fused, PyTorch's
    ``fused_all_gather_matmul``. One that can't run on a case has a row with the reason instead of times."""


@dataclass
class CheckSettings:
    """Check that every implementation must pass before it is timed."""

    calls: int = option(3, "> 0")
    """Back-to-back calls with fresh normally distributed data; one more call, with integer data, must match exactly."""
    fault: Fault = Fault.none
    """Fault to plant in the results of ``kernel.implementation`` before they are checked: the job must exit with 1."""
    fault_after: int | None = option(None, ">= 0")
    """Plant the fault in the soak, after this many iterations of a case; null: in the check before the timing."""


@dataclass
class WandbSettings:
    """W&B run of the job, owned by the driver."""

    mode: WandbMode = option(WandbMode.auto, may_change=True)
    """auto: WANDB_MODE, else online if a key is configured, else offline."""
    project: str | None = None
    """null: WANDB_PROJECT, else cmkernel."""
    entity: str | None = None
    """User or team; null: WANDB_ENTITY, else the key's own."""
    name: str | None = None
    """null: WANDB_NAME, else the name of the run directory."""
    group: str | None = None
    """null: WANDB_RUN_GROUP, else the submission or the multirun."""
    tags: list[str] | None = None
    """Tags beside the job's own; null: WANDB_TAGS, separated by commas."""
    api_key_file: str | None = option(None, may_change=True)
    """File with the key on the driver's node; null: netrc or the driver's environment."""
    init_timeout_s: float = option(20.0, "> 0", may_change=True)
    finish_timeout_s: float = option(30.0, "> 0", may_change=True)


@dataclass
class TuningSettings:
    """Candidates of ``jobs.tune``; ``cmkernel.candidates`` defines their order."""

    table: str | None = None
    """File that gets the winners; its other entries stay. null: ``tuned.jsonl`` in the run directory."""
    max_candidates: int = option(11, "> 0")
    """Configs to measure on a case, the heuristic's included."""
    max_modelled: float = option(1.15, ">= 1", why="it is a multiple of the heuristic's modelled time")
    """Leave out candidates whose modelled time is more than this multiple of the heuristic's."""
    round_size: int = option(6, ">= 2", why="the heuristic's config and another one")
    """Candidates of a round, the heuristic's included; each holds an executable with a symmetric window."""
    bursts: int = option(5, "> 0")
    """Turns of each candidate of a round."""
    chains: int = option(2, "> 0")
    """Samples of ``in_graph_us`` in a burst."""
    early_stop: float = option(1.15, ">= 1", why="it is a multiple of the fastest time")
    """A candidate slower than this multiple of the fastest of its round drops out."""
    min_gain: float = option(0.01, "[0, 1)")
    """Fraction of the heuristic's time that a candidate must save to replace it."""


@dataclass
class HealthSettings:
    """Floors for accepting a cluster: what is slower fails, even if everything is equally slow."""

    min_tflops: float | None = option(None, "> 0", may_change=True)
    """TFLOP/s of each rank in the multiply alone (baselines local, local_cublas). null: 0.45 of the datasheet's peak,
    on GPUs that ``cmkernel.cost`` knows and cases of at least 5e10 operations; no floor elsewhere."""
    min_link_gbytes_per_s: float | None = option(None, "> 0", may_change=True)
    """GB/s between two GPUs of a host, each way, both ways at once; jobs.doctor measures it. null: 0.4 of the
    datasheet's rate; no floor for other GPUs."""
    min_nic_gbytes_per_s: float | None = option(None, "> 0", may_change=True)
    """GB/s between GPUs of two hosts, in the same way. null: no floor."""
    min_tcp_gbytes_per_s: float | None = option(None, "> 0", may_change=True)
    """GB/s of a TCP connection between two hosts; jobs.doctor measures it. null: no floor."""


@dataclass
class ResultsSettings:
    """Output of a job beside the journal."""

    junit: str | None = option(None, may_change=True)
    """File that gets checks, findings and the end of the job as JUnit XML, for CI systems; each point of a multirun
    adds its number to the name. null: none."""

    report: bool = option(True, may_change=True)
    """Make pictures and report.html when the job ends; ``python -m jobs.report RUN_DIR`` makes them later."""
    columns: Columns = option(Columns.default, may_change=True)
    """default: the columns that fit 120 characters or a narrower terminal. all: every column, about 190 characters."""


@dataclass
class Settings:
    """Settings of a whole job."""

    problem: ProblemSettings = field(default_factory=ProblemSettings)
    kernel: KernelSettings = field(default_factory=KernelSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    timing: TimingSettings = field(default_factory=TimingSettings)
    check: CheckSettings = field(default_factory=CheckSettings)
    wandb: WandbSettings = field(default_factory=WandbSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    results: ResultsSettings = field(default_factory=ResultsSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    run_dir: str | None = None
    """Folder of the results; null: ~/cmkernel_runs/<time or submission id>."""
    resume: str | None = option(None, may_change=True)
    """Run directory of a stopped job to continue, with its config and without its finished cases."""


def register() -> None:
    """Register the schema with Hydra, under the name that conf/config.yaml lists first."""
    ConfigStore.instance().store(name="schema", node=Settings)
