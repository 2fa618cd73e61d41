#!/usr/bin/env bash
# The part that runs on the TPU's workers. The other scripts copy it there and call it over ssh:
#   worker.sh setup               a virtual environment with this checkout and JAX for TPUs
#   worker.sh check PROCESSES     whether JAX sees the TPU, on all workers at once
#   worker.sh start ID WORD...    runs a command in the background, unless it runs already
#   worker.sh status              one line: lookahead_jax_run ID running|exited CODE|idle
#   worker.sh idle                fails if a command is running
#   worker.sh stop                ends it
# A command outlives the ssh connection that started it, and gcloud may repeat any of these: each
# does no harm when it is done twice.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
base=${checkout%/*}
state=$base/state

fail() {
    printf 'worker.sh on %s: %s\n' "$HOSTNAME" "$*" >&2
    exit 1
}

# Python 3.11 or newer. The images for v5e come with 3.10, and then uv fetches one.
setup() {
    local python
    rm -f "$base/ready"
    if [[ ! -x $base/venv/bin/pip ]]; then
        rm -rf "$base/venv"
        for python in python3.12 python3.11 python3; do
            if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
                "$python" -m venv "$base/venv"
                break
            fi
        done
        if [[ ! -x $base/venv/bin/pip ]]; then
            python3 -m pip install --quiet --user uv ||
                python3 -m pip install --quiet --user --break-system-packages uv ||
                fail "no Python 3.11 with venv here, and uv, which could fetch one, cannot be installed with pip"
            python3 -m uv venv --seed --python 3.11 "$base/venv"
        fi
    fi
    # -e, so that the benchmarks, which are not installed, run from the checkout.
    "$base/venv/bin/pip" install --quiet -e "${checkout}[tpu,plot]"
    mkdir -p "$base/results" "$state"
    ln -sfn ../results "$checkout/results"
    touch "$base/ready"
}

check() { "$base/venv/bin/python" "$checkout/tpu_scripts/check_devices.py" "$1"; }

# The process that supervises the command, if it is alive: a number alone may be another's by now.
alive() {
    local pid
    pid=$(cat "$state/pid" 2>/dev/null) || return 1
    [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") == *'worker.sh supervise '* ]]
}

start() {
    local id=$1 waited
    shift
    [[ -e $base/ready ]] || fail "not set up: run setup.sh first"
    mkdir -p "$state"
    if alive; then
        [[ $(cat "$state/id") == "$id" ]] || fail "another command is running"
        return
    fi
    printf '%s\n' "$id" >"$state/id"
    rm -f "$state/exit" "$state/pid"
    setsid nohup bash "$checkout/tpu_scripts/worker.sh" supervise "$@" >>"$base/log" 2>&1 </dev/null &
    # Until it can be seen: another connection may ask for the status at once.
    for ((waited = 0; waited < 200; waited++)); do
        if alive || [[ -e $state/exit ]]; then return; fi
        sleep 0.05
    done
    fail "the command did not start: $(tail -n 1 "$base/log")"
}

supervise() {
    local code=0
    # Written here, so that it is there even if the connection breaks off while start waits.
    echo $$ >"$state/pid.part"
    mv "$state/pid.part" "$state/pid"
    cd "$checkout"
    export PATH=$base/venv/bin:$PATH
    printf '== %s: %s\n' "$(date -u +%FT%TZ)" "$*"
    "$@" || code=$?
    printf '== %s: exit code %s\n' "$(date -u +%FT%TZ)" "$code"
    echo "$code" >"$state/exit.part"
    mv "$state/exit.part" "$state/exit"
}

status() {
    local what id
    id=$(cat "$state/id" 2>/dev/null) || id=-
    if alive; then
        what=running
    elif [[ -e $state/exit ]]; then
        what="exited $(cat "$state/exit")"
    elif [[ $id == - ]]; then
        what=idle
    else
        what='exited 137' # ended, and not by itself: it would have left its exit code
    fi
    printf 'lookahead_jax_run %s %s\n' "$id" "$what"
}

idle() {
    ! alive || fail "a command is running; run.sh --stop ends it"
}

stop() {
    local pid second
    alive || return 0
    pid=$(cat "$state/pid")
    kill -TERM -- "-$pid" 2>/dev/null || true
    for ((second = 0; second < 20; second++)); do
        kill -0 -- "-$pid" 2>/dev/null || return 0
        sleep 0.5
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
}

case ${1:-} in
    setup | check | start | supervise | status | idle | stop) "$@" ;;
    *) fail "expected setup, check, start, status or stop, got '${1:-}'" ;;
esac
