# What is there, and the steps that more than one script takes; read by lib.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2153  # variables that the scripts and lib.sh share

NODE=    # state of the TPU VM; nothing if there is none
REQUEST= # the same of the queued resource

# On a worker, under the home directory.
REMOTE=lookahead_jax_run
WORKER_SCRIPT="bash $REMOTE/checkout/tpu_scripts/worker.sh"
# Without these a connection to a machine that is gone can hang for hours.
SSH_OPTIONS=(ConnectTimeout=30 ServerAliveInterval=15)

LIST_NODES=(gcloud compute tpus tpu-vm list)
LIST_REQUESTS=(gcloud compute tpus queued-resources list)

# read_node ANSWER: sets NODE (its state, or nothing if there is none) and WORKERS. A list, and not
# describe, because an empty list says "not there" where a failed describe may mean anything.
read_node() {
    local lines name state workers
    lines=$(ask "$1" "${LIST_NODES[@]}" "${WHERE[@]}" \
        '--format=csv[no-heading](name.basename(),state,networkEndpoints.len())') || return 1
    NODE=
    while IFS=, read -r name state workers; do
        if [[ $name == "$NAME" ]]; then
            NODE=$state
            ((DRY_RUN)) || WORKERS=$workers
        fi
    done <<<"$lines"
    ((DRY_RUN == 0)) || WORKERS=${WORKERS:-1}
}

# read_request ANSWER: sets REQUEST, the state of the queued resource, or nothing.
read_request() {
    local lines name state
    lines=$(ask "$1" "${LIST_REQUESTS[@]}" "${WHERE[@]}" \
        '--format=csv[no-heading](name.basename(),state.state)') || return 1
    REQUEST=
    while IFS=, read -r name state; do
        [[ $name != "$NAME" ]] || REQUEST=$state
    done <<<"$lines"
}

# Waits for READY. Returns 1, with the state in NODE, if that cannot come any more, or in time.
wait_ready() {
    local deadline=$((SECONDS + WAIT))
    while :; do
        read_node "$NAME,READY" || return 1
        case $NODE in
            READY) return 0 ;;
            CREATING | STARTING | RESTARTING | REPAIRING | UNHIDING) ;;
            *) return 1 ;;
        esac
        ((SECONDS < deadline)) || return 1
        say "$NAME is $NODE"
        pause
    done
}

create_tpu() {
    local tier=()
    ((SPOT == 0)) || tier=(--spot)
    MAY_EXIST=1
    if ((QUEUED)); then
        run gcloud compute tpus queued-resources create "$NAME" "${WHERE[@]}" "--node-id=$NAME" \
            "--accelerator-type=$ACCELERATOR_TYPE" "--runtime-version=$RUNTIME_VERSION" \
            "--valid-until-duration=${WAIT}s" "${tier[@]}" "${CREATE_FLAGS[@]}" || return 1
        wait_for_request || return 1
    else
        run gcloud compute tpus tpu-vm create "$NAME" "${WHERE[@]}" \
            "--accelerator-type=$ACCELERATOR_TYPE" "--version=$RUNTIME_VERSION" \
            "${tier[@]}" "${CREATE_FLAGS[@]}" || return 1
    fi
    wait_ready
}

wait_for_request() {
    local deadline=$((SECONDS + WAIT))
    while :; do
        read_request "$NAME,ACTIVE" || return 1
        case $REQUEST in
            ACTIVE) return 0 ;;
            CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING) ;;
            *)
                say "the request for $NAME is ${REQUEST:-gone}"
                return 1
                ;;
        esac
        if ((SECONDS >= deadline)); then
            say "the request for $NAME is still $REQUEST after $WAIT seconds"
            return 1
        fi
        say "the request for $NAME is $REQUEST"
        pause
    done
}

# Deletes whatever has the name, and makes sure. Call read_request and read_node before.
delete_tpu() {
    local deadline=$((SECONDS + WAIT))
    while [[ $REQUEST == SUSPENDING ]] && ((SECONDS < deadline)); do
        pause
        read_request '' || return 1
    done
    if [[ -n $REQUEST ]]; then
        run gcloud compute tpus queued-resources delete "$NAME" "${WHERE[@]}" --force --quiet || return 1
        read_node '' || return 1
    fi
    if [[ -n $NODE ]]; then
        run gcloud compute tpus tpu-vm delete "$NAME" "${WHERE[@]}" --quiet || return 1
    fi
    read_request '' && read_node '' && [[ -z $REQUEST$NODE ]] || return 1
    MAY_EXIST=0
}

# on_workers WHICH COMMAND: the command is one string, for the shell there.
on_workers() {
    run gcloud compute tpus tpu-vm ssh "$NAME" "${WHERE[@]}" "--worker=$1" \
        "${SSH_OPTIONS[@]/#/--ssh-flag=-o}" "--command=$2"
}

# copy WHICH SOURCE DESTINATION: one of the two begins with "$NAME:".
copy() {
    run gcloud compute tpus tpu-vm scp "$2" "$3" "${WHERE[@]}" "--worker=$1" --recurse \
        "${SSH_OPTIONS[@]/#/--scp-flag=-o}"
}

# Copies the committed files, installs them, and looks for the TPU, on all workers.
setup_workers() {
    local archive=$ROOT/build/tpu_checkout.tar.gz
    if ((DRY_RUN == 0)) && [[ -n $(git -C "$ROOT" status --porcelain 2>/dev/null) ]]; then
        say "changes that are not committed are not copied"
    fi
    run mkdir -p "$ROOT/build" || return 1
    run git -C "$ROOT" archive --format=tar.gz "--output=$archive" HEAD || return 1
    on_workers all "mkdir -p $REMOTE/results" || return 1
    copy all "$archive" "$NAME:$REMOTE/checkout.tar.gz" || return 1
    on_workers all "cd $REMOTE && { [ ! -e ready ] || bash checkout/tpu_scripts/worker.sh idle; } && rm -rf ready checkout && mkdir checkout && tar -xzf checkout.tar.gz -C checkout && bash checkout/tpu_scripts/worker.sh setup" || return 1
    on_workers all "$WORKER_SCRIPT check ${WORKERS:-1}" || return 1
}

# Worker 0's results into OUTPUT/results. They arrive next to it first, so that a copy that breaks
# off spoils nothing, and nothing is ever deleted here.
fetch_results() {
    local incoming=$OUTPUT/.incoming
    run rm -rf "$incoming" || return 1
    run mkdir -p "$incoming" "$OUTPUT/results" "$OUTPUT/logs" || return 1
    copy 0 "$NAME:$REMOTE/results" "$incoming" || return 1
    # Ctrl-C waits for this one: half a file would be taken for the results so far.
    (
        trap '' INT
        run cp -R "$incoming/results" "$OUTPUT"
    )
}

fetch_logs() {
    local worker failed=0
    for ((worker = 0; worker < ${WORKERS:-1}; worker++)); do
        copy "$worker" "$NAME:$REMOTE/log" "$OUTPUT/logs/worker-$worker.log" || failed=1
    done
    return "$failed"
}

put_results() { copy all "$OUTPUT/results" "$NAME:$REMOTE"; }
