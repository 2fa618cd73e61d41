#!/usr/bin/env bash
# Deletes the TPU, after a question.
set -euo pipefail
exec 3>&1
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

help() {
    cat <<'HELP'
delete.sh: deletes the TPU of that name with all that is on it, and the queued resource of that
name if there is one, and makes sure that both are gone. Asks first. fetch.sh comes before.

    tpu_scripts/delete.sh --name my-tpu --project my-project --zone us-west4-a

HELP
    common_help
    cat <<'HELP'
  --queued                 in a dry run: it was created with --queued
  --yes                    do not ask
HELP
    always_help
}

YES=0
split_options "$@"
set -- "${ARGS[@]}"
while (($#)); do
    case $1 in
        --yes) YES=1 TAKEN=1 ;;
        *) common_option "$@" ;;
    esac
    shift "$TAKEN"
done
require name project zone
watch_exit

request='' node=$NAME,READY
((QUEUED == 0)) || request=$NAME,ACTIVE
MAY_EXIST=1
read_request "$request" || fail "cannot list the queued resources in $ZONE (see above); nothing was deleted"
read_node "$node" || fail "cannot list the TPUs in $ZONE (see above); nothing was deleted"
if [[ -z $REQUEST$NODE ]]; then
    MAY_EXIST=0
    fail "there is no $NAME in $ZONE of $PROJECT: nothing to delete"
fi
if ((YES == 0 && DRY_RUN == 0)); then
    printf 'Delete %s in %s of %s?\n' "$NAME" "$ZONE" "$PROJECT" >&2
    [[ -z $NODE ]] || printf '  the TPU (%s, %s worker(s)), with all that is on its disks\n' "$NODE" "$WORKERS" >&2
    [[ -z $REQUEST ]] || printf '  the queued resource (%s)\n' "$REQUEST" >&2
    printf 'Type its name to delete it: ' >&2
    read -r answer || answer=
    [[ $answer == "$NAME" ]] || fail "nothing was deleted"
fi
delete_tpu || fail "$NAME could not be deleted, or is not gone yet (see above; TPU: ${NODE:-none}, request: ${REQUEST:-none})"
((DRY_RUN)) || say "$NAME is gone"
