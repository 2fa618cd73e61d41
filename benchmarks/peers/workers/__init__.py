"""What runs in the peers' own processes, and imports nothing of lookahead_jax."""
