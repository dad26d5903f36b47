"""Wake-ups of `wait` and of blocking claims: publish and subscribe, BLPOP, and a slow poll."""
