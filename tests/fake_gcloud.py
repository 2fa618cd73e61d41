"""A stand-in for `gcloud` on PATH: a cloud that is a directory, FAKE_CLOUD.

It knows the subcommands and flags that tpu_scripts/ may use (those of the Google Cloud SDK's
reference, GA surface) and refuses others. A worker is a directory worker-N in which the command of
`ssh` really runs; `scp` copies. cloud.json holds what exists; plan.json what is to go wrong (see
`Rule`); calls.jsonl gets one line per call.
"""

# Nothing that takes long to import: the tests start it hundreds of times.
import json
import os
import signal
import sys
import time

COMMON = {"--project", "--zone", "--quiet", "--format"}
CREATE = {"--spot", "--accelerator-type", "--network"}
FLAGS = {
    "tpu-vm list": COMMON,
    "tpu-vm create": COMMON | CREATE | {"--version"},
    "tpu-vm delete": COMMON,
    "tpu-vm ssh": COMMON | {"--worker", "--command", "--ssh-flag"},
    "tpu-vm scp": COMMON | {"--worker", "--recurse", "--scp-flag"},
    "queued-resources list": COMMON,
    "queued-resources create": COMMON
    | CREATE
    | {"--node-id", "--runtime-version", "--valid-until-duration"},
    "queued-resources delete": COMMON | {"--force"},
}


class Rule:
    """What goes wrong in a call whose words contain `on`.

    Args:
        on: Part of the command line.
        skip: So many such calls are as usual first,
        times: so many go wrong,
        rc: and end with this exit code, if it is not 0.
        worker: Only on that worker; the others do their work.
        preempt: The TPU is taken away before the call does anything.
        half: scp copies the first half of each file.
        after: Not before this file exists.
        ignored: Nothing happens, though the exit code is 0.
    """

    def __init__(
        self,
        on,
        skip=0,
        times=1,
        rc=0,
        worker=None,
        preempt=False,
        half=False,
        after="/",
        ignored=False,
    ):
        self.ignored = ignored
        self.on, self.skip, self.times, self.rc = on, skip, times, rc
        self.worker, self.preempt, self.half, self.after = worker, preempt, half, after


class Cloud:
    """What exists, kept in a directory between calls."""

    def __init__(self, place):
        self.place = place
        with open(f"{place}/cloud.json") as file:
            self.data = json.load(file)

    def save(self):
        with open(f"{self.place}/cloud.json", "w") as file:
            json.dump(self.data, file)

    def workers(self, which="all"):
        count = self.data["workers"]
        return range(count) if which == "all" else [int(which)]

    def home(self, worker):
        return f"{self.place}/worker-{worker}"

    def add_node(self, name):
        self.data["node"] = {"name": name, "states": list(self.data["node_states"])}
        for worker in self.workers():
            os.mkdir(self.home(worker))

    def remove_node(self):
        for worker in self.workers():
            end_processes(self.home(worker))
            os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", self.home(worker))

    def preempt(self):
        self.remove_node()
        self.data["node"]["states"] = ["PREEMPTED"]
        if self.data["request"]:
            self.data["request"]["states"] = ["SUSPENDING", "SUSPENDING", "SUSPENDED"]


