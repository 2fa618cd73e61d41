# The common parts of the scripts in this directory: options, --dry-run, last words, and through
# steps.sh the state of the TPU and the steps. Sourced, never run. Needs bash 4.4 or newer.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2153  # variables that the scripts and steps.sh share

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "expected bash 4.4 or newer, got $BASH_VERSION" >&2
    exit 1
fi

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SCRIPT=${0##*/}
# shellcheck source=steps.sh
source "$ROOT/tpu_scripts/steps.sh"

NAME=${TPU_NAME:-}
PROJECT=${PROJECT_ID:-}
ZONE=${ZONE:-}
ACCELERATOR_TYPE=${ACCELERATOR_TYPE:-}
RUNTIME_VERSION=${RUNTIME_VERSION:-}
SPOT=0
QUEUED=0
CREATE_FLAGS=()
WORKERS=
WAIT=3600
POLL=60
OUTPUT=
DRY_RUN=0

MAY_EXIST=0     # whether something may be there that costs money, for the last words
INTERRUPTED=0
IF_INTERRUPTED= # what else to say then

common_help() {
    cat <<'HELP'
Which TPU (an option, or the environment variable):
  --name NAME              its name                         TPU_NAME
  --project PROJECT        Google Cloud project             PROJECT_ID
  --zone ZONE              where it is                      ZONE
HELP
}

create_help() {
    cat <<'HELP'
What is created:
  --accelerator-type TYPE  such as v5litepod-8, which is a v5e-8      ACCELERATOR_TYPE
  --version VERSION        software of the TPU VM, such as
                           v2-alpha-tpuv5-lite for v5e                RUNTIME_VERSION
  --spot                   cheaper, and may be taken away at any time
  --queued                 as a queued resource: waits for a free TPU instead of failing
  --create-flag FLAG       handed on to gcloud's create, such as --network=NET; may be repeated
  --wait SECONDS           how long to wait for the TPU (3600); a queued request that is not
                           fulfilled by then expires
HELP
}

always_help() {
    cat <<'HELP'
Always:
  --poll SECONDS           time between two looks (60)
  --dry-run                print every command, to be copied, and run none
  -h, --help               this text
HELP
}

say() { printf '%s: %s\n' "$SCRIPT" "$*" >&2; }

# Usage errors end with 2, everything else that goes wrong with 1.
usage_error() {
    say "$*; see --help"
    exit 2
}

fail() {
    say "$*"
    exit 1
}

# One word, quoted for any POSIX shell where it must be.
quoted() {
    if [[ $1 =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then
        printf '%s' "$1"
    else
        printf "'%s'" "${1//\'/\'\\\'\'}"
    fi
}

command_line() {
    local word space=
    for word in "$@"; do
        printf '%s' "$space"
        quoted "$word"
        space=' '
    done
}

# Runs a command, or prints it (fd 3 is stdout, also inside of $(...)).
run() {
    if ((DRY_RUN)); then
        printf '%s\n' "$(command_line "$@")" >&3
    else
        printf '+ %s\n' "$(command_line "$@")" >&2
        "$@" 3>&-
    fi
}

# ask ANSWER COMMAND...: what the command says; in a dry run, what it says when all goes well.
ask() {
    local answer=$1
    shift
    if ((DRY_RUN)); then
        printf '%s\n' "$(command_line "$@")" >&3
        printf '%s\n' "$answer"
    else
        "$@" 3>&-
    fi
}

pause() { ((DRY_RUN)) || sleep "$POLL"; }

# --option=value becomes two words, up to a lone --. Sets ARGS.
split_options() {
    ARGS=()
    while (($#)); do
        case $1 in
            --)
                ARGS+=("$@")
                return
                ;;
            --?*=*) ARGS+=("${1%%=*}" "${1#*=}") ;;
            *) ARGS+=("$1") ;;
        esac
        shift
    done
}

need_value() { (($# >= 2)) && [[ -n $2 ]] || usage_error "$1 needs a value"; }

need_number() {
    need_value "$@"
    [[ $2 =~ ^[0-9]{1,9}$ ]] || usage_error "$1 must be a whole number, got '$2'"
}

# Takes an option that all scripts have from the front. Sets TAKEN, the number of words.
common_option() {
    TAKEN=2
    case $1 in
        --name) need_value "$@" && NAME=$2 ;;
        --project) need_value "$@" && PROJECT=$2 ;;
        --zone) need_value "$@" && ZONE=$2 ;;
        --accelerator-type) need_value "$@" && ACCELERATOR_TYPE=$2 ;;
        --version) need_value "$@" && RUNTIME_VERSION=$2 ;;
        --create-flag) need_value "$@" && CREATE_FLAGS+=("$2") ;;
        --workers) need_number "$@" && WORKERS=$2 ;;
        --wait) need_number "$@" && WAIT=$((10#$2)) ;;
        --poll) need_number "$@" && POLL=$((10#$2)) ;;
        --output) need_value "$@" && OUTPUT=$2 ;;
        --spot) SPOT=1 TAKEN=1 ;;
        --queued) QUEUED=1 TAKEN=1 ;;
        --dry-run) DRY_RUN=1 TAKEN=1 ;;
        -h | --help)
            help
            exit 0
            ;;
        *) usage_error "what is '$1'?" ;;
    esac
}

