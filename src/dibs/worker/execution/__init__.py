"""One run of a handler: from the claimed job to its settlement."""
