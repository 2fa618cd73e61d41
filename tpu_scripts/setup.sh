#!/usr/bin/env bash
# Installs this checkout on all workers, and looks for the TPU.
set -euo pipefail
exec 3>&1
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

help() {
    cat <<'HELP'
setup.sh: copies the committed files of this checkout to every worker, installs them with JAX for
TPUs in a virtual environment, and checks that JAX sees all devices of the slice. It can be
repeated, after a failure or with new commits.

    tpu_scripts/setup.sh --name my-tpu --project my-project --zone us-west4-a

HELP
    common_help
    cat <<'HELP'
  --workers N              hosts of the slice; only a dry run needs it (1)
HELP
    always_help
}

split_options "$@"
set -- "${ARGS[@]}"
while (($#)); do
    common_option "$@"
    shift "$TAKEN"
done
require name project zone
watch_exit

wait_ready || fail "$NAME is not ready (state: ${NODE:-none}); create.sh creates it"
MAY_EXIST=1
setup_workers || fail "set-up failed on at least one worker (see above); the same command tries again"
((DRY_RUN)) || say "$WORKERS worker(s) of $NAME are set up"
