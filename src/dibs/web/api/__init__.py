"""The JSON API of the dashboard: each page for programs, and each write as a POST."""
