"""tpu_scripts/ from end to end, against a cloud that is a directory (fake_gcloud.py)."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_gcloud
import pytest
from checkout import ROOT

SCRIPTS = ROOT / "tpu_scripts"
USER_SCRIPTS = ("create", "setup", "run", "fetch", "delete")
NAME = "my tpu $HOME"
CREATE = ("--accelerator-type", "v5litepod-8", "--version", "v2-alpha-tpuv5-lite")
QUICK = ("--poll", "0")

FAKE_GCLOUD = """#!{} -SE
import sys

sys.path.insert(0, {!r})
import fake_gcloud

fake_gcloud.main(sys.argv[1:])
"""

FAKE_PYTHON = """#!/bin/bash
# Stands in for Python on a worker. OLD_PYTHON: nothing here is new enough but for what uv brings.
case "$*" in
    "-c import ensurepip"*) [[ ! -e $HOME/OLD_PYTHON ]] ;;
    "-m pip install "*) echo "$*" >> "$HOME/pip" ;;
    "-m uv venv "* | "-m venv "*)
        mkdir -p "${@: -1}/bin"
        for tool in pip python; do
            printf '#!/bin/bash\\necho "$*" >> "$HOME/%s"\\n' "$tool" > "${@: -1}/bin/$tool"
            chmod +x "${@: -1}/bin/$tool"
        done ;;
    *) exit 99 ;;
