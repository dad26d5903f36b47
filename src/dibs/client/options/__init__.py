"""Options that an application passes to dibs, and their conversion to the values of `dibs.model`."""
