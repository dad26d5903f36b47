"""The handles of an application: app, queues, tasks, tickets, receivers, claims and feeds."""
