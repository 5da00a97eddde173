"""The files of ``examples/cluster``, as far as they can be checked without running them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from pyspark_ckpt.settings import KEYS

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
MANIFESTS = sorted((CLUSTER / "kubernetes").glob("*.yaml"))
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}


def model(value: Any, kind: str, path: str) -> Any:
    """Make an object of the client's model, which checks names, types and what is required."""
    listed = re.fullmatch(r"list\[(.*)\]", kind)
    if listed:
        assert isinstance(value, list), path
        return [model(each, listed[1], f"{path}[{n}]") for n, each in enumerate(value)]
    mapped = re.fullmatch(r"dict[\[(]str, (.*)[\])]", kind)
    if mapped:
        assert isinstance(value, dict), path
        return {key: model(each, mapped[1], f"{path}.{key}") for key, each in value.items()}
    if kind in PLAIN:
        assert isinstance(value, PLAIN[kind]), f"{path} is {value!r}, and no {kind}"
        return value
    of_kind = getattr(client, kind)
    names = {name: attribute for attribute, name in of_kind.attribute_map.items()}
    assert isinstance(value, dict), path
    assert set(value) <= set(names), f"{path} has unknown fields: {set(value) - set(names)}"
    fields = {
        names[name]: model(each, of_kind.openapi_types[names[name]], f"{path}.{name}")
        for name, each in value.items()
    }
    return of_kind(**fields)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_follows_the_schemas_of_kubernetes(manifest: Path) -> None:
    for document in yaml.safe_load_all(manifest.read_text()):
        # The client's models of RBAC subjects have the name of their group.
        made = model(document, f"V1{document['kind']}", document["kind"])
        assert made.api_version.rpartition("/")[2] == "v1"
        assert made.metadata.name


def test_the_check_finds_mistakes() -> None:
    good = {"kind": "Job", "metadata": {"name": "x"}, "spec": {"template": {"spec": {
        "containers": [{"name": "a"}]}}}}  # fmt: skip
    model(good, "V1Job", "Job")
    container = good["spec"]["template"]["spec"]["containers"][0]  # type: ignore[index]
    for wrong in ({"nmae": "a"}, {"image": "a"}, {"name": 1}):
        container.clear()
        container.update(wrong)
        with pytest.raises((AssertionError, ValueError)):
            model(good, "V1Job", "Job")


def test_names_that_refer_to_each_other_agree() -> None:
    found: dict[str, dict[str, Any]] = {}
    for manifest in MANIFESTS:
        for document in yaml.safe_load_all(manifest.read_text()):
            found.setdefault(document["kind"], {})[document["metadata"]["name"]] = document
    pod = found["Job"]["flights"]["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] in found["ServiceAccount"]
    (volume,) = pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] in found["PersistentVolumeClaim"]
    (service,) = found["Service"].values()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    arguments = pod["spec"]["containers"][0]["args"]
    conf = dict(each[len("--conf=") :].split("=", 1) for each in arguments if "--conf" in each)
    assert conf["spark.driver.host"] == service["metadata"]["name"]
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    assert ports == {conf["spark.driver.port"], conf["spark.driver.blockManager.port"]}
    assert {key for key in conf if key.startswith("spark.ckpt.")} <= set(KEYS)
    rules = found["Role"]["flights"]["rules"]
    of_maps = [rule["verbs"] for rule in rules if "configmaps" in rule["resources"]]
    assert {"get", "create", "update"} <= set(of_maps[0])


def test_files_that_compose_and_image_name_exist() -> None:
    compose = yaml.safe_load((CLUSTER / "docker-compose.yaml").read_text())
    assert set(compose["services"]) == {"master", "worker", "flights"}
    for service in compose["services"].values():
        build = service["build"]
        context = (CLUSTER / build["context"]).resolve()
        assert context == ROOT
        assert (context / build["dockerfile"]).is_file()
        assert set(service.get("depends_on", [])) <= set(compose["services"])
        for mount in service.get("volumes", []):
            assert mount.partition(":")[0] in compose["volumes"]
        for path in re.findall(r"/opt/pyspark_ckpt/(\S+)", service["command"]):
            assert (ROOT / path).is_file()
    copied = re.findall(r"^COPY (\S+)", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE)
    assert all((ROOT / path).exists() for path in copied)


def test_executors_get_what_the_library_requires() -> None:
    setup = (ROOT / "setup.cfg").read_text()
    needed = setup.partition("install_requires =")[2].partition("\n\n")[0]
    lines = {line.strip() for line in needed.splitlines()}
    wanted = {line for line in lines if line and not line.startswith(("#", "pyspark>"))}
    given = set((CLUSTER / "requirements.txt").read_text().splitlines())
    assert wanted <= given


@pytest.mark.parametrize("script", sorted(CLUSTER.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_one(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)
    text = script.read_text()
    assert text.startswith("#!/bin/sh\n")
    assert all((ROOT / path).exists() for path in re.findall(r"examples/\S+\.py", text))
