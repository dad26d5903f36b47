"""The application of the project: orders, whose invoices are written by jobs."""
