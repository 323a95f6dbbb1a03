#!/usr/bin/env python3
"""Checks manifests against the official Kubernetes OpenAPI schema, strictly: every field known, every value of its type.

  schema.py CACHE FILE...      FILE: JSON manifests; CACHE: a folder the schema is kept in; exit code 77: it cannot be had

The schema of 1.33 comes with Kubernetes' own JavaScript client (npm, @kubernetes/client-node, generated from the OpenAPI document), which
notes for every class its fields and their types. Newer than any cluster Debian can build, so it knows what an indexed Job may have.
"""
import base64, hashlib, io, json, os, re, sys, tarfile, urllib.request

PACKAGE = "https://registry.npmjs.org/@kubernetes/client-node/-/client-node-1.3.0.tgz"
SHA512 = "IE0yrIpOT97YS5fg2QpzmPzm8Wmcdf4ueWMn+FiJSI3jgTTQT1u+LUhoYpdfhdHAVxdrNsaBg2C0UXSnOgMoCQ=="
FOLDER = "package/dist/gen/models/"


def fetch(cache):
    path = os.path.join(cache, "models.json")
    if os.path.exists(path):
        return json.load(open(path))
    try:
        data = urllib.request.urlopen(PACKAGE, timeout=60).read()
    except OSError as error:
        print("skipped: cannot fetch %s: %s" % (PACKAGE, error))
        sys.exit(77)
    if base64.b64encode(hashlib.sha512(data).digest()).decode() != SHA512:
        sys.exit("%s is not what it was" % PACKAGE)
    models = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            if member.name.startswith(FOLDER) and member.name.endswith(".js"):
                found = re.search(r"(\w+)\.attributeTypeMap = (\[.*?\n\]);", tar.extractfile(member).read().decode(), re.S)
                if found:
                    models[found[1]] = {field["baseName"]: field["type"] for field in json.loads(found[2])}
    os.makedirs(cache, exist_ok=True)
    with open(path, "w") as f:
        json.dump(models, f)
    return models


def check(models, value, kind, where, problems):
    if kind.startswith("Array<"):
        if not isinstance(value, list):
            return problems.append("%s: got %s, expected a list" % (where, json.dumps(value)))
        for i, entry in enumerate(value):
            check(models, entry, kind[6:-1], "%s[%d]" % (where, i), problems)
    elif kind.startswith("{ [key: string]: "):
        if not isinstance(value, dict):
            return problems.append("%s: got %s, expected a map" % (where, json.dumps(value)))
        for key, entry in value.items():
            check(models, entry, kind[17:-3], where + "." + key, problems)
    elif kind in models:
        if not isinstance(value, dict):
            return problems.append("%s: got %s, expected a %s" % (where, json.dumps(value), kind))
        for key, entry in value.items():
            if key not in models[kind]:
                problems.append("%s: %s has no field %s" % (where, kind, key))
            else:
                check(models, entry, models[kind][key], where + "." + key, problems)
    else:
        types = {"string": str, "number": (int, float), "boolean": bool, "IntOrString": (int, str), "Date": str}
        if kind in types and (not isinstance(value, types[kind]) or (isinstance(value, bool) and kind != "boolean")):
            problems.append("%s: got %s, expected a %s" % (where, json.dumps(value), kind))


def main():
    models = fetch(sys.argv[1])
    problems = []
    for path in sys.argv[2:]:
        manifest = json.load(open(path))
        for job in manifest["items"] if manifest["kind"] == "List" else [manifest]:
            if (job.get("apiVersion"), job.get("kind")) != ("batch/v1", "Job"):
                problems.append("%s: not a batch/v1 Job" % path)
            check(models, job, "V1Job", os.path.basename(path), problems)
    print("\n".join(problems) or "%d manifests are as the schema has them (%d classes)" % (len(sys.argv) - 2, len(models)))
    return 1 if problems else 0


sys.exit(main())