# require name project ...: one line that names all that is missing, before anything is done.
require() {
    local what missing=()
    for what in "$@"; do
        case $what in
            name) [[ -n $NAME ]] || missing+=("--name (or TPU_NAME)") ;;
            project) [[ -n $PROJECT ]] || missing+=("--project (or PROJECT_ID)") ;;
            zone) [[ -n $ZONE ]] || missing+=("--zone (or ZONE)") ;;
            accelerator) [[ -n $ACCELERATOR_TYPE ]] || missing+=("--accelerator-type (or ACCELERATOR_TYPE)") ;;
            version) [[ -n $RUNTIME_VERSION ]] || missing+=("--version (or RUNTIME_VERSION)") ;;
            output) [[ -n $OUTPUT ]] || missing+=("--output") ;;
        esac
    done
    if ((${#missing[@]})); then
        local list
        list=$(printf ', %s' "${missing[@]}")
        usage_error "missing: ${list:2}"
    fi
    [[ $NAME != -* ]] || usage_error "--name must not begin with '-', got '$NAME'"
    [[ $NAME != *[:@,]* ]] || usage_error "--name must not contain ':', '@' or ',', got '$NAME'"
    if [[ -n $OUTPUT ]]; then
        [[ $OUTPUT == /* ]] || OUTPUT=$PWD/$OUTPUT
        [[ $OUTPUT != *:* ]] || usage_error "--output must not contain ':', which scp takes for a host, got '$OUTPUT'"
    fi
    WHERE=("--project=$PROJECT" "--zone=$ZONE")
    ((DRY_RUN)) || command -v gcloud >/dev/null ||
        fail "gcloud is not installed, or not on PATH: https://cloud.google.com/sdk/docs/install"
}

# Last words, whatever happens from here on: what still costs money, and how to be rid of it.
watch_exit() {
    trap on_exit EXIT
    trap 'INTERRUPTED=1; exit 129' HUP
    trap 'INTERRUPTED=1; exit 130' INT
    trap 'INTERRUPTED=1; exit 143' TERM
}

on_exit() {
    ((DRY_RUN == 0)) || return 0
    if ((INTERRUPTED)); then
        say "interrupted${IF_INTERRUPTED:+: $IF_INTERRUPTED}"
    fi
    if ((MAY_EXIST)); then
        say "$NAME costs money for as long as it exists. To look: $(command_line "${LIST_NODES[@]}" "${WHERE[@]}"). To delete: $(command_line "$ROOT/tpu_scripts/delete.sh" --name "$NAME" "${WHERE[@]}")"
    fi
}
