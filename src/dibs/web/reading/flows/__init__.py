"""Page models of flows and batches: lists, one flow with its drawing, one batch with its segments."""
