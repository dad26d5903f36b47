"""The child processes of a supervisor: the code that forks or spawns them, and their main functions."""
