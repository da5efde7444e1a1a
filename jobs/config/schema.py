"""The schema of conf/: every option of a job with its type, its default and its meaning.

Hydra composes the YAML files into these dataclasses, so a typo or a wrong type is an error that names the option. Jobs
see plain objects only: nothing of Hydra reaches an actor.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from cmkernel.config import MatmulDimension


class ClusterMode(Enum):
    """Where the gang runs."""

    auto = "auto"
    local = "local"
    ray = "ray"


class World(Enum):
    """What is one ``jax.distributed`` world."""

    whole = "whole"
    per_island = "per_island"


class WandbMode(Enum):
    """What W&B does."""

    auto = "auto"
    online = "online"
    offline = "offline"
    disabled = "disabled"


class Columns(Enum):
    """Columns of the table on standard output."""

    default = "default"
    all = "all"


class Implementation(Enum):
    """What ``kernel.implementation`` may be; the names of ``cmkernel.all_gather_matmul``."""

    auto = "auto"
    mosaic_gpu = "mosaic_gpu"
    mosaic_gpu_simple = "mosaic_gpu_simple"
    ppermute = "ppermute"
    ppermute_two_level = "ppermute_two_level"
    xla = "xla"


class Fault(Enum):
    """A fault to plant in the results before they are checked, to see the check fail."""

    none = "none"
    wrong_element = "wrong_element"
    swapped_shards = "swapped_shards"


@dataclass
class LayerSettings:
    """One all-gather matmul of a model: a whole layer, whose ``n`` columns the ranks share."""

    name: str = MISSING
    k: int = MISSING
    """Contraction size."""
    n: int = MISSING
    """Columns of the whole weight; every rank holds ``n / num_ranks``."""
    m_shard: list[int] = field(default_factory=list)
    """Rows of lhs that each rank holds, a case for each."""


@dataclass
class ProblemSettings:
    """Which cases run: every combination of the lists below, or every layer.

    ``problem=auto`` names no sizes: ``article`` on GPUs, ``tiny`` on CPU ranks.
    """

    name: str = MISSING
    m_shard: Any = None
    """Rows of lhs on each rank: an integer or a list. With layers, replaces their ``m_shard``."""
    k: Any = None
    """Contraction size: an integer or a list."""
    n_shard: Any = None
    """Columns of rhs on each rank: an integer or a list."""
    dtype: Any = None
    """bfloat16, float16 or float32 (bf16, f16, f32), or a list of them; null: bfloat16."""
    layers: list[LayerSettings] = field(default_factory=list)
    """Layers of a model, instead of the combinations."""


@dataclass
class KernelSettings:
    """Which implementation is measured, and its config (null: chosen from the shape). See cmkernel.config.

    ``grid_minor_dim`` is an option of ``mosaic_gpu_simple``, those from ``num_chunks`` on are of ``mosaic_gpu``;
    ``ppermute`` has ``num_chunks`` alone.
    """

    implementation: Implementation = Implementation.auto
    table: str | None = None
    """File of tuned configs, as ``jobs.tune`` writes it, in the place of the table that ships with cmkernel."""
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


@dataclass
class ClusterSettings:
    """Where the ranks run and how long the driver waits for them."""

    mode: ClusterMode = ClusterMode.auto
    """auto: the cluster of RAY_ADDRESS where that is set, else a local Ray."""
    address: str | None = None
    """host:port of a cluster; null: RAY_ADDRESS."""
    world: World = World.whole
    """whole: all ranks are one gang. per_island: a gang for each NVLink domain (on CPUs: each host), all at once on the
    same cases; each row has its island, and slow islands and ranks end the job with exit code 1."""
    num_ranks: int | None = None
    """null: every GPU of the cluster, or 4 CPU ranks where there is none. With per_island: the ranks of each island; a
    domain with room for several is several islands; null: one island a domain, of all its GPUs (CPUs, 4 at most)."""
    outlier_z: float = 3.5
    """An island or a rank whose robust z-score exceeds this is an outlier; only with per_island."""
    gpus_per_host: int | None = None
    """GPUs taken on each host; null: all of a host, as the ranks need."""
    connect_timeout_s: float = 8.0
    """Limit for reaching the cluster's address."""
    placement_timeout_s: float = 60.0
    """Limit for getting the resources."""
    setup_timeout_s: float = 180.0
    """Limit for starting the actors, and for jax.distributed to connect them."""
    step_timeout_s: float = 600.0
    """Limit for one step of a case (inputs, one check, one burst of timing), compilation included."""
    stall_timeout_s: float | None = 300.0
    """A step in which no rank finishes a call or a compilation for this long hangs: the gang is killed.
    While XLA compiles, only ``step_timeout_s`` counts. null: no such limit."""
    max_restarts: int = 2
    """How often a fresh gang takes over from one that was lost: a rank or a node died, or it hangs. 0: never."""
    reuse_gang: bool = True
    """Points of a multirun with the same ``cluster`` settings share a gang. false: each starts its own, where how far
    gangs differ is part of the question. With per_island each point starts its own in any case."""
    heartbeat_timeout_s: int = 10
    """The driver and jax.distributed give a rank up that has been silent for this time: frozen, or cut off."""
    link_gbytes_per_s: float | None = None
    """GB/s from a rank to another one of its host, in one direction; null: what ``cmkernel.cost`` knows of the device,
    else 10. By this and the next two ``auto`` chooses between the flat and the two-level ring."""
    nic_gbytes_per_s: float | None = None
    """GB/s of one network card, in one direction; null: 50 with GPUs that are known, else 1.25."""
    nics_per_host: int | None = None
    """Network cards that the ranks of a host share; null: 8 with GPUs that are known, else 1."""
    gpu_memory_fraction: float = 0.1
    """Share of GPU memory that XLA's arena takes; each executable with symmetric memory maps the whole arena."""


