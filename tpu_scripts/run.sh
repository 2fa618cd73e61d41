#!/usr/bin/env bash
# Runs a command on all workers, and brings the results back, whatever happens in between.
set -euo pipefail
exec 3>&1
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

help() {
    cat <<'HELP'
run.sh: runs a command on every worker of the TPU, waits for it, and fetches results and logs.

    tpu_scripts/run.sh --name my-tpu --project my-project --zone us-west4-a --output DIR -- \
        lookahead-jax bench --grid "W=3,7 N=5 G=7" --output results/bench

The command starts in a copy of this checkout, with its virtual environment active. What it writes
into results/ is kept: worker 0's is fetched into DIR/results at every look and at the end, and
what DIR/results holds is put on every worker before the command starts. So input files can lie
there, and a command that continues from its own results does so on a new TPU too.

It runs in the background on the workers: a lost connection, or Ctrl-C here, does not end it, and
the same run.sh again joins it, or starts it once more after it has ended. The exit code is the
command's, of a worker that failed if one did.

With --spot or --recreate a TPU that is preempted meanwhile is deleted, created and set up again,
which needs the options of create.sh too, and the command is started again.

HELP
    common_help
    cat <<'HELP'
  --output DIR             where results and logs are kept on this machine
  --recreate N             how often a preempted TPU is created anew (3 with --spot, else 0)
  --grace SECONDS          how long the others may go on when one worker has failed (120)
  --stop                   end the command on all workers, fetch its results; no command follows
  --workers N              hosts of the slice; only a dry run needs it (1)
HELP
    create_help
    always_help
}