esac
"""


class Tools:
    """What all tests share: a checkout with one commit, a gcloud, and clouds with a TPU set up."""

    def __init__(self, place):
        self.checkout = place / "checkout"
        self.path = place / "tools"
        pythons = place / "pythons"
        shutil.copytree(SCRIPTS, self.checkout / "tpu_scripts")
        (self.checkout / ".gitignore").write_text("build/\n")
        git = ["git", "-c", "user.name=T", "-c", "user.email=t@example.org", "-C", self.checkout]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
            subprocess.run([*git, *words], check=True)
        for directory in (self.path, pythons):
            directory.mkdir()
        here = str(Path(fake_gcloud.__file__).parent)
        executable(self.path / "gcloud", FAKE_GCLOUD.format(sys.executable, here))
        for name in ("python3.12", "python3.11", "python3"):
            executable(pythons / name, FAKE_PYTHON)
        self.worker_path = f"{pythons}:/usr/bin:/bin"
        self.ready = {}
        for workers in (1, 2):
            world = World(self, place / f"ready-{workers}")
            world.change(workers=workers)
            world.call("create", *CREATE, *QUICK)
            world.call("setup", *QUICK)
            world.forget()
            self.ready[workers] = world.cloud


class World:
    """A cloud, and a place to work in."""

    def __init__(self, tools, place):
        self.tools = tools
        self.place = place
        self.cloud = place / "cloud"
        self.output = place / "it's an $OUTPUT"
        self.cloud.mkdir(parents=True)
        self.environment = {
            "PATH": f"{tools.path}:/usr/bin:/bin",
            "HOME": str(place),
            "FAKE_CLOUD": str(self.cloud),
            "TPU_NAME": NAME,
            "PROJECT_ID": "my project",
            "ZONE": "zone$1",
        }
        self.data = {
            "workers": 1,
            "node": None,
            "node_states": ["READY"],
            "request": None,
            "request_states": ["ACTIVE"],
            "plan": [],
            "settle": True,
            "path": tools.worker_path,
        }
        self.change()

    def change(self, **changes):
        """Changes the cloud, past gcloud."""
        file = self.cloud / "cloud.json"
        if file.exists():
            self.data = json.loads(file.read_text())
        file.write_text(json.dumps(self.data | changes))

    def plan(self, *rules):
        self.change(plan=list(rules))

    def command(self, script, *words):
        return [str(self.tools.checkout / f"tpu_scripts/{script}.sh"), *words]

    def start(self, script, *words, **options):
        options = {"stdin": subprocess.DEVNULL} | options
        return subprocess.Popen(
            self.command(script, *words),
            cwd=self.place,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )

    def call(self, script, *words, code=0, answer=None):
        """What the script prints; it must end with that code."""
        process = self.start(script, *words, stdin=subprocess.PIPE)
        output, _ = process.communicate(answer or "", timeout=60)
        assert process.returncode == code, output
        return output

    def run(self, *command, options=(), **expected):
        words = (*QUICK, "--output", str(self.output), *options, "--", *command)
        return self.call("run", *words, **expected)

    def ready(self, workers=1):
        """The TPU exists and is set up."""
        shutil.rmtree(self.cloud)
        shutil.copytree(self.tools.ready[workers], self.cloud, symlinks=True)

    def calls(self):
        file = self.cloud / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def forget(self):
        (self.cloud / "calls.jsonl").unlink()

    def made(self, what):
        """How many calls had these words."""
        return sum(what in " ".join(call) for call in self.calls())

    def worker(self, number, path=""):
        return self.cloud / f"worker-{number}/lookahead_jax_run" / path

    def result(self, name):
        return (self.output / "results" / name).read_text()

    def exists(self):
        data = json.loads((self.cloud / "cloud.json").read_text())
        return bool(data["node"]), bool(data["request"])


def executable(file, text):
    file.write_text(text)
    file.chmod(0o755)


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return Tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def world(tools, tmp_path):
    world = World(tools, tmp_path)
    yield world
    for home in world.cloud.glob("worker-*"):
        fake_gcloud.end_processes(home)


def fails(on, rc=1, **more):
    return {"on": on, "rc": rc, **more}


# ---- The text of the scripts --------------------------------------------------------------------


def test_shellcheck_finds_nothing():
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (extra `test`)")
    command = [shellcheck, "-x", "-P", "SCRIPTDIR", *sorted(SCRIPTS.glob("*.sh"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", USER_SCRIPTS)
def test_help_teaches_and_needs_nothing(world, script):
    text = world.call(script, "--help")
    assert text.startswith(f"{script}.sh: ")
    for part in ("--name", "TPU_NAME", "--dry-run", f"tpu_scripts/{script}.sh --name my-tpu"):
        assert part in text
    assert world.calls() == []


def test_every_option_is_in_a_help(world):
    texts = "".join(world.call(script, "--help") for script in USER_SCRIPTS)
    read = "".join((SCRIPTS / f"{name}.sh").read_text() for name in ("lib", *USER_SCRIPTS))
    options = set(re.findall(r"^ +(?:-h \| )?(--[a-z-]+)\) ", read, re.MULTILINE))
    assert {"--spot", "--yes", "--recreate", "--stop"} <= options
    assert [option for option in sorted(options) if option not in texts] == []


@pytest.mark.parametrize("script", USER_SCRIPTS)
def test_what_is_missing_is_one_line(world, script):
    for name in ("TPU_NAME", "PROJECT_ID", "ZONE"):
        world.environment.pop(name)
    (line,) = world.call(script, code=2).splitlines()
    assert f"{script}.sh: missing: --name (or TPU_NAME), --project (or PROJECT_ID)" in line
    assert ("--accelerator-type (or ACCELERATOR_TYPE)" in line) == (script == "create")
    assert ("--output" in line) == (script in ("run", "fetch"))


@pytest.mark.parametrize(
    ("script", "words", "says"),
    [
        ("create", ["--zoned", "x"], "what is '--zoned'?"),
        ("create", ["--wait", "soon"], "--wait must be a whole number, got 'soon'"),
        ("setup", ["--name"], "--name needs a value"),
        ("setup", ["--name=-x"], "--name must not begin with '-', got '-x'"),
        ("fetch", ["--output", "a:b"], "--output must not contain ':'"),
        ("run", ["--output", "o"], "after -- comes the command to run"),
        ("run", ["--output", "o", "--spot", "--", "true"], "missing: --accelerator-type"),
        ("run", ["--output", "o", "--stop", "--", "true"], "--stop takes no command"),
    ],
)
def test_bad_options_are_one_line(world, script, words, says):
    (line,) = world.call(script, *words, code=2).splitlines()
    assert says in line
    assert world.calls() == []


def test_no_gcloud_is_one_line(world):
    tools = world.place / "few"
    tools.mkdir()
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool))
    world.environment["PATH"] = str(tools)
    (line,) = world.call("setup", code=1).splitlines()
    assert "gcloud is not installed, or not on PATH" in line


# ---- --dry-run ----------------------------------------------------------------------------------

RUN = ("run", "--output", "it's $here", "--", "bash", "-c", "echo \"it's $WORKER\" > 'results/a b'")
DRY_RUNS = {
    "create": ("absent", "create", *CREATE, "--create-flag=--network=my net"),
    "create in the queue": ("absent", "create", *CREATE, "--spot", "--queued"),
    "set up": ("ready", "setup", "--workers", "2"),
    "run": ("ready", *RUN[:1], "--workers", "2", *RUN[1:]),
    "stop": ("ready", "run", "--workers", "2", "--output", "o", "--stop"),
    "fetch": ("ready", "fetch", "--workers", "2", "--output", "it's $here"),
    "delete": ("ready", "delete", "--yes"),
    "delete in the queue": ("queued", "delete", "--yes", "--queued"),
}


@pytest.mark.parametrize("case", DRY_RUNS)
def test_a_dry_run_prints_what_a_real_one_does_and_does_nothing(world, case):
    """And the printed lines, pasted into a shell, do it too."""
    state, script, *words = DRY_RUNS[case]
    world.change(workers=2)
    if state == "queued":
        world.call("create", *CREATE, "--queued", *QUICK)
        world.forget()
    elif state == "ready":
        world.ready(workers=2)
        (world.worker(0) / "log").write_text("log\n")
        (world.worker(1) / "log").write_text("log\n")
    before = shutil.copytree(world.cloud, world.place / "before", symlinks=True)

    printed = world.call(script, "--dry-run", *words)
    assert world.calls() == []
    assert not list(world.place.glob("*here")), "a dry run made a directory"

    world.call(script, *QUICK, *words)
    real = world.calls()
    lines = [shlex.split(line) for line in printed.splitlines()]
    assert [line for line in lines if line[0] == "gcloud"] == real
    if script == "run" and "--stop" not in words:
        assert (world.place / "it's $here/results/a b").read_text() == "it's 0\n"

    shutil.rmtree(world.cloud)
    shutil.copytree(before, world.cloud, symlinks=True)
    pasted = ["bash", "-euo", "pipefail", "-c", printed]
    subprocess.run(pasted, cwd=world.place, env=world.environment, check=True, capture_output=True)
    assert world.calls() == real


def test_the_commands_of_the_readme_are_understood(world):
    """Each with --dry-run, with the variables that the README sets."""
    text = (SCRIPTS / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    exports = [line for line in lines if line.startswith("export ")]
    commands = [line for line in lines if line.startswith("tpu_scripts/")]
    assert len(commands) >= 8
    for command in commands:
        script, _, rest = command.partition(" ")
        script_text = "\n".join([*exports, f"{script} --dry-run {rest}"])
        done = subprocess.run(
            ["bash", "-euc", script_text],
            cwd=world.tools.checkout,
            env=world.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, command + done.stderr
    assert world.calls() == []


# ---- create -------------------------------------------------------------------------------------


def test_create_waits_until_it_is_ready(world):
    world.change(node_states=["CREATING", "CREATING", "READY"], workers=4)
    text = world.call("create", *CREATE, *QUICK)
    assert text.count("is CREATING") == 2
    assert "is ready: 4 worker(s)" in text
    assert "costs money for as long as it exists" in text
    assert "delete.sh --name 'my tpu $HOME' '--project=my project' '--zone=zone$1'" in text


def test_create_leaves_what_exists_alone(world):
    world.ready()
    text = world.call("create", *CREATE, *QUICK, code=1)
    assert "exists already (READY); nothing was created" in text
    assert world.made("create") == 0


@pytest.mark.parametrize("queued", [(), ("--queued",)])
def test_a_create_that_fails_says_what_may_exist(world, queued):
    world.plan(fails(" create "))
    text = world.call("create", *CREATE, *QUICK, *queued, code=1)
    assert "could not be created" in text
    assert "may exist all the same" in text
    assert "To delete: " in text


@pytest.mark.parametrize(
    ("states", "wait", "says"),
    [
        (["CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING", "FAILED"], "60", "is FAILED"),
        (["WAITING_FOR_RESOURCES"], "0", "is still WAITING_FOR_RESOURCES after 0 seconds"),
    ],
)
def test_a_request_that_is_not_fulfilled(world, states, wait, says):
    world.change(request_states=states)
    words = (*CREATE, *QUICK, "--queued", "--wait", wait)
    text = world.call("create", *words, code=1)
    assert says in text
    assert "To delete: " in text
    assert world.made(f"--valid-until-duration={wait}s") == 1


@pytest.mark.parametrize("script", ["create", "delete"])
@pytest.mark.parametrize("surface", ["tpu-vm", "queued-resources"])
def test_without_a_list_nothing_is_done(world, script, surface):
    world.plan(fails(f"{surface} list"))
    words = CREATE if script == "create" else ["--yes"]
    text = world.call(script, *words, code=1)
    assert f"nothing was {script}d" in text
    assert world.made(f" {script} ") == 0


def test_ctrl_c_while_creating_says_what_may_exist(world):
    world.change(node_states=["CREATING"])
    process = world.start("create", *CREATE, "--poll", "30")
    wait_for(lambda: world.made("tpu-vm list") == 2)
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted: the request may go on in Google Cloud" in text
    assert "To delete: " in text


# ---- setup --------------------------------------------------------------------------------------


def test_setup_installs_on_every_worker_and_looks_for_the_tpu(world):
    world.ready(workers=2)
    for worker in (0, 1):
        home = world.worker(worker).parent
        (install,) = (home / "pip").read_text().splitlines()
        assert re.fullmatch(r"install --quiet -e \S+/checkout\[tpu,plot\]", install)
        assert (home / "python").read_text().endswith("tpu_scripts/check_devices.py 2\n")
        assert world.worker(worker, "checkout/results").resolve() == world.worker(worker, "results")


def test_setup_says_what_is_not_copied(world):
    world.change(workers=1)
    world.call("create", *CREATE, *QUICK)
    new = world.tools.checkout / "new.py"
    new.write_text("")
    text = world.call("setup", *QUICK)
    new.unlink()
    assert "not committed are not copied" in text
    assert not world.worker(0, "checkout/new.py").exists()


@pytest.mark.parametrize("step", ["worker.sh setup", "worker.sh check", "tpu-vm scp", "mkdir -p"])
def test_setup_that_fails_on_one_worker_is_repeated(world, step):
    world.change(workers=2)
    world.call("create", *CREATE, *QUICK)
    world.plan(fails(step, worker=1 if "worker.sh" in step else None))
    text = world.call("setup", *QUICK, code=1)
    assert "set-up failed on at least one worker" in text
    assert "costs money" in text
    assert "2 worker(s)" in world.call("setup", *QUICK)


def test_setup_of_nothing(world):
    assert "is not ready (state: none); create.sh creates it" in world.call("setup", code=1)


def test_an_old_python_is_replaced_through_uv(world):
    world.change(workers=1)
    world.call("create", *CREATE, *QUICK)
    (world.worker(0).parent / "OLD_PYTHON").touch()
    world.call("setup", *QUICK)
    first, second = (world.worker(0).parent / "pip").read_text().splitlines()
    assert first == "-m pip install --quiet --user uv"
    assert second.endswith("[tpu,plot]")


def test_the_device_check_wants_a_tpu():
    script = SCRIPTS / "check_devices.py"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(script), "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == "check_devices.py: expected a TPU, but JAX runs on cpu"


# ---- run ----------------------------------------------------------------------------------------


def test_run_everywhere_and_fetch(world):
    world.ready(workers=2)
    (world.output / "results").mkdir(parents=True)
    (world.output / "results/in.txt").write_text("in")
    script = 'cat results/in.txt > results/out; echo " $WORKER $0" >> results/out; echo log $WORKER'
    text = world.run("bash", "-c", script, "a  'b' $c\n\\")
    assert "exit code 0" in text
    assert world.result("out") == "in 0 a  'b' $c\n\\\n"
    for worker in (0, 1):
        assert world.worker(worker, "results/in.txt").read_text() == "in"
        assert f"log {worker}\n" in (world.output / f"logs/worker-{worker}.log").read_text()


def test_run_sets_up_what_is_not(world):
    world.change(workers=2)
    world.call("create", *CREATE, *QUICK)
    world.run("touch", "results/there")
    assert world.result("there") == ""


def test_a_command_that_fails_still_gives_its_results(world):
    world.ready(workers=2)
    script = "echo some > results/some; exit $((WORKER * 7))"
    text = world.run("bash", "-c", script, code=7)
    assert "exit code 7; results and logs are in" in text
    assert world.result("some") == "some\n"
    assert "exit code 7" in (world.output / "logs/worker-1.log").read_text()


def test_one_worker_fails_and_the_others_wait_for_it(world):
    world.ready(workers=2)
    world.change(settle=False)
    script = "echo some > results/some; ((WORKER == 0)) || exit 3; sleep 60"
    options = ("--grace", "0")
    text = world.run("bash", "-c", script, options=options, code=3)
    assert "a worker failed with exit code 3: stopping the others" in text
    assert world.result("some") == "some\n"
    assert not running(world)


def running(world):
    """Whether any worker still runs a command."""
    pids = [file.read_text().strip() for file in world.cloud.glob("*/*/state/pid")]
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("on", ["status; else", "worker.sh start", "/results", "/log"])
def test_a_lost_connection_is_tried_again(world, on):
    world.ready()
    world.plan(fails(on, rc=255, times=2))
    text = world.run("bash", "-c", "echo once >> results/count")
    assert "trying again (2 of 5)" in text
    assert world.result("count") == "once\n"


@pytest.mark.parametrize(("on", "skip"), [("status; else", 1), ("/results", 2)])
def test_patience_ends(world, on, skip):
    """At the second look, and at the fetching after the end."""
    world.ready()
    world.plan(fails(on, rc=255, times=9, skip=skip))
    text = world.run("bash", "-c", "echo once >> results/count", code=1)
    assert "gave up after 5 failures in a row" in text
    assert "the same run.sh joins it" in text
    world.plan()
    assert "results and logs" in world.call("fetch", *QUICK, "--output", str(world.output))
    assert world.result("count") == "once\n"


def test_a_copy_that_breaks_off_spoils_nothing(world):
    world.ready()
    world.run("bash", "-c", "echo 12345678 > results/file")
    world.plan(fails("/results", half=True))
    text = world.call("fetch", *QUICK, "--output", str(world.output), code=1)
    assert "could not be fetched" in text
    assert world.result("file") == "12345678\n"


COUNT = "echo start >> results/count; [[ $(wc -l < results/count) -ge 2 ]] || sleep 60"


@pytest.mark.parametrize("how", [("--spot",), ("--spot", "--queued")])
def test_a_preempted_tpu_is_created_again_and_the_command_continues(world, how):
    """The look after the one that fetched the first results finds it gone."""
    world.ready()
    if "--queued" in how:
        world.call("delete", "--yes")
        world.call("create", *CREATE, *QUICK, *how)
    world.change(settle=False)
    fetched = str(world.output / "results/count")
    world.plan({"on": "status; else", "preempt": True, "after": fetched})
    options = (*how, *CREATE)
    text = world.run("bash", "-c", COUNT, options=options)
    assert text.count("creating it anew") == 1
    assert world.result("count") == "start\nstart\n"
    assert world.made("worker.sh setup") == (2 if "--queued" in how else 1)
    assert world.made(" create ") == (2 if "--queued" in how else 1)


def test_re_creation_is_bounded(world):
    world.ready()
    world.plan({"on": "worker.sh start", "times": 9, "preempt": True})
    options = (*CREATE, "--recreate", "2")
    text = world.run("true", options=options, code=1)
    assert text.count("creating it anew") == 2
    assert "is gone (PREEMPTED) after 2 re-creation(s)" in text
    assert "the same command continues from there" in text


@pytest.mark.parametrize("step", [" create ", "worker.sh setup", " delete "])
def test_a_re_creation_that_fails_is_tried_again(world, step):
    world.ready()
    world.plan({"on": "worker.sh start", "preempt": True}, fails(step))
    world.run("touch", "results/there", options=("--spot", *CREATE))
    assert world.result("there") == ""


def test_without_spot_a_lost_tpu_ends_the_run(world):
    world.ready()
    world.plan({"on": "status; else", "preempt": True})
    text = world.run("true", code=1)
    assert "is gone (PREEMPTED) after 0 re-creation(s)" in text
    assert world.made(" create ") == 0


def test_an_exit_code_of_a_preempted_tpu_says_nothing(world):
    """The command was ended by the shutdown, and the last look still saw its exit code."""
    world.ready()
    world.plan({"on": "tpu-vm list", "skip": 1, "preempt": True})
    again = shlex.quote(str(world.place / "again"))
    script = f"[[ -e {again} ]] || {{ touch {again}; exit 143; }}"
    text = world.run("bash", "-c", script, options=("--spot", *CREATE))
    assert "creating it anew (1 of 3)" in text


def test_run_on_nothing(world):
    text = world.run("true", code=1)
    assert "there is no my tpu $HOME" in text
    assert "costs money" not in text


def test_ctrl_c_leaves_the_command_running_and_says_so(world):
    world.ready()
    world.change(settle=False)
    command = ("bash", "-c", "until [[ -e ../go ]]; do sleep 0.1; done; echo once >> results/count")
    words = ("--poll", "30", "--output", str(world.output), "--", *command)
    process = world.start("run", *words)
    wait_for(world.worker(0, "state/pid").exists)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted: a command that was started goes on" in text
    assert "costs money" in text
    assert running(world)

    assert "another command is running on my tpu $HOME" in world.run("other", code=1)
    assert "set-up failed" in world.call("setup", *QUICK, code=1)
    looks = world.made("status; else")
    process = world.start("run", *QUICK, *words[2:])
    wait_for(lambda: world.made("status; else") >= looks + 2)
    world.worker(0, "go").touch()
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 0, text
    assert "is running on my tpu $HOME already" in text
    assert world.result("count") == "once\n"


def test_a_start_that_gcloud_repeats_is_one_start(world):
    """It repeats the whole command when ssh fails, whatever was done by then."""
    world.ready()
    home = world.worker(0).parent
    script = "lookahead_jax_run/checkout/tpu_scripts/worker.sh"
    start = ["bash", script, "start", "7", "bash", "-c", "echo once >> results/count; sleep 60"]
    for _ in range(2):
        subprocess.run(start, cwd=home, check=True)
    wait_for(world.worker(0, "results/count").exists)
    status = subprocess.run(["bash", script, "status"], cwd=home, capture_output=True, text=True)
    assert status.stdout == "lookahead_jax_run 7 running\n"
    assert world.worker(0, "results/count").read_text() == "once\n"


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_stop_ends_it_and_fetches(world):
    world.ready()
    world.change(settle=False)
    words = ("--poll", "30", "--output", str(world.output), "--", "bash", "-c", COUNT)
    process = world.start("run", *words)
    wait_for(world.worker(0, "results/count").exists)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    world.call("run", *QUICK, "--output", str(world.output), "--stop")
    assert not running(world)
    assert world.result("count") == "start\n"


# ---- fetch and delete ---------------------------------------------------------------------------


def test_fetch_without_logs_says_so(world):
    world.ready()
    world.worker(0, "results/file").write_text("there")
    text = world.call("fetch", *QUICK, "--output", str(world.output), code=1)
    assert "not all logs could be fetched" in text
    assert world.result("file") == "there"


@pytest.mark.parametrize("answer", ["", "yes\n", "my tpu\n"])
def test_delete_asks(world, answer):
    world.ready()
    text = world.call("delete", code=1, answer=answer)
    assert "Delete my tpu $HOME in zone$1 of my project?" in text
    assert "the TPU (READY, 1 worker(s)), with all that is on its disks" in text
    assert "nothing was deleted" in text
    assert "costs money" in text
    assert world.exists() == (True, False)


@pytest.mark.parametrize(("words", "answer"), [((), f"{NAME}\n"), (("--yes",), "")])
@pytest.mark.parametrize("queued", [False, True])
def test_delete_deletes_all_of_that_name(world, words, answer, queued):
    if queued:
        world.call("create", *CREATE, *QUICK, "--queued")
    else:
        world.ready()
    text = world.call("delete", *words, answer=answer)
    assert "is gone" in text
    assert "costs money" not in text
    assert world.exists() == (False, False)


def test_delete_of_nothing(world):
    text = world.call("delete", "--yes", code=1)
    assert "there is no my tpu $HOME in zone$1 of my project: nothing to delete" in text
    assert world.made(" delete ") == 0


def test_a_delete_that_fails_says_that_it_still_costs(world):
    world.ready()
    world.plan(fails(" delete "))
    text = world.call("delete", "--yes", code=1)
    assert "could not be deleted" in text
    assert "costs money" in text


def test_a_delete_that_deletes_nothing_is_noticed(world):
    world.ready()
    world.plan({"on": " delete ", "ignored": True})
    text = world.call("delete", "--yes", code=1)
    assert "is not gone yet (see above; TPU: READY, request: none)" in text
    assert "costs money" in text
