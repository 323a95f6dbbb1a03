#!/usr/bin/env python3
"""The kubelet of the bed's hollow nodes: runs the containers of pods on this machine and tells the API server how they ended.

  kubelet.py BED        until SIGTERM; needs $BED/kubeconfig's server and token (see up.sh)

A pod whose image begins with `registry.invalid/` cannot pull it. A pod that is deleted gets SIGTERM, and SIGKILL when its grace is over.
"""
import json, os, re, signal, ssl, subprocess, sys, time, urllib.error, urllib.request

BED = sys.argv[1]
SERVER = re.search(r'server: "([^"]+)"', open(BED + "/kubeconfig").read())[1]
CONTEXT = ssl.create_default_context(cafile=BED + "/pki/ca.crt")
TOKEN = open(BED + "/pki/tokens.csv").read().split(",")[0]
stopping = False


def call(method, path, body=None):
    request = urllib.request.Request(SERVER + path, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("Authorization", "Bearer " + TOKEN)
    if body is not None:
        request.add_header("Content-Type", "application/merge-patch+json")
    try:
        with urllib.request.urlopen(request, context=CONTEXT, timeout=10) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):  # gone meanwhile, or busy: the next round sees
        return None


def path_of(pod):
    return "/api/v1/namespaces/%s/pods/%s" % (pod["metadata"]["namespace"], pod["metadata"]["name"])


def container_status(pod, state):
    container = pod["spec"]["containers"][0]
    return {"name": container["name"], "image": container["image"], "imageID": "", "ready": False, "restartCount": 0, "state": state}


def report(pod, phase, state):
    call("PATCH", path_of(pod) + "/status", {"status": {"phase": phase, "containerStatuses": [container_status(pod, state)]}})


def start(pod):
    container = pod["spec"]["containers"][0]
    env = {"PATH": "/usr/bin:/bin", "HOME": "/", "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    for entry in container.get("env", []):
        field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        env[entry["name"]] = pod["metadata"]["name"] if field == "metadata.name" else entry.get("value", "")
    log = open(os.path.join(BED, "log", pod["metadata"]["name"] + ".log"), "ab")
    return subprocess.Popen(container["command"] + container.get("args", []), env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=log,
                            stderr=log, start_new_session=True)


def signal_group(child, number):
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        pass


def main():
    global stopping
    signal.signal(signal.SIGTERM, lambda *_: globals().update(stopping=True))
    running = {}  # uid: (pod, process, when it was told to end)
    while not stopping:
        pods = call("GET", "/api/v1/pods?labelSelector=app.kubernetes.io%2Fmanaged-by%3Dtutti")
        seen = {pod["metadata"]["uid"]: pod for pod in (pods or {}).get("items", [])}
        for uid, pod in seen.items():
            phase = pod.get("status", {}).get("phase")
            bound = pod["spec"].get("nodeName")
            if uid not in running and bound and phase in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]:
                if pod["spec"]["containers"][0]["image"].startswith("registry.invalid/"):
                    report(pod, "Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"%s\"" %
                                                        pod["spec"]["containers"][0]["image"]}})
                else:
                    running[uid] = [pod, start(pod), None]
        for uid, entry in list(running.items()):
            pod, child, told = entry
            if child.poll() is not None:
                signal_group(child, signal.SIGKILL)  # a container's end is the end of all it started
                code = 128 - child.returncode if child.returncode < 0 else child.returncode
                report(pod, "Succeeded" if code == 0 else "Failed", {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}})
                del running[uid]
                continue
            gone = pods is not None and (uid not in seen or "deletionTimestamp" in seen[uid]["metadata"])
            if gone and told is None:
                entry[2] = time.time()
                signal_group(child, signal.SIGTERM)
            if told is not None and time.time() - told > pod["spec"].get("terminationGracePeriodSeconds", 30):
                signal_group(child, signal.SIGKILL)
        time.sleep(0.2)
    for _, child, _ in running.values():
        signal_group(child, signal.SIGKILL)


main()
