"""How wait() learns of changes: LISTEN/NOTIFY and a slow poll."""
