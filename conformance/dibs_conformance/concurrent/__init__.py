"""Several clients at once: what they do, who goes next, and whether the contract allows what came of it."""
