"""Lookahead decoding against ordinary decoding, measured side by side over W, N and G."""
