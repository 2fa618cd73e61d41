"""Whether JAX sees the TPU: `check_devices.py PROCESSES`, at the same time on every worker.

On a slice of several hosts the first JAX call waits for all of them, so that an answer from one
is an answer from all.
"""

import sys

import jax


def main(processes: int) -> None:
    """Prints what there is, or ends with one line that says what is wrong."""
    if processes > 1:
        jax.distributed.initialize()
    platform = jax.default_backend()
    if platform != "tpu":
        sys.exit(f"check_devices.py: expected a TPU, but JAX runs on {platform}")
    if jax.process_count() != processes:
        sys.exit(f"check_devices.py: expected {processes} processes, got {jax.process_count()}")
    print(
        f"process {jax.process_index()} of {processes}: {jax.local_device_count()} of "
        f"{jax.device_count()} devices ({jax.devices()[0].device_kind}), jax {jax.__version__}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
