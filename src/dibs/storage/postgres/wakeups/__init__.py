"""Wake-ups of `wait`: LISTEN/NOTIFY and a slow poll."""
