"""What a job is: values and pure functions. Nothing in here awaits, reads a clock or does I/O."""
