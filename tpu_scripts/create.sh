#!/usr/bin/env bash
# Creates a TPU VM, or a slice of several.
set -euo pipefail
exec 3>&1
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

help() {
    cat <<'HELP'
create.sh: creates a TPU VM, and waits until it is ready. It costs money from then on.

    tpu_scripts/create.sh --name my-tpu --project my-project --zone us-west4-a \
        --accelerator-type v5litepod-8 --version v2-alpha-tpuv5-lite

A slice of several hosts is the same, with a larger type (v5litepod-16). Next comes setup.sh.

HELP
    common_help
    create_help
    always_help
}

split_options "$@"
set -- "${ARGS[@]}"
while (($#)); do
    common_option "$@"
    shift "$TAKEN"
done
require name project zone accelerator version
watch_exit

read_request '' || fail "cannot list the queued resources in $ZONE (see above); nothing was created"
read_node '' || fail "cannot list the TPUs in $ZONE (see above); nothing was created"
if [[ -n $REQUEST$NODE ]]; then
    MAY_EXIST=1
    fail "$NAME exists already (${NODE:-request $REQUEST}); nothing was created"
fi
IF_INTERRUPTED="the request may go on in Google Cloud"
create_tpu || fail "$NAME could not be created (see above; its state: ${NODE:-none}). It, or the request for it, may exist all the same"
((DRY_RUN)) || say "$NAME is ready: $WORKERS worker(s)"
