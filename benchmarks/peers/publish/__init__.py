"""The results of a comparison as tables: on the console, in README.md and in performance.md."""
