"""What an application holds: the app, its queues and tasks, tickets, and claims by hand."""
