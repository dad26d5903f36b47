"""How wait() and blocking claims learn of changes: publish/subscribe, BLPOP and a slow poll."""
