"""The manifests, by the operator's own schemas and code and by those of Kubernetes."""

import json
import logging
import warnings
from functools import cache
from importlib import metadata

import pytest
import yaml

from tests.cluster.manifests import CLUSTER, documents, parse
from tests.workflows.pages import GUIDE, blocks_of

FILES = sorted(path.name for path in (CLUSTER / "kubernetes").glob("*.yaml"))

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def operator():
    """Give the operator's code, whose dependencies warn when they are imported."""
    with warnings.catch_warnings(action="ignore"):
        from dask_kubernetes.operator.controller import controller
    yield controller
    # kopf turns the log of everybody to its own.
    logging.getLogger("kopf").handlers.clear()


@cache
def custom_resources():
    """Return the schemas of the operator's resources by kind, refusing fields they do not name."""
    definitions = (
        yaml.safe_load(path.locate().read_text())
        for path in metadata.files("dask-kubernetes")
        if path.parent.name == "crds"
    )
    return {
        definition["spec"]["names"]["kind"]: schema_of(definition) for definition in definitions
    }


def schema_of(definition):
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    for name in ("apiVersion", "kind", "metadata"):
        schema["properties"].setdefault(name, {"x-kubernetes-preserve-unknown-fields": True})
    return closed(schema)


def closed(schema):
    """Return a schema whose objects have the properties that it names and no others."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        inner["additionalProperties"] = False
    return inner


def validate(resource):
    import jsonschema
    import kubernetes_validate

    if schema := custom_resources().get(resource["kind"]):
        jsonschema.Draft7Validator(schema).validate(resource)
    else:
        newest = kubernetes_validate.latest_version()
        kubernetes_validate.validate(resource, newest, strict=True)


@pytest.mark.slow
def test_kubernetes__validates():
    found = [document for name in FILES for document in documents(f"kubernetes/{name}")]
    assert {"DaskCluster", "DaskJob", "CronJob"} <= {document["kind"] for document in found}
    for document in found:
        validate(document)


def test_kubernetes__guide_validates():
    found = [
        yaml.safe_load(block.text)
        for block in blocks_of(GUIDE / "task/kubernetes.md")
        if block.language == "yaml"
    ]
    job, (fit,) = found[0], documents("kubernetes/fit.yaml")
    validate(job)
    (ingest,) = job["spec"]["template"]["spec"]["containers"]
    runner = fit["spec"]["job"]["spec"]["containers"][0]
    assert ingest["image"] == runner["image"]
    assert ingest["envFrom"] == runner["envFrom"]
    assert {item["name"] for item in ingest["env"]} <= {item["name"] for item in runner["env"]}
    # Rows, run and predictions of the commands are the same places.
    options = [parse(each["args"]) for each in (ingest, runner, found[1])]
    assert options[0]["dataset"] == options[1]["dataset"]
    assert options[1]["run"] == options[2]["run"]


def test_kubernetes__job_has_the_cluster_that_stays_up():
    (cluster,), (job,) = documents("kubernetes/cluster.yaml"), documents("kubernetes/fit.yaml")
    renamed = json.dumps(cluster["spec"]).replace("nrbfn-scheduler", "nrbfn-fit-scheduler")
    renamed = renamed.replace('cluster-name": "nrbfn"', 'cluster-name": "nrbfn-fit"')
    assert job["spec"]["cluster"]["spec"] == json.loads(renamed)


@pytest.fixture(params=["cluster.yaml", "fit.yaml"])
def made(request, operator):
    """Return what the operator makes of a manifest."""
    (document,) = documents(f"kubernetes/{request.param}")
    name, spec = document["metadata"]["name"], document["spec"]
    cluster = spec if document["kind"] == "DaskCluster" else spec["cluster"]["spec"]
    scheduler, worker = cluster["scheduler"], cluster["worker"]
    group = f"{name}-default", "default", name, "0"
    made = {
        "scheduler": operator.build_scheduler_deployment_spec(name, scheduler["spec"], {}, {}),
        "service": operator.build_scheduler_service_spec(name, scheduler["service"], {}, {}),
        "worker": operator.build_worker_deployment_spec(*group, worker["spec"], {}, {}),
    }
    if "job" in spec:
        job = spec["job"]["spec"]
        made["job"] = operator.build_job_pod_spec(name, name, "default", job, {}, {})
    return made


def test_kubernetes__workers_and_job_find_the_scheduler(made):
    for resource in made.values():
        validate(json.loads(json.dumps(resource)))
    service, labels = made["service"], made["scheduler"]["spec"]["template"]["metadata"]
    assert service["spec"]["selector"].items() <= labels["labels"].items()
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    # The name by which the operator looks for the second.
    assert ports == {"tcp-comm": 8786, "http-dashboard": 8787}
    address = f"tls://{service['metadata']['name']}:8786"
    options = parse(container(made["worker"])["args"])
    assert address in (options["scheduler"] or "")
    assert (options["nthreads"], options["dashboard"]) == (1, False)
    assert parse(container(made["scheduler"])["args"])["port"] == "8786"
    if "job" in made:
        assert parse(container(made["job"])["args"])["scheduler"] == address


def test_kubernetes__secrets_are_in_secrets(made):
    for name in made.keys() - {"service"}:
        resource = made[name]
        pod = resource["spec"].get("template", resource)["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert [volume["secret"]["secretName"] for volume in pod["volumes"]] == ["nrbfn-tls"]
        environment = {item["name"]: item for item in container(resource)["env"]}
        assert environment["CERTIFICATES"]["value"] == "/certificates"
        assert not any("SECRET" in name or "KEY" in name for name in environment)


def container(resource):
    (only,) = resource["spec"].get("template", resource)["spec"]["containers"]
    return only


def test_kubernetes__nightly_starts_the_job():
    (job,) = documents("kubernetes/fit.yaml")
    cron, _, role, _ = documents("kubernetes/nightly.yaml")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (selector,) = (
        word.removeprefix("--selector=")
        for word in pod["initContainers"][0]["args"]
        if word.startswith("--selector=")
    )
    assert selector == "app={app}".format(**job["metadata"]["labels"])
    (rule,) = role["rules"]
    assert rule["apiGroups"] == [job["apiVersion"].split("/")[0]]
    assert {"create", "delete"} <= set(rule["verbs"])