@dataclass
class TimingSettings:
    """How much is measured; README.md defines the times."""

    warmup: int = 3
    """Calls of each implementation before anything is timed."""
    bursts: int = 6
    """Rounds in which the implementations take turns."""
    iterations: int = 60
    """Timed calls of each implementation over all bursts (``call_us``)."""
    chain_length: int = 16
    """Dependent calls inside one program (``in_graph_us``)."""
    chains: int = 12
    """Timed samples of that program over all bursts."""
    chain_repeats: int = 4
    """Back-to-back runs of the program in a sample: the dispatch of all but the first hides behind the run before."""
    profiled_calls: int = 20
    """Calls under the profiler (``kernel_us``, ``device_us``); GPUs only."""
    timeline: bool = True
    """Whether ``mosaic_gpu`` also writes down when its CTAs multiplied, waited and sent, for a picture; takes another
    two seconds of compilation a case."""
    soak_minutes: float | None = None
    """After the measurement the cases are repeated for so long, with ``kernel.implementation`` alone: fresh data and a
    check in every iteration, times and memory recorded in soak.jsonl. May be a fraction; null: no soak."""
    baselines: list[str] = field(default_factory=lambda: ["xla", "local"])
    """What is measured beside ``kernel.implementation``: any of mosaic_gpu, mosaic_gpu_simple, ppermute,
    ppermute_two_level; xla and xla_cublas, all-gather then dot, as XLA compiles it and by cuBLAS (GPUs only); local and
    local_cublas, the multiply alone in both ways; jax_ring (jax's own Pallas ring), torch_fused (PyTorch's
    ``fused_all_gather_matmul``, where torch is installed).
    One that can't run on a case has a row with the reason instead of times."""


@dataclass
class CheckSettings:
    """The check that every implementation passes before it is timed."""

    calls: int = 3
    """Back-to-back calls with fresh normal data; one more call has integer data and must match exactly."""
    fault: Fault = Fault.none
    """Plants a fault in the results of ``kernel.implementation`` before they are checked: the job must exit 1."""
    fault_after: int | None = None
    """Plants it in the soak instead, after so many iterations of a case; null: in the check before the times."""


@dataclass
class WandbSettings:
    """The W&B run, owned by the driver."""

    mode: WandbMode = WandbMode.auto
    """auto: online where a key is configured, else offline."""
    project: str = "cmkernel"
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    api_key_file: str | None = None
    """File on the driver's node that holds the key; null: netrc or the driver's environment."""
    init_timeout_s: float = 20.0
    finish_timeout_s: float = 30.0


@dataclass
class TuningSettings:
    """What ``jobs.tune`` tries; ``cmkernel.candidates`` has the order."""

    table: str | None = None
    """File that gets the winners; its other entries stay. null: ``tuned.jsonl`` in the run directory."""
    max_candidates: int = 11
    """Configs of a case that are measured, the heuristic's among them."""
    max_modelled: float = 1.15
    """Candidates that are modelled to take longer than so many times the heuristic are left out."""
    round_size: int = 6
    """Candidates that take turns, the heuristic's in each round: each holds an executable with a symmetric window."""
    bursts: int = 5
    """Turns of each candidate of a round."""
    chains: int = 2
    """Samples of ``in_graph_us`` in a burst."""
    early_stop: float = 1.15
    """A candidate slower than so many times the fastest of its round gets no further turns."""
    min_gain: float = 0.01
    """By how much the winner must be faster than the heuristic's config, or that stays."""


@dataclass
class ResultsSettings:
    """What a job makes of its rows beside the journal."""

    report: bool = True
    """Pictures and report.html when the job ends; ``python -m jobs.report RUN_DIR`` makes them later."""
    columns: Columns = Columns.default
    """default: those that fit 120 columns, or the terminal where it is narrower. all: every one, about 190 wide."""


@dataclass
class Settings:
    """A whole job."""

    problem: ProblemSettings = field(default_factory=ProblemSettings)
    kernel: KernelSettings = field(default_factory=KernelSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    timing: TimingSettings = field(default_factory=TimingSettings)
    check: CheckSettings = field(default_factory=CheckSettings)
    wandb: WandbSettings = field(default_factory=WandbSettings)
    results: ResultsSettings = field(default_factory=ResultsSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    run_dir: str | None = None
    """Where the results go; null: ~/cmkernel_runs/<time or submission id>."""
    resume: str | None = None
    """Run directory of a stopped job to continue: its config holds, its finished cases are skipped."""


def register() -> None:
    """Make the schema known to Hydra, under the name that conf/config.yaml lists first."""
    ConfigStore.instance().store(name="schema", node=Settings)


def kernel_config(kernel: KernelSettings) -> dict[str, Any]:
    """The options of the config that the user set, as keyword arguments of the implementation's config."""
    names = [field.name for field in dataclasses.fields(kernel) if field.name not in ("implementation", "table")]
    return {name: getattr(kernel, name) for name in names if getattr(kernel, name) is not None}


def kernel_config_name(implementation: Implementation) -> str:
    """Name of the implementation whose config ``kernel_config`` is for."""
    return "mosaic_gpu" if implementation is Implementation.auto else implementation.value


# The multiply without communication; the faster one of those measured is the bound of all implementations.
LOCALS = ("local", "local_cublas")
# All-gather, then the multiply; the faster one of those measured is what speedups are over.
GATHERS = ("xla", "xla_cublas")
_RINGS = ("mosaic_gpu", "mosaic_gpu_simple", "ppermute", "ppermute_two_level")
BASELINES = (*_RINGS, *GATHERS, *LOCALS, "jax_ring", "torch_fused")
