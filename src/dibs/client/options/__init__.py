"""The options an application passes to dibs, and their conversion to the values of the model."""
