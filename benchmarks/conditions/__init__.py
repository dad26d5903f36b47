"""What a rate becomes when conditions change: a far server, a long line, a cold start, room taken."""