def end_processes(home):
    """Ends what runs in the background on a worker."""
    try:
        with open(f"{home}/lookahead_jax_run/state/pid") as file:
            os.killpg(int(file.read()), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        pass


def stop(message, code=1):
    print(f"ERROR: {message}", file=sys.stderr)
    sys.exit(code)


def next_state(thing):
    """The states come one per look; the last one stays."""
    return thing["states"].pop(0) if len(thing["states"]) > 1 else thing["states"][0]


def parse(argv):
    if argv[:2] != ["compute", "tpus"] or f"{argv[2]} {argv[3]}" not in FLAGS:
        stop(f"Invalid choice: {argv[:4]}", 2)
    command = f"{argv[2]} {argv[3]}"
    options, words = {}, []
    for word in argv[4:]:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            if flag not in FLAGS[command]:
                stop(f"unrecognized arguments: {flag}", 2)
            options[flag] = value
        else:
            words.append(word)
    if not options.get("--project") or not options.get("--zone"):
        stop("no project or no zone", 2)
    return command, words, options


def list_nodes(cloud, words, options):
    node = cloud.data["node"]
    print("another,READY,4")
    if node:
        print(f"{node['name']},{next_state(node)},{cloud.data['workers']}")


def list_requests(cloud, words, options):
    request = cloud.data["request"]
    if request:
        state = next_state(request)
        if state == "ACTIVE" and not cloud.data["node"]:
            cloud.add_node(request["name"])
        if state == "SUSPENDED":
            cloud.data["node"] = None
        print(f"{request['name']},{state}")


def create_node(cloud, words, options):
    if cloud.data["node"]:
        stop("ALREADY_EXISTS")
    cloud.add_node(words[0])


def create_request(cloud, words, options):
    if cloud.data["request"]:
        stop("ALREADY_EXISTS")
    cloud.data["request"] = {"name": words[0], "states": list(cloud.data["request_states"])}


def delete_node(cloud, words, options):
    if not cloud.data["node"]:
        stop("NOT_FOUND")
    cloud.remove_node()
    cloud.data["node"] = None


def delete_request(cloud, words, options):
    if not cloud.data["request"]:
        stop("NOT_FOUND")
    if cloud.data["request"]["states"][0] == "SUSPENDING":
        stop("FAILED_PRECONDITION: is SUSPENDING")
    if cloud.data["node"]:
        delete_node(cloud, words, options)
    cloud.data["request"] = None


def reach(cloud, name):
    node = cloud.data["node"]
    if not node or node["name"] != name:
        stop("NOT_FOUND")
    if node["states"][0] != "READY":
        stop(f'This TPU has terminal state "{node["states"][0]}", so it cannot be used anymore.')


def ssh(cloud, words, options, rule):
    reach(cloud, words[0])
    codes = []
    for worker in cloud.workers(options["--worker"]):
        if rule and rule.worker == worker:
            print(f"##### Command execution on worker {worker} failed", file=sys.stderr)
            codes.append(rule.rc)
            continue
        home = cloud.home(worker)
        if options["--command"].endswith("status; else echo lookahead_jax_run - unset; fi"):
            settle(cloud, home)
        environment = {"HOME": home, "PATH": cloud.data["path"], "WORKER": str(worker)}
        os.chdir(home)
        command = ["bash", "-c", options["--command"]]
        codes.append(os.spawnve(os.P_WAIT, "/bin/bash", command, environment))
    sys.exit(next((code for code in codes if code), 0))


def settle(cloud, home):
    """A dry run assumes that the command has ended at the first look: here it has."""
    end = time.monotonic() + 10
    while cloud.data["settle"] and time.monotonic() < end:
        state = f"{home}/lookahead_jax_run/state"
        if not os.path.exists(f"{state}/pid") or os.path.exists(f"{state}/exit"):
            return
        time.sleep(0.01)


def scp(cloud, words, options, rule):
    source, target = words
    remote = source if ":" in source else target
    reach(cloud, remote.partition(":")[0])
    for worker in cloud.workers(options["--worker"]):
        home = cloud.home(worker)
        there = [f"{home}/{w.partition(':')[2]}" if ":" in w else w for w in words]
        if os.spawnlp(os.P_WAIT, "cp", "cp", "-R", *there):
            stop("cannot copy")
        if rule and rule.half:
            for directory, _, names in os.walk(there[1]):
                for name in names:
                    file = f"{directory}/{name}"
                    os.truncate(file, os.path.getsize(file) // 2)
    if rule and rule.rc:
        stop("Connection closed", rule.rc)


def applies(cloud, line):
    """The rule for this call, if there is one, with its counters moved on."""
    for raw in cloud.data["plan"]:
        rule = Rule(**raw)
        if rule.on in line and os.path.exists(rule.after):
            if rule.skip:
                raw["skip"] = rule.skip - 1
            elif rule.times:
                raw["times"] = rule.times - 1
                return rule
    return None


def main(argv):
    cloud = Cloud(os.environ["FAKE_CLOUD"])
    with open(f"{cloud.place}/calls.jsonl", "a") as calls:
        print(json.dumps(["gcloud", *argv]), file=calls)
    command, words, options = parse(argv)
    rule = applies(cloud, " ".join(argv))
    if rule and rule.preempt:
        cloud.preempt()
    cloud.save()
    if rule and rule.ignored:
        return
    if rule and rule.rc and rule.worker is None and not rule.half:
        stop("it failed, as planned", rule.rc)
    if command in ("tpu-vm ssh", "tpu-vm scp"):
        {"tpu-vm ssh": ssh, "tpu-vm scp": scp}[command](cloud, words, options, rule)
    else:
        {
            "tpu-vm list": list_nodes,
            "tpu-vm create": create_node,
            "tpu-vm delete": delete_node,
            "queued-resources list": list_requests,
            "queued-resources create": create_request,
            "queued-resources delete": delete_request,
        }[command](cloud, words, options)
    cloud.save()


if __name__ == "__main__":
    main(sys.argv[1:])
