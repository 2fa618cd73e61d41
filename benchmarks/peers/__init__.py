"""Other implementations, measured beside this one in the same run; ../README.md says how."""
