#!/usr/bin/env bash
# Fetches results and logs.
set -euo pipefail
exec 3>&1
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

help() {
    cat <<'HELP'
fetch.sh: copies what worker 0 has in results/ into DIR/results, and the log of every worker into
DIR/logs. Files of the same name are replaced; nothing is deleted. run.sh does this too, while it
waits and at the end.

    tpu_scripts/fetch.sh --name my-tpu --project my-project --zone us-west4-a --output DIR

HELP
    common_help
    cat <<'HELP'
  --output DIR             where to
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
require name project zone output
watch_exit

wait_ready || fail "$NAME is not ready (state: ${NODE:-none}): nothing can be fetched"
MAY_EXIST=1
fetch_results || fail "the results could not be fetched (see above); what was fetched before is as it was. Do not delete $NAME yet"
fetch_logs || fail "the results are in $OUTPUT/results; not all logs could be fetched (see above)"
((DRY_RUN)) || say "results and logs are in $OUTPUT"
