"""The page models of the dashboard, read from the storage in bounded scans."""
