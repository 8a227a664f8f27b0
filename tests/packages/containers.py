# SPDX-License-Identifier: MIT
"""containers.py CONTAINERS CDI_SCHEMAS KUBERNETES_SCHEMA - see containers.sh."""
import json
import pathlib
import sys

import jsonschema
import yaml

passed = failed = 0


def check(name, problems):
    """One TAP line: a list of problems, empty if all is well."""
    global passed, failed
    ok = not problems
    passed, failed = passed + ok, failed + (not ok)
    print(f"{'ok' if ok else 'not ok'} {passed + failed} - {name}")
    for p in problems:
        print(f"# {p}")


def strict(schema):
    """The schema, refusing names that it does not know: Kubernetes' own does not."""
    if isinstance(schema, dict):
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
        for v in schema.values():
            strict(v)
    elif isinstance(schema, list):
        for v in schema:
            strict(v)
    return schema


def whole(schema, refs):
    """The schema with what its references name in their place. None refers to itself."""
    if isinstance(schema, list):
        return [whole(s, refs) for s in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return whole(refs(schema["$ref"]), refs)
    return {k: whole(v, refs) for k, v in schema.items()}


def problems(schema, document):
    found = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in found]


def check_cdi(folder, schemas):
    load = lambda name: json.loads((schemas / name).read_text())
    files = {"defs.json": load("defs.json"), "schema.json": load("schema.json")}

    def refs(ref):
        file, _, path = ref.partition("#")
        at = files[file or "defs.json"]
        for part in filter(None, path.split("/")):
            at = at[part]
        return at

    schema = strict(whole(files["schema.json"], refs))
    spec = json.loads((folder / "gdrdrv.json").read_text())
    check("gdrdrv.json: CDI's schema", problems(schema, spec))
    edits = {"deviceNodes": [{"path": "/dev/gdrdrv", "permissions": "rw"}]}
    check("gdrdrv.json: the node alone", [] if (spec["kind"], spec["devices"]) ==
          ("gdrapi/gdrdrv", [{"name": "all", "containerEdits": edits}]) else [str(spec)])


def check_pods(folder, api):
    schemas = json.loads(api.read_text())["components"]["schemas"]
    refs = lambda ref: schemas[ref.rsplit("/", 1)[1]]
    # A label selector's and an owner's schemas are long; none refers to itself.
    schema = strict(whole(schemas["io.k8s.api.core.v1.Pod"], refs))
    pods = {}
    for file in ["pod-rm.yaml", "pod-keep.yaml", "pod-gdrdrv.yaml"]:
        pods[file] = pod = yaml.safe_load((folder / file).read_text())
        check(f"{file}: Kubernetes' schema", problems(schema, pod) +
              ([] if (pod.get("apiVersion"), pod.get("kind")) == ("v1", "Pod") else ["no v1 Pod"]))
        spec = pod["spec"]
        env = {e["name"]: e["value"] for e in spec["containers"][0]["env"]}
        check(f"{file}: the driver capabilities compute and utility, no more",
              [] if env.get("NVIDIA_DRIVER_CAPABILITIES") == "compute,utility" else [str(env)])
        security = [box["securityContext"] for box in spec["containers"] + spec.get("initContainers", [])]
        check(f"{file}: no privilege, and nothing of the host", [] if spec["securityContext"]["runAsNonRoot"] is True
              and all(s == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}} for s in security)
              and not [key for key in spec if key.startswith(("host", "share"))]
              and all("emptyDir" in volume for volume in spec.get("volumes", [])) else [str(spec)])
    keep = pods["pod-keep.yaml"]["spec"]
    check("pod-keep.yaml: the server has a GPU, the keeper is a sidecar, and their user's number is not that of unknown users",
          [] if ["nvidia.com/gpu" in box["resources"]["limits"] for box in keep["containers"] + keep["initContainers"]] == [True, False]
          and [box["restartPolicy"] for box in keep["initContainers"]] == ["Always"]
          and keep["securityContext"]["runAsUser"] != 65534 else [str(keep)])
    check("pod-gdrdrv.yaml asks for the node", [] if env.get("NVIDIA_GDRCOPY") == "enabled" else [str(env)])


containers, cdi, kubernetes = map(pathlib.Path, sys.argv[1:])
check_cdi(containers, cdi)
check_pods(containers, kubernetes)
print(f"1..{passed + failed}")
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
