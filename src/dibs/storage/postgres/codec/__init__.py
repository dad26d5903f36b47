"""Conversion between the values of the model and the parameters and rows of SQL statements."""