RECREATE=
STOP=0
GRACE=120  # seconds that the others get when one worker has failed
PATIENCE=5 # failures in a row of ssh, scp or gcloud before giving up
COMMAND=()
split_options "$@"
set -- "${ARGS[@]}"
while (($#)); do
    case $1 in
        --)
            shift
            COMMAND=("$@")
            break
            ;;
        --recreate) need_number "$@" && RECREATE=$((10#$2)) TAKEN=2 ;;
        --grace) need_number "$@" && GRACE=$((10#$2)) TAKEN=2 ;;
        --stop) STOP=1 TAKEN=1 ;;
        *) common_option "$@" ;;
    esac
    shift "$TAKEN"
done
RECREATE=${RECREATE:-$((SPOT * 3))}
((STOP == 0)) || RECREATE=0
if ((RECREATE)); then
    require name project zone output accelerator version
else
    require name project zone output
fi
((STOP || ${#COMMAND[@]})) || usage_error "after -- comes the command to run"
((STOP == 0 || ${#COMMAND[@]} == 0)) || usage_error "--stop takes no command"
COMMAND_LINE=$(command_line "${COMMAND[@]}")
ID=$(cksum <<<"$COMMAND_LINE")
ID=${ID%% *}

# poll ANSWER: asks all workers; counts those that run our command, ended, are not set up.
poll() {
    local lines tag id what code
    RUNNING=0 EXITED=0 OTHERS=0 UNSET=0 CODE=0
    lines=$(ask "$1" gcloud compute tpus tpu-vm ssh "$NAME" "${WHERE[@]}" --worker=all \
        "${SSH_OPTIONS[@]/#/--ssh-flag=-o}" \
        "--command=if [ -e $REMOTE/ready ]; then $WORKER_SCRIPT status; else echo lookahead_jax_run - unset; fi") || return 1
    while read -r tag id what code; do
        [[ $tag == lookahead_jax_run ]] || continue
        case $what in
            unset) UNSET=$((UNSET + 1)) ;;
            running) if [[ $id == "$ID" ]]; then RUNNING=$((RUNNING + 1)); else OTHERS=$((OTHERS + 1)); fi ;;
            exited)
                [[ $id == "$ID" ]] || continue
                EXITED=$((EXITED + 1))
                ((CODE)) || CODE=$code
                ;;
        esac
    done <<<"$lines"
}

stop_workers() { on_workers all "$WORKER_SCRIPT stop"; }

begin() {
    poll "lookahead_jax_run - idle" || return 1
    if ((UNSET)); then
        setup_workers || return 1
    fi
    if ((OTHERS)); then
        fail "another command is running on $NAME; run.sh --stop ends it"
    fi
    if ((RUNNING == WORKERS)); then
        say "the command is running on $NAME already: waiting for it"
        return
    fi
    if ((RUNNING)); then
        stop_workers || return 1
    fi
    fetch_results && put_results || return 1
    on_workers all "$WORKER_SCRIPT start $ID $COMMAND_LINE"
}

# Until no worker runs the command any more, fetching all the while.
follow() {
    local failed_at=
    while :; do
        pause
        poll "lookahead_jax_run $ID exited 0" || return 1
        FAILURES=0
        if ((RUNNING + EXITED != WORKERS && DRY_RUN == 0)); then
            PHASE=begin # a worker knows nothing of the command
            return 1
        fi
        ((RUNNING)) || break
        say "running on $RUNNING of $WORKERS worker(s)"
        if ((CODE)); then
            failed_at=${failed_at:-$SECONDS}
            if ((SECONDS - failed_at >= GRACE)); then
                say "a worker failed with exit code $CODE: stopping the others"
                stop_workers || return 1
                break
            fi
        fi
        fetch_results || return 1
    done
    RESULT=$CODE
    # Preemption ends the command before the TPU is gone: then the exit code says nothing.
    if ((CODE)); then
        read_node '' && [[ $NODE == READY ]] || return 1
    fi
}

# One try, from wherever the last one came to. Returns 1 if anything could not be done.
PHASE=begin
attempt() {
    if [[ $PHASE == begin ]]; then
        begin || return 1
        PHASE=follow
    fi
    if [[ $PHASE == follow ]]; then
        follow || return 1
        PHASE=collect
    fi
    fetch_results && fetch_logs
}

# After a failed try: a new TPU if this one is gone, patience if not.
recover() {
    if ! read_request '' || ! read_node ''; then
        NODE=unknown REQUEST=
    fi
    case $NODE:$REQUEST in
        PREEMPTED:* | TERMINATED:* | :* | [!R]*:SUSPEND*)
            ((RECREATED < RECREATE)) ||
                fail "$NAME is gone (${NODE:-${REQUEST:-no such TPU}}) after $RECREATED re-creation(s); $OUTPUT/results has what was fetched last, and the same command continues from there"
            RECREATED=$((RECREATED + 1))
            say "$NAME is gone (${NODE:-${REQUEST:-no such TPU}}): creating it anew ($RECREATED of $RECREATE)"
            PHASE=begin
            { [[ -z $REQUEST$NODE ]] || delete_tpu; } && create_tpu && setup_workers && return
            ;;
        *)
            FAILURES=$((FAILURES + 1))
            ((FAILURES < PATIENCE)) ||
                fail "gave up after $FAILURES failures in a row (see above; $NAME: ${NODE:-none}). The command may still run there; the same run.sh joins it, and $OUTPUT/results has what was fetched last"
            say "trying again ($FAILURES of $PATIENCE)"
            ;;
    esac
    pause
}

watch_exit
MAY_EXIST=1
IF_INTERRUPTED="a command that was started goes on on $NAME; the same run.sh joins it, run.sh --stop ends it"
RECREATED=0 FAILURES=0 RESULT=0
wait_ready || true
if [[ -z $NODE ]]; then
    { read_request '' && read_node ''; } || fail "cannot list what is in $ZONE (see above)"
    if [[ -z $REQUEST$NODE ]]; then
        MAY_EXIST=0
        fail "there is no $NAME in $ZONE of $PROJECT; create.sh creates it"
    fi
fi
if ((STOP)); then
    stop_workers || fail "the command could not be stopped on all workers (see above)"
    PHASE=collect
fi
until attempt; do
    recover
done
((DRY_RUN)) || say "exit code $RESULT; results and logs are in $OUTPUT"
exit "$RESULT"
