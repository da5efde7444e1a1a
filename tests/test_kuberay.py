"""The KubeRay manifest: its fields exist with their types, and fields that depend on each other agree.

The schema below is written by hand, for the levels that the manifest uses. KubeRay publishes its custom resource
definitions in its repository and Helm chart only: no package on PyPI has them, and tests fetch nothing.
"""

import re

import jsonschema
import pytest
import yaml
from hydra import compose, initialize_config_dir

from jobs.config import rules
from jobs.config import schema as settings
from jobs.config.problem import config_dir
from tests.paths import ROOT

DOCUMENTS = {
    document["kind"]: document for document in yaml.safe_load_all((ROOT / "scripts/kuberay_rayjob.yaml").open())
}
SPEC = DOCUMENTS["RayJob"]["spec"]
CLUSTER = SPEC["rayClusterSpec"]
PODS = [CLUSTER["headGroupSpec"]["template"], *(group["template"] for group in CLUSTER["workerGroupSpecs"])]


def closed(required=(), **properties):
    """Schema of an object with these fields and no others: Kubernetes silently drops a misspelt one."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def array(items):
    return {"type": "array", "items": items, "minItems": 1}


# The fields of Kubernetes' core/v1 that this manifest may use.
CONTAINER = closed(
    ["name", "image"],
    name=TEXT,
    image=TEXT,
    env=array(closed(["name"], name=TEXT, value=TEXT, valueFrom={"type": "object"})),
    ports=array(closed(["containerPort"], name={"type": "string", "maxLength": 15}, containerPort=NUMBER)),
    resources=closed(limits=TEXTS, requests=TEXTS),
    securityContext={"type": "object"},
    volumeMounts=array(closed(["name", "mountPath"], name=TEXT, mountPath=TEXT, readOnly=FLAG)),
)
VOLUME = closed(
    ["name"],
    name=TEXT,
    persistentVolumeClaim=closed(["claimName"], claimName=TEXT),
    emptyDir=closed(medium=TEXT, sizeLimit=TEXT),
    secret=closed(secretName=TEXT, optional=FLAG),
)
TOLERATION = closed(key=TEXT, operator={"enum": ["Exists", "Equal"]}, effect=TEXT)
POD = closed(
    ["spec"],
    metadata=closed(labels=TEXTS),
    spec=closed(
        ["containers"],
        containers=array(CONTAINER),
        volumes=array(VOLUME),
        tolerations=array(TOLERATION),
        securityContext=closed(fsGroup=NUMBER),
    ),
)
# KubeRay's ray.io/v1 at 1.5.1, from its API reference: every field of the levels used here.
RAY_CLUSTER = closed(
    ["headGroupSpec"],
    rayVersion=TEXT,
    authOptions=closed(mode={"enum": ["disabled", "token"]}),
    autoscalerOptions={"type": "object"},
    enableInTreeAutoscaling=FLAG,
    gcsFaultToleranceOptions={"type": "object"},
    headServiceAnnotations=TEXTS,
    managedBy=TEXT,
    suspend=FLAG,
    headGroupSpec=closed(
        ["template"],
        template=POD,
        rayStartParams=TEXTS,
        headService={"type": "object"},
        enableIngress=FLAG,
        serviceType=TEXT,
    ),
    workerGroupSpecs=array(
        closed(
            ["groupName", "template"],
            groupName=TEXT,
            replicas=NUMBER,
            minReplicas=NUMBER,
            maxReplicas=NUMBER,
            numOfHosts=NUMBER,
            idleTimeoutSeconds=NUMBER,
            rayStartParams=TEXTS,
            scaleStrategy={"type": "object"},
            suspend=FLAG,
            template=POD,
        )
    ),
)
RAY_JOB = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=closed(["name"], name={"type": "string", "maxLength": 47}),
    spec=closed(
        ["entrypoint", "rayClusterSpec"],
        activeDeadlineSeconds=NUMBER,
        backoffLimit=NUMBER,
        clusterSelector=TEXTS,
        deletionStrategy={"type": "object"},
        entrypoint=TEXT,
        entrypointNumCpus={"type": "number"},
        entrypointNumGpus={"type": "number"},
        entrypointResources=TEXT,
        jobId=TEXT,
        managedBy=TEXT,
        metadata=TEXTS,
        rayClusterSpec=RAY_CLUSTER,
        runtimeEnvYAML=TEXT,
        shutdownAfterJobFinishes=FLAG,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        submitterConfig={"type": "object"},
        submitterPodTemplate={"type": "object"},
        suspend=FLAG,
        ttlSecondsAfterFinished=NUMBER,
    ),
)


def test_the_fields_exist_and_have_their_types():
    jsonschema.validate(DOCUMENTS["RayJob"], RAY_JOB)
    assert set(DOCUMENTS) == {"RayJob", "PersistentVolumeClaim", "NetworkPolicy"}


@pytest.mark.parametrize(
    ("path", "value"),
    [(["spec", "entryPoint"], "python"), (["spec", "backoffLimit"], "0"), (["spec", "rayClusterSpec", "workers"], [])],
)
def test_the_schema_finds_mistakes(path, value):
    document = yaml.safe_load(yaml.safe_dump(DOCUMENTS["RayJob"]))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, RAY_JOB)


def test_the_entrypoint_is_a_job_with_a_valid_config():
    python, flag, job, *overrides = SPEC["entrypoint"].split()
    assert (python, flag, job) == ("python", "-m", "jobs.bench")
    settings.register()
    with initialize_config_dir(str(config_dir()), version_base=None):
        config = compose("config", overrides=overrides)
    assert rules.to_settings(config).cluster.mode is settings.ClusterMode.ray


def test_ray_is_the_locked_one():
    (locked,) = re.findall(r"^ray==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert CLUSTER["rayVersion"] == locked


def test_every_mounted_volume_exists():
    for pod in PODS:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        (container,) = pod["spec"]["containers"]
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        claims = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in volumes.values()
            if "persistentVolumeClaim" in volume
        ]
        assert set(claims) <= {DOCUMENTS["PersistentVolumeClaim"]["metadata"]["name"]}


def test_no_secret_is_where_others_can_read_it():
    assert CLUSTER["authOptions"]["mode"] == "token"
    assert "KEY" not in SPEC["runtimeEnvYAML"]
    assert set(yaml.safe_load(SPEC["runtimeEnvYAML"])["env_vars"]) == {"RAY_JOB_STOP_WAIT_TIME_S"}
    workers = [volume for pod in PODS[1:] for volume in pod["spec"]["volumes"] if "secret" in volume]
    assert workers == [], "the W&B key is the driver's alone"


def test_the_network_policy_covers_all_pods():
    policy = DOCUMENTS["NetworkPolicy"]["spec"]
    label = policy["podSelector"]["matchLabels"].items()
    assert all(label <= pod["metadata"]["labels"].items() for pod in PODS)
    inside, outside = policy["ingress"]
    assert inside == {"from": [{"podSelector": policy["podSelector"]}]}, "ranks and Ray use any port"
    assert {port["port"] for port in outside["ports"]} == {8265, 6379}


def test_ranks_have_gpus_and_the_driver_has_none():
    head, *workers = (pod["spec"]["containers"][0]["resources"]["limits"] for pod in PODS)
    assert "nvidia.com/gpu" not in head
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    assert all(int(limits["nvidia.com/gpu"]) > 0 for limits in workers)
